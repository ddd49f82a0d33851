//! `Conv3D` and its gradients as products over the input with its padding written out: a window is a few runs of it, one
//! for each row of the filter. The gradient of the input with strides is taken tap by tap instead.
#![allow(unsafe_code, reason = "threads write disjoint images of one output")]

use super::{axes, each_meeting, five, five_ints, padding, sizes, spatial, taps, voxels};
use crate::linalg::tile::{Sweep, Tiled, in_turn};
use crate::nn::conv::Panels;
use crate::nn::float::{Parts, assume_set, compute_type, narrow, widen};
use crate::nn::window::{Axis, Padding};
use crate::types::{FLOATS, INDEX, with_type};
use downpour_graph::{Attrs, Result, Status};
use downpour_runtime::{Built, OpContext, Registry, parallel_for, parallel_ranges};
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

const OLD: &[DType] = crate::types::HALF_TO_DOUBLE;

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
    dilations: [usize; 3],
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
        let dilations = five_ints(attrs, "dilations", "dilations")?;
        if dilations[0] != 1 || dilations[4] != 1 {
            return invalid(
                "Current implementation does not yet support dilation rates in the batch and depth dimensions.",
            );
        }
        let Some(strides) = spatial(strides) else {
            return invalid("Spatial strides should be larger than 0.");
        };
        let Some(dilations) = spatial(dilations) else {
            return invalid("Dilated rates should be larger than 0.");
        };
        Ok(Params {
            strides,
            dilations,
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
            axes: axes(input, window, p.strides, p.dilations, &p.padding)?,
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
                    "{name}: Size of out_backprop doesn't match computed: actual = {size}, computed = {} spatial_dim: {} input: {} filter: {} output: {size} stride: {} dilation: {}",
                    a.output,
                    i + 1,
                    a.input,
                    a.window,
                    a.stride,
                    a.dilation
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
    Panels::<f64>::check(count, depth, cols, ctx.device().room())
}

/// From a window's first element to its last.
fn extent(a: &Axis) -> usize {
    a.window.saturating_sub(1) * a.dilation + a.window.min(1)
}

/// Refuses images that padding makes too large, taken as doubles.
fn check_padded(ctx: &OpContext<'_>, g: &Geometry) -> Result<()> {
    let sizes = g.axes.map(|a| {
        let windows = a.output.saturating_mul(a.stride);
        a.input.max(windows).saturating_add(extent(&a))
    });
    let dims = [g.batch, sizes[0], sizes[1], sizes[2], g.in_c.max(g.out_c)];
    let shape = Shape::checked(dims.map(|d| d as i64))?;
    ctx.check_alloc(DType::Double, &shape)
}

/// The convolution of two tensors by the attributes of a `Conv3D`.
pub(crate) fn convolve(
    ctx: &OpContext<'_>,
    attrs: &Attrs,
    x: &Tensor,
    filter: &Tensor,
) -> Result<Tensor> {
    if !FLOATS.contains(&x.dtype()) {
        return Err(Status::unimplemented(format!(
            "convolutions over three dimensions are not done in {}",
            x.dtype()
        )));
    }
    product(ctx, &Params::parse(attrs)?, x, filter)
}

fn forward(ctx: &mut OpContext<'_>, p: &Params) -> Result<()> {
    let (x, filter) = (ctx.take(0)?, ctx.take(1)?);
    let out = product(ctx, p, &x, &filter)?;
    ctx.set_output(0, out);
    Ok(())
}

fn product(ctx: &OpContext<'_>, p: &Params, x: &Tensor, filter: &Tensor) -> Result<Tensor> {
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
    let (x, filter) = (widen(x)?, widen(filter)?);
    let mut out = ctx.zeros(compute_type(dtype), &Shape::from(g.out_dims()))?;
    check_panels(ctx, 1, taps(&g.axes).len().saturating_mul(g.in_c), g.out_c)?;
    check_padded(ctx, &g)?;
    with_type!(compute_type(dtype), T in [f32, f64] => {
        run_forward::<T>(&g, x.as_slice()?, filter.as_slice()?, out.make_mut()?);
    });
    narrow(out, dtype)
}

/// Images with zeros around them, and the windows over them.
struct Padded<T> {
    data: Vec<T>,
    /// Sizes of one image, with its padding.
    dims: [usize; 3],
    channels: usize,
}

impl<T: Element> Padded<T> {
    /// `images` of sizes `dims` in images of sizes `padded`, `before` away from their beginnings; what does not fit is left out.
    fn new(
        images: &[T],
        channels: usize,
        dims: [usize; 3],
        before: [usize; 3],
        padded: [usize; 3],
    ) -> Padded<T> {
        let (size, count) = (voxel_count(dims) * channels, voxel_count(padded) * channels);
        let batch = images.len().checked_div(size).unwrap_or(0);
        let mut data = vec![T::default(); batch * count];
        let fits: [usize; 3] =
            std::array::from_fn(|i| dims[i].min(padded[i].saturating_sub(before[i])));
        let line = fits[2] * channels;
        let both = images.chunks_exact(size.max(1));
        for (from, to) in both.zip(data.chunks_exact_mut(count.max(1))) {
            for z in 0..fits[0] {
                for y in 0..fits[1] {
                    let from = &from[(z * dims[1] + y) * dims[2] * channels..][..line];
                    let at = (z + before[0]) * padded[1] + y + before[1];
                    let at = (at * padded[2] + before[2]) * channels;
                    to[at..at + line].copy_from_slice(from);
                }
            }
        }
        Padded {
            data,
            dims: padded,
            channels,
        }
    }

    /// Elements of one image.
    fn size(&self) -> usize {
        voxel_count(self.dims) * self.channels
    }

    /// Where in an image a voxel begins.
    fn at(&self, [z, y, x]: [usize; 3]) -> usize {
        ((z * self.dims[1] + y) * self.dims[2] + x) * self.channels
    }
}

fn voxel_count(dims: [usize; 3]) -> usize {
    dims.iter().product()
}

/// Adds to `out`, planes of sizes `sizes` of every image, the products of all windows with the filter in `panels`.
fn slide<T: Element + Tiled>(
    images: &Padded<T>,
    (window, dilations): ([usize; 3], [usize; 3]),
    strides: [usize; 3],
    sizes: [usize; 3],
    (panels, cols): (&Panels<T>, usize),
    out: &mut [T],
) {
    let plane = sizes[1] * sizes[2] * cols;
    if plane == 0 || voxel_count(window) * images.channels == 0 {
        return;
    }
    // Taps that lie side by side are one run.
    let (run, runs) = match dilations[2] {
        1 => (window[2], 1),
        _ => (1, window[2]),
    };
    let len = run * images.channels;
    let lines = (0..window[0]).flat_map(|z| (0..window[1]).map(move |y| [z, y]));
    let starts = lines.flat_map(|[z, y]| (0..runs).map(move |x| [z, y, x]));
    let place = |tap: [usize; 3]| images.at(std::array::from_fn(|i| tap[i] * dilations[i]));
    let segments = in_turn(starts.map(place), len);
    let places = (0..sizes[1]).flat_map(|y| (0..sizes[2]).map(move |x| [y, x]));
    let rows: Vec<usize> = places
        .map(|[y, x]| images.at([0, y * strides[1], x * strides[2]]))
        .collect();
    let out_rows: Vec<usize> = (0..rows.len()).map(|i| i * cols).collect();
    parallel_ranges(out, plane, 1, |first, planes| {
        for (i, out) in planes.chunks_exact_mut(plane).enumerate() {
            let (image, z) = ((first + i) / sizes[0], (first + i) % sizes[0]);
            let start = image * images.size() + images.at([z * strides[0], 0, 0]);
            let sweep = Sweep {
                a: &images.data[start..(image + 1) * images.size()],
                rows: &rows,
                segments: &segments,
                len,
                step: 1,
                b: &panels.data,
                stride: T::kernel().width,
                panel: panels.panel,
                cols,
                out_rows: &out_rows,
            };
            T::kernel().add(&sweep, out);
        }
    });
}

/// The input with the padding of `g`.
fn padded_input<T: Element>(g: &Geometry, x: &[T]) -> Padded<T> {
    let reach = |a: &Axis| a.output.saturating_sub(1) * a.stride + extent(a);
    let (dims, before) = (g.axes.map(|a| a.input), g.axes.map(|a| a.before));
    Padded::new(x, g.in_c, dims, before, g.axes.map(|a| reach(&a)))
}

fn run_forward<T: Element + Tiled>(g: &Geometry, x: &[T], filter: &[T], out: &mut [T]) {
    let images = padded_input(g, x);
    let window = g.axes.map(|a| a.window);
    let depth = voxel_count(window) * g.in_c;
    let panels = Panels::rows(1, depth, g.out_c, |_, k| {
        &filter[k * g.out_c..(k + 1) * g.out_c]
    });
    let (strides, sizes) = (g.axes.map(|a| a.stride), g.axes.map(|a| a.output));
    let window = (window, g.axes.map(|a| a.dilation));
    slide(&images, window, strides, sizes, (&panels, g.out_c), out);
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
    check_padded(ctx, &g)?;
    let mut out = ctx.zeros(compute_type(dtype), &shape)?;
    with_type!(compute_type(dtype), T in [f32, f64] => {
        run_input::<T>(&g, dy.as_slice()?, filter.as_slice()?, out.make_mut()?);
    });
    ctx.set_output(0, narrow(out, dtype)?);
    Ok(())
}

/// Without strides the gradient of the input is a convolution of the output's with the filter turned around.
fn slide_back<T: Element + Tiled>(g: &Geometry, dy: &[T], filter: &[T], out: &mut [T]) {
    let (dims, sizes) = (g.axes.map(|a| a.output), g.axes.map(|a| a.input));
    let before = g.axes.map(|a| extent(&a) - 1 - a.before);
    let padded = g.axes.map(|a| (a.input + extent(&a)).saturating_sub(1));
    let images = Padded::new(dy, g.out_c, dims, before, padded);
    let window = g.axes.map(|a| a.window);
    let (taps, size) = (voxel_count(window), g.in_c * g.out_c);
    let panels = Panels::columns([1, taps], g.out_c, g.in_c, g.out_c, |_, t| {
        &filter[(taps - 1 - t) * size..(taps - t) * size]
    });
    let window = (window, g.axes.map(|a| a.dilation));
    slide(&images, window, [1; 3], sizes, (&panels, g.in_c), out);
}

fn run_input<T: Element + Tiled>(g: &Geometry, dy: &[T], filter: &[T], out: &mut [T]) {
    if g.axes.iter().all(|a| a.stride == 1 && a.before < extent(a)) {
        slide_back(g, dy, filter, out);
        return;
    }
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
    check_padded(ctx, &g)?;
    let mut out = ctx.zeros(compute_type(dtype), &shape)?;
    with_type!(compute_type(dtype), T in [f32, f64] => {
        run_filter::<T>(&g, x.as_slice()?, dy.as_slice()?, out.make_mut()?);
    });
    ctx.set_output(0, narrow(out, dtype)?);
    Ok(())
}

/// Windows of the output that are packed together.
const PACKED: usize = 512;

fn run_filter<T: Element + Tiled>(g: &Geometry, x: &[T], dy: &[T], out: &mut [T]) {
    let (images, sizes) = (padded_input(g, x), g.axes.map(|a| a.output));
    let (window, strides) = (g.axes.map(|a| a.window), g.axes.map(|a| a.stride));
    let (line, lines) = (sizes[2], sizes[0] * sizes[1]);
    if line * lines * g.out_c == 0 || images.data.is_empty() {
        return;
    }
    let starts: Vec<usize> = (0..lines)
        .map(|i| images.at([i / sizes[1] * strides[0], i % sizes[1] * strides[1], 0]))
        .collect();
    // A row of the filter is one channel at one tap.
    let taps = taps(&g.axes);
    let place = |tap: [usize; 3]| images.at(std::array::from_fn(|i| tap[i] * g.axes[i].dilation));
    let row = |i: usize| place(taps[i / g.in_c]) + i % g.in_c;
    let rows: Vec<usize> = (0..voxel_count(window) * g.in_c).map(row).collect();
    let some = (PACKED / line).max(1);
    for n in 0..g.batch {
        let dy = &dy[n * lines * line * g.out_c..][..lines * line * g.out_c];
        let packed: Vec<(_, Panels<T>)> = starts
            .chunks(some)
            .zip(dy.chunks(some * line * g.out_c))
            .map(|(starts, dy)| {
                let panels = Panels::rows(1, starts.len() * line, g.out_c, |_, k| {
                    &dy[k * g.out_c..(k + 1) * g.out_c]
                });
                (in_turn(starts.iter().copied(), line), panels)
            })
            .collect();
        let image = &images.data[n * images.size()..(n + 1) * images.size()];
        // Each row belongs to one thread, which goes over the windows in order.
        parallel_ranges(out, g.out_c, T::kernel().rows, |first, out| {
            let count = out.len() / g.out_c;
            let out_rows: Vec<usize> = (0..count).map(|i| i * g.out_c).collect();
            for (segments, panels) in &packed {
                let sweep = Sweep {
                    a: image,
                    rows: &rows[first..first + count],
                    segments,
                    len: line,
                    step: strides[2] * g.in_c,
                    b: &panels.data,
                    stride: T::kernel().width,
                    panel: panels.panel,
                    cols: g.out_c,
                    out_rows: &out_rows,
                };
                T::kernel().add(&sweep, out);
            }
        });
    }
}
