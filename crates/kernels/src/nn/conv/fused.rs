//! `_FusedConv2D`: a convolution whose pixels get a bias or a batch normalisation and an
//! activation while they are still in the cache. The same for a convolution that
//! [`crate::nn::layer`] found before a bias and an activation.

use super::convolve;
use super::shape::{Direction, Params};
use crate::linalg::fuse::Activation;
use crate::nn::bias::add_rows;
use crate::nn::float::widen;
use downpour_graph::{Attrs, Result, Status};
use downpour_runtime::{Built, OpContext, Quick, Registry};
use downpour_tensor::{DType, Tensor};

pub(crate) fn register(r: &mut Registry) {
    const TYPES: &[DType] = &[DType::Half, DType::BFloat16, DType::Float];
    r.add_typed("_FusedConv2D", &[("T", TYPES)], |b| {
        let p = Params::parse(b.attrs(), Direction::Forward)?;
        let fused = b.attrs().byte_strings("fused_ops")?;
        let names: Vec<&str> = fused
            .iter()
            .map(|s| std::str::from_utf8(s).unwrap_or_default())
            .collect();
        let alpha = b.attrs().float("leakyrelu_alpha")?;
        let epsilon = b.attrs().float("epsilon")?;
        let unknown =
            || Status::unimplemented(format!("Fusion is not implemented: [{}]", names.join(",")));
        let (norm, rest) = match names.split_first() {
            Some((&"BiasAdd", rest)) => (false, rest),
            Some((&"FusedBatchNorm", rest)) => (true, rest),
            _ => return Err(unknown()),
        };
        let activation = match rest {
            [] => Activation::None,
            [one] => Activation::parse(one, alpha).ok_or_else(unknown)?,
            _ => return Err(unknown()),
        };
        Built::costly(move |ctx| run(ctx, &p, norm, epsilon, activation))
    });
}

/// The convolution of inputs 0 and 1 with `attrs`, then the bias in input 2, then an activation. Leaves
/// whatever is wrong to the ops themselves, whose errors name their nodes.
pub(crate) fn with_bias(attrs: &Attrs, activation: Activation) -> Option<Quick> {
    let p = Params::parse(attrs, Direction::Forward).ok()?;
    Some(Box::new(move |ctx| {
        let (x, filter, bias) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
        if bias.rank() != 1
            || filter.dims().last() != bias.dims().last()
            || bias.num_elements() == 0
        {
            return Ok(false);
        }
        let bias = bias.as_slice::<f32>()?;
        let epilogue = |pixels: &mut [f32]| {
            add_rows(pixels, bias);
            activation.apply(pixels);
        };
        let Ok(out) = convolve(ctx, &p, x, filter, Some(&epilogue)) else {
            return Ok(false);
        };
        ctx.set_output(0, out);
        Ok(true)
    }))
}

fn run(
    ctx: &mut OpContext<'_>,
    p: &Params,
    norm: bool,
    epsilon: f32,
    activation: Activation,
) -> Result<()> {
    let (x, filter) = (ctx.take(0)?, ctx.take(1)?);
    let channels = filter.dims().last().copied().unwrap_or(0);
    let mut args = Vec::new();
    for i in 2..ctx.num_inputs() {
        args.push(widen(ctx.input(i)?)?);
    }
    let wanted = if norm { 4 } else { 1 };
    if args.len() < wanted {
        return Err(Status::invalid_argument(format!(
            "Fused Conv2D with {} must have {wanted} extra arguments",
            if norm { "FusedBatchNorm" } else { "BiasAdd" }
        )));
    }
    for arg in &args[..wanted] {
        if arg.dims() != [channels] {
            return Err(Status::invalid_argument(format!(
                "bias depth does not match filter depth: {} vs [{channels}]",
                arg.shape()
            )));
        }
    }
    let (scale, offset) = factors(&args, norm, epsilon)?;
    let epilogue = |pixels: &mut [f32]| {
        for row in pixels.chunks_mut(channels.max(1)) {
            if let Some(scale) = &scale {
                row.iter_mut().zip(scale).for_each(|(v, s)| *v *= s);
            }
            row.iter_mut().zip(&offset).for_each(|(v, o)| *v += o);
        }
        activation.apply(pixels);
    };
    let out = convolve(ctx, p, &x, &filter, Some(&epilogue))?;
    ctx.set_output(0, out);
    Ok(())
}

/// What each channel is multiplied with, if anything, and what is added then.
fn factors(args: &[Tensor], norm: bool, epsilon: f32) -> Result<(Option<Vec<f32>>, Vec<f32>)> {
    let first = args[0].as_slice::<f32>()?;
    if !norm {
        return Ok((None, first.to_vec()));
    }
    let (offset, mean, variance) = (
        args[1].as_slice::<f32>()?,
        args[2].as_slice::<f32>()?,
        args[3].as_slice::<f32>()?,
    );
    let scale: Vec<f32> = first
        .iter()
        .zip(variance)
        .map(|(s, v)| s / (v + epsilon).sqrt())
        .collect();
    let shift = offset
        .iter()
        .zip(mean)
        .zip(&scale)
        .map(|((o, m), s)| o - m * s)
        .collect();
    Ok((Some(scale), shift))
}
