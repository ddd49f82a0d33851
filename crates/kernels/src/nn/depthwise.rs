//! `DepthwiseConv2dNative` and its gradients: each input channel has its own small filters.

use crate::args;
use crate::linalg::wide::wide_fn;
use crate::nn::float::{compute_type, narrow, widen};
use crate::nn::window::{Axis, Format, Padding};
use crate::types::{FLOATS, with_type};
use downpour_graph::{Attrs, Result, Status};
use downpour_runtime::{Built, OpContext, Registry, parallel_for, parallel_ranges};
use downpour_tensor::{Element, Shape, Tensor};
use parking_lot::Mutex;

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("DepthwiseConv2dNative", &[("T", FLOATS)], |b| {
        let p = Params::parse(b.attrs(), true)?;
        Built::costly(move |ctx| forward(ctx, &p))
    });
    r.add_typed(
        "DepthwiseConv2dNativeBackpropInput",
        &[("T", FLOATS)],
        |b| {
            let p = Params::parse(b.attrs(), false)?;
            Built::costly(move |ctx| backprop_input(ctx, &p))
        },
    );
    r.add_typed(
        "DepthwiseConv2dNativeBackpropFilter",
        &[("T", FLOATS)],
        |b| {
            let p = Params::parse(b.attrs(), false)?;
            Built::costly(move |ctx| backprop_filter(ctx, &p))
        },
    );
}

/// The attributes.
pub(crate) struct Params {
    stride: usize,
    dilations: [usize; 2],
    padding: Padding,
}

impl Params {
    /// Reads and checks the attributes.
    pub(crate) fn parse(attrs: &Attrs, forward: bool) -> Result<Params> {
        let invalid = |text: &str| Err(Status::invalid_argument(text));
        let format = Format::parse(attrs)?;
        let Ok(strides) = <[i64; 4]>::try_from(attrs.ints("strides")?) else {
            return invalid("Sliding window strides field must specify 4 dimensions");
        };
        let [n, h, w, c] = format.order(strides);
        if h != w {
            return invalid(
                "Current implementation only supports equal length strides in the row and column dimensions.",
            );
        }
        if n != 1 || c != 1 {
            return invalid(
                "Current implementation does not yet support strides in the batch and depth dimensions.",
            );
        }
        let Some(stride) = usize::try_from(h).ok().filter(|&s| s > 0) else {
            return invalid("Row and column strides should be larger than 0.");
        };
        if format == Format::Nchw {
            return Err(Status::unimplemented(
                "Depthwise convolution on CPU is only supported for NHWC format",
            ));
        }
        let mut dilations = [1; 2];
        // TensorFlow's gradients pay no attention to dilations.
        if forward {
            let list = attrs.ints("dilations")?;
            let Ok(list) = <[i64; 4]>::try_from(list) else {
                return invalid("Dilations field must specify 4 dimensions");
            };
            let [n, h, w, c] = format.order(list);
            if n != 1 || c != 1 {
                return invalid(
                    "Current implementation does not yet support dilations in the batch and depth dimensions.",
                );
            }
            for (to, d) in dilations.iter_mut().zip([h, w]) {
                let positive = usize::try_from(d).ok().filter(|&d| d > 0);
                let Some(d) = positive else {
                    return invalid("Dilated rates should be larger than 0.");
                };
                *to = d;
            }
        }
        Ok(Params {
            stride,
            dilations,
            padding: Padding::parse(attrs, format)?,
        })
    }
}

struct Geometry {
    batch: usize,
    h: Axis,
    w: Axis,
    channels: usize,
    /// Output channels for each input channel.
    multiplier: usize,
}

impl Geometry {
    fn new(p: &Params, input: [usize; 4], filter: [usize; 4]) -> Result<Geometry> {
        let axis = |i: usize| {
            let (size, dilation) = (input[i + 1], p.dilations[i]);
            Axis::new(size, filter[i], p.stride, dilation, &p.padding, i)
        };
        Ok(Geometry {
            batch: input[0],
            h: axis(0)?,
            w: axis(1)?,
            channels: input[3],
            multiplier: filter[3],
        })
    }

