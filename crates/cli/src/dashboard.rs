//! `--dashboard`: the flags of commands that show a web page of their cluster, and what it watches.

use crate::config::bind_hint;
use anyhow::{Context as _, Result, anyhow, bail};
use clap::Args;
use downpour::Role;
use downpour_dashboard::{Dashboard, JobEvent, JobTask, JobView, Subject};
use downpour_launch::{HappeningKind, JobState, Monitor, TaskPhase, TaskState};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::UNIX_EPOCH;
use tokio::runtime::Runtime;

/// Flags of commands that have a dashboard.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct DashboardFlags {
    /// Show the cluster on a web page at this port of the loopback interface (0: any free one), with a JSON API and
    /// Prometheus /metrics; HOST:PORT listens elsewhere, and then asks for a token that is printed
    #[arg(long = "dashboard", value_name = "PORT", allow_negative_numbers = true)]
    at: Option<String>,

    /// A directory whose event files and checkpoints the dashboard shows; may be given often
    #[arg(long = "dashboard-dir", value_name = "DIR", requires = "at")]
    dirs: Vec<PathBuf>,
}

impl DashboardFlags {
    /// Serves a dashboard if one is wanted. It ends when dropped.
    pub(crate) async fn start(&self, mut subject: Subject) -> Result<Option<Dashboard>> {
        let Some(at) = &self.at else {
            return Ok(None);
        };
        subject.dirs.extend(self.dirs.iter().cloned());
        let address = address(at)?;
        match Dashboard::start(&address, token(), subject).await {
            Ok(dashboard) => Ok(Some(dashboard)),
            Err(e) => Err(anyhow!("--dashboard: {}", bind_hint(&address, &e))),
        }
    }

    /// As [`DashboardFlags::start`], on a thread of its own, for commands that are not async.
    pub(crate) fn start_beside(&self, subject: Subject) -> Result<Option<Beside>> {
        if self.at.is_none() {
            return Ok(None);
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("dashboard")
            .enable_all()
            .build()
            .context("cannot start the dashboard's thread")?;
        let started = runtime.block_on(self.start(subject))?;
        Ok(started.map(|dashboard| Beside {
            dashboard: Some(dashboard),
            runtime: Some(runtime),
        }))
    }

    /// A job that a launcher runs.
    pub(crate) fn job(monitor: &Monitor) -> Subject {
        let state = monitor.snapshot();
        let tasks = state.cluster.tasks();
        let logs = state.tasks.iter();
        let monitor = monitor.clone();
        Subject {
            title: state.name.clone(),
            tasks: tasks
                .map(|(job, task, address)| (full_name(job, task), address.to_owned()))
                .collect(),
            dirs: state.train_dir.iter().cloned().collect(),
            logs: logs.map(|t| (t.name.to_string(), t.log.clone())).collect(),
            job: Some(Arc::new(move || view(&monitor.snapshot()))),
            ..Default::default()
        }
    }

    /// The tasks of a cluster, one of which is this process.
    pub(crate) fn cluster(role: &Role, own: SocketAddr) -> Subject {
        let mut tasks = Vec::new();
        for (job, members) in role.cluster.jobs() {
            for (task, address) in members {
                let is_own = *job == role.job && *task == role.task;
                let address = match is_own && own.ip().is_loopback() {
                    true => own.to_string(),
                    false => address.clone(),
                };
                tasks.push((full_name(job, *task), address));
            }
        }
        Subject {
            title: format!("{}:{}", role.job, role.task),
            tasks,
            ..Default::default()
        }
    }
}

/// A dashboard on a thread of its own; it ends when dropped.
pub(crate) struct Beside {
    dashboard: Option<Dashboard>,
    runtime: Option<Runtime>,
}

impl Beside {
    /// What to open in a browser.
    pub(crate) fn url(&self) -> String {
        self.dashboard
            .as_ref()
            .map_or_else(String::new, Dashboard::url)
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        drop(self.dashboard.take());
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn full_name(job: &str, task: u32) -> String {
    format!("/job:{job}/replica:0/task:{task}")
}

/// A launcher's state in the dashboard's words.
fn view(state: &JobState) -> JobView {
    let started = state.started.duration_since(UNIX_EPOCH).unwrap_or_default();
    // Of a client and the server beside it, the server is the task.
    let has_server = |t: &TaskState| {
        let mut others = state.tasks.iter().map(|other| &other.name);
        others.any(|n| n.is_beside && n.job == t.name.job && n.index == t.name.index)
    };
    let servers = state
        .tasks
        .iter()
        .filter(|t| t.name.is_beside || !has_server(t));
    JobView {
        name: state.name.clone(),
        phase: format!("{:?}", state.phase).to_lowercase(),
        tasks: servers
            .map(|task| JobTask {
                name: full_name(&task.name.job, task.name.index),
                phase: task.phase.to_string(),
                is_over: matches!(task.phase, TaskPhase::Done | TaskPhase::Stopped),
                restarts: task.restarts(),
                exit: task.exit.map(|exit| exit.to_string()),
            })
            .collect(),
        events: state
            .happenings
            .iter()
            .map(|happening| JobEvent {
                time: (started + happening.at).as_secs_f64(),
                task: happening.task.as_ref().map(ToString::to_string),
                kind: kind(happening.kind).to_owned(),
                text: happening.text.clone(),
            })
            .collect(),
        forgotten: state.forgotten,
    }
}

fn kind(kind: HappeningKind) -> &'static str {
    match kind {
        HappeningKind::Start => "start",
        HappeningKind::Restart => "restart",
        HappeningKind::Loss => "loss",
        HappeningKind::End => "end",
        _ => "note",
    }
}

/// `127.0.0.1:PORT`, or an address as it is.
fn address(text: &str) -> Result<String> {
    match text.parse::<u16>() {
        Ok(port) => Ok(format!("127.0.0.1:{port}")),
        Err(_) if text.contains(':') => Ok(text.to_owned()),
        Err(_) => bail!("--dashboard is '{text}'; it must be a port, or HOST:PORT"),
    }
}

/// What nobody can guess.
fn token() -> String {
    use std::hash::{BuildHasher as _, RandomState};
    let word = |i: u64| format!("{:016x}", RandomState::new().hash_one(i));
    word(0) + &word(1)
}
