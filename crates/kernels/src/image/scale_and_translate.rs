//! `ScaleAndTranslate` and its gradient: resampling with a kernel of some radius, one axis after
//! the other. An axis is a list of spans: for each output the first input and the weights.

use crate::args::{ints, shape_of};
use crate::types::{REALS, with_type};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry, parallel_ranges};
use downpour_tensor::{DType, Shape, Tensor};
use num_traits::ToPrimitive;
use std::f32::consts::PI;

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("ScaleAndTranslate", &[("T", REALS)], |b| {
        let (filter, smooth) = parse(b)?;
        Built::costly(move |ctx| forward(ctx, filter, smooth))
    });
    r.add_typed("ScaleAndTranslateGrad", &[("T", &[DType::Float])], |b| {
        let (filter, smooth) = parse(b)?;
        Built::costly(move |ctx| gradient(ctx, filter, smooth))
    });
}

fn invalid<T>(text: impl Into<String>) -> Result<T> {
    Err(Status::invalid_argument(text))
}

/// A weight by distance, and the radius beyond which it is zero.
#[derive(Clone, Copy)]
struct Filter {
    radius: f32,
    at: fn(f32, f32) -> f32,
}

fn parse(b: &KernelBuilder<'_>) -> Result<(Filter, bool)> {
    let name = b.attrs().str("kernel_type")?;
    let (radius, at): (f32, fn(f32, f32) -> f32) = match name {
        "lanczos1" => (1.0, lanczos),
        "lanczos3" => (3.0, lanczos),
        "lanczos5" => (5.0, lanczos),
        "gaussian" => (1.5, gaussian),
        "box" => (1.0, |x, _| match x {
            x if x < 0.5 => 1.0,
            0.5 => 0.5,
            _ => 0.0,
        }),
        "triangle" => (1.0, |x, _| if x < 1.0 { 1.0 - x } else { 0.0 }),
        "keyscubic" => (2.0, keys),
        "mitchellcubic" => (2.0, mitchell),
        other => return invalid(format!("Unrecognized kernel type: {other}")),
    };
    Ok((Filter { radius, at }, b.attrs().bool("antialias")?))
}

fn lanczos(x: f32, radius: f32) -> f32 {
    if x > radius {
        return 0.0;
    }
    if x <= 1e-3 {
        return 1.0;
    }
    radius * (PI * x).sin() * (PI * x / radius).sin() / (PI * PI * x * x)
}

fn gaussian(x: f32, radius: f32) -> f32 {
    let sigma = radius / 3.0;
    if x >= radius {
        return 0.0;
    }
    (-x * x / (2.0 * sigma * sigma)).exp()
}

fn keys(x: f32, _: f32) -> f32 {
    if x >= 2.0 {
        0.0
    } else if x >= 1.0 {
        ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0
    } else {
        ((1.5 * x - 2.5) * x) * x + 1.0
    }
}

fn mitchell(x: f32, _: f32) -> f32 {
    if x >= 2.0 {
        0.0
    } else if x >= 1.0 {
        (((-7.0 / 18.0) * x + 2.0) * x - 10.0 / 3.0) * x + 16.0 / 9.0
    } else {
        (((7.0 / 6.0) * x - 2.0) * x) * x + 8.0 / 9.0
    }
}

/// For each output its first input and the weights from there on.
type Spans = Vec<(usize, Vec<f32>)>;

fn spans(
    filter: Filter,
    smooth: bool,
    output: usize,
    input: usize,
    scale: f32,
    translate: f32,
) -> Spans {
    let inverse = (1.0 / f64::from(scale)) as f32;
    let shift = -inverse * translate;
    let widen = if smooth { inverse.max(1.0) } else { 1.0 };
    let last = input as i64 - 1;
    let reach = filter.radius * widen;
    let span = |x: usize| {
        let sample = (x as f32 + 0.5) * inverse + shift;
        if !(sample >= 0.0 && sample <= input as f32) {
            return (0, Vec::new());
        }
        let start = ((sample - reach - 0.5).ceil() as i64).clamp(0, last);
        let end = ((sample + reach - 0.5).floor() as i64).clamp(0, last) + 1;
        let weights: Vec<f32> = (start..end)
            .map(|i| (filter.at)(((i as f32 + 0.5 - sample) / widen).abs(), filter.radius))
            .collect();
        let sum: f32 = weights.iter().sum();
        if sum.abs() < 1000.0 * f32::MIN_POSITIVE {
            return (start as usize, Vec::new());
        }
        (
            start as usize,
            weights.iter().map(|w| w * (1.0 / sum)).collect(),
        )
    };
    (0..output).map(span).collect()
}

/// The same weights seen from the inputs.
fn turned(spans: &Spans, inputs: usize) -> Spans {
    let mut out: Spans = vec![(0, Vec::new()); inputs];
    for (o, (start, weights)) in spans.iter().enumerate() {
        for (i, &weight) in weights.iter().enumerate().filter(|(_, w)| **w != 0.0) {
            let (first, list) = &mut out[start + i];
            if list.is_empty() {
                *first = o;
            }
            list.resize(o - *first + 1, 0.0);
            list[o - *first] += weight;
        }
    }
    out
}