    fn out_channels(&self) -> usize {
        self.channels * self.multiplier
    }

    fn out_dims(&self) -> [usize; 4] {
        [
            self.batch,
            self.h.output,
            self.w.output,
            self.out_channels(),
        ]
    }

    fn image_in(&self) -> usize {
        self.h.input * self.w.input * self.channels
    }

    fn row_out(&self) -> usize {
        self.w.output * self.out_channels()
    }

    /// Calls `f(output column, tap, input column)` for all taps of output row `y` that meet input
    /// row `input`.
    #[inline(always)]
    fn taps(&self, y: usize, mut f: impl FnMut(usize, usize, usize)) {
        let first = (y * self.h.stride) as isize - self.h.before as isize;
        for ky in 0..self.h.window {
            let iy = first + (ky * self.h.dilation) as isize;
            if iy < 0 || iy >= self.h.input as isize {
                continue;
            }
            for x in 0..self.w.output {
                let left = (x * self.w.stride) as isize - self.w.before as isize;
                for kx in 0..self.w.window {
                    let ix = left + (kx * self.w.dilation) as isize;
                    if ix >= 0 && ix < self.w.input as isize {
                        let at = iy as usize * self.w.input + ix as usize;
                        f(x, ky * self.w.window + kx, at);
                    }
                }
            }
        }
    }

    fn work_per_row(&self) -> usize {
        self.row_out() * self.h.window * self.w.window
    }
}

/// The three inner loops, for float with wide vectors and for double without.
trait Loops: Element {
    fn forward_row(g: &Geometry, y: usize, image: &[Self], filter: &[Self], out: &mut [Self]);
    fn input_image(g: &Geometry, dy: &[Self], filter: &[Self], dx: &mut [Self]);
    fn filter_image(g: &Geometry, x: &[Self], dy: &[Self], df: &mut [Self]);
}

macro_rules! loops {
    ($t:ty, $forward:ident, $input:ident, $filter:ident) => {
        wide_fn! {
            fn $forward(g: &Geometry, y: usize, image: &[$t], filter: &[$t], out: &mut [$t]) {
                let (c, m) = (g.channels, g.multiplier);
                let n = c * m;
                out.fill(0.0);
                g.taps(y, |x, tap, at| {
                    let out = &mut out[x * n..(x + 1) * n];
                    let (x, f) = (&image[at * c..(at + 1) * c], &filter[tap * n..(tap + 1) * n]);
                    if m == 1 {
                        for ((o, x), f) in out.iter_mut().zip(x).zip(f) {
                            *o += *x * *f;
                        }
                    } else {
                        for ((o, f), x) in out.chunks_exact_mut(m).zip(f.chunks_exact(m)).zip(x) {
                            o.iter_mut().zip(f).for_each(|(o, f)| *o += *x * *f);
                        }
                    }
                });
            }

            fn $input(g: &Geometry, dy: &[$t], filter: &[$t], dx: &mut [$t]) {
                let (c, m) = (g.channels, g.multiplier);
                let n = c * m;
                dx.fill(0.0);
                for y in 0..g.h.output {
                    let dy = &dy[y * g.row_out()..(y + 1) * g.row_out()];
                    g.taps(y, |x, tap, at| {
                        let dx = &mut dx[at * c..(at + 1) * c];
                        let (d, f) = (&dy[x * n..(x + 1) * n], &filter[tap * n..(tap + 1) * n]);
                        if m == 1 {
                            for ((o, d), f) in dx.iter_mut().zip(d).zip(f) {
                                *o += *d * *f;
                            }
                        } else {
                            for ((o, d), f) in dx.iter_mut().zip(d.chunks_exact(m)).zip(f.chunks_exact(m)) {
                                *o += d.iter().zip(f).map(|(d, f)| *d * *f).sum::<$t>();
                            }
                        }
                    });
                }
            }

            fn $filter(g: &Geometry, x: &[$t], dy: &[$t], df: &mut [$t]) {
                let (c, m) = (g.channels, g.multiplier);
                let n = c * m;
                for y in 0..g.h.output {
                    let dy = &dy[y * g.row_out()..(y + 1) * g.row_out()];
                    g.taps(y, |ox, tap, at| {
                        let df = &mut df[tap * n..(tap + 1) * n];
                        let (x, d) = (&x[at * c..(at + 1) * c], &dy[ox * n..(ox + 1) * n]);
                        if m == 1 {
                            for ((f, x), d) in df.iter_mut().zip(x).zip(d) {
                                *f += *x * *d;
                            }
                        } else {
                            for ((f, d), x) in df.chunks_exact_mut(m).zip(d.chunks_exact(m)).zip(x) {
                                f.iter_mut().zip(d).for_each(|(f, d)| *f += *x * *d);
                            }
                        }
                    });
                }
            }
        }

        impl Loops for $t {
            fn forward_row(g: &Geometry, y: usize, image: &[$t], filter: &[$t], out: &mut [$t]) {
                $forward(g, y, image, filter, out);
            }
            fn input_image(g: &Geometry, dy: &[$t], filter: &[$t], dx: &mut [$t]) {
                $input(g, dy, filter, dx);
            }
            fn filter_image(g: &Geometry, x: &[$t], dy: &[$t], df: &mut [$t]) {
                $filter(g, x, dy, df);
            }
        }
    };
}

