//! Convolutions and pools over three spatial dimensions. They are rarer than those over two, so
//! they are kept simple: one product or one pass for each tap of the window.

mod conv;
mod pool;

pub(crate) use conv::convolve;

use crate::nn::window::{Axis, Format, Padding};
use downpour_graph::{Attrs, Result, Status};
use downpour_runtime::Registry;
use downpour_tensor::Tensor;

pub(crate) fn register(r: &mut Registry) {
    conv::register(r);
    pool::register(r);
}

/// Five dimensions, or the error `text`.
fn five(dims: &[usize], text: &str) -> Result<[usize; 5]> {
    <[usize; 5]>::try_from(dims).map_err(|_| Status::invalid_argument(text))
}

/// A list attribute of five values.
fn five_ints(attrs: &Attrs, name: &str, what: &str) -> Result<[i64; 5]> {
    <[i64; 5]>::try_from(attrs.ints(name)?).map_err(|_| {
        Status::invalid_argument(format!(
            "Sliding window {what} field must specify 5 dimensions"
        ))
    })
}

fn padding(attrs: &Attrs) -> Result<Padding> {
    Padding::parse(attrs, Format::Nhwc)
}

/// The three axes of a window that slides over `input` (`[n, d, h, w, c]`).
fn axes(
    input: [usize; 5],
    window: [usize; 3],
    strides: [usize; 3],
    dilations: [usize; 3],
    padding: &Padding,
) -> Result<[Axis; 3]> {
    let axis = |i: usize| {
        let (size, dilation) = (input[i + 1], dilations[i]);
        Axis::new(size, window[i], strides[i], dilation, padding, i)
    };
    Ok([axis(0)?, axis(1)?, axis(2)?])
}

/// Positive strides over space alone.
fn spatial(list: [i64; 5]) -> Option<[usize; 3]> {
    let one = |v: i64| usize::try_from(v).ok().filter(|&v| v > 0);
    Some([one(list[1])?, one(list[2])?, one(list[3])?])
}

/// Windows along an axis in which the element `k` behind a window's beginning meets the input.
fn meeting(a: &Axis, k: usize) -> std::ops::Range<usize> {
    let short = a.before.saturating_sub(k);
    let first = short.div_ceil(a.stride);
    let room = (a.input + a.before).saturating_sub(k);
    let end = room.div_ceil(a.stride).min(a.output);
    first.min(end)..end
}

/// Calls `f(window, place in the input)` for all windows of an image in which a tap meets it.
fn each_meeting(axes: &[Axis; 3], tap: [usize; 3], mut f: impl FnMut(usize, usize)) {
    let [d, h, w] = axes;
    let tap: [usize; 3] = std::array::from_fn(|i| tap[i] * axes[i].dilation);
    let place = |a: &Axis, o: usize, k: usize| o * a.stride + k - a.before;
    for z in meeting(d, tap[0]) {
        for y in meeting(h, tap[1]) {
            for x in meeting(w, tap[2]) {
                let out = (z * h.output + y) * w.output + x;
                let (iz, iy, ix) = (
                    place(d, z, tap[0]),
                    place(h, y, tap[1]),
                    place(w, x, tap[2]),
                );
                f(out, (iz * h.input + iy) * w.input + ix);
            }
        }
    }
}

/// All taps of a window in order.
fn taps(axes: &[Axis; 3]) -> Vec<[usize; 3]> {
    let mut out = Vec::new();
    for z in 0..axes[0].window {
        for y in 0..axes[1].window {
            for x in 0..axes[2].window {
                out.push([z, y, x]);
            }
        }
    }
    out
}

/// Elements of one image without its channels, in and out.
fn voxels(axes: &[Axis; 3]) -> (usize, usize) {
    (
        axes.iter().map(|a| a.input).product(),
        axes.iter().map(|a| a.output).product(),
    )
}

/// The dimensions in an integer vector.
fn sizes(t: &Tensor, text: &str) -> Result<[usize; 5]> {
    let values = crate::args::ints(t)?;
    let dims: Option<Vec<usize>> = values.iter().map(|&v| usize::try_from(v).ok()).collect();
    match dims {
        Some(d) if t.rank() == 1 => five(&d, text),
        _ => Err(Status::invalid_argument(text)),
    }
}

#[cfg(test)]
mod tests;
