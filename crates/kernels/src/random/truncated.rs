//! `ParameterizedTruncatedNormal`: normal numbers between bounds, each row with parameters of
//! its own.
//!
//! One stream serves all rows in order. TensorFlow restarts it where a thread's share of the
//! rows begins, so that its result depends on the number of threads once there are many rows;
//! here the result is always the one of a single thread.

use super::distribution::Draw;
use super::philox::{Guarded, Philox};
use crate::args::ints;
use crate::types::with_type;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{DType, Shape, Tensor};
use num_traits::Float;

const TYPES: &[DType] = crate::types::HALF_TO_DOUBLE;

/// How often in a row a sample may be refused.
const MAX_ITERATIONS: u64 = 1000;

/// Samples that are drawn together when all parameters are scalars.
const BATCH: usize = 100;

pub(super) fn register(r: &mut Registry) {
    r.add_typed(
        "ParameterizedTruncatedNormal",
        &[("dtype", TYPES)],
        parameterized,
    );
}

fn parameterized(b: &KernelBuilder<'_>) -> Result<Built> {
    let generator = Guarded::from_attrs(b.attrs())?;
    let dtype = b.attrs().dtype("dtype")?;
    Built::costly(move |ctx| {
        let (shape, batches, per_batch) = layout(ctx)?;
        let mut out = ctx.zeros(dtype, &shape)?;
        if out.num_elements() > 0 {
            let blocks = (batches as u64)
                .wrapping_mul(2 * MAX_ITERATIONS)
                .wrapping_mul(per_batch as u64 + 3)
                / 4;
            let philox = generator.reserve(blocks);
            with_type!(dtype, T in [f32, f64, ::half::f16] =>
                fill::<T>(ctx, &mut out, per_batch, philox)?);
        }
        ctx.set_output(0, out);
        Ok(())
    })
}

/// Output shape, number of batches and samples in each.
fn layout(ctx: &OpContext<'_>) -> Result<(Shape, usize, usize)> {
    let given = ctx.input(0)?;
    if given.rank() != 1 {
        return Err(Status::invalid_argument(format!(
            "Input shape should be a vector, got shape: {}",
            given.shape()
        )));
    }
    if given.num_elements() == 0 {
        return Err(Status::invalid_argument(format!(
            "Shape tensor must not be empty, got Tensor<type: {} shape: [0] values: >",
            given.dtype()
        )));
    }
    let shape = Shape::checked(ints(given)?)?;
    let names = ["means", "stddevs", "minvals", "maxvals"];
    let mut scalars = true;
    for (i, name) in names.iter().enumerate() {
        let parameter = ctx.input(i + 1)?;
        if parameter.rank() > 1 {
            return Err(Status::invalid_argument(format!(
                "Input {name} should be a scalar or vector, got shape: {}",
                parameter.shape()
            )));
        }
        scalars &= parameter.num_elements() == 1;
    }
    let total = shape.num_elements();
    if scalars {
        return Ok((shape, total.div_ceil(BATCH), BATCH));
    }
    let batches = shape.first().copied().unwrap_or(0);
    for (i, name) in names.iter().enumerate() {
        let parameter = ctx.input(i + 1)?;
        if parameter.num_elements() != 1 && parameter.num_elements() != batches {
            return Err(Status::invalid_argument(format!(
                "Input {name} should have length 1 or shape[0], got shape: {}",
                parameter.shape()
            )));
        }
    }
    let per_batch = total / batches.max(1);
    Ok((shape, batches, per_batch))
}

/// A float type that is drawn and computed with.
trait Real: Draw + Float {
    fn of(value: f64) -> Self {
        Self::from(value).unwrap_or_else(Self::nan)
    }
}

impl Real for f32 {}
impl Real for f64 {}
impl Real for half::f16 {}

fn fill<T: Real>(
    ctx: &OpContext<'_>,
    out: &mut Tensor,
    per_batch: usize,
    mut philox: Philox,
) -> Result<()> {
    let parameters = [
        ctx.input(1)?.as_slice::<T>()?,
        ctx.input(2)?.as_slice::<T>()?,
        ctx.input(3)?.as_slice::<T>()?,
        ctx.input(4)?.as_slice::<T>()?,
    ];
    for (b, batch) in out.make_mut::<T>()?.chunks_mut(per_batch).enumerate() {
        let [mean, mut deviation, mut low, mut high] =
            parameters.map(|p| p.get(b).or(p.first()).copied().unwrap_or_else(T::nan));
        let sound = deviation > T::zero() && low < high && (low.is_finite() || high.is_finite());
        if !sound {
            return Err(Status::invalid_argument("Invalid parameters"));
        }
        // A one-sided bound becomes the lower one; bounds below the mean are mirrored above it.
        if (low.is_infinite() && low < T::zero()) || high < mean {
            std::mem::swap(&mut low, &mut high);
            deviation = -deviation;
        }
        let low = (low - mean) / deviation;
        let high = (high - mean) / deviation;
        sample(batch, low, high, &mut philox)?;
        for x in batch {
            *x = *x * deviation + mean;
        }
    }
    Ok(())
}

