//! Waiting attempts: a list served in order, each with the op it ends and the step that may
//! cancel it. Ended attempts are run outside the lock of the object they waited in.

use downpour_graph::{Result, Status};
use downpour_runtime::{CancelToken, Cancellation};
use std::collections::VecDeque;
use std::sync::Arc;

/// What to do with the outcome of an attempt.
pub(crate) type Done<T> = Box<dyn FnOnce(Result<T>) + Send>;

/// One attempt: what it is after, and whom to tell.
pub(crate) struct Attempt<W, T> {
    pub(crate) work: W,
    id: u64,
    cancellation: Arc<Cancellation>,
    token: CancelToken,
    done: Done<T>,
}

impl<W, T> Attempt<W, T> {
    /// The attempt as work under way: what it is after, its step's cancellation, whom to tell.
    pub(crate) fn into_parts(self) -> (W, Arc<Cancellation>, Done<T>) {
        self.cancellation.deregister(self.token);
        (self.work, self.cancellation, self.done)
    }

    /// Ends the attempt.
    pub(crate) fn end(self, outcome: Result<T>) -> Ended<T> {
        Ended {
            cancellation: self.cancellation,
            token: self.token,
            done: self.done,
            outcome,
        }
    }
}

/// An attempt that is over but whose op does not know yet.
pub(crate) struct Ended<T> {
    cancellation: Arc<Cancellation>,
    token: CancelToken,
    done: Done<T>,
    outcome: Result<T>,
}

impl<T> Ended<T> {
    /// Tells the op. Must not be called under the object's lock.
    pub(crate) fn tell(self) {
        self.cancellation.deregister(self.token);
        (self.done)(self.outcome);
    }
}

/// Attempts in the order of their arrival.
pub(crate) struct Waiting<W, T> {
    list: VecDeque<Attempt<W, T>>,
    next: u64,
}

impl<W, T> Default for Waiting<W, T> {
    fn default() -> Self {
        Waiting {
            list: VecDeque::new(),
            next: 0,
        }
    }
}

impl<W, T> Waiting<W, T> {
    /// Adds an attempt; `cancel` is called with its number when its step is cancelled. Gives
    /// `done` back if that has already happened.
    pub(crate) fn push(
        &mut self,
        work: W,
        cancellation: &Arc<Cancellation>,
        cancel: impl FnOnce(u64) + Send + 'static,
        done: Done<T>,
    ) -> Result<(), Done<T>> {
        let id = self.next;
        let Ok(token) = cancellation.register(move |_| cancel(id)) else {
            return Err(done);
        };
        self.next += 1;
        self.list.push_back(Attempt {
            work,
            id,
            cancellation: cancellation.clone(),
            token,
            done,
        });
        Ok(())
    }

    /// What the first attempt is after.
    pub(crate) fn front_mut(&mut self) -> Option<&mut W> {
        self.list.front_mut().map(|a| &mut a.work)
    }

    /// Takes the first attempt out.
    pub(crate) fn pop(&mut self) -> Option<Attempt<W, T>> {
        self.list.pop_front()
    }

    /// Ends every attempt that `serve` has an outcome for, in order; the others keep their places.
    pub(crate) fn serve(
        &mut self,
        ended: &mut Vec<Ended<T>>,
        mut serve: impl FnMut(&mut W) -> Option<Result<T>>,
    ) {
        let mut at = 0;
        while let Some(attempt) = self.list.get_mut(at) {
            match serve(&mut attempt.work) {
                None => at += 1,
                Some(outcome) => ended.extend(self.list.remove(at).map(|a| a.end(outcome))),
            }
        }
    }

    /// Takes attempt `id` out, if it still waits.
    pub(crate) fn remove(&mut self, id: u64) -> Option<Attempt<W, T>> {
        let at = self.list.iter().position(|a| a.id == id)?;
        self.list.remove(at)
    }

    /// Ends every attempt with `status`.
    pub(crate) fn fail_all(&mut self, status: &Status, ended: &mut Vec<Ended<T>>) {
        ended.extend(self.list.drain(..).map(|a| a.end(Err(status.clone()))));
    }

    /// Whether nobody waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

/// Tells everyone.
pub(crate) fn tell<T>(ended: Vec<Ended<T>>) {
    for attempt in ended {
        attempt.tell();
    }
}
