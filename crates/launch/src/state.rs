//! What a job looks like from outside, at any moment: tasks, their phases, restarts, exits, what
//! happened when, where logs and event files are. The launcher is the only writer ([`crate::Job`]
//! through the shell); views, the dashboard and the exit summary read snapshots from a [`Monitor`].

use crate::TaskName;
use downpour_cluster::ClusterSpec;
use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize, Serializer};
use std::collections::VecDeque;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Most happenings that are kept; older ones are in the log file of the job.
pub const MAX_HAPPENINGS: usize = 1000;

/// A job at one moment.
#[derive(Clone, Debug, Serialize)]
pub struct JobState {
    /// The job's name.
    pub name: String,
    /// How far it is.
    pub phase: JobPhase,
    /// When it began; all other times are counted from here.
    #[serde(serialize_with = "unix_seconds")]
    pub started: SystemTime,
    /// When it ended.
    #[serde(serialize_with = "optional_seconds")]
    pub ended: Option<Duration>,
    /// The run's directory: logs, summary.
    pub dir: PathBuf,
    /// Where the program writes checkpoints and event files, if that is known.
    pub train_dir: Option<PathBuf>,
    /// The addresses of all tasks.
    #[serde(skip)]
    pub cluster: ClusterSpec,
    /// Its processes, servers first. Their number and order never change.
    pub tasks: Vec<TaskState>,
    /// What happened, oldest first; at most [`MAX_HAPPENINGS`].
    pub happenings: VecDeque<Happening>,
    /// How many older ones are no longer kept.
    pub forgotten: u64,
    /// Grows with every change.
    pub version: u64,
}

/// How far a job is.
///
/// ```text
/// Starting ─► Running ─► Ending ─► Ended
///     ▲  └───────┼─────────┘ (interrupted or failed: Ending at once)
///     └─ Moving ◄┘ (a host was lost: all tasks end, and begin on other hosts)
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum JobPhase {
    /// Servers are on their way; no program runs yet.
    Starting,
    /// Programs run.
    Running,
    /// A host was lost: tasks are ended and given other places.
    Moving,
    /// The rest is being stopped.
    Ending,
    /// No process of it is left.
    Ended,
}

/// One process of a job.
#[derive(Clone, Debug, Serialize)]
pub struct TaskState {
    /// Who it is.
    #[serde(serialize_with = "shown")]
    pub name: TaskName,
    /// What it is for.
    pub role: TaskRole,
    /// The address of its task in the cluster, `host:port`.
    pub address: Option<String>,
    /// Which host it runs on; none on the launcher's own.
    pub host: Option<String>,
    /// What runs: program and arguments.
    pub command: Vec<String>,
    /// How far it is.
    pub phase: TaskPhase,
    /// Since when, counted from the job's start.
    #[serde(serialize_with = "seconds")]
    pub since: Duration,
    /// The process, while there is one that has a number here or on its host.
    pub pid: Option<u32>,
    /// How often it was started.
    pub starts: u32,
    /// How it last ended.
    pub exit: Option<Exit>,
    /// What it prints, all starts after one another.
    pub log: PathBuf,
}

impl TaskState {
    /// How often it was started again.
    pub fn restarts(&self) -> u32 {
        self.starts.saturating_sub(1)
    }
}

/// What a process is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum TaskRole {
    /// Serves until it is told to stop: `downpour serve`, or a program in job `ps`.
    Server,
    /// Trains: the job is done when these are.
    Trainer,
    /// Looks at checkpoints beside the training.
    Evaluator,
}

/// How far a process is.
///
/// ```text
/// Waiting ─► Starting ─► Running ─► Done
///               ▲           ├────► Failed
///               └─ BackOff ◄┘└───► Stopping ─► Stopped
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum TaskPhase {
    /// For the servers to listen.
    Waiting,
    /// The process exists; a server does not listen yet.
    Starting,
    /// At work.
    Running,
    /// Failed, and will be started again.
    BackOff,
    /// Told to end.
    Stopping,
    /// Ended well.
    Done,
    /// Ended because it was told to.
    Stopped,
    /// Failed for good.
    Failed,
}

