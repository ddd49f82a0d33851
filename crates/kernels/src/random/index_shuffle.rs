//! `RandomIndexShuffle`: the place of an index in a shuffled range, without the range. A block cipher over just enough
//! bits permutes the numbers; what falls outside the range is encrypted again until it does not.

use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, Registry};
use downpour_tensor::{DType, Element, Shape, Tensor};

const WORDS: &[DType] = &[DType::Int32, DType::Int64, DType::UInt32, DType::UInt64];

/// Bits of the smallest block: the numbers of smaller ones show patterns.
const MIN_BLOCK: u32 = 16;

pub(super) fn register(r: &mut Registry) {
    r.add_typed(
        "RandomIndexShuffle",
        &[("dtype", WORDS), ("Tseed", WORDS)],
        shuffle,
    );
}

/// The rounds of the Simon cipher over words of some bits, with keys made of three words.
struct Simon {
    bits: u32,
    keys: Vec<u64>,
}

impl Simon {
    fn new(key: [u32; 3], bits: u32, rounds: usize) -> Simon {
        let mask = Simon::mask(bits);
        let mut keys: Vec<u64> = key.iter().map(|k| u64::from(*k) & mask).collect();
        let simon = Simon {
            bits,
            keys: Vec::new(),
        };
        // A constant of the cipher, one bit a round; words of fewer bits have fewer of them.
        let mut sequence = 0x7369_f885_192c_0ef5 & mask;
        for i in 3..rounds {
            let last = keys[i - 1];
            let mixed = simon.right(last, 3) ^ simon.right(last, 4);
            keys.push((0xffff_fffc & mask) ^ (sequence & 1) ^ keys[i - 3] ^ mixed);
            sequence >>= 1;
        }
        Simon { bits, keys }
    }

    fn mask(bits: u32) -> u64 {
        u64::MAX >> (64 - bits)
    }

    fn left(&self, x: u64, by: u32) -> u64 {
        (x << by | x >> (self.bits - by)) & Simon::mask(self.bits)
    }

    fn right(&self, x: u64, by: u32) -> u64 {
        (x >> by | x << (self.bits - by)) & Simon::mask(self.bits)
    }

    fn mix(&self, x: u64) -> u64 {
        self.left(x, 1) & self.left(x, 8) ^ self.left(x, 2)
    }

    fn encrypt(&self, value: u64) -> u64 {
        let mask = Simon::mask(self.bits);
        let (mut left, mut right) = (value >> self.bits & mask, value & mask);
        for pair in self.keys.chunks_exact(2) {
            left ^= self.mix(right) ^ pair[0];
            right ^= self.mix(left) ^ pair[1];
        }
        left << self.bits | right
    }
}

/// Where `index` of `0..=max` lies in the order that `key` gives. `index` must not be above `max`, and `rounds` is even
/// and at least 4.
pub(crate) fn index_shuffle(index: u64, key: [u32; 3], max: u64, rounds: usize) -> u64 {
    if max == 0 {
        return 0;
    }
    let bits = (max as f64).log2().ceil() as u32;
    let block = (bits + bits % 2).clamp(MIN_BLOCK, 64);
    let simon = Simon::new(key, block / 2, rounds);
    let mut at = index;
    loop {
        at = simon.encrypt(at);
        if at <= max {
            return at;
        }
    }
}

/// All elements of an integer tensor, cut to 64 bits.
fn words(t: &Tensor) -> Result<Vec<u64>> {
    Ok(match t.dtype() {
        DType::UInt64 => t.as_slice::<u64>()?.to_vec(),
        _ => crate::args::ints(t)?
            .into_iter()
            .map(|v| v as u64)
            .collect(),
    })
}

