//! A job as a state machine: what happened goes in, what must be done comes out. No process, no
//! clock, no file here; the launcher does what [`Effect`]s say and reports [`Event`]s.
//!
//! The rules: servers start first, programs once all servers have listened. A trainer that fails is
//! started again while its budget lasts; a server also when it ended well, as long as somebody
//! trains. The job is done when all trainers are (or the chief, if so told); a trainer or server
//! that fails for good ends it, and one that fails at once or twice alike is not tried until its
//! budget is spent. The rest is asked to end (SIGTERM), programs first, so that they can save; servers
//! when no program is left. What is left when the drain is over is made to (SIGKILL).
//!
//! Tasks on several hosts: when a host is lost, addresses change, and every task must learn the new ones. So all that run
//! are asked to end, get new places ([`Effect::Place`]) and begin again, from their checkpoint. Who is done stays done.

use crate::policy::{Alike, Failures, Fault, RestartPolicy};
use crate::state::{
    Exit, Happening, HappeningKind, JobPhase, JobState, MAX_HAPPENINGS, TaskPhase, TaskRole,
};
use downpour_cluster::ClusterSpec;
use std::time::Duration;

/// A process of the job, by its place in [`JobState::tasks`].
pub type TaskId = usize;

/// What happened. Every trigger is listed here.
#[derive(Clone, Debug)]
pub enum Event {
    /// The job begins.
    Begin,
    /// A process exists; its number, if it has one.
    Started(TaskId, Option<u32>),
    /// A process could not be made.
    NotStarted(TaskId, String),
    /// A server listens.
    Ready(TaskId),
    /// A process is gone, and these were its last words.
    Exited(TaskId, Exit, Option<String>),
    /// A process is gone with its host, and will not come back there.
    HostLost(TaskId, String),
    /// The tasks have new places, in the order of [`JobState::tasks`].
    Placed(Vec<Seat>, ClusterSpec),
    /// There is no place for them.
    NotPlaced(String),
    /// Something worth a line befell a process.
    Noted(TaskId, String),
    /// The user wants the job to end: this signal came.
    Interrupt(i32),
    /// The user wants a process to be lost.
    Kill(TaskId),
    /// Time has passed.
    Tick,
}

/// What the shell must now do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Make the process.
    Start(TaskId),
    /// Ask it to end.
    Terminate(TaskId),
    /// End it.
    Kill(TaskId),
    /// Find places for all tasks, on hosts that are there; [`Event::Placed`] or [`Event::NotPlaced`] answers.
    Place,
}

/// Where a process runs, and what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seat {
    /// Which host; none is the launcher's own.
    pub host: Option<String>,
    /// The address of its task.
    pub address: Option<String>,
    /// Program and arguments.
    pub command: Vec<String>,
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// All trained to their end.
    Done,
    /// This process failed for good.
    Failed(TaskId, Exit),
    /// This process could not be made at all.
    NotStarted(TaskId, String),
    /// By this signal.
    Interrupted(i32),
}

impl Outcome {
    /// The outcome in one word, as records and summaries have it.
    pub fn word(&self) -> &'static str {
        match self {
            Outcome::Done => "done",
            Outcome::Failed(..) | Outcome::NotStarted(..) => "failed",
            Outcome::Interrupted(_) => "interrupted",
        }
    }

    /// The exit code of the launcher: that of the process at fault.
    pub fn code(&self) -> u8 {
        match self {
            Outcome::Done => 0,
            Outcome::Failed(_, exit) => exit.code().max(1),
            Outcome::NotStarted(..) => 2,
            Outcome::Interrupted(signal) => Exit::Signal(*signal).code(),
        }
    }
}

/// How a job is conducted.
#[derive(Clone, Debug)]
pub struct Rules {
    /// When to start again.
    pub restart: RestartPolicy,
    /// How long processes may take to end when asked.
    pub drain: Duration,
    /// How long an evaluator may go on after the training.
    pub evaluator_wait: Duration,
    /// Whether the job is done as soon as its chief is.
    pub done_with_chief: bool,
    /// Who is the chief.
    pub chief: Option<TaskId>,
    /// Processes to be lost, so long after the programs have started.
    pub kills: Vec<(TaskId, Duration)>,
}

