//! How examples are divided into portions, and in which order an epoch takes them.

/// A piece of an epoch: the examples `first..end` of those `0..examples`, in the epoch's order.
///
/// ```
/// use downpour::train::shards::Division;
/// // Ten examples in portions of four.
/// let division = Division::new(10, 4);
/// let last = division.portion(5);
/// assert_eq!((last.epoch, last.number), (1, 2));
/// assert_eq!((last.first, last.end, last.len()), (8, 10, 2));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Portion {
    /// Its number among all portions of all epochs: the first of the second epoch comes after the
    /// last of the first one.
    pub sequence: u64,
    /// Which epoch it belongs to, from 0.
    pub epoch: u64,
    /// Its number within the epoch.
    pub number: u64,
    /// Its first example.
    pub first: u64,
    /// The first example that is no longer in it.
    pub end: u64,
}

impl Portion {
    /// How many examples it holds.
    pub fn len(&self) -> u64 {
        self.end - self.first
    }

    /// Whether it holds none; no portion of a [`Division`] does.
    pub fn is_empty(&self) -> bool {
        self.end == self.first
    }

    /// The positions of its examples in the data, mixed anew in every epoch.
    ///
    /// ```
    /// use downpour::train::shards::Division;
    /// let division = Division::new(10, 4);
    /// let epoch = |number: u64| -> Vec<u64> {
    ///     let portions = (3 * number..3 * number + 3).map(|s| division.portion(s));
    ///     portions.flat_map(|p| p.positions(10, 42)).collect()
    /// };
    /// assert_ne!(epoch(0), epoch(1));
    /// let mut all = epoch(0);
    /// all.sort();
    /// assert!(all.into_iter().eq(0..10));
    /// ```
    pub fn positions(&self, examples: u64, seed: u64) -> impl Iterator<Item = u64> + use<> {
        let shuffle = Shuffle::new(examples, seed ^ self.epoch.wrapping_mul(GOLDEN));
        (self.first..self.end).map(move |i| shuffle.at(i))
    }
}

/// How many examples there are, in portions of which size, for how many epochs.
///
/// ```
/// use downpour::train::shards::Division;
/// let division = Division::new(60_000, 500).epochs(10).copies(2);
/// assert_eq!(division.per_epoch(), 120);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Division {
    pub(super) examples: u64,
    pub(super) size: u64,
    pub(super) epochs: Option<u64>,
    pub(super) overlap: bool,
    pub(super) copies: usize,
}

impl Division {
    /// So many examples in portions of `size`, epoch after epoch without end.
    pub fn new(examples: u64, size: u64) -> Division {
        Division {
            examples: examples.max(1),
            size: size.max(1),
            epochs: None,
            overlap: true,
            copies: 1,
        }
    }

    /// Ends after so many epochs.
    pub fn epochs(mut self, epochs: u64) -> Division {
        self.epochs = Some(epochs);
        self
    }

    /// Begins an epoch only when the one before it is complete, so that all wait for the slowest.
    /// Otherwise the next one begins when nothing is left to hand out.
    pub fn in_turn(mut self) -> Division {
        self.overlap = false;
        self
    }

    /// Where all is handed out, gives a portion that others still work on to so many workers at a
    /// time: who is first counts.
    pub fn copies(mut self, copies: usize) -> Division {
        self.copies = copies.max(1);
        self
    }

    /// How many examples an epoch has.
    pub fn examples(&self) -> u64 {
        self.examples
    }

    /// How many portions an epoch has.
    pub fn per_epoch(&self) -> u64 {
        self.examples.div_ceil(self.size)
    }

    /// How many portions there are in all.
    pub(super) fn limit(&self) -> u64 {
        let epochs = self.epochs.unwrap_or(u64::MAX);
        epochs.saturating_mul(self.per_epoch())
    }

    /// The portion of this number among all portions of all epochs.
    pub fn portion(&self, sequence: u64) -> Portion {
        let number = sequence % self.per_epoch();
        let first = number * self.size;
        Portion {
            sequence,
            epoch: sequence / self.per_epoch(),
            number,
            first,
            end: first.saturating_add(self.size).min(self.examples),
        }
    }
}

/// An order of `0..count` that follows from a seed, without a table: so a portion's examples can be
/// named by whoever has its number.
///
/// ```
/// use downpour::train::shards::Shuffle;
/// let shuffle = Shuffle::new(1000, 7);
/// let mut all: Vec<u64> = (0..1000).map(|i| shuffle.at(i)).collect();
/// assert_ne!(all[..5], [0, 1, 2, 3, 4]);
/// all.sort();
/// assert!(all.into_iter().eq(0..1000));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Shuffle {
    count: u64,
    /// Half of the bits that number the smallest square power of two that holds them all.
    half: u32,
    seed: u64,
}

/// The fraction of the golden ratio: multiplying by it spreads small numbers over all bits.
pub(super) const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
/// Rounds of mixing; four are what a Feistel network needs.
const ROUNDS: u64 = 4;

impl Shuffle {
    /// The order of this seed.
    pub fn new(count: u64, seed: u64) -> Shuffle {
        let bits = 64 - count.saturating_sub(1).leading_zeros();
        Shuffle {
            count,
            half: bits.div_ceil(2).max(1),
            seed,
        }
    }

    /// What stands at a position below the count.
    pub fn at(&self, position: u64) -> u64 {
        // The network permutes a square power of two, of which at most three quarters are too
        // large: walking on until a small one comes is a permutation of the small ones.
        let mut at = position;
        loop {
            at = self.mixed(at);
            if at < self.count || position >= self.count {
                return at;
            }
        }
    }

    fn mixed(&self, value: u64) -> u64 {
        let mask = (1u64 << self.half) - 1;
        let (mut left, mut right) = (value >> self.half & mask, value & mask);
        for round in 0..ROUNDS {
            let key = self.seed.wrapping_add(round.wrapping_mul(GOLDEN));
            let mut noise = (right ^ key).wrapping_mul(GOLDEN);
            noise = (noise ^ noise >> 31).wrapping_mul(0x94d0_49bb_1331_11eb);
            (left, right) = (right, left ^ (noise >> 32) & mask);
        }
        left << self.half | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_holds_all() {
        for count in [1u64, 2, 3, 4, 5, 17, 64, 65, 1000] {
            for seed in 0..5 {
                let shuffle = Shuffle::new(count, seed);
                let mut all: Vec<u64> = (0..count).map(|i| shuffle.at(i)).collect();
                all.sort_unstable();
                assert!(all.into_iter().eq(0..count), "{count} {seed}");
            }
        }
    }

    #[test]
    fn portions_cover_an_epoch_without_gaps() {
        let division = Division::new(103, 10);
        let mut next = 0;
        for sequence in 11..22 {
            let portion = division.portion(sequence);
            assert_eq!((portion.epoch, portion.first), (1, next));
            next = portion.end;
        }
        assert_eq!(next, 103);
        assert_eq!(division.portion(22).epoch, 2);
    }
}
