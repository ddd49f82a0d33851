//! `Conv3D` and its gradients: for each tap of the filter one product, whose rows are the windows
//! in which that tap meets the input.
#![allow(unsafe_code, reason = "threads write disjoint images of one output")]

use super::{axes, each_meeting, five, five_ints, padding, sizes, spatial, taps, voxels};
use crate::linalg::tile::{Sweep, Tiled, in_turn};
use crate::nn::conv::Panels;
use crate::nn::float::{Parts, assume_set, compute_type, narrow, widen};
use crate::nn::window::{Axis, Padding};
use crate::types::{FLOATS, INDEX, with_type};
use downpour_graph::{Attrs, Result, Status};
use downpour_runtime::{Built, OpContext, Registry, parallel_for};
use downpour_tensor::{DType, Element, Shape, Tensor};

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("Conv3D", &[("T", FLOATS)], |b| {
        let p = Params::parse(b.attrs())?;
        Built::costly(move |ctx| forward(ctx, &p))
    });
    r.add_typed(
        "Conv3DBackpropInputV2",
        &[("T", FLOATS), ("Tshape", INDEX)],
        |b| {
            let p = Params::parse(b.attrs())?;
            Built::costly(move |ctx| backprop_input(ctx, &p, false))
        },
    );
    // The first versions take a tensor of the wanted shape, and know one format.
    r.add_typed("Conv3DBackpropInput", &[("T", OLD)], |b| {
        let p = Params::parse(b.attrs())?;
        Built::costly(move |ctx| backprop_input(ctx, &p, true))
    });
    r.add_typed("Conv3DBackpropFilter", &[("T", OLD)], |b| {
        let p = Params::parse(b.attrs())?;
        Built::costly(move |ctx| backprop_filter(ctx, &p, true))
    });
    r.add_typed("Conv3DBackpropFilterV2", &[("T", FLOATS)], |b| {
        let p = Params::parse(b.attrs())?;
        Built::costly(move |ctx| backprop_filter(ctx, &p, false))
    });
}

fn invalid<T>(text: impl Into<String>) -> Result<T> {
    Err(Status::invalid_argument(text))
}

const OLD: &[DType] = &[DType::Half, DType::Float, DType::Double];

/// The sizes in input `i`, which are its own if it is a `whole` tensor.
fn wanted(ctx: &mut OpContext<'_>, i: usize, whole: bool) -> Result<Tensor> {
    let t = ctx.take(i)?;
    if !whole {
        return Ok(t);
    }
    let dims: Vec<i64> = t.dims().iter().map(|&d| d as i64).collect();
    Ok(Tensor::vector(dims))
}

struct Params {
    strides: [usize; 3],
    padding: Padding,
}

impl Params {
    fn parse(attrs: &Attrs) -> Result<Params> {
        let strides = five_ints(attrs, "strides", "strides")?;
        if attrs.find("data_format").is_some() && attrs.str("data_format")? == "NCDHW" {
            return invalid(
                "CPU implementation of Conv3D currently only supports the NHWC tensor format.",
            );
        }
        if strides[0] != 1 || strides[4] != 1 {
            return invalid(
                "Current implementation does not yet support strides in the batch and depth dimensions.",
            );
        }
        if attrs.ints("dilations")?.iter().any(|&d| d != 1) {
            return invalid(
                "CPU implementation of Conv3D currently only supports dilated rates of 1.",
            );
        }
        let Some(strides) = spatial(strides) else {
            return invalid("Spatial strides should be larger than 0.");
        };
        Ok(Params {
            strides,
            padding: padding(attrs)?,
        })
    }
}

struct Geometry {
    batch: usize,
    axes: [Axis; 3],
    in_c: usize,
    out_c: usize,
}

impl Geometry {
    fn new(p: &Params, input: [usize; 5], filter: [usize; 5]) -> Result<Geometry> {
        let window = [filter[0], filter[1], filter[2]];
        Ok(Geometry {
            batch: input[0],
            axes: axes(input, window, p.strides, &p.padding)?,
            in_c: input[4],
            out_c: filter[4],
        })
    }

    fn out_dims(&self) -> [usize; 5] {
        let [d, h, w] = &self.axes;
        [self.batch, d.output, h.output, w.output, self.out_c]
    }

    fn check_backprop(&self, name: &str, dy: [usize; 5]) -> Result<()> {
        if dy[0] != self.batch {
            return invalid(format!(
                "{name}: input and out_backprop must have the same batch size. Input batch: {}, outbackprop batch: {}, batch_dim: 0",
                self.batch, dy[0]
            ));
        }
        if dy[4] != self.out_c {
            return invalid(format!(
                "{name}: filter and out_backprop must have the same out_depth"
            ));
        }
        for (i, a) in self.axes.iter().enumerate() {
            let size = dy[i + 1];
            if a.output != size {
                return invalid(format!(
                    "{name}: Size of out_backprop doesn't match computed: actual = {size}, computed = {} spatial_dim: {} input: {} filter: {} output: {size} stride: {} dilation: 1",
                    a.output,
                    i + 1,
                    a.input,
                    a.window,
                    a.stride
                ));
            }
        }
        Ok(())
    }

