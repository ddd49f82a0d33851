//! Integers with a scale and a zero point, for a whole tensor or for each channel:
//! `UniformQuantize`, `UniformDequantize`, `UniformRequantize`, `UniformQuantizedAdd`,
//! `UniformQuantizedClipByValue`, `UniformQuantizedDot`, `UniformQuantizedDotHybrid`.
//!
//! Between scales integers are multiplied by a fixed-point number of 31 bits and rounded once.

use super::arithmetic::I32;
use super::invalid;
use super::levels::{read, write};
use crate::broadcast::Broadcast;
use downpour_graph::Result;
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{DType, Shape, Tensor};

const CODES: &[DType] = &[DType::QInt8, DType::QUInt8, DType::QInt32];
const I8: &[DType] = &[DType::QInt8];
const FLOAT: &[DType] = &[DType::Float];

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("UniformQuantize", &[("Tin", FLOAT), ("Tout", CODES)], |b| {
        let (axis, limits) = attrs(b, "")?;
        let dtype = b.attrs().dtype("Tout")?;
        Built::costly(move |ctx| quantize(ctx, axis, limits, dtype))
    });
    r.add_typed(
        "UniformDequantize",
        &[("Tin", CODES), ("Tout", FLOAT)],
        |b| {
            let (axis, _) = attrs(b, "")?;
            Built::costly(move |ctx| dequantize(ctx, axis))
        },
    );
    for from in [I32, I8] {
        r.add_typed("UniformRequantize", &[("Tin", from), ("Tout", I8)], |b| {
            let (from, _) = attrs(b, "input_")?;
            let (to, limits) = attrs(b, "output_")?;
            Built::costly(move |ctx| requantize(ctx, from, to, limits))
        });
    }
    r.add_typed("UniformQuantizedAdd", &[("T", I32)], |b| {
        let (left, right) = (attrs(b, "lhs_")?.0, attrs(b, "rhs_")?.0);
        let (out, limits) = attrs(b, "output_")?;
        Built::costly(move |ctx| add(ctx, [left, right, out], limits))
    });
    r.add_typed("UniformQuantizedClipByValue", &[("T", I32)], |b| {
        let (axis, _) = attrs(b, "")?;
        Built::costly(move |ctx| clip(ctx, axis))
    });
    r.add_typed("UniformQuantizedDot", &[("Tin", I8), ("Tout", I32)], |b| {
        let (left, right) = (attrs(b, "lhs_")?.0, attrs(b, "rhs_")?.0);
        let (out, limits) = attrs(b, "output_")?;
        Built::costly(move |ctx| dot(ctx, [left, right, out], limits))
    });
    let types = &[("Tlhs", FLOAT), ("Trhs", I8), ("Tout", FLOAT)];
    r.add_typed("UniformQuantizedDotHybrid", types, |b| {
        let (axis, _) = attrs(b, "rhs_")?;
        Built::costly(move |ctx| dot_hybrid(ctx, axis))
    });
}

pub(super) type Limits = (i32, i32);

/// The axis and the range of integers of one operand.
pub(super) fn attrs(b: &KernelBuilder<'_>, prefix: &str) -> Result<(i64, Limits)> {
    let int = |name: &str| b.attrs().int(&format!("{prefix}quantization_{name}"));
    let narrow = |v: i64| v.clamp(i32::MIN.into(), i32::MAX.into()) as i32;
    let axis = int("axis")?;
    if axis < -1 {
        return invalid(format!(
            "{prefix}quantization_axis must be >= -1, given: {axis}"
        ));
    }
    Ok((axis, (narrow(int("min_val")?), narrow(int("max_val")?))))
}

/// Scales and zero points, and how to find an element's.
pub(super) struct Scheme {
    pub(super) scales: Vec<f32>,
    pub(super) zeros: Vec<i32>,
    /// Elements after the axis, and its size.
    after: usize,
    depth: usize,
}

