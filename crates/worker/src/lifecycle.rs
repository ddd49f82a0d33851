//! The life of a worker's sessions, graphs and steps as a state machine: an [`Event`] in, what the
//! shell must do out. No I/O, no lock, no clock; the same state and event give the same effects in
//! the same order.
//!
//! `worker.rs` is the shell: it holds the one lock around the machine, acts outside it, and decides
//! nothing. What must hold is checked over every order of events in `lifecycle/explored.rs`.

use downpour_graph::{Result, Status};
use downpour_net::{RecentIds, StepState};
use smallvec::{SmallVec, smallvec};
use std::collections::BTreeMap;

#[cfg(test)]
mod exhaustive_tests;

/// What the machine passes on without looking inside.
pub(crate) trait Parts {
    /// A session's devices, functions and kernels.
    type Session: Clone;
    /// A compiled graph.
    type Graph: Clone;
    /// Where the values of a shared step meet.
    type Rendezvous: Clone;
    /// Ends an execution early.
    type Stop: Clone;
    /// Takes the outcome of a partial run.
    type Answer;

    /// A new rendezvous, the `number`th.
    fn rendezvous(number: u64) -> Self::Rendezvous;
}

/// One execution of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RunId(u64);

/// One life of a session: a handle may come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SessionId(u64);

/// What a master asks to run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start<'a> {
    pub(crate) session: &'a str,
    pub(crate) graph: u64,
    pub(crate) step_id: u64,
    /// Whether other tasks, or calls, meet this one's values.
    pub(crate) shared: bool,
    /// One of several calls that feed and fetch the same execution.
    pub(crate) partial: bool,
    /// 0 when the master does not care about repeats.
    pub(crate) request_id: i64,
}

