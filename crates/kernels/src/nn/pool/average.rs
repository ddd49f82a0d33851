//! `AvgPool` and `AvgPoolGrad`. A window at the edge is divided by the elements it really has.
#![allow(unsafe_code, reason = "outputs are written once, never zeroed first")]

use super::{Geometry, Params, four};
use crate::args::ints;
use crate::linalg::wide::wide_fn;
use crate::nn::float::{Parts, compute_type, in_parts, narrow, widen};
use crate::types::{FLOATS, with_type};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, OpContext, Registry, parallel_for, parallel_ranges};
use downpour_tensor::{Element, Shape};
use std::mem::MaybeUninit;

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("AvgPool", &[("T", FLOATS)], |b| {
        if let Some(bad) = b.attrs().ints("ksize")?.iter().find(|&&k| k <= 0) {
            return Err(Status::invalid_argument(format!(
                "ksize must be a positive int32 value, got:{bad}"
            )));
        }
        let p = Params::parse(b.attrs())?;
        p.check_format("AvgPoolingOp")?;
        Built::costly(move |ctx| forward(ctx, &p))
    });
    r.add_typed("AvgPoolGrad", &[("T", FLOATS)], |b| {
        let p = Params::parse(b.attrs())?;
        p.check_format("AvgPoolingGradOp")?;
        Built::costly(move |ctx| gradient(ctx, &p))
    });
}

trait Mean: Element + num_traits::Float {
    fn mean_image(g: &Geometry, x: &[Self], out: &mut [MaybeUninit<Self>]);
    fn grad_image(g: &Geometry, dy: &[Self], dx: &mut [Self]);
}

impl Mean for f64 {
    fn mean_image(g: &Geometry, x: &[f64], out: &mut [MaybeUninit<f64>]) {
        mean(g, x, out);
    }
    fn grad_image(g: &Geometry, dy: &[f64], dx: &mut [f64]) {
        spread(g, dy, dx);
    }
}

impl Mean for f32 {
    fn mean_image(g: &Geometry, x: &[f32], out: &mut [MaybeUninit<f32>]) {
        mean_f32(g, x, out);
    }
    fn grad_image(g: &Geometry, dy: &[f32], dx: &mut [f32]) {
        spread_f32(g, dy, dx);
    }
}

wide_fn! {
    fn mean_f32(g: &Geometry, x: &[f32], out: &mut [MaybeUninit<f32>]) {
        mean(g, x, out);
    }
    fn spread_f32(g: &Geometry, dy: &[f32], dx: &mut [f32]) {
        spread(g, dy, dx);
    }
}

/// A count of elements as a number.
#[inline(always)]
fn number<T: num_traits::Float>(n: usize) -> T {
    T::from(n).unwrap_or_else(T::nan)
}

#[inline(always)]
fn mean<T: Mean>(g: &Geometry, x: &[T], out: &mut [MaybeUninit<T>]) {
    let c = g.channels;
    g.windows(|o, ys, xs| {
        let to = &mut out[o * c..(o + 1) * c];
        to.fill(MaybeUninit::new(T::zero()));
        let count = number::<T>(ys.len() * xs.len());
        for y in ys {
            let start = (y * g.w.input + xs.start) * c;
            for pixel in x[start..start + xs.len() * c].chunks_exact(c) {
                for (to, v) in to.iter_mut().zip(pixel) {
                    // SAFETY: filled above.
                    *to = MaybeUninit::new(unsafe { to.assume_init() } + *v);
                }
            }
        }
        for to in to {
            // SAFETY: filled above.
            *to = MaybeUninit::new(unsafe { to.assume_init() } / count);
        }
    });
}

#[inline(always)]
fn spread<T: Mean>(g: &Geometry, dy: &[T], dx: &mut [T]) {
    let c = g.channels;
    dx.fill(T::zero());
    g.windows(|o, ys, xs| {
        let from = &dy[o * c..(o + 1) * c];
        let scale = T::one() / number::<T>(ys.len() * xs.len());
        for y in ys {
            let start = (y * g.w.input + xs.start) * c;
            for pixel in dx[start..start + xs.len() * c].chunks_exact_mut(c) {
                for (to, v) in pixel.iter_mut().zip(from) {
                    *to = *to + *v * scale;
                }
            }
        }
    });
}

fn forward(ctx: &mut OpContext<'_>, p: &Params) -> Result<()> {
    let x = ctx.take(0)?;
    let dtype = x.dtype();
    let text = format!(
        "tensor_in_shape must have 2 spatial dimensions. {} 0",
        x.rank()
    );
    let input = four(&x, &text)?;
    spatial_only(p)?;
    let g = p.geometry(input)?;
    let shape = Shape::from(g.out_dims());
    let x = widen(&x)?;
    let out = with_type!(compute_type(dtype), T in [f32, f64] => {
        let x = x.as_slice::<T>()?;
        let room = ctx.vec::<T>(&shape)?;
        let write = |out: &Parts<'_, T>| {
            let (a, b) = (g.image_in(), g.image_out());
            parallel_for(g.batch, g.grain(), |images| {
                for n in images {
                    // SAFETY: each image is written by one thread.
                    let part = unsafe { out.part(n * b, b) };
                    T::mean_image(&g, &x[n * a..(n + 1) * a], part);
                }
            });
            Ok(())
        };
        // SAFETY: every window of every image is set.
        unsafe { in_parts(room, shape, write)? }
    });
    let out = narrow(out, dtype)?;
    ctx.set_output(0, out);
    Ok(())
}

fn spatial_only(p: &Params) -> Result<()> {
    if p.window[3] != 1 || p.strides[3] != 1 {
        return Err(Status::unimplemented(
            "Non-spatial pooling is not yet supported. Volunteers? :)",
        ));
    }
    Ok(())
}

fn gradient(ctx: &mut OpContext<'_>, p: &Params) -> Result<()> {
    let (sizes, dy) = (ctx.take(0)?, ctx.take(1)?);
    let invalid = |text: String| Err(Status::invalid_argument(text));
    if sizes.rank() != 1 || sizes.num_elements() != 4 {
        return invalid("out_backprop must be 1-dimensional and 4 elements".into());
    }
    let grad = four(&dy, "out_backprop must be 4-dimensional")?;
    spatial_only(p)?;
    let sizes = ints(&sizes)?;
    if let Some(bad) = sizes.iter().find(|&&s| s < 0) {
        return invalid(format!("Expected a non-negative size, got {bad}"));
    }
    let shape = Shape::checked(sizes)?;
    let input = [shape[0], shape[1], shape[2], shape[3]];
    let g = p.geometry(input)?;
    // TensorFlow reads past the gradient here, or crashes, when sizes disagree.
    if grad != g.out_dims() {
        return invalid(format!(
            "Expected grad shape to be {}, but got {}",
            Shape::from(g.out_dims()),
            dy.shape()
        ));
    }
    let dtype = dy.dtype();
    let dy = widen(&dy)?;
    let mut out = ctx.zeros(compute_type(dtype), &Shape::from(input))?;
    let (a, b) = (g.image_in(), g.image_out());
    with_type!(compute_type(dtype), T in [f32, f64] => {
        let dy = dy.as_slice::<T>()?;
        parallel_ranges(out.make_mut::<T>()?, a, g.grain(), |first, images| {
            for (i, dx) in images.chunks_mut(a.max(1)).enumerate() {
                let n = first + i;
                T::grad_image(&g, &dy[n * b..(n + 1) * b], dx);
            }
        });
    });
    let out = narrow(out, dtype)?;
    ctx.set_output(0, out);
    Ok(())
}