/// How long a server may take until it listens.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// A signal that follows another so soon is the same request: `timeout` and others signal a process and
/// its group.
const SAME_REQUEST: Duration = Duration::from_millis(300);

/// How often what does not end is killed while the job moves.
const MOVE_KILLS_EVERY: Duration = Duration::from_secs(1);

/// A job under way.
#[derive(Debug)]
pub struct Job {
    rules: Rules,
    state: JobState,
    tasks: Vec<Watched>,
    kills: Vec<(TaskId, Duration)>,
    interrupts: u32,
    /// When the last of them came.
    interrupted: Option<Duration>,
    fault: Option<Outcome>,
    end_by: Option<Duration>,
    /// When what has not ended is killed, while the job moves to other hosts.
    move_by: Option<Duration>,
    /// Whether those that are left have been asked to end, or are about to be.
    is_stopping: bool,
}

/// What only the rules need to know of a process.
#[derive(Clone, Debug, Default)]
struct Watched {
    failures: Failures,
    /// When something is due: a restart, or patience with a server's start.
    due: Option<Duration>,
    /// Whether it was made to go by the user.
    is_victim: bool,
    /// When it was last started.
    started: Duration,
    alike: Alike,
}

impl Job {
    /// A job that has not begun.
    pub fn new(rules: Rules, state: JobState) -> Job {
        let tasks = vec![Watched::default(); state.tasks.len()];
        Job {
            rules,
            state,
            tasks,
            kills: Vec::new(),
            interrupts: 0,
            interrupted: None,
            fault: None,
            end_by: None,
            move_by: None,
            is_stopping: false,
        }
    }

    /// The job as it is.
    pub fn state(&self) -> &JobState {
        &self.state
    }

    /// How it ended, once no process is left.
    pub fn outcome(&self) -> Option<Outcome> {
        let ended = self.state.phase == JobPhase::Ended;
        ended.then(|| self.fault.clone().unwrap_or(Outcome::Done))
    }

    /// When the next [`Event::Tick`] is wanted.
    pub fn deadline(&self) -> Option<Duration> {
        let due = self.tasks.iter().filter_map(|t| t.due);
        let kills = self.kills.iter().map(|(_, at)| *at);
        due.chain(kills)
            .chain(self.end_by)
            .chain(self.move_by)
            .min()
    }

    /// Advances by one event. Same state and event give the same effects, in the same order.
    pub fn step(&mut self, now: Duration, event: Event, out: &mut Vec<Effect>) {
        self.state.version += 1;
        match event {
            Event::Begin => self.begin(now, out),
            Event::Started(id, pid) => self.started(id, pid, now),
            Event::NotStarted(id, reason) => {
                let text = format!("cannot be started: {reason}");
                self.say(now, Some(id), HappeningKind::Loss, text);
                self.set(id, TaskPhase::Failed, now);
                self.fail(Outcome::NotStarted(id, reason));
            }
            Event::Ready(id) => {
                if self.phase(id) == TaskPhase::Starting {
                    self.set(id, TaskPhase::Running, now);
                    self.tasks[id].due = None;
                }
            }
            Event::Exited(id, exit, words) => self.exited(id, exit, words, now),
            Event::HostLost(id, reason) => self.host_lost(id, &reason, now, out),
            Event::Placed(seats, cluster) => self.placed(seats, cluster, now, out),
            Event::NotPlaced(reason) => self.fail(Outcome::NotStarted(0, reason)),
            Event::Noted(id, text) => self.say(now, Some(id), HappeningKind::Note, text),
            Event::Interrupt(signal) => self.interrupt(signal, now, out),
            Event::Kill(id) => self.kill(id, now, out),
            Event::Tick => {}
        }
        self.tick(now, out);
    }

