//! Whether a client is still connected, and how it went. A session remembers the connection it came over; when
//! that is gone and nobody uses the session, its client will not come to close it.

use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A connection that its client closes so soon after a call is not one that was merely idle: gRPC keeps those for half an
/// hour.
const SOON: Duration = Duration::from_secs(20 * 60);

/// Tells whether a connection is there. It comes with every request of the generated services, as
/// an extension.
#[derive(Clone, Debug)]
pub struct Presence(Arc<Mutex<State>>);

#[derive(Clone, Copy, Debug)]
enum State {
    /// It is there; when it was last used.
    There(Instant),
    /// Its client closed it, or its client's system did, soon after it was used.
    Left,
    /// It is gone: idle for long, silent, or ended by this task.
    Gone,
}

impl Presence {
    /// Whether the connection is there.
    pub fn is_there(&self) -> bool {
        matches!(*self.0.lock(), State::There(_))
    }

    /// Whether it was closed from the other side soon after a call: that is how a process ends. One that lives may have
    /// lost its connection so too, and comes back over another.
    pub fn has_left(&self) -> bool {
        matches!(*self.0.lock(), State::Left)
    }
}

/// Held by a connection as long as it is there.
pub(crate) struct Alive(Presence);

impl Alive {
    pub(crate) fn new(now: Instant) -> Alive {
        Alive(Presence(Arc::new(Mutex::new(State::There(now)))))
    }

    pub(crate) fn presence(&self) -> Presence {
        self.0.clone()
    }

    /// A call came.
    pub(crate) fn used(&self, now: Instant) {
        *self.0.0.lock() = State::There(now);
    }

    /// The other side has closed the connection.
    pub(crate) fn closed(&self, now: Instant) {
        let mut state = self.0.0.lock();
        if let State::There(used) = *state
            && now.saturating_duration_since(used) < SOON
        {
            *state = State::Left;
        }
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        let mut state = self.0.0.lock();
        if let State::There(_) = *state {
            *state = State::Gone;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_there_until_its_connection_ends() {
        let alive = Alive::new(Instant::now());
        let presence = alive.presence();
        assert!(presence.is_there() && !presence.has_left());
        drop(alive);
        assert!(!presence.is_there() && !presence.has_left());
    }

    #[test]
    fn a_client_that_closes_soon_after_a_call_has_left_and_an_idle_one_has_not() {
        let start = Instant::now();
        for (after, left) in [(SOON / 2, true), (2 * SOON, false)] {
            let alive = Alive::new(start);
            let presence = alive.presence();
            alive.used(start + SOON);
            alive.closed(start + SOON + after);
            drop(alive);
            assert!(!presence.is_there());
            assert_eq!(presence.has_left(), left);
        }
    }
}
