//! `QuantizedAdd`, `QuantizedMul`, `QuantizedBiasAdd`, `QuantizedMatMul`: exact in 32 bits, over a
//! range wide enough for the result.

use super::invalid;
use super::levels::{Levels, read, write};
use crate::broadcast::Broadcast;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, OpContext, Registry};
use downpour_tensor::{DType, Shape, Tensor};

pub(super) const U8: &[DType] = &[DType::QUInt8];
pub(super) const I32: &[DType] = &[DType::QInt32];
pub(super) const BYTES: &[DType] = &[DType::QInt8, DType::QUInt8];

pub(crate) fn register(r: &mut Registry) {
    let types = &[("T1", U8), ("T2", U8), ("Toutput", I32)];
    r.add_typed("QuantizedAdd", types, |_| Built::costly(add));
    r.add_typed("QuantizedMul", types, |_| Built::costly(multiply));
    r.add_typed("QuantizedMatMul", types, |b| {
        let (ta, tb) = (
            b.attrs().bool("transpose_a")?,
            b.attrs().bool("transpose_b")?,
        );
        Built::costly(move |ctx| matmul(ctx, ta, tb))
    });
    for t in [U8, &[DType::QInt8]] {
        let types = &[("T1", t), ("T2", t), ("out_type", I32)];
        r.add_typed("QuantizedBiasAdd", types, |_| Built::costly(bias_add));
    }
}

/// Sets a result and its range.
pub(super) fn put(ctx: &mut OpContext<'_>, out: Tensor, (min, max): (f32, f32)) {
    ctx.set_output(0, out);
    ctx.set_output(1, Tensor::scalar(min));
    ctx.set_output(2, Tensor::scalar(max));
}

fn single(t: &Tensor) -> bool {
    t.num_elements() == 1
}

/// Applies `f` to the integers of inputs 0 and 1, broadcast.
fn pairwise(ctx: &OpContext<'_>, f: impl Fn(i32, i32) -> i32) -> Result<Tensor> {
    let (x, y) = (ctx.input(0)?, ctx.input(1)?);
    let Some(shape) = Broadcast::new(x.dims(), y.dims()).map(|b| b.shape) else {
        return invalid(format!(
            "Incompatible shapes: {} vs. {}",
            x.shape(),
            y.shape()
        ));
    };
    // One operand repeats along the other's outer dimensions, or is a single number; beyond
    // that TensorFlow leaves parts of the result unwritten.
    let (small, large) = match x.num_elements() < y.num_elements() {
        true => (x, y),
        false => (y, x),
    };
    if !single(small) && !large.dims().ends_with(small.dims()) {
        return Err(Status::unimplemented(format!(
            "Broadcast between {} and {} is not supported yet.",
            x.shape(),
            y.shape()
        )));
    }
    ctx.check_alloc(DType::QInt32, &shape)?;
    let (xs, ys) = (read(x)?, read(y)?);
    let n = shape.num_elements();
    let values = (0..n).map(|i| f(xs[i % xs.len()], ys[i % ys.len()]));
    write(DType::QInt32, values.collect(), shape)
}

fn add(ctx: &mut OpContext<'_>) -> Result<()> {
    let text = |name: &str, t: &Tensor| format!("`{name}` must be rank 0 but is rank {}", t.rank());
    let a = Levels::inputs(ctx, DType::QUInt8, 2, ["min_x", "max_x"], text)?;
    let b = Levels::inputs(ctx, DType::QUInt8, 4, ["min_y", "max_y"], text)?;
    if a.max < a.min {
        return invalid("max_x must be larger than min_x.");
    }
    if b.max < b.min {
        return invalid("max_y must be larger than min_y.");
    }
    let widest = a.min.min(b.min).abs().max(a.max.max(b.max).abs());
    let range = widest * (1 << 14) as f32;
    let wide = Levels::new(DType::QInt32, -range, range);
    let (by_a, by_b) = (a.linear(wide), b.linear(wide));
    // A single number is converted exactly, the many ones by whole steps.
    let (one_x, one_y) = (single(ctx.input(0)?), single(ctx.input(1)?));
    let out = pairwise(ctx, |x, y| {
        let x = if one_x && !one_y {
            wide.code(a.float(x))
        } else {
            by_a(x)
        };
        let y = if one_y {
            wide.code(b.float(y))
        } else {
            by_b(y)
        };
        x.wrapping_add(y)
    })?;
    put(ctx, out, (-range, range));
    Ok(())
}

fn multiply(ctx: &mut OpContext<'_>) -> Result<()> {
    let text = |name: &str, _: &Tensor| format!("{name} must be a scalar");
    let a = Levels::inputs(ctx, DType::QUInt8, 2, ["min_x", "max_x"], text)?;
    let b = Levels::inputs(ctx, DType::QUInt8, 4, ["min_y", "max_y"], text)?;
    if a.max < a.min {
        return invalid("max_x must be larger than min_a.");
    }
    if b.max < b.min {
        return invalid("max_x must be larger than min_b.");
    }
    let (x0, y0) = (a.unclamped(0.0) as i32, b.unclamped(0.0) as i32);
    let out = pairwise(ctx, |x, y| {
        x.wrapping_sub(x0).wrapping_mul(y.wrapping_sub(y0))
    })?;
    put(ctx, out, a.product(&b, DType::QInt32));
    Ok(())
}

