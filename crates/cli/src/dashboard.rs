//! `--dashboard`: the flags of commands that show a web page of their cluster, and what it watches.

use crate::config::bind_hint;
use anyhow::{Context as _, Result, anyhow, bail};
use clap::Args;
use downpour::Role;
use downpour_dashboard::{Dashboard, Ending, JobEvent, JobTask, JobView, Subject};
use downpour_launch::{HappeningKind, JobState, Monitor, Outcome, TaskPhase, TaskState};
use parking_lot::Mutex;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};
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

    /// Serve the dashboard after the job's end, until Ctrl-C; without it, pages that are open are told the end, and
    /// `downpour dashboard DIR` shows the run again
    #[arg(long, requires = "at")]
    keep_dashboard: bool,

    /// Who asks from another machine must know what this file holds, instead of a token made anew at each start
    #[arg(long, value_name = "FILE", requires = "at")]
    dashboard_token_file: Option<PathBuf>,

    /// Post every alert (a loss that is no number, a step that stands, a lost task, stale updates) as JSON to this address,
    /// http:// or https://, by the program curl; anything else is a shell command that gets the JSON on its standard input
    #[arg(long, value_name = "URL|COMMAND", requires = "at")]
    on_alert: Option<String>,
}

/// Flags of `downpour dashboard`.
#[derive(Args)]
pub(crate) struct Show {
    /// Directories of runs, or with runs in them [default: downpour-runs, and all runs of this user]
    #[arg(value_name = "DIR")]
    dirs: Vec<PathBuf>,

    /// Port of the loopback interface (0: any free one), or HOST:PORT, which asks for a token
    #[arg(long, value_name = "PORT", default_value = "6006")]
    port: String,

    /// As for `run`: a file that holds the token
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

/// Shown below the flags.
pub(crate) const SHOW_EXAMPLES: &str = "\
Examples:
  downpour dashboard                          all runs of this user, running and past
  downpour dashboard downpour-runs/mnist-1    one run
  downpour dashboard --port 0 runs/a runs/b   two, to compare";

impl Show {
    /// Serves until a signal.
    pub(crate) fn run(self) -> Result<()> {
        let mut dirs = self.dirs;
        for dir in &dirs {
            if !dir.is_dir() && !crate::storage::is_url(dir) {
                bail!("'{}' is no directory", dir.display());
            }
        }
        if dirs.is_empty() {
            dirs.push(PathBuf::from(downpour_launch::RUNS));
            dirs.extend(crate::run::conduct::list());
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .context("cannot start the dashboard's threads")?;
        runtime.block_on(async {
            let address = address(&self.port)?;
            let token = kept_token(self.token_file.as_deref())?;
            let dashboard = match Dashboard::of_runs(&address, token, dirs).await {
                Ok(dashboard) => dashboard,
                Err(e) => bail!("--port: {}", bind_hint(&address, &e)),
            };
            let mut out = std::io::stdout();
            let _ = writeln!(out, "dashboard at {}", dashboard.url());
            let _ = out.flush();
            interrupted().await
        })
    }
}

async fn interrupted() -> Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot watch for signals")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot watch for signals")?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Ok(())
}

/// The token in a file, or one that nobody can guess.
fn kept_token(file: Option<&Path>) -> Result<String> {
    let Some(file) = file else {
        return Ok(token());
    };
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("cannot read the token in '{}'", file.display()))?;
    let text = text.trim();
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.~".contains(c);
    if text.len() < 16 || text.len() > 200 || !text.chars().all(fits) {
        bail!(
            "'{}' must hold one token: 16 to 200 letters, digits, -, _, . or ~",
            file.display()
        );
    }
    Ok(text.to_owned())
}

