//! What a job is: tasks, what runs in them, how failures are taken. The same description whether it
//! comes from flags or from a file, and wherever its tasks run (`site`). Pure: a text comes in, a checked [`JobSpec`] or what is wrong comes out.

use crate::kubernetes::Kubernetes;
use crate::policy::RestartPolicy;
use crate::site::{Docker, On, Resources, Slurm, Ssh};
use crate::yarn::Yarn;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// Longest description that is read.
pub const MAX_TEXT: usize = 4 << 20;
/// Most tasks of a job.
pub const MAX_TASKS: u32 = 1024;
/// Longest name of a job: that of a Kubernetes pod, less room for task names.
const MAX_NAME: usize = 40;
/// The jobs of a cluster, in the order in which TensorFlow looks for the chief.
pub(crate) const JOBS: [&str; 5] = ["ps", "chief", "master", "worker", "evaluator"];

/// A job.
///
/// ```
/// let spec = downpour_launch::JobSpec::from_text(
///     "command = ['python3', 'train.py']\n[tasks.ps]\ncount = 2\n[tasks.worker]\ncount = 4\n",
/// )?;
/// assert_eq!(spec.tasks["worker"].count, 4);
/// assert!(spec.tasks["ps"].serves("ps"));
/// # Ok::<(), downpour_launch::SpecError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobSpec {
    /// What it is called.
    #[serde(default = "usual_name")]
    pub name: String,
    /// Program and arguments of every task that is not served and has none of its own.
    #[serde(default)]
    pub command: Vec<String>,
    /// The tasks of each job of the cluster.
    pub tasks: BTreeMap<String, Group>,
    /// Environment of the programs, beside the launcher's own.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Where logs go; a new directory below `downpour-runs` if nowhere. Of a URL only what programs write to
    /// `{dir}` goes there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir: Option<PathBuf>,
    /// Where the program keeps checkpoints and event files, for those who look at the job;
    /// `{dir}` at its beginning is the run's own directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub train_dir: Option<PathBuf>,
    /// Whether programs get `--job_name`, `--task_index`, `--ps_hosts` and the like appended.
    #[serde(default)]
    pub flags: bool,
    /// Whose end is the job's.
    #[serde(default)]
    pub done_when: DoneWhen,
    /// How long tasks may take to end when asked.
    #[serde(default = "usual_drain", with = "crate::time")]
    pub drain: Duration,
    /// How long an evaluator may go on after the training.
    #[serde(default = "usual_evaluator_wait", with = "crate::time")]
    pub evaluator_wait: Duration,
    /// When a task that failed is started again.
    #[serde(default)]
    pub restart: RestartPolicy,
    /// Where the tasks run.
    #[serde(default)]
    pub on: On,
    /// What is to be known for `on = "ssh"`.
    #[serde(default, skip_serializing_if = "is_usual")]
    pub ssh: Ssh,
    /// What is to be known for `on = "docker"`.
    #[serde(default, skip_serializing_if = "is_usual")]
    pub docker: Docker,
    /// What is to be known for `on = "slurm"`.
    #[serde(default, skip_serializing_if = "is_usual")]
    pub slurm: Slurm,
    /// What is to be known for `on = "kubernetes"`.
    #[serde(default, skip_serializing_if = "is_usual")]
    pub kubernetes: Kubernetes,
    /// What is to be known for `on = "yarn"`.
    #[serde(default, skip_serializing_if = "is_usual")]
    pub yarn: Yarn,
}

fn is_usual<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The tasks of one job of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Group {
    /// How many.
    pub count: u32,
    /// Whether the launcher starts `downpour serve` for each; a `ps` is served unless told not to.
    /// A worker that is served gets its program as well, as the client of that server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serve: Option<bool>,
    /// Program and arguments instead of the job's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// Environment beside the job's.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Addresses, one for each; free ports of this machine if none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hosts: Option<Vec<String>>,
    /// What each may use, where the place can see to it.
    #[serde(skip_serializing_if = "is_usual")]
    pub resources: Resources,
}

