//! The most recent request ids. A client that retries after a lost answer sends the same id, and
//! must hear that the first try was seen rather than have its step run twice.

use downpour_graph::{Result, Status};
use parking_lot::Mutex;
use std::collections::{HashSet, VecDeque};
use std::hash::{Hash, Hasher};

/// A bounded memory of ids: the oldest make room.
#[derive(Clone, Debug)]
pub struct RecentIds {
    capacity: usize,
    seen: HashSet<i64>,
    order: VecDeque<i64>,
}

impl RecentIds {
    /// Remembers up to `capacity` ids.
    pub fn new(capacity: usize) -> RecentIds {
        RecentIds {
            capacity: capacity.max(1),
            seen: HashSet::new(),
            order: VecDeque::new(),
        }
    }

    /// Whether an id is remembered.
    pub fn contains(&self, id: i64) -> bool {
        self.seen.contains(&id)
    }

    /// Remembers an id; `false` if it was known.
    pub fn insert(&mut self, id: i64) -> bool {
        if !self.seen.insert(id) {
            return false;
        }
        self.order.push_back(id);
        if self.order.len() > self.capacity
            && let Some(old) = self.order.pop_front()
        {
            self.seen.remove(&old);
        }
        true
    }

    /// Refuses a request that was seen; 0 means the caller does not care.
    pub fn admit(&mut self, id: i64, what: &str, detail: impl FnOnce() -> String) -> Result<()> {
        if id == 0 || self.insert(id) {
            return Ok(());
        }
        let detail = detail();
        Err(Status::aborted(format!(
            "The same {what} request was received twice. {detail}"
        )))
    }

    /// How many are remembered.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Whether none is remembered.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
}

impl Hash for RecentIds {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // The set holds the same ids.
        self.order.hash(state);
    }
}

/// [`RecentIds`] for several threads.
pub struct RecentRequests(Mutex<RecentIds>);

impl RecentRequests {
    /// Remembers up to `capacity` ids.
    pub fn new(capacity: usize) -> RecentRequests {
        RecentRequests(Mutex::new(RecentIds::new(capacity)))
    }

    /// Refuses an id that was seen; 0 means the caller does not care.
    pub fn admit(&self, id: i64, what: &str, detail: impl FnOnce() -> String) -> Result<()> {
        self.0.lock().admit(id, what, detail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeat_is_refused_until_it_is_forgotten() {
        let r = RecentRequests::new(2);
        for id in [1, 2, 0, 0] {
            r.admit(id, "RunStep (Master)", String::new).unwrap();
        }
        let e = r.admit(1, "RunStep (Master)", || "x".into()).unwrap_err();
        assert_eq!(
            e.message,
            "The same RunStep (Master) request was received twice. x"
        );
        r.admit(3, "RunStep (Master)", String::new).unwrap();
        r.admit(1, "RunStep (Master)", String::new).unwrap();
    }
}
