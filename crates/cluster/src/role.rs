//! What several sources say, made into one role: which task to be, in which cluster, and how.
//!
//! Sources are overlaid field by field, the first that speaks wins. A cluster is one field, and a
//! task index belongs to the job that its source names: half of one source's answer is never
//! completed with half of another's.

use crate::address::{check_host, split_address};
use crate::definition::{Definition, DefinitionError, value};
use crate::spec::{ClusterError, ClusterSpec};

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
        let mut notes: Vec<String> = with_cluster
            .iter()
            .filter(|(_, other)| other != cluster)
            .map(|(name, _)| {
                format!("the cluster of {name} differs and is not used: {from} goes before it")
            })
            .collect();
        let (job, task) = own_task(sources, cluster)?;
        if job != "evaluator" && cluster.jobs().contains_key("evaluator") {
            notes.push(
                "the cluster lists an evaluator: sessions without device filters wait for it too"
                    .into(),
            );
        }
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
        made.memory_limit = made.memory_limit.or(s.memory_limit);
        made.session_memory_limit = made.session_memory_limit.or(s.session_memory_limit);
        made.step_memory_limit = made.step_memory_limit.or(s.step_memory_limit);
        made.drain = made.drain.or(s.drain);
        made.log = made.log.or(s.log);
        made.log_format = made.log_format.or(s.log_format);
        made.lost_after = made.lost_after.or(s.lost_after);
        made.find_within = made.find_within.or(s.find_within);
        made.transport = made.transport.or(s.transport);
        made.exit_when_done = made.exit_when_done.or(s.exit_when_done);
        made.done_after = made.done_after.or(s.done_after);
        made.wait_for = made.wait_for.or(s.wait_for);
        made.allow_remote_stop = made.allow_remote_stop.or(s.allow_remote_stop);
        made.allow_remote_inspect = made.allow_remote_inspect.or(s.allow_remote_inspect);
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
#[path = "role_tests.rs"]
mod tests;
