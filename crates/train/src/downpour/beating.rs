//! A replica's sign of life: a thread that counts beside the model, so that one whose step takes
//! long is not taken for dead.

use super::parts::Parts;
use downpour_build::{Result, Status};
use downpour_client::Session;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::Thread;
use std::time::Duration;

/// A replica that beats until this is dropped, or its session is lost.
pub(super) struct Beating {
    go_on: Arc<AtomicBool>,
    thread: Thread,
}

impl Beating {
    pub(super) fn start(
        session: &Arc<Session>,
        parts: &Arc<Parts>,
        replica: usize,
        every: Duration,
    ) -> Result<Beating> {
        let go_on = Arc::new(AtomicBool::new(true));
        let (session, parts): (Weak<Session>, _) = (Arc::downgrade(session), parts.clone());
        let alive = go_on.clone();
        let thread = std::thread::Builder::new().name("replica-beat".to_owned());
        let thread = thread.spawn(move || {
            loop {
                std::thread::park_timeout(every);
                let session = session.upgrade().filter(|_| alive.load(Ordering::Relaxed));
                // A beat that fails means that the session is lost: the next one beats anew.
                if session.is_none_or(|s| parts.table.beat(&s, replica).is_err()) {
                    return;
                }
            }
        });
        let thread = thread.map_err(|e| Status::unavailable(e.to_string()))?;
        Ok(Beating {
            go_on,
            thread: thread.thread().clone(),
        })
    }
}

impl Drop for Beating {
    fn drop(&mut self) {
        self.go_on.store(false, Ordering::Relaxed);
        self.thread.unpark();
    }
}
