//! Which task to be, in which cluster, and how: what one source says (flags, `TF_CONFIG`, a file),
//! and how several become one [`Role`]. Pure: texts come in, a role or an error that names the
//! source comes out.
//!
//! Sources are overlaid field by field, the first that speaks wins. A cluster is one field, and a
//! task index belongs to the job that its source names: half of one source's answer is never
//! completed with half of another's.

use crate::address::{check_host, split_address};
use crate::cluster::{ClusterError, ClusterSpec, did_you_mean};
use crate::tree::{TextError, Tree};
use std::time::Duration;

/// What one source says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Definition {
    /// All jobs and tasks.
    pub cluster: Option<ClusterSpec>,
    /// This task's job.
    pub job: Option<String>,
    /// This task's index.
    pub task: Option<u32>,
    /// Where to listen, if not at the task's own address: `host` or `host:port`.
    pub bind: Option<String>,
    /// Executor threads.
    pub threads: Option<usize>,
    /// How long steps may take to end when the task stops.
    pub drain: Option<Duration>,
    /// How long a task that others wait for may be silent before it counts as lost.
    pub lost_after: Option<Duration>,
    /// How long opening a session may wait for tasks that do not answer.
    pub find_within: Option<Duration>,
    /// Whether to exit when the workers are done.
    pub exit_when_done: Option<bool>,
    /// How long they must have been done.
    pub done_after: Option<Duration>,
    /// Whose end to wait for: `job` or `job:task`.
    pub wait_for: Option<Vec<String>>,
    /// Whether other machines may stop this task.
    pub allow_remote_stop: Option<bool>,
}

/// What is wrong with what a source says.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DefinitionError {
    /// Not a text of the right kind at all.
    #[error(transparent)]
    Text(#[from] TextError),
    /// The cluster is wrong.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// A key that means nothing.
    #[error("unknown key '{key}'{hint}")]
    UnknownKey {
        /// The key.
        key: String,
        /// What it may have been, or what there is.
        hint: String,
    },
    /// A value that does not do.
    #[error("{key} is {got}; it must be {wanted}")]
    Value {
        /// The key.
        key: String,
        /// What was given.
        got: String,
        /// What would do.
        wanted: &'static str,
    },
    /// Two things that cannot both be.
    #[error("{0}")]
    Contradiction(String),
    /// Something is not said that must be.
    #[error("{0}")]
    Missing(String),
}

/// Keys of `TF_CONFIG` that say nothing about a server but that platforms and Estimator write.
const OTHERS_OF_TF_CONFIG: [&str; 7] = [
    "environment",
    "eval_session_master",
    "job",
    "model_dir",
    "service",
    "session_master",
    "trial",
];

impl Definition {
    /// Reads `TF_CONFIG`. An empty one says nothing.
    pub fn from_tf_config(text: &str) -> Result<Definition, DefinitionError> {
        let mut made = Definition::default();
        if text.trim().is_empty() {
            return Ok(made);
        }
        let Tree::Map(entries) = Tree::from_json(text)? else {
            return Err(value("it", "no object", "a JSON object"));
        };
        for (key, tree) in &entries {
            match (key.as_str(), tree) {
                ("cluster" | "sparseCluster", tree) => {
                    if made.cluster.is_some() {
                        return Err(DefinitionError::Contradiction(
                            "it has both 'cluster' and 'sparseCluster'".into(),
                        ));
                    }
                    let cluster = ClusterSpec::from_tree(tree)?;
                    // An empty one is how a platform says that the job is a single process.
                    made.cluster = (cluster.num_tasks() > 0).then_some(cluster);
                }
                ("task", Tree::Map(task)) => made.read_task(task)?,
                ("task", other) => {
                    return Err(value(
                        "task",
                        other,
                        "like {\"type\": \"ps\", \"index\": 0}",
                    ));
                }
                ("rpc_layer", Tree::Null) => {}
                ("rpc_layer", Tree::Text(layer)) if layer == "grpc" || layer.is_empty() => {}
                ("rpc_layer", other) => {
                    return Err(value(
                        "rpc_layer",
                        other,
                        "'grpc': others are not spoken here",
                    ));
                }
                (key, _) if OTHERS_OF_TF_CONFIG.contains(&key) => {}
                (key, _) => {
                    let known = ["cluster", "rpc_layer", "sparseCluster", "task"];
                    return Err(unknown(key, &known, &OTHERS_OF_TF_CONFIG));
                }
            }
        }
        made.check_roles()?;
        Ok(made)
    }