impl Scheme {
    /// From inputs `i` and `i + 1`, for a tensor of these dimensions.
    pub(super) fn inputs(
        ctx: &OpContext<'_>,
        i: usize,
        axis: i64,
        dims: &[usize],
    ) -> Result<Scheme> {
        let (scales, zeros) = (ctx.input(i)?, ctx.input(i + 1)?);
        if axis >= dims.len() as i64 {
            return invalid(format!(
                "quantization_axis must be -1 or in range [0, input.rank), but given {axis}"
            ));
        }
        if scales.shape() != zeros.shape() {
            return invalid(format!(
                "scales and zero_points shape must be same, but given scales shape {} and zero_points shape {}",
                scales.shape(),
                zeros.shape()
            ));
        }
        let axis = usize::try_from(axis).ok();
        match axis {
            None if scales.rank() != 0 => {
                return invalid(format!(
                    "If quantization_axis is -1, scales and zero_points must be scalar tensors, but given scales shape {} and zero_points shape {}",
                    scales.shape(),
                    zeros.shape()
                ));
            }
            Some(a) if scales.dims() != [dims[a]] => {
                return invalid(format!(
                    "If quantization_axis is not -1, scales and zero_points must be a tensor of rank 1 and the size must be equal to the input.dim_size(quantization_axis), but given quantization_axis {a}, scales shape {} and zero_points shape {}",
                    scales.shape(),
                    zeros.shape()
                ));
            }
            _ => {}
        }
        Ok(Scheme {
            scales: scales.as_slice::<f32>()?.to_vec(),
            zeros: zeros.as_slice::<i32>()?.to_vec(),
            after: axis.map_or(1, |a| dims[a + 1..].iter().product()),
            depth: axis.map_or(1, |a| dims[a]),
        })
    }

    fn at(&self, i: usize) -> (f32, i32) {
        let channel = (i / self.after.max(1)) % self.depth.max(1);
        (self.scales[channel], self.zeros[channel])
    }
}

/// A positive factor as a fixed-point number.
#[derive(Clone, Copy)]
pub(super) struct Factor {
    by: i64,
    shift: u32,
}

impl Factor {
    pub(super) fn new(factor: f64) -> Result<Factor> {
        if !(factor.is_finite() && factor > 0.0) {
            return invalid(format!(
                "quantization scales must be positive, and so must be their quotient {factor}"
            ));
        }
        let exponent = factor.log2().floor() as i32 + 1;
        let (mut by, mut exponent) = (
            (factor * 2f64.powi(-exponent) * (1i64 << 31) as f64).round() as i64,
            exponent,
        );
        if by == 1 << 31 {
            (by, exponent) = (by / 2, exponent + 1);
        }
        // Beyond these everything is zero, or over the end of the range.
        match 31 - exponent {
            shift if shift > 62 => Ok(Factor { by: 0, shift: 1 }),
            shift if shift < 1 => invalid(format!("quantization factor {factor} is too large")),
            shift => Ok(Factor {
                by,
                shift: shift as u32,
            }),
        }
    }

    pub(super) fn apply(self, v: i32) -> i32 {
        let product = i128::from(v) * i128::from(self.by) + (1i128 << (self.shift - 1));
        (product >> self.shift) as i32
    }
}

/// As x86 converts: what does not fit is the lowest integer.
fn to_int(v: f32) -> i32 {
    match (-2_147_483_648.0..2_147_483_648.0).contains(&v) {
        true => v as i32,
        false => i32::MIN,
    }
}

/// As Eigen clamps: the upper limit counts last.
pub(super) fn within(v: i32, (low, high): Limits) -> i32 {
    let v = if v < low { low } else { v };
    if v > high && high >= low { high } else { v }
}

pub(super) fn encode(v: f32, scale: f32, zero: i32, limits: Limits) -> i32 {
    let code = to_int((v * (1.0 / scale) + 0.5).floor()).wrapping_add(zero);
    within(code, limits)
}