    /// Runs `f` on every image, those of `batch` images in parallel.
    fn each_image(&self, f: impl Fn(usize) + Sync) {
        parallel_for(self.batch, 1, |images| images.for_each(&f));
    }
}

/// One product with rows read from `a` and written to `out`, `depth` elements long each.
struct Product<'a, T> {
    a: &'a [T],
    rows: &'a [usize],
    depth: usize,
    panels: &'a Panels<T>,
    cols: usize,
    out_rows: &'a [usize],
}

impl<T: Tiled> Product<'_, T> {
    fn add(&self, out: &mut [T]) {
        let sweep = Sweep {
            a: self.a,
            rows: self.rows,
            segments: &[(0, 0)],
            len: self.depth,
            step: 1,
            b: &self.panels.data,
            stride: T::kernel().width,
            panel: self.panels.panel,
            cols: self.cols,
            out_rows: self.out_rows,
        };
        T::kernel().add(&sweep, out);
    }
}

/// Refuses filters that become too large as panels, taken as doubles.
fn check_panels(ctx: &OpContext<'_>, count: usize, depth: usize, cols: usize) -> Result<()> {
    Panels::<f64>::check(count, depth, cols, ctx.device().memory.max_tensor_bytes)
}

fn forward(ctx: &mut OpContext<'_>, p: &Params) -> Result<()> {
    let (x, filter) = (ctx.take(0)?, ctx.take(1)?);
    let input = five(x.dims(), "input must be 5-dimensional")?;
    let f = five(filter.dims(), "filter must be 5-dimensional")?;
    if f[3] != input[4] {
        return invalid(format!(
            "Input depth must be evenly divisible by filter depth: {} vs {}",
            input[4], f[3]
        ));
    }
    if f.contains(&0) {
        return invalid(
            "filter must not have zero elements (i.e. all dimensions must be non-zero)",
        );
    }
    let g = Geometry::new(p, input, f)?;
    let dtype = x.dtype();
    let (x, filter) = (widen(&x)?, widen(&filter)?);
    let mut out = ctx.zeros(compute_type(dtype), &Shape::from(g.out_dims()))?;
    check_panels(ctx, taps(&g.axes).len(), g.in_c, g.out_c)?;
    with_type!(compute_type(dtype), T in [f32, f64] => {
        run_forward::<T>(&g, x.as_slice()?, filter.as_slice()?, out.make_mut()?);
    });
    ctx.set_output(0, narrow(out, dtype)?);
    Ok(())
}

fn run_forward<T: Element + Tiled>(g: &Geometry, x: &[T], filter: &[T], out: &mut [T]) {
    let (vin, vout) = voxels(&g.axes);
    let (a, b) = (vin * g.in_c, vout * g.out_c);
    let size = g.in_c * g.out_c;
    let taps = taps(&g.axes);
    let panels: Vec<Panels<T>> = (0..taps.len())
        .map(|t| {
            Panels::rows(1, g.in_c, g.out_c, |_, k| {
                &filter[t * size + k * g.out_c..][..g.out_c]
            })
        })
        .collect();
    let parts = Parts::of(out);
    g.each_image(|n| {
        // SAFETY: images are disjoint, and hold zeros.
        let out = unsafe { assume_set(parts.part(n * b, b)) };
        let (mut rows, mut out_rows) = (Vec::new(), Vec::new());
        for (tap, panels) in taps.iter().zip(&panels) {
            rows.clear();
            out_rows.clear();
            each_meeting(&g.axes, *tap, |o, i| {
                rows.push(i * g.in_c);
                out_rows.push(o * g.out_c);
            });
            let product = Product {
                a: &x[n * a..(n + 1) * a],
                rows: &rows,
                depth: g.in_c,
                panels,
                cols: g.out_c,
                out_rows: &out_rows,
            };
            product.add(out);
        }
    });
}

/// Checks what both gradients share.
fn check(
    p: &Params,
    name: &str,
    input: [usize; 5],
    filter: [usize; 5],
    dy: &Tensor,
) -> Result<Geometry> {
    let d = five(
        dy.dims(),
        &format!("{name}: out_backprop must be 5-dimensional"),
    )?;
    if filter[3] != input[4] {
        return invalid(format!(
            "{name}: input depth must be evenly divisible by filter depth"
        ));
    }
    let g = Geometry::new(p, input, filter)?;
    g.check_backprop(name, d)?;
    Ok(g)
}

