//! Two-dimensional convolutions and their gradients, channels last (TensorFlow convolves
//! channels-first data on GPUs only). Half and bfloat16 are computed in float.
#![allow(unsafe_code, reason = "outputs are written once, never zeroed first")]

mod backward;
mod forward;
mod fused;
mod general;
mod image;
mod padded;
mod shape;
mod zones;

use crate::args;
use crate::linalg::tile::{Arithmetic, Tiled};
use crate::nn::float::{compute_type, in_parts, narrow, widen};
use crate::types::with_type;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, OpContext, Registry, parallel_for};
use downpour_tensor::{DType, Element, Shape, Tensor};
use forward::Epilogue;
pub(crate) use forward::Panels;
pub(crate) use fused::with_bias;
use shape::Geometry;
pub(crate) use shape::{Direction, Params};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Multiplications that are worth a thread of their own.
const GRAIN: usize = 1 << 19;

const FORWARD: &[DType] = &[
    DType::Int32,
    DType::Half,
    DType::Float,
    DType::Double,
    DType::BFloat16,
];
const FILTER: &[DType] = &[DType::Double, DType::Float, DType::Half, DType::BFloat16];

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("Conv2D", &[("T", FORWARD)], |b| {
        let p = Params::parse(b.attrs(), Direction::Forward)?;
        Built::costly(move |ctx| {
            let (x, filter) = (ctx.take(0)?, ctx.take(1)?);
            let out = convolve(ctx, &p, &x, &filter, None)?;
            ctx.set_output(0, out);
            Ok(())
        })
    });
    r.add_typed("Conv2DBackpropInput", &[("T", FORWARD)], |b| {
        let p = Params::parse(b.attrs(), Direction::Input)?;
        Built::costly(move |ctx| backprop_input(ctx, &p))
    });
    r.add_typed("Conv2DBackpropFilter", &[("T", FILTER)], |b| {
        let p = Params::parse(b.attrs(), Direction::Filter)?;
        Built::costly(move |ctx| backprop_filter(ctx, &p))
    });
    fused::register(r);
    general::register(r);
    padded::register(r);
}

/// Does `count` units of work, each on whichever thread is free first, so that no thread waits long
/// for the last ones; on this thread alone if there are too few multiplications for two.
fn share(count: usize, work: usize, body: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    let threads = if work < 2 * GRAIN { 1 } else { count };
    parallel_for(threads, 1, |_| {
        loop {
            let unit = next.fetch_add(1, Ordering::Relaxed);
            if unit >= count {
                return;
            }
            body(unit);
        }
    });
}

/// Four dimensions, or the error `text`.
fn four(dims: &[usize], text: impl FnOnce() -> String) -> Result<[usize; 4]> {
    <[usize; 4]>::try_from(dims).map_err(|_| Status::invalid_argument(text()))
}

/// The convolution of two tensors, with something done to each block of finished pixels.
pub(crate) fn convolve(
    ctx: &OpContext<'_>,
    p: &Params,
    x: &Tensor,
    filter: &Tensor,
    epilogue: Option<Epilogue<'_, f32>>,
) -> Result<Tensor> {
    let input = four(x.dims(), || {
        format!("convolution input must be 4-dimensional: {}", x.shape())
    })?;
    let f = four(filter.dims(), || {
        format!(
            "convolution filter must be 4-dimensional: {}",
            filter.shape()
        )
    })?;
    let g = Geometry::new(p, input, f)?;
    let shape = Shape::from([g.batch, g.h.output, g.w.output, g.out_c]);
    if shape.num_elements() != 0 && f.contains(&0) {
        return Err(Status::invalid_argument(
            "filter must not have zero elements (i.e. all dimensions must be non-zero)",
        ));
    }
    let (x, filter) = (widen(x)?, widen(filter)?);
    let out = match compute_type(p.dtype) {
        DType::Float => forward_in::<f32>(ctx, &g, &x, &filter, shape, epilogue)?,
        DType::Double => forward_in::<f64>(ctx, &g, &x, &filter, shape, None)?,
        _ => forward_in::<i32>(ctx, &g, &x, &filter, shape, None)?,
    };
    narrow(out, p.dtype)
}

fn forward_in<T: Element + Tiled>(
    ctx: &OpContext<'_>,
    g: &Geometry,
    x: &Tensor,
    filter: &Tensor,
    shape: Shape,
    epilogue: Option<Epilogue<'_, T>>,
) -> Result<Tensor> {
    let (x, filter) = (x.as_slice::<T>()?, filter.as_slice::<T>()?);
    let room = ctx.vec::<T>(&shape)?;
    let limit = ctx.device().room();
    if shape.num_elements() == 0 {
        return Ok(Tensor::from_vec(room, shape)?);
    }
    // SAFETY: the convolution sets every pixel.
    unsafe {
        in_parts(room, shape, |out| {
            forward::run(g, x, filter, out, limit, epilogue)
        })
    }
}

/// Dimensions given as the elements of a vector.
fn sizes(values: &[i64]) -> Result<Vec<usize>> {
    values
        .iter()
        .map(|&v| {
            usize::try_from(v)
                .map_err(|_| Status::invalid_argument(format!("Dimension {v} must be >= 0")))
        })
        .collect()
}

