//! Quantized tensors in other shapes: `QuantizedReshape`, `QuantizedConcat(V2)`,
//! `QuantizedResizeBilinear`; and `QuantizedInstanceNorm`,
//! `QuantizedBatchNormWithGlobalNormalization`.

use super::arithmetic::{BYTES, I32, U8, put};
use super::invalid;
use super::levels::{Levels, read, write};
use crate::args::ints;
use crate::array::shapes::reshape;
use crate::nn::resize::{Mapping, lerp, lerp_codes};
use downpour_graph::Result;
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{DType, Shape, Tensor};

const BOTH: &[DType] = &[DType::QInt32, DType::QUInt8];
const IMAGES: &[DType] = &[DType::QUInt8, DType::QInt32, DType::Float];

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("QuantizedReshape", &[("T", BOTH)], |_| {
        Built::cheap(|ctx| {
            reshape(ctx)?;
            for (i, name) in [(2, "input_min"), (3, "input_max")] {
                let t = ctx.input(i)?;
                if t.rank() > 1 || t.num_elements() != 1 {
                    return invalid(format!("{name} must be a scalar or a vector of 1 element"));
                }
                let value = t.as_slice::<f32>()?[0];
                ctx.set_output(i - 1, Tensor::scalar(value));
            }
            Ok(())
        })
    });
    r.add_typed("QuantizedConcat", &[("T", BOTH)], |_| {
        Built::costly(|ctx| {
            let count = (ctx.num_inputs() - 1) / 3;
            concat(ctx, 0, 1, count)
        })
    });
    // The axis comes behind the values.
    r.add_typed("QuantizedConcatV2", &[("T", BYTES)], |_| {
        Built::costly(|ctx| {
            let count = (ctx.num_inputs() - 1) / 3;
            concat(ctx, count, 0, count)
        })
    });
    r.add_typed("QuantizedResizeBilinear", &[("T", IMAGES)], |b| {
        let mapping = Mapping::parse(b.attrs())?;
        Built::costly(move |ctx| resize(ctx, mapping))
    });
    r.add_typed("QuantizedInstanceNorm", &[("T", U8)], instance_norm);
    r.add_typed(
        "QuantizedBatchNormWithGlobalNormalization",
        &[("Tinput", U8), ("out_type", I32)],
        batch_norm,
    );
}

/// Puts `count` values together along the axis in input `axis`; the first of them is input `first`.
fn concat(ctx: &mut OpContext<'_>, axis: usize, first: usize, count: usize) -> Result<()> {
    let dim = ctx.input(axis)?;
    if dim.rank() != 0 {
        return invalid(format!(
            "Concat dim tensor should be a scalar integer, but got shape {}",
            dim.shape()
        ));
    }
    let dim = ints(dim)?[0];
    let values = ctx.inputs(first..first + count)?;
    let rank = values[0].rank();
    let Some(axis) = usize::try_from(dim).ok().filter(|a| *a < rank) else {
        return invalid(format!(
            "ConcatOp : Expected concatenating dimensions in the range [0, {rank}), but got {dim}"
        ));
    };
    for (i, t) in values.iter().enumerate() {
        if t.rank() != rank {
            return invalid(format!(
                "ConcatOp : Ranks of all input tensors should match: shape[0] = {} vs. shape[{i}] = {}",
                values[0].shape(),
                t.shape()
            ));
        }
        let differs = |d: usize| d != axis && t.dims()[d] != values[0].dims()[d];
        if (0..rank).any(differs) {
            return invalid(format!(
                "ConcatOp : Dimensions of inputs should match: shape[0] = {} vs. shape[{i}] = {}",
                values[0].shape(),
                t.shape()
            ));
        }
    }
    let end = |first: usize, i: usize, name: &str| -> Result<f32> {
        let t = ctx.input(first + i)?;
        if t.rank() != 0 {
            return invalid(format!(
                "`{name}` [{i}] must be rank 0 but is rank {}",
                t.rank()
            ));
        }
        Ok(t.scalar_value::<f32>()?)
    };
    let dtype = values[0].dtype();
    let mut ranges = Vec::with_capacity(count);
    for i in 0..count {
        ranges.push((
            end(1 + count, i, "input_mins")?,
            end(1 + 2 * count, i, "input_maxes")?,
        ));
    }
    let mut low = ranges.iter().map(|r| r.0).fold(0.0, f32::min);
    let mut high = ranges.iter().map(|r| r.1).fold(f32::NEG_INFINITY, f32::max);
    if dtype == DType::QInt32 {
        high = low.abs().max(high.abs());
        low = -high;
    }
    let mut dims = values[0].dims().to_vec();
    dims[axis] = values.iter().map(|t| t.dims()[axis]).sum();
    let outer: usize = dims[..axis].iter().product();
    let shape = Shape::checked(dims.iter().map(|&d| d as i64))?;
    ctx.check_alloc(dtype, &shape)?;
    let code = Levels::new(dtype, low, high).codes();
    let mut parts = Vec::with_capacity(count);
    for (t, &(min, max)) in values.iter().zip(&ranges) {
        let mut part = read(t)?;
        if (min, max) != (low, high) {
            let value = Levels::new(dtype, min, max).floats();
            part.iter_mut().for_each(|v| *v = code(value(*v)));
        }
        parts.push(part);
    }
    let mut out = Vec::with_capacity(shape.num_elements());
    for row in 0..outer {
        for part in &parts {
            let width = part.len() / outer;
            out.extend_from_slice(&part[row * width..(row + 1) * width]);
        }
    }
    let out = write(dtype, out, shape)?;
    put(ctx, out, (low, high));
    Ok(())
}

