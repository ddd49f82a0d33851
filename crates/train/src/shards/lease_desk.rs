//! A ledger with a clock beside it: a coordinator's own desk, where workers are heard in its memory.

use super::ledger::{Answer, Done, Holder, Ledger};
use super::watch::Watch;
use super::{Counts, Division};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Hands out portions and takes them back from workers that fall silent.
///
/// ```
/// use downpour::train::shards::{Answer, LeaseDesk, Division, Done};
/// use std::time::{Duration, Instant};
/// let (second, start) = (Duration::from_secs(1), Instant::now());
/// let mut desk = LeaseDesk::new(Division::new(100, 50).epochs(1), 3 * second);
/// let Answer::Work(first) = desk.lease(7, start) else { panic!("no work") };
/// let Answer::Work(second_half) = desk.lease(8, start) else { panic!("no work") };
/// assert_eq!(desk.done(8, second_half.sequence, start), Done::First);
/// // Worker 7 is not heard of any more.
/// let mut now = start;
/// while desk.lease(8, now) == Answer::Wait {
///     now += second;
/// }
/// assert_eq!(desk.counts().reissued, 1);
/// assert_eq!(desk.done(8, first.sequence, now), Done::First);
/// assert!(desk.ledger().is_over());
/// ```
#[derive(Clone, Debug)]
pub struct LeaseDesk {
    ledger: Ledger,
    watch: Watch<u64>,
    /// How often each worker was heard of.
    heard: BTreeMap<u64, u64>,
}

impl LeaseDesk {
    /// Nothing is handed out yet; a worker that is not heard of for `lease` has lost what it holds.
    pub fn new(division: Division, lease: Duration) -> LeaseDesk {
        LeaseDesk::resume(Ledger::new(division), lease)
    }

    /// Goes on with a ledger that was kept elsewhere.
    pub fn resume(ledger: Ledger, lease: Duration) -> LeaseDesk {
        LeaseDesk {
            ledger,
            watch: Watch::new(lease),
            heard: BTreeMap::new(),
        }
    }

    /// The ledger.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// What has happened so far.
    pub fn counts(&self) -> Counts {
        self.ledger.counts()
    }

    /// A worker asks for work.
    pub fn lease(&mut self, worker: u64, now: Instant) -> Answer {
        self.hear(worker, now);
        self.ledger.lease(holder(worker))
    }

    /// A worker has done a portion.
    pub fn done(&mut self, worker: u64, sequence: u64, now: Instant) -> Done {
        self.hear(worker, now);
        self.ledger.done(holder(worker), sequence)
    }

    /// A worker is still at it.
    pub fn renew(&mut self, worker: u64, now: Instant) {
        self.hear(worker, now);
    }

    /// A worker leaves, or is known to be gone: what it held is handed out again at once.
    pub fn leave(&mut self, worker: u64) {
        self.heard.remove(&worker);
        self.ledger.expire(holder(worker));
    }

    /// Time has passed; to be called now and then while nobody asks.
    pub fn tick(&mut self, now: Instant) {
        let holders: Vec<u64> = self.ledger.holders().map(|(h, _)| h.worker).collect();
        let heard = &self.heard;
        let count = |worker| (worker, heard.get(&worker).copied().unwrap_or_default());
        self.watch.look(holders.into_iter().map(count), now);
        for worker in self.watch.silent() {
            self.ledger.expire(holder(worker));
        }
    }

    fn hear(&mut self, worker: u64, now: Instant) {
        *self.heard.entry(worker).or_default() += 1;
        self.tick(now);
    }
}

/// At a desk a worker has one life: who comes back says [`LeaseDesk::leave`] first.
fn holder(worker: u64) -> Holder {
    Holder { worker, life: 0 }
}