    /// Does what is due, and moves the job on.
    fn tick(&mut self, now: Duration, out: &mut Vec<Effect>) {
        for id in 0..self.tasks.len() {
            if self.tasks[id].due.is_some_and(|due| due <= now) {
                self.tasks[id].due = None;
                match self.phase(id) {
                    TaskPhase::BackOff => self.start(id, now, out),
                    TaskPhase::Starting => {
                        let text = "does not listen; it is ended".to_owned();
                        self.say(now, Some(id), HappeningKind::Note, text);
                        out.push(Effect::Kill(id));
                    }
                    _ => {}
                }
            }
        }
        if self.state.phase == JobPhase::Starting && self.all_listen() {
            self.run_programs(now, out);
        }
        while let Some(at) = self.kills.iter().position(|(_, at)| *at <= now) {
            let (id, _) = self.kills.remove(at);
            self.kill(id, now, out);
        }
        if self.state.phase == JobPhase::Running || self.state.phase == JobPhase::Starting {
            self.end_if_over(now, out);
        }
        if self.state.phase == JobPhase::Moving {
            self.go_on_moving(now, out);
        }
        if self.state.phase == JobPhase::Ending {
            self.end(now, out);
        }
    }

    fn begin(&mut self, now: Duration, out: &mut Vec<Effect>) {
        let waits = |phase, role| phase == TaskPhase::Waiting && role == TaskRole::Server;
        for id in self.having(waits) {
            self.start(id, now, out);
        }
    }

    /// A process went with its host. Others must learn where it will be, so all of them move.
    fn host_lost(&mut self, id: TaskId, reason: &str, now: Duration, out: &mut Vec<Effect>) {
        let was_asked = self.phase(id) == TaskPhase::Stopping;
        self.state.tasks[id].pid = None;
        self.tasks[id].due = None;
        self.tasks[id].is_victim = false;
        self.set(id, TaskPhase::Stopped, now);
        let host = self.state.tasks[id].host.clone();
        let host = host.unwrap_or_else(|| "its host".to_owned());
        let text = format!("is lost with {host}: {reason}");
        self.say(now, Some(id), HappeningKind::Loss, text);
        if was_asked || self.state.phase == JobPhase::Ending {
            return;
        }
        if self.tasks[id]
            .failures
            .count(&self.rules.restart, now)
            .is_none()
        {
            self.set(id, TaskPhase::Failed, now);
            return self.fail(Outcome::NotStarted(id, format!("{host} is lost: {reason}")));
        }
        if self.state.phase != JobPhase::Moving {
            self.state.phase = JobPhase::Moving;
            self.kills.clear();
            let text = "all tasks end and begin again on hosts that are there".to_owned();
            self.say(now, None, HappeningKind::Note, text);
            for id in 0..self.tasks.len() {
                self.tasks[id].due = None;
                if matches!(self.phase(id), TaskPhase::Waiting | TaskPhase::BackOff) {
                    self.set(id, TaskPhase::Stopped, now);
                }
            }
            for role in [TaskRole::Trainer, TaskRole::Evaluator] {
                self.ask(now, role, out);
            }
            self.move_by = Some(now + self.rules.drain);
        }
    }

    /// Programs end, then servers; when nobody is left, all get new places.
    fn go_on_moving(&mut self, now: Duration, out: &mut Vec<Effect>) {
        if self.fault.is_some() {
            self.move_by = None;
            return self.stop_all(now, out);
        }
        let Some(by) = self.move_by else { return };
        let alive = self.having(|phase, _| phase.is_alive());
        let is_program = |id: &TaskId| self.state.tasks[*id].role != TaskRole::Server;
        if !alive.iter().any(is_program) {
            self.ask(now, TaskRole::Server, out);
        }
        if alive.is_empty() {
            self.move_by = None;
            out.push(Effect::Place);
        } else if by <= now {
            self.move_by = Some(now + self.rules.drain.max(MOVE_KILLS_EVERY));
            out.extend(alive.into_iter().map(Effect::Kill));
        }
    }

    fn placed(
        &mut self,
        seats: Vec<Seat>,
        cluster: ClusterSpec,
        now: Duration,
        out: &mut Vec<Effect>,
    ) {
        if self.state.phase != JobPhase::Moving {
            return;
        }
        self.state.cluster = cluster;
        for (id, seat) in seats.into_iter().enumerate().take(self.tasks.len()) {
            let task = &mut self.state.tasks[id];
            (task.host, task.address, task.command) = (seat.host, seat.address, seat.command);
            if task.phase != TaskPhase::Done {
                self.set(id, TaskPhase::Waiting, now);
            }
        }
        self.state.phase = JobPhase::Starting;
        self.begin(now, out);
    }

