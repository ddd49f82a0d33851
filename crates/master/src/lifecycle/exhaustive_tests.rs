//! A session and its steps under every order of a bounded set of events: requests, parts that end
//! well, fail or hang, tasks that are lost, clients that leave, deadlines, the end of the session.

use super::*;
use crate::step::{Effect as StepEffect, Event as StepEvent, Outcome, Step};
use downpour_graph::Code;
use downpour_sim::{World, explore};
use std::collections::BTreeSet;

/// How a part behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    /// Ends well when it likes.
    Ends,
    /// Ends well or fails when it likes.
    MayFail,
    /// Waits for something that never comes: ends when it is stopped or its task is lost.
    Stuck,
}

/// A step's parts: task and kind.
type Parts = &'static [(usize, Kind)];

/// What clients and the cluster do, each once, in any order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Ask {
    Run(usize),
    /// The client of a step leaves.
    Leave(usize),
    /// The time of a step is over.
    Late(usize),
    /// Builds on a version; several may at once.
    Extend(i64, u8),
    Close,
    /// A reset, or a lease that has run out, beside the client's own close.
    CloseAgain,
    Lose(usize),
}

#[derive(Clone, Debug)]
enum Happens {
    Ask(Ask),
    /// The shell goes on with what it has to do for one event.
    Act(usize),
    /// The next part of a step goes out.
    Launch(usize),
    /// Its canceller is known.
    Launched(usize, usize),
    /// All parts are out: the session is told how to end the step.
    Attach(usize),
    End(usize, usize, Option<Status>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Act {
    Stop(usize, usize),
    /// The session ends a step.
    Cancel(usize),
    Cleanup(usize),
    Answer(usize),
    Over(usize),
    Delete,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Call {
    Unsent,
    Open,
    Answered,
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Part {
    Unsent,
    /// On its way, before its canceller is known.
    Sent,
    Running,
    Over,
}

#[derive(Clone, Hash)]
struct Run {
    call: Call,
    in_use: Option<UseId>,
    step: Step,
    parts: Vec<Part>,
    stopped: Vec<bool>,
    attached: bool,
    cleanups: u8,
    /// Whether a failure is known that is no consequence of another.
    is_real: bool,
    all_well: bool,
    late: bool,
}

#[derive(Clone, Hash)]
struct Cluster {
    kinds: &'static [Parts],
    asks: &'static [Ask],
    left: u32,
    life: Lifecycle<usize>,
    runs: Vec<Run>,
    acts: Vec<Vec<Act>>,
    lost: BTreeSet<usize>,
    closed: bool,
    deleted: u8,
    extended: u8,
}

fn closing() -> Status {
    Status::cancelled("closed")
}

impl Cluster {
    fn new(kinds: &'static [Parts], asks: &'static [Ask]) -> Cluster {
        let run = |parts: &Parts| Run {
            call: Call::Unsent,
            in_use: None,
            step: Step::new(parts.len()),
            parts: vec![Part::Unsent; parts.len()],
            stopped: vec![false; parts.len()],
            attached: false,
            cleanups: 0,
            is_real: false,
            all_well: true,
            late: false,
        };
        Cluster {
            kinds,
            asks,
            left: (1 << asks.len()) - 1,
            life: Lifecycle::new(),
            runs: kinds.iter().map(run).collect(),
            acts: Vec::new(),
            lost: BTreeSet::new(),
            closed: false,
            deleted: 0,
            extended: 0,
        }
    }

    fn is_left(&self, i: usize) -> bool {
        // The parts of a step go out in one go; before and after, its caller waits.
        let waits = |run: usize| {
            let it = &self.runs[run];
            let unsent = it.parts.iter().all(|p| *p == Part::Unsent);
            it.call == Call::Open && it.in_use.is_some() && (it.attached || unsent)
        };
        let makes_sense = match self.asks[i] {
            Ask::Leave(run) => waits(run),
            Ask::Late(run) => waits(run) && self.runs[run].attached,
            _ => true,
        };
        self.left & (1 << i) != 0 && makes_sense
    }

    fn queue(&mut self, acts: Vec<Act>) {
        if !acts.is_empty() {
            self.acts.push(acts);
            self.acts.sort();
        }
    }

    fn tell_session(&mut self, run: usize, event: Event<usize>) -> Result<(), String> {
        let mut acts = Vec::new();
        for effect in self.life.step(event) {
            match effect {
                Effect::Begun(id) => self.runs[run].in_use = Some(id),
                Effect::Extended(_) => self.extended += 1,
                Effect::Refuse(_) => {
                    if run < self.runs.len() {
                        acts.push(Act::Answer(run));
                    }
                }
                Effect::Stop(run, _) => acts.push(Act::Cancel(run)),
                Effect::Delete => {
                    let used = self.runs.iter().position(|r| r.in_use.is_some());
                    if let Some(run) = used {
                        return Err(format!("the session is deleted while step {run} uses it"));
                    }
                    acts.push(Act::Delete);
                }
            }
        }
        self.queue(acts);
        Ok(())
    }

    fn tell_step(&mut self, run: usize, event: StepEvent) -> Result<(), String> {
        let effects = self.runs[run].step.step(event);
        let mut acts = Vec::new();
        let it = &mut self.runs[run];
        for effect in effects {
            acts.push(match effect {
                StepEffect::Stop { part, .. } => {
                    if it.stopped[part] || it.parts[part] == Part::Over {
                        return Err(format!("part {part} of {run} is stopped twice or too late"));
                    }
                    it.stopped[part] = true;
                    Act::Stop(run, part)
                }
                StepEffect::Cleanup => Act::Cleanup(run),
                StepEffect::Answer(outcome) => {
                    it.check_outcome(&outcome)?;
                    Act::Answer(run)
                }
                StepEffect::Over => Act::Over(run),
            });
        }
        self.queue(acts);
        Ok(())
    }

    fn ask(&mut self, ask: Ask) -> Result<(), String> {
        match ask {
            Ask::Run(run) => {
                self.runs[run].call = Call::Open;
                self.tell_session(run, Event::Begin)
            }
            Ask::Leave(run) => {
                self.runs[run].call = Call::Gone;
                match self.runs[run].attached {
                    true => self.tell_step(run, StepEvent::Gone),
                    false => match self.runs[run].in_use.take() {
                        Some(id) => self.tell_session(run, Event::End(id)),
                        None => Ok(()),
                    },
                }
            }
            Ask::Late(run) => {
                self.runs[run].late = true;
                self.tell_step(run, StepEvent::Late(Status::deadline_exceeded("late")))
            }
            Ask::Extend(expected, _) => self.tell_session(usize::MAX, Event::Extend { expected }),
            Ask::Close | Ask::CloseAgain => {
                self.closed = true;
                self.tell_session(usize::MAX, Event::Close(closing()))
            }
            Ask::Lose(task) => {
                self.lost.insert(task);
                Ok(())
            }
        }
    }

    fn act(&mut self, at: usize) -> Result<(), String> {
        let act = self.acts[at].remove(0);
        self.acts.retain(|queue| !queue.is_empty());
        self.acts.sort();
        match act {
            // The part hears it: it may end from now on. One that is over does not care.
            Act::Stop(..) => Ok(()),
            Act::Cancel(run) => self.tell_step(run, StepEvent::Cancel(closing())),
            Act::Cleanup(run) => {
                self.runs[run].cleanups += 1;
                let over = self.runs[run].parts.iter().all(|p| *p == Part::Over);
                over.then_some(())
                    .ok_or_else(|| format!("step {run} is cleaned up while it runs"))
            }
            Act::Answer(run) => match self.runs[run].call {
                Call::Open if self.deleted > 0 && self.runs[run].in_use.is_some() => Err(format!(
                    "step {run} is answered after the session was deleted"
                )),
                Call::Open => {
                    self.runs[run].call = Call::Answered;
                    Ok(())
                }
                Call::Gone => Ok(()),
                other => Err(format!("step {run} is answered while it is {other:?}")),
            },
            Act::Over(run) => match self.runs[run].in_use.take() {
                Some(id) => self.tell_session(run, Event::End(id)),
                None => Err(format!("step {run} is over twice")),
            },
            Act::Delete => {
                self.deleted += 1;
                Ok(())
            }
        }
    }

    /// How a part that is under way can end.
    fn endings(&self, run: usize, part: usize) -> Vec<Option<Status>> {
        let it = &self.runs[run];
        let (task, kind) = self.kinds[run][part];
        if !matches!(it.parts[part], Part::Sent | Part::Running) {
            return Vec::new();
        }
        let mut all = Vec::new();
        if self.lost.contains(&task) {
            return vec![Some(Status::unavailable("lost"))];
        }
        if kind != Kind::Stuck {
            all.push(None);
        }
        if kind == Kind::MayFail {
            all.push(Some(Status::invalid_argument("failed")));
        }
        let told = it.stopped[part]
            && !self
                .acts
                .iter()
                .flatten()
                .any(|a| *a == Act::Stop(run, part));
        if told {
            all.push(Some(Status::cancelled("told to").as_derived()));
            all.push(Some(Status::aborted("rendezvous gone")));
        }
        all
    }

    /// The part that goes out next, if the one before is out.
    fn next_part(&self, run: usize) -> Option<usize> {
        let it = &self.runs[run];
        it.in_use?;
        let next = it.parts.iter().position(|p| *p == Part::Unsent)?;
        let waits = it.parts[..next].contains(&Part::Sent);
        (!waits).then_some(next)
    }
}

impl Run {
    fn check_outcome(&self, outcome: &Outcome) -> Result<(), String> {
        let wrong = match outcome {
            Outcome::Done => !self.all_well,
            Outcome::Failed(_, e) => {
                let follows = matches!(e.code, Code::Cancelled | Code::Aborted);
                e.derived || (self.is_real && follows)
            }
            Outcome::Ended(_) => self.is_real && !self.late,
        };
        match wrong {
            true => Err(format!("a step reports {outcome:?}")),
            false => Ok(()),
        }
    }
}

impl World for Cluster {
    type Event = Happens;

    fn events(&self) -> Vec<Happens> {
        let left = (0..self.asks.len()).filter(|i| self.is_left(*i));
        let mut all: Vec<Happens> = left.map(|i| Happens::Ask(self.asks[i])).collect();
        all.extend((0..self.acts.len()).map(Happens::Act));
        for (run, it) in self.runs.iter().enumerate() {
            all.extend(self.next_part(run).map(|_| Happens::Launch(run)));
            let out = !it.parts.contains(&Part::Unsent) && !it.parts.contains(&Part::Sent);
            if it.in_use.is_some() && out && !it.attached {
                all.push(Happens::Attach(run));
            }
            for part in 0..it.parts.len() {
                if it.parts[part] == Part::Sent {
                    all.push(Happens::Launched(run, part));
                }
                let ends = self.endings(run, part).into_iter();
                all.extend(ends.map(|e| Happens::End(run, part, e)));
            }
        }
        all
    }

    fn apply(&mut self, event: &Happens) -> Result<(), String> {
        match event.clone() {
            Happens::Ask(ask) => {
                let at = self.asks.iter().position(|a| *a == ask);
                self.left &= !at.map_or(0, |i| 1 << i);
                self.ask(ask)
            }
            Happens::Act(at) => self.act(at),
            Happens::Launch(run) => {
                if let Some(part) = self.next_part(run) {
                    self.runs[run].parts[part] = Part::Sent;
                }
                Ok(())
            }
            Happens::Launched(run, part) => {
                self.runs[run].parts[part] = Part::Running;
                self.tell_step(run, StepEvent::Launched { part })
            }
            Happens::Attach(run) => {
                self.runs[run].attached = true;
                match self.runs[run].in_use {
                    Some(id) => self.tell_session(run, Event::Attach(id, run)),
                    None => Ok(()),
                }
            }
            Happens::End(run, part, error) => {
                let it = &mut self.runs[run];
                it.parts[part] = Part::Over;
                it.all_well &= error.is_none();
                it.is_real |= matches!(&error, Some(e) if !e.derived && !matches!(e.code, Code::Cancelled | Code::Aborted));
                self.tell_step(run, StepEvent::Ended { part, error })
            }
        }
    }

    fn check(&self) -> Result<(), String> {
        for (run, it) in self.runs.iter().enumerate() {
            if it.cleanups > 1 {
                return Err(format!("step {run} is cleaned up twice"));
            }
        }
        if self.deleted > 1 || self.extended > 1 {
            return Err("deleted or extended twice".into());
        }
        Ok(())
    }

    fn check_end(&self) -> Result<(), String> {
        for (run, it) in self.runs.iter().enumerate() {
            let sent = !it.parts.contains(&Part::Unsent);
            let well = !matches!(it.call, Call::Open) && it.in_use.is_none();
            if !well || (sent && it.cleanups != 1) {
                return Err(format!("step {run} is {:?} in the end", it.call));
            }
        }
        if self.closed && self.deleted != 1 {
            return Err("a closed session was not deleted".into());
        }
        if !self.life.uses.is_empty() {
            return Err("a use is left in the end".into());
        }
        Ok(())
    }
}

#[track_caller]
fn holds(what: &str, kinds: &'static [Parts], asks: &'static [Ask]) {
    match explore(Cluster::new(kinds, asks), 300_000) {
        Ok(seen) => println!(
            "master, {what}: {} requests in every order: {seen:?}",
            asks.len()
        ),
        Err(history) => panic!("{what}: {history}"),
    }
}

#[test]
fn a_step_on_three_tasks_that_fail_or_are_lost() {
    use Kind::{Ends, MayFail, Stuck};
    holds(
        "a step on three tasks",
        &[&[(1, MayFail), (2, Stuck), (0, Ends)]],
        &[Ask::Run(0), Ask::Lose(1), Ask::Lose(2), Ask::Close],
    );
}

#[test]
fn a_step_that_hangs_ends_with_its_time_its_client_or_its_session() {
    holds(
        "a step that hangs",
        &[&[(1, Kind::Stuck), (0, Kind::MayFail)]],
        &[
            Ask::Run(0),
            Ask::Leave(0),
            Ask::Late(0),
            Ask::Close,
            Ask::CloseAgain,
        ],
    );
}

#[test]
fn a_session_is_deleted_once_after_its_last_step() {
    holds(
        "two steps of a session that closes",
        &[&[(1, Kind::Ends), (0, Kind::Stuck)], &[(0, Kind::MayFail)]],
        &[
            Ask::Run(0),
            Ask::Run(1),
            Ask::Extend(0, 1),
            Ask::Extend(0, 2),
            Ask::Close,
            Ask::CloseAgain,
        ],
    );
}
