//! `StatefulRandomBinomial` and `StatelessRandomBinomial`: sums of geometric numbers where few
//! successes are expected, Hörmann's transformed rejection otherwise, in double precision.

use super::gamma::Pairs;
use super::generator::{advance, check_algorithm, philox_of};
use super::philox::Philox;
use super::stateless::from_seed;
use crate::broadcast::Broadcast;
use crate::nn::float::widen;
use crate::types::with_type;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry, parallel_ranges};
use downpour_tensor::{DType, Element, Shape, Tensor};
use half::f16;

const FLOATS: &[DType] = crate::types::HALF_TO_DOUBLE;
const OUTPUTS: &[DType] = &[
    DType::Half,
    DType::Float,
    DType::Double,
    DType::Int32,
    DType::Int64,
];

/// Draws after which a sum of geometric numbers is given up; at most ten successes are expected.
const MAX_DRAWS: usize = 100_000;

pub(super) fn register(r: &mut Registry) {
    let types = &[("T", FLOATS), ("dtype", OUTPUTS)];
    r.add_typed("StatefulRandomBinomial", types, stateful);
    r.add_typed("StatelessRandomBinomial", types, stateless);
}

fn invalid<T>(text: impl Into<String>) -> Result<T> {
    Err(Status::invalid_argument(text))
}

