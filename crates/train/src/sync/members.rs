//! Who takes part in a step: pure bookkeeping, given what is known at each moment.

use super::SyncReplicas;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// What is known of the workers, and of the step that is being gathered.
pub(crate) struct Members {
    aggregate: usize,
    patience: Duration,
    lease: Duration,
    workers: Vec<Member>,
    /// When the workers' beats were last looked at. Leases are judged as of then: whoever has not
    /// looked, because it was itself stopped for a while, cannot say that others were silent.
    looked: Instant,
    step: i64,
    /// Who has pushed gradients of this step.
    arrived: BTreeSet<usize>,
    since: Instant,
    /// How long a step takes that nobody holds up.
    usual: Duration,
}

struct Member {
    beats: i64,
    /// When the count of its beats last changed, or it was last heard of otherwise.
    heard: Instant,
    /// Whether it was ever heard of.
    is_known: bool,
    has_left: bool,
    /// Its process is gone; cleared when it is heard of again.
    is_gone: bool,
}

/// A worker that beats is slow rather than missing until a step took so many times its usual.
const SLOW: u32 = 3;

impl Members {
    pub(crate) fn new(settings: &SyncReplicas, now: Instant) -> Members {
        let member = || Member {
            beats: 0,
            heard: now,
            is_known: false,
            has_left: false,
            is_gone: false,
        };
        Members {
            aggregate: settings.aggregate,
            patience: settings.patience,
            lease: settings.lease,
            workers: (0..settings.replicas).map(|_| member()).collect(),
            looked: now,
            step: 0,
            arrived: BTreeSet::new(),
            since: now,
            usual: Duration::ZERO,
        }
    }

