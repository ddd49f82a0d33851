//! Pools: the window's attributes and TensorFlow's checks of them, shared by the maximum and the
//! average in the files beside this one.

mod argmax;
mod average;
mod fractional;
mod maximum;

use crate::args;
use crate::nn::window::{Axis, Format, Padding};
use downpour_graph::{Attrs, Result, Status};
use downpour_runtime::Registry;
use downpour_tensor::Tensor;

pub(crate) fn register(r: &mut Registry) {
    argmax::register(r);
    average::register(r);
    fractional::register(r);
    maximum::register(r);
}

/// A pool's attributes (or the inputs that stand for them), in the order batch, height, width,
/// channels.
#[derive(Clone)]
pub(crate) struct Params {
    pub(crate) format: Format,
    pub(crate) padding: Padding,
    pub(crate) window: [i64; 4],
    pub(crate) strides: [i64; 4],
}

impl Params {
    /// Reads everything from attributes.
    pub(crate) fn parse(attrs: &Attrs) -> Result<Params> {
        let (ksize, strides) = (attrs.ints("ksize")?, attrs.ints("strides")?);
        Params::new(attrs, ksize, strides)
    }

    /// Takes window and strides from elsewhere.
    pub(crate) fn new(attrs: &Attrs, ksize: &[i64], strides: &[i64]) -> Result<Params> {
        let invalid = |text: &str| Err(Status::invalid_argument(text));
        let format = Format::parse(attrs)?;
        let Ok(window) = <[i64; 4]>::try_from(ksize) else {
            return invalid("Sliding window ksize field must specify 4 dimensions");
        };
        let Ok(stride) = <[i64; 4]>::try_from(strides) else {
            return invalid("Sliding window stride field must specify 4 dimensions");
        };
        if window.iter().any(|&k| k <= 0) {
            let list = |v: &[i64; 4]| v.map(|k| k.to_string()).join(",");
            return invalid(&format!(
                "Sliding window ksize must be positive. The specified or inferred ksize is: {}",
                list(&window)
            ));
        }
        if stride.iter().any(|&s| s <= 0) {
            return invalid("Sliding window stride must be positive");
        }
        let (window, strides) = (format.order(window), format.order(stride));
        if window[0] != 1 || strides[0] != 1 {
            return Err(Status::unimplemented(
                "Pooling is not yet supported on the batch dimension.",
            ));
        }
        Ok(Params {
            format,
            padding: Padding::parse(attrs, format)?,
            window,
            strides,
        })
    }

    /// Reads window and strides from inputs `first` and `first + 1`.
    pub(crate) fn from_inputs(attrs: &Attrs, ksize: &Tensor, strides: &Tensor) -> Result<Params> {
        let (k, s) = (args::ints(ksize)?, args::ints(strides)?);
        let invalid = |text: &str| Err(Status::invalid_argument(text));
        if ksize.rank() != 1 || k.len() != 4 {
            return invalid("Sliding window ksize field must specify 4 dimensions");
        }
        if strides.rank() != 1 || s.len() != 4 {
            return invalid("Sliding window stride field must specify 4 dimensions");
        }
        if k.iter().any(|&k| k <= 0) {
            return invalid("Sliding window ksize must be positive.");
        }
        if s.iter().any(|&s| s <= 0) {
            return invalid("Sliding window stride must be positive.");
        }
        Params::new(attrs, &k, &s)
    }

    /// Refuses channels-first data, which TensorFlow pools on GPUs only.
    pub(crate) fn check_format(&self, op: &str) -> Result<()> {
        if self.format == Format::Nchw {
            return Err(Status::invalid_argument(format!(
                "Default {op} only supports NHWC on device type CPU"
            )));
        }
        Ok(())
    }

    /// The sizes for an input of this shape (`[n, h, w, c]`).
    pub(crate) fn geometry(&self, input: [usize; 4]) -> Result<Geometry> {
        if let Padding::Explicit(p) = &self.padding {
            let names = [["Top", "Bottom"], ["Left", "Right"]];
            for i in 0..2 {
                let window = self.window[i + 1];
                for (side, pad) in [p[i].0, p[i].1].into_iter().enumerate() {
                    if pad as i64 >= window {
                        return Err(Status::invalid_argument(format!(
                            "{} padding {pad} needs to be smaller than the window size {window}",
                            names[i][side]
                        )));
                    }
                }
            }
        }
        let axis = |i: usize| {
            Axis::new(
                input[i + 1],
                self.window[i + 1] as usize,
                self.strides[i + 1] as usize,
                1,
                &self.padding,
                i,
            )
        };
        Ok(Geometry {
            batch: input[0],
            h: axis(0)?,
            w: axis(1)?,
            channels: input[3],
        })
    }
}

/// The sizes of one pool over height and width.
#[derive(Clone, Debug)]
pub(crate) struct Geometry {
    pub(crate) batch: usize,
    pub(crate) h: Axis,
    pub(crate) w: Axis,
    pub(crate) channels: usize,
}

impl Geometry {
    /// Elements of one input image.
    pub(crate) fn image_in(&self) -> usize {
        self.h.input * self.w.input * self.channels
    }

    /// Elements of one output image.
    pub(crate) fn image_out(&self) -> usize {
        self.h.output * self.w.output * self.channels
    }

    /// Shape of the output.
    pub(crate) fn out_dims(&self) -> [usize; 4] {
        [self.batch, self.h.output, self.w.output, self.channels]
    }

    /// Images that are worth a thread together.
    pub(crate) fn grain(&self) -> usize {
        (32 << 10) / (self.image_in() + self.image_out()).max(1) + 1
    }

    /// Whether windows lie side by side, two by two, and cover the input exactly.
    pub(crate) fn is_quarters(&self) -> bool {
        let two =
            |a: &Axis| a.window == 2 && a.stride == 2 && a.before == 0 && a.output * 2 == a.input;
        two(&self.h) && two(&self.w)
    }

    /// Calls `f(window index, window's rows, window's columns)` for every window of an image.
    #[inline(always)]
    pub(crate) fn windows(
        &self,
        mut f: impl FnMut(usize, std::ops::Range<usize>, std::ops::Range<usize>),
    ) {
        for y in 0..self.h.output {
            let (y0, y1) = self.h.span(y);
            for x in 0..self.w.output {
                let (x0, x1) = self.w.span(x);
                f(y * self.w.output + x, y0..y1.max(y0), x0..x1.max(x0));
            }
        }
    }
}

/// Four dimensions, or the error `text`.
pub(crate) fn four(t: &Tensor, text: &str) -> Result<[usize; 4]> {
    <[usize; 4]>::try_from(t.dims()).map_err(|_| Status::invalid_argument(text))
}

#[cfg(test)]
mod tests;
