//! One worker's part in an election, for all that want to know of it: the session that it supervises, and the
//! threads beside it that must not wait for a step to end.

use super::{Election, Fence};
use parking_lot::Mutex;
use std::sync::Arc;

/// An election that several ask. Clones are the same one.
///
/// ```
/// use downpour_train::{Appointed, Election, SharedElection};
/// let mut here = SharedElection::new(Appointed(true));
/// let mut there = here.clone();
/// assert!(here.is_chief() && there.epoch() == Some(0));
/// ```
#[derive(Clone)]
pub struct SharedElection(Arc<Mutex<Box<dyn Election>>>);

impl SharedElection {
    /// Shares an election.
    pub fn new(election: impl Election + 'static) -> SharedElection {
        SharedElection(Arc::new(Mutex::new(Box::new(election))))
    }
}

impl Election for SharedElection {
    fn is_chief(&mut self) -> bool {
        self.0.lock().is_chief()
    }

    fn epoch(&mut self) -> Option<u64> {
        self.0.lock().epoch()
    }

    fn may_change(&self) -> bool {
        self.0.lock().may_change()
    }

    fn fence(&self) -> Option<Arc<dyn Fence>> {
        self.0.lock().fence()
    }

    fn resign(&mut self) {
        self.0.lock().resign();
    }
}
