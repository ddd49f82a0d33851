//! The seam between a job's rules and the places where its tasks run. An [`Engine`] starts tasks, signals them, and
//! posts what befalls them; it decides nothing. The [`crate::Launcher`] holds the rules and knows no engine.

use crate::job::{Event, TaskId};
use crate::output::{self, Listener, Printed};
use crate::plan::Planned;
use crate::{Exit, dir};
use downpour_cluster::ClusterSpec;
use rustix::process::Signal;
use std::fs::File;
use std::io::{self, Read, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;

/// How a server says that it listens.
const LISTENS: &str = " listens on grpc://";

/// What engines and users tell the launcher.
pub(crate) enum Message {
    /// Something happened, or the user wants something.
    Event(Event),
    /// A server said, since this start, that it listens.
    Listens(TaskId, u32),
    /// A process of this machine can be reaped.
    Gone(TaskId),
}

/// A task to start.
pub(crate) struct Start<'a> {
    pub(crate) id: TaskId,
    /// Counted from 1.
    pub(crate) start: u32,
    pub(crate) planned: &'a Planned,
    /// Where it runs, if not on the launcher's host.
    pub(crate) host: Option<&'a str>,
    /// The run's directory.
    pub(crate) dir: &'a Path,
    /// Where its output goes.
    pub(crate) log: &'a Path,
}

/// Places for all tasks of a job.
pub(crate) struct Placed {
    pub(crate) cluster: ClusterSpec,
    /// The host of each process, in the order of [`crate::plan::processes`].
    pub(crate) hosts: Vec<Option<String>>,
}

/// Starts and watches tasks somewhere.
pub(crate) trait Engine: Send {
    /// Starts a task, now or soon. What is known at once is returned, the rest is posted: `Started` or `NotStarted`, then
    /// `Exited` or `HostLost`, exactly once for each start.
    fn start(&mut self, start: &Start<'_>, listener: &Listener) -> Vec<Event>;

    /// Sends a signal to a task, once it runs.
    fn signal(&mut self, id: TaskId, signal: Signal);

    /// Takes the exit of a process that is gone.
    fn reap(&mut self, _id: TaskId, _log: &Path) -> Option<Event> {
        None
    }

    /// Finds new places for all tasks, without the hosts that are lost; why there are none.
    fn place(&mut self) -> Result<Placed, String> {
        Err("there is one host, and it is lost".to_owned())
    }

    /// Lets output of tasks pass, whose start is told by now.
    fn release(&mut self) {}

    /// Removes what the job left. No task of it runs.
    fn clean_up(&mut self) {}
}

/// Where a task's output goes: its log, the listener, and a look for the word that it listens.
#[derive(Clone)]
pub(crate) struct Outlet {
    pub(crate) id: TaskId,
    pub(crate) start: u32,
    pub(crate) planned: Planned,
    pub(crate) log: PathBuf,
    pub(crate) unlogged: Option<String>,
    pub(crate) listener: Listener,
    pub(crate) inbox: Sender<Message>,
}

impl Outlet {
    pub(crate) fn new(
        start: &Start<'_>,
        listener: &Listener,
        unlogged: Option<&String>,
        inbox: &Sender<Message>,
    ) -> Outlet {
        Outlet {
            id: start.id,
            start: start.start,
            planned: start.planned.clone(),
            log: start.log.to_owned(),
            unlogged: unlogged.cloned(),
            listener: listener.clone(),
            inbox: inbox.clone(),
        }
    }

    /// Opens the log, with a mark for this start.
    pub(crate) fn begin(&self) -> io::Result<File> {
        let mut log = dir::append(&self.log)?;
        let program = self.planned.command.first();
        let program = program.ok_or_else(|| io::Error::other("there is no program"))?;
        let mark = crate::cause::START;
        writeln!(
            log,
            "{mark}{} start {}: {program}",
            self.planned.name, self.start
        )?;
        Ok(log)
    }

    /// Passes a stream on until it ends.
    pub(crate) fn copy(&self, stream: impl Read, log: Option<File>, printed: Printed) {
        let log = log.map(|file| (file, self.log.as_path()));
        output::copy(stream, log, self.unlogged.as_deref(), |line| {
            self.hear(printed, line);
        });
    }

    fn hear(&self, printed: Printed, line: &str) {
        if self.planned.announces && line.contains(LISTENS) {
            // The job may be over.
            let _ = self.inbox.send(Message::Listens(self.id, self.start));
        }
        (self.listener)(&self.planned.name, printed, line);
    }
}

/// The last line that a process printed which failed.
pub(crate) fn last_word(log: &Path, exit: Exit) -> Option<String> {
    match exit.is_success() {
        true => None,
        false => crate::cause::last_lines(log, 1).pop(),
    }
}
