//! `MaxPool`, `MaxPoolV2`, their gradients and the gradients of those. The gradient goes to the
//! first of the largest elements of a window, as in TensorFlow.
#![allow(unsafe_code, reason = "outputs are written once, never zeroed first")]

use super::{Geometry, Params, four};
use crate::linalg::wide::wide_fn;
use crate::nn::float::{Parts, in_parts};
use crate::types::{REALS, with_type};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, OpContext, Registry, parallel_for, parallel_ranges};
use downpour_tensor::{Element, Shape, Tensor};
use half::{bf16, f16};
use std::mem::MaybeUninit;

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("MaxPool", &[("T", REALS)], |b| {
        let p = Params::parse(b.attrs())?;
        p.check_format("MaxPoolingOp")?;
        Built::costly(move |ctx| forward(ctx, &p))
    });
    r.add_typed("MaxPoolV2", &[("T", REALS)], |b| {
        let node = b.node.clone();
        Built::costly(move |ctx| {
            let p = Params::from_inputs(&node.attrs, ctx.input(1)?, ctx.input(2)?)?;
            p.check_format("MaxPoolingOp")?;
            forward(ctx, &p)
        })
    });
    r.add_typed("MaxPoolGrad", &[("T", REALS)], |b| {
        let p = Params::parse(b.attrs())?;
        p.check_format("MaxPoolingGradOp")?;
        Built::costly(move |ctx| gradient(ctx, &p))
    });
    r.add_typed("MaxPoolGradV2", &[("T", REALS)], |b| {
        let node = b.node.clone();
        Built::costly(move |ctx| {
            let p = Params::from_inputs(&node.attrs, ctx.input(3)?, ctx.input(4)?)?;
            p.check_format("MaxPoolingGradOp")?;
            gradient(ctx, &p)
        })
    });
    r.add_typed("MaxPoolGradGrad", &[("T", REALS)], |b| {
        let p = Params::parse(b.attrs())?;
        p.check_format("MaxPoolingGradGradOp")?;
        Built::costly(move |ctx| second(ctx, &p))
    });
    r.add_typed("MaxPoolGradGradV2", &[("T", REALS)], |b| {
        let node = b.node.clone();
        Built::costly(move |ctx| {
            let p = Params::from_inputs(&node.attrs, ctx.input(3)?, ctx.input(4)?)?;
            p.check_format("MaxPoolingGradGradOp")?;
            second(ctx, &p)
        })
    });
}

/// Elements with an order, a least value, and (for gradients) a sum.
pub(super) trait Ordered: Element + PartialOrd + crate::nn::bias::Sum {
    const LOWEST: Self;

    /// The maxima of one image.
    fn max_image(g: &Geometry, x: &[Self], out: &mut [MaybeUninit<Self>]) {
        max_image(g, x, out);
    }

    /// The gradient of one image.
    fn grad_image(g: &Geometry, x: &[Self], dy: &[Self], dx: &mut [MaybeUninit<Self>]) {
        grad_image(g, x, dy, dx);
    }
}

macro_rules! ordered {
    ($($t:ty),*) => { $(impl Ordered for $t { const LOWEST: Self = <$t>::MIN; })* };
}
ordered!(f64, f16, bf16, i8, i16, i32, i64, u8, u16, u32, u64);

impl Ordered for f32 {
    const LOWEST: Self = f32::MIN;
    fn max_image(g: &Geometry, x: &[f32], out: &mut [MaybeUninit<f32>]) {
        max_image_f32(g, x, out);
    }
    fn grad_image(g: &Geometry, x: &[f32], dy: &[f32], dx: &mut [MaybeUninit<f32>]) {
        grad_image_f32(g, x, dy, dx);
    }
}

wide_fn! {
    fn max_image_f32(g: &Geometry, x: &[f32], out: &mut [MaybeUninit<f32>]) {
        max_image(g, x, out);
    }

    fn grad_image_f32(g: &Geometry, x: &[f32], dy: &[f32], dx: &mut [MaybeUninit<f32>]) {
        grad_image(g, x, dy, dx);
    }
}

