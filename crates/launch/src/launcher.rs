//! The launcher: does what the [`Job`] says with an engine (this machine, or hosts elsewhere), and tells the job what
//! happened. It holds no decision of its own and knows no engine but by [`Engine`].

use crate::engine::{Engine, Message, Placed, Start};
use crate::job::{Effect, Event, Job, Outcome, Rules, Seat};
use crate::local::Local;
use crate::output::Listener;
use crate::plan::{self, Planned};
use crate::remote::{self, Remote};
use crate::spec::{DoneWhen, JobSpec, SpecError};
use crate::state::{JobPhase, JobState, Monitor, TaskPhase, TaskRole, TaskState};
use crate::{TaskName, dir, ports, program};
use rustix::process::Signal;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write as _};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

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
    /// The allocation of Slurm that this process is in: its number and its nodes as Slurm abbreviates them.
    pub allocation: Option<(String, String)>,
    /// The ApplicationMaster of YARN that this process is.
    pub yarn: Option<crate::YarnMaster>,
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
    /// The place where the tasks are to run cannot be used.
    #[error("{0}")]
    Place(String),
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
pub struct Launcher {
    spec: JobSpec,
    setup: Setup,
    server: String,
    job: Job,
    planned: Vec<Planned>,
    /// Where the tasks run, if not on this machine.
    remote: Option<Remote>,
    monitor: Monitor,
    inbox: (Sender<Message>, Receiver<Message>),
    log: Option<File>,
    logged: u64,
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
        let _ = self.inbox.send(Message::Event(Event::Interrupt(signal)));
    }

    /// Loses a process. False if there is none of this name.
    pub fn kill(&self, name: &TaskName) -> bool {
        let id = self.names.iter().position(|n| n == name);
        if let Some(id) = id {
            let _ = self.inbox.send(Message::Event(Event::Kill(id)));
        }
        id.is_some()
    }
}

impl Launcher {
    /// Finds directory, hosts, addresses and programs; nothing runs yet.
    pub fn prepare(spec: JobSpec, setup: Setup) -> Result<Launcher, LaunchError> {
        spec.check()?;
        let inbox = mpsc::channel();
        let remote = Remote::prepare(&spec, &setup, &inbox.0).map_err(LaunchError::Place)?;
        Launcher::prepare_on(remote, spec, setup, inbox)
    }

    /// The same for a place that can be used; this machine if there is none.
    pub(crate) fn prepare_on(
        mut remote: Option<Remote>,
        mut spec: JobSpec,
        setup: Setup,
        inbox: (Sender<Message>, Receiver<Message>),
    ) -> Result<Launcher, LaunchError> {
        let now = SystemTime::now();
        let server = match &remote {
            Some(remote) => remote.server(),
            None => setup.server.clone(),
        };
        let placed = match &mut remote {
            Some(remote) => remote.place().map_err(LaunchError::Place)?,
            None => Self::place_here(&spec, now)?,
        };
        // All that can be wrong is found out before a directory is made.
        let planned = plan::processes(&spec, &placed.cluster, &server)?;
        let rules = rules(&spec, &planned, &setup.kills)?;
        if remote.is_none() {
            program::check(&planned, &setup.path)?;
            for (job, task, address) in placed.cluster.tasks() {
                ports::check(address).map_err(|source| LaunchError::Port {
                    task: TaskName::new(job, task),
                    address: address.to_owned(),
                    source,
                })?;
            }
        }
        let adopted = remote.as_ref().and_then(Remote::adopted);
        let url = spec.dir.take_if(|dir| is_url(dir));
        let dir = dir::make(adopted.or(spec.dir.as_deref()), &spec.name)?;
        // What programs write goes to the URL; logs and records stay on this machine.
        let data = url.unwrap_or_else(|| dir.clone());
        spec.dir = Some(data.clone());
        let planned = plan::processes(&spec, &placed.cluster, &server)?;
        if let Some(remote) = &mut remote {
            remote.begin(&dir, &spec, &placed, setup.unlogged.clone())?;
        }
        let state = JobState {
            name: spec.name.clone(),
            phase: JobPhase::Starting,
            started: now,
            ended: None,
            train_dir: spec.train_dir.as_deref().map(|train| within(train, &data)),
            cluster: placed.cluster,
            tasks: planned
                .iter()
                .zip(&placed.hosts)
                .map(|(planned, host)| task_state(planned, host.clone(), &dir))
                .collect(),
            happenings: VecDeque::new(),
            forgotten: 0,
            version: 0,
            dir,
        };
        Ok(Launcher {
            log: dir::append(&state.dir.join("job.log")).ok(),
            monitor: Monitor::new(state.clone()),
            job: Job::new(rules, state),
            spec,
            setup,
            server,
            planned,
            remote,
            inbox,
            logged: 0,
        })
    }

