//! Whether a client is still connected. A session remembers the connection it came over; when
//! that is gone and nobody uses the session, its client will not come to close it.

use std::sync::{Arc, Weak};

/// Tells whether a connection is there. It comes with every request of the generated services, as
/// an extension.
#[derive(Clone, Debug)]
pub struct Presence(Weak<()>);

impl Presence {
    /// Whether the connection is there.
    pub fn is_there(&self) -> bool {
        self.0.strong_count() > 0
    }
}

/// Held by a connection as long as it is there.
#[derive(Default)]
pub(crate) struct Alive(Arc<()>);

impl Alive {
    pub(crate) fn presence(&self) -> Presence {
        Presence(Arc::downgrade(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_there_until_its_connection_ends() {
        let alive = Alive::default();
        let presence = alive.presence();
        assert!(presence.is_there());
        drop(alive);
        assert!(!presence.is_there());
    }
}
