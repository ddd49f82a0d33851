//! Frames that a thread holds back for a moment: what it does next mostly has more to say to the same peers, and one
//! call of the system then sends it all. A thread lets go before it waits and before anything that takes long.

use super::one::Lane;
use std::cell::RefCell;
use std::sync::Weak;

thread_local! {
    /// Lanes with frames held back, while the thread does so.
    static HELD: RefCell<Option<Vec<Weak<Lane>>>> = const { RefCell::new(None) };
}

/// Does `work`, and sends what it had to say when it is done.
pub(crate) fn holding<T>(work: impl FnOnce() -> T) -> T {
    if !begin() {
        return work();
    }
    let _end = End;
    work()
}

/// Holds frames back from now on; `false` if that is so already.
pub fn begin() -> bool {
    HELD.with_borrow_mut(|held| match held {
        Some(_) => false,
        None => {
            *held = Some(Vec::new());
            true
        }
    })
}

/// Sends what was held back, and holds back no more.
pub fn end() {
    send(HELD.with_borrow_mut(Option::take).unwrap_or_default());
}

/// Lets go of everything also when the work panics.
struct End;

impl Drop for End {
    fn drop(&mut self) {
        end();
    }
}

/// Sends what the calling thread holds back.
pub fn let_go() {
    send(HELD.with_borrow_mut(|held| held.as_mut().map(std::mem::take).unwrap_or_default()));
}

fn send(lanes: Vec<Weak<Lane>>) {
    for lane in lanes {
        if let Some(lane) = lane.upgrade() {
            lane.let_go();
        }
    }
}

/// Whether the calling thread holds back what this lane is to send.
pub(super) fn keeps(lane: &Weak<Lane>) -> bool {
    HELD.with_borrow_mut(|held| match held {
        None => false,
        Some(lanes) => {
            if lanes.iter().all(|l| !l.ptr_eq(lane)) {
                lanes.push(lane.clone());
            }
            true
        }
    })
}
