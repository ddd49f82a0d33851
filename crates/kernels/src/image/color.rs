//! Colours: `RGBToHSV`, `HSVToRGB`, `AdjustHue`, `AdjustSaturation`, `AdjustContrastv2`.

use crate::args::ints;
use crate::nn::float::{narrow, widen};
use crate::types::FLOATS;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, OpContext, Registry, parallel_ranges};
use downpour_tensor::{DType, Element, Tensor};
use half::{bf16, f16};
use num_traits::Float;

const FLOAT: &[DType] = &[DType::Float];
const OLD: &[DType] = &[
    DType::Double,
    DType::Float,
    DType::Int16,
    DType::Int32,
    DType::Int8,
    DType::UInt8,
];

/// Pixels worth a thread of their own.
const GRAIN: usize = 8 << 10;

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("RGBToHSV", &[("T", FLOATS)], |_| {
        Built::costly(|ctx| convert(ctx, to_hsv::<f32>, to_hsv::<f64>))
    });
    r.add_typed("HSVToRGB", &[("T", FLOATS)], |_| {
        Built::costly(|ctx| match ctx.input(0)?.dtype() {
            // Each product is rounded to the type, as TensorFlow's are.
            DType::Half => in_type::<f16>(ctx, to_rgb),
            DType::BFloat16 => in_type::<bf16>(ctx, to_rgb),
            _ => convert(ctx, to_rgb::<f32>, to_rgb::<f64>),
        })
    });
    r.add_typed("AdjustHue", &[("T", FLOAT)], |_| {
        Built::costly(|ctx| {
            let delta = factor(ctx, "delta", true)?;
            pixels(ctx, |p| shift_hue(p, delta))
        })
    });
    r.add_typed("AdjustSaturation", &[("T", FLOAT)], |_| {
        Built::costly(|ctx| {
            let scale = factor(ctx, "scale", true)?;
            pixels(ctx, |p| scale_saturation(p, scale))
        })
    });
    r.add_typed("AdjustContrast", &[("T", OLD)], |_| {
        Built::costly(old_contrast)
    });
    r.add_typed("AdjustContrastv2", &[("T", FLOAT)], |_| {
        Built::costly(contrast)
    });
}

fn invalid<T>(text: String) -> Result<T> {
    Err(Status::invalid_argument(text))
}

fn convert(
    ctx: &mut OpContext<'_>,
    single: fn([f32; 3]) -> [f32; 3],
    double: fn([f64; 3]) -> [f64; 3],
) -> Result<()> {
    let x = ctx.take(0)?;
    let dtype = x.dtype();
    check_channels(&x)?;
    let mut x = widen(&x)?;
    match x.dtype() {
        DType::Double => each_pixel(x.make_mut::<f64>()?, double),
        _ => each_pixel(x.make_mut::<f32>()?, single),
    }
    ctx.set_output(0, narrow(x, dtype)?);
    Ok(())
}

/// As [`convert`], in the elements' own type.
fn in_type<T: Element>(ctx: &mut OpContext<'_>, f: fn([T; 3]) -> [T; 3]) -> Result<()> {
    let mut x = ctx.take(0)?;
    check_channels(&x)?;
    each_pixel(x.make_mut::<T>()?, f);
    ctx.set_output(0, x);
    Ok(())
}

fn check_channels(x: &Tensor) -> Result<()> {
    match x.dims().last() {
        Some(3) => Ok(()),
        None => invalid(format!("input must be at least 1D{}", x.shape())),
        Some(channels) => Err(Status::failed_precondition(format!(
            "input must have 3 channels but input only has {channels} channels."
        ))),
    }
}

fn each_pixel<T: Element>(values: &mut [T], f: impl Fn([T; 3]) -> [T; 3] + Sync) {
    parallel_ranges(values, 3, GRAIN, |_, rows| {
        for pixel in rows.as_chunks_mut::<3>().0 {
            *pixel = f(*pixel);
        }
    });
}

fn to_hsv<T: Float>([r, g, b]: [T; 3]) -> [T; 3] {
    let number = |v: f64| T::from(v).unwrap_or_else(T::zero);
    // A NaN loses against what comes behind it, as in TensorFlow's vectors.
    let larger = |a: T, b: T| if a > b { a } else { b };
    let smaller = |a: T, b: T| if a < b { a } else { b };
    let v = larger(larger(r, g), b);
    let range = v - smaller(smaller(r, g), b);
    let s = if v > T::zero() { range / v } else { T::zero() };
    let norm = range.recip() * number(1.0 / 6.0);
    let h = if r == v {
        norm * (g - b)
    } else if g == v {
        norm * (b - r) + number(2.0 / 6.0)
    } else {
        norm * (r - g) + number(4.0 / 6.0)
    };
    let h = if range > T::zero() { h } else { T::zero() };
    [if h < T::zero() { h + T::one() } else { h }, s, v]
}

fn to_rgb<T: Float>([h, s, v]: [T; 3]) -> [T; 3] {
    let number = |v: f64| T::from(v).unwrap_or_else(T::zero);
    let cut = |x: T| x.max(T::zero()).min(T::one());
    let (dh, two) = (h * number(6.0), number(2.0));
    let dr = cut((dh - number(3.0)).abs() - T::one());
    let dg = cut(two - (dh - two).abs());
    let db = cut(two - (dh - number(4.0)).abs());
    let white = T::one() - s;
    [dr, dg, db].map(|d| (white + s * d) * v)
}

