//! Who has fallen silent: counts that others raise, looked at now and then with one's own clock.
//!
//! No two machines' clocks are compared. Who was itself stopped for a while cannot say that others
//! were silent: silence counts only up to the last look before this one.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// What was seen of others, by their names `K`.
///
/// ```
/// use downpour::train::shards::Watch;
/// use std::time::{Duration, Instant};
/// let (second, start) = (Duration::from_secs(1), Instant::now());
/// let mut watch = Watch::new(3 * second);
/// for i in 0..5 {
///     // The first one counts on, the second one does not.
///     watch.look([("a", u64::from(i)), ("b", 7)], start + i * second);
/// }
/// assert_eq!(watch.silent(), ["b"]);
/// ```
#[derive(Clone, Debug)]
pub struct Watch<K> {
    patience: Duration,
    seen: BTreeMap<K, Seen>,
    looked: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    count: u64,
    /// For how long the count has been the same, while it was looked at.
    silent: Duration,
}

impl<K: Ord + Clone> Watch<K> {
    /// Silence longer than `patience` is noticed.
    pub fn new(patience: Duration) -> Watch<K> {
        Watch {
            patience,
            seen: BTreeMap::new(),
            looked: None,
        }
    }

    /// These are the counts now, of all who are there.
    pub fn look(&mut self, counts: impl IntoIterator<Item = (K, u64)>, now: Instant) {
        let since = self
            .looked
            .map_or(Duration::ZERO, |l| now.duration_since(l));
        self.looked = Some(now);
        // One look after a long pause of the watcher's own says no more than a look in time.
        let since = since.min(self.patience / 3);
        let mut seen = BTreeMap::new();
        for (who, count) in counts {
            let silent = match self.seen.get(&who) {
                Some(before) if before.count == count => before.silent + since,
                _ => Duration::ZERO,
            };
            seen.insert(who, Seen { count, silent });
        }
        self.seen = seen;
    }

    /// Whose counts have not changed for too long.
    pub fn silent(&self) -> Vec<K> {
        let silent = self.seen.iter().filter(|(_, s)| s.silent >= self.patience);
        silent.map(|(who, _)| who.clone()).collect()
    }

    /// How often one should look.
    pub fn interval(&self) -> Duration {
        self.patience / 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watcher_that_slept_blames_nobody() {
        let start = Instant::now();
        let mut watch = Watch::new(Duration::from_secs(3));
        watch.look([(1, 5)], start);
        watch.look([(1, 5)], start + Duration::from_secs(3600));
        assert!(watch.silent().is_empty());
        for i in 1..=2 {
            watch.look([(1, 5)], start + Duration::from_secs(3600 + i));
        }
        assert_eq!(watch.silent(), [1]);
    }

    #[test]
    fn who_went_and_came_back_is_new() {
        let start = Instant::now();
        let mut watch = Watch::new(Duration::from_secs(2));
        watch.look([(1, 5)], start);
        watch.look([], start + Duration::from_secs(1));
        for i in 2..=4 {
            watch.look([(1, 5)], start + Duration::from_secs(i));
            assert!(watch.silent().is_empty());
        }
    }
}
