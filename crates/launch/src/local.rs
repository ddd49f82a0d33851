//! The launcher for this machine: makes processes, hears them, waits for their ends, and does what
//! the [`Job`] says. It holds no decision of its own.
//!
//! Each process has a process group of its own, so that a terminal's Ctrl-C reaches the launcher
//! alone and a signal reaches all that a process started. A process is reaped only after its end
//! was dealt with: until then its number cannot be given to another, so nothing that the launcher
//! did not start is ever signalled.

use crate::guard::{self, Guard};
use crate::job::{Effect, Event, Job, Outcome, Rules, TaskId};
use crate::output::{self, Listener, Printed};
use crate::plan::{self, Planned};
use crate::spec::{DoneWhen, JobSpec, SpecError};
use crate::state::{Exit, JobPhase, JobState, Monitor, TaskPhase, TaskRole, TaskState};
use crate::{TaskName, dir, ports, program};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, waitid};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long the last words of processes may take to arrive after their end.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// How a server says that it listens.
const LISTENS: &str = " listens on grpc://";

/// What the launcher is handed by the program around it.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// The program whose `serve` is a task.
    pub server: String,
    /// Program and arguments that call [`crate::stand`]; without any, nothing ends the tasks of a
    /// launcher that is killed.
    pub guard: Vec<String>,
    /// Where programs are looked for: `PATH`.
    pub path: OsString,
    /// Processes to be lost, so long after the programs have started.
    pub kills: Vec<(TaskName, Duration)>,
    /// Lines of output that begin so are for the listener and not for the logs.
    pub unlogged: Option<String>,
}

