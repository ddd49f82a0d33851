//! The cluster: jobs and their tasks' addresses, read from text and checked. No I/O happens here;
//! whoever has flags, environment or files hands the text in (see `definition`).

use crate::address::{canonical, split_address};
use crate::config_value::{ConfigValue, TextError};
use std::collections::BTreeMap;

/// Jobs by name, tasks by index, addresses as `host:port`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterSpec {
    jobs: BTreeMap<String, BTreeMap<u32, String>>,
}

/// What is wrong with a description of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// Not a text of the right kind at all.
    #[error(transparent)]
    Text(#[from] TextError),
    /// Readable, but not of the right form.
    #[error(
        "the cluster must be like {{\"worker\": [\"host:port\", …]}} or {{\"worker\": {{\"7\": \"host:port\"}}}}: {0}"
    )]
    Form(String),
    /// A job name that device names cannot hold.
    #[error(
        "'{0}' is no job name: it must start with a letter and hold only letters, digits and '_'"
    )]
    JobName(String),
    /// An address that does not do.
    #[error("task {task} of job '{job}' has address '{address}': {reason}")]
    Address {
        /// Job.
        job: String,
        /// Task index.
        task: u32,
        /// What was given.
        address: String,
        /// Why it does not do.
        reason: &'static str,
    },
    /// One task with two addresses.
    #[error("task {task} of job '{job}' is given twice")]
    TaskTwice {
        /// Job.
        job: String,
        /// Task index.
        task: u32,
    },
    /// Two tasks at one address.
    #[error("address '{address}' is given to both {first} and {second}")]
    Duplicate {
        /// The address.
        address: String,
        /// First task.
        first: String,
        /// Second task.
        second: String,
    },
    /// A list of hosts without any.
    #[error("it names no host")]
    NoHosts,
    /// A list of hosts with a gap.
    #[error("host number {0} of the list is empty")]
    EmptyHost(usize),
    /// A job that is not in the cluster.
    #[error("job '{job}' is not in the cluster, which has {known}{hint}")]
    NoJob {
        /// Job asked for.
        job: String,
        /// Jobs there are.
        known: String,
        /// What may have been meant.
        hint: String,
    },
    /// A task that is not in its job.
    #[error("job '{job}' has no task {task}; it has {known}")]
    NoTask {
        /// Job.
        job: String,
        /// Task asked for.
        task: u32,
        /// Tasks there are.
        known: String,
    },
}

impl ClusterSpec {
    /// Parses `{"job": ["host:port", …]}`; a sparse job is `{"job": {"7": "host:port"}}`.
    pub fn from_json(text: &str) -> Result<ClusterSpec, ClusterError> {
        ClusterSpec::from_value(&ConfigValue::from_json(text)?)
    }

    /// Parses JSON, or TOML with the jobs as its keys.
    pub fn from_text(text: &str) -> Result<ClusterSpec, ClusterError> {
        ClusterSpec::from_value(&ConfigValue::parse(text)?)
    }

    pub(crate) fn from_value(value: &ConfigValue) -> Result<ClusterSpec, ClusterError> {
        let ConfigValue::Map(jobs) = value else {
            return Err(ClusterError::Form(format!("it is {value}")));
        };
        let mut spec = ClusterSpec::default();
        for (job, tasks) in jobs {
            let bad = |what: String| ClusterError::Form(format!("job '{job}': {what}"));
            let address = |v: &ConfigValue| match v {
                ConfigValue::Text(s) => Ok(s.clone()),
                other => Err(bad(format!("{other} is no address"))),
            };
            match tasks {
                ConfigValue::List(list) => {
                    for (i, v) in list.iter().enumerate() {
                        spec.add(job, i as u32, address(v)?)?;
                    }
                }
                ConfigValue::Map(map) => {
                    for (key, v) in map {
                        let task = parse_index(key)
                            .ok_or_else(|| bad(format!("'{key}' is no task index")))?;
                        spec.add(job, task, address(v)?)?;
                    }
                }
                other => return Err(bad(format!("{other} is neither a list nor a table"))),
            }
        }
        spec.check_duplicates()?;
        Ok(spec)
    }

    /// Adds a job from TensorFlow's flag form, `host:port,host:port`.
    pub fn add_hosts(&mut self, job: &str, hosts: &str) -> Result<(), ClusterError> {
        if hosts.trim().is_empty() {
            return Err(ClusterError::NoHosts);
        }
        for (i, host) in hosts.split(',').map(str::trim).enumerate() {
            if host.is_empty() {
                return Err(ClusterError::EmptyHost(i + 1));
            }
            self.add(job, i as u32, host.to_owned())?;
        }
        self.check_duplicates()
    }