fn resize(ctx: &mut OpContext<'_>, mapping: Mapping) -> Result<()> {
    let dtype = ctx.input(0)?.dtype();
    let text = |name: &str, _: &Tensor| format!("{name} must be a scalar");
    let levels = Levels::inputs(ctx, dtype, 2, ["min", "max"], text)?;
    let range = (levels.min, levels.max);
    let out = match dtype {
        DType::Float => {
            let image = ctx.input(0)?.as_slice::<f32>()?.to_vec();
            lerp(ctx, mapping, &image)?
        }
        _ => {
            let values = read(ctx.input(0)?)?;
            let (made, shape) = lerp_codes(ctx, mapping, &values, bits(dtype))?;
            write(dtype, made, shape)?
        }
    };
    put(ctx, out, range);
    Ok(())
}

/// Bits behind the point of an interpolation in integers.
fn bits(dtype: DType) -> u32 {
    match dtype {
        DType::QUInt8 => 7,
        _ => 30,
    }
}

fn instance_norm(b: &KernelBuilder<'_>) -> Result<Built> {
    let given = b.attrs().bool("output_range_given")?;
    let ends = (
        b.attrs().float("given_y_min")?,
        b.attrs().float("given_y_max")?,
    );
    let epsilon = b.attrs().float("variance_epsilon")?;
    let apart = b.attrs().float("min_separation")?;
    if given && !(ends.0 < ends.1) {
        return invalid(format!(
            "given_y_min must be less than given_y_max : {} >= {}",
            super::shown(ends.0),
            super::shown(ends.1)
        ));
    }
    Built::costly(move |ctx| {
        let text =
            |name: &str, t: &Tensor| format!("`{name}` must be rank 0 but is rank {}", t.rank());
        let levels = Levels::inputs(ctx, DType::QUInt8, 1, ["x_min", "x_max"], text)?;
        if !(levels.min < levels.max) {
            return invalid(format!(
                "input_min must be less than input_max : {} >= {}",
                super::shown(levels.min),
                super::shown(levels.max)
            ));
        }
        let x = ctx.take(0)?;
        // Of another rank TensorFlow's process ends.
        let &[n, h, w, c] = x.dims() else {
            return invalid(format!("x must be 4-dimensional{}", x.shape()));
        };
        let codes = read(&x)?;
        let scale = (levels.max - levels.min) / 255.0;
        let mut out = vec![0f32; codes.len()];
        for image in 0..n {
            for ch in 0..c {
                let at = |i: usize| (image * h * w + i) * c + ch;
                let value =
                    |i: usize| f64::from(codes[at(i)]) * f64::from(scale) + f64::from(levels.min);
                let count = (h * w) as f64;
                let mean = (0..h * w).map(value).sum::<f64>() / count;
                let variance = (0..h * w).map(|i| (value(i) - mean).powi(2)).sum::<f64>() / count;
                let by = 1.0 / (variance + f64::from(epsilon)).sqrt();
                (0..h * w).for_each(|i| out[at(i)] = ((value(i) - mean) * by) as f32);
            }
        }
        let (mut min, mut max) = ends;
        if !given {
            min = out.iter().copied().fold(f32::INFINITY, f32::min);
            max = out.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            if max - min < apart {
                max = min + apart;
            }
        }
        let code = Levels::new(DType::QUInt8, min, max).codes();
        let codes = out.into_iter().map(code).collect();
        let out = write(DType::QUInt8, codes, x.shape().clone())?;
        put(ctx, out, (min, max));
        Ok(())
    })
}