fn quantize(ctx: &mut OpContext<'_>, axis: i64, limits: Limits, dtype: DType) -> Result<()> {
    let x = ctx.input(0)?;
    let scheme = Scheme::inputs(ctx, 1, axis, x.dims())?;
    let values = x.as_slice::<f32>()?.iter().enumerate().map(|(i, v)| {
        let (scale, zero) = scheme.at(i);
        encode(*v, scale, zero, limits)
    });
    let out = write(dtype, values.collect(), x.shape().clone())?;
    ctx.set_output(0, out);
    Ok(())
}

fn dequantize(ctx: &mut OpContext<'_>, axis: i64) -> Result<()> {
    let x = ctx.input(0)?;
    let scheme = Scheme::inputs(ctx, 1, axis, x.dims())?;
    let values = read(x)?.into_iter().enumerate().map(|(i, v)| {
        let (scale, zero) = scheme.at(i);
        v.wrapping_sub(zero) as f32 * scale
    });
    let out = Tensor::from_vec::<f32>(values.collect(), x.shape().clone())?;
    ctx.set_output(0, out);
    Ok(())
}

fn requantize(ctx: &mut OpContext<'_>, from: i64, to: i64, limits: Limits) -> Result<()> {
    if from >= 0 && to >= 0 && from != to {
        return invalid(
            "If input and output is both per-axis quantized, the quantization axis must be same.",
        );
    }
    let x = ctx.input(0)?;
    let given = Scheme::inputs(ctx, 1, from, x.dims())?;
    let wanted = Scheme::inputs(ctx, 3, to, x.dims())?;
    let mut out = read(x)?;
    recode(&mut out, &given, &wanted)?;
    let values = out.into_iter().enumerate();
    let values = values.map(|(i, v)| within(v.wrapping_add(wanted.at(i).1), limits));
    let out = write(DType::QInt8, values.collect(), x.shape().clone())?;
    ctx.set_output(0, out);
    Ok(())
}

/// From one scheme to the other, the other's zero points left out.
fn recode(values: &mut [i32], from: &Scheme, to: &Scheme) -> Result<()> {
    let mut last: Option<((f32, f32), Factor)> = None;
    for (i, v) in values.iter_mut().enumerate() {
        let ((scale, zero), (wanted, _)) = (from.at(i), to.at(i));
        let factor = match last {
            Some((of, factor)) if of == (scale, wanted) => factor,
            _ => {
                let factor = Factor::new(f64::from(scale) / f64::from(wanted))?;
                last = Some(((scale, wanted), factor));
                factor
            }
        };
        *v = factor.apply(v.wrapping_sub(zero));
    }
    Ok(())
}

fn add(ctx: &mut OpContext<'_>, axes: [i64; 3], limits: Limits) -> Result<()> {
    let (x, y) = (ctx.input(0)?, ctx.input(1)?);
    let Some(shape) = Broadcast::new(x.dims(), y.dims()).map(|b| b.shape) else {
        return invalid(format!(
            "lhs and rhs must be broadcastable: {} vs. {}",
            x.shape(),
            y.shape()
        ));
    };
    ctx.check_alloc(DType::QInt32, &shape)?;
    let out = Scheme::inputs(ctx, 6, axes[2], shape.dims())?;
    let mut sides = Vec::with_capacity(2);
    for (i, t) in [x, y].into_iter().enumerate() {
        let from = Scheme::inputs(ctx, 2 + 2 * i, axes[i], t.dims())?;
        let mut values = read(t)?;
        // The output's channels as this operand, which may lack outer dimensions, sees them.
        let axis = axes[2] - (shape.rank() - t.rank()) as i64;
        let own = axes[2] >= 0 && axis >= 0 && t.dims()[axis as usize] == out.depth;
        let to = Scheme {
            scales: out.scales.clone(),
            zeros: out.zeros.clone(),
            after: if own {
                t.dims()[axis as usize + 1..].iter().product()
            } else {
                1
            },
            depth: if own { out.depth } else { 1 },
        };
        recode(&mut values, &from, &to)?;
        sides.push((values, t.dims().to_vec()));
    }
    let strides = |dims: &[usize]| -> Vec<usize> {
        let own = Shape::from(dims).strides();
        let skipped = shape.rank() - dims.len();
        let of = |d: usize| match d.checked_sub(skipped) {
            Some(d) if dims[d] != 1 => own[d],
            _ => 0,
        };
        (0..shape.rank()).map(of).collect()
    };
    let (left, right) = (strides(&sides[0].1), strides(&sides[1].1));
    let all = shape.strides();
    let values = (0..shape.num_elements()).map(|i| {
        let place = |side: &[usize]| -> usize {
            let at = all.iter().zip(shape.dims()).map(|(s, d)| i / s % d);
            at.zip(side).map(|(a, s)| a * s).sum()
        };
        let sum = sides[0].0[place(&left)].wrapping_add(sides[1].0[place(&right)]);
        within(sum.wrapping_add(out.at(i).1), limits)
    });
    let made = write(DType::QInt32, values.collect(), shape.clone())?;
    ctx.set_output(0, made);
    Ok(())
}

