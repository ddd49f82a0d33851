//! Notices a peer that is connected but silent: stopped, hung, or behind a cut cable. TCP alone
//! would let a call to it wait for ever.
//!
//! While calls to a peer are open, it is asked for its status now and then. One that does not
//! answer in time is lost: every open call to it fails, and the next one starts on a new
//! connection.

use crate::call::peers::Client;
use downpour_graph::Status;
use downpour_wire::proto;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Notify;

/// One peer's watch.
#[derive(Default)]
pub(crate) struct Watch {
    open: AtomicUsize,
    awake: AtomicBool,
    lost: Notify,
    /// How often the peer was lost: a call that began before a loss must hear of it, even if it
    /// was not waiting yet.
    losses: AtomicUsize,
    reason: Mutex<Option<Status>>,
}

/// A call that is open.
pub(crate) struct Open(Arc<Watch>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Watch {
    /// Counts a call; `true` says that someone must now [`Watch::keep`] watch.
    pub(crate) fn enter(self: &Arc<Self>) -> (Open, bool) {
        self.open.fetch_add(1, Ordering::AcqRel);
        let first = !self.awake.swap(true, Ordering::AcqRel);
        (Open(self.clone()), first)
    }

    /// How often the peer was lost so far.
    pub(crate) fn losses(&self) -> usize {
        self.losses.load(Ordering::Acquire)
    }

    /// Waits until the peer has been lost more often than `since`.
    pub(crate) async fn lost(&self, since: usize) -> Status {
        loop {
            let notified = self.lost.notified();
            tokio::pin!(notified);
            notified.as_mut().enable();
            if self.losses() != since {
                break;
            }
            notified.await;
        }
        self.reason
            .lock()
            .clone()
            .unwrap_or_else(|| Status::unavailable("the task was lost"))
    }

    /// Asks the peer until no call is open. `false` if it was lost meanwhile.
    pub(crate) async fn keep(&self, mut client: Client, peer: &str, limit: Duration) -> bool {
        loop {
            tokio::time::sleep(limit / 4).await;
            if self.open.load(Ordering::Acquire) == 0 {
                self.awake.store(false, Ordering::Release);
                // A call may have come in between and seen the watch awake.
                let idle = self.open.load(Ordering::Acquire) == 0;
                if idle || self.awake.swap(true, Ordering::AcqRel) {
                    return true;
                }
            }
            let asked = client.get_status(proto::GetStatusRequest {});
            // An error is an answer too: the open calls will meet it themselves.
            if tokio::time::timeout(limit / 8 * 5, asked).await.is_err() {
                *self.reason.lock() = Some(Status::unavailable(format!(
                    "{peer} is connected but has not answered for {limit:?}: it hangs, is stopped, or the network between is cut"
                )));
                // In this order: whoever comes now either counts as lost too or watches anew.
                self.awake.store(false, Ordering::Release);
                self.losses.fetch_add(1, Ordering::AcqRel);
                self.lost.notify_waiters();
                return false;
            }
        }
    }
}
