//! Cancellation of a step: a flag with a reason, and callbacks for whoever waits.

use downpour_graph::Status;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

type Callback = Box<dyn FnOnce(&Status) + Send>;

/// Tells waiting work to stop, once.
///
/// A waiter registers a callback and takes it back when its wait is over. Callbacks run on the
/// thread that cancels, outside the lock.
#[derive(Default)]
pub struct Cancellation {
    cancelled: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    reason: Option<Status>,
    next: u64,
    callbacks: HashMap<u64, Callback>,
}

/// Names a registered callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CancelToken(u64);

impl Cancellation {
    /// A cancellation that nobody has asked for yet.
    pub fn new() -> Arc<Cancellation> {
        Arc::default()
    }

    /// Whether to stop.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    /// Why to stop, if so.
    pub fn reason(&self) -> Option<Status> {
        self.state.lock().reason.clone()
    }

    /// Asks everyone to stop for `reason`; the first reason stands.
    pub fn cancel(&self, reason: Status) {
        let callbacks = {
            let mut state = self.state.lock();
            if state.reason.is_some() {
                return;
            }
            state.reason = Some(reason.clone());
            self.cancelled.store(true, Ordering::Release);
            std::mem::take(&mut state.callbacks)
        };
        for callback in callbacks.into_values() {
            callback(&reason);
        }
    }

    /// Has `callback` run on cancellation. If that has already happened, nothing is registered
    /// and the reason is the error.
    pub fn register(
        &self,
        callback: impl FnOnce(&Status) + Send + 'static,
    ) -> Result<CancelToken, Status> {
        let mut state = self.state.lock();
        if let Some(reason) = &state.reason {
            return Err(reason.clone());
        }
        let token = state.next;
        state.next += 1;
        state.callbacks.insert(token, Box::new(callback));
        Ok(CancelToken(token))
    }

    /// Takes a callback back; `false` if it has run or is running.
    pub fn deregister(&self, token: CancelToken) -> bool {
        self.state.lock().callbacks.remove(&token.0).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn callbacks_run_once_and_not_after_deregistration() {
        let c = Cancellation::new();
        let hits = Arc::new(AtomicU32::new(0));
        let hit = |n: u32| {
            let hits = hits.clone();
            move |_: &Status| {
                hits.fetch_add(n, Ordering::SeqCst);
            }
        };
        c.register(hit(1)).unwrap();
        let gone = c.register(hit(10)).unwrap();
        assert!(c.deregister(gone));
        c.cancel(Status::cancelled("first"));
        c.cancel(Status::cancelled("second"));
        assert_eq!(hits.load(Ordering::SeqCst), 1);
        assert_eq!(c.reason().unwrap().message, "first");
        assert!(c.register(hit(100)).is_err());
    }
}
