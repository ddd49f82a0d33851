//! The histogram of `HistogramSummary`: fixed exponential buckets, runs of empty ones joined when
//! written. Limits are computed by the same chain of multiplications as TensorFlow's, so that
//! they agree in every bit.

use downpour_wire::proto::HistogramProto;
use std::sync::LazyLock;

/// Right edges of the buckets: mirrored powers of 1.1 from 1e-12 to 1e20, zero, and the ends.
static LIMITS: LazyLock<Vec<f64>> = LazyLock::new(|| {
    let mut positive = Vec::new();
    let mut edge = 1e-12;
    while edge < 1e20 {
        positive.push(edge);
        edge *= 1.1;
    }
    positive.push(f64::MAX);
    let mut limits: Vec<f64> = positive.iter().rev().map(|edge| -edge).collect();
    limits.push(0.0);
    limits.extend(positive);
    limits
});

/// A histogram being filled.
#[derive(Debug, Clone)]
pub struct Histogram {
    min: f64,
    max: f64,
    count: f64,
    sum: f64,
    sum_squares: f64,
    buckets: Vec<f64>,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram::new()
    }
}

impl Histogram {
    /// A histogram of nothing.
    pub fn new() -> Histogram {
        Histogram {
            min: f64::MAX,
            max: -f64::MAX,
            count: 0.0,
            sum: 0.0,
            sum_squares: 0.0,
            buckets: vec![0.0; LIMITS.len()],
        }
    }

    /// Counts a finite value. (The op refuses others before it comes here; they would be put
    /// into the last bucket.)
    pub fn add(&mut self, value: f64) {
        let bucket = LIMITS.partition_point(|&limit| limit <= value);
        let bucket = bucket.min(LIMITS.len() - 1);
        if let Some(count) = self.buckets.get_mut(bucket) {
            *count += 1.0;
        }
        if self.min > value {
            self.min = value;
        }
        if self.max < value {
            self.max = value;
        }
        self.count += 1.0;
        self.sum += value;
        self.sum_squares += value * value;
    }

    /// The message form; of every run of empty buckets only the last edge is kept.
    pub fn to_proto(&self) -> HistogramProto {
        let mut proto = HistogramProto {
            min: self.min,
            max: self.max,
            num: self.count,
            sum: self.sum,
            sum_squares: self.sum_squares,
            ..Default::default()
        };
        let mut buckets = LIMITS.iter().zip(&self.buckets).peekable();
        while let Some((&limit, &count)) = buckets.next() {
            let more_empty = |next: Option<&(&f64, &f64)>| next.is_some_and(|n| *n.1 <= 0.0);
            if count <= 0.0 && more_empty(buckets.peek()) {
                continue;
            }
            proto.bucket_limit.push(limit);
            proto.bucket.push(count);
        }
        proto
    }
}

impl FromIterator<f64> for Histogram {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Histogram {
        let mut histogram = Histogram::new();
        values.into_iter().for_each(|value| histogram.add(value));
        histogram
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_what_was_added() {
        let histogram = Histogram::from_iter([1.0, 1.0, -2.0, 0.0, f64::MAX, -f64::MAX]);
        let proto = histogram.to_proto();
        assert_eq!(proto.bucket.iter().sum::<f64>(), 6.0);
        assert_eq!(proto.num, 6.0);
        assert_eq!((proto.min, proto.max), (-f64::MAX, f64::MAX));
        assert!(proto.bucket_limit.is_sorted());
        assert_eq!(proto.bucket_limit.last(), Some(&f64::MAX));
    }

    #[test]
    fn an_edge_belongs_to_the_bucket_on_its_right() {
        let proto = Histogram::from_iter([0.0]).to_proto();
        let full: Vec<_> = proto.bucket.iter().zip(&proto.bucket_limit).collect();
        assert_eq!(full, [(&0.0, &0.0), (&1.0, &1e-12), (&0.0, &f64::MAX)]);
    }
}