impl Group {
    /// Whether the launcher brings the server, if these are the tasks of this job.
    pub fn serves(&self, job: &str) -> bool {
        // A program of its own for the ps brings its own server.
        self.serve.unwrap_or(job == "ps" && self.command.is_none())
    }

    /// Whether each has a program, beside the launcher's server or instead of it.
    pub(crate) fn has_program(&self, job: &str, spec: &JobSpec) -> bool {
        match job {
            "ps" => !self.serves(job),
            _ => self.command.is_some() || !spec.command.is_empty(),
        }
    }
}

/// Whose end is the job's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DoneWhen {
    /// All that train are done.
    #[default]
    All,
    /// The chief is done, or the first worker if there is no chief.
    Chief,
}

/// What is wrong with a job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// Longer than anybody's job.
    #[error("it is longer than {MAX_TEXT} bytes")]
    Long,
    /// Does not parse, or holds what no job has.
    #[error("not a job in {form}: {reason}")]
    Form {
        /// JSON or TOML.
        form: &'static str,
        /// The parser's words.
        reason: String,
    },
    /// A part of it does not do.
    #[error("{key} is {got}; it must be {wanted}")]
    Value {
        /// Which part.
        key: String,
        /// What was given.
        got: String,
        /// What would do.
        wanted: String,
    },
    /// Something is not said that must be.
    #[error("{0}")]
    Missing(String),
}

fn usual_name() -> String {
    "job".to_owned()
}

fn usual_drain() -> Duration {
    Duration::from_secs(20)
}

fn usual_evaluator_wait() -> Duration {
    Duration::from_secs(300)
}

impl JobSpec {
    /// A job of so many tasks of each kind, all else as usual. Not yet checked.
    pub fn new(name: &str, command: Vec<String>, counts: &[(&str, u32)]) -> JobSpec {
        let group = |count| Group {
            count,
            ..Group::default()
        };
        let tasks = counts.iter().filter(|(_, count)| *count > 0);
        JobSpec {
            name: name.to_owned(),
            command,
            tasks: tasks
                .map(|(job, n)| ((*job).to_owned(), group(*n)))
                .collect(),
            env: BTreeMap::new(),
            dir: None,
            train_dir: None,
            flags: false,
            done_when: DoneWhen::All,
            drain: usual_drain(),
            evaluator_wait: usual_evaluator_wait(),
            restart: RestartPolicy::default(),
            on: On::Local,
            ssh: Ssh::default(),
            docker: Docker::default(),
            slurm: Slurm::default(),
            kubernetes: Kubernetes::default(),
            yarn: Yarn::default(),
        }
    }

    /// Reads JSON or TOML, or a TFJob of Kubeflow, and checks it.
    pub fn from_text(text: &str) -> Result<JobSpec, SpecError> {
        if text.len() > MAX_TEXT {
            return Err(SpecError::Long);
        }
        if crate::kubernetes::tfjob::is_one(text) {
            return crate::kubernetes::tfjob::read(text);
        }
        let spec: JobSpec = match text.trim_start().starts_with('{') {
            true => serde_json::from_str(text).map_err(|e| SpecError::Form {
                form: "JSON",
                reason: e.to_string(),
            })?,
            false => toml::from_str(text).map_err(|e| SpecError::Form {
                form: "TOML",
                reason: toml_reason(text, &e),
            })?,
        };
        spec.check()?;
        Ok(spec)
    }

    /// The same as JSON, which [`JobSpec::from_text`] reads.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// Says what is wrong with it.
    pub fn check(&self) -> Result<(), SpecError> {
        check_name(&self.name)?;
        let mut all = 0u32;
        for (job, group) in &self.tasks {
            if !JOBS.contains(&job.as_str()) {
                return Err(value("tasks", job, format!("one of {}", JOBS.join(", "))));
            }
            self.check_group(job, group)?;
            all = all.saturating_add(group.count);
        }
        if all > MAX_TASKS {
            return Err(value(
                "the number of tasks",
                all,
                format!("at most {MAX_TASKS}"),
            ));
        }
        let trains = ["chief", "master", "worker"];
        if !trains.iter().any(|job| self.tasks.contains_key(*job)) {
            return Err(SpecError::Missing(
                "a job needs at least one task that trains: chief or worker".to_owned(),
            ));
        }
        self.check_site()?;
        check_env("env", &self.env)?;
        if !self.command.is_empty() {
            check_command("command", &self.command)?;
        }
        Ok(())
    }