/// The scalar in input 1, of images with the right channels in input 0.
fn factor(ctx: &OpContext<'_>, name: &str, colours: bool) -> Result<f32> {
    let (x, factor) = (ctx.input(0)?, ctx.input(1)?);
    if x.rank() < 3 {
        return invalid(format!(
            "input must be at least 3-D, got shape{}",
            x.shape()
        ));
    }
    if factor.rank() != 0 {
        return invalid(format!("{name} must be scalar: {}", factor.shape()));
    }
    match x.dims().last() {
        Some(&channels) if colours && channels != 3 => invalid(format!(
            "input must have 3 channels but instead has {channels} channels."
        )),
        _ => Ok(factor.scalar_value()?),
    }
}

fn pixels(ctx: &mut OpContext<'_>, f: impl Fn([f32; 3]) -> [f32; 3] + Sync) -> Result<()> {
    let mut x = ctx.take(0)?;
    each_pixel(x.make_mut::<f32>()?, f);
    ctx.set_output(0, x);
    Ok(())
}

/// Moves the hue by `delta` turns and keeps the range of values.
fn shift_hue([r, g, b]: [f32; 3], delta: f32) -> [f32; 3] {
    let (low, high) = (r.min(g).min(b), r.max(g).max(b));
    let range = high - low;
    // Which of the six orders the values are in, as TensorFlow breaks ties.
    let (sector, middle) = match (r < g, b) {
        (true, b) if b < r => (1, r),
        (true, b) if b > g => (3, g),
        (true, b) => (2, b),
        (false, b) if b < g => (0, g),
        (false, b) if b > r => (4, r),
        (false, b) => (5, b),
    };
    let hue = if high == low {
        0.0
    } else {
        let ratio = (middle - low) / range;
        sector as f32 + if sector % 2 == 0 { ratio } else { 1.0 - ratio }
    };
    let mut hue = hue + delta * 6.0;
    // A remainder is a slow function; within a turn of the range it is what the additions below leave.
    if !(-6.0..12.0).contains(&hue) {
        hue %= 6.0;
    }
    if hue < 0.0 {
        hue += 6.0;
    }
    if hue >= 6.0 {
        hue -= 6.0;
    }
    let sector = hue as i32;
    let ratio = hue - sector as f32;
    let ratio = if sector % 2 == 0 { ratio } else { 1.0 - ratio };
    let middle = low + ratio * range;
    match sector {
        0 => [high, middle, low],
        1 => [middle, high, low],
        2 => [low, high, middle],
        3 => [low, middle, high],
        4 => [middle, low, high],
        _ => [high, low, middle],
    }
}

fn scale_saturation(pixel: [f32; 3], scale: f32) -> [f32; 3] {
    let [h, s, v] = to_hsv(pixel);
    to_rgb([h, (s * scale).clamp(0.0, 1.0), v])
}

/// Moves every value away from its channel's mean over the image.
/// The first version: any numbers in, floats within given ends out.
fn old_contrast(ctx: &mut OpContext<'_>) -> Result<()> {
    let factor = factor(ctx, "contrast_factor", false)?;
    let mut ends = [0.0f32; 2];
    for (i, name) in ["min_value", "max_value"].iter().enumerate() {
        let t = ctx.input(2 + i)?;
        if t.rank() != 0 {
            return invalid(format!("{name} must be scalar: {}", t.shape()));
        }
        ends[i] = t.scalar_value()?;
    }
    let x = ctx.input(0)?;
    let mut values: Vec<f32> = match x.dtype() {
        DType::Float => x.as_slice::<f32>()?.to_vec(),
        DType::Double => x.as_slice::<f64>()?.iter().map(|v| *v as f32).collect(),
        _ => ints(x)?.into_iter().map(|v| v as f32).collect(),
    };
    let [.., height, width, channels] = *x.dims() else {
        return Err(Status::internal("the rank was checked"));
    };
    for image in values.chunks_mut((height * width * channels).max(1)) {
        for c in 0..channels {
            let sum: f64 = image
                .iter()
                .skip(c)
                .step_by(channels)
                .map(|v| f64::from(*v))
                .sum();
            let mean = (sum / (height * width) as f64) as f32;
            for v in image.iter_mut().skip(c).step_by(channels) {
                *v = (mean + factor * (*v - mean)).max(ends[0]).min(ends[1]);
            }
        }
    }
    let out = Tensor::from_vec(values, x.shape().clone())?;
    ctx.set_output(0, out);
    Ok(())
}

/// The mean of each channel.
fn means(image: &[f32], channels: usize) -> Vec<f32> {
    let count = image.len() / channels;
    // Eight pixels side by side, so that no addition waits for the one before.
    let mut sums = vec![0.0f64; 8 * channels];
    for pixels in image.chunks(8 * channels) {
        for (s, v) in sums.iter_mut().zip(pixels) {
            *s += f64::from(*v);
        }
    }
    let scale = 1.0 / count as f64;
    let sum = |c: usize| sums.iter().skip(c).step_by(channels).sum::<f64>();
    (0..channels).map(|c| (sum(c) * scale) as f32).collect()
}

fn contrast(ctx: &mut OpContext<'_>) -> Result<()> {
    let factor = factor(ctx, "contrast_factor", false)?;
    let mut x = ctx.take(0)?;
    let [.., height, width, channels] = *x.dims() else {
        return Err(Status::internal("the rank was checked"));
    };
    let image = height * width * channels;
    if x.num_elements() != 0 {
        parallel_ranges(
            x.make_mut::<f32>()?,
            image,
            GRAIN * 3 / image + 1,
            |_, images| {
                for image in images.chunks_mut(image) {
                    let means = means(image, channels);
                    // Eight pixels are a loop without an end in its middle.
                    let wide = means.repeat(8);
                    for pixels in image.chunks_mut(8 * channels) {
                        for (v, m) in pixels.iter_mut().zip(&wide) {
                            *v = m + factor * (*v - m);
                        }
                    }
                }
            },
        );
    }
    ctx.set_output(0, x);
    Ok(())
}