impl TaskPhase {
    /// Whether a process exists.
    pub fn is_alive(self) -> bool {
        matches!(self, Self::Starting | Self::Running | Self::Stopping)
    }
}

impl fmt::Display for TaskPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Waiting => "waiting",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::BackOff => "back-off",
            Self::Stopping => "stopping",
            Self::Done => "done",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
        })
    }
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Exit {
    /// By itself, with this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

impl Exit {
    /// Whether it ended well.
    pub fn is_success(self) -> bool {
        self == Exit::Code(0)
    }

    /// The code that a shell shows.
    pub fn code(self) -> u8 {
        let code = match self {
            Exit::Code(code) => code,
            Exit::Signal(signal) => 128 + signal,
        };
        u8::try_from(code).unwrap_or(1)
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exit::Code(code) => write!(f, "exit code {code}"),
            Exit::Signal(signal) => match signal_name(*signal) {
                Some(name) => write!(f, "signal {signal} ({name})"),
                None => write!(f, "signal {signal}"),
            },
        }
    }
}

/// Names of the signals that end processes.
fn signal_name(signal: i32) -> Option<&'static str> {
    Some(match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        15 => "SIGTERM",
        _ => return None,
    })
}

/// Something that happened.
#[derive(Clone, Debug, Serialize)]
pub struct Happening {
    /// When, counted from the job's start.
    #[serde(serialize_with = "seconds")]
    pub at: Duration,
    /// To which process; to the whole job if to none.
    #[serde(serialize_with = "optional_shown")]
    pub task: Option<TaskName>,
    /// How it is to be taken.
    pub kind: HappeningKind,
    /// What, as a sentence without its subject.
    pub text: String,
}

impl fmt::Display for Happening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:8.1} s  ", self.at.as_secs_f64())?;
        match &self.task {
            Some(task) => write!(f, "{task} {}", self.text),
            None => write!(f, "{}", self.text),
        }
    }
}

/// How a happening is to be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum HappeningKind {
    /// A process began.
    Start,
    /// A process came back after a loss.
    Restart,
    /// A process was lost.
    Loss,
    /// A process ended as it should.
    End,
    /// Anything else worth a line.
    Note,
}

/// Where the launcher shows a job's state. Clones show the same.
#[derive(Clone)]
pub struct Monitor {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<JobState>,
    changed: Condvar,
}

impl Monitor {
    /// Shows this state.
    pub fn new(state: JobState) -> Monitor {
        Monitor {
            shared: Arc::new(Shared {
                state: Mutex::new(state),
                changed: Condvar::new(),
            }),
        }
    }

    /// The job as it is now.
    pub fn snapshot(&self) -> JobState {
        self.shared.state.lock().clone()
    }

    /// The version of the job as it is now.
    pub fn version(&self) -> u64 {
        self.shared.state.lock().version
    }

    /// The job once it is newer than the version seen, or as it is when the time is over.
    pub fn wait(&self, seen: u64, at_most: Duration) -> JobState {
        let mut state = self.shared.state.lock();
        if state.version == seen && state.phase != JobPhase::Ended {
            self.shared.changed.wait_for(&mut state, at_most);
        }
        state.clone()
    }

    /// Shows another state.
    pub fn publish(&self, state: &JobState) {
        let mut shown = self.shared.state.lock();
        if shown.version != state.version {
            shown.clone_from(state);
            self.shared.changed.notify_all();
        }
    }
}

fn seconds<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64((time.as_secs_f64() * 1e3).round() / 1e3)
}

fn optional_seconds<S: Serializer>(time: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
    match time {
        Some(time) => seconds(time, to),
        None => to.serialize_none(),
    }
}

fn unix_seconds<S: Serializer>(time: &SystemTime, to: S) -> Result<S::Ok, S::Error> {
    // A clock before 1970 shows as 0.
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    seconds(&since, to)
}

fn shown<S: Serializer>(name: &TaskName, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(name)
}

fn optional_shown<S: Serializer>(name: &Option<TaskName>, to: S) -> Result<S::Ok, S::Error> {
    match name {
        Some(name) => shown(name, to),
        None => to.serialize_none(),
    }
}