fn clip(ctx: &mut OpContext<'_>, axis: i64) -> Result<()> {
    let (x, scales) = (ctx.input(0)?, ctx.input(3)?);
    let scheme = Scheme::inputs(ctx, 3, axis, x.dims())?;
    for (i, name) in [(1, "min"), (2, "max")] {
        let t = ctx.input(i)?;
        if t.shape() != scales.shape() {
            return invalid(format!(
                "Input {name} shape must be same as scales/zero_points. Given {name} of shape {} and scales/zero_points of shape {}",
                t.shape(),
                scales.shape()
            ));
        }
    }
    let (low, high) = (read(ctx.input(1)?)?, read(ctx.input(2)?)?);
    let values = read(x)?.into_iter().enumerate().map(|(i, v)| {
        let channel = (i / scheme.after.max(1)) % scheme.depth.max(1);
        v.max(low[channel]).min(high[channel])
    });
    let out = write(DType::QInt32, values.collect(), x.shape().clone())?;
    ctx.set_output(0, out);
    Ok(())
}

fn matrices(a: &Tensor, b: &Tensor) -> Result<(usize, usize, usize)> {
    match (a.dims(), b.dims()) {
        (&[m, k], &[inner, n]) if k == inner => Ok((m, k, n)),
        (&[_, k], &[inner, _]) => invalid(format!(
            "lhs.dim_size(1) and rhs.dim_size(0) must be equal, but given lhs.dim_size(1): {k} and rhs.dim_size(0): {inner}"
        )),
        _ => invalid(format!(
            "lhs and rhs must have rank 2, but have shapes {} and {}",
            a.shape(),
            b.shape()
        )),
    }
}

fn dot(ctx: &mut OpContext<'_>, axes: [i64; 3], limits: Limits) -> Result<()> {
    let (a, b) = (ctx.input(0)?, ctx.input(1)?);
    let (m, k, n) = matrices(a, b)?;
    let shape = Shape::from([m, n]);
    ctx.check_alloc(DType::QInt32, &shape)?;
    let left = Scheme::inputs(ctx, 2, axes[0], a.dims())?;
    let right = Scheme::inputs(ctx, 4, axes[1], b.dims())?;
    if left.scales.len() != 1 || axes[0] != -1 {
        return invalid("lhs quantization_axis must be -1.");
    }
    if axes[1] == 0 {
        return invalid("rhs quantization_axis must be -1 or 1.");
    }
    if axes[1] == -1 && axes[2] != -1 {
        return invalid(format!(
            "If rhs is per-tensor quantized, output must be also per-tensor quantized. Given rhs scales and zero_points of shape {} but given output scales and zero_points of shape {}",
            ctx.input(4)?.shape(),
            ctx.input(6)?.shape()
        ));
    }
    let out = Scheme::inputs(ctx, 6, axes[2], shape.dims())?;
    let (av, bv) = (read(a)?, read(b)?);
    let factors = (0..n)
        .map(|j| {
            let scale = f64::from(left.scales[0]) * f64::from(right.at(j).0);
            Factor::new(scale / f64::from(out.at(j).0))
        })
        .collect::<Result<Vec<_>>>()?;
    let mut sums = super::arithmetic::product(
        |i, l| av[i * k + l] - left.zeros[0],
        |l, j| bv[l * n + j] - right.at(j).1,
        (m, k, n),
    );
    for (i, v) in sums.iter_mut().enumerate() {
        let scaled = factors[i % n].apply(*v);
        *v = within(scaled.wrapping_add(out.at(i % n).1), limits);
    }
    let made = write(DType::QInt32, sums, shape)?;
    ctx.set_output(0, made);
    Ok(())
}

