//! Spins for gRPC: while the calls of a step are open, the network thread polls for the next message
//! before it sleeps.
//!
//! A message that finds its receiver asleep costs a wake-up of a core, several times what handling it
//! does; the messages of a small step follow each other within that time, and so do the steps of a brisk
//! client. A call says here when it opens and ends. A spin is short, ends at once when another
//! thread wants the core, and there is none while steps are long or rare, so an idle task costs nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// How long to spin after a call has come. Messages between two tasks of a host, with what the other
/// does before it answers, take less; a longer wait is not worth a core.
const SPIN_FOR: Duration = Duration::from_micros(200);

/// Calls that follow each other within this time are spun for in between too: the next step of a client
/// that does nothing else.
const BRISK_WITHIN: Duration = Duration::from_micros(500);

/// A yield takes this long only if another thread had something to do.
const CONTENDED_AFTER: Duration = Duration::from_micros(30);

/// The calls that are open and when one last moved.
#[derive(Clone)]
pub(crate) struct Spinner(Arc<Spinning>);

struct Spinning {
    state: Arc<State>,
    task: tokio::task::AbortHandle,
}

impl Drop for Spinning {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct State {
    start: Instant,
    /// Until when to spin, in nanoseconds from `start`.
    until: AtomicU64,
    open: AtomicUsize,
    /// When the last call ended, and whether the one before was followed soon by another.
    ended: AtomicU64,
    is_brisk: AtomicBool,
    begun: Notify,
}

/// An open call.
pub(crate) struct OpenCall(Arc<State>);

impl Spinner {
    /// Spins on a thread of `runtime` for as long as somebody holds this.
    pub(crate) fn new(runtime: &tokio::runtime::Handle) -> Spinner {
        let state = Arc::new(State {
            start: Instant::now(),
            until: AtomicU64::new(0),
            open: AtomicUsize::new(0),
            ended: AtomicU64::new(0),
            is_brisk: AtomicBool::new(false),
            begun: Notify::new(),
        });
        let watched = state.clone();
        let spinning = runtime.spawn(async move {
            loop {
                watched.begun.notified().await;
                watched.spin().await;
            }
        });
        Spinner(Arc::new(Spinning {
            state,
            task: spinning.abort_handle(),
        }))
    }

    /// A call begins.
    pub(crate) fn open(&self) -> OpenCall {
        let state = &self.0.state;
        if state.open.fetch_add(1, Ordering::Relaxed) == 0 {
            let gap = state
                .now()
                .saturating_sub(state.ended.load(Ordering::Relaxed));
            state
                .is_brisk
                .store(gap < BRISK_WITHIN.as_nanos() as u64, Ordering::Relaxed);
        }
        state.moved();
        OpenCall(state.clone())
    }
}

impl State {
    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn moved(&self) {
        let spin = SPIN_FOR.as_nanos() as u64;
        self.until.store(self.now() + spin, Ordering::Relaxed);
        self.begun.notify_one();
    }

    async fn spin(&self) {
        loop {
            // The runtime asks for what has arrived, and runs it, before it comes back here.
            tokio::task::yield_now().await;
            let before = self.now();
            let until = match self.open.load(Ordering::Relaxed) {
                0 if self.is_brisk.load(Ordering::Relaxed) => {
                    self.ended.load(Ordering::Relaxed) + BRISK_WITHIN.as_nanos() as u64
                }
                0 => return,
                _ => self.until.load(Ordering::Relaxed),
            };
            if before > until {
                return;
            }
            std::thread::yield_now();
            if self.now() - before > CONTENDED_AFTER.as_nanos() as u64 {
                return;
            }
        }
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        if self.0.open.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.ended.store(self.0.now(), Ordering::Relaxed);
            self.0.begun.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn spinning_ends_although_a_call_stays_open() {
        let spinner = Spinner::new(&tokio::runtime::Handle::current());
        let _open = spinner.open();
        // Would never come back otherwise.
        spinner.0.state.spin().await;
        assert_eq!(spinner.0.state.open.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn spinning_goes_on_between_calls_only_if_they_follow_each_other_soon() {
        let spinner = Spinner::new(&tokio::runtime::Handle::current());
        let state = &spinner.0.state;
        while state.now() < 2 * BRISK_WITHIN.as_nanos() as u64 {
            tokio::task::yield_now().await;
        }
        drop(spinner.open());
        assert!(!state.is_brisk.load(Ordering::Relaxed));
        state.ended.store(state.now(), Ordering::Relaxed);
        drop(spinner.open());
        // A machine so busy that half a millisecond passes between the two lines looks as rare calls do.
        let gap = state.now() - state.ended.load(Ordering::Relaxed);
        assert!(state.is_brisk.load(Ordering::Relaxed) || gap > BRISK_WITHIN.as_nanos() as u64);
        // Ends in either case.
        state.spin().await;
    }

    #[tokio::test]
    async fn the_last_holder_ends_the_task() {
        let spinner = Spinner::new(&tokio::runtime::Handle::current());
        let task = spinner.0.task.clone();
        let other = spinner.clone();
        drop(spinner);
        tokio::task::yield_now().await;
        assert!(!task.is_finished());
        drop(other);
        while !task.is_finished() {
            tokio::task::yield_now().await;
        }
    }
}