    /// Free ports of this machine.
    fn place_here(spec: &JobSpec, now: SystemTime) -> Result<Placed, LaunchError> {
        let seed = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let seed = seed.subsec_nanos() as u64 ^ u64::from(std::process::id()) << 32;
        let count = spec.tasks.values().map(|group| group.count as usize).sum();
        let free = ports::free(Ipv4Addr::LOCALHOST, count, seed).map_err(LaunchError::Ports)?;
        let free = free.iter().map(|port| format!("127.0.0.1:{port}"));
        Ok(Placed {
            cluster: plan::cluster(spec, free)?,
            hosts: vec![None; 2 * count],
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
        let mut engine: Box<dyn Engine> = match self.remote.take() {
            Some(remote) => Box::new(remote),
            None => Box::new(self.local()?),
        };
        let begin = Instant::now();
        let mut events = VecDeque::from([Event::Begin]);
        let mut effects = Vec::new();
        loop {
            while let Some(event) = events.pop_front() {
                self.job.step(begin.elapsed(), event, &mut effects);
                for effect in effects.drain(..) {
                    events.extend(self.carry_out(effect, &mut *engine, listener));
                }
                self.log_happenings();
                self.monitor.publish(self.job.state());
            }
            engine.release();
            if let Some(outcome) = self.job.outcome() {
                engine.clean_up();
                return Ok((outcome, self.job.state().clone()));
            }
            if let Some(event) = self.next_event(begin, &mut *engine) {
                events.push_back(event);
            }
        }
    }

    fn local(&self) -> Result<Local, LaunchError> {
        let local = Local::new(
            self.planned.len(),
            &self.setup.guard,
            self.setup.unlogged.clone(),
            self.inbox.0.clone(),
        );
        local.map_err(|e| LaunchError::Program {
            task: TaskName::new("guard", 0),
            reason: e.to_string(),
        })
    }

    /// Waits for something to happen.
    fn next_event(&mut self, begin: Instant, engine: &mut dyn Engine) -> Option<Event> {
        let wait = self.job.deadline();
        let wait = wait.map_or(Duration::from_secs(3600), |at| {
            at.saturating_sub(begin.elapsed())
        });
        let tasks = &self.job.state().tasks;
        match self.inbox.1.recv_timeout(wait) {
            Ok(Message::Event(event)) => Some(event),
            Ok(Message::Listens(id, start)) => {
                let is_this = tasks.get(id).is_some_and(|t| t.starts == start);
                is_this.then_some(Event::Ready(id))
            }
            Ok(Message::Gone(id)) => engine.reap(id, &tasks.get(id)?.log),
            // `self` holds a sender, so the channel is never closed.
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Some(Event::Tick),
        }
    }

    fn carry_out(
        &mut self,
        effect: Effect,
        engine: &mut dyn Engine,
        listener: &Listener,
    ) -> Vec<Event> {
        match effect {
            Effect::Start(id) => {
                let state = self.job.state();
                let start = Start {
                    id,
                    start: state.tasks[id].starts + 1,
                    planned: &self.planned[id],
                    host: state.tasks[id].host.as_deref(),
                    dir: &state.dir,
                    log: &state.tasks[id].log,
                };
                engine.start(&start, listener)
            }
            Effect::Terminate(id) => {
                engine.signal(id, Signal::TERM);
                Vec::new()
            }
            Effect::Kill(id) => {
                engine.signal(id, Signal::KILL);
                Vec::new()
            }
            Effect::Place => match self.place_again(engine) {
                Ok(event) => vec![event],
                Err(reason) => vec![Event::NotPlaced(reason)],
            },
        }
    }

    /// New places, and commands that know of them.
    fn place_again(&mut self, engine: &mut dyn Engine) -> Result<Event, String> {
        let placed = engine.place()?;
        let planned = plan::processes(&self.spec, &placed.cluster, &self.server);
        self.planned = planned.map_err(|e| e.to_string())?;
        // A launcher that comes after this one finds the tasks where they are now.
        let kept = remote::keep_plan(&self.job.state().dir, &self.spec, &placed);
        kept.map_err(|e| e.to_string())?;
        let seats = self.planned.iter().zip(placed.hosts);
        let seats = seats.map(|(planned, host)| Seat {
            host,
            address: planned.address.clone(),
            command: planned.command.clone(),
        });
        Ok(Event::Placed(seats.collect(), placed.cluster))
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

fn task_state(planned: &Planned, host: Option<String>, dir: &Path) -> TaskState {
    TaskState {
        name: planned.name.clone(),
        role: planned.role,
        address: planned.address.clone(),
        host,
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
