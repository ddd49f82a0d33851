//! What happened to one variable: how often it was updated, and how many updates of others came
//! between a step's read and its own update (its staleness).
//!
//! Nothing here locks or allocates on the way of a step: a read stores one number, an update adds
//! to two. Reads are remembered in a few slots by step id; when more steps are under way than
//! there are slots, some go unmeasured, none is measured wrongly.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Steps whose reads are remembered.
const SLOTS: usize = 32;
/// Bits of a slot that hold the count of updates at the read; the rest names the step.
const COUNT_BITS: u32 = 40;

/// The least staleness of each class of the histogram.
pub const STALENESS_FROM: [u64; 20] = [
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 32, 64, 128,
];

/// How often each class of staleness was seen.
pub type StalenessCounts = [u64; STALENESS_FROM.len()];

/// How stale updates were: those of one variable, or of whoever made them.
#[derive(Debug, Default)]
pub struct Staleness {
    counts: [AtomicU64; STALENESS_FROM.len()],
    total: AtomicU64,
    worst: AtomicU64,
}

impl Staleness {
    /// An update was so many updates late.
    pub fn note(&self, stale: u64) {
        let class = STALENESS_FROM.partition_point(|&from| from <= stale);
        if let Some(count) = self.counts.get(class.saturating_sub(1)) {
            count.fetch_add(1, Relaxed);
        }
        if stale > 0 {
            self.total.fetch_add(stale, Relaxed);
            self.worst.fetch_max(stale, Relaxed);
        }
    }

    /// What was noted so far.
    pub fn facts(&self) -> StalenessFacts {
        let count = |i: usize| self.counts.get(i).map_or(0, |n| n.load(Relaxed));
        StalenessFacts {
            counts: std::array::from_fn(count),
            total: self.total.load(Relaxed),
            worst: self.worst.load(Relaxed),
        }
    }
}

/// How stale updates were, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StalenessFacts {
    /// How often each class of [`STALENESS_FROM`] was seen.
    pub counts: StalenessCounts,
    /// Of all updates together.
    pub total: u64,
    /// The largest.
    pub worst: u64,
}

impl StalenessFacts {
    /// How many updates were measured.
    pub fn updates(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// The history of one variable.
#[derive(Debug, Default)]
pub(crate) struct History {
    updates: AtomicU64,
    reads: [AtomicU64; SLOTS],
    staleness: Staleness,
}

impl History {
    /// A step reads the value; called while nobody updates it. The first read counts: what a step
    /// computes from is at least as old.
    pub(crate) fn read_by(&self, step: u64) {
        let (slot, name) = self.slot(step);
        if slot.load(Relaxed) >> COUNT_BITS != name {
            slot.store(pack(name, self.updates.load(Relaxed)), Relaxed);
        }
    }

    /// A step updates the value; called under the variable's lock. How stale it was, if that is
    /// known.
    pub(crate) fn updated_by(&self, step: u64) -> Option<u64> {
        let before = self.updates.fetch_add(1, Relaxed);
        let (slot, name) = self.slot(step);
        let read = slot.load(Relaxed);
        if read >> COUNT_BITS != name {
            return None;
        }
        let stale = pack(0, before).wrapping_sub(pack(0, read)) & COUNT_MASK;
        self.staleness.note(stale);
        // A loop that updates again is late by what came since.
        slot.store(pack(name, before + 1), Relaxed);
        Some(stale)
    }

    pub(crate) fn updates(&self) -> u64 {
        self.updates.load(Relaxed)
    }

    pub(crate) fn staleness(&self) -> StalenessFacts {
        self.staleness.facts()
    }

    /// The slot of a step, and its name there, which is never that of an empty one.
    fn slot(&self, step: u64) -> (&AtomicU64, u64) {
        let name = (step / SLOTS as u64) | 1 << (63 - COUNT_BITS);
        let slot = &self.reads[step as usize % SLOTS];
        (slot, name & (u64::MAX >> COUNT_BITS))
    }
}

const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;

fn pack(name: u64, count: u64) -> u64 {
    name << COUNT_BITS | count & COUNT_MASK
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(history: &History) -> Vec<(u64, u64)> {
        let counts = history.staleness().counts;
        let both = STALENESS_FROM.into_iter().zip(counts);
        both.filter(|(_, n)| *n > 0).collect()
    }

    #[test]
    fn staleness_is_what_others_did_between_read_and_update() {
        let history = History::default();
        for step in [5, 6, 7] {
            history.read_by(step);
        }
        for (step, stale) in [(5, 0), (6, 1), (7, 2)] {
            assert_eq!(history.updated_by(step), Some(stale));
        }
        assert_eq!(seen(&history), [(0, 1), (1, 1), (2, 1)]);
        let facts = history.staleness();
        assert_eq!((facts.updates(), facts.total, facts.worst), (3, 3, 2));
        assert_eq!(history.updates(), 3);
    }

    #[test]
    fn the_first_read_of_a_step_counts() {
        let history = History::default();
        history.read_by(1);
        history.updated_by(2);
        history.read_by(1);
        history.updated_by(1);
        assert_eq!(seen(&history), [(1, 1)]);
    }

    #[test]
    fn a_step_that_read_nothing_is_not_measured() {
        let history = History::default();
        assert_eq!(history.updated_by(0), None);
        history.updated_by(SLOTS as u64);
        history.read_by(3);
        // Takes the slot of step 3.
        history.read_by(3 + SLOTS as u64);
        history.updated_by(3);
        assert_eq!(seen(&history), []);
        assert_eq!(history.updates(), 3);
    }

    #[test]
    fn much_staleness_falls_into_wide_classes() {
        let history = History::default();
        for others in [16, 31, 1000] {
            history.read_by(1);
            for _ in 0..others {
                history.updated_by(2);
            }
            history.updated_by(1);
            history.read_by(1 + SLOTS as u64);
        }
        assert_eq!(seen(&history), [(16, 2), (128, 1)]);
    }
}
