//! Philox4x32-10, the counter-based generator of every random op, and the two ways to draw from
//! it. The order in which words are taken is part of the contract: seeds must give the numbers
//! TensorFlow gives.

use downpour_graph::{Attrs, Result};
use parking_lot::Mutex;
use std::hash::{BuildHasher, Hasher, RandomState};

/// Words one output of 128 bits holds.
pub(crate) const WORDS: usize = 4;

/// How many blocks of 128 bits ops with a variable need reserve for each output.
pub(crate) const RESERVED_PER_OUTPUT: u64 = 256;

/// The generator: a key and the number of the next block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Philox {
    /// Encrypts the counter.
    pub(crate) key: u64,
    /// Number of the next block.
    pub(crate) counter: u128,
}

impl Philox {
    /// The stream of a pair of seeds.
    pub(crate) fn from_seeds(seed: u64, seed2: u64) -> Philox {
        Philox {
            key: seed,
            counter: u128::from(seed2) << 64,
        }
    }

    /// Leaves out `blocks` blocks. TensorFlow adds in words of 32 bits and loses the carry in one
    /// case (a count whose high word is all ones), which a generator told to go back meets.
    pub(crate) fn skip(&mut self, blocks: u64) {
        let (low, high) = (blocks as u32, (blocks >> 32) as u32);
        let (word0, carry) = (self.counter as u32).overflowing_add(low);
        let high = high.wrapping_add(carry.into());
        let (word1, carry) = ((self.counter >> 32) as u32).overflowing_add(high);
        let upper = ((self.counter >> 64) as u64).wrapping_add(carry.into());
        self.counter = u128::from(upper) << 64 | u128::from(word1) << 32 | u128::from(word0);
    }

    /// This stream without its first `blocks` blocks.
    pub(crate) fn skipped(mut self, blocks: u64) -> Philox {
        self.skip(blocks);
        self
    }

    /// The next block.
    #[inline]
    pub(crate) fn block(&mut self) -> [u32; WORDS] {
        let c = self.counter;
        self.counter = c.wrapping_add(1);
        let mut counter = [
            c as u32,
            (c >> 32) as u32,
            (c >> 64) as u32,
            (c >> 96) as u32,
        ];
        let mut key = [self.key as u32, (self.key >> 32) as u32];
        for _ in 0..10 {
            let a = u64::from(counter[0]) * 0xD251_1F53;
            let b = u64::from(counter[2]) * 0xCD9E_8D57;
            counter = [
                (b >> 32) as u32 ^ counter[1] ^ key[0],
                b as u32,
                (a >> 32) as u32 ^ counter[3] ^ key[1],
                a as u32,
            ];
            key = [
                key[0].wrapping_add(0x9E37_79B9),
                key[1].wrapping_add(0xBB67_AE85),
            ];
        }
        counter
    }
}

/// Draws single words from a generator; what is left of a block is lost with it.
pub(crate) struct Words {
    philox: Philox,
    block: [u32; WORDS],
    used: usize,
}

impl Words {
    /// Starts at the generator's next block.
    pub(crate) fn new(philox: Philox) -> Words {
        Words {
            philox,
            block: [0; WORDS],
            used: WORDS,
        }
    }

    /// 32 bits.
    #[inline]
    pub(crate) fn u32(&mut self) -> u32 {
        if self.used == WORDS {
            self.block = self.philox.block();
            self.used = 0;
        }
        let word = self.block[self.used];
        self.used += 1;
        word
    }

    /// A number below `n`, without bias.
    pub(crate) fn below(&mut self, n: u32) -> u32 {
        if n.is_power_of_two() {
            return self.u32() & (n - 1);
        }
        if n == 0 {
            self.u32();
            return 0;
        }
        // As many of the lowest words are refused as do not divide evenly.
        let refused = u32::MAX % n + 1;
        loop {
            let word = self.u32();
            if word >= refused {
                return word % n;
            }
        }
    }

