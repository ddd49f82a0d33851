//! Tasks as processes of this machine.
//!
//! Each process has a process group of its own, so that a terminal's Ctrl-C reaches the launcher
//! alone and a signal reaches all that a process started. A process is reaped only after its end
//! was dealt with: until then its number cannot be given to another, so nothing that the launcher
//! did not start is ever signalled.

use crate::Exit;
use crate::engine::{Engine, Message, Outlet, Start, last_word};
use crate::guard::{self, Guard};
use crate::job::{Event, TaskId};
use crate::output::{Listener, Printed};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, waitid};
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

/// How long the last words of processes may take to arrive after their end.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// The processes of a job on this machine.
pub(crate) struct Local {
    children: Vec<Option<Child>>,
    guard: Option<Guard>,
    inbox: Sender<Message>,
    unlogged: Option<String>,
    /// Held by the threads that copy output.
    talking: (Sender<()>, Receiver<()>),
    /// Output of processes whose start has not been told yet waits for these to be dropped.
    held: Vec<Sender<()>>,
}

impl Local {
    /// For so many processes. `guard` is a program that calls [`crate::stand`].
    pub(crate) fn new(
        count: usize,
        guard: &[String],
        unlogged: Option<String>,
        inbox: Sender<Message>,
    ) -> io::Result<Local> {
        Ok(Local {
            children: (0..count).map(|_| None).collect(),
            guard: Guard::start(guard)?,
            inbox,
            unlogged,
            talking: mpsc::channel(),
            held: Vec::new(),
        })
    }

    fn spawn(&mut self, task: &Start<'_>, listener: &Listener) -> io::Result<u32> {
        let outlet = Outlet::new(task, listener, self.unlogged.as_ref(), &self.inbox);
        let log = outlet.begin()?;
        let planned = task.planned;
        let (program, args) = planned
            .command
            .split_first()
            .ok_or_else(|| io::Error::other("there is no program"))?;
        let mut child = guard::group_of_its_own(Command::new(program).args(args))
            .envs(&planned.env)
            .env("DOWNPOUR_DIR", task.dir)
            .env("DOWNPOUR_START", task.start.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(guard) = &mut self.guard {
            guard.add(child.id());
        }
        let out = child.stdout.take().map(|s| Box::new(s) as Stream);
        let err = child.stderr.take().map(|s| Box::new(s) as Stream);
        let outlet = std::sync::Arc::new(outlet);
        for (printed, stream) in [(Printed::Out, out), (Printed::Err, err)] {
            let Some(stream) = stream else { continue };
            let (outlet, log) = (outlet.clone(), log.try_clone().ok());
            let talking = self.talking.0.clone();
            let (held, is_told) = mpsc::channel();
            self.held.push(held);
            std::thread::spawn(move || {
                let _talking = talking;
                // Ends when the sender is gone.
                let _ = is_told.recv();
                outlet.copy(stream, log, printed);
            });
        }
        let (pid, inbox, id) = (child.id(), self.inbox.clone(), task.id);
        std::thread::spawn(move || {
            await_exit(pid);
            let _ = inbox.send(Message::Gone(id));
        });
        self.children[id] = Some(child);
        Ok(pid)
    }
}

type Stream = Box<dyn io::Read + Send>;

impl Engine for Local {
    fn start(&mut self, task: &Start<'_>, listener: &Listener) -> Vec<Event> {
        match self.spawn(task, listener) {
            Ok(pid) => {
                let mut events = vec![Event::Started(task.id, Some(pid))];
                if !task.planned.announces {
                    events.push(Event::Ready(task.id));
                }
                events
            }
            Err(e) => vec![Event::NotStarted(task.id, e.to_string())],
        }
    }

    fn signal(&mut self, id: TaskId, signal: Signal) {
        if let Some(Some(child)) = self.children.get(id) {
            guard::signal(child.id(), signal);
        }
    }

    /// Takes the exit of a process that is gone, and ends what it left in its group.
    fn reap(&mut self, id: TaskId, log: &Path) -> Option<Event> {
        // What is still on its way into the log is waited for, for a moment.
        const MOMENT: Duration = Duration::from_millis(50);
        let mut child = self.children.get_mut(id)?.take()?;
        guard::signal(child.id(), Signal::KILL);
        let exit = child.wait().map_or(Exit::Code(1), exit_of);
        if let Some(guard) = &mut self.guard {
            guard.remove(child.id());
        }
        if !exit.is_success() {
            std::thread::sleep(MOMENT);
        }
        Some(Event::Exited(id, exit, last_word(log, exit)))
    }

    fn release(&mut self) {
        self.held.clear();
    }

    /// Waits until what the processes printed has been passed on.
    fn clean_up(&mut self) {
        self.talking.0 = mpsc::channel().0;
        // What a process left running elsewhere may hold a stream open for ever.
        let _ = self.talking.1.recv_timeout(LAST_WORDS);
    }
}

/// How a process of this machine ended.
pub(crate) fn exit_of(status: ExitStatus) -> Exit {
    match (status.code(), status.signal()) {
        (Some(code), _) => Exit::Code(code),
        (None, signal) => Exit::Signal(signal.unwrap_or(0)),
    }
}

/// Waits until a process has ended, without reaping it.
fn await_exit(pid: u32) {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        return;
    };
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while let Err(rustix::io::Errno::INTR) = waitid(WaitId::Pid(pid), options) {}
}
