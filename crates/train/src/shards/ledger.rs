//! The record of who works on what: a pure state machine. A call is an event, what it returns is
//! what the caller must do; the same ledger and the same event give the same answer.
//!
//! Portions are handed out in order, so the ledger needs to name only those that are out and those
//! that came back undone: all others below `next` are done. It stays as small as the number of workers,
//! whatever the size of the data. What must hold is checked over seeded orders of events in `explored.rs`.

use super::portion::{Division, GOLDEN, Portion};
use std::collections::BTreeSet;

/// Who holds a portion: a worker, and which of its lives. A worker that was restarted remembers
/// nothing of what it was given before.
///
/// ```
/// use downpour::train::shards::{Answer, Ledger, Division, Holder};
/// let mut ledger = Ledger::new(Division::new(100, 10));
/// let before = Holder { worker: 3, life: 1 };
/// assert!(matches!(ledger.lease(before), Answer::Work(p) if p.number == 0));
/// // Its next life is given what the last one left behind.
/// let after = Holder { worker: 3, life: 2 };
/// assert!(matches!(ledger.lease(after), Answer::Work(p) if p.number == 0));
/// assert_eq!(ledger.counts().reissued, 1);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Holder {
    /// Its number among the workers.
    pub worker: u64,
    /// A number that no other life of it has.
    pub life: u64,
}

/// What a worker that asks for work is told.
///
/// ```
/// use downpour::train::shards::{Answer, Ledger, Division, Holder};
/// // One portion, once.
/// let mut ledger = Ledger::new(Division::new(10, 10).epochs(1));
/// let [a, b] = [1, 2].map(|worker| Holder { worker, life: 0 });
/// let Answer::Work(portion) = ledger.lease(a) else { panic!("nothing was handed out") };
/// assert_eq!(ledger.lease(b), Answer::Wait);
/// ledger.done(a, portion.sequence);
/// assert_eq!(ledger.lease(b), Answer::Over);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Work on this, and say when it is done.
    Work(Portion),
    /// Others work on all that is left: ask again, they may die.
    Wait,
    /// Everything is done.
    Over,
}

/// What became of a portion that a worker says is done.
///
/// ```
/// use downpour::train::shards::{Answer, Ledger, Division, Done, Holder};
/// let mut ledger = Ledger::new(Division::new(10, 10).copies(2).epochs(1));
/// let [a, b] = [1, 2].map(|worker| Holder { worker, life: 0 });
/// assert!(matches!(ledger.lease(a), Answer::Work(_)));
/// assert!(matches!(ledger.lease(b), Answer::Work(_)), "a copy");
/// assert_eq!(ledger.done(b, 0), Done::First);
/// assert_eq!(ledger.done(a, 0), Done::Again);
/// assert_eq!(ledger.done(a, 1), Done::Never);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// It is complete now.
    First,
    /// It was complete before: the result of another life or worker counts.
    Again,
    /// It was never handed out.
    Never,
}

/// What has happened so far.
///
/// ```
/// use downpour::train::shards::{Ledger, Division, Holder};
/// let mut ledger = Ledger::new(Division::new(100, 10));
/// let [a, b] = [1, 2].map(|worker| Holder { worker, life: 0 });
/// ledger.lease(a);
/// ledger.expire(a);
/// ledger.lease(b);
/// let counts = ledger.counts();
/// assert_eq!((counts.issued, counts.reissued, counts.expired), (2, 1, 1));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Counts {
    /// Times that a portion was handed out.
    pub issued: u64,
    /// Of these, times that it had come back undone before.
    pub reissued: u64,
    /// Of these, times that another worker was at it already.
    pub copied: u64,
    /// Leases that ended because their holders fell silent, left, or were restarted.
    pub expired: u64,
    /// Portions that are complete.
    pub completed: u64,
    /// Times that a portion was done that was complete already.
    pub repeated: u64,
}

/// A portion that is out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Lease {
    pub(super) sequence: u64,
    pub(super) holder: Holder,
    /// How often its holder has said that it is still at it.
    pub(super) beats: u64,
}

