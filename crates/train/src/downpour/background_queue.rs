//! Work that is done beside computing: a thread that takes what is posted, in order, and keeps the
//! outcomes until they are taken. At most one waits while one is under way, so that a slow parameter
//! server slows its replicas rather than fill their memory.

use downpour_build::{Result, Status};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// A thread that turns each `A` into a `B`. It ends when this is dropped and its work is done.
pub(super) struct BackgroundQueue<A, B> {
    send: SyncSender<A>,
    receive: Receiver<Result<B>>,
    /// What was posted and not yet taken.
    pending: usize,
}

impl<A: Send + 'static, B: Send + 'static> BackgroundQueue<A, B> {
    pub(super) fn start(
        name: &str,
        mut work: impl FnMut(A) -> Result<B> + Send + 'static,
    ) -> Result<BackgroundQueue<A, B>> {
        let (send, todo) = sync_channel::<A>(1);
        let (done, receive) = sync_channel(2);
        let thread = std::thread::Builder::new().name(name.to_owned());
        let thread = thread.spawn(move || {
            for item in todo {
                if done.send(work(item)).is_err() {
                    return;
                }
            }
        });
        thread.map_err(|e| Status::unavailable(e.to_string()))?;
        Ok(BackgroundQueue {
            send,
            receive,
            pending: 0,
        })
    }

    /// Whether something was posted and not yet taken.
    pub(super) fn has_pending(&self) -> bool {
        self.pending > 0
    }

    /// Posts work. If some is under way, its outcome must be taken first.
    pub(super) fn post(&mut self, item: A) -> Result<()> {
        self.send.send(item).map_err(|_| gone())?;
        self.pending += 1;
        Ok(())
    }

    /// The outcome of the oldest work that was posted, waited for.
    pub(super) fn take(&mut self) -> Result<B> {
        if self.pending == 0 {
            return Err(Status::internal("nothing was posted"));
        }
        self.pending -= 1;
        self.receive.recv().map_err(|_| gone())?
    }

    /// The outcome of the oldest work, if it is done.
    pub(super) fn try_take(&mut self) -> Option<Result<B>> {
        let outcome = self.receive.try_recv().ok()?;
        self.pending -= 1;
        Some(outcome)
    }
}

fn gone() -> Status {
    Status::internal("a replica's thread has ended")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_come_in_order() {
        let mut queue = BackgroundQueue::start("test", |n: i32| match n {
            0 => Err(Status::internal("zero")),
            n => Ok(10 / n),
        })
        .unwrap();
        assert!(queue.take().is_err() && queue.try_take().is_none());
        queue.post(2).unwrap();
        queue.post(0).unwrap();
        assert_eq!(queue.take().unwrap(), 5);
        assert_eq!(queue.take().unwrap_err().message, "zero");
        assert!(!queue.has_pending());
    }
}
