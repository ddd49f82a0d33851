//! `MaxPool3D`, `AvgPool3D` and their gradients.

use super::{axes, five, five_ints, padding, sizes, spatial, voxels};
use crate::nn::float::{narrow, widen};
use crate::nn::window::{Axis, Padding};
use downpour_graph::{Attrs, Result, Status};
use downpour_runtime::{Built, OpContext, Registry, parallel_ranges};
use downpour_tensor::{DType, Shape, Tensor};

pub(crate) fn register(r: &mut Registry) {
    const TYPES: &[DType] = &[DType::BFloat16, DType::Float];
    r.add_typed("MaxPool3D", &[("T", TYPES)], |b| {
        let p = Params::parse(b.attrs(), "Pooling3DOp")?;
        Built::costly(move |ctx| forward(ctx, &p, true))
    });
    r.add_typed("AvgPool3D", &[("T", TYPES)], |b| {
        let p = Params::parse(b.attrs(), "Pooling3DOp")?;
        Built::costly(move |ctx| forward(ctx, &p, false))
    });
    r.add_typed("MaxPool3DGrad", &[("T", TYPES), ("TInput", TYPES)], |b| {
        let p = Params::parse(b.attrs(), "MaxPooling3dGradOp")?;
        Built::costly(move |ctx| max_gradient(ctx, &p, false))
    });
    r.add_typed("MaxPool3DGradGrad", &[("T", TYPES)], |b| {
        let p = Params::parse(b.attrs(), "MaxPooling3dGradGradOp")?;
        Built::costly(move |ctx| max_gradient(ctx, &p, true))
    });
    r.add_typed("AvgPool3DGrad", &[("T", TYPES)], |b| {
        let p = Params::parse(b.attrs(), "AvgPooling3dGradOp")?;
        Built::costly(move |ctx| average_gradient(ctx, &p))
    });
}

fn invalid<T>(text: impl Into<String>) -> Result<T> {
    Err(Status::invalid_argument(text))
}

struct Params {
    window: [usize; 3],
    strides: [usize; 3],
    padding: Padding,
}

impl Params {
    fn parse(attrs: &Attrs, op: &str) -> Result<Params> {
        if attrs.str("data_format")? == "NCDHW" {
            return invalid(format!(
                "Default {op} only supports NDHWC on device type CPU"
            ));
        }
        let window = five_ints(attrs, "ksize", "ksize")?;
        let strides = five_ints(attrs, "strides", "stride")?;
        for (place, what) in [(0, "batch"), (4, "depth")] {
            if window[place] != 1 || strides[place] != 1 {
                return Err(Status::unimplemented(format!(
                    "Pooling is not yet supported on the {what} dimension."
                )));
            }
        }
        let (Some(window), Some(strides)) = (spatial(window), spatial(strides)) else {
            return invalid("Sliding window ksize and strides must be positive");
        };
        Ok(Params {
            window,
            strides,
            padding: padding(attrs)?,
        })
    }

    fn geometry(&self, input: [usize; 5]) -> Result<Geometry> {
        Ok(Geometry {
            batch: input[0],
            axes: axes(input, self.window, self.strides, [1; 3], &self.padding)?,
            channels: input[4],
        })
    }
}

struct Geometry {
    batch: usize,
    axes: [Axis; 3],
    channels: usize,
}

impl Geometry {
    fn out_dims(&self) -> [usize; 5] {
        let [d, h, w] = &self.axes;
        [self.batch, d.output, h.output, w.output, self.channels]
    }

    /// Elements of an image, in and out.
    fn images(&self) -> (usize, usize) {
        let (a, b) = voxels(&self.axes);
        (a * self.channels, b * self.channels)
    }

    /// Calls `f(window, first elements of the voxels it covers)` for every window of an image.
    fn windows(&self, mut f: impl FnMut(usize, &[usize])) {
        let [d, h, w] = &self.axes;
        let mut covered = Vec::new();
        for z in 0..d.output {
            for y in 0..h.output {
                for x in 0..w.output {
                    covered.clear();
                    let (spans, c) = ((d.span(z), h.span(y), w.span(x)), self.channels);
                    for iz in spans.0.0..spans.0.1 {
                        for iy in spans.1.0..spans.1.1 {
                            for ix in spans.2.0..spans.2.1 {
                                covered.push(((iz * h.input + iy) * w.input + ix) * c);
                            }
                        }
                    }
                    f((z * h.output + y) * w.output + x, &covered);
                }
            }
        }
    }

    /// Runs `f(image, its output)` over an output with `size` elements per image.
    fn each(&self, out: &mut [f32], size: usize, f: impl Fn(usize, &mut [f32]) + Sync) {
        if size != 0 {
            parallel_ranges(out, size, 1, |first, images| {
                for (i, image) in images.chunks_exact_mut(size).enumerate() {
                    f(first + i, image);
                }
            });
        }
    }
}