fn backprop_input(ctx: &mut OpContext<'_>, p: &Params, whole: bool) -> Result<()> {
    let name = "Conv3DBackpropInputOp";
    let (size, filter, dy) = (wanted(ctx, 0, whole)?, ctx.take(1)?, ctx.take(2)?);
    let input = sizes(&size, &format!("{name}: input must be 5-dimensional"))?;
    let f = five(
        filter.dims(),
        &format!("{name}: filter must be 5-dimensional"),
    )?;
    let shape = Shape::checked(input.map(|d| d as i64))?;
    let g = check(p, name, input, f, &dy)?;
    let dtype = dy.dtype();
    let (filter, dy) = (widen(&filter)?, widen(&dy)?);
    check_panels(ctx, taps(&g.axes).len(), g.out_c, g.in_c)?;
    let mut out = ctx.zeros(compute_type(dtype), &shape)?;
    with_type!(compute_type(dtype), T in [f32, f64] => {
        run_input::<T>(&g, dy.as_slice()?, filter.as_slice()?, out.make_mut()?);
    });
    ctx.set_output(0, narrow(out, dtype)?);
    Ok(())
}

fn run_input<T: Element + Tiled>(g: &Geometry, dy: &[T], filter: &[T], out: &mut [T]) {
    let (vin, vout) = voxels(&g.axes);
    let (a, b) = (vin * g.in_c, vout * g.out_c);
    let size = g.in_c * g.out_c;
    let taps = taps(&g.axes);
    let panels: Vec<Panels<T>> = (0..taps.len())
        .map(|t| {
            Panels::columns([1, 1], g.out_c, g.in_c, g.out_c, |_, _| {
                &filter[t * size..][..size]
            })
        })
        .collect();
    let parts = Parts::of(out);
    g.each_image(|n| {
        // SAFETY: images are disjoint, and hold zeros.
        let out = unsafe { assume_set(parts.part(n * a, a)) };
        let (mut rows, mut out_rows) = (Vec::new(), Vec::new());
        for (tap, panels) in taps.iter().zip(&panels) {
            rows.clear();
            out_rows.clear();
            // Different windows meet different places with the same tap, so no two rows collide.
            each_meeting(&g.axes, *tap, |o, i| {
                rows.push(o * g.out_c);
                out_rows.push(i * g.in_c);
            });
            let product = Product {
                a: &dy[n * b..(n + 1) * b],
                rows: &rows,
                depth: g.out_c,
                panels,
                cols: g.in_c,
                out_rows: &out_rows,
            };
            product.add(out);
        }
    });
}

fn backprop_filter(ctx: &mut OpContext<'_>, p: &Params, whole: bool) -> Result<()> {
    let name = "Conv3DBackpropFilterOp";
    let (x, size, dy) = (ctx.take(0)?, wanted(ctx, 1, whole)?, ctx.take(2)?);
    let input = five(x.dims(), &format!("{name}: input must be 5-dimensional"))?;
    let f = sizes(&size, &format!("{name}: filter must be 5-dimensional"))?;
    let shape = Shape::checked(f.map(|d| d as i64))?;
    let g = check(p, name, input, f, &dy)?;
    let dtype = dy.dtype();
    let (x, dy) = (widen(&x)?, widen(&dy)?);
    check_panels(ctx, 1, voxels(&g.axes).1, g.out_c)?;
    let mut out = ctx.zeros(compute_type(dtype), &shape)?;
    with_type!(compute_type(dtype), T in [f32, f64] => {
        run_filter::<T>(&g, x.as_slice()?, dy.as_slice()?, out.make_mut()?);
    });
    ctx.set_output(0, narrow(out, dtype)?);
    Ok(())
}

fn run_filter<T: Element + Tiled>(g: &Geometry, x: &[T], dy: &[T], out: &mut [T]) {
    let (vin, vout) = voxels(&g.axes);
    let (a, b) = (vin * g.in_c, vout * g.out_c);
    let size = g.in_c * g.out_c;
    let taps = taps(&g.axes);
    let parts = Parts::of(out);
    let channels: Vec<usize> = (0..g.in_c).collect();
    let out_rows: Vec<usize> = channels.iter().map(|c| c * g.out_c).collect();
    // Each tap belongs to one thread, which goes over the images in order.
    parallel_for(taps.len(), 1, |range| {
        for t in range {
            // SAFETY: taps are disjoint parts of the filter, and hold zeros.
            let out = unsafe { assume_set(parts.part(t * size, size)) };
            let (mut from, mut places) = (Vec::new(), Vec::new());
            each_meeting(&g.axes, taps[t], |o, i| {
                from.push(o * g.out_c);
                places.push(i * g.in_c);
            });
            let places = in_turn(places, 1);
            for n in 0..g.batch {
                let dy = &dy[n * b..(n + 1) * b];
                let panels = Panels::rows(1, from.len(), g.out_c, |_, k| {
                    &dy[from[k]..from[k] + g.out_c]
                });
                let sweep = Sweep {
                    a: &x[n * a..(n + 1) * a],
                    rows: &channels,
                    segments: &places,
                    len: 1,
                    step: 1,
                    b: &panels.data,
                    stride: T::kernel().width,
                    panel: panels.panel,
                    cols: g.out_c,
                    out_rows: &out_rows,
                };
                T::kernel().add(&sweep, out);
            }
        }
    });
}
