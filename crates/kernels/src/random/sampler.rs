//! Distributions over a range of classes, as candidate samplers draw from them.

use super::philox::Words;
use downpour_graph::{Result, Status};
use std::collections::HashSet;

/// A distribution over `0..range`.
pub(super) enum Sampler {
    /// Every class once.
    All(i64),
    /// All alike.
    Uniform(i64),
    /// Falling as in a vocabulary sorted by frequency.
    LogUniform(i64),
    /// As frequent as they have been seen.
    Learned(Unigram),
    /// Given weights.
    Fixed(Fixed),
}

/// One draw: candidates, and how often each of them and each true class is to be expected.
pub(super) struct Drawn {
    pub(super) candidates: Vec<i64>,
    pub(super) candidate_counts: Vec<f32>,
    pub(super) true_counts: Vec<f32>,
}

impl Sampler {
    pub(super) fn range(&self) -> i64 {
        match self {
            Sampler::All(n) | Sampler::Uniform(n) | Sampler::LogUniform(n) => *n,
            Sampler::Learned(u) => u.weights.len() as i64,
            Sampler::Fixed(f) => f.weights.len() as i64,
        }
    }

    fn sample(&self, words: &mut Words) -> i64 {
        match self {
            Sampler::All(_) => 0,
            Sampler::Uniform(n) => (words.u64() % *n as u64) as i64,
            Sampler::LogUniform(n) => {
                let value = (words.f64() * (*n as f64).ln_1p()).exp() as i64 - 1;
                // Rounding may reach the end of the range.
                value % n
            }
            Sampler::Learned(u) => u.sample(words),
            Sampler::Fixed(f) => f.sample(words),
        }
    }

    fn probability(&self, value: i64) -> f32 {
        match self {
            Sampler::All(_) => 1.0,
            Sampler::Uniform(n) => (1.0 / *n as f64) as f32,
            Sampler::LogUniform(n) => {
                let v = value as f64;
                (((v + 2.0) / (v + 1.0)).ln() / (*n as f64).ln_1p()) as f32
            }
            Sampler::Learned(u) => {
                let weight = usize::try_from(value).ok().and_then(|i| u.weights.get(i));
                *weight.unwrap_or(&0) as f32 / u.total as f32
            }
            Sampler::Fixed(f) => {
                let weight = usize::try_from(value).ok().and_then(|i| f.weights.get(i));
                weight.map_or(0.0, |w| w / f.total)
            }
        }
    }

    /// Draws `count` candidates, all different if `unique`. The caller has seen to it that there
    /// are enough different ones.
    pub(super) fn draw(
        &self,
        words: &mut Words,
        unique: bool,
        count: usize,
        trues: &[i64],
    ) -> Result<Drawn> {
        if let Sampler::All(_) = self {
            return Ok(Drawn {
                candidates: (0..count as i64).collect(),
                candidate_counts: vec![1.0; count],
                true_counts: vec![1.0; trues.len()],
            });
        }
        let mut candidates = Vec::with_capacity(count);
        let mut tries = 0u32;
        if unique {
            let mut seen = HashSet::with_capacity(count);
            while candidates.len() < count {
                tries += 1;
                // TensorFlow aborts the process here.
                if tries == i32::MAX as u32 {
                    return Err(Status::resource_exhausted(
                        "Too many tries to find different candidates",
                    ));
                }
                let value = self.sample(words);
                if seen.insert(value) {
                    candidates.push(value);
                }
            }
        } else {
            candidates.extend((0..count).map(|_| self.sample(words)));
            tries = count as u32;
        }
        let expected = |values: &[i64]| {
            let count = |&v: &i64| expected_count(self.probability(v), count, tries);
            values.iter().map(count).collect()
        };
        Ok(Drawn {
            candidate_counts: expected(&candidates),
            true_counts: expected(trues),
            candidates,
        })
    }
}

fn expected_count(p: f32, batch: usize, tries: u32) -> f32 {
    if tries as usize == batch {
        return p * batch as f32;
    }
    // 1 - (1 - p)^tries, without cancellation.
    -(tries as f32 * (-p).ln_1p()).exp_m1()
}