/// What happened. Every trigger is listed here.
pub(crate) enum Event<'a, P: Parts> {
    /// A master opened a session. Those of an earlier life of the same master end.
    Open {
        handle: &'a str,
        master: (String, u64),
        session: P::Session,
    },
    /// Its master closed a session.
    Delete { handle: &'a str },
    /// A graph was compiled for a session.
    Compiled {
        handle: &'a str,
        session: SessionId,
        graph: P::Graph,
    },
    /// A master is done with a graph.
    Deregister { handle: &'a str, graph: u64 },
    /// A master starts its part of a step, or goes on with one.
    Start(Start<'a>, P::Stop),
    /// An execution is over.
    Finished { run: RunId, error: Option<Status> },
    /// Whoever started an execution has gone, or wants it to end.
    Stop { run: RunId, reason: Status },
    /// The last call of a partial run has its values, or failed.
    Last {
        run: RunId,
        error: Option<Status>,
        answer: P::Answer,
    },
    /// A peer wants a value of a step.
    Want { step_id: u64, request_id: i64 },
    /// The master says that all parts of a step are over.
    Cleanup { step_id: u64 },
}

/// What the shell must now do.
pub(crate) enum Effect<P: Parts> {
    /// Execute, then report [`Event::Finished`].
    Run {
        run: RunId,
        session: P::Session,
        graph: P::Graph,
        /// `None`: the values of this step meet nowhere else.
        rendezvous: Option<P::Rendezvous>,
    },
    /// Feed and fetch an execution that is under way.
    Continue {
        run: RunId,
        rendezvous: P::Rendezvous,
    },
    /// The value will be, or is, at this rendezvous.
    Meet(P::Rendezvous),
    /// The number of a new graph.
    Registered(u64),
    /// Answer the call with this error.
    Refuse(Status),
    /// Answer the last call of a partial run, with this error if any.
    Answer(P::Answer, Option<Status>),
    /// Tell an execution to end.
    Stop(P::Stop, Status),
    /// Fail whoever waits at a rendezvous.
    Abort(P::Rendezvous, Status),
    /// Let go of a session.
    FreeSession(P::Session),
    /// Let go of a graph.
    FreeGraph(P::Graph),
}

/// Mostly one.
pub(crate) type Effects<P> = SmallVec<[Effect<P>; 1]>;

/// How much may be remembered for masters and peers that never come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Bounds {
    /// Steps that nobody runs here: wanted early, or left behind.
    pub(crate) idle: usize,
    /// Steps that are known to be over.
    pub(crate) cleaned: usize,
    /// Request ids.
    pub(crate) requests: usize,
}

/// The machine.
#[derive(Clone, Hash)]
pub(crate) struct Lifecycle<P: Parts> {
    /// The task, for texts.
    name: String,
    bounds: Bounds,
    recent: RecentIds,
    sessions: BTreeMap<String, Session<P::Session, P::Graph>>,
    runs: BTreeMap<RunId, Run<P::Stop, P::Answer>>,
    steps: BTreeMap<u64, Meeting<P::Rendezvous>>,
    /// Idle steps by when they became so.
    idle: BTreeMap<u64, u64>,
    cleaned: RecentIds,
    next: Counters,
}

#[derive(Clone, Default, Hash)]
struct Counters {
    session: u64,
    run: u64,
    rendezvous: u64,
    idle: u64,
}

#[derive(Clone, Hash)]
struct Session<S, G> {
    id: SessionId,
    /// `(task, incarnation)` of the master it belongs to.
    master: (String, u64),
    value: S,
    graphs: BTreeMap<u64, G>,
    next_graph: u64,
}

/// One execution of a graph.
#[derive(Clone, Hash)]
struct Run<C, A> {
    session: SessionId,
    /// The shared step it is part of, until that is cleaned up.
    step: Option<u64>,
    stop: C,
    /// Whether it was told to end.
    stopping: bool,
    phase: RunPhase<A>,
}

/// ```text
///             Finished, whole step
///   Running ─────────────────────────────────────► gone
///      │ Finished, partial            Last, Cleanup
///      ├───────────────────► Over ───────────────► gone (the last call is answered)
///      │ Last                         Finished
///      └───────────────────► Last ───────────────► gone (the last call is answered)
///   Running, Last ── Stop, Cleanup, Delete: told to end, once ──► the same
/// ```
#[derive(Clone, Hash)]
enum RunPhase<A> {
    Running,
    /// A partial run whose last call is still to come.
    Over(Option<Status>),
    /// A partial run whose last call waits for the execution.
    Last(A, Option<Status>),
}

/// Where the values of a shared step meet.
#[derive(Clone, Hash)]
struct Meeting<L> {
    rendezvous: L,
    phase: Phase,
    runs: SmallVec<[RunId; 1]>,
    /// The execution that further calls of a partial run go on with.
    partial: Option<RunId>,
}

/// ```text
///              Want            Start            Finished (all runs)
///   unknown ────────► Early ──────────► Running ───────────────────► Left
///      └────────────────────── Start ─────► ▲ ◄──────── Start ────────┘
///   any ── Cleanup ──► cleaned: whoever comes now is refused, while it is remembered
///   Early, Left ── too many of them, the oldest goes ──► cleaned
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// Peers wait for values; the master has not asked for anything yet. Idle since.
    Early(u64),
    Running,
    /// Over here; peers may still come for values. Idle since.
    Left(u64),
}

impl<P: Parts> Lifecycle<P> {
    pub(crate) fn new(name: &str, bounds: Bounds) -> Self {
        Lifecycle {
            name: name.to_owned(),
            bounds,
            recent: RecentIds::new(bounds.requests),
            sessions: BTreeMap::new(),
            runs: BTreeMap::new(),
            steps: BTreeMap::new(),
            idle: BTreeMap::new(),
            cleaned: RecentIds::new(bounds.cleaned),
            next: Counters::default(),
        }
    }

    /// Where values of a shared step meet, if it is known.
    pub(crate) fn rendezvous(&self, step_id: u64) -> Option<P::Rendezvous> {
        self.steps.get(&step_id).map(|m| m.rendezvous.clone())
    }

