//! The sessions of a master: how many there may be, and what becomes of one that opens while the
//! master closes. No I/O, no lock: `master.rs` is the shell.

use std::collections::HashMap;

/// Sessions that are open or about to be.
///
/// ```text
///   admit ──► opening ── opened ──► open ── close, close_all ──► gone
///                │ given_up ──► gone
///                └ opened after shut_down: handed back, to be closed
/// ```
pub(crate) struct Registry<S> {
    limit: usize,
    opening: usize,
    open: HashMap<String, S>,
    is_over: bool,
}

impl<S> Registry<S> {
    /// Without sessions, and with room for `limit`.
    pub(crate) fn new(limit: usize) -> Registry<S> {
        Registry {
            limit,
            opening: 0,
            open: HashMap::new(),
            is_over: false,
        }
    }

    /// Whether there is room for one more; then [`Registry::opened`] or [`Registry::given_up`]
    /// follows.
    pub(crate) fn admit(&mut self) -> bool {
        let has_room = !self.is_over && self.open.len() + self.opening < self.limit;
        self.opening += usize::from(has_room);
        has_room
    }

    /// Takes a session in, or gives it back if the master has stopped meanwhile.
    pub(crate) fn opened(&mut self, handle: String, session: S) -> Result<(), S> {
        self.opening -= 1;
        if self.is_over {
            return Err(session);
        }
        self.open.insert(handle, session);
        Ok(())
    }

    /// A session could not be opened, or nobody waits for it any more.
    pub(crate) fn given_up(&mut self) {
        self.opening -= 1;
    }

    /// Finds a session.
    pub(crate) fn get(&self, handle: &str) -> Option<&S> {
        self.open.get(handle)
    }

    /// Every open session.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&String, &S)> {
        self.open.iter()
    }

    /// Takes a session out.
    pub(crate) fn close(&mut self, handle: &str) -> Option<S> {
        self.open.remove(handle)
    }

    /// Takes all sessions out.
    pub(crate) fn close_all(&mut self) -> Vec<S> {
        std::mem::take(&mut self.open).into_values().collect()
    }

    /// As [`Registry::close_all`], for good.
    pub(crate) fn shut_down(&mut self) -> Vec<S> {
        self.is_over = true;
        self.close_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_are_opening_count_and_none_outlives_the_master() {
        let mut sessions = Registry::new(2);
        assert!(sessions.admit() && sessions.admit() && !sessions.admit());
        sessions.given_up();
        assert!(sessions.admit());
        sessions.opened("a".into(), 1).unwrap();
        assert!(!sessions.admit());
        assert_eq!(sessions.close("a"), Some(1));
        assert_eq!(sessions.close("a"), None);
        assert!(sessions.admit());
        sessions.opened("b".into(), 2).unwrap();
        assert_eq!(sessions.shut_down(), [2]);
        assert_eq!(sessions.opened("c".into(), 3), Err(3));
        assert!(!sessions.admit() && sessions.get("c").is_none());
    }
}
