//! The worker's machine under every order of a bounded set of events. The world around it executes
//! graphs, hands values over and does what the machine says, all in any order.

use super::*;
use downpour_sim::{World, explore};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Hash)]
struct Toy;

/// A call to the worker, by number.
type Call = u8;

impl Parts for Toy {
    type Session = u64;
    /// The session it was compiled for.
    type Graph = u64;
    type Rendezvous = u64;
    type Stop = Call;
    type Answer = Call;

    fn rendezvous(number: u64) -> u64 {
        number
    }
}

/// What masters and peers do, each once, in any order that makes sense to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Ask {
    Open(&'static str, u64),
    /// Looks the session up; compiling takes a while.
    Register(&'static str),
    Deregister(&'static str),
    Delete(&'static str),
    /// RunGraph of a step with a request id.
    Run(Call, u64, i64, Kind),
    /// RecvTensor of a step with a request id.
    Want(Call, u64, i64),
    Cleanup(u64),
    HangUp(Call),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    /// Ends when it likes, well or badly.
    Free,
    /// Waits for something that never comes: only a stop ends it.
    Stuck,
    /// One of two calls of a partial run; whether it is the last.
    Partial(bool),
}

/// What can happen.
#[derive(Clone, Debug)]
enum Happens {
    Ask(Ask),
    Compiled,
    /// The shell gets to one of the effects.
    Act(Act),
    /// An execution ends, well or not.
    End(RunId, bool),
    /// A call of a partial run has its value.
    Fetched(Call),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Act {
    Run(RunId, Call, u64),
    Continue(RunId, Call, u64),
    Meet(Call, u64),
    Stop(Call),
    Abort(u64),
    Answer(Call),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum CallState {
    Open,
    Answered,
    /// The caller has hung up.
    Gone,
}

#[derive(Clone, Default, Hash)]
struct Rendezvous {
    aborted: bool,
    has_value: bool,
    waiting: BTreeSet<Call>,
}

#[derive(Clone, Hash)]
struct Execution {
    call: Call,
    rendezvous: u64,
    kind: Kind,
}

#[derive(Clone, Hash)]
struct Cluster {
    machine: Lifecycle<Toy>,
    asks: &'static [Ask],
    /// Which of them are still to come, a bit each.
    left: u32,
    compiling: Option<(&'static str, SessionId, u64)>,
    acts: Vec<Act>,
    executing: BTreeMap<RunId, Execution>,
    rendezvous_of: BTreeMap<u64, Rendezvous>,
    calls: BTreeMap<Call, CallState>,
    /// Who was told to stop.
    stopped: BTreeSet<Call>,
    /// Partial calls that have fed and wait for their value: run, rendezvous.
    fetching: BTreeMap<Call, (RunId, u64)>,
    fed: u8,
    cleaned: BTreeSet<u64>,
}

impl Cluster {
    fn new(asks: &'static [Ask], bounds: Bounds) -> Cluster {
        Cluster {
            machine: Lifecycle::new("w", bounds),
            asks,
            left: (1 << asks.len()) - 1,
            compiling: None,
            acts: Vec::new(),
            executing: BTreeMap::new(),
            rendezvous_of: BTreeMap::new(),
            calls: BTreeMap::new(),
            stopped: BTreeSet::new(),
            fetching: BTreeMap::new(),
            fed: 0,
            cleaned: BTreeSet::new(),
        }
    }

    /// With a session `s` that has a graph.
    fn ready(asks: &'static [Ask], bounds: Bounds) -> Cluster {
        let mut cluster = Cluster::new(asks, bounds);
        for ask in [Ask::Open("s", 1), Ask::Register("s")] {
            cluster.ask(ask).unwrap();
        }
        cluster.apply(&Happens::Compiled).unwrap();
        cluster.left = (1 << asks.len()) - 1;
        cluster
    }

    fn makes_sense(&self, ask: &Ask) -> bool {
        match ask {
            Ask::Delete(s) => !self.will_open(s),
            Ask::HangUp(call) => self.calls.get(call) == Some(&CallState::Open),
            _ => true,
        }
    }

    fn will_open(&self, session: &str) -> bool {
        let opens = |a: &Ask| matches!(a, Ask::Open(s, _) if *s == session);
        self.left().any(opens)
    }

    fn left(&self) -> impl Iterator<Item = &Ask> {
        let left = |i: usize| self.left & (1 << i) != 0;
        self.asks
            .iter()
            .enumerate()
            .filter_map(move |(i, a)| left(i).then_some(a))
    }

    fn answer(&mut self, call: Call) -> Result<(), String> {
        match self.calls.get(&call) {
            Some(CallState::Open) => self.calls.insert(call, CallState::Answered),
            Some(CallState::Gone) => None,
            other => return Err(format!("call {call} is answered while it is {other:?}")),
        };
        Ok(())
    }

    fn tell(&mut self, call: Call, event: Event<'_, Toy>) -> Result<(), String> {
        for effect in self.machine.step(event) {
            let act = match effect {
                Effect::Run {
                    run, rendezvous, ..
                } => Act::Run(run, call, rendezvous.unwrap_or(0)),
                Effect::Continue { run, rendezvous } => Act::Continue(run, call, rendezvous),
                Effect::Meet(rendezvous) => Act::Meet(call, rendezvous),
                Effect::Refuse(_) => Act::Answer(call),
                Effect::Answer(call, _) => Act::Answer(call),
                Effect::Stop(call, _) => {
                    if self.acts.contains(&Act::Stop(call)) || self.stopped.contains(&call) {
                        return Err(format!("call {call} is told to stop twice"));
                    }
                    Act::Stop(call)
                }
                Effect::Abort(rendezvous, _) => Act::Abort(rendezvous),
                Effect::Registered(_) | Effect::FreeSession(_) | Effect::FreeGraph(_) => continue,
            };
            self.acts.push(act);
        }
        self.acts.sort();
        self.acts.dedup();
        Ok(())
    }

    fn ask(&mut self, ask: Ask) -> Result<(), String> {
        if let Some(i) = self.asks.iter().position(|a| *a == ask) {
            self.left &= !(1 << i);
        }
        let nobody = Call::MAX;
        match ask {
            Ask::Open(handle, session) => {
                let master = ("m".to_owned(), session);
                let event = Event::Open {
                    handle,
                    master,
                    session,
                };
                self.tell(nobody, event)
            }
            Ask::Register(handle) => {
                if let Ok((id, session)) = self.machine.session(handle) {
                    self.compiling = Some((handle, id, *session));
                }
                Ok(())
            }
            Ask::Deregister(handle) => self.tell(nobody, Event::Deregister { handle, graph: 1 }),
            Ask::Delete(handle) => self.tell(nobody, Event::Delete { handle }),
            Ask::Run(call, step_id, request_id, kind) => {
                self.calls.insert(call, CallState::Open);
                let start = Start {
                    session: "s",
                    graph: 1,
                    step_id,
                    shared: true,
                    partial: matches!(kind, Kind::Partial(_)),
                    request_id,
                };
                self.tell(call, Event::Start(start, call))
            }
            Ask::Want(call, step_id, request_id) => {
                self.calls.insert(call, CallState::Open);
                let event = Event::Want {
                    step_id,
                    request_id,
                };
                self.tell(call, event)
            }
            Ask::Cleanup(step_id) => {
                self.cleaned.insert(step_id);
                self.tell(nobody, Event::Cleanup { step_id })
            }
            Ask::HangUp(call) => self.hang_up(call),
        }
    }

    fn hang_up(&mut self, call: Call) -> Result<(), String> {
        self.calls.insert(call, CallState::Gone);
        let executing = self.executing.iter().find(|(_, e)| e.call == call);
        let begins = |a: &Act| match a {
            Act::Run(run, c, _) | Act::Continue(run, c, _) if *c == call => Some(*run),
            _ => None,
        };
        let run = executing
            .map(|(run, _)| *run)
            .or_else(|| self.fetching.remove(&call).map(|(run, _)| run))
            .or_else(|| self.acts.iter().find_map(begins));
        self.acts
            .retain(|a| !matches!(a, Act::Continue(_, c, _) | Act::Meet(c, _) if *c == call));
        for rendezvous in self.rendezvous_of.values_mut() {
            rendezvous.waiting.remove(&call);
        }
        let reason = Status::cancelled("hung up");
        match run {
            Some(run) => self.tell(call, Event::Stop { run, reason }),
            None => Ok(()),
        }
    }

    fn kind(&self, call: Call) -> Kind {
        let kind = |a: &Ask| match a {
            Ask::Run(c, _, _, kind) if *c == call => Some(*kind),
            _ => None,
        };
        self.asks.iter().find_map(kind).unwrap()
    }

    fn act(&mut self, act: Act) -> Result<(), String> {
        self.acts.retain(|a| *a != act);
        match act {
            Act::Run(run, call, rendezvous) => {
                let kind = self.kind(call);
                self.executing.insert(
                    run,
                    Execution {
                        call,
                        rendezvous,
                        kind,
                    },
                );
                self.rendezvous_of.entry(rendezvous).or_default();
                if matches!(kind, Kind::Partial(_)) && self.calls[&call] == CallState::Open {
                    self.feed(run, call, rendezvous);
                }
            }
            Act::Continue(run, call, rendezvous) => self.feed(run, call, rendezvous),
            Act::Meet(call, rendezvous) => {
                let rendezvous = self.rendezvous_of.entry(rendezvous).or_default();
                if rendezvous.aborted || rendezvous.has_value {
                    rendezvous.has_value = false;
                    return self.answer(call);
                }
                rendezvous.waiting.insert(call);
            }
            Act::Stop(call) => {
                self.stopped.insert(call);
            }
            Act::Abort(rendezvous) => {
                let rendezvous = self.rendezvous_of.entry(rendezvous).or_default();
                rendezvous.aborted = true;
                for call in std::mem::take(&mut rendezvous.waiting) {
                    self.answer(call)?;
                }
            }
            Act::Answer(call) => return self.answer(call),
        }
        Ok(())
    }

    fn feed(&mut self, run: RunId, call: Call, rendezvous: u64) {
        self.fed += 1;
        self.fetching.insert(call, (run, rendezvous));
    }

    fn end(&mut self, run: RunId, well: bool) -> Result<(), String> {
        let Some(execution) = self.executing.remove(&run) else {
            return Err("an unknown execution ended".into());
        };
        let rendezvous = self.rendezvous_of.entry(execution.rendezvous).or_default();
        if well && !rendezvous.aborted {
            match rendezvous.waiting.pop_first() {
                Some(call) => self.answer(call)?,
                None => rendezvous.has_value = true,
            }
        } else if !well {
            // The executor fails whoever waits for values of the step.
            rendezvous.aborted = true;
            for call in std::mem::take(&mut rendezvous.waiting) {
                self.answer(call)?;
            }
        }
        let error = (!well).then(|| Status::internal("failed"));
        self.tell(execution.call, Event::Finished { run, error })?;
        match execution.kind {
            Kind::Partial(_) => Ok(()),
            _ => self.answer(execution.call),
        }
    }

    fn can_end(&self, execution: &Execution) -> (bool, bool) {
        match execution.kind {
            Kind::Free => (true, true),
            Kind::Stuck => (false, self.stopped.contains(&execution.call)),
            Kind::Partial(_) => (self.fed == 2, true),
        }
    }

    fn has_begun(&self, run: RunId) -> bool {
        let pending = |a: &Act| matches!(a, Act::Run(r, ..) if *r == run);
        self.executing.contains_key(&run) || self.acts.iter().any(pending)
    }
}

impl World for Cluster {
    type Event = Happens;

    fn events(&self) -> Vec<Happens> {
        let asks = self.left().filter(|a| self.makes_sense(a));
        let mut all: Vec<Happens> = asks.copied().map(Happens::Ask).collect();
        all.extend(self.compiling.map(|_| Happens::Compiled));
        all.extend(self.acts.iter().copied().map(Happens::Act));
        for (run, execution) in &self.executing {
            let (well, badly) = self.can_end(execution);
            all.extend(well.then_some(Happens::End(*run, true)));
            all.extend(badly.then_some(Happens::End(*run, false)));
        }
        // The execution sends what a call asks for as soon as it is fed, unless it has failed.
        all.extend(self.fetching.keys().copied().map(Happens::Fetched));
        all
    }

    fn apply(&mut self, event: &Happens) -> Result<(), String> {
        match *event {
            Happens::Ask(ask) => self.ask(ask),
            Happens::Compiled => {
                let Some((handle, session, graph)) = self.compiling.take() else {
                    return Ok(());
                };
                let event = Event::Compiled {
                    handle,
                    session,
                    graph,
                };
                self.machine.step(event);
                Ok(())
            }
            Happens::Act(act) => self.act(act),
            Happens::End(run, well) => self.end(run, well),
            Happens::Fetched(call) => {
                let Some((run, rendezvous)) = self.fetching.remove(&call) else {
                    return Ok(());
                };
                let failed = self
                    .rendezvous_of
                    .get(&rendezvous)
                    .is_some_and(|p| p.aborted);
                if self.kind(call) != Kind::Partial(true) {
                    return self.answer(call);
                }
                let event = Event::Last {
                    run,
                    error: failed.then(|| Status::aborted("no value")),
                    answer: call,
                };
                self.tell(call, event)
            }
        }
    }

    fn check(&self) -> Result<(), String> {
        let machine = &self.machine;
        let rules = [
            (
                machine.idle.len() <= machine.bounds.idle,
                "too many idle steps",
            ),
            (
                machine.cleaned.len() <= machine.bounds.cleaned,
                "too many ended steps",
            ),
            (
                machine.recent.len() <= machine.bounds.requests,
                "too many requests",
            ),
        ];
        if let Some((_, rule)) = rules.iter().find(|(holds, _)| !holds) {
            return Err((*rule).to_owned());
        }
        for (since, id) in &machine.idle {
            let phase = machine.steps.get(id).map(|m| m.phase);
            if phase != Some(Phase::Early(*since)) && phase != Some(Phase::Left(*since)) {
                return Err(format!("step {id} counts as idle but is {phase:?}"));
            }
        }
        for session in machine.sessions.values() {
            if session.graphs.values().any(|g| *g != session.value) {
                return Err("a session has a graph of another".into());
            }
        }
        for (id, meeting) in &machine.steps {
            let runs = |r: &RunId| {
                let run = machine.runs.get(r);
                run.is_some_and(|run| !matches!(run.phase, RunPhase::Over(_)))
            };
            if !meeting.runs.iter().all(runs) {
                return Err(format!("step {id} counts a run that is over"));
            }
            let is_idle = match meeting.phase {
                Phase::Running => false,
                Phase::Early(since) | Phase::Left(since) => machine.idle.get(&since) == Some(id),
            };
            if is_idle != meeting.runs.is_empty() {
                return Err(format!(
                    "step {id} is {:?} with {:?}",
                    meeting.phase, meeting.runs
                ));
            }
            if machine.cleaned.contains(*id as i64) {
                return Err(format!("step {id} is kept although it was cleaned up"));
            }
        }
        for (id, run) in &machine.runs {
            let over = matches!(run.phase, RunPhase::Over(_));
            if over == self.has_begun(*id) {
                return Err(format!("the machine is wrong about {id:?}"));
            }
            if run.step.is_some_and(|s| !machine.steps.contains_key(&s)) {
                return Err(format!("the step of {id:?} was forgotten while it ran"));
            }
        }
        let known = self
            .executing
            .keys()
            .all(|run| machine.runs.contains_key(run));
        known
            .then_some(())
            .ok_or_else(|| "an execution was forgotten".into())
    }

    fn check_end(&self) -> Result<(), String> {
        if let Some((call, state)) = self.calls.iter().find(|(_, s)| **s == CallState::Open) {
            return Err(format!("call {call} is {state:?} in the end"));
        }
        let machine = &self.machine;
        if !machine.runs.is_empty() || !self.executing.is_empty() {
            return Err("something runs in the end".into());
        }
        let kept = machine.steps.keys().find(|s| self.cleaned.contains(s));
        if let Some(step) = kept.filter(|_| machine.bounds.cleaned > 1) {
            return Err(format!("step {step} is left in the end"));
        }
        for session in machine.sessions.keys() {
            let deletes = |a: &Ask| matches!(a, Ask::Delete(s) if s == session);
            if self.asks.iter().any(deletes) && !self.left().any(deletes) {
                return Err(format!("session {session} is left in the end"));
            }
        }
        Ok(())
    }
}

const WIDE: Bounds = Bounds {
    idle: 4,
    cleaned: 4,
    requests: 8,
};

#[track_caller]
fn holds(what: &str, cluster: Cluster) {
    let asks = cluster.asks.len();
    match explore(cluster, 200_000) {
        Ok(seen) => println!("worker, {what}: {asks} requests in every order: {seen:?}"),
        Err(history) => panic!("{what}: {history}"),
    }
}

#[test]
fn a_step_from_opening_to_closing() {
    let asks = &[
        Ask::Open("s", 1),
        Ask::Register("s"),
        Ask::Run(1, 7, 11, Kind::Free),
        Ask::Run(2, 7, 11, Kind::Free),
        Ask::Want(3, 7, 12),
        Ask::Want(4, 7, 12),
        Ask::Cleanup(7),
        Ask::Deregister("s"),
        Ask::Delete("s"),
    ];
    holds("one step with repeated requests", Cluster::new(asks, WIDE));
}

#[test]
fn steps_that_wait_for_ever_are_ended() {
    let asks = &[
        Ask::Run(1, 7, 11, Kind::Stuck),
        Ask::Run(2, 8, 12, Kind::Free),
        Ask::Want(3, 7, 13),
        Ask::HangUp(1),
        Ask::Cleanup(7),
        Ask::Delete("s"),
    ];
    holds("two steps, one stuck", Cluster::ready(asks, WIDE));
}

#[test]
fn cleaning_up_alone_ends_a_step() {
    let asks = &[
        Ask::Run(1, 7, 11, Kind::Stuck),
        Ask::Run(2, 7, 12, Kind::Partial(true)),
        Ask::Want(3, 7, 13),
        Ask::Cleanup(7),
    ];
    holds("one step, only cleaned up", Cluster::ready(asks, WIDE));
}

#[test]
fn a_partial_run() {
    let asks = &[
        Ask::Run(1, 7, 11, Kind::Partial(false)),
        Ask::Run(2, 7, 12, Kind::Partial(true)),
        Ask::Want(3, 7, 13),
        Ask::HangUp(2),
        Ask::Cleanup(7),
        Ask::Delete("s"),
    ];
    holds("a partial run of two calls", Cluster::ready(asks, WIDE));
}

#[test]
fn memory_is_bounded_and_a_running_step_is_never_forgotten() {
    let bounds = Bounds {
        idle: 1,
        cleaned: 1,
        requests: 2,
    };
    let asks = &[
        Ask::Run(1, 7, 11, Kind::Stuck),
        Ask::Want(2, 7, 12),
        Ask::Want(3, 8, 13),
        Ask::Want(4, 9, 14),
        Ask::HangUp(1),
        Ask::HangUp(2),
        Ask::HangUp(3),
        Ask::HangUp(4),
    ];
    holds("room for one idle step", Cluster::ready(asks, bounds));
}

#[test]
fn a_master_that_comes_back_ends_what_its_earlier_life_left() {
    let asks = &[
        Ask::Run(1, 7, 11, Kind::Stuck),
        Ask::Run(2, 8, 12, Kind::Free),
        Ask::Open("t", 2),
        Ask::Delete("t"),
    ];
    holds("a master's second life", Cluster::ready(asks, WIDE));
}

#[test]
fn a_session_that_is_opened_anew_starts_from_nothing() {
    let asks = &[
        Ask::Run(1, 7, 11, Kind::Stuck),
        Ask::Register("s"),
        Ask::Deregister("s"),
        Ask::Open("s", 2),
        Ask::Run(2, 8, 12, Kind::Stuck),
        Ask::Delete("s"),
    ];
    holds("a session's second life", Cluster::ready(asks, WIDE));
}
