//! What a dashboard watches, as its caller describes it.

use crate::LogSink;
use std::path::PathBuf;
use std::sync::Arc;

/// What to watch.
#[derive(Clone, Default)]
pub struct Subject {
    /// Shown at the top.
    pub title: String,
    /// `/job:J/replica:0/task:N` and `host:port` of every task.
    pub tasks: Vec<(String, String)>,
    /// Directories with event files and checkpoints, and those inside them.
    pub dirs: Vec<PathBuf>,
    /// Log files, by who writes them.
    pub logs: Vec<(String, PathBuf)>,
    /// Lines that come from this process.
    pub sink: LogSink,
    /// The launcher's view, if one started the tasks.
    pub job: Option<JobSource>,
}

/// Gives the launcher's view at the moment.
pub type JobSource = Arc<dyn Fn() -> JobView + Send + Sync>;

/// A job as its launcher sees it.
#[derive(Clone, Debug, Default)]
pub struct JobView {
    /// Its name.
    pub name: String,
    /// As in `running`.
    pub phase: String,
    /// Its processes.
    pub tasks: Vec<JobTask>,
    /// What happened, oldest first.
    pub events: Vec<JobEvent>,
    /// How many older events are not among them any more.
    pub forgotten: u64,
    /// How the job ended, once it has.
    pub ended: Option<Ending>,
}

/// How a job ended.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Ending {
    /// `done`, `failed`, `interrupted`, or `lost` if its launcher is gone without a word.
    pub outcome: String,
    /// Why, in a sentence.
    pub why: String,
    /// The task at fault, its last lines and a hint.
    pub cause: Option<String>,
    /// From start to end.
    pub seconds: f64,
}

/// A process of a job.
#[derive(Clone, Debug, Default)]
pub struct JobTask {
    /// `/job:J/replica:0/task:N`.
    pub name: String,
    /// As in `running` or `back-off`.
    pub phase: String,
    /// Whether it has ended and will not be started again.
    pub is_over: bool,
    /// How often it was started again.
    pub restarts: u32,
    /// How it last ended.
    pub exit: Option<String>,
}

/// Something that a launcher saw.
#[derive(Clone, Debug, Default)]
pub struct JobEvent {
    /// Seconds since 1970.
    pub time: f64,
    /// To which process.
    pub task: Option<String>,
    /// `start`, `restart`, `loss`, `end` or `note`.
    pub kind: String,
    /// What, without its subject.
    pub text: String,
}
