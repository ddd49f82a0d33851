//! Books with a clock beside them: a coordinator's own desk, where workers are heard in its memory.

use super::books::{Answer, Books, Done, Holder};
use super::watch::Watch;
use super::{Counts, Division};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Hands out portions and takes them back from workers that fall silent.
///
/// ```
/// use downpour::train::shards::{Answer, Desk, Division, Done};
/// use std::time::{Duration, Instant};
/// let (second, start) = (Duration::from_secs(1), Instant::now());
/// let mut desk = Desk::new(Division::new(100, 50).epochs(1), 3 * second);
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
/// assert!(desk.books().is_over());
/// ```
#[derive(Clone, Debug)]
pub struct Desk {
    books: Books,
    watch: Watch<u64>,
    /// How often each worker was heard of.
    heard: BTreeMap<u64, u64>,
}

impl Desk {
    /// Nothing is handed out yet; a worker that is not heard of for `lease` has lost what it holds.
    pub fn new(division: Division, lease: Duration) -> Desk {
        Desk::resume(Books::new(division), lease)
    }

    /// Goes on with books that were kept elsewhere.
    pub fn resume(books: Books, lease: Duration) -> Desk {
        Desk {
            books,
            watch: Watch::new(lease),
            heard: BTreeMap::new(),
        }
    }

    /// The books.
    pub fn books(&self) -> &Books {
        &self.books
    }

    /// What has happened so far.
    pub fn counts(&self) -> Counts {
        self.books.counts()
    }

    /// A worker asks for work.
    pub fn lease(&mut self, worker: u64, now: Instant) -> Answer {
        self.hear(worker, now);
        self.books.lease(holder(worker))
    }

    /// A worker has done a portion.
    pub fn done(&mut self, worker: u64, sequence: u64, now: Instant) -> Done {
        self.hear(worker, now);
        self.books.done(holder(worker), sequence)
    }

    /// A worker is still at it.
    pub fn renew(&mut self, worker: u64, now: Instant) {
        self.hear(worker, now);
    }

    /// A worker leaves, or is known to be gone: what it held is handed out again at once.
    pub fn leave(&mut self, worker: u64) {
        self.heard.remove(&worker);
        self.books.expire(holder(worker));
    }

    /// Time has passed; to be called now and then while nobody asks.
    pub fn tick(&mut self, now: Instant) {
        let holders: Vec<u64> = self.books.holders().map(|(h, _)| h.worker).collect();
        let heard = &self.heard;
        let count = |worker| (worker, heard.get(&worker).copied().unwrap_or_default());
        self.watch.look(holders.into_iter().map(count), now);
        for worker in self.watch.silent() {
            self.books.expire(holder(worker));
        }
    }

    fn hear(&mut self, worker: u64, now: Instant) {
        *self.heard.entry(worker).or_default() += 1;
        self.tick(now);
    }
}

/// At a desk a worker has one life: who comes back says [`Desk::leave`] first.
fn holder(worker: u64) -> Holder {
    Holder { worker, life: 0 }
}
