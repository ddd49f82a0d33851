//! The shell around a [`Step`]: holds what its parts have given and how to end them, and does what
//! the machine says.

use crate::session::{Session, Use};
use crate::step::{Effect, Event, Outcome, Step};
use downpour_graph::{Result, Status};
use downpour_net::{Canceller, Done, StepEnd};
use parking_lot::Mutex;
use smallvec::SmallVec;
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
    step: Step,
    end: StepEnd,
    parts: SmallVec<[Part; 2]>,
    /// Whether a part has failed.
    failed: bool,
    done: Option<Done>,
    /// Keeps the session until the step is over.
    in_use: Option<Use>,
}

struct Part {
    task: usize,
    /// How to end it, once that is known.
    cancel: Option<Canceller>,
    /// Whether its task has forgotten the step already.
    is_over: bool,
}

impl Gather {
    /// A step with a part on each of `tasks`.
    pub(crate) fn new(
        in_use: Use,
        step_id: u64,
        tasks: impl Iterator<Item = usize>,
        leftovers: Leftovers,
        done: Done,
    ) -> Arc<Gather> {
        let part = |task| Part {
            task,
            cancel: None,
            is_over: false,
        };
        let parts: SmallVec<_> = tasks.map(part).collect();
        Arc::new(Gather {
            session: in_use.session().clone(),
            step_id,
            leftovers,
            state: Mutex::new(State {
                step: Step::new(parts.len()),
                end: StepEnd::default(),
                parts,
                failed: false,
                done: Some(done),
                in_use: Some(in_use),
            }),
        })
    }

    /// Takes the outcome of a part.
    pub(crate) fn part(self: &Arc<Self>, part: usize) -> Done {
        let gather = self.clone();
        Box::new(move |outcome| gather.ended(part, outcome))
    }

    /// Says how to end a part, which is on its way.
    pub(crate) fn launched(&self, part: usize, cancel: Canceller) {
        self.tell(Event::Launched { part }, |state| {
            if let Some(known) = state.parts.get_mut(part) {
                known.cancel = Some(cancel);
            }
        });
    }

    /// Lets the session end the step.
    pub(crate) fn attach(self: &Arc<Self>) {
        let id = self.state.lock().in_use.as_ref().map(Use::id);
        // It may be over already.
        if let Some(id) = id {
            self.session.attach(id, self.canceller());
        }
    }

    /// Ends the step early.
    pub(crate) fn canceller(self: &Arc<Self>) -> Canceller {
        let gather = self.clone();
        Arc::new(move |reason| gather.tell(Event::Cancel(reason), |_| {}))
    }

    /// Ends the step because its time is over; the caller hears so at once.
    pub(crate) fn late(&self, reason: Status) {
        self.tell(Event::Late(reason), |_| {});
    }

    /// Ends the step because its caller has gone.
    pub(crate) fn gone(&self) {
        self.tell(Event::Gone, |_| {});
    }

    fn ended(&self, part: usize, outcome: Result<StepEnd>) {
        let (end, error) = match outcome {
            Ok(end) => (Some(end), None),
            Err(e) => (None, Some(e)),
        };
        self.tell(Event::Ended { part, error }, |state| {
            let Some(end) = end else {
                state.failed = true;
                return;
            };
            if let Some(part) = state.parts.get_mut(part) {
                part.is_over = end.is_over;
                if part.task == 0 {
                    state.end.fetches = end.fetches;
                }
            }
            state.end.stats.extend(end.stats);
        });
    }

    /// Notes what came with an event, tells the machine, and does what it says outside the lock.
    fn tell(&self, event: Event, note: impl FnOnce(&mut State)) {
        let mut state = self.state.lock();
        note(&mut state);
        let effects = state.step.step(event);
        if effects.is_empty() {
            return;
        }
        let mut acts: SmallVec<[Act; 3]> = SmallVec::new();
        for effect in effects {
            let act = match effect {
                Effect::Stop { part, reason } => {
                    let cancel = state.parts.get(part).and_then(|p| p.cancel.clone());
                    cancel.map(|cancel| Act::Stop(cancel, reason))
                }
                Effect::Cleanup => {
                    // In a step that failed others may still ask a part that did not.
                    let all = state.failed;
                    let parts = state.parts.iter().filter(|p| all || !p.is_over);
                    Some(Act::Cleanup(parts.map(|p| p.task).collect()))
                }
                Effect::Answer(outcome) => {
                    let outcome = match outcome {
                        Outcome::Done => Ok(std::mem::take(&mut state.end)),
                        Outcome::Failed(part, e) => {
                            let task = state.parts.get(part).map_or(0, |p| p.task);
                            Err(self.session.tasks.blame(task, e))
                        }
                        Outcome::Ended(e) => Err(e),
                    };
                    state.done.take().map(|done| Act::Answer(done, outcome))
                }
                Effect::Over => {
                    for part in &mut state.parts {
                        part.cancel = None;
                    }
                    let (done, in_use) = (state.done.take(), state.in_use.take());
                    Some(Act::Free(done, in_use))
                }
            };
            acts.extend(act);
        }
        drop(state);
        for act in acts {
            self.act(act);
        }
    }

    fn act(&self, act: Act) {
        match act {
            Act::Stop(cancel, reason) => cancel(reason),
            Act::Cleanup(tasks) => {
                let first = match self.leftovers {
                    Leftovers::None => return,
                    Leftovers::Everywhere => 0,
                    Leftovers::Elsewhere => 1,
                };
                // Only where a part ran can anything be left.
                for task in tasks.into_iter().filter(|task| *task >= first) {
                    self.session.tasks.get(task).cleanup_step(self.step_id);
                }
            }
            Act::Answer(done, outcome) => done(outcome),
            Act::Free(done, in_use) => drop((done, in_use)),
        }
    }
}

/// An effect with all that it takes.
enum Act {
    Stop(Canceller, Status),
    Cleanup(SmallVec<[usize; 4]>),
    Answer(Done, Result<StepEnd>),
    Free(Option<Done>, Option<Use>),
}
