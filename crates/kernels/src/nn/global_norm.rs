//! `BatchNormWithGlobalNormalization` and its gradient: normalization by given means and variances,
//! which graphs of old producers hold.

use super::float::{compute_type, narrow, widen};
use crate::types::with_type;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{DType, Element, Tensor};
use num_traits::Float;

const TYPES: &[DType] = &[DType::Double, DType::Float, DType::Half];

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("BatchNormWithGlobalNormalization", &[("T", TYPES)], |b| {
        let o = Options::parse(b)?;
        Built::costly(move |ctx| {
            let dtype = check(ctx, ["mean", "var", "beta", "gamma"])?;
            with_type!(compute_type(dtype), T in [f32, f64] => forward::<T>(ctx, o, dtype))
        })
    });
    r.add_typed(
        "BatchNormWithGlobalNormalizationGrad",
        &[("T", TYPES)],
        |b| {
            let o = Options::parse(b)?;
            Built::costly(move |ctx| {
                let dtype = check(ctx, ["mean", "var", "gamma", "out_backprop"])?;
                with_type!(compute_type(dtype), T in [f32, f64] => backward::<T>(ctx, o, dtype))
            })
        },
    );
}

#[derive(Clone, Copy)]
struct Options {
    epsilon: f32,
    scaled: bool,
}

impl Options {
    fn parse(b: &KernelBuilder<'_>) -> Result<Options> {
        Ok(Options {
            epsilon: b.attrs().float("variance_epsilon")?,
            scaled: b.attrs().bool("scale_after_normalization")?,
        })
    }
}

/// Checks the inputs: a vector of one number for each channel, or a tensor like the first.
fn check(ctx: &OpContext<'_>, names: [&str; 4]) -> Result<DType> {
    let x = ctx.input(0)?;
    if x.rank() != 4 {
        return Err(Status::invalid_argument(format!(
            "input must be 4-dimensional{}",
            x.shape()
        )));
    }
    let channels = x.dims()[3];
    for (i, name) in names.iter().enumerate() {
        let t = ctx.input(i + 1)?;
        let (rank, fits) = match *name {
            "out_backprop" => (4, t.shape() == x.shape()),
            _ => (1, t.dims() == [channels]),
        };
        if t.rank() != rank {
            return Err(Status::invalid_argument(format!(
                "{name} must be {rank}-dimensional{}",
                t.shape()
            )));
        }
        // TensorFlow reads past the end of what is smaller.
        if !fits {
            return Err(Status::invalid_argument(format!(
                "{name} of shape {} does not fit an input of shape {}",
                t.shape(),
                x.shape()
            )));
        }
    }
    Ok(x.dtype())
}

fn values<T: Element>(ctx: &OpContext<'_>, i: usize) -> Result<Vec<T>> {
    Ok(widen(ctx.input(i)?)?.as_slice::<T>()?.to_vec())
}

/// One over the root of each variance.
fn roots<T: Float>(variance: &[T], epsilon: f32) -> Vec<T> {
    let epsilon = T::from(epsilon).unwrap_or_else(T::zero);
    variance
        .iter()
        .map(|v| (*v + epsilon).sqrt().recip())
        .collect()
}

fn forward<T: Element + Float>(ctx: &mut OpContext<'_>, o: Options, dtype: DType) -> Result<()> {
    let (x, mean, variance) = (
        values::<T>(ctx, 0)?,
        values::<T>(ctx, 1)?,
        values::<T>(ctx, 2)?,
    );
    let (beta, gamma) = (values::<T>(ctx, 3)?, values::<T>(ctx, 4)?);
    let roots = roots(&variance, o.epsilon);
    let c = mean.len();
    let out = x.iter().enumerate().map(|(i, v)| {
        let ch = i % c;
        let scale = if o.scaled {
            roots[ch] * gamma[ch]
        } else {
            roots[ch]
        };
        (*v - mean[ch]) * scale + beta[ch]
    });
    let out = Tensor::from_vec::<T>(out.collect(), ctx.input(0)?.shape().clone())?;
    ctx.set_output(0, narrow(out, dtype)?);
    Ok(())
}

fn backward<T: Element + Float>(ctx: &mut OpContext<'_>, o: Options, dtype: DType) -> Result<()> {
    let (x, mean, variance) = (
        values::<T>(ctx, 0)?,
        values::<T>(ctx, 1)?,
        values::<T>(ctx, 2)?,
    );
    let (gamma, dy) = (values::<T>(ctx, 3)?, values::<T>(ctx, 4)?);
    let roots = roots(&variance, o.epsilon);
    let c = mean.len();
    let scale = |ch: usize| {
        if o.scaled {
            roots[ch] * gamma[ch]
        } else {
            roots[ch]
        }
    };
    let dx = dy
        .iter()
        .enumerate()
        .map(|(i, d)| *d * scale(i % c))
        .collect();
    let (mut sums, mut moments) = (vec![T::zero(); c], vec![T::zero(); c]);
    for (i, (d, v)) in dy.iter().zip(&x).enumerate() {
        let ch = i % c;
        sums[ch] = sums[ch] + *d;
        moments[ch] = moments[ch] + *d * (*v - mean[ch]);
    }
    let half = T::from(-0.5).unwrap_or_else(T::zero);
    let each = |f: &dyn Fn(usize) -> T| -> Vec<T> { (0..c).map(f).collect() };
    let dm = each(&|ch| -sums[ch] * scale(ch));
    let dv = each(&|ch| moments[ch] * scale(ch) * half * roots[ch] * roots[ch]);
    let dg = each(&|ch| match o.scaled {
        true => moments[ch] * roots[ch],
        false => T::zero(),
    });
    let shape = ctx.input(0)?.shape().clone();
    ctx.set_output(0, narrow(Tensor::from_vec::<T>(dx, shape)?, dtype)?);
    for (i, values) in [dm, dv, sums, dg].into_iter().enumerate() {
        ctx.set_output(i + 1, narrow(Tensor::vector(values), dtype)?);
    }
    Ok(())
}
