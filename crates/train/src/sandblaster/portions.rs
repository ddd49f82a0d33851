//! Who computes which part of the batch: portions handed out as replicas become idle, the last ones
//! twice, those of a replica that is silent for too long again. Called by [`super::coordinator`] for
//! one evaluation of the objective.
//!
//! Invariant: a portion is complete when every shard of the parameters has counted it, and no shard
//! counts one twice (the shards see to that, [`super::exchange`]). Time is an argument.

use std::collections::BTreeSet;
use std::time::Duration;

/// Rules of handing out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// How often a portion is handed out while its first taker may still bring it.
    pub(super) copies: u32,
    /// How long a taker may be silent before its portion goes to somebody else.
    pub(super) lease: Duration,
}

/// The portions of one evaluation.
#[derive(Debug)]
pub(super) struct Portions {
    rules: Rules,
    portions: Vec<Portion>,
    /// How many each shard has counted.
    counted: Vec<usize>,
    /// Portions before this one were handed out at least once.
    fresh: usize,
    complete: usize,
    replicas: BTreeSet<i64>,
    handed: u64,
    added: u64,
}

#[derive(Clone, Debug)]
struct Portion {
    copies: u32,
    /// When it was handed out last.
    since: Duration,
    counted: Vec<bool>,
    value: Option<f64>,
}

impl Portions {
    /// So many portions, to be counted by so many shards.
    pub(super) fn new(rules: Rules, count: usize, shards: usize) -> Portions {
        let portion = Portion {
            copies: 0,
            since: Duration::ZERO,
            counted: vec![false; shards],
            value: None,
        };
        Portions {
            rules,
            portions: vec![portion; count],
            counted: vec![0; shards],
            fresh: 0,
            complete: 0,
            replicas: BTreeSet::new(),
            handed: 0,
            added: 0,
        }
    }

    /// Portions to hand out now, when so many that were are still to be taken: enough that a
    /// replica that becomes idle finds one.
    pub(super) fn hand_out(&mut self, now: Duration, untaken: usize) -> Vec<usize> {
        let mut given = Vec::new();
        let wanted = self.replicas.len().max(2);
        while untaken + given.len() < wanted && self.fresh < self.portions.len() {
            given.push(self.fresh);
            self.fresh += 1;
        }
        if self.fresh == self.portions.len() && untaken + given.len() == 0 {
            // All are under way and somebody may be idle: the one that takes longest is done twice.
            given.extend(self.slowest(now));
        }
        for i in &given {
            self.portions[*i].copies += 1;
            self.portions[*i].since = now;
        }
        self.handed += given.len() as u64;
        given
    }

    fn slowest(&self, now: Duration) -> Option<usize> {
        let late = |p: &Portion| now.saturating_sub(p.since) >= self.rules.lease;
        let candidates = self
            .portions
            .iter()
            .enumerate()
            .filter(|(_, p)| !p.is_complete() && (p.copies < self.rules.copies || late(p)));
        candidates
            .min_by_key(|(_, p)| (p.copies, p.since))
            .map(|(i, _)| i)
    }

    /// A shard has counted a portion that a replica brought. Whether it is the first time.
    pub(super) fn counted(
        &mut self,
        shard: usize,
        portion: usize,
        replica: i64,
        value: f64,
    ) -> bool {
        self.replicas.insert(replica);
        let Some(p) = self.portions.get_mut(portion) else {
            return false;
        };
        let Some(counted) = p.counted.get_mut(shard).filter(|counted| !**counted) else {
            return false;
        };
        *counted = true;
        self.counted[shard] += 1;
        // One shard's word counts, so that the sum is of one set of values.
        if shard == 0 {
            p.value = Some(value);
        }
        self.complete += usize::from(p.is_complete());
        true
    }

    /// A shard has added a gradient.
    pub(super) fn added(&mut self) {
        self.added += 1;
    }

    /// How many gradients shards have added.
    pub(super) fn additions(&self) -> u64 {
        self.added
    }

    /// Whether every shard has counted every portion.
    pub(super) fn are_complete(&self) -> bool {
        self.complete == self.portions.len()
    }

    /// How many portions each shard has counted, once each.
    pub(super) fn counts(&self) -> &[usize] {
        &self.counted
    }

    /// How many were handed out, copies included.
    pub(super) fn handed(&self) -> u64 {
        self.handed
    }

    /// Who has brought some.
    pub(super) fn replicas(&self) -> &BTreeSet<i64> {
        &self.replicas
    }

    /// Expects these replicas.
    pub(super) fn expect(&mut self, replicas: BTreeSet<i64>) {
        self.replicas.extend(replicas);
    }

    /// The sum of all values, in the order of the portions.
    pub(super) fn sum(&self) -> f64 {
        self.portions.iter().filter_map(|p| p.value).sum()
    }
}

impl Portion {
    fn is_complete(&self) -> bool {
        self.counted.iter().all(|counted| *counted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: Rules = Rules {
        copies: 2,
        lease: Duration::from_secs(10),
    };

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn portions_wait_for_idle_replicas_but_not_many() {
        let mut p = Portions::new(RULES, 6, 1);
        assert_eq!(p.hand_out(seconds(0), 0), [0, 1]);
        assert_eq!(p.hand_out(seconds(0), 2), [0; 0]);
        assert_eq!(p.hand_out(seconds(1), 1), [2]);
        for replica in 0..3 {
            p.counted(0, replica as usize, replica, 1.0);
        }
        assert_eq!(
            p.hand_out(seconds(1), 0),
            [3, 4, 5],
            "there are three replicas"
        );
    }

    #[test]
    fn the_last_are_done_twice_and_again_when_nobody_brings_them() {
        let mut p = Portions::new(RULES, 3, 1);
        p.expect(BTreeSet::from([1, 2, 3]));
        assert_eq!(p.hand_out(seconds(0), 0), [0, 1, 2]);
        assert_eq!(
            p.hand_out(seconds(1), 1),
            [0; 0],
            "one is still to be taken"
        );
        assert!(p.counted(0, 1, 1, 0.5));
        assert_eq!(p.hand_out(seconds(2), 0), [0]);
        assert_eq!(p.hand_out(seconds(3), 0), [2]);
        assert_eq!(p.hand_out(seconds(4), 0), [0; 0], "both are done twice");
        assert_eq!(p.hand_out(seconds(12), 0), [0], "its takers are lost");
        assert!(p.counted(0, 0, 2, 0.25) && p.counted(0, 2, 2, 0.25));
        assert!(p.are_complete());
        assert_eq!(p.hand_out(seconds(50), 0), [0; 0]);
        assert_eq!((p.sum(), p.handed()), (1.0, 6));
    }

    #[test]
    fn a_portion_is_complete_when_every_shard_has_counted_it_once() {
        let mut p = Portions::new(RULES, 1, 2);
        assert!(p.counted(1, 0, 7, 3.0));
        assert!(!p.counted(1, 0, 8, 3.0), "a second time");
        assert!(!p.are_complete());
        assert!(p.counted(0, 0, 8, 3.0));
        assert!(p.are_complete());
        assert_eq!((p.counts(), p.sum()), (&[1, 1][..], 3.0));
        assert!(!p.counted(5, 0, 8, 3.0) && !p.counted(0, 9, 8, 3.0));
    }
}
