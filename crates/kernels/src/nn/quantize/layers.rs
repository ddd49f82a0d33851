//! `QuantizedConv2D`, `QuantizedAvgPool`, `QuantizedMaxPool`, `QuantizedRelu`, `QuantizedRelu6`.

use super::arithmetic::{BYTES, I32, U8, put};
use super::invalid;
use super::levels::{Levels, ends, read, write};
use crate::nn::pool::Params;
use crate::nn::window::{Axis, Padding};
use downpour_graph::Result;
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{DType, Shape, Tensor};

pub(crate) fn register(r: &mut Registry) {
    let types = &[("Tinput", U8), ("Tfilter", U8), ("out_type", I32)];
    r.add_typed("QuantizedConv2D", types, conv);
    r.add_typed("QuantizedMaxPool", &[("T", BYTES)], |b| {
        pool(b, |values| values.iter().copied().max().unwrap_or_default())
    });
    r.add_typed("QuantizedAvgPool", &[("T", BYTES)], |b| {
        pool(b, |values| {
            values.iter().sum::<i32>() / values.len().max(1) as i32
        })
    });
    for t in [U8, I32] {
        let types = &[("Tinput", t), ("out_type", t)];
        r.add_typed("QuantizedRelu", types, |_| {
            Built::costly(|ctx| cut(ctx, None))
        });
        r.add_typed("QuantizedRelu6", types, |_| {
            Built::costly(|ctx| cut(ctx, Some(6.0)))
        });
    }
}

fn cut(ctx: &mut OpContext<'_>, top: Option<f32>) -> Result<()> {
    let dtype = ctx.input(0)?.dtype();
    let text = |name: &str, t: &Tensor| format!("`{name}` must be rank 0 but is rank {}", t.rank());
    let levels = Levels::inputs(ctx, dtype, 1, ["min_input", "max_input"], text)?;
    let low = levels.code(0.0);
    let high = top.map_or(ends(dtype).1 as i32, |v| levels.code(v));
    let x = ctx.take(0)?;
    let values = read(&x)?.into_iter().map(|v| v.max(low).min(high));
    let out = write(dtype, values.collect(), x.shape().clone())?;
    put(ctx, out, (levels.min, levels.max));
    Ok(())
}

/// A pool whose windows, the parts inside the image, `f` reduces to one integer.
fn pool(b: &KernelBuilder<'_>, f: fn(&[i32]) -> i32) -> Result<Built> {
    let params = Params::parse(b.attrs())?;
    Built::costly(move |ctx| {
        let dtype = ctx.input(0)?.dtype();
        let text = |name: &str, t: &Tensor| {
            format!(
                "{name} shape must be rank 0 but is rank {}, received shape: {}",
                t.rank(),
                t.shape()
            )
        };
        let levels = Levels::inputs(ctx, dtype, 1, ["min_input", "max_input"], text)?;
        let x = ctx.input(0)?;
        let Ok(dims) = <[usize; 4]>::try_from(x.dims()) else {
            return invalid(format!(
                "tensor_in_shape must have 2 spatial dimensions. {} 0",
                x.rank()
            ));
        };
        let g = params.geometry(dims)?;
        let c = g.channels;
        let shape = Shape::from([g.batch, g.h.output, g.w.output, c]);
        ctx.check_alloc(dtype, &shape)?;
        let from = read(x)?;
        let mut out = Vec::with_capacity(shape.num_elements());
        let mut window = Vec::new();
        for n in 0..g.batch {
            for y in 0..g.h.output {
                for x in 0..g.w.output {
                    for ch in 0..c {
                        window.clear();
                        for iy in inside(&g.h, y) {
                            let row = (n * g.h.input + iy) * g.w.input;
                            window.extend(inside(&g.w, x).map(|ix| from[(row + ix) * c + ch]));
                        }
                        out.push(f(&window));
                    }
                }
            }
        }
        let out = write(dtype, out, shape)?;
        put(ctx, out, (levels.min, levels.max));
        Ok(())
    })
}

/// Where a pool's window meets the input.
fn inside(axis: &Axis, at: usize) -> std::ops::Range<usize> {
    let start = at * axis.stride;
    let end = (start + axis.window).saturating_sub(axis.before);
    start.saturating_sub(axis.before)..end.min(axis.input)
}

