//! Batches writes: frames that a thread has queued but not yet flushed. What it does next mostly has more to say to the
//! same peers, and one system call then sends it all. A thread flushes before it waits and before a long kernel.

use super::lane::Lane;
use std::cell::RefCell;
use std::sync::Weak;

thread_local! {
    /// Lanes with unflushed frames, while the thread batches.
    static BATCHED: RefCell<Option<Vec<Weak<Lane>>>> = const { RefCell::new(None) };
}

/// Does `work`, and flushes what it queued when it is done.
pub(crate) fn batching<T>(work: impl FnOnce() -> T) -> T {
    let is_first = BATCHED.with_borrow_mut(|batched| match batched {
        Some(_) => false,
        None => {
            *batched = Some(Vec::new());
            true
        }
    });
    if !is_first {
        return work();
    }
    let _end = End;
    work()
}

/// Flushes also when the work panics.
struct End;

impl Drop for End {
    fn drop(&mut self) {
        let lanes = BATCHED.with_borrow_mut(Option::take);
        send(lanes.unwrap_or_default());
    }
}

/// Flushes what the calling thread has queued.
pub fn flush_batch() {
    send(
        BATCHED.with_borrow_mut(|batched| batched.as_mut().map(std::mem::take).unwrap_or_default()),
    );
}

fn send(lanes: Vec<Weak<Lane>>) {
    for lane in lanes {
        if let Some(lane) = lane.upgrade() {
            lane.flush_batch();
        }
    }
}

/// Whether the calling thread batches, and so defers what this lane is to send.
pub(super) fn defers(lane: &Weak<Lane>) -> bool {
    BATCHED.with_borrow_mut(|batched| match batched {
        None => false,
        Some(lanes) => {
            if lanes.iter().all(|l| !l.ptr_eq(lane)) {
                lanes.push(lane.clone());
            }
            true
        }
    })
}