    /// What is known of a shared step.
    pub(crate) fn state(&self, step_id: u64) -> StepState {
        match self.steps.get(&step_id).map(|m| m.phase) {
            Some(Phase::Running) => StepState::Running,
            Some(Phase::Left(_)) => StepState::Over,
            Some(Phase::Early(_)) => StepState::Unknown,
            None if self.cleaned.contains(step_id as i64) => StepState::Over,
            None => StepState::Unknown,
        }
    }

    /// Finds a session.
    pub(crate) fn session(&self, handle: &str) -> Result<(SessionId, &P::Session)> {
        let session = self.known(handle)?;
        Ok((session.id, &session.value))
    }

    fn known(&self, handle: &str) -> Result<&Session<P::Session, P::Graph>> {
        self.sessions.get(handle).ok_or_else(|| {
            Status::aborted(format!(
                "Session handle is not found: {handle}. Possibly this worker (\"{}\") just restarted.",
                self.name
            ))
        })
    }

    /// Advances by one event.
    pub(crate) fn step(&mut self, event: Event<'_, P>) -> Effects<P> {
        match event {
            Event::Open {
                handle,
                master,
                session,
            } => self.open(handle, master, session),
            Event::Delete { handle } => self.delete(handle),
            Event::Compiled {
                handle,
                session,
                graph,
            } => self.compiled(handle, session, graph),
            Event::Deregister { handle, graph } => {
                let session = self.sessions.get_mut(handle);
                let gone = session.and_then(|s| s.graphs.remove(&graph));
                gone.into_iter().map(Effect::FreeGraph).collect()
            }
            Event::Start(start, stop) => match self.start(start, stop) {
                Ok(effect) => smallvec![effect],
                Err(e) => smallvec![Effect::Refuse(e)],
            },
            Event::Finished { run, error } => self.finished(run, error),
            Event::Stop { run, reason } => self.stop(run, &reason),
            Event::Last { run, error, answer } => self.last(run, error, answer),
            Event::Want {
                step_id,
                request_id,
            } => self.want(step_id, request_id),
            Event::Cleanup { step_id } => {
                let reason = cleaned_up(step_id);
                self.clean(step_id, &reason)
            }
        }
    }

    fn open(&mut self, handle: &str, master: (String, u64), value: P::Session) -> Effects<P> {
        let mut out = self.delete(handle);
        if !master.0.is_empty() {
            let dead: Vec<String> = self
                .sessions
                .iter()
                .filter(|(_, s)| s.master.0 == master.0 && s.master.1 != master.1)
                .map(|(handle, _)| handle.clone())
                .collect();
            for handle in dead {
                out.extend(self.delete(&handle));
            }
        }
        self.next.session += 1;
        let session = Session {
            id: SessionId(self.next.session),
            master,
            value,
            graphs: BTreeMap::new(),
            next_graph: 0,
        };
        self.sessions.insert(handle.to_owned(), session);
        out
    }

    fn delete(&mut self, handle: &str) -> Effects<P> {
        let mut out = Effects::new();
        let Some(gone) = self.sessions.remove(handle) else {
            return out;
        };
        let runs: SmallVec<[RunId; 4]> = self
            .runs
            .iter()
            .filter(|(_, run)| run.session == gone.id)
            .map(|(id, _)| *id)
            .collect();
        let reason = Status::aborted(format!(
            "Session {handle} was deleted on {} while its step was running.",
            self.name
        ));
        for run in runs {
            out.extend(self.stop(run, &reason));
        }
        out.extend(gone.graphs.into_values().map(Effect::FreeGraph));
        out.push(Effect::FreeSession(gone.value));
        out
    }

    fn compiled(&mut self, handle: &str, id: SessionId, graph: P::Graph) -> Effects<P> {
        // The session may have ended, and even come back, while its graph was compiled.
        let gone = match self.known(handle) {
            Ok(session) if session.id == id => None,
            Ok(_) => Some(Status::aborted(format!(
                "Session {handle} was opened anew while its graph was registered."
            ))),
            Err(e) => Some(e),
        };
        if let Some(e) = gone {
            return smallvec![Effect::Refuse(e), Effect::FreeGraph(graph)];
        }
        let Some(session) = self.sessions.get_mut(handle) else {
            return Effects::new();
        };
        session.next_graph += 1;
        session.graphs.insert(session.next_graph, graph);
        smallvec![Effect::Registered(session.next_graph)]
    }