fn batch_norm(b: &KernelBuilder<'_>) -> Result<Built> {
    let epsilon = b.attrs().float("variance_epsilon")?;
    let scaled = b.attrs().bool("scale_after_normalization")?;
    Built::costly(move |ctx| {
        let names = ["input", "mean", "var", "beta", "gamma"];
        let mut levels = Vec::with_capacity(5);
        for (i, name) in names.iter().enumerate() {
            let end = |k: usize, which: &str| -> Result<f32> {
                let t = ctx.input(3 * i + k)?;
                match t.as_slice::<f32>()? {
                    [v] => Ok(*v),
                    _ => invalid(format!("{name}_{which} must have 1 element")),
                }
            };
            levels.push(Levels::new(DType::QUInt8, end(1, "min")?, end(2, "max")?));
        }
        let x = ctx.input(0)?;
        if x.rank() != 4 {
            return invalid(format!("input must be 4-dimensional{}", x.shape()));
        }
        for (i, name) in names.iter().enumerate().skip(1) {
            let t = ctx.input(3 * i)?;
            if t.rank() != 1 {
                return invalid(format!("{name} must be 1-dimensional{}", t.shape()));
            }
        }
        let (mean, c) = (ctx.input(3)?, x.dims()[3]);
        if mean.num_elements() <= 1 {
            return invalid(format!("Must have at least a mean value{}", mean.shape()));
        }
        if mean.num_elements() != c {
            return invalid(format!(
                "Must provide as many means as the last dimension of the input tensor: {} vs. {}",
                mean.shape(),
                x.shape()
            ));
        }
        for (i, name) in [(6, "variance"), (9, "beta"), (12, "gamma")] {
            let t = ctx.input(i)?;
            if t.num_elements() != c {
                return invalid(format!(
                    "Mean and {name} tensors must have the same shape: {} vs. {}",
                    mean.shape(),
                    t.shape()
                ));
            }
        }
        let of = |i: usize| -> Result<Vec<f32>> {
            let codes = read(ctx.input(3 * i)?)?;
            Ok(codes.into_iter().map(|v| levels[i].float(v)).collect())
        };
        let (mean, variance, beta, gamma) = (of(1)?, of(2)?, of(3)?, of(4)?);
        let range = (1 << 20) as f32;
        let wide = Levels::new(DType::QInt32, -range, range);
        let one = i64::from(wide.code(1.0));
        let terms: Vec<(i32, i32)> = (0..c)
            .map(|i| {
                let root = 1.0 / (variance[i] + epsilon).sqrt();
                let scale = if scaled { root * gamma[i] } else { root };
                (wide.code(scale), wide.code(-mean[i] * scale + beta[i]))
            })
            .collect();
        let values = read(x)?.into_iter().enumerate().map(|(i, v)| {
            let (scale, offset) = terms[i % c];
            let v = wide.code(levels[0].float(v)).wrapping_mul(scale);
            (i64::from(v) / one) as i32 + offset
        });
        let out = write(DType::QInt32, values.collect(), x.shape().clone())?;
        put(ctx, out, (-range, range));
        Ok(())
    })
}
