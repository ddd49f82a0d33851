//! Which task to be, in which cluster, and how, as one source says it: the command line,
//! `TF_CONFIG`, a file. Pure: a text comes in, what it says or what is wrong with it comes out. How
//! several sources become one is the matter of `role`.

use crate::config_value::{ConfigValue, TextError};
use crate::spec::{ClusterError, ClusterSpec, did_you_mean};
use crate::transport::Transport;
use crate::units::{BYTES, DURATION, parse_bytes, parse_duration};
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
    /// Bytes that all tensors of the task may take together.
    pub memory_limit: Option<usize>,
    /// Bytes that those of a session may take.
    pub session_memory_limit: Option<usize>,
    /// Bytes that those of a step may take.
    pub step_memory_limit: Option<usize>,
    /// How long steps may take to end when the task stops.
    pub drain: Option<Duration>,
    /// How long a task that others wait for may be silent before it counts as lost.
    pub lost_after: Option<Duration>,
    /// How long opening a session may wait for tasks that do not answer.
    pub find_within: Option<Duration>,
    /// How to talk to other tasks that are ours.
    pub transport: Option<Transport>,
    /// Whether to exit when the workers are done.
    pub exit_when_done: Option<bool>,
    /// How long they must have been done.
    pub done_after: Option<Duration>,
    /// Whose end to wait for: `job` or `job:task`.
    pub wait_for: Option<Vec<String>>,
    /// What is logged, as in `info,downpour_net=debug`.
    pub log: Option<String>,
    /// How it is logged: `text` or `json`.
    pub log_format: Option<String>,
    /// Whether other machines may stop this task.
    pub allow_remote_stop: Option<bool>,
    /// Whether other machines may ask what this task does.
    pub allow_remote_inspect: Option<bool>,
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
        let ConfigValue::Map(entries) = ConfigValue::from_json(text)? else {
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
                    let cluster = ClusterSpec::from_value(tree)?;
                    // An empty one is how a platform says that the job is a single process.
                    made.cluster = (cluster.num_tasks() > 0).then_some(cluster);
                }
                ("task", ConfigValue::Map(task)) => made.read_task(task)?,
                ("task", other) => {
                    return Err(value(
                        "task",
                        other,
                        "like {\"type\": \"ps\", \"index\": 0}",
                    ));
                }
                ("rpc_layer", ConfigValue::Null) => {}
                ("rpc_layer", ConfigValue::Text(layer)) if layer == "grpc" || layer.is_empty() => {}
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

    fn read_task(&mut self, task: &[(String, ConfigValue)]) -> Result<(), DefinitionError> {
        for (key, tree) in task {
            match (key.as_str(), tree) {
                ("type", ConfigValue::Text(job)) => self.job = Some(job.clone()),
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
        const KNOWN: [&str; 19] = [
            "allow_remote_inspect",
            "allow_remote_stop",
            "bind",
            "cluster",
            "done_after",
            "drain",
            "exit_when_done",
            "find_within",
            "job",
            "log",
            "log_format",
            "lost_after",
            "memory_limit",
            "session_memory_limit",
            "step_memory_limit",
            "task",
            "threads",
            "transport",
            "wait_for",
        ];
        let tree = ConfigValue::parse(text)?;
        let ConfigValue::Map(entries) = tree else {
            return Err(value("it", tree, "a table"));
        };
        let mut made = Definition::default();
        for (key, tree) in entries {
            match (key.as_str(), tree) {
                ("cluster", tree) => made.cluster = Some(ClusterSpec::from_value(&tree)?),
                ("job", ConfigValue::Text(job)) => made.job = Some(job),
                ("job", other) => return Err(value("job", other, "the name of a job")),
                ("task", tree) => made.task = Some(index("task", &tree)?),
                ("bind", ConfigValue::Text(bind)) => made.bind = Some(bind),
                ("bind", other) => return Err(value("bind", other, "host:port")),
                ("log", ConfigValue::Text(levels)) => made.log = Some(levels),
                ("log", other) => return Err(value("log", other, "a level like info")),
                ("log_format", ConfigValue::Text(format)) => made.log_format = Some(format),
                ("log_format", other) => return Err(value("log_format", other, "text or json")),
                ("threads", tree) => {
                    let threads = index("threads", &tree)? as usize;
                    made.threads = Some(threads);
                }
                (key @ ("memory_limit" | "session_memory_limit" | "step_memory_limit"), tree) => {
                    let bytes = match &tree {
                        ConfigValue::Int(n) => parse_bytes(&n.to_string()),
                        ConfigValue::Text(text) => parse_bytes(text),
                        _ => None,
                    };
                    let bytes = Some(bytes.ok_or_else(|| value(key, tree, BYTES))?);
                    match key {
                        "memory_limit" => made.memory_limit = bytes,
                        "session_memory_limit" => made.session_memory_limit = bytes,
                        _ => made.step_memory_limit = bytes,
                    }
                }
                (key @ ("drain" | "done_after" | "lost_after" | "find_within"), tree) => {
                    let time = match &tree {
                        ConfigValue::Int(n) => parse_duration(&n.to_string()),
                        ConfigValue::Float(n) => parse_duration(&n.to_string()),
                        ConfigValue::Text(text) => parse_duration(text),
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
                ("transport", ConfigValue::Text(name)) if Transport::parse(&name).is_some() => {
                    made.transport = Transport::parse(&name);
                }
                ("exit_when_done", ConfigValue::Bool(on)) => made.exit_when_done = Some(on),
                ("allow_remote_stop", ConfigValue::Bool(on)) => made.allow_remote_stop = Some(on),
                ("allow_remote_inspect", ConfigValue::Bool(on)) => {
                    made.allow_remote_inspect = Some(on)
                }
                (
                    key @ ("exit_when_done" | "allow_remote_stop" | "allow_remote_inspect"),
                    other,
                ) => {
                    return Err(value(key, other, "true or false"));
                }
                ("wait_for", tree) => made.wait_for = Some(texts("wait_for", &tree)?),
                (key, _) => return Err(unknown(key, &KNOWN, &[])),
            }
        }
        Ok(made)
    }
}

pub(crate) fn value(key: &str, got: impl ToString, wanted: &'static str) -> DefinitionError {
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
fn index(key: &str, tree: &ConfigValue) -> Result<u32, DefinitionError> {
    let number = match tree {
        ConfigValue::Int(n) => i32::try_from(*n).ok(),
        ConfigValue::Text(text) => text.parse::<i32>().ok(),
        _ => None,
    };
    number
        .and_then(|n| u32::try_from(n).ok())
        .ok_or_else(|| value(key, tree, "a number from 0 up"))
}

fn texts(key: &str, tree: &ConfigValue) -> Result<Vec<String>, DefinitionError> {
    let wanted = "a list of texts";
    let ConfigValue::List(items) = tree else {
        return Err(value(key, tree, wanted));
    };
    let text = |item: &ConfigValue| match item {
        ConfigValue::Text(text) => Ok(text.clone()),
        other => Err(value(key, format!("a list with {other}"), wanted)),
    };
    items.iter().map(text).collect()
}

#[cfg(test)]
#[path = "definition_tests.rs"]
mod tests;