fn shuffle(b: &KernelBuilder<'_>) -> Result<Built> {
    let rounds = b.attrs().int("rounds")?;
    Built::costly(move |ctx| {
        let invalid = |text: String| Err(Status::invalid_argument(text));
        let (index, seed, max) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
        let most = index.num_elements().max(max.num_elements());
        let count = most.max(seed.num_elements() / 3);
        let fits = |t: &Tensor| t.rank() == 0 || t.dims() == [count];
        if !fits(index) {
            return invalid("Index bust be a scalar or vector.".into());
        }
        if seed.dims() != [3] && seed.dims() != [count, 3] {
            return invalid(format!(
                "Seed must be a vector of size [3] or a matrix of size [{count}, 3] but got {}.",
                seed.shape()
            ));
        }
        if !fits(max) {
            return invalid(format!(
                "Maxval must be a scalar or a vector of the same size as index but got {}",
                max.shape()
            ));
        }
        // TensorFlow does not look: fewer rounds leave its keys' vector too short, an odd number reads past it.
        let Some(rounds) = usize::try_from(rounds)
            .ok()
            .filter(|r| *r >= 4 && r % 2 == 0)
        else {
            return invalid(format!(
                "rounds must be an even number of at least 4, got {rounds}"
            ));
        };
        let scalar = index.rank() == 0 && seed.rank() == 1 && max.rank() == 0;
        let shape = match scalar {
            true => Shape::scalar(),
            false => Shape::from([count]),
        };
        let dtype = index.dtype();
        let (index, seed, max) = (words(index)?, words(seed)?, words(max)?);
        let of = |v: &[u64], i: usize| v.get(i).or(v.first()).copied().unwrap_or(0);
        let mut out = Vec::with_capacity(count);
        for i in 0..count {
            let (at, max) = (of(&index, i), of(&max, i));
            if at > max {
                return invalid(format!("the index {at} is above its largest, {max}"));
            }
            let row = if seed.len() == 3 { 0 } else { 3 * i };
            let key = [seed[row], seed[row + 1], seed[row + 2]].map(|w| w as u32);
            out.push(index_shuffle(at, key, max, rounds));
        }
        let t = match dtype {
            DType::Int32 => cut::<i32>(&out, shape, |v| v as i32)?,
            DType::UInt32 => cut::<u32>(&out, shape, |v| v as u32)?,
            DType::Int64 => cut::<i64>(&out, shape, |v| v as i64)?,
            _ => Tensor::from_vec(out, shape)?,
        };
        ctx.set_output(0, t);
        Ok(())
    })
}

fn cut<T: Element>(values: &[u64], shape: Shape, f: impl Fn(u64) -> T) -> Result<Tensor> {
    Ok(Tensor::from_vec(
        values.iter().map(|v| f(*v)).collect(),
        shape,
    )?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_range_is_permuted() {
        // Not of 2^16, which has a bit more than TensorFlow's block for it.
        for max in [1, 2, 7, 100, 65_535, 65_537, 70_000] {
            let mut seen = vec![false; max as usize + 1];
            for i in 0..=max {
                let at = index_shuffle(i, [1, 2, 3], max, 4) as usize;
                assert!(!std::mem::replace(&mut seen[at], true), "{max}: {at} twice");
            }
        }
    }

    #[test]
    fn orders_are_tensorflows() {
        let order = |rounds| {
            (0..8)
                .map(|i| index_shuffle(i, [1, 2, 3], 7, rounds))
                .collect::<Vec<_>>()
        };
        assert_eq!(order(4), [2, 0, 6, 4, 5, 1, 7, 3]);
        assert_eq!(order(6), [1, 6, 3, 7, 0, 5, 4, 2]);
        assert_eq!(order(8), [6, 7, 4, 1, 3, 2, 0, 5]);
        assert_eq!(
            index_shuffle(5, [1, 2, 3], 1_000_000_000_000, 4),
            363_526_343
        );
        assert_eq!(index_shuffle(5, [1, 2, 3], 70_000, 4), 36_952);
    }

    #[test]
    fn the_order_follows_the_key() {
        let order = |key| {
            (0..10)
                .map(|i| index_shuffle(i, key, 9, 4))
                .collect::<Vec<_>>()
        };
        assert_ne!(order([1, 2, 3]), order([1, 2, 4]));
        assert_eq!(index_shuffle(0, [9, 9, 9], 0, 4), 0);
    }
}
