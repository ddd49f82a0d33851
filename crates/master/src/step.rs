//! One step of several parts, as a state machine: an [`Event`] in, what the shell must do out. No
//! I/O, no lock, no clock. The shell is `gather.rs`; every order of events is tried in
//! `lifecycle/explored.rs`.
//!
//! The first failure ends the other parts; of several failures the one that is not the consequence
//! of another is reported. The caller is answered once, and what the step left on its tasks is
//! cleaned up once, when all parts are over.

use downpour_graph::{Code, Status};
use smallvec::{SmallVec, smallvec};

/// What happened to the step.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// A part is on its way: it can be stopped from now on.
    Launched { part: usize },
    /// A part is over.
    Ended { part: usize, error: Option<Status> },
    /// The session ends.
    Cancel(Status),
    /// Its time is over: the caller hears so at once, the parts end as they can.
    Late(Status),
    /// The caller has gone.
    Gone,
}

/// What the shell must now do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Tell a part to end.
    Stop { part: usize, reason: Status },
    /// Clean up what the step may have left on its tasks.
    Cleanup,
    /// Answer the caller.
    Answer(Outcome),
    /// Let go of everything: nothing more will happen.
    Over,
}

/// How a step ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// Part and reason.
    Failed(usize, Status),
    /// Ended from here: no part is to blame.
    Ended(Status),
}

pub(crate) type Effects = SmallVec<[Effect; 3]>;

/// ```text
///              Launched                 Ended
///   Starting ────────────► Running ─────────────► Over
///      │                      │ told to end         ▲
///      │ told to end          └──────► Stopping ────┤ Ended
///      ▼       Launched                   ▲         │
///   Unwanted ─────────────────────────────┘         │
///   Starting, Unwanted ───────── Ended ─────────────┘
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Starting,
    /// To be stopped as soon as it can be.
    Unwanted,
    Running,
    Stopping,
    Over,
}

/// ```text
///             a part failed, Cancel, Late, Gone
///   Running ────────────────────────────────────► Ending
///      │ last part over                              │ last part over
///      └─────────────────────► Over ◄────────────────┘
/// ```
/// `Late` and `Gone` settle what the caller hears; otherwise `Over` does.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Step {
    parts: SmallVec<[Phase; 4]>,
    /// Parts that are not over.
    waiting: usize,
    /// Why the parts are told to end, once they are.
    reason: Option<Status>,
    /// Whether that came from outside rather than from a part.
    cancelled: bool,
    failure: Option<(usize, Status)>,
    answered: bool,
}

impl Step {
    /// A step of so many parts, none of them on its way yet.
    pub(crate) fn new(parts: usize) -> Step {
        Step {
            parts: smallvec![Phase::Starting; parts],
            waiting: parts,
            reason: None,
            cancelled: false,
            failure: None,
            answered: false,
        }
    }

    /// Advances by one event.
    pub(crate) fn step(&mut self, event: Event) -> Effects {
        match event {
            Event::Launched { part } => self.launched(part),
            Event::Ended { part, error } => self.ended(part, error),
            Event::Cancel(reason) => self.cancel(reason),
            Event::Late(reason) => {
                if self.answered || self.waiting == 0 {
                    return Effects::new();
                }
                self.answered = true;
                let mut out = self.cancel(reason.clone());
                out.push(Effect::Answer(Outcome::Ended(reason)));
                out
            }
            Event::Gone => {
                self.answered = true;
                self.cancel(Status::cancelled("RunStep was cancelled by the client"))
            }
        }
    }

    fn launched(&mut self, part: usize) -> Effects {
        let Some(phase) = self.parts.get_mut(part) else {
            return Effects::new();
        };
        match (*phase, &self.reason) {
            (Phase::Starting, _) => *phase = Phase::Running,
            (Phase::Unwanted, Some(reason)) => {
                *phase = Phase::Stopping;
                let reason = reason.clone();
                return smallvec![Effect::Stop { part, reason }];
            }
            _ => {}
        }
        Effects::new()
    }