fn pair(t: &Tensor) -> Result<(f32, f32)> {
    if t.rank() != 1 {
        return invalid(format!("t must be 1-dimensional{}", t.shape()));
    }
    match t.as_slice::<f32>()? {
        &[a, b] => Ok((a, b)),
        _ => invalid(format!("t must have two elements{}", t.shape())),
    }
}

fn scales(ctx: &OpContext<'_>) -> Result<((f32, f32), (f32, f32))> {
    let scale = pair(ctx.input(2)?)?;
    if !(scale.0 > 0.0 && scale.1 > 0.0) {
        return invalid("Scale must be greater than zero.");
    }
    Ok((scale, pair(ctx.input(3)?)?))
}

fn forward(ctx: &mut OpContext<'_>, filter: Filter, smooth: bool) -> Result<()> {
    let (x, size) = (ctx.input(0)?, ctx.input(1)?);
    let &[batch, height, width, channels] = x.dims() else {
        return invalid(format!("input must be 4-dimensional{}", x.shape()));
    };
    if size.rank() != 1 {
        return invalid(format!(
            "output_shape_t must be 1-dimensional{}",
            size.shape()
        ));
    }
    let &[rows, columns] = ints(size)?.as_slice() else {
        return invalid(format!(
            "output_shape_t must have two elements{}",
            size.shape()
        ));
    };
    if rows <= 0 || columns <= 0 {
        return invalid("output dimensions must be positive");
    }
    if channels == 0 {
        return invalid("image must have at least one channel");
    }
    if height == 0 || width == 0 {
        return invalid("input image must be of non-zero size");
    }
    let (scale, translate) = scales(ctx)?;
    let shape = shape_of(&[batch as i64, rows, columns, channels as i64])?;
    ctx.check_alloc(DType::Float, &shape)?;
    let between = shape_of(&[batch as i64, rows, width as i64, channels as i64])?;
    ctx.check_alloc(DType::Float, &between)?;
    let values: Vec<f32> = with_type!(x.dtype(), T in reals => {
        x.as_slice::<T>()?.iter().map(|v| ToPrimitive::to_f32(v).unwrap_or(f32::NAN)).collect()
    });
    let down = spans(filter, smooth, rows as usize, height, scale.0, translate.0);
    let across = spans(
        filter,
        smooth,
        columns as usize,
        width,
        scale.1,
        translate.1,
    );
    let out = gather(&values, (batch, height, width, channels), &down, &across);
    ctx.set_output(0, Tensor::from_vec(out, shape)?);
    Ok(())
}

fn gradient(ctx: &mut OpContext<'_>, filter: Filter, smooth: bool) -> Result<()> {
    let (grad, original) = (ctx.input(0)?, ctx.input(1)?);
    let &[batch, rows, columns, channels] = grad.dims() else {
        return invalid(format!("input_grad must be 4-dimensional{}", grad.shape()));
    };
    let &[_, height, width, _] = original.dims() else {
        return invalid(format!(
            "original_image must be 4-dimensional{}",
            original.shape()
        ));
    };
    let (scale, translate) = scales(ctx)?;
    let shape = Shape::from([batch, height, width, channels]);
    ctx.check_alloc(DType::Float, &shape)?;
    if height == 0 || width == 0 {
        ctx.set_output(0, Tensor::zeros(DType::Float, shape)?);
        return Ok(());
    }
    let down = spans(filter, smooth, rows, height, scale.0, translate.0);
    let across = spans(filter, smooth, columns, width, scale.1, translate.1);
    let out = gather(
        grad.as_slice()?,
        (batch, rows, columns, channels),
        &turned(&down, height),
        &turned(&across, width),
    );
    ctx.set_output(0, Tensor::from_vec(out, shape)?);
    Ok(())
}

/// Weighs rows, then columns.
fn gather(
    values: &[f32],
    (batch, height, width, channels): (usize, usize, usize, usize),
    down: &Spans,
    across: &Spans,
) -> Vec<f32> {
    let (row, out_row) = (width * channels, across.len() * channels);
    let mut out = vec![0.0f32; batch * down.len() * out_row];
    let grain = (16 << 10) / row.max(1) + 1;
    parallel_ranges(&mut out, out_row, grain, |first, lines| {
        let mut line = vec![0.0f32; row];
        for (i, to) in lines.chunks_mut(out_row).enumerate() {
            let (image, y) = ((first + i) / down.len(), (first + i) % down.len());
            line.fill(0.0);
            let (start, weights) = &down[y];
            for (k, weight) in weights.iter().enumerate() {
                let from = &values[(image * height + start + k) * row..][..row];
                line.iter_mut()
                    .zip(from)
                    .for_each(|(l, v)| *l += v * weight);
            }
            for (pixel, (start, weights)) in to.chunks_mut(channels).zip(across) {
                for (k, weight) in weights.iter().enumerate() {
                    let from = &line[(start + k) * channels..][..channels];
                    pixel
                        .iter_mut()
                        .zip(from)
                        .for_each(|(p, v)| *p += v * weight);
                }
            }
        }
    });
    out
}