    fn read_task(&mut self, task: &[(String, Tree)]) -> Result<(), DefinitionError> {
        for (key, tree) in task {
            match (key.as_str(), tree) {
                ("type", Tree::Text(job)) => self.job = Some(job.clone()),
                ("type", other) => return Err(value("task.type", other, "the name of a job")),
                ("index", tree) => self.task = Some(index("task.index", tree)?),
                // Written by Cloud ML Engine and Vertex AI.
                ("trial" | "cloud", _) => {}
                (key, _) => {
                    let error = unknown(key, &["index", "type"], &["cloud", "trial"]);
                    let DefinitionError::UnknownKey { hint, .. } = error else {
                        return Err(error);
                    };
                    let key = format!("task.{key}");
                    return Err(DefinitionError::UnknownKey { key, hint });
                }
            }
        }
        Ok(())
    }

    /// What TensorFlow's own checks of `TF_CONFIG` refuse.
    fn check_roles(&self) -> Result<(), DefinitionError> {
        let Some(cluster) = &self.cluster else {
            return Ok(());
        };
        let jobs = cluster.jobs();
        if jobs.contains_key("chief") && jobs.contains_key("master") {
            return Err(DefinitionError::Contradiction(
                "the cluster has both 'chief' and 'master', two names of the same role".into(),
            ));
        }
        for job in ["chief", "master"] {
            if let Some(tasks) = jobs.get(job)
                && tasks.len() > 1
            {
                return Err(DefinitionError::Contradiction(format!(
                    "the cluster has {} tasks of job '{job}'; there must be at most one",
                    tasks.len()
                )));
            }
        }
        Ok(())
    }

    /// Reads a file of settings, JSON or TOML.
    pub fn from_file(text: &str) -> Result<Definition, DefinitionError> {
        const KNOWN: [&str; 12] = [
            "allow_remote_stop",
            "bind",
            "cluster",
            "done_after",
            "drain",
            "exit_when_done",
            "find_within",
            "job",
            "lost_after",
            "task",
            "threads",
            "wait_for",
        ];
        let tree = Tree::parse(text)?;
        let Tree::Map(entries) = tree else {
            return Err(value("it", tree, "a table"));
        };
        let mut made = Definition::default();
        for (key, tree) in entries {
            match (key.as_str(), tree) {
                ("cluster", tree) => made.cluster = Some(ClusterSpec::from_tree(&tree)?),
                ("job", Tree::Text(job)) => made.job = Some(job),
                ("job", other) => return Err(value("job", other, "the name of a job")),
                ("task", tree) => made.task = Some(index("task", &tree)?),
                ("bind", Tree::Text(bind)) => made.bind = Some(bind),
                ("bind", other) => return Err(value("bind", other, "host:port")),
                ("threads", tree) => {
                    let threads = index("threads", &tree)? as usize;
                    made.threads = Some(threads);
                }
                (key @ ("drain" | "done_after" | "lost_after" | "find_within"), tree) => {
                    let time = match &tree {
                        Tree::Int(n) => parse_duration(&n.to_string()),
                        Tree::Float(n) => parse_duration(&n.to_string()),
                        Tree::Text(text) => parse_duration(text),
                        _ => None,
                    };
                    let time = time.ok_or_else(|| value(key, tree, DURATION))?;
                    match key {
                        "drain" => made.drain = Some(time),
                        "lost_after" => made.lost_after = Some(time),
                        "find_within" => made.find_within = Some(time),
                        _ => made.done_after = Some(time),
                    }
                }
                ("exit_when_done", Tree::Bool(on)) => made.exit_when_done = Some(on),
                ("allow_remote_stop", Tree::Bool(on)) => made.allow_remote_stop = Some(on),
                (key @ ("exit_when_done" | "allow_remote_stop"), other) => {
                    return Err(value(key, other, "true or false"));
                }
                ("wait_for", tree) => made.wait_for = Some(texts("wait_for", &tree)?),
                (key, _) => return Err(unknown(key, &KNOWN, &[])),
            }
        }
        Ok(made)
    }
}

/// What `parse_duration` takes.
const DURATION: &str = "a time like 30s, 500ms or 2m";

/// Reads `30s`, `500ms`, `2m`, `1h`, or a number of seconds.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text.get(digits.len()..)?;
    let scale = match unit {
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return None,
    };
    let seconds = digits.trim().parse::<f64>().ok()? * scale;
    // A year is for ever, and adding it to a clock is safe.
    (0.0..=31_536_000.0)
        .contains(&seconds)
        .then(|| Duration::from_secs_f64(seconds))
}

fn value(key: &str, got: impl ToString, wanted: &'static str) -> DefinitionError {
    DefinitionError::Value {
        key: key.to_owned(),
        got: got.to_string(),
        wanted,
    }
}