    /// Begins to gather a step.
    pub(crate) fn begin(&mut self, step: i64, now: Instant) {
        if step > self.step {
            let last = now.duration_since(self.since);
            self.usual = last
                .min(2 * self.usual + self.patience)
                .max(self.usual * 9 / 10);
        }
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
            (member.heard, member.is_known) = (now, true);
            (member.has_left, member.is_gone) = (false, false);
            if step >= self.step {
                self.arrived.insert(worker);
            }
        }
    }

    /// How often each worker has beaten, and which have left.
    pub(crate) fn heard(&mut self, beats: &[i64], left: &[i64], now: Instant) {
        self.looked = now;
        for ((member, &beats), &left) in self.workers.iter_mut().zip(beats).zip(left) {
            if member.beats != beats {
                (member.beats, member.heard) = (beats, now);
                (member.is_known, member.is_gone) = (true, false);
            }
            member.has_left = left != 0;
        }
    }

    /// Counts all as heard of just now.
    pub(crate) fn excuse(&mut self) {
        for member in &mut self.workers {
            member.heard = member.heard.max(self.looked);
        }
    }

    /// A worker's process is gone.
    pub(crate) fn gone(&mut self, worker: usize) {
        self.workers[worker].is_gone = true;
    }

    fn silence(&self, worker: usize) -> Duration {
        let heard = self.workers[worker].heard;
        self.looked.saturating_duration_since(heard)
    }

    fn is_member(&self, worker: usize) -> bool {
        let member = &self.workers[worker];
        !member.has_left && !member.is_gone && self.silence(worker) < self.lease
    }

    /// Workers that take part.
    pub(crate) fn present(&self) -> Vec<usize> {
        let all = 0..self.workers.len();
        all.filter(|w| self.is_member(*w)).collect()
    }

    /// Workers that took part and of which nothing was heard for so long.
    pub(crate) fn silent(&self, after: Duration) -> Vec<usize> {
        let present = self.present().into_iter();
        let silent = |w: &usize| self.workers[*w].is_known && self.silence(*w) >= after;
        present.filter(silent).collect()
    }

    /// With how many gradients the step can be made, if it can be made now.
    pub(crate) fn complete(&self) -> Option<usize> {
        let required = self.aggregate.min(self.present().len()).max(1);
        (self.arrived.len() >= required).then_some(self.arrived.len())
    }

    /// Whom to wait for all at once: all that take part, if each is needed and none is known to have come.
    pub(crate) fn awaited(&self) -> Option<Vec<usize>> {
        let present = self.present();
        let is_each_needed = !present.is_empty() && present.len() <= self.aggregate;
        (is_each_needed && self.arrived.is_empty()).then_some(present)
    }

    /// Whose gradients are waited for longer than patience: those that do not beat, and others only
    /// if it takes much longer than it usually does.
    pub(crate) fn missing(&self, now: Instant) -> Vec<usize> {
        let waited = now.duration_since(self.since);
        if waited < self.patience || self.complete().is_some() {
            return Vec::new();
        }
        let too_long = waited >= self.usual * SLOW;
        let is_missing = |w: &usize| {
            let silent = !self.workers[*w].is_known || self.silence(*w) >= self.patience;
            !self.arrived.contains(w) && (silent || too_long)
        };
        self.present().into_iter().filter(is_missing).collect()
    }

    /// What is known of a worker that is missing, for people.
    pub(crate) fn known_of(&self, worker: usize, now: Instant) -> String {
        let silence = self.silence(worker).as_secs_f32();
        match self.workers[worker].is_known {
            false => "it has not come yet".to_owned(),
            true if silence >= 1.5 => format!("nothing was heard of it for {silence:.1} s"),
            true => {
                let waited = now.duration_since(self.since).as_secs_f32();
                format!("it is alive, but has sent no gradients for {waited:.1} s")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn members(aggregate: usize) -> (Members, Instant) {
        let now = Instant::now();
        let settings = SyncReplicas::new(3, 0).backups(3 - aggregate);
        let settings = settings.patience(5 * SECOND).lease(30 * SECOND);
        let mut members = Members::new(&settings, now);
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
        assert_eq!(m.complete(), None);
        assert!(m.missing(now + 4 * SECOND).is_empty());
        assert_eq!(m.missing(now + 5 * SECOND), [1]);
        m.arrived(1, 7, now);
        assert_eq!(m.complete(), Some(3));
        assert!(m.missing(now + 9 * SECOND).is_empty());
    }

    #[test]
    fn all_are_awaited_at_once_while_each_is_needed_and_none_has_come() {
        let (mut m, now) = members(3);
        assert_eq!(m.awaited(), Some(vec![0, 1, 2]));
        m.heard(&[1, 1, 1], &[0, 1, 0], now);
        assert_eq!(m.awaited(), Some(vec![0, 2]));
        m.arrived(2, 7, now);
        assert_eq!(m.awaited(), None);
        m.begin(8, now);
        assert_eq!(m.awaited(), Some(vec![0, 2]));
        m.heard(&[1, 1, 1], &[1, 1, 1], now);
        assert_eq!(m.awaited(), None);
        // With a backup it is not known beforehand who comes.
        assert_eq!(members(2).0.awaited(), None);
    }

    #[test]
    fn backups_make_a_step_without_the_slowest() {
        let (mut m, now) = members(2);
        m.arrived(2, 7, now);
        assert_eq!(m.complete(), None);
        m.arrived(0, 7, now);
        assert_eq!(m.complete(), Some(2));
    }

    #[test]
    fn who_leaves_or_falls_silent_is_not_waited_for_and_may_come_back() {
        let (mut m, now) = members(3);
        m.arrived(0, 7, now);
        m.heard(&[1, 1, 1], &[0, 0, 1], now);
        assert_eq!(m.present(), [0, 1]);
        // Worker 1 does not beat any more; worker 0 does.
        let later = now + 31 * SECOND;
        m.heard(&[2, 1, 1], &[0, 0, 1], later);
        assert_eq!(m.present(), [0]);
        assert_eq!(m.complete(), Some(1));
        m.heard(&[3, 2, 1], &[0, 0, 0], later);
        assert_eq!(m.present(), [0, 1]);
        m.arrived(2, 8, later);
        assert_eq!(m.present(), [0, 1, 2]);
        assert_eq!(m.complete(), None);
    }

    #[test]
    fn a_process_that_is_gone_is_not_waited_for_until_it_is_heard_of_again() {
        let (mut m, now) = members(3);
        m.arrived(0, 7, now);
        m.heard(&[1, 0, 1], &[0, 0, 0], now);
        m.arrived(2, 7, now);
        // Worker 1 was never heard of: it may still be starting.
        m.heard(&[3, 0, 1], &[0, 0, 0], now + 2 * SECOND);
        assert_eq!(m.silent(SECOND), [2]);
        m.heard(&[3, 1, 1], &[0, 0, 0], now + 2 * SECOND);
        m.heard(&[5, 1, 3], &[0, 0, 0], now + 4 * SECOND);
        assert_eq!(m.silent(SECOND), [1]);
        m.gone(1);
        assert_eq!(m.present(), [0, 2]);
        assert_eq!(m.complete(), Some(2));
        m.heard(&[6, 2, 4], &[0, 0, 0], now + 5 * SECOND);
        assert_eq!(m.present(), [0, 1, 2]);
    }

    #[test]
    fn a_chief_that_was_stopped_itself_does_not_think_that_all_others_left() {
        let (mut m, now) = members(3);
        m.heard(&[1, 1, 1], &[0, 0, 0], now);
        m.arrived(0, 7, now + 60 * SECOND);
        assert_eq!(m.present(), [0, 1, 2]);
        assert_eq!(m.complete(), None);
    }

    #[test]
    fn slow_steps_are_no_reason_to_name_a_worker_that_beats() {
        let (mut m, now) = members(3);
        m.begin(8, now + 10 * SECOND);
        let at = |s: u32| now + (10 + s) * SECOND;
        m.arrived(0, 8, at(1));
        m.heard(&[1, 1, 1], &[0, 0, 0], at(2));
        m.heard(&[2, 2, 1], &[0, 0, 0], at(8));
        assert_eq!(m.missing(at(8)), [2]);
        m.heard(&[3, 3, 2], &[0, 0, 0], at(9));
        assert!(m.missing(at(9)).is_empty());
        m.heard(&[4, 4, 3], &[0, 0, 0], at(40));
        assert_eq!(m.missing(at(40)), [1, 2]);
    }
}