    fn start(&mut self, start: Start<'_>, stop: P::Stop) -> Result<Effect<P>> {
        let step_id = start.step_id;
        let what = match start.partial {
            true => "PartialRunGraph (Worker)",
            false => "RunGraph (Worker)",
        };
        let detail = || format!("step_id: {step_id}");
        self.recent.admit(start.request_id, what, detail)?;
        let session = self.known(start.session)?;
        if start.shared && self.cleaned.contains(step_id as i64) {
            return Err(cleaned_up(step_id));
        }
        if start.partial
            && let Some(meeting) = self.steps.get(&step_id)
            && let Some(run) = meeting.partial
        {
            let rendezvous = meeting.rendezvous.clone();
            return Ok(Effect::Continue { run, rendezvous });
        }
        let unknown =
            || Status::aborted(format!("Graph handle is not found: {:016x}", start.graph));
        let graph = session.graphs.get(&start.graph).ok_or_else(unknown)?;
        let (id, session, graph) = (session.id, session.value.clone(), graph.clone());
        self.next.run += 1;
        let run = RunId(self.next.run);
        let mut rendezvous = None;
        if start.shared {
            let meeting = Self::meeting(&mut self.steps, &mut self.next, step_id);
            if let Phase::Early(since) | Phase::Left(since) = meeting.phase {
                self.idle.remove(&since);
            }
            if start.partial {
                meeting.partial = Some(run);
            }
            meeting.phase = Phase::Running;
            meeting.runs.push(run);
            rendezvous = Some(meeting.rendezvous.clone());
        }
        let made = Run {
            session: id,
            step: start.shared.then_some(step_id),
            stop,
            stopping: false,
            phase: RunPhase::Running,
        };
        self.runs.insert(run, made);
        Ok(Effect::Run {
            run,
            session,
            graph,
            rendezvous,
        })
    }