    /// A cluster of one task.
    pub fn single(job: &str, address: &str) -> Result<ClusterSpec, ClusterError> {
        let mut spec = ClusterSpec::default();
        spec.add(job, 0, address.to_owned())?;
        Ok(spec)
    }

    /// A cluster from its tasks, as a message lists them: job, index and address.
    pub fn from_tasks<'a>(
        tasks: impl IntoIterator<Item = (&'a str, i32, &'a str)>,
    ) -> Result<ClusterSpec, ClusterError> {
        let mut spec = ClusterSpec::default();
        for (job, task, address) in tasks {
            let task = u32::try_from(task)
                .map_err(|_| ClusterError::Form(format!("job '{job}' has a task {task}")))?;
            spec.add(job, task, address.to_owned())?;
        }
        spec.check_duplicates()?;
        Ok(spec)
    }

    fn add(&mut self, job: &str, task: u32, address: String) -> Result<(), ClusterError> {
        let mut chars = job.chars();
        if !chars.next().is_some_and(|c| c.is_ascii_alphabetic())
            || !chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
        {
            return Err(ClusterError::JobName(job.chars().take(100).collect()));
        }
        if let Err(reason) = split_address(&address) {
            return Err(ClusterError::Address {
                job: job.into(),
                task,
                address,
                reason,
            });
        }
        let tasks = self.jobs.entry(job.to_owned()).or_default();
        if tasks.insert(task, address).is_some() {
            let job = job.to_owned();
            return Err(ClusterError::TaskTwice { job, task });
        }
        Ok(())
    }

    fn check_duplicates(&self) -> Result<(), ClusterError> {
        let mut seen: BTreeMap<String, String> = BTreeMap::new();
        for (job, task, address) in self.tasks() {
            let name = format!("/job:{job}/task:{task}");
            if let Some(first) = seen.insert(canonical(address), name.clone()) {
                return Err(ClusterError::Duplicate {
                    address: address.to_owned(),
                    first,
                    second: name,
                });
            }
        }
        Ok(())
    }

    /// The address of a task.
    pub fn address(&self, job: &str, task: u32) -> Result<&str, ClusterError> {
        let tasks = self.job(job)?;
        tasks
            .get(&task)
            .map(String::as_str)
            .ok_or_else(|| ClusterError::NoTask {
                job: job.into(),
                task,
                known: list_tasks(tasks),
            })
    }

    /// The tasks of a job.
    pub fn job(&self, job: &str) -> Result<&BTreeMap<u32, String>, ClusterError> {
        self.jobs.get(job).ok_or_else(|| {
            let known: Vec<String> = self
                .jobs
                .iter()
                .map(|(job, tasks)| format!("{job} ({})", list_tasks(tasks)))
                .collect();
            ClusterError::NoJob {
                job: job.into(),
                known: match known.is_empty() {
                    true => "no jobs".into(),
                    false => known.join(", "),
                },
                hint: did_you_mean(job, self.jobs.keys().map(String::as_str)),
            }
        })
    }

    /// Number of tasks of all jobs.
    pub fn num_tasks(&self) -> usize {
        self.jobs.values().map(BTreeMap::len).sum()
    }

    /// Every job with its tasks.
    pub fn jobs(&self) -> &BTreeMap<String, BTreeMap<u32, String>> {
        &self.jobs
    }

    /// Every task with its job and address.
    pub fn tasks(&self) -> impl Iterator<Item = (&str, u32, &str)> {
        self.jobs.iter().flat_map(|(job, tasks)| {
            let each = tasks.iter();
            each.map(move |(task, address)| (job.as_str(), *task, address.as_str()))
        })
    }
}

/// A task index as JSON and TOML write it: a key, so a text.
fn parse_index(key: &str) -> Option<u32> {
    let index = key.parse::<i32>().ok()?;
    u32::try_from(index).ok()
}

/// `tasks 0-3, 7`.
fn list_tasks(tasks: &BTreeMap<u32, String>) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for task in tasks.keys().copied() {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(task) => *last = task,
            _ => ranges.push((task, task)),
        }
    }
    let ranges: Vec<String> = ranges
        .into_iter()
        .map(|(first, last)| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        })
        .collect();
    let noun = if tasks.len() == 1 { "task" } else { "tasks" };
    format!("{noun} {}", ranges.join(", "))
}