    fn check_group(&self, job: &str, group: &Group) -> Result<(), SpecError> {
        let key = |part: &str| format!("tasks.{job}.{part}");
        let most = match job {
            "chief" | "master" | "evaluator" => 1,
            _ => MAX_TASKS,
        };
        if group.count == 0 || group.count > most {
            let wanted = match most {
                1 => "1".to_owned(),
                _ => format!("from 1 to {most}"),
            };
            return Err(value(&key("count"), group.count, wanted));
        }
        check_env(&key("env"), &group.env)?;
        if let Some(command) = &group.command {
            check_command(&key("command"), command)?;
        }
        group.resources.check(&key("resources"))?;
        if job == "evaluator" && group.serve == Some(true) {
            let wanted = "false: an evaluator is no part of the cluster";
            return Err(value(&key("serve"), true, wanted));
        }
        if job == "ps" && group.serve == Some(true) && group.command.is_some() {
            let wanted = "left out: a ps is served, or runs a command of its own";
            return Err(value(&key("command"), "given", wanted));
        }
        if let Some(hosts) = &group.hosts {
            if job == "evaluator" {
                let wanted = "left out: an evaluator is no part of the cluster";
                return Err(value(&key("hosts"), "given", wanted));
            }
            if hosts.len() != group.count as usize {
                let wanted = format!("as many as tasks: {}", group.count);
                return Err(value(&key("hosts"), hosts.len(), wanted));
            }
        }
        let has_program = group.command.is_some() || !self.command.is_empty();
        if !has_program && !group.serves(job) {
            return Err(SpecError::Missing(format!(
                "say what {job} runs: a command, or serve for a server alone"
            )));
        }
        Ok(())
    }
}

pub(crate) fn value(
    key: &str,
    got: impl std::fmt::Display,
    wanted: impl Into<String>,
) -> SpecError {
    let got = got.to_string();
    SpecError::Value {
        key: key.to_owned(),
        // A hostile value must not fill the screen, nor move the cursor.
        got: format!(
            "'{}'",
            got.chars().take(100).collect::<String>().escape_debug()
        ),
        wanted: wanted.into(),
    }
}

/// Names become directories, labels and words on other systems' command lines.
fn check_name(name: &str) -> Result<(), SpecError> {
    let is_fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let begins = name
        .chars()
        .next()
        .is_some_and(|c| c.is_ascii_alphanumeric());
    match begins && name.len() <= MAX_NAME && name.chars().all(is_fine) {
        true => Ok(()),
        false => Err(value(
            "name",
            name,
            format!("up to {MAX_NAME} letters, digits, '-', '_' or '.', a letter or digit first"),
        )),
    }
}

fn check_env(key: &str, env: &BTreeMap<String, String>) -> Result<(), SpecError> {
    for (name, text) in env {
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err(value(key, name, "names without '='"));
        }
        // Its value may be a secret, so it is not shown.
        if text.contains('\0') {
            return Err(value(
                &format!("{key}.{name}"),
                "…",
                "without NUL characters",
            ));
        }
    }
    Ok(())
}

fn check_command(key: &str, command: &[String]) -> Result<(), SpecError> {
    if command.first().is_none_or(|program| program.is_empty()) {
        return Err(value(key, "", "a program and its arguments"));
    }
    match command.iter().find(|word| word.contains('\0')) {
        Some(word) => Err(value(key, word, "without NUL characters")),
        None => Ok(()),
    }
}