    fn all_listen(&self) -> bool {
        let servers = self.having(|_, role| role == TaskRole::Server);
        let listens = |id: &TaskId| self.phase(*id) == TaskPhase::Running;
        self.fault.is_none() && servers.iter().all(listens)
    }

    fn run_programs(&mut self, now: Duration, out: &mut Vec<Effect>) {
        self.state.phase = JobPhase::Running;
        for id in self.having(|phase, _| phase == TaskPhase::Waiting) {
            self.start(id, now, out);
        }
        let kills = self.rules.kills.iter();
        self.kills = kills.map(|(id, after)| (*id, now + *after)).collect();
    }

    /// Begins the end when the training is over or cannot go on.
    fn end_if_over(&mut self, now: Duration, out: &mut Vec<Effect>) {
        let trainers = self.having(|_, role| role == TaskRole::Trainer);
        let is_done = |id: TaskId| self.phase(id) == TaskPhase::Done;
        let chief_done = self.rules.done_with_chief && self.rules.chief.is_some_and(is_done);
        // Without any, the job is a cluster for others' programs, and stays.
        let all_done = !trainers.is_empty() && trainers.iter().all(|id| is_done(*id));
        // A failing evaluator is told of at the end; it is no reason to stop a training.
        let broken = self.fault.as_ref().is_some_and(|fault| match fault {
            Outcome::Failed(id, _) => self.state.tasks[*id].role != TaskRole::Evaluator,
            _ => true,
        });
        if !(chief_done || all_done || broken) {
            return;
        }
        self.state.phase = JobPhase::Ending;
        let evaluators = self.having(|phase, role| role == TaskRole::Evaluator && phase.is_alive());
        if broken || evaluators.is_empty() {
            self.stop_all(now, out);
        } else {
            self.end_by = Some(now + self.rules.evaluator_wait);
        }
    }

    /// Goes on with the end: first the evaluator's patience, then the drain, then nobody is left.
    fn end(&mut self, now: Duration, out: &mut Vec<Effect>) {
        let alive = self.having(|phase, _| phase.is_alive());
        let mut evaluators = alive.iter().copied();
        let is_waiting = evaluators.any(|id| {
            self.state.tasks[id].role == TaskRole::Evaluator
                && self.phase(id) != TaskPhase::Stopping
        });
        let is_due = self.end_by.is_some_and(|by| by <= now);
        let unasked = alive
            .iter()
            .any(|id| self.phase(*id) != TaskPhase::Stopping);
        if unasked && !self.is_stopping && (!is_waiting || is_due) {
            self.stop_all(now, out);
        } else if is_due {
            self.end_by = None;
            self.say(
                now,
                None,
                HappeningKind::Note,
                "what did not end is killed".to_owned(),
            );
            out.extend(alive.iter().map(|id| Effect::Kill(*id)));
        }
        let programs_left = alive
            .iter()
            .any(|id| self.state.tasks[*id].role != TaskRole::Server);
        if !programs_left && self.is_stopping && self.end_by.is_some() {
            self.ask(now, TaskRole::Server, out);
        }
        if alive.is_empty() {
            self.state.phase = JobPhase::Ended;
            self.state.ended = Some(now);
            self.end_by = None;
        }
    }

    /// Asks all that are left to end: programs now, servers when no program is left, for what
    /// programs save goes through them.
    fn stop_all(&mut self, now: Duration, out: &mut Vec<Effect>) {
        self.state.phase = JobPhase::Ending;
        self.is_stopping = true;
        self.kills.clear();
        for id in 0..self.tasks.len() {
            if matches!(self.phase(id), TaskPhase::Waiting | TaskPhase::BackOff) {
                self.set(id, TaskPhase::Stopped, now);
            }
            self.tasks[id].due = None;
        }
        for role in [TaskRole::Trainer, TaskRole::Evaluator] {
            self.ask(now, role, out);
        }
        self.end_by = Some(now + self.rules.drain);
    }

