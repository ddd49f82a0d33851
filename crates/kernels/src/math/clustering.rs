//! Where k-means begins: `KmeansPlusPlusInitialization` and `KMC2ChainInitialization`.

use crate::random::philox::{Philox, Words};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, OpContext, Registry};
use downpour_tensor::{DType, Shape, Tensor};
use std::collections::HashSet;

pub(crate) fn register(r: &mut Registry) {
    r.add("KmeansPlusPlusInitialization", |_| Built::costly(plus_plus));
    r.add("KMC2ChainInitialization", |_| Built::costly(chain));
}

fn invalid<T>(text: impl Into<String>) -> Result<T> {
    Err(Status::invalid_argument(text))
}

/// The int64 scalar at input `i`.
fn scalar(ctx: &OpContext<'_>, i: usize, name: &str) -> Result<i64> {
    let t = ctx.input(i)?;
    match t.rank() {
        0 => Ok(t.scalar_value::<i64>()?),
        _ => invalid(format!("Input {name} should be a scalar.")),
    }
}

fn words(seed: i64) -> Words {
    Words::new(Philox::from_seeds(seed as u64, 0))
}

/// A Markov chain over the candidates, which goes on to one with the ratio of its distance to the last one's.
fn chain(ctx: &mut OpContext<'_>) -> Result<()> {
    let distances = ctx.input(0)?;
    if distances.rank() != 1 {
        return invalid("Input distances should be a vector.");
    }
    let mut words = words(scalar(ctx, 1, "seed")?);
    let [first, rest @ ..] = distances.as_slice::<f32>()? else {
        return invalid("Expected distances_tensor.size() > 0.");
    };
    let (mut at, mut distance) = (0, *first);
    for (i, candidate) in rest.iter().enumerate() {
        if *candidate > words.f32() * distance {
            (at, distance) = (i as i64 + 1, *candidate);
        }
    }
    ctx.set_output(0, Tensor::scalar(at));
    Ok(())
}

/// Points drawn one after the other, each by its squared distance to the nearest of those before.
fn plus_plus(ctx: &mut OpContext<'_>) -> Result<()> {
    let points = ctx.input(0)?;
    let &[n, depth] = points.dims() else {
        return invalid("Input points should be a matrix.");
    };
    let wanted = scalar(ctx, 1, "num_to_sample")?;
    let seed = scalar(ctx, 2, "seed")?;
    let retries = scalar(ctx, 3, "num_retries_per_sample")?;
    if n == 0 {
        return invalid("Expected points.rows() > 0.");
    }
    let Some(count) = usize::try_from(wanted).ok().filter(|c| *c > 0) else {
        return invalid("Expected num_to_sample > 0.");
    };
    if count > n {
        return invalid(format!(
            "Expected num_to_sample <= points.rows(). {count} vs {n}."
        ));
    }
    let retries = match u64::try_from(retries) {
        Ok(retries) => retries,
        Err(_) => 2 + (count as f64).ln() as u64,
    };
    let shape = Shape::from([count, depth]);
    ctx.check_alloc(DType::Float, &shape)?;
    let mut draw = Draw {
        points: points.as_slice::<f32>()?,
        depth,
        halves: Vec::new(),
        words: words(seed),
        sums: Vec::new(),
        chosen: HashSet::new(),
    };
    draw.halves = draw.rows().map(|p| 0.5 * dot(p, p)).collect();
    let mut nearest = vec![f32::INFINITY; n];
    let mut out = Vec::with_capacity(shape.num_elements());
    for _ in 0..count {
        let mut best: Option<(f32, usize, Vec<f32>)> = None;
        for _ in 0..=retries {
            let at = draw.one(n);
            let with = draw.nearest_with(&nearest, at);
            let sum: f32 = with.iter().sum();
            if best.as_ref().is_none_or(|b| sum < b.0) {
                best = Some((sum, at, with));
            }
        }
        if let Some((_, at, with)) = best {
            nearest = with;
            draw.chosen.insert(at);
            out.extend_from_slice(&draw.points[at * depth..(at + 1) * depth]);
        }
        draw.sums.clear();
        let mut sum = 0.0;
        draw.sums.extend(nearest.iter().map(|d| {
            sum += d;
            sum
        }));
    }
    let out = Tensor::from_vec(out, shape)?;
    ctx.set_output(0, out);
    Ok(())
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

struct Draw<'a> {
    points: &'a [f32],
    depth: usize,
    /// Half the squared length of each point.
    halves: Vec<f32>,
    words: Words,
    /// Sums of the distances up to each point, once there is one.
    sums: Vec<f32>,
    chosen: HashSet<usize>,
}

impl Draw<'_> {
    fn rows(&self) -> impl Iterator<Item = &[f32]> {
        (0..self.points.len() / self.depth.max(1)).map(|i| self.row(i))
    }

    fn row(&self, i: usize) -> &[f32] {
        &self.points[i * self.depth..(i + 1) * self.depth]
    }

    /// A point that is not chosen yet.
    fn one(&mut self, n: usize) -> usize {
        loop {
            let at = match self.sums.last() {
                Some(total) if *total > 0.0 => {
                    let place = self.words.f32() * total;
                    self.sums.partition_point(|s| *s <= place).min(n - 1)
                }
                _ => self.words.below64(n as u64) as usize,
            };
            if !self.chosen.contains(&at) {
                return at;
            }
        }
    }

    /// Half the squared distance of each point to the nearest one, `at` among those.
    fn nearest_with(&self, nearest: &[f32], at: usize) -> Vec<f32> {
        let to = self.row(at);
        let each = nearest.iter().enumerate().map(|(i, d)| {
            let other = self.halves[i] - dot(self.row(i), to) + self.halves[at];
            d.min(other)
        });
        each.collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::run_op;
    use downpour_tensor::Tensor;

    #[test]
    fn the_points_drawn_lie_apart() {
        // Three heaps: one of each is drawn, as its distance to the others is all there is.
        let mut points = Vec::new();
        for center in [0.0f32, 100.0, 200.0] {
            for i in 0..5 {
                points.extend([center + i as f32 * 1e-3, center]);
            }
        }
        for seed in 0..10i64 {
            let inputs = vec![
                Tensor::from_vec(points.clone(), [15, 2]).unwrap(),
                Tensor::scalar(3i64),
                Tensor::scalar(seed),
                Tensor::scalar(-1i64),
            ];
            let out = run_op("KmeansPlusPlusInitialization", inputs, &[]).unwrap();
            let mut heaps: Vec<i64> = out[0]
                .as_slice::<f32>()
                .unwrap()
                .chunks(2)
                .map(|p| (p[1] / 100.0) as i64)
                .collect();
            heaps.sort_unstable();
            assert_eq!(heaps, [0, 1, 2], "seed {seed}");
        }
    }

    #[test]
    fn a_chain_ends_at_what_is_far() {
        let run = |d: Vec<f32>| {
            let out = run_op(
                "KMC2ChainInitialization",
                vec![Tensor::vector(d), Tensor::scalar(7i64)],
                &[],
            );
            out.unwrap()[0].scalar_value::<i64>().unwrap()
        };
        assert_eq!(run(vec![1.0, 2.0, 1e9, 0.0, 0.0]), 2);
        assert_eq!(run(vec![5.0]), 0);
    }
}