/// Weights that count what was seen, each starting at one.
pub(super) struct Unigram {
    weights: Vec<i32>,
    /// Fenwick sums of the weights, so that a draw takes logarithmic time.
    sums: Vec<i32>,
    total: i32,
}

impl Unigram {
    pub(super) fn new(range: usize) -> Unigram {
        let mut unigram = Unigram {
            weights: vec![1; range],
            sums: vec![1; range + 1],
            total: range as i32,
        };
        for i in 1..=range {
            let parent = i + (i & i.wrapping_neg());
            if parent <= range {
                unigram.sums[parent] += unigram.sums[i];
            }
        }
        unigram
    }

    /// Counts the classes of a step, as far as the total can grow.
    pub(super) fn update(&mut self, values: &[i64]) {
        let room = (i32::MAX - self.total) as usize;
        for &value in values.iter().take(room) {
            let Some(weight) = usize::try_from(value)
                .ok()
                .and_then(|i| self.weights.get_mut(i))
            else {
                continue;
            };
            *weight += 1;
            self.total += 1;
            let mut i = value as usize + 1;
            while i < self.sums.len() {
                self.sums[i] += 1;
                i += i & i.wrapping_neg();
            }
        }
    }

    fn sample(&self, words: &mut Words) -> i64 {
        let mut rest = (words.u32() % self.total as u32) as i32;
        let mut at = 0;
        let mut step = self.weights.len().next_power_of_two();
        while step > 0 {
            if let Some(&sum) = self.sums.get(at + step)
                && at + step > 0
                && sum <= rest
            {
                at += step;
                rest -= sum;
            }
            step /= 2;
        }
        at as i64
    }
}

/// Fixed weights, drawn by the alias method.
pub(super) struct Fixed {
    weights: Vec<f32>,
    total: f32,
    /// Per bucket: chance of the bucket's own class, and the class drawn otherwise.
    buckets: Vec<(f32, usize)>,
}

impl Fixed {
    pub(super) fn new(weights: Vec<f32>) -> Fixed {
        let n = weights.len();
        let sum: f64 = weights.iter().map(|&w| f64::from(w)).sum();
        let total = weights.iter().fold(0.0, |t, w| t + w);
        let mut chance: Vec<f64> = weights
            .iter()
            .map(|w| f64::from(w * n as f32) / sum)
            .collect();
        let mut alias: Vec<usize> = (0..n).collect();
        let (mut low, mut high): (Vec<usize>, Vec<usize>) = (0..n).partition(|&i| chance[i] < 1.0);
        while let (Some(&h), Some(l)) = (high.last(), low.pop()) {
            high.pop();
            alias[l] = h;
            chance[h] -= 1.0 - chance[l];
            if chance[h] < 1.0 {
                low.push(h);
            } else {
                high.push(h);
            }
        }
        for i in low.into_iter().chain(high) {
            // What rounding left over.
            chance[i] = 1.0;
            alias[i] = i;
        }
        let buckets = chance.iter().map(|&c| c as f32).zip(alias).collect();
        Fixed {
            weights,
            total,
            buckets,
        }
    }

    fn sample(&self, words: &mut Words) -> i64 {
        let r = words.f32();
        let bucket = words.u32() as usize % self.buckets.len();
        let (chance, alias) = self.buckets[bucket];
        (if r < chance { bucket } else { alias }) as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unigram_draws_walk_the_weights_in_order() {
        let mut u = Unigram::new(5);
        u.update(&[1, 1, 3, 9, -1]);
        assert_eq!(
            (u.weights.as_slice(), u.total),
            ([1, 3, 1, 2, 1].as_slice(), 8)
        );
        let find = |mut rest: i32| {
            let mut at = 0;
            while rest >= u.weights[at] {
                rest -= u.weights[at];
                at += 1;
            }
            at as i64
        };
        let philox = super::super::philox::Philox::from_seeds(1, 2);
        let (mut a, mut b) = (Words::new(philox), Words::new(philox));
        for _ in 0..200 {
            assert_eq!(u.sample(&mut a), find((b.u32() % 8) as i32));
        }
    }
}