    /// The step's rendezvous, made by whoever comes first.
    fn meeting<'a>(
        steps: &'a mut BTreeMap<u64, Meeting<P::Rendezvous>>,
        next: &mut Counters,
        step_id: u64,
    ) -> &'a mut Meeting<P::Rendezvous> {
        steps.entry(step_id).or_insert_with(|| {
            next.rendezvous += 1;
            Meeting {
                rendezvous: P::rendezvous(next.rendezvous),
                phase: Phase::Running,
                runs: SmallVec::new(),
                partial: None,
            }
        })
    }

    fn want(&mut self, step_id: u64, request_id: i64) -> Effects<P> {
        let what = "RecvTensor (WorkerService)";
        let detail = || format!("step_id: {step_id}");
        if let Err(e) = self.recent.admit(request_id, what, detail) {
            return smallvec![Effect::Refuse(e)];
        }
        if self.cleaned.contains(step_id as i64) {
            return smallvec![Effect::Refuse(cleaned_up(step_id))];
        }
        let meeting = Self::meeting(&mut self.steps, &mut self.next, step_id);
        let rendezvous = meeting.rendezvous.clone();
        let mut out: Effects<P> = smallvec![Effect::Meet(rendezvous)];
        if meeting.runs.is_empty() && meeting.phase == Phase::Running {
            self.next.idle += 1;
            meeting.phase = Phase::Early(self.next.idle);
            self.idle.insert(self.next.idle, step_id);
            out.extend(self.make_room());
        }
        out
    }

    fn finished(&mut self, id: RunId, error: Option<Status>) -> Effects<P> {
        let mut out = Effects::new();
        let Some(run) = self.runs.get_mut(&id) else {
            return out;
        };
        let step = run.step;
        let meeting = step.and_then(|step| self.steps.get_mut(&step));
        let is_partial = meeting.as_ref().is_some_and(|m| m.partial == Some(id));
        if is_partial && matches!(run.phase, RunPhase::Running) {
            run.phase = RunPhase::Over(error);
        } else if let Some(run) = self.runs.remove(&id)
            && let RunPhase::Last(answer, failed) = run.phase
        {
            out.push(Effect::Answer(answer, error.or(failed)));
        }
        let Some(meeting) = meeting else {
            return out;
        };
        if !self.runs.contains_key(&id) && is_partial {
            meeting.partial = None;
        }
        meeting.runs.retain(|r| *r != id);
        if meeting.runs.is_empty() {
            self.next.idle += 1;
            meeting.phase = Phase::Left(self.next.idle);
            self.idle.extend(step.map(|step| (self.next.idle, step)));
            out.extend(self.make_room());
        }
        out
    }

    fn stop(&mut self, id: RunId, reason: &Status) -> Effects<P> {
        let mut out = Effects::new();
        let Some(run) = self.runs.get_mut(&id) else {
            return out;
        };
        if run.stopping || matches!(run.phase, RunPhase::Over(_)) {
            return out;
        }
        run.stopping = true;
        out.push(Effect::Stop(run.stop.clone(), reason.clone()));
        if let Some(meeting) = run.step.and_then(|step| self.steps.get(&step)) {
            // Peers wait for values that will not come.
            let rendezvous = meeting.rendezvous.clone();
            out.push(Effect::Abort(rendezvous, reason.clone().as_derived()));
        }
        out
    }

    fn last(&mut self, id: RunId, error: Option<Status>, answer: P::Answer) -> Effects<P> {
        let Some(run) = self.runs.get_mut(&id) else {
            let gone = || Status::aborted("The partial run is over.").as_derived();
            return smallvec![Effect::Answer(answer, Some(error.unwrap_or_else(gone)))];
        };
        match &mut run.phase {
            RunPhase::Running => {
                run.phase = RunPhase::Last(answer, error);
                Effects::new()
            }
            RunPhase::Over(failed) => {
                let outcome = failed.take().or(error);
                let step = run.step;
                self.runs.remove(&id);
                if let Some(meeting) = step.and_then(|step| self.steps.get_mut(&step)) {
                    meeting.partial = None;
                }
                smallvec![Effect::Answer(answer, outcome)]
            }
            RunPhase::Last(..) => {
                let twice = Status::invalid_argument("A partial run ended twice.");
                smallvec![Effect::Answer(answer, Some(twice))]
            }
        }
    }

    /// Forgets a step. Whoever still waits for a value of it hears so; what still runs is ended.
    fn clean(&mut self, step_id: u64, reason: &Status) -> Effects<P> {
        self.cleaned.insert(step_id as i64);
        let mut out = Effects::new();
        let Some(gone) = self.steps.remove(&step_id) else {
            return out;
        };
        if let Phase::Early(since) | Phase::Left(since) = gone.phase {
            self.idle.remove(&since);
        }
        for id in &gone.runs {
            out.extend(self.stop(*id, reason));
            if let Some(run) = self.runs.get_mut(id) {
                run.step = None;
            }
        }
        if let Some(id) = gone.partial
            && let Some(run) = self.runs.get(&id)
            && matches!(run.phase, RunPhase::Over(_))
        {
            self.runs.remove(&id);
        }
        out.push(Effect::Abort(gone.rendezvous, reason.clone()));
        out
    }

    fn make_room(&mut self) -> Effects<P> {
        let mut out = Effects::new();
        while self.idle.len() > self.bounds.idle
            && let Some((_, step)) = self.idle.pop_first()
        {
            let reason = Status::aborted("the step was forgotten: too many are open");
            out.extend(self.clean(step, &reason));
        }
        out
    }
}

/// What TensorFlow tells whoever asks for a value of a step that is over.
fn cleaned_up(step_id: u64) -> Status {
    Status::aborted(format!("Cleanup {step_id}")).as_derived()
}