impl DashboardFlags {
    /// Serves a dashboard if one is wanted. It ends when dropped.
    pub(crate) async fn start(&self, mut subject: Subject) -> Result<Option<Dashboard>> {
        let Some(at) = &self.at else {
            return Ok(None);
        };
        subject.dirs.extend(self.dirs.iter().cloned());
        if let Some(command) = self.on_alert.clone() {
            subject.on_alert = Some(Arc::new(move |alert| tell(&command, alert)));
        }
        let address = address(at)?;
        match Dashboard::start(
            &address,
            kept_token(self.dashboard_token_file.as_deref())?,
            subject,
        )
        .await
        {
            Ok(dashboard) => Ok(Some(dashboard)),
            Err(e) => Err(anyhow!("--dashboard: {}", bind_hint(&address, &e))),
        }
    }

    /// As [`DashboardFlags::start`], on a thread of its own, for commands that are not async.
    pub(crate) fn start_beside(&self, mut subject: Subject) -> Result<Option<Beside>> {
        if self.at.is_none() {
            return Ok(None);
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("dashboard")
            .enable_all()
            .build()
            .context("cannot start the dashboard's thread")?;
        let ending: Arc<Mutex<Option<Ending>>> = Arc::default();
        if let Some(job) = subject.job.take() {
            let ending = ending.clone();
            subject.job = Some(Arc::new(move || JobView {
                ended: ending.lock().clone(),
                ..job()
            }));
        }
        let started = runtime.block_on(self.start(subject))?;
        Ok(started.map(|dashboard| Beside {
            dashboard: Some(dashboard),
            runtime: Some(runtime),
            ending,
            keep: self.keep_dashboard,
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
    ending: Arc<Mutex<Option<Ending>>>,
    keep: bool,
}

/// How long pages that are open have to show the end. Those that do, or have been closed, are not waited for.
const SETTLE: Duration = Duration::from_secs(15);

impl Beside {
    /// Tells open pages how the job ended and keeps the last figures in the run's directory; with
    /// `--keep-dashboard`, serves on until Ctrl-C.
    pub(crate) fn end(&self, outcome: &Outcome, state: &JobState, stays: impl Fn(&str)) {
        let (Some(dashboard), Some(runtime)) = (&self.dashboard, &self.runtime) else {
            return;
        };
        let text = downpour_launch::summary(outcome, state);
        *self.ending.lock() = Some(Ending {
            outcome: outcome.word().to_owned(),
            why: text.lines().next().unwrap_or_default().to_owned(),
            cause: text
                .split_once("root cause")
                .map(|(_, rest)| format!("root cause{rest}")),
            seconds: state.ended.unwrap_or_default().as_secs_f64(),
        });
        runtime.block_on(dashboard.settle(SETTLE));
        if let Some(memory) = dashboard.memory() {
            // Without it a past run has no figures of its tasks, but all else.
            let _ = std::fs::write(state.dir.join("dashboard.json"), memory);
        }
        if self.keep {
            stays(&dashboard.url());
            let _ = runtime.block_on(interrupted());
        }
    }

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
        ended: None,
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

/// Runs the command of `--on-alert`, or posts to its address. It has a thread of its own: nobody waits for it.
fn tell(to: &str, alert: &str) {
    let is_address = ["http://", "https://"].iter().any(|s| to.starts_with(s));
    let mut command = match is_address {
        true => {
            // Brings TLS, proxies and the machine's certificates. What it cannot do it says on standard error.
            let mut curl = Command::new("curl");
            curl.args(["--silent", "--show-error", "--fail", "--max-time", "20"])
                .args(["--header", "Content-Type: application/json"])
                .args(["--data-binary", "@-", "--url", to]);
            curl
        }
        false => {
            let mut shell = Command::new("sh");
            shell.args(["-c", to]);
            shell
        }
    };
    let program = command.get_program().to_string_lossy().into_owned();
    match command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn() {
        Ok(mut child) => {
            let line = format!("{alert}\n");
            std::thread::spawn(move || {
                if let Some(mut stdin) = child.stdin.take() {
                    // A command need not read it.
                    let _ = stdin.write_all(line.as_bytes());
                }
                let _ = child.wait();
            });
        }
        Err(e) => crate::log::say(
            std::io::stderr(),
            &format!("--on-alert: cannot start {program}: {e}\n"),
        ),
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
