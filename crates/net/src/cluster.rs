//! The cluster: jobs and their tasks' addresses.

use downpour_wire::messages::ClusterDef;
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
    /// Not JSON at all.
    #[error("the cluster is not valid JSON: {0}")]
    Json(String),
    /// JSON, but not of the right form.
    #[error(
        "the cluster must be an object like {{\"worker\": [\"host:port\", …]}} or {{\"worker\": {{\"7\": \"host:port\"}}}}: {0}"
    )]
    Form(String),
    /// A job name that device names cannot hold.
    #[error(
        "'{0}' is no job name: it must start with a letter and hold only letters, digits and '_'"
    )]
    JobName(String),
    /// An address without a usable port.
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
    /// A job that is not in the cluster.
    #[error("job '{job}' is not in the cluster, which has {known}")]
    NoJob {
        /// Job asked for.
        job: String,
        /// Jobs there are.
        known: String,
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

/// Longest description that is read.
const MAX_TEXT: usize = 4 << 20;

impl ClusterSpec {
    /// Parses `{"job": ["host:port", …]}`; a sparse job is `{"job": {"7": "host:port"}}`.
    pub fn from_json(text: &str) -> Result<ClusterSpec, ClusterError> {
        if text.len() > MAX_TEXT {
            return Err(ClusterError::Form(format!(
                "it is longer than {MAX_TEXT} bytes"
            )));
        }
        let value: serde_json::Value =
            serde_json::from_str(text).map_err(|e| ClusterError::Json(e.to_string()))?;
        let serde_json::Value::Object(jobs) = value else {
            return Err(ClusterError::Form("it is not an object".into()));
        };
        let mut spec = ClusterSpec::default();
        for (job, tasks) in jobs {
            let bad = |what: String| ClusterError::Form(format!("job '{job}': {what}"));
            let address = |v: serde_json::Value| match v {
                serde_json::Value::String(s) => Ok(s),
                other => Err(bad(format!("{other} is no address"))),
            };
            match tasks {
                serde_json::Value::Array(list) => {
                    for (i, v) in list.into_iter().enumerate() {
                        spec.add(&job, i as u32, address(v)?)?;
                    }
                }
                serde_json::Value::Object(map) => {
                    for (key, v) in map {
                        let task = key
                            .parse::<i32>()
                            .ok()
                            .and_then(|n| u32::try_from(n).ok())
                            .ok_or_else(|| bad(format!("'{key}' is no task index")))?;
                        spec.add(&job, task, address(v)?)?;
                    }
                }
                other => return Err(bad(format!("{other} is neither a list nor an object"))),
            }
        }
        spec.check_duplicates()?;
        Ok(spec)
    }

    /// Adds a job from TensorFlow's flag form, `host:port,host:port`.
    pub fn add_hosts(&mut self, job: &str, hosts: &str) -> Result<(), ClusterError> {
        for (i, host) in hosts.split(',').filter(|h| !h.is_empty()).enumerate() {
            self.add(job, i as u32, host.trim().to_owned())?;
        }
        self.check_duplicates()
    }

    /// A cluster of one task.
    pub fn single(job: &str, address: &str) -> Result<ClusterSpec, ClusterError> {
        let mut spec = ClusterSpec::default();
        spec.add(job, 0, address.to_owned())?;
        Ok(spec)
    }

    /// The cluster a client or a master described.
    pub fn from_def(def: &ClusterDef) -> Result<ClusterSpec, ClusterError> {
        let mut spec = ClusterSpec::default();
        for job in &def.jobs {
            for (task, address) in &job.tasks {
                let task = u32::try_from(*task).map_err(|_| {
                    ClusterError::Form(format!("job '{}' has a task {task}", job.name))
                })?;
                spec.add(&job.name, task, address.clone())?;
            }
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
        self.jobs
            .entry(job.to_owned())
            .or_default()
            .insert(task, address);
        Ok(())
    }

    fn check_duplicates(&self) -> Result<(), ClusterError> {
        let mut seen: BTreeMap<&str, String> = BTreeMap::new();
        for (job, tasks) in &self.jobs {
            for (task, address) in tasks {
                let name = format!("/job:{job}/task:{task}");
                if let Some(first) = seen.insert(address, name.clone()) {
                    return Err(ClusterError::Duplicate {
                        address: address.clone(),
                        first,
                        second: name,
                    });
                }
            }
        }
        Ok(())
    }

    /// The address of a task.
    pub fn address(&self, job: &str, task: u32) -> Result<&str, ClusterError> {
        let tasks = self.jobs.get(job).ok_or_else(|| ClusterError::NoJob {
            job: job.into(),
            known: self.jobs.keys().cloned().collect::<Vec<_>>().join(", "),
        })?;
        tasks
            .get(&task)
            .map(String::as_str)
            .ok_or_else(|| ClusterError::NoTask {
                job: job.into(),
                task,
                known: tasks
                    .keys()
                    .map(u32::to_string)
                    .collect::<Vec<_>>()
                    .join(", "),
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
}

/// Splits `host:port` (or `[v6]:port`).
pub(crate) fn split_address(address: &str) -> Result<(&str, u16), &'static str> {
    let (host, port) = address.rsplit_once(':').ok_or("there is no ':port'")?;
    if host.is_empty() {
        return Err("the host is empty");
    }
    let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    if bare.is_none() && host.contains(':') {
        return Err("an IPv6 address needs brackets, as in [::1]:2222");
    }
    let port: u16 = port
        .parse()
        .map_err(|_| "the port is not a number from 0 to 65535")?;
    Ok((bare.unwrap_or(host), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_sparse_maps_are_read() {
        let text = r#"{"ps": ["a:1", "b:2"], "worker": {"7": "[::1]:3"}}"#;
        let spec = ClusterSpec::from_json(text).unwrap();
        assert_eq!(spec.address("ps", 1), Ok("b:2"));
        assert_eq!(spec.address("worker", 7), Ok("[::1]:3"));
        assert_eq!(spec.num_tasks(), 3);
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, part) in [
            ("{", "not valid JSON"),
            ("[]", "not an object"),
            (r#"{"1a": []}"#, "ok"),
            (r#"{"1a": ["h:1"]}"#, "'1a' is no job name"),
            (r#"{"a": ["h"]}"#, "there is no ':port'"),
            (r#"{"a": ["h:65536"]}"#, "not a number from 0 to 65535"),
            (r#"{"a": ["::1:5"]}"#, "needs brackets"),
            (
                r#"{"a": ["h:1", "h:1"]}"#,
                "given to both /job:a/task:0 and /job:a/task:1",
            ),
            (r#"{"a": {"-1": "h:1"}}"#, "'-1' is no task index"),
            (r#"{"a": 3}"#, "neither a list nor an object"),
            (r#"{"a": [3]}"#, "3 is no address"),
        ] {
            let shown =
                ClusterSpec::from_json(text).map_or_else(|e| e.to_string(), |_| "ok".into());
            assert!(shown.contains(part), "{text}: {shown}");
        }
        let spec = ClusterSpec::from_json(r#"{"a": ["h:1"]}"#).unwrap();
        assert!(
            spec.address("b", 0)
                .unwrap_err()
                .to_string()
                .contains("which has a")
        );
        assert!(
            spec.address("a", 5)
                .unwrap_err()
                .to_string()
                .contains("no task 5; it has 0")
        );
    }
}
