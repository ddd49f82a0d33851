//! From 32 bits back to 8: `Requantize`, `RequantizePerChannel`, `QuantizeDownAndShrinkRange`, and
//! the ranges for it: `RequantizationRange`, `RequantizationRangePerChannel`.

use super::arithmetic::{BYTES, I32, U8, put};
use super::invalid;
use super::levels::{Levels, ends, float, read, write};
use downpour_graph::Result;
use downpour_runtime::{Built, OpContext, Registry};
use downpour_tensor::{DType, Tensor};

pub(crate) fn register(r: &mut Registry) {
    let types = &[("Tinput", I32), ("out_type", BYTES)];
    r.add_typed("Requantize", types, |b| {
        let dtype = b.attrs().dtype("out_type")?;
        Built::costly(move |ctx| requantize(ctx, dtype))
    });
    let types = &[("Tinput", I32), ("out_type", U8)];
    r.add_typed("QuantizeDownAndShrinkRange", types, |_| {
        Built::costly(|ctx| {
            let from = levels(ctx, true)?;
            let (min, max) = used(ctx, &from)?;
            recode(ctx, DType::QUInt8, &from, (min, max))
        })
    });
    r.add_typed("RequantizationRange", &[("Tinput", I32)], |_| {
        Built::costly(|ctx| {
            let from = levels(ctx, false)?;
            let (min, max) = used(ctx, &from)?;
            ctx.set_output(0, Tensor::scalar(min));
            ctx.set_output(1, Tensor::scalar(max));
            Ok(())
        })
    });
    let types = &[("T", I32), ("out_type", BYTES)];
    r.add_typed("RequantizePerChannel", types, |b| {
        let dtype = b.attrs().dtype("out_type")?;
        Built::costly(move |ctx| per_channel(ctx, dtype))
    });
    r.add_typed("RequantizationRangePerChannel", &[("T", I32)], |b| {
        let clip = b.attrs().float("clip_value_max")?;
        Built::costly(move |ctx| range_per_channel(ctx, clip))
    });
}

fn rank_zero(name: &str, t: &Tensor) -> String {
    format!("`{name}` must be rank 0 but is rank {}", t.rank())
}

fn levels(ctx: &OpContext<'_>, scalars: bool) -> Result<Levels> {
    if scalars {
        return Levels::inputs(ctx, DType::QInt32, 1, ["input_min", "input_max"], rank_zero);
    }
    // This op takes the first element of whatever it is given.
    let first = |i: usize, name: &str| match ctx.input(i)?.as_slice::<f32>()?.first() {
        Some(v) => Ok(*v),
        None => invalid(format!("{name} must have at least one element")),
    };
    Ok(Levels::new(
        DType::QInt32,
        first(1, "input_min")?,
        first(2, "input_max")?,
    ))
}

/// The range that the integers use, zero included.
fn used(ctx: &OpContext<'_>, from: &Levels) -> Result<(f32, f32)> {
    let values = read(ctx.input(0)?)?;
    let (low, high) = ends(DType::QInt32);
    let least = values.iter().copied().min().unwrap_or(high as i32);
    let most = values.iter().copied().max().unwrap_or(low as i32);
    Ok((from.float(least).min(0.0), from.float(most)))
}

fn recode(ctx: &mut OpContext<'_>, dtype: DType, from: &Levels, to: (f32, f32)) -> Result<()> {
    let x = ctx.take(0)?;
    let levels = Levels::new(dtype, to.0, to.1);
    let (value, code) = (from.floats(), levels.codes());
    let fixed = levels.narrowing(*from);
    let values = read(&x)?.into_iter();
    let values = match dtype {
        DType::QUInt8 => values.map(fixed).collect(),
        _ => values.map(|v| code(value(v))).collect(),
    };
    let out = write(dtype, values, x.shape().clone())?;
    put(ctx, out, to);
    Ok(())
}