    /// A number below `n` out of 64 bits; as TensorFlow's, of fewer of them where they do.
    pub(crate) fn below64(&mut self, n: u64) -> u64 {
        if n.is_power_of_two() {
            return self.u64() & (n - 1);
        }
        if n == 0 {
            self.u64();
            return 0;
        }
        let refused = u64::MAX % n + 1;
        loop {
            let word = self.u64();
            if word >= refused {
                return word % n;
            }
        }
    }

    /// 64 bits, low word first.
    pub(crate) fn u64(&mut self) -> u64 {
        let low = self.u32();
        u64::from(low) | u64::from(self.u32()) << 32
    }

    /// A float in [0, 1).
    pub(crate) fn f32(&mut self) -> f32 {
        unit_f32(self.u32())
    }

    /// A double in [0, 1).
    pub(crate) fn f64(&mut self) -> f64 {
        let high = self.u32();
        unit_f64(high, self.u32())
    }
}

/// A float in [0, 1) of the low 23 bits.
#[inline]
pub(crate) fn unit_f32(x: u32) -> f32 {
    f32::from_bits(127 << 23 | x & 0x7f_ffff) - 1.0
}

/// A double in [0, 1): 20 bits of `high` above those of `low`.
#[inline]
pub(crate) fn unit_f64(high: u32, low: u32) -> f64 {
    f64::from_bits(1023 << 52 | u64::from(high & 0xf_ffff) << 32 | u64::from(low)) - 1.0
}

/// The generator of a stateful kernel, shared by all its runs.
pub(crate) struct Guarded(Mutex<Philox>);

impl Guarded {
    /// From the attributes `seed` and `seed2`; both zero means a stream nobody can foresee.
    pub(crate) fn from_attrs(attrs: &Attrs) -> Result<Guarded> {
        Ok(Guarded::new(attrs.int("seed")?, attrs.int("seed2")?))
    }

    /// From two seeds; both zero means a stream nobody can foresee.
    pub(crate) fn new(seed: i64, seed2: i64) -> Guarded {
        let philox = match (seed, seed2) {
            (0, 0) => Philox::from_seeds(entropy(), entropy()),
            (a, b) => Philox::from_seeds(a as u64, b as u64),
        };
        Guarded(Mutex::new(philox))
    }

    /// Takes the next `blocks` blocks for the caller alone.
    pub(crate) fn reserve(&self, blocks: u64) -> Philox {
        let mut shared = self.0.lock();
        let mine = *shared;
        shared.skip(blocks);
        mine
    }

    /// Blocks for `outputs` outputs of any distribution.
    pub(crate) fn reserve_outputs(&self, outputs: usize) -> Philox {
        self.reserve((outputs as u64).wrapping_mul(RESERVED_PER_OUTPUT))
    }

    /// Blocks that hold `words` words.
    pub(crate) fn reserve_words(&self, words: u64) -> Philox {
        self.reserve(words.div_ceil(WORDS as u64))
    }
}

/// 64 unpredictable bits. The standard library seeds each process's hash maps from the operating
/// system, and every `RandomState` differs.
pub(crate) fn entropy() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_those_of_the_paper() {
        // Known answers of Random123's kat_vectors for philox4x32-10.
        let mut zero = Philox { key: 0, counter: 0 };
        assert_eq!(
            zero.block(),
            [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]
        );
        let mut ones = Philox {
            key: u64::MAX,
            counter: u128::MAX,
        };
        assert_eq!(
            ones.block(),
            [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]
        );
        assert_eq!(ones.counter, 0);
    }

    #[test]
    fn unseeded_generators_differ() {
        let (a, b) = (Guarded::new(0, 0).reserve(0), Guarded::new(0, 0).reserve(0));
        assert_ne!(a, b);
        assert_eq!(Guarded::new(0, 1).reserve(5), Guarded::new(0, 1).reserve(1));
    }
}
