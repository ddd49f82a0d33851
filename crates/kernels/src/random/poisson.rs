//! `RandomPoissonV2`, `RandomPoisson` and `StatelessRandomPoisson`: Knuth's method for small
//! rates, Hörmann's transformed rejection for large ones, in double precision.

use super::gamma::{Pairs, ends_with, generator_of, outer};
use super::philox::{Guarded, Philox};
use super::shape_arg;
use super::stateless::from_seed;
use crate::types::with_type;
use downpour_graph::Result;
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry, parallel_ranges};
use downpour_tensor::{DType, Element, Shape, Tensor};
use half::f16;

const TYPES: &[DType] = &[
    DType::Half,
    DType::Float,
    DType::Double,
    DType::Int32,
    DType::Int64,
];

/// Draws after which a rate whose numbers do not fit the output type is given up. TensorFlow
/// would draw for ever; from a rate that fits, so many refusals have no measurable chance.
const MAX_DRAWS: usize = 10_000;

pub(super) fn register(r: &mut Registry) {
    r.add_typed(
        "RandomPoissonV2",
        &[("R", TYPES), ("dtype", TYPES)],
        random_poisson,
    );
    r.add_typed("RandomPoisson", &[("dtype", &TYPES[..3])], random_poisson);
    let types = &[("Rtype", TYPES), ("dtype", TYPES)];
    r.add_typed("StatelessRandomPoisson", types, stateless);
}

fn random_poisson(b: &KernelBuilder<'_>) -> Result<Built> {
    let generator = Guarded::from_attrs(b.attrs())?;
    let dtype = b.attrs().dtype("dtype")?;
    Built::costly(move |ctx| {
        let shape = outer(&shape_arg(ctx.input(0)?)?, ctx.input(1)?)?;
        let reserve = || generator.reserve_outputs(shape.num_elements());
        let out = poisson(ctx, ctx.input(1)?, dtype, &shape, reserve)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

fn stateless(b: &KernelBuilder<'_>) -> Result<Built> {
    let dtype = b.attrs().dtype("dtype")?;
    Built::costly(move |ctx| {
        let shape = shape_arg(ctx.input(0)?)?;
        ends_with(&shape, ctx.input(2)?)?;
        let philox = from_seed(ctx, 1)?;
        let out = poisson(ctx, ctx.input(2)?, dtype, &shape, || philox)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

fn poisson(
    ctx: &OpContext<'_>,
    rate: &Tensor,
    dtype: DType,
    shape: &Shape,
    philox: impl FnOnce() -> Philox,
) -> Result<Tensor> {
    let mut out = ctx.zeros(dtype, shape)?;
    let count = rate.num_elements();
    if out.num_elements() == 0 {
        return Ok(out);
    }
    let rates: Vec<f64> = match rate.dtype() {
        DType::Int64 => rate.as_slice::<i64>()?.iter().map(|&r| r as f64).collect(),
        other => with_type!(other, R in [f32, f64, ::half::f16, i32] =>
            rate.as_slice::<R>()?.iter().map(|&r| f64::from(r)).collect()),
    };
    let (samples, philox) = (out.num_elements() / count, philox());
    with_type!(dtype, U in [f32, f64, ::half::f16, i32, i64] => {
        parallel_ranges(out.make_mut::<U>()?, 1, 256, |first, rows| {
            for (i, out) in rows.iter_mut().enumerate() {
                let (sample, r) = ((first + i) / count, (first + i) % count);
                *out = draw(rates[r], generator_of(philox, r * samples + sample));
            }
        });
    });
    Ok(out)
}

/// A type that counts can be given in.
trait Count: Element {
    const HIGHEST: f64;
    const INFINITY: Self;
    fn of(count: f64) -> Self;
}

macro_rules! counts {
    ($($t:ty, $highest:expr, $infinity:expr, $x:ident => $of:expr;)*) => {
        $(impl Count for $t {
            const HIGHEST: f64 = $highest;
            const INFINITY: $t = $infinity;
            fn of($x: f64) -> $t { $of }
        })*
    };
}

counts! {
    f32, f32::MAX as f64, f32::INFINITY, x => x as f32;
    f64, f64::MAX, f64::INFINITY, x => x;
    f16, 65504.0, f16::INFINITY, x => f16::from_f32(x as f32);
    // Integers have no infinity: TensorFlow's traits say 0.
    i32, i32::MAX as f64, 0, x => x as i32;
    i64, i64::MAX as f64, 0, x => x as i64;
}

fn draw<U: Count>(rate: f64, mut philox: Philox) -> U {
    let mut uniform = Pairs::uniform();
    if rate < 10.0 {
        let least = (-rate).exp();
        let (mut product, mut count) = (1.0, 0.0);
        loop {
            product *= uniform.next(&mut philox);
            if product <= least {
                return U::of(count);
            }
            count += 1.0;
        }
    }
    if rate.is_infinite() {
        return U::INFINITY;
    }
    let log_rate = rate.ln();
    let b = 0.931 + 2.53 * rate.sqrt();
    let a = -0.059 + 0.02483 * b;
    let inverse_alpha = 1.1239 + 1.1328 / (b - 3.4);
    for _ in 0..MAX_DRAWS {
        let u = uniform.next(&mut philox) - 0.5;
        let v = uniform.next(&mut philox);
        let shifted = 0.5 - u.abs();
        let k = ((2.0 * a / shifted + b) * u + rate + 0.43).floor();
        if k > U::HIGHEST {
            continue;
        }
        if shifted >= 0.07 && v <= 0.9277 - 3.6224 / (b - 2.0) {
            return U::of(k);
        }
        if k < 0.0 || (shifted < 0.013 && v > shifted) {
            continue;
        }
        let s = (v * inverse_alpha / (a / (shifted * shifted) + b)).ln();
        if s <= -rate + k * log_rate - libm::lgamma(k + 1.0) {
            return U::of(k);
        }
    }
    U::of(if rate.is_nan() { f64::NAN } else { U::HIGHEST })
}

#[cfg(test)]
mod tests {
    use crate::testing::run_op;
    use downpour_tensor::{DType, Tensor};

    fn run(rates: Vec<f64>, samples: i32, out: DType) -> Tensor {
        let attrs = [
            ("S", DType::Int32.into()),
            ("R", DType::Double.into()),
            ("dtype", out.into()),
            ("seed", 1i64.into()),
            ("seed2", 2i64.into()),
        ];
        let inputs = vec![Tensor::vector(vec![samples]), Tensor::vector(rates)];
        run_op("RandomPoissonV2", inputs, &attrs).unwrap().remove(0)
    }

    #[test]
    fn counts_are_tensorflows() {
        let out = run(vec![0.5, 1.0, 20.0], 3, DType::Int64);
        assert_eq!(
            out.as_slice::<i64>().unwrap(),
            [0, 0, 24, 1, 0, 14, 0, 1, 21]
        );
        let out = run(vec![100.0], 6, DType::Float);
        assert_eq!(
            out.as_slice::<f32>().unwrap(),
            [98.0, 105.0, 91.0, 93.0, 92.0, 103.0]
        );
    }

    #[test]
    fn rates_that_fit_no_count_end() {
        let out = run(vec![f64::NAN, 1e18, f64::INFINITY], 1, DType::Int32);
        assert_eq!(out.as_slice::<i32>().unwrap(), [0, i32::MAX, 0]);
    }
}