fn unknown(key: &str, known: &[&str], also: &[&str]) -> DefinitionError {
    let all = known.iter().chain(also).copied();
    let mut hint = did_you_mean(key, all);
    if hint.is_empty() {
        hint = format!("; known are {}", known.join(", "));
    }
    DefinitionError::UnknownKey {
        key: key.chars().take(100).collect(),
        hint,
    }
}

/// A task index; TensorFlow takes one in quotes too.
fn index(key: &str, tree: &Tree) -> Result<u32, DefinitionError> {
    let number = match tree {
        Tree::Int(n) => i32::try_from(*n).ok(),
        Tree::Text(text) => text.parse::<i32>().ok(),
        _ => None,
    };
    number
        .and_then(|n| u32::try_from(n).ok())
        .ok_or_else(|| value(key, tree, "a number from 0 up"))
}

fn texts(key: &str, tree: &Tree) -> Result<Vec<String>, DefinitionError> {
    let wanted = "a list of texts";
    let Tree::List(items) = tree else {
        return Err(value(key, tree, wanted));
    };
    let text = |item: &Tree| match item {
        Tree::Text(text) => Ok(text.clone()),
        other => Err(value(key, format!("a list with {other}"), wanted)),
    };
    items.iter().map(text).collect()
}

/// Which task to be, and how, with nothing left open.
#[derive(Clone, Debug, PartialEq)]
pub struct Role {
    /// All jobs and tasks.
    pub cluster: ClusterSpec,
    /// Which source gave them.
    pub cluster_from: String,
    /// This task's job.
    pub job: String,
    /// This task's index.
    pub task: u32,
    /// Where to listen: `host:port`.
    pub listen: String,
    /// Whose end to wait for, as `(job, task)`; nobody's if the task stays until it is stopped.
    pub wait_for: Vec<(String, u32)>,
    /// The rest, overlaid.
    pub settings: Definition,
    /// What the user should know of what was not used.
    pub notes: Vec<String>,
}

impl Role {
    /// Overlays what the sources say, the strongest first.
    pub fn resolve(sources: &[(String, Definition)]) -> Result<Role, DefinitionError> {
        let with_cluster: Vec<(&String, &ClusterSpec)> = sources
            .iter()
            .filter_map(|(name, s)| Some((name, s.cluster.as_ref()?)))
            .collect();
        let Some((from, cluster)) = with_cluster.first() else {
            return Err(DefinitionError::Missing(
                "say where to listen: --port N for a single task, or --cluster with --job and --task"
                    .into(),
            ));
        };
        let notes = with_cluster
            .iter()
            .filter(|(_, other)| other != cluster)
            .map(|(name, _)| {
                format!("the cluster of {name} differs and is not used: {from} goes before it")
            })
            .collect();
        let (job, task) = own_task(sources, cluster)?;
        let own = cluster.address(&job, task)?.to_owned();
        check_ports(cluster)?;
        let settings = overlay(sources);
        if settings.threads == Some(0) {
            return Err(value("--threads", 0, "at least 1"));
        }
        if settings.exit_when_done != Some(true) {
            for (name, given) in [
                ("--done-after", settings.done_after.is_some()),
                ("--wait-for", settings.wait_for.is_some()),
            ] {
                if given {
                    return Err(DefinitionError::Contradiction(format!(
                        "{name} means nothing without --exit-when-done"
                    )));
                }
            }
        }
        if settings.lost_after.is_some_and(|t| t.is_zero()) {
            return Err(value("--lost-after", "0s", "longer than no time"));
        }
        let listen = match &settings.bind {
            Some(bind) => listen_address(bind, &own)?,
            None => own,
        };
        let wait_for = match settings.exit_when_done {
            Some(true) => waited_for(&settings, cluster, (&job, task))?,
            _ => Vec::new(),
        };
        Ok(Role {
            cluster: (*cluster).clone(),
            cluster_from: (*from).clone(),
            job,
            task,
            listen,
            wait_for,
            settings,
            notes,
        })
    }
}

