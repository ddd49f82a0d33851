//! Wakes the chief's step when it waits too long, without cancelling it: what a cancelled dequeue has taken is lost.

use super::parts::Parts;
use downpour_build::{Result, Status};
use downpour_client::Session;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tracing::debug;

/// How soon a step is nudged again when the chief is to end.
const HURRY: Duration = Duration::from_millis(10);

/// A thread that gives a step the words that it waits for, meaningless ones, once it has waited long. Ends when dropped.
pub(super) struct Nudger {
    seen: Arc<Seen>,
    thread: Option<JoinHandle<()>>,
}

/// What the chief and the thread that nudges it both see.
#[derive(Default)]
struct Seen {
    /// Odd while the chief waits.
    turn: AtomicU64,
    /// Whether the chief is to end.
    is_hurried: AtomicBool,
    is_over: AtomicBool,
}

impl Nudger {
    /// Nudges what waits longer than `after`, or up to twice that, with words enough for `replicas` workers.
    pub(super) fn start(
        session: &Arc<Session>,
        parts: &Arc<Parts>,
        replicas: usize,
        after: Duration,
    ) -> Result<Nudger> {
        let (session, parts) = (session.clone(), parts.clone());
        Nudger::with(after, move || {
            let step = session.step().timeout(after);
            let step = step.feed(&parts.gate.nudges, vec![-1i64; replicas]);
            if let Err(why) = step.target(&parts.gate.nudge).run() {
                // The step that waits fails too, or the next nudge comes through.
                debug!(%why, "the chief could not be woken");
            }
        })
    }

    fn with(after: Duration, nudge: impl Fn() + Send + 'static) -> Result<Nudger> {
        let seen = Arc::new(Seen::default());
        let shared = seen.clone();
        let thread = std::thread::Builder::new().name("sync-nudge".to_owned());
        let thread = thread.spawn(move || shared.watch(after, nudge));
        let thread = thread.map_err(|e| Status::unavailable(e.to_string()))?;
        Ok(Nudger {
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

impl Drop for Nudger {
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
    fn watch(&self, after: Duration, nudge: impl Fn()) {
        let mut last = 0;
        while !self.is_over.load(Ordering::Relaxed) {
            let is_hurried = self.is_hurried.load(Ordering::Relaxed);
            let turn = self.turn.load(Ordering::Relaxed);
            if turn % 2 == 1 && (is_hurried || turn == last) {
                nudge();
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
    fn what_waits_is_nudged_once_it_is_long_and_at_once_when_it_is_to_end() {
        let (nudged, nudges) = channel();
        let nudger = Nudger::with(Duration::from_millis(20), move || {
            let _ = nudged.send(());
        });
        let nudger = nudger.unwrap();
        // Waits until it is woken.
        nudger.during(|| nudges.recv().unwrap());
        assert!(!nudger.is_hurried());
        drop(nudger);

        let (nudged, nudges) = channel();
        let hour = Duration::from_secs(3600);
        let nudger = Nudger::with(hour, move || {
            let _ = nudged.send(());
        });
        let nudger = nudger.unwrap();
        nudger.hurry();
        // Also what begins to wait only now, and more than once.
        nudger.during(|| {
            nudges.recv().unwrap();
            nudges.recv().unwrap();
        });
        assert!(nudger.is_hurried());
    }
}