/// Who works on what.
///
/// ```
/// use downpour::train::shards::{Answer, Ledger, Division, Holder};
/// let mut ledger = Ledger::new(Division::new(100, 10).epochs(2));
/// let worker = Holder { worker: 0, life: 0 };
/// let mut seen = 0;
/// while let Answer::Work(portion) = ledger.lease(worker) {
///     seen += portion.len();
///     ledger.done(worker, portion.sequence);
/// }
/// assert_eq!((seen, ledger.epochs_done()), (200, 2));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ledger {
    pub(super) division: Division,
    /// The first portion that was never handed out.
    pub(super) next: u64,
    /// Ordered by portion, then by when it was handed out.
    pub(super) out: Vec<Lease>,
    /// Portions that came back undone.
    pub(super) back: BTreeSet<u64>,
    pub(super) counts: Counts,
}

impl Ledger {
    /// Nothing is handed out yet.
    pub fn new(division: Division) -> Ledger {
        Ledger {
            division,
            next: 0,
            out: Vec::new(),
            back: BTreeSet::new(),
            counts: Counts::default(),
        }
    }

    /// How the data is divided.
    pub fn division(&self) -> &Division {
        &self.division
    }

    /// What has happened so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// A worker asks for work. One that holds a portion gets another; one that was restarted gives
    /// back what its last life held.
    pub fn lease(&mut self, holder: Holder) -> Answer {
        self.take_back(|h| h.worker == holder.worker && h.life != holder.life);
        let sequence = if let Some(sequence) = self.back.pop_first() {
            self.counts.reissued += 1;
            sequence
        } else if self.may_issue() {
            self.next += 1;
            self.next - 1
        } else if let Some(sequence) = self.copyable(holder) {
            self.counts.copied += 1;
            sequence
        } else if self.out.is_empty() {
            return Answer::Over;
        } else {
            return Answer::Wait;
        };
        self.counts.issued += 1;
        let at = self.out.partition_point(|l| l.sequence <= sequence);
        let lease = Lease {
            sequence,
            holder,
            beats: 0,
        };
        self.out.insert(at, lease);
        Answer::Work(self.division.portion(sequence))
    }

    /// A worker has done a portion, within its lease or after it.
    pub fn done(&mut self, _holder: Holder, sequence: u64) -> Done {
        if sequence >= self.next {
            return Done::Never;
        }
        if !self.is_open(sequence) {
            self.counts.repeated += 1;
            return Done::Again;
        }
        self.back.remove(&sequence);
        self.out.retain(|l| l.sequence != sequence);
        self.counts.completed += 1;
        Done::First
    }

    /// A worker says that it is still at what it holds.
    pub fn renew(&mut self, holder: Holder) {
        let own = self.out.iter_mut().filter(|l| l.holder == holder);
        own.for_each(|l| l.beats += 1);
    }

    /// A worker leaves, or has been silent for too long: what it held is handed out again.
    pub fn expire(&mut self, holder: Holder) {
        self.take_back(|h| h == holder);
    }