/// The job and index of this task.
fn own_task(
    sources: &[(String, Definition)],
    cluster: &ClusterSpec,
) -> Result<(String, u32), DefinitionError> {
    let said = sources.iter().find_map(|(_, s)| s.job.clone());
    let job = match said {
        Some(job) => job,
        None => match cluster.jobs().keys().collect::<Vec<_>>().as_slice() {
            [only] if cluster.num_tasks() == 1 => (*only).clone(),
            jobs => {
                let jobs: Vec<&str> = jobs.iter().map(|j| j.as_str()).collect();
                return Err(DefinitionError::Missing(format!(
                    "--job is needed: which job of the cluster ({}) is this task in?",
                    jobs.join(", ")
                )));
            }
        },
    };
    if job == "evaluator" && !cluster.jobs().contains_key("evaluator") {
        return Err(DefinitionError::Contradiction(
            "this task is the evaluator, which is not in the cluster: it reads checkpoints and needs no server, so run its program alone"
                .into(),
        ));
    }
    let tasks = cluster.job(&job)?;
    let fits = |s: &Definition| s.job.as_ref().is_none_or(|j| *j == job);
    let task = sources.iter().find_map(|(_, s)| s.task.filter(|_| fits(s)));
    match (task, tasks.keys().collect::<Vec<_>>().as_slice()) {
        (Some(task), _) => Ok((job, task)),
        (None, [only]) => Ok((job, **only)),
        (None, _) => {
            let other = sources
                .iter()
                .find(|(_, s)| s.task.is_some())
                .map(|(name, s)| {
                    let (task, of) = (s.task.unwrap_or(0), s.job.as_deref().unwrap_or_default());
                    format!(" ({name} names task {task} of job '{of}')")
                });
            Err(DefinitionError::Missing(format!(
                "--task is needed: which task of job '{job}' is this?{}",
                other.unwrap_or_default()
            )))
        }
    }
}

/// Port 0 takes any free one, which nobody else could find.
fn check_ports(cluster: &ClusterSpec) -> Result<(), DefinitionError> {
    if cluster.num_tasks() < 2 {
        return Ok(());
    }
    for (job, task, address) in cluster.tasks() {
        if let Ok((_, 0)) = split_address(address) {
            return Err(ClusterError::Address {
                job: job.to_owned(),
                task,
                address: address.to_owned(),
                reason: "port 0 takes any free one, and the other tasks could not find it",
            }
            .into());
        }
    }
    Ok(())
}

/// `--bind` in full: a host alone listens on the port of the task's own address.
fn listen_address(bind: &str, own: &str) -> Result<String, DefinitionError> {
    let refuse = |reason| DefinitionError::Value {
        key: "--bind".into(),
        got: format!("'{bind}'"),
        wanted: reason,
    };
    if split_address(bind).is_ok() {
        return Ok(bind.to_owned());
    }
    let form = "host:port or host, as in 0.0.0.0:2222 or [::]:2222";
    check_host(bind).map_err(|_| refuse(form))?;
    let (_, port) = split_address(own).map_err(refuse)?;
    Ok(format!("{bind}:{port}"))
}

/// Every setting, each from the first source that has it.
fn overlay(sources: &[(String, Definition)]) -> Definition {
    let mut made = Definition::default();
    for (_, s) in sources {
        let s = s.clone();
        made.bind = made.bind.or(s.bind);
        made.threads = made.threads.or(s.threads);
        made.drain = made.drain.or(s.drain);
        made.lost_after = made.lost_after.or(s.lost_after);
        made.find_within = made.find_within.or(s.find_within);
        made.exit_when_done = made.exit_when_done.or(s.exit_when_done);
        made.done_after = made.done_after.or(s.done_after);
        made.wait_for = made.wait_for.or(s.wait_for);
        made.allow_remote_stop = made.allow_remote_stop.or(s.allow_remote_stop);
    }
    made
}

/// Whose end this task waits for: a ps for all training tasks, any other for its own clients.
fn waited_for(
    settings: &Definition,
    cluster: &ClusterSpec,
    own: (&str, u32),
) -> Result<Vec<(String, u32)>, DefinitionError> {
    if let Some(names) = &settings.wait_for {
        let mut all = Vec::new();
        for name in names {
            let (job, task) = match name.split_once(':') {
                Some((job, task)) => {
                    let task = task.parse::<u32>().map_err(|_| {
                        value("--wait-for", format!("'{name}'"), "like worker or worker:0")
                    })?;
                    (job, Some(task))
                }
                None => (name.as_str(), None),
            };
            match task {
                Some(task) => {
                    cluster.address(job, task)?;
                    all.push((job.to_owned(), task));
                }
                None => all.extend(cluster.job(job)?.keys().map(|t| (job.to_owned(), *t))),
            }
        }
        return Ok(all);
    }
    if own.0 != "ps" {
        return Ok(vec![(own.0.to_owned(), own.1)]);
    }
    let all: Vec<(String, u32)> = cluster
        .tasks()
        .filter(|(job, ..)| !matches!(*job, "ps" | "evaluator"))
        .map(|(job, task, _)| (job.to_owned(), task))
        .collect();
    if all.is_empty() {
        return Err(DefinitionError::Missing(
            "--exit-when-done has nobody to wait for: the cluster has no worker; name the tasks that clients connect to with --wait-for"
                .into(),
        ));
    }
    Ok(all)
}

#[cfg(test)]
#[path = "definition_tests.rs"]
mod tests;
