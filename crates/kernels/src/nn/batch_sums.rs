//! Sums over all but the channel, in blocks of rows: within a block in float, from block to block
//! in double, in an order that does not depend on threads.

use crate::linalg::wide::wide_fn;
use downpour_runtime::parallel_for;
use parking_lot::Mutex;

/// Elements of a block.
const BLOCK: usize = 16 << 10;

/// Mean and (biased) variance of each channel.
pub(crate) struct Moments {
    pub(crate) mean: Vec<f32>,
    pub(crate) variance: Vec<f32>,
}

impl Moments {
    /// Of rows of `channels` elements.
    pub(crate) fn new(x: &[f32], channels: usize) -> Moments {
        let rows = (x.len() / channels) as f64;
        let sum = blocks(x, channels, |part, out| sum_rows(out, part));
        let mean: Vec<f32> = sum.iter().map(|s| (s / rows) as f32).collect();
        let squares = blocks(x, channels, |part, out| sum_squares(out, part, &mean));
        Moments {
            variance: squares.iter().map(|s| (s / rows) as f32).collect(),
            mean,
        }
    }
}

/// Of each channel, the sum of `dy` and of `dy * (x - mean)`.
pub(crate) fn sums(dy: &[f32], x: &[f32], mean: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let channels = mean.len();
    let first = blocks(dy, channels, |part, out| sum_rows(out, part));
    let second = blocks_at(dy.len(), channels, |range, out| {
        sum_products(out, &dy[range.clone()], &x[range], mean);
    });
    let narrow = |v: Vec<f64>| v.into_iter().map(|s| s as f32).collect();
    (narrow(first), narrow(second))
}

fn blocks(x: &[f32], channels: usize, sum: impl Fn(&[f32], &mut [f32]) + Sync) -> Vec<f64> {
    blocks_at(x.len(), channels, |range, out| sum(&x[range], out))
}

fn blocks_at(
    len: usize,
    channels: usize,
    sum: impl Fn(std::ops::Range<usize>, &mut [f32]) + Sync,
) -> Vec<f64> {
    let rows = len / channels;
    let per = (BLOCK / channels).max(1);
    let count = rows.div_ceil(per);
    let partial: Vec<Mutex<Vec<f32>>> = (0..count).map(|_| Mutex::default()).collect();
    parallel_for(count, 2, |range| {
        for b in range {
            let mut own = vec![0.0; channels];
            sum(
                b * per * channels..((b + 1) * per).min(rows) * channels,
                &mut own,
            );
            *partial[b].lock() = own;
        }
    });
    let mut total = vec![0.0f64; channels];
    for own in partial {
        for (t, v) in total.iter_mut().zip(own.into_inner()) {
            *t += f64::from(v);
        }
    }
    total
}

wide_fn! {
    fn sum_rows(sums: &mut [f32], rows: &[f32]) {
        for row in rows.chunks_exact(sums.len()) {
            sums.iter_mut().zip(row).for_each(|(s, v)| *s += *v);
        }
    }

    fn sum_squares(sums: &mut [f32], rows: &[f32], mean: &[f32]) {
        for row in rows.chunks_exact(sums.len()) {
            for ((s, v), m) in sums.iter_mut().zip(row).zip(mean) {
                *s += (*v - *m) * (*v - *m);
            }
        }
    }

    fn sum_products(sums: &mut [f32], dy: &[f32], x: &[f32], mean: &[f32]) {
        let n = sums.len();
        for (dy, x) in dy.chunks_exact(n).zip(x.chunks_exact(n)) {
            for (((s, d), v), m) in sums.iter_mut().zip(dy).zip(x).zip(mean) {
                *s += *d * (*v - *m);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_of_many_rows_are_those_of_all() {
        let (rows, channels) = (10_007, 5);
        let x: Vec<f32> = (0..rows * channels).map(|i| (i % 13) as f32).collect();
        let m = Moments::new(&x, channels);
        for c in 0..channels {
            let own: Vec<f64> = x
                .iter()
                .skip(c)
                .step_by(channels)
                .map(|&v| v.into())
                .collect();
            let mean = own.iter().sum::<f64>() / rows as f64;
            let var = own.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / rows as f64;
            assert!((f64::from(m.mean[c]) - mean).abs() < 1e-5);
            assert!((f64::from(m.variance[c]) - var).abs() < 1e-4);
        }
    }
}