fn requantize(ctx: &mut OpContext<'_>, dtype: DType) -> Result<()> {
    let from = levels(ctx, true)?;
    let names = ["requested_output_min", "requested_output_max"];
    let to = Levels::inputs(ctx, dtype, 3, names, rank_zero)?;
    let shown = |v: f32| super::shown(v);
    if to.min > 0.0 {
        return invalid(format!(
            "requested_output_min must be <= 0, but got {}",
            shown(to.min)
        ));
    }
    if to.max < to.min {
        return invalid(format!(
            "requested_output_max must be >= requested_output_min, but got {} and {}",
            shown(to.max),
            shown(to.min)
        ));
    }
    recode(ctx, dtype, &from, (to.min, to.max))
}

/// One range for each channel of input 0.
fn channel_ranges(ctx: &OpContext<'_>) -> Result<Vec<f32>> {
    let (min, max) = (
        ctx.input(1)?.as_slice::<f32>()?,
        ctx.input(2)?.as_slice::<f32>()?,
    );
    // The larger side alone counts: zero is zero.
    Ok(min
        .iter()
        .zip(max)
        .map(|(a, b)| a.abs().max(b.abs()))
        .collect())
}

fn per_channel(ctx: &mut OpContext<'_>, dtype: DType) -> Result<()> {
    let (x, min, max) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    if x.rank() != 4 {
        return invalid("Current RequantizePerChannel operatorsupports 4D tensors only.");
    }
    let depth = min.num_elements();
    if min.rank() != 1 {
        return invalid("input_min must be rank 1");
    }
    if max.num_elements() != depth {
        return invalid(format!(
            "input_max has incorrect size, expected {depth} was {}",
            max.num_elements()
        ));
    }
    let scalar = |name: &'static str| move |_: &Tensor| format!("{name} must be a scalar");
    let low = float(ctx, 3, scalar("requested_output_min"))?;
    let high = float(ctx, 4, scalar("requested_output_max"))?;
    let channels = x.dims()[3];
    if depth != 1 && depth != channels {
        return invalid(format!(
            "input_min has incorrect size, expected {channels} was {depth}"
        ));
    }
    let ranges = channel_ranges(ctx)?;
    let (from, to) = ends(dtype);
    let wanted = low.abs().max(high.abs());
    let factor = if dtype == DType::QInt8 { 127.0 } else { 255.0 };
    if dtype == DType::QInt8 && !(low < 0.0) {
        return invalid(format!(
            "If out_type is QINT8, requested_output_max must be non negative, got {}",
            super::shown(low)
        ));
    }
    let scale = |range: f32| factor * (range / wanted / 2f32.powi(31));
    let scales: Vec<f32> = ranges.into_iter().map(scale).collect();
    let values = read(x)?.into_iter().enumerate().map(|(i, v)| {
        let v = v as f32 * scales[if depth == 1 { 0 } else { i % channels }];
        v.round_ties_even().clamp(from as f32, to as f32) as i32
    });
    let out = write(dtype, values.collect(), x.shape().clone())?;
    put(ctx, out, (low, high));
    Ok(())
}

fn range_per_channel(ctx: &mut OpContext<'_>, clip: f32) -> Result<()> {
    let (x, min, max) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    let depth = max.num_elements();
    if x.rank() != 4 {
        return invalid("input must be in NHWC format");
    }
    if min.num_elements() != depth {
        return invalid(format!(
            "input_min has incorrect size, expected {depth} was {}",
            min.num_elements()
        ));
    }
    let channels = x.dims()[3];
    if channels != depth {
        return invalid(format!(
            "input must have same number of channels as length of input_min: {channels} vs {depth}"
        ));
    }
    let ranges = channel_ranges(ctx)?;
    let values = read(x)?;
    if values.is_empty() {
        return invalid("input must not be empty");
    }
    let mut range = f32::MIN_POSITIVE;
    for (c, end) in ranges.iter().enumerate() {
        let of = values.iter().skip(c).step_by(depth);
        let most = of.map(|v| v.wrapping_abs()).max().unwrap_or(0);
        range = range.max(end * most as f32 / 2f32.powi(31));
    }
    let range = range.min(clip);
    let signed = values.iter().any(|v| *v < 0);
    ctx.set_output(0, Tensor::scalar(if signed { -range } else { 0.0 }));
    ctx.set_output(1, Tensor::scalar(range));
    Ok(())
}
