//! One step of several parts: its outcome is that of all of them. The first failure ends the
//! others; of several failures the one that is not a consequence of another is reported.

use crate::session::Session;
use downpour_graph::{Code, Result, Status};
use downpour_net::{Canceller, Done, StepEnd};
use parking_lot::Mutex;
use std::sync::Arc;

/// Waits for the parts of a step.
pub(crate) struct Gather {
    session: Arc<Session>,
    step_id: u64,
    leftovers: Leftovers,
    state: Mutex<State>,
}

/// Where values that nobody took may be left when all parts are over.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leftovers {
    /// Nowhere: the step met in no shared place.
    None,
    /// On every task.
    Everywhere,
    /// On other tasks; what is here the client has yet to fetch.
    Elsewhere,
}

struct State {
    waiting: usize,
    end: StepEnd,
    error: Option<Status>,
    /// Why the parts are told to end, once one has failed or the step was cancelled.
    reason: Option<Status>,
    cancels: Vec<Canceller>,
    done: Option<Done>,
}

impl Gather {
    pub(crate) fn new(
        session: Arc<Session>,
        step_id: u64,
        parts: usize,
        leftovers: Leftovers,
        done: Done,
    ) -> Arc<Gather> {
        Arc::new(Gather {
            session,
            step_id,
            leftovers,
            state: Mutex::new(State {
                waiting: parts,
                end: StepEnd::default(),
                error: None,
                reason: None,
                cancels: Vec::new(),
                done: Some(done),
            }),
        })
    }

    /// Takes the outcome of the part on a task.
    pub(crate) fn part(self: &Arc<Self>, task: usize) -> Done {
        let gather = self.clone();
        Box::new(move |outcome| gather.ended(task, outcome))
    }

    /// Tells the step how to end one of its parts.
    pub(crate) fn cancel_with(&self, cancel: Canceller) {
        let reason = {
            let mut state = self.state.lock();
            if state.done.is_none() {
                return;
            }
            state.cancels.push(cancel.clone());
            state.reason.clone()
        };
        // A part that failed before the others had begun.
        if let Some(reason) = reason {
            cancel(reason);
        }
    }

    /// Ends the step early.
    pub(crate) fn canceller(self: &Arc<Self>) -> Canceller {
        let gather = self.clone();
        Arc::new(move |reason| gather.cancel(reason))
    }

    fn cancel(&self, reason: Status) {
        let cancels = {
            let mut state = self.state.lock();
            if state.reason.is_none() {
                state.reason = Some(reason.clone());
            }
            state.cancels.clone()
        };
        for cancel in cancels {
            cancel(reason.clone());
        }
    }

    fn ended(&self, task: usize, outcome: Result<StepEnd>) {
        let failed = match outcome {
            Ok(end) => {
                let mut state = self.state.lock();
                if task == 0 {
                    state.end.fetches = end.fetches;
                }
                state.end.stats.extend(end.stats);
                None
            }
            Err(e) => {
                let blamed = self.session.blame_task(task, e.clone());
                let mut state = self.state.lock();
                let better = match &state.error {
                    None => true,
                    Some(known) => rank(&blamed) < rank(known),
                };
                if better {
                    state.error = Some(blamed);
                }
                (state.reason.is_none() && state.waiting > 1).then_some(e)
            }
        };
        if let Some(e) = failed {
            self.cancel(e.as_derived());
        }
        let finished = {
            let mut state = self.state.lock();
            state.waiting -= 1;
            if state.waiting > 0 {
                return;
            }
            state.cancels.clear();
            let end = std::mem::take(&mut state.end);
            let outcome = match state.error.take() {
                Some(e) => Err(Status {
                    derived: false,
                    ..e
                }),
                None => Ok(end),
            };
            state.done.take().map(|done| (done, outcome))
        };
        let skipped = match self.leftovers {
            Leftovers::None => usize::MAX,
            Leftovers::Everywhere => 0,
            Leftovers::Elsewhere => 1,
        };
        for task in self.session.tasks.all().skip(skipped) {
            task.cleanup_step(self.step_id);
        }
        if let Some((done, outcome)) = finished {
            done(outcome);
        }
    }
}

/// How likely an error is only the consequence of another.
fn rank(e: &Status) -> u8 {
    match e.code {
        _ if e.derived => 2,
        Code::Cancelled | Code::Aborted => 1,
        _ => 0,
    }
}