/// Fills `out` with standard normals between `low` and `high`, by whichever proposal is refused
/// least often.
fn sample<T: Real>(out: &mut [T], low: T, high: T, philox: &mut Philox) -> Result<()> {
    let root = (low * low + T::of(4.0)).sqrt();
    let cutoff = T::of(2.0) * (T::of(0.5) + (low * (low - root)) / T::of(4.0)).exp() / (low + root);
    let width = high - low;
    // Enough of the bell lies inside for plain normal samples.
    let wide = T::of(1.7);
    if (low < -wide && high >= T::zero()) || (high > wide && low <= T::zero()) {
        return from_normal(out, low, high, philox);
    }
    if width < cutoff {
        from_uniform(out, low, width, philox);
    } else {
        from_exponential(out, low, high, philox);
    }
    Ok(())
}

fn from_normal<T: Real>(out: &mut [T], low: T, high: T, philox: &mut Philox) -> Result<()> {
    let (mut n, mut refused) = (0, 0);
    while n < out.len() {
        for &x in T::normal(philox.block()).as_ref() {
            if x >= low && x <= high {
                out[n] = x;
                n += 1;
                if n == out.len() {
                    break;
                }
                refused = 0;
            } else {
                refused += 1;
                if refused > MAX_ITERATIONS {
                    return Err(Status::internal(
                        "TruncatedNormal randn rejection sampler failed to accept a sample.",
                    ));
                }
            }
        }
    }
    Ok(())
}

fn from_uniform<T: Real>(out: &mut [T], low: T, width: T, philox: &mut Philox) {
    let plus = if low < T::zero() {
        T::zero()
    } else {
        low * low
    };
    let (mut n, mut refused) = (0, 0);
    while n < out.len() {
        let (places, chances) = (T::uniform(philox.block()), T::uniform(philox.block()));
        for (&place, &chance) in places.as_ref().iter().zip(chances.as_ref()) {
            let z = place * width + low;
            let accept = chance <= ((plus - z * z) / T::of(2.0)).exp();
            // Out of patience, TensorFlow takes the sample it has.
            if accept || refused + 1 >= MAX_ITERATIONS {
                out[n] = z;
                n += 1;
                if n == out.len() {
                    break;
                }
                refused = 0;
            } else {
                refused += 1;
            }
        }
    }
}

fn from_exponential<T: Real>(out: &mut [T], low: T, high: T, philox: &mut Philox) {
    let alpha = (low + (low * low + T::of(4.0)).sqrt()) / T::of(2.0);
    let (mut n, mut refused) = (0, 0);
    while n < out.len() {
        for pair in T::uniform(philox.block()).as_ref().chunks_exact(2) {
            let z = -pair[0].ln() / alpha + low;
            let x = if low < alpha { alpha - z } else { low - alpha };
            let accept = pair[1] <= (-x * x / T::of(2.0)).exp() && z < high;
            if accept || refused + 1 >= MAX_ITERATIONS {
                out[n] = z;
                n += 1;
                if n == out.len() {
                    break;
                }
                refused = 0;
            } else {
                refused += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::run_op;
    use downpour_tensor::{DType, Tensor};

    fn run(parameters: [f32; 4]) -> Vec<f32> {
        let mut inputs = vec![Tensor::vector(vec![5i32])];
        inputs.extend(parameters.map(Tensor::scalar));
        let attrs = [
            ("dtype", DType::Float.into()),
            ("T", DType::Int32.into()),
            ("seed", 1i64.into()),
            ("seed2", 2i64.into()),
        ];
        let out = run_op("ParameterizedTruncatedNormal", inputs, &attrs).unwrap();
        out[0].as_slice::<f32>().unwrap().to_vec()
    }

    #[test]
    fn every_proposal_gives_tensorflows_samples() {
        for (parameters, expect) in [
            (
                [0.0, 1.0, -1.0, 1.0],
                [-0.1872065, 0.71519923, -0.8892083, -0.8282554, 0.73817945],
            ),
            (
                [0.0, 1.0, -2.0, 2.0],
                [-1.0467793, 0.8397046, 1.2358364, 0.3037427, 1.2963251],
            ),
            (
                [0.0, 1.0, 3.0, 5.0],
                [3.2726269, 3.876006, 3.268368, 3.127089, 3.0424821],
            ),
            (
                [0.0, 1.0, 1.0, 1.1],
                [1.0406396, 1.08576, 1.0055395, 1.0085872, 1.086909],
            ),
            (
                [0.0, 1.0, f32::NEG_INFINITY, -1.0],
                [-1.5564935, -2.7881274, -1.5478001, -1.2594177, -1.0867157],
            ),
        ] {
            let got = run(parameters);
            let close = got.iter().zip(expect).all(|(a, b)| (a - b).abs() < 1e-6);
            assert!(close, "{parameters:?}: {got:?} is not {expect:?}");
        }
    }
}