fn forward(ctx: &mut OpContext<'_>, p: &Params, max: bool) -> Result<()> {
    let x = ctx.take(0)?;
    let g = p.geometry(five(x.dims(), "tensor_in must be 5-dimensional")?)?;
    let dtype = x.dtype();
    let x = widen(&x)?;
    let x = x.as_slice::<f32>()?;
    let mut out = ctx.zeros(DType::Float, &Shape::from(g.out_dims()))?;
    let ((a, b), c) = (g.images(), g.channels);
    g.each(out.make_mut::<f32>()?, b, |n, out| {
        let image = &x[n * a..(n + 1) * a];
        g.windows(|o, covered| {
            let to = &mut out[o * c..(o + 1) * c];
            if max {
                to.fill(f32::MIN);
            }
            for &at in covered {
                for (to, v) in to.iter_mut().zip(&image[at..at + c]) {
                    *to = match max {
                        true if *v > *to => *v,
                        true => *to,
                        false => *to + *v,
                    };
                }
            }
            if !max {
                to.iter_mut().for_each(|v| *v /= covered.len() as f32);
            }
        });
    });
    ctx.set_output(0, narrow(out, dtype)?);
    Ok(())
}

/// The gradient of the maximum, or with `second` the gradient of that.
fn max_gradient(ctx: &mut OpContext<'_>, p: &Params, second: bool) -> Result<()> {
    let (x, y, grad) = (ctx.take(0)?, ctx.take(1)?, ctx.take(2)?);
    let input = five(x.dims(), "tensor_in must be 5-dimensional")?;
    five(y.dims(), "tensor_out must be 5-dimensional")?;
    five(grad.dims(), "out_backprop must be 5-dimensional")?;
    let g = p.geometry(input)?;
    let out_shape = Shape::from(g.out_dims());
    let expect = |what: &str, shape: &Shape, t: &Tensor| {
        if t.shape() == shape {
            return Ok(());
        }
        invalid(format!(
            "Expected {what} shape to be {shape}, but got {}",
            t.shape()
        ))
    };
    expect("orig_output", &out_shape, &y)?;
    expect("grad", if second { x.shape() } else { &out_shape }, &grad)?;
    let dtype = grad.dtype();
    let shape = if second { out_shape } else { x.shape().clone() };
    let mut out = ctx.zeros(DType::Float, &shape)?;
    let (x, grad) = (widen(&x)?, widen(&grad)?);
    let (x, grad) = (x.as_slice::<f32>()?, grad.as_slice::<f32>()?);
    let ((a, b), c) = (g.images(), g.channels);
    let (own, other) = if second { (b, a) } else { (a, b) };
    g.each(out.make_mut::<f32>()?, own, |n, out| {
        let image = &x[n * a..(n + 1) * a];
        let grad = &grad[n * other..(n + 1) * other];
        g.windows(|o, covered| {
            for ch in 0..c {
                let first = covered
                    .iter()
                    .map(|at| at + ch)
                    .reduce(|best, at| if image[at] > image[best] { at } else { best });
                match first {
                    Some(at) if second => out[o * c + ch] = grad[at],
                    Some(at) => out[at] += grad[o * c + ch],
                    None => {}
                }
            }
        });
    });
    ctx.set_output(0, narrow(out, dtype)?);
    Ok(())
}

fn average_gradient(ctx: &mut OpContext<'_>, p: &Params) -> Result<()> {
    let (size, grad) = (ctx.take(0)?, ctx.take(1)?);
    let text = "orig_input_shape must be 1-dimensional and 5 elements";
    let input = sizes(&size, text)?;
    five(grad.dims(), "out_backprop must be 5-dimensional")?;
    let shape = Shape::checked(input.map(|d| d as i64))?;
    let g = p.geometry(input)?;
    if grad.dims() != g.out_dims() {
        return invalid(format!(
            "Expected grad shape to be {}, but got {}",
            Shape::from(g.out_dims()),
            grad.shape()
        ));
    }
    let dtype = grad.dtype();
    let mut out = ctx.zeros(DType::Float, &shape)?;
    let grad = widen(&grad)?;
    let grad = grad.as_slice::<f32>()?;
    let ((a, b), c) = (g.images(), g.channels);
    g.each(out.make_mut::<f32>()?, a, |n, out| {
        let grad = &grad[n * b..(n + 1) * b];
        g.windows(|o, covered| {
            let scale = 1.0 / covered.len() as f32;
            for &at in covered {
                let from = &grad[o * c..(o + 1) * c];
                for (to, v) in out[at..at + c].iter_mut().zip(from) {
                    *to += v * scale;
                }
            }
        });
    });
    ctx.set_output(0, narrow(out, dtype)?);
    Ok(())
}