loops!(f32, forward_f32, input_f32, filter_f32);
loops!(f64, forward_f64, input_f64, filter_f64);

fn four(dims: &[usize], text: impl FnOnce() -> String) -> Result<[usize; 4]> {
    <[usize; 4]>::try_from(dims).map_err(|_| Status::invalid_argument(text()))
}

fn forward(ctx: &mut OpContext<'_>, p: &Params) -> Result<()> {
    let (x, filter) = (ctx.take(0)?, ctx.take(1)?);
    let out = convolve(ctx, p, &x, &filter)?;
    ctx.set_output(0, out);
    Ok(())
}

/// The convolution of two tensors.
pub(crate) fn convolve(
    ctx: &OpContext<'_>,
    p: &Params,
    x: &Tensor,
    filter: &Tensor,
) -> Result<Tensor> {
    let input = four(x.dims(), || {
        format!("input must be 4-dimensional{}", x.shape())
    })?;
    let f = four(filter.dims(), || {
        format!("filter must be 4-dimensional: {}", filter.shape())
    })?;
    if input[3] != f[2] {
        return Err(Status::invalid_argument(format!(
            "input and filter must have the same depth: {} vs {}",
            input[3], f[2]
        )));
    }
    let g = Geometry::new(p, input, f)?;
    let dtype = x.dtype();
    let (x, filter) = (widen(x)?, widen(filter)?);
    let mut out = ctx.zeros(compute_type(dtype), &Shape::from(g.out_dims()))?;
    if out.num_elements() != 0 {
        with_type!(compute_type(dtype), T in [f32, f64] => {
            let (x, filter) = (x.as_slice::<T>()?, filter.as_slice::<T>()?);
            let grain = (1 << 16) / g.work_per_row().max(1) + 1;
            parallel_ranges(out.make_mut::<T>()?, g.row_out(), grain, |first, rows| {
                for (i, row) in rows.chunks_exact_mut(g.row_out()).enumerate() {
                    let (n, y) = ((first + i) / g.h.output, (first + i) % g.h.output);
                    let image = &x[n * g.image_in()..(n + 1) * g.image_in()];
                    T::forward_row(&g, y, image, filter, row);
                }
            });
        });
    }
    narrow(out, dtype)
}

/// The dimensions in a vector input.
fn sizes(t: &Tensor, op: &str, what: &str) -> Result<Vec<usize>> {
    if t.rank() != 1 {
        return Err(Status::invalid_argument(format!(
            "{op}: {what} input must be 1-dim, not {}",
            t.rank()
        )));
    }
    args::ints(t)?
        .iter()
        .enumerate()
        .map(|(i, &v)| {
            usize::try_from(v).map_err(|_| {
                Status::invalid_argument(format!("Dimension {i} of {what} must be >= 0"))
            })
        })
        .collect()
}