fn conv(b: &KernelBuilder<'_>) -> Result<Built> {
    let strides = b.attrs().ints("strides")?;
    let &[sn, sh, sw, sc] = strides else {
        return invalid("Sliding window strides field must specify 4 dimensions");
    };
    if sh != sw {
        return invalid(
            "Current implementation only supports equal length strides in the row and column dimensions.",
        );
    }
    if sn != 1 || sc != 1 {
        return invalid(
            "Current implementation does not yet support strides in the batch and depth dimensions.",
        );
    }
    let dilations = b.attrs().ints("dilations")?;
    let &[dn, dh, dw, dc] = dilations else {
        return invalid("Dilations field must specify 4 dimensions");
    };
    if dh != 1 || dw != 1 {
        return invalid(
            "Current implementation only supports dilated rate as 1 in the row and column dimensions.",
        );
    }
    if dn != 1 || dc != 1 {
        return invalid(
            "Current implementation does not yet support dilations in the batch and depth dimensions.",
        );
    }
    let Ok(stride) = usize::try_from(sh) else {
        return invalid("Row and column strides should be larger than 0.");
    };
    let padding = match b.attrs().str("padding")? {
        "SAME" => Padding::Same,
        _ => Padding::Valid,
    };
    Built::costly(move |ctx| convolve(ctx, stride, &padding))
}

fn convolve(ctx: &mut OpContext<'_>, stride: usize, padding: &Padding) -> Result<()> {
    let (x, f) = (ctx.input(0)?, ctx.input(1)?);
    let four = |name: &str, t: &Tensor| match <[usize; 4]>::try_from(t.dims()) {
        Ok(dims) => Ok(dims),
        Err(_) => invalid(format!("{name} must be rank 4 but is rank {}", t.rank())),
    };
    let ([n, h, w, c], [fh, fw, depth, out_c]) = (four("input", x)?, four("filter", f)?);
    let text = |name: &str, t: &Tensor| format!("{name} must be rank 0 but is rank {}", t.rank());
    let left = Levels::inputs(ctx, DType::QUInt8, 2, ["min_input", "max_input"], text)?;
    let right = Levels::inputs(ctx, DType::QUInt8, 4, ["min_filter", "max_filter"], text)?;
    if c != depth {
        return invalid(format!(
            "input and filter must have the same depth: {c} vs {depth}"
        ));
    }
    let rows = Axis::new(h, fh, stride, 1, padding, 0)?;
    let columns = Axis::new(w, fw, stride, 1, padding, 1)?;
    let shape = Shape::from([n, rows.output, columns.output, out_c]);
    ctx.check_alloc(DType::QInt32, &shape)?;
    let (x0, f0) = (left.unclamped(0.0) as i32, right.unclamped(0.0) as i32);
    let from: Vec<i32> = read(x)?.into_iter().map(|v| v - x0).collect();
    let filter: Vec<i32> = read(f)?.into_iter().map(|v| v - f0).collect();
    let mut out = vec![0i32; shape.num_elements()];
    // Padding is the byte that stands for zero; past 255 it wraps around and is not zero.
    let pad = if x0 > 255 { (x0 & 255) - x0 } else { 0 };
    let edge = vec![pad; c];
    let cells = out.chunks_exact_mut(out_c.max(1)).enumerate();
    for (cell, to) in cells {
        let (ox, rest) = (cell % columns.output, cell / columns.output);
        let (oy, batch) = (rest % rows.output, rest / rows.output);
        for ky in 0..fh {
            let iy = (oy * stride + ky)
                .checked_sub(rows.before)
                .filter(|y| *y < h);
            for kx in 0..fw {
                let ix = (ox * stride + kx).checked_sub(columns.before);
                let pixel = match iy.zip(ix.filter(|x| *x < w)) {
                    Some((iy, ix)) => &from[((batch * h + iy) * w + ix) * c..][..c],
                    None if pad != 0 => &edge,
                    None => continue,
                };
                let taps = &filter[(ky * fw + kx) * c * out_c..][..c * out_c];
                for (v, taps) in pixel.iter().zip(taps.chunks_exact(out_c)) {
                    for (to, tap) in to.iter_mut().zip(taps) {
                        *to = to.wrapping_add(v.wrapping_mul(*tap));
                    }
                }
            }
        }
    }
    let out = write(DType::QInt32, out, shape)?;
    put(ctx, out, left.product(&right, DType::QInt32));
    Ok(())
}