fn backprop_input(ctx: &mut OpContext<'_>, p: &Params) -> Result<()> {
    let (size, filter, dy) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    if size.rank() != 1 {
        return Err(Status::invalid_argument(format!(
            "Conv2DBackpropInput: input_sizes input must be 1-dim, not {}",
            size.rank()
        )));
    }
    let f = four(filter.dims(), || {
        "Conv2DCustomBackpropInput: filter must be 4-dimensional".into()
    })?;
    let grad = four(dy.dims(), || {
        format!("input_sizes must be 4-dimensional, got: {}", dy.rank())
    })?;
    let input = match sizes(&args::ints(size)?)?.as_slice() {
        &[a, b, c, d] => [a, b, c, d],
        &[h, w] => [grad[0], h, w, f[2]],
        other => {
            return Err(Status::invalid_argument(format!(
                "Conv2DBackpropInput requires input_sizes to contain 4 values or 2 values, but got: {}",
                other.len()
            )));
        }
    };
    let checked = Shape::checked(input.iter().map(|&d| d as i64))?;
    let g = geometry_for_gradient(p, Direction::Input, input, f)?;
    g.check_backprop(Direction::Input, grad)?;
    if g.groups > 1 {
        return Err(Status::invalid_argument(format!(
            "Gradients for grouped convolutions are not supported on CPU. Please file a feature request if you run into this issue. Computed input depth {} doesn't match filter input depth {}",
            g.in_c, f[2]
        )));
    }
    let (filter, dy) = (widen(filter)?, widen(dy)?);
    let out = with_type!(compute_type(p.dtype), T in [f32, f64, i32] => {
        let room = ctx.vec::<T>(&checked)?;
        if checked.num_elements() == 0 {
            Tensor::from_vec(room, checked)?
        } else {
            let limit = ctx.device().room();
            let (filter, dy) = (filter.as_slice::<T>()?, dy.as_slice::<T>()?);
            // SAFETY: the classes of pixels cover the input, and each is set.
            unsafe {
                in_parts(room, checked, |out| backward::input(&g, dy, filter, out, limit))?
            }
        }
    });
    let out = narrow(out, p.dtype)?;
    ctx.set_output(0, out);
    Ok(())
}

fn backprop_filter(ctx: &mut OpContext<'_>, p: &Params) -> Result<()> {
    let (x, size, dy) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    let custom = "Conv2DCustomBackpropFilter";
    if size.rank() != 1 {
        return Err(Status::invalid_argument(format!(
            "{custom}: filter_sizes input must be 1-dim, not {}",
            size.rank()
        )));
    }
    let f = Shape::checked(args::ints(size)?).map_err(|e| match e {
        downpour_tensor::ShapeError::Negative(_, d) => {
            Status::invalid_argument(format!("Dimension {d} must be >= 0"))
        }
        other => other.into(),
    })?;
    let f4 = four(&f, || format!("{custom}: filter must be 4-dimensional"))?;
    let input = four(x.dims(), || {
        format!("{custom}: input must be 4-dimensional")
    })?;
    let grad = four(dy.dims(), || {
        format!("{custom}: out_backprop must be 4-dimensional")
    })?;
    let g = geometry_for_gradient(p, Direction::Filter, input, f4)?;
    g.check_backprop(Direction::Filter, grad)?;
    if g.groups > 1 {
        return Err(Status::invalid_argument(
            "Gradients for grouped convolutions are not supported on CPU. Please file a feature request if you run into this issue.",
        ));
    }
    let (x, dy) = (widen(x)?, widen(dy)?);
    let out = match compute_type(p.dtype) {
        DType::Float => filter_in::<f32>(ctx, &g, &x, &dy, f)?,
        _ => filter_in::<f64>(ctx, &g, &x, &dy, f)?,
    };
    let out = narrow(out, p.dtype)?;
    ctx.set_output(0, out);
    Ok(())
}

fn filter_in<T: Element + Tiled + Arithmetic>(
    ctx: &OpContext<'_>,
    g: &Geometry,
    x: &Tensor,
    dy: &Tensor,
    shape: Shape,
) -> Result<Tensor> {
    let room = ctx.vec::<T>(&shape)?;
    if shape.num_elements() == 0 {
        return Ok(Tensor::from_vec(room, shape)?);
    }
    let limit = ctx.device().room();
    let (x, dy) = (x.as_slice::<T>()?, dy.as_slice::<T>()?);
    // SAFETY: the first part's sum covers the whole filter and is set.
    unsafe { in_parts(room, shape, |out| backward::filter(g, x, dy, out, limit)) }
}

/// The sizes, with the texts that the gradients have for them.
fn geometry_for_gradient(
    p: &Params,
    direction: Direction,
    input: [usize; 4],
    filter: [usize; 4],
) -> Result<Geometry> {
    if filter[2] == 0 || !input[3].is_multiple_of(filter[2]) {
        let name = match direction {
            Direction::Filter => "Conv2DCustomBackpropFilter",
            _ => "Conv2DCustomBackpropInput",
        };
        return Err(Status::invalid_argument(format!(
            "{name}: input depth must be evenly divisible by filter depth"
        )));
    }
    Geometry::new(p, input, filter)
}

#[cfg(test)]
mod tests;