/// Floats on the left: each row is rounded to 8 bits over its own range, zero included.
fn dot_hybrid(ctx: &mut OpContext<'_>, axis: i64) -> Result<()> {
    let (a, b) = (ctx.input(0)?, ctx.input(1)?);
    let (m, k, n) = matrices(a, b)?;
    let shape = Shape::from([m, n]);
    ctx.check_alloc(DType::Float, &shape)?;
    let right = Scheme::inputs(ctx, 2, axis, b.dims())?;
    if axis == 0 {
        return invalid("rhs quantization_axis must be -1 or 1.");
    }
    let (av, bv) = (a.as_slice::<f32>()?, read(b)?);
    let mut out = Vec::with_capacity(m * n);
    for i in 0..m {
        let row = &av[i * k..(i + 1) * k];
        let (scale, zero) = row_scheme(row);
        let codes: Vec<i32> = row
            .iter()
            .map(|v| encode(*v, scale, zero, (-128, 127)))
            .collect();
        for j in 0..n {
            let (by, offset) = right.at(j);
            let sum = (0..k).fold(0i32, |s, l| {
                s.wrapping_add((codes[l] - zero).wrapping_mul(bv[l * n + j] - offset))
            });
            out.push(sum as f32 * scale * by);
        }
    }
    let made = Tensor::from_vec(out, shape)?;
    ctx.set_output(0, made);
    Ok(())
}

/// A scale and zero point for 8 bits over the range of some floats.
pub(super) fn row_scheme(row: &[f32]) -> (f32, i32) {
    let low = row.iter().copied().fold(0.0, f32::min);
    let high = row.iter().copied().fold(0.0, f32::max);
    if low == high {
        return (1.0, 0);
    }
    let scale = (f64::from(high) - f64::from(low)) / 255.0;
    let (from_low, from_high) = (
        -128.0 - f64::from(low) / scale,
        127.0 - f64::from(high) / scale,
    );
    let error_low = 128.0 + (f64::from(low) / scale).abs();
    let error_high = 127.0 + (f64::from(high) / scale).abs();
    let zero = if error_low < error_high {
        from_low
    } else {
        from_high
    };
    (scale as f32, (zero.round() as i32).clamp(-128, 127))
}

#[cfg(test)]
mod tests {
    use super::{Factor, encode};

    #[test]
    fn factors_round_to_the_nearest_integer() {
        let apply = |f: f64, v: i32| Factor::new(f).unwrap().apply(v);
        assert_eq!(apply(1.25, 6), 8);
        assert_eq!(apply(1.0 / 3.0, -7), -2);
        assert_eq!(apply(2.0, i32::MAX / 2), i32::MAX - 1);
        assert_eq!(apply(1e-12, 1000), 0);
        assert!(Factor::new(0.0).is_err());
    }

    #[test]
    fn floats_are_cut_to_the_limits() {
        let code = |v: f32| encode(v, 0.5, 3, (-128, 127));
        assert_eq!(
            [code(-0.25), code(0.25), code(100.0), code(-100.0)],
            [3, 4, 127, -128]
        );
    }
}