/// `; did you mean 'x'?` if one of the known words is near, else nothing.
pub(crate) fn did_you_mean<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> String {
    // Nobody mistypes a word of this length; and the table below is its square.
    if word.len() > 64 {
        return String::new();
    }
    let lower = word.to_ascii_lowercase();
    let nearest = known
        .map(|k| (distance(&lower, &k.to_ascii_lowercase()), k))
        .min();
    match nearest {
        Some((far, near)) if far <= 1 + word.len() / 4 => format!("; did you mean '{near}'?"),
        _ => String::new(),
    }
}

/// How many letters must be added, dropped or changed to get from one word to the other.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (above, y) in row.iter_mut().skip(1).zip(&b) {
            let cost = (diagonal + usize::from(x != *y))
                .min(left + 1)
                .min(*above + 1);
            diagonal = std::mem::replace(above, cost);
            left = cost;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_sparse_maps_are_read() {
        let json = r#"{"ps": ["a:1", "b:2"], "worker": {"7": "[::1]:3"}}"#;
        let toml = "ps = ['a:1', 'b:2']\nworker.7 = '[::1]:3'\n";
        let spec = ClusterSpec::from_json(json).unwrap();
        assert_eq!(spec.address("ps", 1), Ok("b:2"));
        assert_eq!(spec.address("worker", 7), Ok("[::1]:3"));
        assert_eq!(spec.num_tasks(), 3);
        assert_eq!(ClusterSpec::from_text(toml), Ok(spec));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, part) in [
            ("{", "not valid JSON"),
            ("[]", "it is a list"),
            (r#"{"1a": []}"#, "ok"),
            (r#"{"1a": ["h:1"]}"#, "'1a' is no job name"),
            (
                r#"{"a": ["h"]}"#,
                "task 0 of job 'a' has address 'h': there is no ':port'",
            ),
            (
                r#"{"a": ["h:1", "H:01"]}"#,
                "address 'H:01' is given to both /job:a/task:0 and /job:a/task:1",
            ),
            (r#"{"a": ["h:1"], "a": ["h:2"]}"#, "'a' is given twice"),
            (
                r#"{"a": {"7": "h:1", "07": "h:2"}}"#,
                "task 7 of job 'a' is given twice",
            ),
            (r#"{"a": {"-1": "h:1"}}"#, "'-1' is no task index"),
            (r#"{"a": 3}"#, "neither a list nor a table"),
            (r#"{"a": [3]}"#, "3 is no address"),
        ] {
            let shown =
                ClusterSpec::from_json(text).map_or_else(|e| e.to_string(), |_| "ok".into());
            assert!(shown.contains(part), "{text}: {shown}");
        }
    }

    #[test]
    fn hosts_with_gaps_are_refused_lest_tasks_shift() {
        let mut spec = ClusterSpec::default();
        assert_eq!(spec.add_hosts("ps", " "), Err(ClusterError::NoHosts));
        assert_eq!(
            spec.add_hosts("ps", "a:1,,b:1"),
            Err(ClusterError::EmptyHost(2))
        );
        let mut spec = ClusterSpec::default();
        spec.add_hosts("ps", "a:1, [::1]:2").unwrap();
        assert_eq!(spec.address("ps", 1), Ok("[::1]:2"));
    }

    #[test]
    fn a_task_that_is_not_there_is_answered_with_those_that_are() {
        let text = r#"{"ps": ["h:1"], "worker": {"0": "h:2", "1": "h:3", "7": "h:4"}}"#;
        let spec = ClusterSpec::from_json(text).unwrap();
        for ((job, task), want) in [
            (
                ("wroker", 0),
                "job 'wroker' is not in the cluster, which has ps (task 0), worker (tasks 0-1, 7); did you mean 'worker'?",
            ),
            (
                ("chief", 0),
                "job 'chief' is not in the cluster, which has ps (task 0), worker (tasks 0-1, 7)",
            ),
            (
                ("worker", 2),
                "job 'worker' has no task 2; it has tasks 0-1, 7",
            ),
        ] {
            assert_eq!(spec.address(job, task).unwrap_err().to_string(), want);
        }
    }

    #[test]
    fn near_words_are_found() {
        let known = ["cluster", "task", "environment"];
        let hint = |word| did_you_mean(word, known.into_iter());
        assert_eq!(hint("clustr"), "; did you mean 'cluster'?");
        assert_eq!(hint("Task"), "; did you mean 'task'?");
        assert_eq!(hint("enviroment"), "; did you mean 'environment'?");
        assert_eq!(hint("bananas"), "");
    }
}