    /// Asks those of a role that are left to end.
    fn ask(&mut self, now: Duration, role: TaskRole, out: &mut Vec<Effect>) {
        let is_up = |phase| matches!(phase, TaskPhase::Starting | TaskPhase::Running);
        for id in self.having(|phase, is| is == role && is_up(phase)) {
            self.set(id, TaskPhase::Stopping, now);
            out.push(Effect::Terminate(id));
        }
    }

    fn start(&mut self, id: TaskId, now: Duration, out: &mut Vec<Effect>) {
        self.set(id, TaskPhase::Starting, now);
        self.tasks[id].due = None;
        out.push(Effect::Start(id));
    }

    fn started(&mut self, id: TaskId, pid: Option<u32>, now: Duration) {
        let task = &mut self.state.tasks[id];
        task.pid = pid;
        task.starts += 1;
        self.tasks[id].started = now;
        // A place may take long to have room for it; from here on it has what it needs.
        let awaits_word = task.role == TaskRole::Server && task.phase == TaskPhase::Starting;
        self.tasks[id].due = awaits_word.then(|| now + READY_WITHIN);
        let task = &mut self.state.tasks[id];
        let on = task.host.as_ref().map(|host| format!(" on {host}"));
        let on = on.unwrap_or_default();
        let process = pid.map(|pid| format!("process {pid}"));
        let (kind, text) = match task.restarts() {
            0 => {
                let process = process.map(|p| format!(" ({p})")).unwrap_or_default();
                (HappeningKind::Start, format!("started{on}{process}"))
            }
            n => {
                let process = process.map(|p| format!("{p}, ")).unwrap_or_default();
                let text = format!("started again{on} ({process}restart {n})");
                (HappeningKind::Restart, text)
            }
        };
        if task.role != TaskRole::Server && task.phase == TaskPhase::Starting {
            self.set(id, TaskPhase::Running, now);
        }
        self.say(now, Some(id), kind, text);
    }

    fn exited(&mut self, id: TaskId, exit: Exit, words: Option<String>, now: Duration) {
        let was_asked = self.phase(id) == TaskPhase::Stopping;
        let task = &mut self.state.tasks[id];
        task.pid = None;
        task.exit = Some(exit);
        let role = task.role;
        self.tasks[id].due = None;
        let is_victim = std::mem::take(&mut self.tasks[id].is_victim);
        if was_asked {
            self.set(id, TaskPhase::Stopped, now);
            self.say(
                now,
                Some(id),
                HappeningKind::End,
                format!("stopped ({exit})"),
            );
            return;
        }
        if exit.is_success() && role != TaskRole::Server {
            self.set(id, TaskPhase::Done, now);
            self.say(now, Some(id), HappeningKind::End, "done".to_owned());
            return;
        }
        if self.state.phase == JobPhase::Moving {
            self.set(id, TaskPhase::Stopped, now);
            let text = format!("ended with {exit}");
            return self.say(now, Some(id), HappeningKind::End, text);
        }
        if self.state.phase == JobPhase::Ending {
            // It would have been asked to end in a moment: a server that saw its clients go.
            let well = exit.is_success();
            let phase = if well {
                TaskPhase::Stopped
            } else {
                TaskPhase::Failed
            };
            self.set(id, phase, now);
            self.say(
                now,
                Some(id),
                HappeningKind::End,
                format!("ended with {exit}"),
            );
            if !well && role == TaskRole::Evaluator {
                self.fail(Outcome::Failed(id, exit));
            }
            return;
        }
        let fault = Fault {
            exit,
            words,
            is_victim,
            lived: now.saturating_sub(self.tasks[id].started),
        };
        self.lost(id, fault, now);
    }

