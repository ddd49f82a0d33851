//! Who takes part in a step: pure bookkeeping, given what is known at each moment.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// What is known of the workers, and of the step that is being gathered.
pub(crate) struct Members {
    aggregate: usize,
    patience: Duration,
    lease: Duration,
    workers: Vec<Member>,
    step: i64,
    /// Who has pushed gradients of this step.
    arrived: BTreeSet<usize>,
    since: Instant,
}

struct Member {
    beats: i64,
    /// When the count of its beats last changed, or it was last heard of otherwise.
    heard: Instant,
    has_left: bool,
}

impl Members {
    pub(crate) fn new(
        replicas: usize,
        aggregate: usize,
        patience: Duration,
        lease: Duration,
        now: Instant,
    ) -> Members {
        let member = || Member {
            beats: 0,
            heard: now,
            has_left: false,
        };
        Members {
            aggregate,
            patience,
            lease,
            workers: (0..replicas).map(|_| member()).collect(),
            step: 0,
            arrived: BTreeSet::new(),
            since: now,
        }
    }

    /// Begins to gather a step.
    pub(crate) fn begin(&mut self, step: i64, now: Instant) {
        self.step = step;
        self.arrived.clear();
        self.since = now;
    }

    /// The step that is being gathered.
    pub(crate) fn step(&self) -> i64 {
        self.step
    }

    /// A worker has pushed gradients of a step.
    pub(crate) fn arrived(&mut self, worker: usize, step: i64, now: Instant) {
        if let Some(member) = self.workers.get_mut(worker) {
            member.heard = now;
            member.has_left = false;
            if step >= self.step {
                self.arrived.insert(worker);
            }
        }
    }

    /// How often each worker has beaten, and which have left.
    pub(crate) fn heard(&mut self, beats: &[i64], left: &[i64], now: Instant) {
        for ((member, &beats), &left) in self.workers.iter_mut().zip(beats).zip(left) {
            if member.beats != beats {
                (member.beats, member.heard) = (beats, now);
            }
            member.has_left = left != 0;
        }
    }

    fn is_member(&self, worker: usize, now: Instant) -> bool {
        let member = &self.workers[worker];
        !member.has_left && now.duration_since(member.heard) < self.lease
    }

    /// Workers that take part.
    pub(crate) fn present(&self, now: Instant) -> Vec<usize> {
        let all = 0..self.workers.len();
        all.filter(|w| self.is_member(*w, now)).collect()
    }

    /// With how many gradients the step can be made, if it can be made now.
    pub(crate) fn complete(&self, now: Instant) -> Option<usize> {
        let required = self.aggregate.min(self.present(now).len()).max(1);
        (self.arrived.len() >= required).then_some(self.arrived.len())
    }

    /// Who is waited for, once that has taken longer than patience.
    pub(crate) fn missing(&self, now: Instant) -> Vec<usize> {
        if now.duration_since(self.since) < self.patience || self.complete(now).is_some() {
            return Vec::new();
        }
        let present = self.present(now).into_iter();
        present.filter(|w| !self.arrived.contains(w)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn members(aggregate: usize) -> (Members, Instant) {
        let now = Instant::now();
        let mut members = Members::new(3, aggregate, 5 * SECOND, 30 * SECOND, now);
        members.begin(7, now);
        (members, now)
    }

    #[test]
    fn all_are_waited_for_and_old_gradients_do_not_count() {
        let (mut m, now) = members(3);
        m.arrived(0, 7, now);
        m.arrived(0, 7, now);
        m.arrived(1, 6, now);
        m.arrived(2, 7, now);
        assert_eq!(m.complete(now), None);
        assert!(m.missing(now + 4 * SECOND).is_empty());
        assert_eq!(m.missing(now + 5 * SECOND), [1]);
        m.arrived(1, 7, now);
        assert_eq!(m.complete(now), Some(3));
        assert!(m.missing(now + 9 * SECOND).is_empty());
    }

    #[test]
    fn backups_make_a_step_without_the_slowest() {
        let (mut m, now) = members(2);
        m.arrived(2, 7, now);
        assert_eq!(m.complete(now), None);
        m.arrived(0, 7, now);
        assert_eq!(m.complete(now), Some(2));
    }

    #[test]
    fn who_leaves_or_falls_silent_is_not_waited_for_and_may_come_back() {
        let (mut m, now) = members(3);
        m.arrived(0, 7, now);
        m.heard(&[1, 1, 1], &[0, 0, 1], now);
        assert_eq!(m.present(now), [0, 1]);
        // Worker 1 does not beat any more; worker 0 does.
        let later = now + 31 * SECOND;
        m.heard(&[2, 1, 1], &[0, 0, 1], later);
        assert_eq!(m.present(later), [0]);
        assert_eq!(m.complete(later), Some(1));
        m.heard(&[3, 2, 1], &[0, 0, 0], later);
        assert_eq!(m.present(later), [0, 1]);
        m.arrived(2, 8, later);
        assert_eq!(m.present(later), [0, 1, 2]);
        assert_eq!(m.complete(later), None);
    }
}