fn stateful(b: &KernelBuilder<'_>) -> Result<Built> {
    let dtype = b.attrs().dtype("dtype")?;
    Built::costly(move |ctx| {
        let job = Job::new(ctx, 2, 3, 4)?;
        check_algorithm(ctx)?;
        ctx.check_alloc(dtype, &job.shape)?;
        // As many as TensorFlow's kernel reserves, whatever is drawn.
        let reserved = (job.batches as u64)
            .wrapping_mul(200)
            .wrapping_mul(job.samples as u64 + 3)
            / 4;
        let philox = philox_of(&advance(ctx, reserved)?)?;
        let out = job.draw(ctx, dtype, philox)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

fn stateless(b: &KernelBuilder<'_>) -> Result<Built> {
    let dtype = b.attrs().dtype("dtype")?;
    Built::costly(move |ctx| {
        let philox = from_seed(ctx, 1)?;
        let job = Job::new(ctx, 0, 2, 3)?;
        let out = job.draw(ctx, dtype, philox)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// What to draw: `samples` numbers for each of `batches` pairs of count and probability.
struct Job {
    shape: Shape,
    batches: usize,
    samples: usize,
    counts: Vec<f64>,
    chances: Vec<f64>,
    half: bool,
    single: bool,
}

impl Job {
    fn new(ctx: &OpContext<'_>, shape: usize, counts: usize, probs: usize) -> Result<Job> {
        let (shape, counts, probs) = (ctx.input(shape)?, ctx.input(counts)?, ctx.input(probs)?);
        let Some(bc) = Broadcast::new(counts.dims(), probs.dims()) else {
            return invalid(format!(
                "counts and probs must have compatible batch dimensions: {} vs. {}",
                counts.shape(),
                probs.shape()
            ));
        };
        if shape.rank() != 1 {
            return invalid(format!(
                "Input shape should be a vector, got shape: {}",
                shape.shape()
            ));
        }
        let shape = crate::args::shape(shape)?;
        if !shape.ends_with(&bc.shape) {
            return invalid("Shape passed in must end with broadcasted shape.");
        }
        let batches = bc.shape.num_elements();
        let outer: usize = shape[..shape.rank() - bc.shape.rank()].iter().product();
        let dtype = counts.dtype();
        let (all_counts, all_chances) = (numbers(counts)?, numbers(probs)?);
        let (mut counts, mut chances) = (Vec::new(), Vec::new());
        let (run, (left, right)) = (bc.row_len(), bc.steps());
        bc.rows(|_, l, r| {
            counts.extend((0..run).map(|i| all_counts[l + i * left]));
            chances.extend((0..run).map(|i| all_chances[r + i * right]));
        });
        Ok(Job {
            shape,
            batches,
            samples: outer,
            counts,
            chances,
            half: dtype == DType::Half,
            single: dtype == DType::Float,
        })
    }

    fn draw(&self, ctx: &OpContext<'_>, dtype: DType, philox: Philox) -> Result<Tensor> {
        let mut out = ctx.zeros(dtype, &self.shape)?;
        if out.num_elements() == 0 {
            return Ok(out);
        }
        with_type!(dtype, U in [f32, f64, f16, i32, i64] => {
            parallel_ranges(out.make_mut::<U>()?, 1, 256, |first, rows| {
                for (i, to) in rows.iter_mut().enumerate() {
                    let (sample, batch) = ((first + i) / self.batches, (first + i) % self.batches);
                    *to = U::of(self.one(philox, batch, batch * self.samples + sample));
                }
            });
        });
        Ok(out)
    }

    /// A number rounded to the type counts are given in.
    fn rounded(&self, value: f64) -> f64 {
        if self.half {
            f16::from_f64(value).to_f64()
        } else if self.single {
            f64::from(value as f32)
        } else {
            value
        }
    }

    fn one(&self, philox: Philox, batch: usize, number: usize) -> f64 {
        let (count, chance) = (self.counts[batch], self.chances[batch]);
        if count <= 0.0 || chance <= 0.0 {
            return 0.0;
        }
        if chance >= 1.0 {
            return count;
        }
        if !(chance < 1.0) || count.is_nan() {
            return f64::NAN;
        }
        let rare = chance <= 0.5;
        let p = if rare {
            chance
        } else {
            self.rounded(1.0 - chance)
        };
        let found = if self.rounded(count * p) >= 10.0 {
            transformed(count, p, philox.skipped((number as u64).wrapping_mul(256)))
        } else {
            geometric(count, p, philox.skipped((number as u64).wrapping_mul(42)))
        };
        if rare { found } else { count - found }
    }
}

fn numbers(t: &Tensor) -> Result<Vec<f64>> {
    let t = widen(t)?;
    Ok(match t.dtype() {
        DType::Double => t.as_slice::<f64>()?.to_vec(),
        _ => t.as_slice::<f32>()?.iter().map(|&v| v.into()).collect(),
    })
}

/// A type that counts of successes can be given in.
trait Count: Element {
    fn of(value: f64) -> Self;
}

macro_rules! counts {
    ($($t:ty),*) => {
        $(impl Count for $t {
            fn of(value: f64) -> $t {
                value as $t
            }
        })*
    };
}

counts!(f32, f64, i32, i64);

impl Count for f16 {
    fn of(value: f64) -> f16 {
        f16::from_f32(value as f32)
    }
}

/// Successes, by the distances between them.
fn geometric(count: f64, p: f64, mut philox: Philox) -> f64 {
    let mut uniform = Pairs::uniform();
    let (mut sum, mut found) = (0.0, 0);
    while found < MAX_DRAWS {
        sum += (uniform.next(&mut philox).ln() / (-p).ln_1p()).ceil();
        if sum > count {
            break;
        }
        found += 1;
    }
    found as f64
}

/// What Stirling's formula for the logarithm of k! leaves out.
fn tail(k: f64) -> f64 {
    const SMALL: [f64; 10] = [
        0.0810614667953272,
        0.0413406959554092,
        0.0276779256849983,
        0.02079067210376509,
        0.0166446911898211,
        0.0138761288230707,
        0.0118967099458917,
        0.0104112652619720,
        0.00925546218271273,
        0.00833056343336287,
    ];
    if k <= 9.0 {
        return SMALL[k.max(0.0) as usize];
    }
    let square = (k + 1.0) * (k + 1.0);
    (1.0 / 12.0 - (1.0 / 360.0 - 1.0 / 1260.0 / square) / square) / (k + 1.0)
}

fn transformed(count: f64, p: f64, mut philox: Philox) -> f64 {
    let mut uniform = Pairs::uniform();
    let deviation = (count * p * (1.0 - p)).sqrt();
    let b = 1.15 + 2.53 * deviation;
    let a = -0.0873 + 0.0248 * b + 0.01 * p;
    let c = count * p + 0.5;
    let sure = 0.92 - 4.2 / b;
    let r = p / (1.0 - p);
    let alpha = (2.83 + 5.1 / b) * deviation;
    let m = ((count + 1.0) * p).floor();
    for _ in 0..MAX_DRAWS {
        let u = uniform.next(&mut philox) - 0.5;
        let v = uniform.next(&mut philox);
        let us = 0.5 - u.abs();
        let k = ((2.0 * a / us + b) * u + c).floor();
        if us >= 0.07 && v <= sure {
            return k;
        }
        if k < 0.0 || k > count {
            continue;
        }
        let v = (v * alpha / (a / (us * us) + b)).ln();
        let limit = (m + 0.5) * ((m + 1.0) / (r * (count - m + 1.0))).ln()
            + (count + 1.0) * ((count - m + 1.0) / (count - k + 1.0)).ln()
            + (k + 0.5) * (r * (count - k + 1.0) / (k + 1.0)).ln()
            + tail(m)
            + tail(count - m)
            - tail(k)
            - tail(count - k);
        if v <= limit {
            return k;
        }
    }
    m
}