    /// A process went that should have stayed: once more, or never again.
    fn lost(&mut self, id: TaskId, fault: Fault, now: Duration) {
        let (exit, is_victim) = (fault.exit, fault.is_victim);
        let is_final = matches!(exit, Exit::Code(c) if self.rules.restart.final_codes.contains(&c));
        let again = self.tasks[id].alike.count(&self.rules.restart, fault);
        let pause = match is_final || again.is_some() {
            true => None,
            false => self.tasks[id].failures.count(&self.rules.restart, now),
        };
        let by = if is_victim { ", as was asked for" } else { "" };
        if let Some(pause) = pause {
            self.set(id, TaskPhase::BackOff, now);
            self.tasks[id].due = Some(now + pause);
            let text = format!(
                "ended with {exit}{by}; starts again in {:.1} s",
                pause.as_secs_f64()
            );
            self.say(now, Some(id), HappeningKind::Loss, text);
            return;
        }
        let why = match (again, is_final, self.rules.restart.limit) {
            (_, true, _) => "starting it again would not help".to_owned(),
            (Some(why), ..) => why,
            (None, _, 0) => "it is not to be started again".to_owned(),
            (None, _, 1) => "its one restart is used up".to_owned(),
            (None, _, n) => format!("its {n} restarts are used up"),
        };
        self.set(id, TaskPhase::Failed, now);
        self.say(
            now,
            Some(id),
            HappeningKind::Loss,
            format!("ended with {exit}{by}; {why}"),
        );
        self.fail(Outcome::Failed(id, exit));
    }

    fn interrupt(&mut self, signal: i32, now: Duration, out: &mut Vec<Effect>) {
        if self
            .interrupted
            .is_some_and(|at| now.saturating_sub(at) < SAME_REQUEST)
        {
            return;
        }
        self.interrupted = Some(now);
        self.interrupts += 1;
        let name = Exit::Signal(signal);
        // What was done, or has failed, stays so.
        if self.state.phase != JobPhase::Ending {
            self.fault = Some(Outcome::Interrupted(signal));
        }
        if self.interrupts == 1 {
            let text = format!(
                "interrupted by {name}: tasks are asked to end; once more ends them at once"
            );
            self.say(now, None, HappeningKind::Note, text);
            self.stop_all(now, out);
            return;
        }
        let text = format!("interrupted again by {name}: tasks are killed");
        self.say(now, None, HappeningKind::Note, text);
        let alive = self.having(|phase, _| phase.is_alive());
        out.extend(alive.into_iter().map(Effect::Kill));
    }

    fn kill(&mut self, id: TaskId, now: Duration, out: &mut Vec<Effect>) {
        if matches!(self.phase(id), TaskPhase::Starting | TaskPhase::Running) {
            self.tasks[id].is_victim = true;
            let text = "is killed, as was asked for".to_owned();
            self.say(now, Some(id), HappeningKind::Note, text);
            out.push(Effect::Kill(id));
        } else {
            let text = format!("is not killed: it is {}", self.phase(id));
            self.say(now, Some(id), HappeningKind::Note, text);
        }
    }

    /// Remembers who was at fault: the first, but a training's fault goes before an evaluator's.
    fn fail(&mut self, outcome: Outcome) {
        let is_weak = match &self.fault {
            None => true,
            Some(Outcome::Failed(id, _)) => self.state.tasks[*id].role == TaskRole::Evaluator,
            Some(_) => false,
        };
        if is_weak {
            self.fault = Some(outcome);
        }
    }

    fn phase(&self, id: TaskId) -> TaskPhase {
        self.state.tasks[id].phase
    }

    fn set(&mut self, id: TaskId, phase: TaskPhase, now: Duration) {
        let task = &mut self.state.tasks[id];
        task.phase = phase;
        task.since = now;
    }

    fn having(&self, is_meant: impl Fn(TaskPhase, TaskRole) -> bool) -> Vec<TaskId> {
        let tasks = self.state.tasks.iter().enumerate();
        let meant = tasks.filter(|(_, t)| is_meant(t.phase, t.role));
        meant.map(|(id, _)| id).collect()
    }

    fn say(&mut self, at: Duration, task: Option<TaskId>, kind: HappeningKind, text: String) {
        if self.state.happenings.len() == MAX_HAPPENINGS {
            self.state.happenings.pop_front();
            self.state.forgotten += 1;
        }
        let task = task.map(|id| self.state.tasks[id].name.clone());
        self.state.happenings.push_back(Happening {
            at,
            task,
            kind,
            text,
        });
    }
}