    /// What a worker holds.
    pub fn held_by(&self, holder: Holder) -> impl Iterator<Item = Portion> + '_ {
        let own = self.out.iter().filter(move |l| l.holder == holder);
        own.map(|l| self.division.portion(l.sequence))
    }

    /// Whoever holds something, and a number that changes when they are heard of.
    pub fn holders(&self) -> impl Iterator<Item = (Holder, u64)> + '_ {
        let mut all: Vec<(Holder, u64)> = Vec::new();
        for lease in &self.out {
            match all.iter_mut().find(|(holder, _)| *holder == lease.holder) {
                Some((_, signs)) => *signs = signs.wrapping_add(sign(lease)),
                None => all.push((lease.holder, sign(lease))),
            }
        }
        all.into_iter()
    }

    /// How many epochs are complete: all portions of each were done.
    pub fn epochs_done(&self) -> u64 {
        let out = self.out.first().map_or(self.next, |l| l.sequence);
        let back = self.back.first().copied().unwrap_or(self.next);
        out.min(back) / self.division.per_epoch()
    }

    /// Whether nothing is left to do.
    pub fn is_over(&self) -> bool {
        self.next >= self.division.limit() && self.out.is_empty() && self.back.is_empty()
    }

    /// Whether a portion was handed out and is not done yet.
    pub fn is_open(&self, sequence: u64) -> bool {
        self.back.contains(&sequence) || self.out.iter().any(|l| l.sequence == sequence)
    }

    fn may_issue(&self) -> bool {
        let epoch = self.next / self.division.per_epoch();
        self.next < self.division.limit() && (self.division.overlap || epoch == self.epochs_done())
    }

    /// A portion that too few work on, this one not among them; the least worked on, the oldest.
    fn copyable(&self, holder: Holder) -> Option<u64> {
        let mut best: Option<(usize, u64)> = None;
        for leases in self.out.chunk_by(|a, b| a.sequence == b.sequence) {
            let sequence = leases.first()?.sequence;
            let own = leases.iter().any(|l| l.holder.worker == holder.worker);
            let is_better = best.is_none_or(|(count, _)| leases.len() < count);
            if !own && leases.len() < self.division.copies && is_better {
                best = Some((leases.len(), sequence));
            }
        }
        best.map(|(_, sequence)| sequence)
    }

    fn take_back(&mut self, mut lost: impl FnMut(Holder) -> bool) {
        let (gone, kept): (Vec<Lease>, Vec<Lease>) =
            self.out.iter().partition(|lease| lost(lease.holder));
        self.out = kept;
        self.counts.expired += gone.len() as u64;
        for lease in gone {
            // If another works on it too, nothing is lost.
            if !self.out.iter().any(|l| l.sequence == lease.sequence) {
                self.back.insert(lease.sequence);
            }
        }
    }
}

/// Changes with every beat of a lease, and is another for another portion: taking one is a sign of
/// life as well.
fn sign(lease: &Lease) -> u64 {
    let portion = lease.sequence.wrapping_add(1).wrapping_mul(GOLDEN);
    portion.wrapping_add(lease.beats)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Holder = Holder { worker: 0, life: 9 };
    const B: Holder = Holder { worker: 1, life: 9 };

    fn number(answer: Answer) -> u64 {
        match answer {
            Answer::Work(portion) => portion.sequence,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_epoch_is_over_when_its_last_portion_is_done() {
        let mut ledger = Ledger::new(Division::new(30, 10));
        for sequence in 0..4 {
            assert_eq!(number(ledger.lease(A)), sequence);
        }
        for sequence in [3, 0, 2] {
            assert_eq!(ledger.done(A, sequence), Done::First);
            assert_eq!(ledger.epochs_done(), 0);
        }
        ledger.done(A, 1);
        assert_eq!(ledger.epochs_done(), 1);
    }

    #[test]
    fn the_next_epoch_waits_where_epochs_come_in_turn() {
        let mut ledger = Ledger::new(Division::new(20, 10).in_turn());
        ledger.lease(A);
        ledger.lease(B);
        assert_eq!(ledger.lease(A), Answer::Wait);
        ledger.done(B, 1);
        assert_eq!(ledger.lease(B), Answer::Wait);
        ledger.done(A, 0);
        assert_eq!(number(ledger.lease(B)), 2);
    }

    #[test]
    fn what_was_lost_comes_first_and_late_work_still_counts() {
        let mut ledger = Ledger::new(Division::new(100, 10));
        ledger.lease(A);
        ledger.lease(B);
        ledger.expire(A);
        // A was slow rather than dead.
        assert_eq!(ledger.done(A, 0), Done::First);
        ledger.expire(B);
        assert_eq!(number(ledger.lease(A)), 1);
        assert_eq!(ledger.done(B, 1), Done::First);
        assert_eq!(ledger.done(A, 1), Done::Again);
        assert_eq!(number(ledger.lease(A)), 2);
    }

    #[test]
    fn a_copy_goes_to_another_worker_and_only_when_all_is_out() {
        let mut ledger = Ledger::new(Division::new(20, 10).epochs(1).copies(2));
        assert_eq!(number(ledger.lease(A)), 0);
        assert_eq!(number(ledger.lease(B)), 1);
        assert_eq!(number(ledger.lease(A)), 1);
        assert_eq!(ledger.lease(A), Answer::Wait);
        ledger.expire(B);
        // A holds a copy: it is not lost.
        assert_eq!(ledger.counts().expired, 1);
        assert_eq!(number(ledger.lease(B)), 0);
    }
}
