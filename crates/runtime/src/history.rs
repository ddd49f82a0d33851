//! What happened to one variable: how often it was updated, and how many updates of others came
//! between a step's read and its own update (its staleness).
//!
//! A step's read and its update are both noted under the variable's lock, so that the fields are atomic only for
//! those who ask for the facts. Neither allocates. [`Reads`] remembers who has read: it forgets a step that has not
//! updated yet only when [`Reads::SLOTS`] others are in the same state, and measures no update wrongly.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

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
    reads: Reads,
    staleness: Staleness,
}

impl History {
    /// A step reads the value; called under the variable's lock. The first read counts: what a step
    /// computes from is at least as old.
    pub(crate) fn read_by(&self, step: u64) {
        self.reads.note(step, self.updates.load(Relaxed));
    }

    /// A step updates the value; called under the variable's lock. How stale it was, if that is
    /// known.
    pub(crate) fn updated_by(&self, step: u64) -> Option<u64> {
        let before = self.updates.fetch_add(1, Relaxed);
        let read = self.reads.updated(step, before + 1)?;
        let stale = before - read;
        self.staleness.note(stale);
        Some(stale)
    }

    pub(crate) fn updates(&self) -> u64 {
        self.updates.load(Relaxed)
    }

    pub(crate) fn staleness(&self) -> StalenessFacts {
        self.staleness.facts()
    }
}

/// Which steps have read a variable, and how often it had been updated then.
///
/// A step that reads gets a slot that is free, or one whose step has updated the variable since. If all wait for an update, the
/// new step gets that which was given out first, or nearly so. A search compares tags, which lie in two lines of the cache, and
/// looks at a step's whole id only where the tag fits.
#[derive(Debug, Default)]
struct Reads {
    /// Bits of the step's id with [`IN_USE`], and [`UPDATED`] if it has; 0 if the slot is free.
    tags: [AtomicU32; Reads::SLOTS],
    steps: [AtomicU64; Reads::SLOTS],
    counts: [AtomicU64; Reads::SLOTS],
    /// Where the next search for a slot begins.
    next: AtomicU32,
}

/// The step has updated the variable. It may do so again, in a loop, but others need the slot more.
const UPDATED: u32 = 1;
/// A step has the slot.
const IN_USE: u32 = 2;

impl Reads {
    /// Steps that are remembered: more workers than share a variable without partitioning it, and few enough to search
    /// in some nanoseconds.
    const SLOTS: usize = 32;

    fn tag(step: u64) -> u32 {
        ((step ^ (step >> 30)) as u32) << 2 | IN_USE
    }

    fn find(&self, step: u64) -> Option<usize> {
        let tag = Reads::tag(step);
        let same = |(i, t): (usize, &AtomicU32)| {
            (t.load(Relaxed) & !UPDATED == tag && self.steps[i].load(Relaxed) == step).then_some(i)
        };
        self.tags.iter().enumerate().find_map(same)
    }

    /// A step reads after `updates` updates. It may have read before.
    fn note(&self, step: u64, updates: u64) {
        if self.find(step).is_some() {
            return;
        }
        let first = self.next.load(Relaxed) as usize;
        let round = (first..first + Reads::SLOTS).map(|i| i % Reads::SLOTS);
        let is_waiting = |tag: u32| tag & (IN_USE | UPDATED) == IN_USE;
        let mut free = round.filter(|i| !is_waiting(self.tags[*i].load(Relaxed)));
        let slot = free.next().unwrap_or(first % Reads::SLOTS);
        self.tags[slot].store(Reads::tag(step), Relaxed);
        self.steps[slot].store(step, Relaxed);
        self.counts[slot].store(updates, Relaxed);
        self.next
            .store((slot as u32 + 1) % Reads::SLOTS as u32, Relaxed);
    }

    /// A step updates, and `updates` there are now. How many there were when it read or updated last, if that is known.
    fn updated(&self, step: u64, updates: u64) -> Option<u64> {
        let slot = self.find(step)?;
        self.tags[slot].fetch_or(UPDATED, Relaxed);
        // A loop that updates again is late by what came since.
        Some(self.counts[slot].swap(updates, Relaxed))
    }
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
        history.updated_by(32);
        assert_eq!(seen(&history), []);
        assert_eq!(history.updates(), 2);
    }

    #[test]
    fn a_loop_that_updates_again_is_late_by_what_came_since() {
        let history = History::default();
        history.read_by(1);
        history.updated_by(2);
        assert_eq!(history.updated_by(1), Some(1));
        history.updated_by(2);
        history.updated_by(2);
        assert_eq!(history.updated_by(1), Some(2));
    }

    #[test]
    fn much_staleness_falls_into_wide_classes() {
        let history = History::default();
        for (step, others) in [(1, 16), (2, 31), (3, 1000)] {
            history.read_by(step);
            for _ in 0..others {
                history.updated_by(99);
            }
            history.updated_by(step);
        }
        assert_eq!(seen(&history), [(16, 2), (128, 1)]);
    }

    #[test]
    fn no_update_is_lost_while_as_many_steps_are_under_way_as_there_are_slots() {
        // Ids as servers draw them, at random, and such as follow each other or fall into one class.
        let mut state = 1u64;
        let mut random = move || {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            state >> 8
        };
        for stride in [0, 1, 32, 1 << 40] {
            let history = History::default();
            let mut under_way: Vec<(u64, u64)> = Vec::new();
            let mut updates = 0;
            for i in 0..20_000 {
                if under_way.len() < Reads::SLOTS && (random() % 2 == 0 || under_way.is_empty()) {
                    let step = match stride {
                        0 => random(),
                        n => i * n,
                    };
                    history.read_by(step);
                    under_way.push((step, updates));
                } else {
                    // Seldom the first, which becomes very late.
                    let last = under_way.len() as u64;
                    let at = match random() % 64 {
                        0 => 0,
                        n => n % last,
                    };
                    let (step, read) = under_way.swap_remove(at as usize);
                    assert_eq!(history.updated_by(step), Some(updates - read));
                    updates += 1;
                }
            }
        }
    }

    #[test]
    fn a_step_among_many_that_only_read_is_forgotten_and_not_measured_wrongly() {
        let history = History::default();
        history.read_by(1);
        for reader in 2..1000 {
            history.read_by(reader);
        }
        assert_eq!(history.updated_by(1), None);
        assert_eq!(history.updated_by(999), Some(1));
    }
}