    fn cancel(&mut self, reason: Status) -> Effects {
        if self.waiting == 0 || self.reason.is_some() {
            return Effects::new();
        }
        self.cancelled = true;
        self.end_parts(reason)
    }

    fn end_parts(&mut self, reason: Status) -> Effects {
        let mut out = Effects::new();
        for (part, phase) in self.parts.iter_mut().enumerate() {
            match phase {
                Phase::Starting => *phase = Phase::Unwanted,
                Phase::Running => {
                    *phase = Phase::Stopping;
                    let reason = reason.clone();
                    out.push(Effect::Stop { part, reason });
                }
                Phase::Unwanted | Phase::Stopping | Phase::Over => {}
            }
        }
        self.reason = Some(reason);
        out
    }

    fn ended(&mut self, part: usize, error: Option<Status>) -> Effects {
        match self.parts.get_mut(part) {
            Some(phase) if *phase != Phase::Over => *phase = Phase::Over,
            _ => return Effects::new(),
        }
        self.waiting -= 1;
        let mut out = Effects::new();
        if let Some(e) = error {
            if self.waiting > 0 && self.reason.is_none() {
                out = self.end_parts(e.clone().as_derived());
            }
            let known = self.failure.as_ref();
            if known.is_none_or(|(_, known)| self.rank(&e) < self.rank(known)) {
                self.failure = Some((part, e));
            }
        }
        if self.waiting == 0 {
            out.push(Effect::Cleanup);
            if !self.answered {
                self.answered = true;
                out.push(Effect::Answer(self.outcome()));
            }
            out.push(Effect::Over);
        }
        out
    }

    /// How likely an error is only the consequence of another.
    fn rank(&self, e: &Status) -> u8 {
        match e.code {
            _ if e.derived => 2,
            _ if self.is_own(e) => 1,
            Code::Cancelled | Code::Aborted => 1,
            _ => 0,
        }
    }

    /// Whether an error is what the parts were told from here.
    fn is_own(&self, e: &Status) -> bool {
        let own = self.reason.as_ref().filter(|_| self.cancelled);
        own.is_some_and(|own| own.code == e.code && own.message == e.message)
    }

    fn outcome(&mut self) -> Outcome {
        let Some((part, e)) = self.failure.take() else {
            return Outcome::Done;
        };
        if self.cancelled
            && (self.is_own(&e) || e.derived)
            && let Some(own) = self.reason.take()
        {
            return Outcome::Ended(own);
        }
        let derived = false;
        Outcome::Failed(part, Status { derived, ..e })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_real_error_is_reported_and_the_others_are_told_once() {
        let mut step = Step::new(3);
        for part in 0..2 {
            assert!(step.step(Event::Launched { part }).is_empty());
        }
        let aborted = Status::aborted("Cleanup 7");
        let real = Status::invalid_argument("real");
        let ended = |part, e: &Status| Event::Ended {
            part,
            error: Some(e.clone()),
        };
        let stop = |part, e: &Status| Effect::Stop {
            part,
            reason: e.clone().as_derived(),
        };
        let first = step.step(ended(0, &aborted));
        assert_eq!(first[..], [stop(1, &aborted)]);
        let late = step.step(Event::Launched { part: 2 });
        assert_eq!(late[..], [stop(2, &aborted)]);
        assert!(step.step(ended(1, &real)).is_empty());
        let derived = real.clone().as_derived();
        let last = step.step(ended(2, &derived));
        let answer = Effect::Answer(Outcome::Failed(1, real));
        assert_eq!(last[..], [Effect::Cleanup, answer, Effect::Over]);
    }

    #[test]
    fn a_closed_session_blames_no_task() {
        let mut step = Step::new(2);
        let closed = Status::unavailable("closed");
        step.step(Event::Cancel(closed.clone()));
        let derived = Some(closed.clone().as_derived());
        step.step(Event::Ended {
            part: 1,
            error: derived,
        });
        let last = step.step(Event::Ended {
            part: 0,
            error: Some(closed.clone()),
        });
        assert_eq!(last[1], Effect::Answer(Outcome::Ended(closed)));
    }
}