fn toml_reason(text: &str, e: &toml::de::Error) -> String {
    let line = e.span().map(|span| {
        let before = text.as_bytes().get(..span.start).unwrap_or_default();
        1 + before.iter().filter(|b| **b == b'\n').count()
    });
    match line {
        Some(line) => format!("{} at line {line}", e.message()),
        None => e.message().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        JobSpec::from_text(text).unwrap_err().to_string()
    }

    #[test]
    fn a_file_says_all_that_flags_can() {
        let spec = JobSpec::from_text(
            "name = 'mnist'\ncommand = ['./train', '--steps=10']\ndrain = '3s'\ndone_when = 'chief'\nflags = true\n\
             [env]\nA = 'b'\n[restart]\nlimit = 2\nbackoff = '100ms'\n[tasks.ps]\ncount = 2\n\
             [tasks.worker]\ncount = 1\nserve = true\nhosts = ['127.0.0.1:2222']\n",
        )
        .unwrap();
        assert_eq!(
            (spec.drain, spec.restart.limit),
            (Duration::from_secs(3), 2)
        );
        assert_eq!(spec.done_when, DoneWhen::Chief);
        assert!(spec.tasks["worker"].serves("worker"));
        // And what it prints is read again.
        assert_eq!(JobSpec::from_text(&spec.to_json()).unwrap(), spec);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let base = "command = ['x']\n[tasks.worker]\ncount = 1\n";
        for (text, want) in [
            ("{", "not a job in JSON: EOF"),
            (
                "nmae = 'x'\n[tasks.worker]\ncount = 1\n",
                "unknown field `nmae`, expected one of `name`",
            ),
            ("[tasks.worker]\ncount = 1\n", "say what worker runs"),
            (
                "command = ['x']\n[tasks.ps]\ncount = 1\n",
                "at least one task that trains",
            ),
            (
                "command = ['x']\n[tasks.worker]\ncount = 0\n",
                "tasks.worker.count is '0'; it must be from 1 to",
            ),
            (
                "command = ['x']\n[tasks.chief]\ncount = 2\n",
                "tasks.chief.count is '2'; it must be 1",
            ),
            (
                "command = ['x']\n[tasks.worker]\ncount = 5000\n",
                "tasks.worker.count is '5000'",
            ),
            (
                "command = ['x']\n[tasks.gpu]\ncount = 1\n",
                "tasks is 'gpu'; it must be one of ps, chief",
            ),
            (
                "command = []\n[tasks.worker]\ncount = 1\ncommand = ['']\n",
                "a program and its arguments",
            ),
            (
                "command = ['x']\n[tasks.worker]\ncount = 2\nhosts = ['a:1']\n",
                "as many as tasks: 2",
            ),
            (
                "command = ['x']\n[tasks.worker]\ncount = 1\n[tasks.ps]\ncount = 1\nserve = true\ncommand = ['y']\n",
                "tasks.ps.command is 'given'; it must be left out",
            ),
            (
                "command = ['x']\ndrain = 'soon'\n[tasks.worker]\ncount = 1\n",
                "'soon' is no time like",
            ),
        ] {
            assert!(error(text).contains(want), "{text}: {}", error(text));
        }
        for name in [
            "",
            "../up",
            "-oProxyCommand=x",
            "a b",
            "a\nb",
            "$(x)",
            "é",
            "a;b",
            &"x".repeat(41),
        ] {
            let spec = JobSpec {
                name: name.to_owned(),
                ..JobSpec::from_text(base).unwrap()
            };
            let error = spec.check().unwrap_err().to_string();
            assert!(
                error.starts_with("name is '") && !error.contains('\n'),
                "{error}"
            );
        }
    }

    #[test]
    fn environments_cannot_smuggle() {
        let mut spec = JobSpec::new("job", vec!["x".to_owned()], &[("worker", 1)]);
        spec.env.insert("A=B".to_owned(), "x".to_owned());
        assert!(
            spec.check()
                .unwrap_err()
                .to_string()
                .contains("names without '='")
        );
        spec.env = BTreeMap::from([("KEY".to_owned(), "secret\0".to_owned())]);
        assert!(!spec.check().unwrap_err().to_string().contains("secret"));
    }

    #[test]
    fn a_long_text_is_not_read() {
        assert_eq!(
            JobSpec::from_text(&" ".repeat(MAX_TEXT + 1)),
            Err(SpecError::Long)
        );
    }
}