/// Checks the operands of a gradient.
fn check(
    p: &Params,
    name: &str,
    input: [usize; 4],
    filter: [usize; 4],
    dy: [usize; 4],
) -> Result<Geometry> {
    let invalid = |text: String| Err(Status::invalid_argument(format!("{name}: {text}")));
    if input[0] != dy[0] {
        return invalid("input and out_backprop must have the same batch size".into());
    }
    if input[3] != filter[2] {
        return invalid("input and filter must have the same in_depth".into());
    }
    Shape::checked(input.iter().map(|&d| d as i64))?;
    Shape::checked(filter.iter().map(|&d| d as i64))?;
    let g = Geometry::new(p, input, filter)?;
    if g.out_channels() != dy[3] {
        return invalid("depth_multiplier * in_depth not equal to out_depth".into());
    }
    for (what, axis, size) in [("rows", &g.h, dy[1]), ("cols", &g.w, dy[2])] {
        if axis.output != size {
            return invalid(format!(
                "Number of {what} of out_backprop doesn't match computed: actual = {size}, computed = {}",
                axis.output
            ));
        }
    }
    Ok(g)
}

fn backprop_input(ctx: &mut OpContext<'_>, p: &Params) -> Result<()> {
    let name = "DepthwiseConv2DBackpropInput";
    let (size, filter, dy) = (ctx.take(0)?, ctx.take(1)?, ctx.take(2)?);
    let rank = |what: &str| format!("{name}: {what} must be 4-dimensional");
    let input = four(&sizes(&size, "Conv2DBackpropInput", "input_sizes")?, || {
        rank("input")
    })?;
    let f = four(filter.dims(), || rank("filter"))?;
    let d = four(dy.dims(), || rank("out_backprop"))?;
    let g = check(p, name, input, f, d)?;
    let dtype = dy.dtype();
    let (filter, dy) = (widen(&filter)?, widen(&dy)?);
    let mut out = ctx.zeros(compute_type(dtype), &Shape::from(input))?;
    if out.num_elements() != 0 {
        with_type!(compute_type(dtype), T in [f32, f64] => {
            let (filter, dy) = (filter.as_slice::<T>()?, dy.as_slice::<T>()?);
            let image = g.h.output * g.row_out();
            parallel_ranges(out.make_mut::<T>()?, g.image_in(), 1, |first, images| {
                for (i, dx) in images.chunks_exact_mut(g.image_in()).enumerate() {
                    let n = first + i;
                    T::input_image(&g, &dy[n * image..(n + 1) * image], filter, dx);
                }
            });
        });
    }
    ctx.set_output(0, narrow(out, dtype)?);
    Ok(())
}