fn bias_add(ctx: &mut OpContext<'_>) -> Result<()> {
    let (x, bias) = (ctx.input(0)?, ctx.input(1)?);
    let text = |name: &str, t: &Tensor| format!("`{name}` must be rank 0 but is rank {}", t.rank());
    let dtype = x.dtype();
    let a = Levels::inputs(ctx, dtype, 2, ["min_input", "max_input"], text)?;
    let b = Levels::inputs(ctx, dtype, 4, ["min_bias", "max_bias"], text)?;
    if x.rank() < 2 {
        return invalid(format!("Input tensor must be at least 2D: {}", x.shape()));
    }
    if bias.rank() != 1 {
        return invalid(format!("Biases must be 1D: {}", bias.shape()));
    }
    let last = x.dims()[x.rank() - 1];
    if last != bias.num_elements() {
        return invalid(format!(
            "Must provide as many biases as the last dimension of the input tensor: {} vs. {}",
            bias.shape(),
            x.shape()
        ));
    }
    if bias.num_elements() == 0 {
        return invalid("Must provide at least 1 bias");
    }
    let widest = a.max.max(-a.min).max(b.max.max(-b.min));
    let range = widest * (1 << 17) as f32;
    let wide = Levels::new(DType::QInt32, -range, range);
    let (a, b, code) = (a.floats(), b.floats(), wide.codes());
    let zero = wide.code(0.0);
    let bias = read(bias)?
        .into_iter()
        .map(|v| code(b(v)).wrapping_add(zero));
    let bias: Vec<i32> = bias.collect();
    let values = read(x)?.into_iter().enumerate();
    let values = values.map(|(i, v)| code(a(v)).wrapping_add(bias[i % last]));
    let out = write(DType::QInt32, values.collect(), x.shape().clone())?;
    put(ctx, out, (-range, range));
    Ok(())
}

/// `a·b` of integers, both less their zeros.
pub(super) fn product(
    a: impl Fn(usize, usize) -> i32,
    b: impl Fn(usize, usize) -> i32,
    (m, k, n): (usize, usize, usize),
) -> Vec<i32> {
    let right: Vec<i32> = (0..k * n).map(|i| b(i / n, i % n)).collect();
    let mut out = vec![0i32; m * n];
    for i in 0..m {
        let row = &mut out[i * n..(i + 1) * n];
        for l in 0..k {
            let v = a(i, l);
            for (to, w) in row.iter_mut().zip(&right[l * n..(l + 1) * n]) {
                *to = to.wrapping_add(v.wrapping_mul(*w));
            }
        }
    }
    out
}

fn matmul(ctx: &mut OpContext<'_>, ta: bool, tb: bool) -> Result<()> {
    let (a, b) = (ctx.input(0)?, ctx.input(1)?);
    let text =
        |name: &str, t: &Tensor| format!("{name} must be a scalar, but got shape{}", t.shape());
    let left = Levels::inputs(ctx, DType::QUInt8, 2, ["min_a", "max_a"], text)?;
    let right = Levels::inputs(ctx, DType::QUInt8, 4, ["min_b", "max_b"], text)?;
    if left.max <= left.min {
        return invalid("max_a must be larger than min_a.");
    }
    if right.max <= right.min {
        return invalid("max_b must be larger than min_b.");
    }
    let (offset_a, offset_b) = (left.unclamped(0.0), right.unclamped(0.0));
    let &[ra, ca] = a.dims() else {
        return invalid("In[0] is not a matrix");
    };
    let &[rb, cb] = b.dims() else {
        return invalid("In[1] is not a matrix");
    };
    let ((m, k), (inner, n)) = (
        if ta { (ca, ra) } else { (ra, ca) },
        if tb { (cb, rb) } else { (rb, cb) },
    );
    if k != inner {
        return invalid(format!(
            "Matrix size-incompatible: In[0]: {}, In[1]: {}",
            a.shape(),
            b.shape()
        ));
    }
    let shape = Shape::from([m, n]);
    ctx.check_alloc(DType::QInt32, &shape)?;
    let (av, bv) = (read(a)?, read(b)?);
    let at_a = |i: usize, l: usize| av[if ta { l * ca + i } else { i * ca + l }] - offset_a as i32;
    let at_b = |l: usize, j: usize| bv[if tb { j * cb + l } else { l * cb + j }] - offset_b as i32;
    let out = write(DType::QInt32, product(at_a, at_b, (m, k, n)), shape)?;
    put(ctx, out, left.product(&right, DType::QInt32));
    Ok(())
}
