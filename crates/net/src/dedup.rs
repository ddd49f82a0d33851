//! The most recent request ids. A client that retries after a lost answer sends the same id, and
//! must hear that the first try was seen rather than have its step run twice.

use downpour_graph::{Result, Status};
use parking_lot::Mutex;
use std::collections::{HashSet, VecDeque};

/// Remembers a bounded number of ids.
pub struct RecentRequests {
    capacity: usize,
    state: Mutex<(HashSet<i64>, VecDeque<i64>)>,
}

impl RecentRequests {
    /// Remembers up to `capacity` ids.
    pub fn new(capacity: usize) -> RecentRequests {
        RecentRequests {
            capacity: capacity.max(1),
            state: Mutex::default(),
        }
    }

    /// Refuses an id that was seen; 0 means the caller does not care.
    pub fn admit(&self, id: i64, what: &str, detail: &str) -> Result<()> {
        if id == 0 {
            return Ok(());
        }
        let mut state = self.state.lock();
        let (seen, order) = &mut *state;
        if !seen.insert(id) {
            return Err(Status::aborted(format!(
                "The same {what} request was received twice. {detail}"
            )));
        }
        order.push_back(id);
        if order.len() > self.capacity
            && let Some(old) = order.pop_front()
        {
            seen.remove(&old);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeat_is_refused_until_it_is_forgotten() {
        let r = RecentRequests::new(2);
        for id in [1, 2, 0, 0] {
            r.admit(id, "RunStep (Master)", "").unwrap();
        }
        let e = r.admit(1, "RunStep (Master)", "x").unwrap_err();
        assert_eq!(
            e.message,
            "The same RunStep (Master) request was received twice. x"
        );
        r.admit(3, "RunStep (Master)", "").unwrap();
        r.admit(1, "RunStep (Master)", "").unwrap();
    }
}
