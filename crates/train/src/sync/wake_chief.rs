//! Wakes the chief's step when it waits too long, without cancelling it: what a cancelled dequeue has taken is lost.

use super::parts::Parts;
use downpour_build::{Result, Status};
use downpour_client::Session;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tracing::debug;

/// How soon a step is woken again when the chief is to end.
const HURRY: Duration = Duration::from_millis(10);

/// A thread that gives a step the words that it waits for, meaningless ones, once it has waited long. Ends when dropped.
pub(super) struct ChiefWaker {
    seen: Arc<Seen>,
    thread: Option<JoinHandle<()>>,
}

/// What the chief and the thread that wakes it both see.
#[derive(Default)]
struct Seen {
    /// Odd while the chief waits.
    turn: AtomicU64,
    /// Whether the chief is to end.
    is_hurried: AtomicBool,
    is_over: AtomicBool,
}

impl ChiefWaker {
    /// Wakes what waits longer than `after`, or up to twice that, with words enough for `replicas` workers.
    pub(super) fn start(
        session: &Arc<Session>,
        parts: &Arc<Parts>,
        replicas: usize,
        after: Duration,
    ) -> Result<ChiefWaker> {
        let (session, parts) = (session.clone(), parts.clone());
        ChiefWaker::with(after, move || {
            let step = session.step().timeout(after);
            let step = step.feed(&parts.gate.wake_words, vec![-1i64; replicas]);
            if let Err(why) = step.target(&parts.gate.wake).run() {
                // The step that waits fails too, or the next one comes through.
                debug!(%why, "the chief could not be woken");
            }
        })
    }

    fn with(after: Duration, wake: impl Fn() + Send + 'static) -> Result<ChiefWaker> {
        let seen = Arc::new(Seen::default());
        let shared = seen.clone();
        let thread = std::thread::Builder::new().name("sync-wake".to_owned());
        let thread = thread.spawn(move || shared.watch(after, wake));
        let thread = thread.map_err(|e| Status::unavailable(e.to_string()))?;
        Ok(ChiefWaker {
            seen,
            thread: Some(thread),
        })
    }

    /// Runs what may have to be woken.
    pub(super) fn during<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.seen.turn.fetch_add(1, Ordering::Relaxed);
        let done = wait();
        self.seen.turn.fetch_add(1, Ordering::Relaxed);
        done
    }

    /// Tells the chief to end, and wakes it, again if need be.
    pub(super) fn hurry(&self) {
        self.seen.is_hurried.store(true, Ordering::Relaxed);
        self.wake();
    }

    /// Whether the chief is to end.
    pub(super) fn is_hurried(&self) -> bool {
        self.seen.is_hurried.load(Ordering::Relaxed)
    }

    fn wake(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

impl Drop for ChiefWaker {
    fn drop(&mut self) {
        self.seen.is_over.store(true, Ordering::Relaxed);
        self.wake();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

impl Seen {
    fn watch(&self, after: Duration, wake: impl Fn()) {
        let mut last = 0;
        while !self.is_over.load(Ordering::Relaxed) {
            let is_hurried = self.is_hurried.load(Ordering::Relaxed);
            let turn = self.turn.load(Ordering::Relaxed);
            if turn % 2 == 1 && (is_hurried || turn == last) {
                wake();
            }
            last = turn;
            std::thread::park_timeout(if is_hurried { HURRY } else { after });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn what_waits_is_woken_once_it_is_long_and_at_once_when_it_is_to_end() {
        let (woken, wakes) = channel();
        let waker = ChiefWaker::with(Duration::from_millis(20), move || {
            let _ = woken.send(());
        });
        let waker = waker.unwrap();
        // Waits until it is woken.
        waker.during(|| wakes.recv().unwrap());
        assert!(!waker.is_hurried());
        drop(waker);

        let (woken, wakes) = channel();
        let hour = Duration::from_secs(3600);
        let waker = ChiefWaker::with(hour, move || {
            let _ = woken.send(());
        });
        let waker = waker.unwrap();
        waker.hurry();
        // Also what begins to wait only now, and more than once.
        waker.during(|| {
            wakes.recv().unwrap();
            wakes.recv().unwrap();
        });
        assert!(waker.is_hurried());
    }
}