/// Why a job cannot be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// Its description is wrong.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// A program is not there.
    #[error("{task}: {reason}")]
    Program {
        /// Whose.
        task: TaskName,
        /// What is wrong with it.
        reason: String,
    },
    /// A directory cannot be used.
    #[error("the directory '{}' cannot be used: {source}", path.display())]
    Dir {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// An address cannot be listened on.
    #[error("{task} cannot listen on {address}: {source}")]
    Port {
        /// Whose.
        task: TaskName,
        /// Which.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// There are no ports left.
    #[error("{0}")]
    Ports(io::Error),
    /// A process is named that the job does not have.
    #[error("the job has no task {name}; it has {known}")]
    NoTask {
        /// What was named.
        name: TaskName,
        /// What there is.
        known: String,
    },
}

/// A job ready to run.
pub struct Local {
    job: Job,
    planned: Vec<Planned>,
    children: Vec<Option<Child>>,
    guard_command: Vec<String>,
    guard: Option<Guard>,
    monitor: Monitor,
    inbox: (Sender<Message>, Receiver<Message>),
    /// Held by the threads that copy output.
    talking: (Sender<()>, Receiver<()>),
    log: Option<File>,
    logged: u64,
    unlogged: Option<String>,
    /// Output of processes whose start has not been told yet waits for these to be dropped.
    held: Vec<Sender<()>>,
}

/// What threads tell the loop.
enum Message {
    /// The user wants something.
    Asked(Event),
    /// A server said, since this start, that it listens.
    Listens(TaskId, u32),
    /// A process can be reaped.
    Gone(TaskId),
}

/// Through which a job that runs can be influenced.
#[derive(Clone)]
pub struct Control {
    inbox: Sender<Message>,
    names: Vec<TaskName>,
}

impl Control {
    /// Ends the job as by this signal; the second time at once.
    pub fn interrupt(&self, signal: i32) {
        // The job may be over.
        let _ = self.inbox.send(Message::Asked(Event::Interrupt(signal)));
    }

    /// Loses a process. False if there is none of this name.
    pub fn kill(&self, name: &TaskName) -> bool {
        let id = self.names.iter().position(|n| n == name);
        if let Some(id) = id {
            let _ = self.inbox.send(Message::Asked(Event::Kill(id)));
        }
        id.is_some()
    }
}

impl Local {
    /// Finds directory, ports and programs; nothing runs yet.
    pub fn prepare(mut spec: JobSpec, setup: Setup) -> Result<Local, LaunchError> {
        spec.check()?;
        let now = SystemTime::now();
        let seed = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let seed = seed.subsec_nanos() as u64 ^ u64::from(std::process::id()) << 32;
        let count = spec.tasks.values().map(|group| group.count as usize).sum();
        let free = ports::free(count, seed).map_err(LaunchError::Ports)?;
        let cluster = plan::cluster(&spec, free.into_iter())?;
        // All that can be wrong is found out before a directory is made.
        let planned = plan::processes(&spec, &cluster, &setup.server)?;
        program::check(&planned, &setup.path)?;
        let rules = rules(&spec, &planned, &setup.kills)?;
        for (job, task, address) in cluster.tasks() {
            ports::check(address).map_err(|source| LaunchError::Port {
                task: TaskName::new(job, task),
                address: address.to_owned(),
                source,
            })?;
        }
        let url = spec.dir.take_if(|dir| is_url(dir));
        let dir = dir::make(spec.dir.as_deref(), &spec.name)?;
        // What programs write goes to the URL; logs and records stay on this machine.
        let data = url.unwrap_or_else(|| dir.clone());
        spec.dir = Some(data.clone());
        let planned = plan::processes(&spec, &cluster, &setup.server)?;
        let state = JobState {
            name: spec.name.clone(),
            phase: JobPhase::Starting,
            started: now,
            ended: None,
            train_dir: spec.train_dir.as_deref().map(|train| within(train, &data)),
            cluster,
            tasks: planned.iter().map(|p| task_state(p, &dir)).collect(),
            happenings: VecDeque::new(),
            forgotten: 0,
            version: 0,
            dir,
        };
        Ok(Local {
            children: planned.iter().map(|_| None).collect(),
            log: dir::append(&state.dir.join("job.log")).ok(),
            monitor: Monitor::new(state.clone()),
            job: Job::new(rules, state),
            planned,
            guard_command: setup.guard,
            guard: None,
            inbox: mpsc::channel(),
            talking: mpsc::channel(),
            logged: 0,
            unlogged: setup.unlogged,
            held: Vec::new(),
        })
    }

    /// Where the job's state is shown.
    pub fn monitor(&self) -> Monitor {
        self.monitor.clone()
    }

    /// Through which it can be influenced.
    pub fn control(&self) -> Control {
        Control {
            inbox: self.inbox.0.clone(),
            names: self.planned.iter().map(|p| p.name.clone()).collect(),
        }
    }

    /// Runs the job to its end. No process of it is left then.
    pub fn run(mut self, listener: &Listener) -> Result<(Outcome, JobState), LaunchError> {
        self.guard = Guard::start(&self.guard_command).map_err(|e| LaunchError::Program {
            task: TaskName::new("guard", 0),
            reason: e.to_string(),
        })?;
        let begin = Instant::now();
        let mut events = VecDeque::from([Event::Begin]);
        let mut effects = Vec::new();
        loop {
            while let Some(event) = events.pop_front() {
                self.job.step(begin.elapsed(), event, &mut effects);
                for effect in effects.drain(..) {
                    events.extend(self.carry_out(effect, listener));
                }
                self.log_happenings();
                self.monitor.publish(self.job.state());
            }
            self.held.clear();
            if let Some(outcome) = self.job.outcome() {
                self.hear_last_words();
                return Ok((outcome, self.job.state().clone()));
            }
            if let Some(event) = self.next_event(begin) {
                events.push_back(event);
            }
        }
    }

    /// Waits for something to happen.
    fn next_event(&mut self, begin: Instant) -> Option<Event> {
        let wait = self.job.deadline();
        let wait = wait.map_or(Duration::from_secs(3600), |at| {
            at.saturating_sub(begin.elapsed())
        });
        match self.inbox.1.recv_timeout(wait) {
            Ok(Message::Asked(event)) => Some(event),
            Ok(Message::Listens(id, start)) => {
                let is_this = self
                    .job
                    .state()
                    .tasks
                    .get(id)
                    .is_some_and(|t| t.starts == start);
                is_this.then_some(Event::Ready(id))
            }
            Ok(Message::Gone(id)) => self.reap(id),
            // `self` holds a sender, so the channel is never closed.
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Some(Event::Tick),
        }
    }

    /// Takes the exit of a process that is gone, and ends what it left in its group.
    fn reap(&mut self, id: TaskId) -> Option<Event> {
        let mut child = self.children.get_mut(id)?.take()?;
        guard::signal(child.id(), Signal::KILL);
        let exit = match child.wait() {
            Ok(status) => match (status.code(), status.signal()) {
                (Some(code), _) => Exit::Code(code),
                (None, signal) => Exit::Signal(signal.unwrap_or(0)),
            },
            Err(_) => Exit::Code(1),
        };
        if let Some(guard) = &mut self.guard {
            guard.remove(child.id());
        }
        Some(Event::Exited(id, exit, self.last_word(id, exit)))
    }

    /// The last line that a process printed which failed. What is still on its way into the log
    /// is waited for, for a moment.
    fn last_word(&self, id: TaskId, exit: Exit) -> Option<String> {
        const MOMENT: Duration = Duration::from_millis(50);
        if exit.is_success() {
            return None;
        }
        std::thread::sleep(MOMENT);
        let log = &self.job.state().tasks.get(id)?.log;
        crate::cause::last_lines(log, 1).pop()
    }

    fn carry_out(&mut self, effect: Effect, listener: &Listener) -> Vec<Event> {
        match effect {
            Effect::Start(id) => self.start(id, listener),
            Effect::Terminate(id) => {
                self.signal(id, Signal::TERM);
                Vec::new()
            }
            Effect::Kill(id) => {
                self.signal(id, Signal::KILL);
                Vec::new()
            }
        }
    }

    fn signal(&self, id: TaskId, signal: Signal) {
        if let Some(Some(child)) = self.children.get(id) {
            guard::signal(child.id(), signal);
        }
    }

    /// Makes a process and the threads that hear it.
    fn start(&mut self, id: TaskId, listener: &Listener) -> Vec<Event> {
        match self.spawn(id, listener) {
            Ok(pid) => {
                let mut events = vec![Event::Started(id, pid)];
                if !self.planned[id].announces {
                    events.push(Event::Ready(id));
                }
                events
            }
            Err(e) => vec![Event::NotStarted(id, e.to_string())],
        }
    }

    fn spawn(&mut self, id: TaskId, listener: &Listener) -> io::Result<u32> {
        let planned = &self.planned[id];
        let task = &self.job.state().tasks[id];
        let start = task.starts + 1;
        let mut log = dir::append(&task.log)?;
        let (program, args) = planned
            .command
            .split_first()
            .ok_or_else(|| io::Error::other("there is no program"))?;
        let mark = crate::cause::START;
        writeln!(log, "{mark}{} start {start}: {program}", planned.name)?;
        let dir = &self.job.state().dir;
        let mut child = guard::group_of_its_own(Command::new(program).args(args))
            .envs(&planned.env)
            .env("DOWNPOUR_DIR", dir)
            .env("DOWNPOUR_START", start.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(guard) = &mut self.guard {
            guard.add(child.id());
        }
        let said = [
            child
                .stdout
                .take()
                .map(|s| (Printed::Out, Box::new(s) as Box<dyn io::Read + Send>)),
            child
                .stderr
                .take()
                .map(|s| (Printed::Err, Box::new(s) as Box<dyn io::Read + Send>)),
        ];
        for (printed, stream) in said.into_iter().flatten() {
            let (name, listener) = (planned.name.clone(), listener.clone());
            let (log, talking) = (log.try_clone().ok(), self.talking.0.clone());
            let inbox = planned.announces.then(|| self.inbox.0.clone());
            let (held, is_told) = mpsc::channel();
            self.held.push(held);
            let unlogged = self.unlogged.clone();
            std::thread::spawn(move || {
                let _talking = talking;
                // Ends when the sender is gone.
                let _ = is_told.recv();
                output::copy(stream, log, unlogged.as_deref(), |line| {
                    if let Some(inbox) = inbox.as_ref().filter(|_| line.contains(LISTENS)) {
                        let _ = inbox.send(Message::Listens(id, start));
                    }
                    listener(&name, printed, line);
                });
            });
        }
        let (pid, inbox) = (child.id(), self.inbox.0.clone());
        std::thread::spawn(move || {
            await_exit(pid);
            let _ = inbox.send(Message::Gone(id));
        });
        self.children[id] = Some(child);
        Ok(pid)
    }

    fn log_happenings(&mut self) {
        let state = self.job.state();
        let first = self.logged.saturating_sub(state.forgotten);
        let skip = usize::try_from(first).unwrap_or(usize::MAX);
        for happening in state.happenings.iter().skip(skip) {
            if let Some(log) = &mut self.log {
                let _ = writeln!(log, "{happening}");
            }
        }
        self.logged = state.forgotten + state.happenings.len() as u64;
    }

    /// Waits until what the processes printed has been passed on.
    fn hear_last_words(&mut self) {
        self.talking.0 = mpsc::channel().0;
        // What a process left running elsewhere may hold a stream open for ever.
        let _ = self.talking.1.recv_timeout(LAST_WORDS);
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

/// Whether a directory is one of a storage that is reached by URL.
fn is_url(dir: &Path) -> bool {
    dir.to_str().is_some_and(|dir| dir.contains("://"))
}

/// A path with `{dir}` filled in.
fn within(path: &Path, dir: &Path) -> PathBuf {
    match path.strip_prefix("{dir}") {
        Ok(rest) => dir.join(rest),
        Err(_) => path.to_owned(),
    }
}

fn task_state(planned: &Planned, dir: &Path) -> TaskState {
    TaskState {
        name: planned.name.clone(),
        role: planned.role,
        address: planned.address.clone(),
        command: planned.command.clone(),
        phase: TaskPhase::Waiting,
        since: Duration::ZERO,
        pid: None,
        starts: 0,
        exit: None,
        log: dir.join("logs").join(planned.name.log_file()),
    }
}

fn rules(
    spec: &JobSpec,
    planned: &[Planned],
    kills: &[(TaskName, Duration)],
) -> Result<Rules, LaunchError> {
    let find = |name: &TaskName| planned.iter().position(|p| p.name == *name);
    let kills = kills.iter().map(|(name, after)| match find(name) {
        Some(id) => Ok((id, *after)),
        None => {
            let known: Vec<String> = planned.iter().map(|p| p.name.to_string()).collect();
            Err(LaunchError::NoTask {
                name: name.clone(),
                known: known.join(", "),
            })
        }
    });
    let mut trainers = planned.iter().filter(|p| p.role == TaskRole::Trainer);
    Ok(Rules {
        restart: spec.restart.clone(),
        drain: spec.drain,
        evaluator_wait: spec.evaluator_wait,
        done_with_chief: spec.done_when == DoneWhen::Chief,
        chief: trainers.next().and_then(|p| find(&p.name)),
        kills: kills.collect::<Result<_, _>>()?,
    })
}
