//! `RandomGamma` and its stateless forms: gamma numbers by Marsaglia's and Tsang's method, in
//! double precision.

use super::distribution::Draw;
use super::philox::{Guarded, Philox, RESERVED_PER_OUTPUT, WORDS};
use super::shape_arg;
use super::stateless::{from_seed, key_counter_alg};
use crate::types::{FLOATS, with_type};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry, parallel_ranges};
use downpour_tensor::{Shape, Tensor};
use half::{bf16, f16};

pub(super) fn register(r: &mut Registry) {
    r.add_typed("RandomGamma", &[("T", FLOATS)], random_gamma);
    r.add_typed("StatelessRandomGammaV2", &[("dtype", FLOATS)], |_| {
        Built::costly(|ctx| stateless(ctx, 2, from_seed))
    });
    r.add_typed("StatelessRandomGammaV3", &[("dtype", FLOATS)], |_| {
        Built::costly(|ctx| stateless(ctx, 4, key_counter_alg))
    });
}

fn random_gamma(b: &KernelBuilder<'_>) -> Result<Built> {
    let generator = Guarded::from_attrs(b.attrs())?;
    Built::costly(move |ctx| {
        let given = ctx.input(0)?;
        if given.rank() != 1 {
            return Err(Status::invalid_argument(format!(
                "shape must be a vector of {{int32,int64}}, got shape: Tensor<type: {} shape: {} values: {}>",
                given.dtype(),
                given.shape(),
                given.summarize(3)
            )));
        }
        let shape = outer(&shape_arg(given)?, ctx.input(1)?)?;
        let reserve = || generator.reserve_outputs(shape.num_elements());
        let out = gamma(ctx, ctx.input(1)?, &shape, reserve)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

fn stateless(
    ctx: &mut OpContext<'_>,
    alpha: usize,
    source: fn(&OpContext<'_>, usize) -> Result<Philox>,
) -> Result<()> {
    let shape = shape_arg(ctx.input(0)?)?;
    let alpha = ctx.input(alpha)?;
    ends_with(&shape, alpha)?;
    let philox = source(ctx, 1)?;
    let out = gamma(ctx, alpha, &shape, || philox)?;
    ctx.set_output(0, out);
    Ok(())
}

/// `samples` followed by the parameter's dimensions.
pub(super) fn outer(samples: &Shape, parameter: &Tensor) -> Result<Shape> {
    let dims = samples.iter().chain(parameter.dims()).map(|&d| d as i64);
    Ok(Shape::checked(dims)?)
}

/// Checks that a stateless op's shape ends with that of its parameter.
pub(super) fn ends_with(shape: &Shape, parameter: &Tensor) -> Result<()> {
    if shape.ends_with(parameter.dims()) {
        return Ok(());
    }
    Err(Status::invalid_argument(
        "Shape passed in must end with broadcasted shape.",
    ))
}

/// Uniform or normal doubles taken two at a time, the second first, as TensorFlow does.
pub(super) struct Pairs {
    make: fn([u32; WORDS]) -> [f64; 2],
    pair: [f64; 2],
    left: usize,
}

impl Pairs {
    pub(super) fn uniform() -> Pairs {
        Pairs {
            make: f64::uniform,
            pair: [0.0; 2],
            left: 0,
        }
    }

    fn normal() -> Pairs {
        Pairs {
            make: f64::normal,
            pair: [0.0; 2],
            left: 0,
        }
    }

    pub(super) fn next(&mut self, philox: &mut Philox) -> f64 {
        if self.left == 0 {
            self.pair = (self.make)(philox.block());
            self.left = 2;
        }
        self.left -= 1;
        self.pair[self.left]
    }
}

/// The generator of output number `index`, numbered by parameter first: sample `s` of parameter
/// `p` is number `p * samples + s`, whatever the layout of the output.
pub(super) fn generator_of(philox: Philox, index: usize) -> Philox {
    philox.skipped((index as u64).wrapping_mul(RESERVED_PER_OUTPUT))
}

fn gamma(
    ctx: &OpContext<'_>,
    alpha: &Tensor,
    shape: &Shape,
    philox: impl FnOnce() -> Philox,
) -> Result<Tensor> {
    let mut out = ctx.zeros(alpha.dtype(), shape)?;
    let alphas = alpha.num_elements();
    if out.num_elements() == 0 {
        return Ok(out);
    }
    let (samples, philox) = (out.num_elements() / alphas, philox());
    with_type!(alpha.dtype(), T in floats => {
        let alpha = alpha.as_slice::<T>()?;
        parallel_ranges(out.make_mut::<T>()?, 1, 256, |first, rows| {
            for (i, out) in rows.iter_mut().enumerate() {
                let (sample, a) = ((first + i) / alphas, (first + i) % alphas);
                let value = draw(f64::from(alpha[a]), generator_of(philox, a * samples + sample));
                *out = Narrow::narrow(value);
            }
        });
    });
    Ok(out)
}

trait Narrow {
    fn narrow(value: f64) -> Self;
}

impl Narrow for f32 {
    fn narrow(value: f64) -> f32 {
        value as f32
    }
}

impl Narrow for f64 {
    fn narrow(value: f64) -> f64 {
        value
    }
}

impl Narrow for f16 {
    fn narrow(value: f64) -> f16 {
        f16::from_f32(value as f32)
    }
}

impl Narrow for bf16 {
    fn narrow(value: f64) -> bf16 {
        bf16::from_f32(value as f32)
    }
}

fn draw(alpha: f64, mut philox: Philox) -> f64 {
    let mut uniform = Pairs::uniform();
    if alpha == 1.0 {
        return -(-uniform.next(&mut philox)).ln_1p();
    }
    let small = alpha < 1.0;
    let d = alpha + if small { 2.0 / 3.0 } else { -1.0 / 3.0 };
    let c = 1.0 / 3.0 / d.sqrt();
    let mut normal = Pairs::normal();
    loop {
        let x = normal.next(&mut philox);
        let v = 1.0 + c * x;
        if v <= 0.0 {
            continue;
        }
        let v = v * v * v;
        let u = uniform.next(&mut philox);
        let squeeze = u < 1.0 - 0.0331 * (x * x) * (x * x);
        if squeeze || u.ln() < 0.5 * x * x + d * (1.0 - v + v.ln()) {
            let power = match small {
                true => uniform.next(&mut philox).powf(1.0 / alpha),
                false => 1.0,
            };
            return d * v * power;
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::run_op;
    use downpour_tensor::{DType, Tensor};

    #[test]
    fn gamma_numbers_are_tensorflows() {
        let inputs = vec![
            Tensor::vector(vec![3i32]),
            Tensor::vector(vec![0.5f32, 1.0, 2.0]),
        ];
        let attrs = [
            ("S", DType::Int32.into()),
            ("T", DType::Float.into()),
            ("seed", 1i64.into()),
            ("seed2", 2i64.into()),
        ];
        let out = run_op("RandomGamma", inputs, &attrs).unwrap();
        let expect = [
            0.01443956, 0.33404183, 1.6161634, 0.1910653, 0.2716996, 2.9913065, 0.19171634,
            0.9651606, 0.9788019,
        ];
        let got = out[0].as_slice::<f32>().unwrap();
        assert_eq!(out[0].dims(), [3, 3]);
        assert!(
            got.iter().zip(expect).all(|(a, b)| (a - b).abs() < 1e-6),
            "{got:?}"
        );
    }
}