/// The larger one; a NaN on the right is passed over.
#[inline(always)]
fn larger<T: PartialOrd>(a: T, b: T) -> T {
    if b > a { b } else { a }
}

/// The four pixels of window `(y, x)` where windows are quarters.
#[inline(always)]
fn quarters<'a, T>(g: &Geometry, image: &'a [T], y: usize, x: usize) -> [&'a [T]; 4] {
    let (c, row) = (g.channels, g.w.input * g.channels);
    let at = 2 * y * row + 2 * x * c;
    [at, at + c, at + row, at + row + c].map(|i| &image[i..][..c])
}

/// Channels that are compared together.
const GROUP: usize = 16;

#[inline(always)]
fn max_image<T: Ordered>(g: &Geometry, x: &[T], out: &mut [MaybeUninit<T>]) {
    let c = g.channels;
    if g.is_quarters() {
        for y in 0..g.h.output {
            for ox in 0..g.w.output {
                let [p, q, r, s] = quarters(g, x, y, ox);
                let to = &mut out[(y * g.w.output + ox) * c..][..c];
                // Iterators, not indices: with bounds to check, the compiler leaves the last vector of
                // every pixel to a loop over single elements.
                let pixels = p.iter().zip(q).zip(r.iter().zip(s));
                for (((p, q), (r, s)), to) in pixels.zip(to) {
                    let top = larger(larger(T::LOWEST, *p), *q);
                    to.write(larger(larger(top, *r), *s));
                }
            }
        }
        return;
    }
    g.windows(|o, ys, xs| {
        let to = &mut out[o * c..(o + 1) * c];
        if c.is_multiple_of(GROUP) {
            // A group of channels stays in a register for the whole window.
            for (i, to) in to.as_chunks_mut::<GROUP>().0.iter_mut().enumerate() {
                let mut top = [T::LOWEST; GROUP];
                for y in ys.clone() {
                    for ix in xs.clone() {
                        let at = (y * g.w.input + ix) * c + GROUP * i;
                        if let Some(pixel) = x[at..].first_chunk::<GROUP>() {
                            for k in 0..GROUP {
                                top[k] = larger(top[k], pixel[k]);
                            }
                        }
                    }
                }
                *to = top.map(MaybeUninit::new);
            }
            return;
        }
        to.fill(MaybeUninit::new(T::LOWEST));
        for y in ys {
            let start = (y * g.w.input + xs.start) * c;
            for pixel in x[start..start + xs.len() * c].chunks_exact(c) {
                for (to, v) in to.iter_mut().zip(pixel) {
                    // SAFETY: filled above.
                    *to = MaybeUninit::new(larger(unsafe { to.assume_init() }, *v));
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
    if p.window[3] != 1 {
        let out = depth_wise(&x, p, input)?;
        ctx.set_output(0, out);
        return Ok(());
    }
    let g = p.geometry(input)?;
    let shape = Shape::from(g.out_dims());
    let out = with_type!(dtype, T in reals => {
        let x = x.as_slice::<T>()?;
        let room = ctx.vec::<T>(&shape)?;
        let write = |out: &Parts<'_, T>| {
            let (a, b) = (g.image_in(), g.image_out());
            parallel_for(g.batch, g.grain(), |images| {
                for n in images {
                    // SAFETY: each image is written by one thread.
                    let part = unsafe { out.part(n * b, b) };
                    T::max_image(&g, &x[n * a..(n + 1) * a], part);
                }
            });
            Ok(())
        };
        // SAFETY: every window of every image is set.
        unsafe { in_parts(room, shape, write)? }
    });
    ctx.set_output(0, out);
    Ok(())
}

/// The maximum over neighbouring channels.
fn depth_wise(x: &Tensor, p: &Params, input: [usize; 4]) -> Result<Tensor> {
    let unimplemented = |text: &str| Err(Status::unimplemented(text));
    let depth = p.window[3];
    if p.window[1] != 1 || p.window[2] != 1 {
        return unimplemented(
            "MaxPooling supports exactly one of pooling across depth or pooling across width/height.",
        );
    }
    if input[3] as i64 % depth != 0 {
        return unimplemented(
            "Depthwise max pooling requires the depth window to evenly divide the input depth",
        );
    }
    if depth != p.strides[3] {
        return unimplemented(
            "Depthwise max pooling requires the depth window to equal the depth stride",
        );
    }
    let depth = depth as usize;
    let dims = [input[0], input[1], input[2], input[3] / depth];
    let out = with_type!(x.dtype(), T in reals => {
        let groups = x.as_slice::<T>()?.chunks_exact(depth);
        let max = |v: &[T]| v.iter().fold(<T as Ordered>::LOWEST, |a, b| larger(a, *b));
        Tensor::from_vec(groups.map(max).collect(), dims)?
    });
    Ok(out)
}

#[inline(always)]
fn grad_image<T: Ordered>(g: &Geometry, x: &[T], dy: &[T], dx: &mut [MaybeUninit<T>]) {
    let c = g.channels;
    let zero = T::default();
    if g.is_quarters() {
        let row = g.w.input * c;
        for y in 0..g.h.output {
            let (top, bottom) = dx[2 * y * row..2 * (y + 1) * row].split_at_mut(row);
            for ox in 0..g.w.output {
                let [p, q, r, s] = quarters(g, x, y, ox);
                let dy = &dy[(y * g.w.output + ox) * c..][..c];
                let (a, b) = top[2 * ox * c..][..2 * c].split_at_mut(c);
                let (d, e) = bottom[2 * ox * c..][..2 * c].split_at_mut(c);
                let pixels = p.iter().zip(q).zip(r.iter().zip(s)).zip(dy);
                let places = a.iter_mut().zip(b).zip(d.iter_mut().zip(e));
                for ((((p, q), (r, s)), v), ((a, b), (d, e))) in pixels.zip(places) {
                    let (p, q, r, s, v) = (*p, *q, *r, *s, *v);
                    // Which one would win if each had to exceed all before it.
                    let to_q = q > p;
                    let m = if to_q { q } else { p };
                    let to_r = r > m;
                    let m = if to_r { r } else { m };
                    let to_s = s > m;
                    a.write(if to_q | to_r | to_s { zero } else { v });
                    b.write(if to_q & !to_r & !to_s { v } else { zero });
                    d.write(if to_r & !to_s { v } else { zero });
                    e.write(if to_s { v } else { zero });
                }
            }
        }
        return;
    }
    dx.fill(MaybeUninit::new(zero));
    g.windows(|o, ys, xs| {
        for ch in 0..c {
            if let Some(at) = first_largest(g, x, &ys, &xs, ch) {
                // SAFETY: filled above.
                let sum = unsafe { dx[at].assume_init() }.sum(dy[o * c + ch]);
                dx[at].write(sum);
            }
        }
    });
}

/// Index within the image of the first of a window's largest elements in one channel. A window's
/// first element wins over NaN, and is NaN's if it is one.
#[inline(always)]
pub(super) fn first_largest<T: Ordered>(
    g: &Geometry,
    x: &[T],
    ys: &std::ops::Range<usize>,
    xs: &std::ops::Range<usize>,
    channel: usize,
) -> Option<usize> {
    let mut best: Option<(usize, T)> = None;
    for y in ys.clone() {
        for ix in xs.clone() {
            let at = (y * g.w.input + ix) * g.channels + channel;
            let v = x[at];
            if best.is_none_or(|(_, b)| v > b) {
                best = Some((at, v));
            }
        }
    }
    best.map(|(at, _)| at)
}

/// Checks the three operands of a gradient and gives the sizes. `wide` is the one that has the
/// input's shape, as its error calls it.
fn check(ctx: &OpContext<'_>, p: &Params, second: bool) -> Result<Geometry> {
    let (x, y, grad) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    let input = four(x, "tensor_in must be 4-dimensional")?;
    four(y, "tensor_out must be 4-dimensional")?;
    four(grad, "out_backprop must be 4-dimensional")?;
    if p.window[3] != 1 || p.strides[3] != 1 {
        return Err(Status::unimplemented(if second {
            "MaxPoolingGradGrad is not yet supported on the depth dimension."
        } else {
            "MaxPoolingGrad is not yet supported on the depth dimension."
        }));
    }
    let g = p.geometry(input)?;
    let out = Shape::from(g.out_dims());
    let expect = |what: &str, shape: &Shape, t: &Tensor| {
        if t.shape() == shape {
            Ok(())
        } else {
            Err(Status::invalid_argument(format!(
                "Expected {what} shape to be {shape}, but got {}",
                t.shape()
            )))
        }
    };
    expect("orig_output", &out, y)?;
    expect("grad", if second { x.shape() } else { &out }, grad)?;
    Ok(g)
}

fn gradient(ctx: &mut OpContext<'_>, p: &Params) -> Result<()> {
    let g = check(ctx, p, false)?;
    let (x, dy) = (ctx.take(0)?, ctx.take(2)?);
    let shape = x.shape().clone();
    let out = with_type!(x.dtype(), T in reals => {
        let (x, dy) = (x.as_slice::<T>()?, dy.as_slice::<T>()?);
        let room = ctx.vec::<T>(&shape)?;
        let write = |out: &Parts<'_, T>| {
            let (a, b) = (g.image_in(), g.image_out());
            parallel_for(g.batch, g.grain(), |images| {
                for n in images {
                    // SAFETY: each image is written by one thread.
                    let part = unsafe { out.part(n * a, a) };
                    T::grad_image(&g, &x[n * a..(n + 1) * a], &dy[n * b..(n + 1) * b], part);
                }
            });
            Ok(())
        };
        // SAFETY: every image is set.
        unsafe { in_parts(room, shape, write)? }
    });
    ctx.set_output(0, out);
    Ok(())
}

fn second(ctx: &mut OpContext<'_>, p: &Params) -> Result<()> {
    let g = check(ctx, p, true)?;
    let (x, pooled, grad) = (ctx.take(0)?, ctx.take(1)?, ctx.take(2)?);
    let (a, b) = (g.image_in(), g.image_out());
    let mut out = ctx.zeros(x.dtype(), &Shape::from(g.out_dims()))?;
    with_type!(x.dtype(), T in reals => {
        let (x, pooled) = (x.as_slice::<T>()?, pooled.as_slice::<T>()?);
        let grad = grad.as_slice::<T>()?;
        parallel_ranges(out.make_mut::<T>()?, b, g.grain(), |first, images| {
            for (i, to) in images.chunks_mut(b.max(1)).enumerate() {
                let at = (first + i) * a;
                let (x, grad) = (&x[at..at + a], &grad[at..at + a]);
                let pooled = &pooled[(first + i) * b..(first + i + 1) * b];
                g.windows(|o, ys, xs| {
                    for ch in 0..g.channels {
                        // What was pooled is looked up, not searched for: nothing is found where
                        // the caller gave something else.
                        let place = o * g.channels + ch;
                        let window = ys.clone().flat_map(|y| xs.clone().map(move |x| (y, x)));
                        let found = window
                            .map(|(y, x)| (y * g.w.input + x) * g.channels + ch)
                            .find(|&i| x[i] == pooled[place]);
                        if let Some(i) = found {
                            to[place] = grad[i];
                        }
                    }
                });
            }
        });
    });
    ctx.set_output(0, out);
    Ok(())
}