fn backprop_filter(ctx: &mut OpContext<'_>, p: &Params) -> Result<()> {
    let name = "DepthwiseConv2DBackpropFilter";
    let (x, size, dy) = (ctx.take(0)?, ctx.take(1)?, ctx.take(2)?);
    let rank = |what: &str| format!("{name}: {what} must be 4-dimensional");
    let f = four(
        &sizes(&size, "Conv2DBackpropFilter", "filter_sizes")?,
        || rank("filter"),
    )?;
    let input = four(x.dims(), || rank("input"))?;
    let d = four(dy.dims(), || rank("out_backprop"))?;
    let g = check(p, name, input, f, d)?;
    let dtype = dy.dtype();
    let (x, dy) = (widen(&x)?, widen(&dy)?);
    let mut out = ctx.zeros(compute_type(dtype), &Shape::from(f))?;
    if out.num_elements() != 0 {
        with_type!(compute_type(dtype), T in [f32, f64] => {
            let (x, dy) = (x.as_slice::<T>()?, dy.as_slice::<T>()?);
            let (a, b) = (g.image_in(), g.h.output * g.row_out());
            // Parts depend on the batch alone and are added in order.
            let parts = g.batch.min(8);
            let size = out.num_elements();
            let sums: Vec<Mutex<Vec<T>>> = (0..parts).map(|_| Mutex::default()).collect();
            parallel_for(parts, 1, |range| {
                for part in range {
                    let mut own = vec![T::default(); size];
                    for n in g.batch * part / parts..g.batch * (part + 1) / parts {
                        T::filter_image(&g, &x[n * a..(n + 1) * a], &dy[n * b..(n + 1) * b], &mut own);
                    }
                    *sums[part].lock() = own;
                }
            });
            let total = out.make_mut::<T>()?;
            for own in sums {
                total.iter_mut().zip(own.into_inner()).for_each(|(t, v)| *t += v);
            }
        });
    }
    ctx.set_output(0, narrow(out, dtype)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::run_op;
    use downpour_graph::AttrValue;
    use downpour_tensor::{DType, Tensor};

    fn numbers(dims: [usize; 4], seed: usize) -> Tensor {
        let n = dims.iter().product();
        let v = (0..n).map(|i| ((i * 5 + seed) % 7) as f32 - 3.0).collect();
        Tensor::from_vec(v, dims).unwrap()
    }

    fn dilated(stride: i64, rate: i64) -> Vec<(&'static str, AttrValue)> {
        let mut all = attrs(stride);
        all.push(("dilations", vec![1, rate, rate, 1].into()));
        all
    }

    fn attrs(stride: i64) -> Vec<(&'static str, AttrValue)> {
        vec![
            ("T", DType::Float.into()),
            ("strides", vec![1, stride, stride, 1].into()),
            ("padding", "SAME".into()),
        ]
    }

    // A depthwise convolution is a convolution with one group per channel.
    #[test]
    fn it_agrees_with_a_grouped_convolution() {
        for (m, stride, rate) in [(1, 1, 1), (3, 2, 1), (2, 1, 2), (1, 1, 3)] {
            let attrs = |stride| dilated(stride, rate);
            let (c, f) = (5, [3, 2, 5, m]);
            let (x, filter) = (numbers([2, 7, 6, c], 1), numbers(f, 2));
            let grouped = filter.clone().reshaped([3, 2, 1, c * m]).unwrap();
            let want = run_op("Conv2D", vec![x.clone(), grouped], &attrs(stride)).unwrap();
            let got = run_op("DepthwiseConv2dNative", vec![x, filter], &attrs(stride)).unwrap();
            assert_eq!(
                got[0].as_slice::<f32>().unwrap(),
                want[0].as_slice::<f32>().unwrap()
            );
        }
    }

    // <dy, conv(x, f)> is linear in x and in f, so both gradients are dual to the convolution.
    #[test]
    fn gradients_are_dual_to_the_convolution() {
        for (m, stride) in [(1, 1), (2, 2)] {
            let (dims, f) = ([3, 5, 6, 4], [3, 3, 4, m]);
            let (x, filter) = (numbers(dims, 1), numbers(f, 2));
            let y = run_op(
                "DepthwiseConv2dNative",
                vec![x.clone(), filter.clone()],
                &attrs(stride),
            );
            let y = y.unwrap().remove(0);
            let out = <[usize; 4]>::try_from(y.dims()).unwrap();
            let dy = numbers(out, 3);
            let size = |d: [usize; 4]| Tensor::vector(d.map(|v| v as i32).to_vec());
            let dot = |a: &Tensor, b: &Tensor| -> f32 {
                let (a, b) = (a.as_slice::<f32>().unwrap(), b.as_slice::<f32>().unwrap());
                a.iter().zip(b).map(|(a, b)| a * b).sum()
            };
            let inputs = vec![size(dims), filter.clone(), dy.clone()];
            let dx = run_op("DepthwiseConv2dNativeBackpropInput", inputs, &attrs(stride)).unwrap();
            let inputs = vec![x.clone(), size(f), dy.clone()];
            let df = run_op(
                "DepthwiseConv2dNativeBackpropFilter",
                inputs,
                &attrs(stride),
            )
            .unwrap();
            let want = dot(&dy, &y);
            assert_eq!(dot(&dx[0], &x), want);
            assert_eq!(dot(&df[0], &filter), want);
        }
    }

    #[test]
    fn wrong_shapes_are_refused_in_tensorflows_words() {
        let e = run_op(
            "DepthwiseConv2dNative",
            vec![numbers([1, 3, 3, 3], 0), numbers([2, 2, 2, 3], 0)],
            &attrs(1),
        );
        assert!(
            e.unwrap_err()
                .message
                .starts_with("input and filter must have the same depth: 3 vs 2")
        );
    }
}
