//! What a convolution's attributes and operand shapes say, checked as TensorFlow checks them.

use crate::nn::window::{Axis, Format, Padding};
use downpour_graph::{Attrs, Result, Status};
use downpour_tensor::DType;

/// The attributes.
#[derive(Clone)]
pub(crate) struct Params {
    /// Element type.
    pub(crate) dtype: DType,
    /// Edges.
    pub(crate) padding: Padding,
    strides: [usize; 2],
    dilations: [usize; 2],
}

/// Which convolution op the parameters are for: their texts and limits differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    /// Conv2D.
    Forward,
    /// Conv2DBackpropInput.
    Input,
    /// Conv2DBackpropFilter.
    Filter,
}

impl Direction {
    fn name(self) -> &'static str {
        match self {
            Direction::Forward => "Conv2D",
            Direction::Input => "Conv2DCustomBackpropInput",
            Direction::Filter => "Conv2DCustomBackpropFilter",
        }
    }
}

impl Params {
    /// Reads and checks the attributes.
    pub(crate) fn parse(attrs: &Attrs, direction: Direction) -> Result<Params> {
        let dtype = attrs.dtype("T")?;
        let format = Format::parse(attrs)?;
        let invalid = |text: &str| Err(Status::invalid_argument(text));
        let four = |name: &str, text: &str| -> Result<[i64; 4]> {
            let list = attrs.ints(name)?;
            <[i64; 4]>::try_from(list)
                .map(|v| format.order(v))
                .map_err(|_| {
                    Status::invalid_argument(format!(
                        "Sliding window {text} field must specify 4 dimensions"
                    ))
                })
        };
        let [sn, sh, sw, sc] = four("strides", "strides")?;
        let [dn, dh, dw, dc] = match attrs.find("dilations") {
            Some(_) => four("dilations", "dilations")?,
            None => [1; 4],
        };
        if sn != 1 || sc != 1 {
            return Err(Status::unimplemented(
                "Current implementation does not yet support strides in the batch and depth dimensions.",
            ));
        }
        if dn != 1 || dc != 1 {
            return Err(Status::unimplemented(
                "Current implementation does not yet support dilations in the batch and depth dimensions.",
            ));
        }
        if sh <= 0 || sw <= 0 {
            return invalid("Row and column strides should be larger than 0.");
        }
        if dh <= 0 || dw <= 0 {
            return invalid("Dilated rates should be larger than 0.");
        }
        if format == Format::Nchw {
            return match direction {
                Direction::Forward => Err(Status::unimplemented(format!(
                    "The Conv2D op currently only supports the NHWC tensor format on the CPU. The op was given the format: {}",
                    format.name()
                ))),
                _ => invalid(&format!("{}Op only supports NHWC.", direction.name())),
            };
        }
        Ok(Params {
            dtype,
            padding: Padding::parse(attrs, format)?,
            strides: [sh as usize, sw as usize],
            dilations: [dh as usize, dw as usize],
        })
    }
}

/// All sizes of one convolution, channels last.
#[derive(Clone, Debug)]
pub(crate) struct Geometry {
    /// Images.
    pub(crate) batch: usize,
    /// Height.
    pub(crate) h: Axis,
    /// Width.
    pub(crate) w: Axis,
    /// Channels of the input.
    pub(crate) in_c: usize,
    /// Channels of the output.
    pub(crate) out_c: usize,
    /// Groups: each output channel sees `in_c / groups` input channels.
    pub(crate) groups: usize,
}

impl Geometry {
    /// Checks input (`[n, h, w, c]`) against filter (`[h, w, in, out]`).
    pub(crate) fn new(p: &Params, input: [usize; 4], filter: [usize; 4]) -> Result<Geometry> {
        let [batch, ih, iw, in_c] = input;
        let [fh, fw, fc, out_c] = filter;
        let invalid = |text: String| Err(Status::invalid_argument(text));
        if fc == 0 {
            return invalid("filter depth must be stricly positive, got 0".into());
        }
        if !in_c.is_multiple_of(fc) {
            return invalid(format!(
                "input depth must be evenly divisible by filter depth: {in_c} vs {fc}"
            ));
        }
        let groups = (in_c / fc).max(1);
        if !out_c.is_multiple_of(groups) {
            return invalid(format!(
                "output depth must be evenly divisible by number of groups: {out_c} vs {groups}"
            ));
        }
        Ok(Geometry {
            batch,
            h: Axis::new(ih, fh, p.strides[0], p.dilations[0], &p.padding, 0)?,
            w: Axis::new(iw, fw, p.strides[1], p.dilations[1], &p.padding, 1)?,
            in_c,
            out_c,
            groups,
        })
    }

    /// Checks the gradient of the output (`[n, h, w, c]`) against the other two.
    pub(crate) fn check_backprop(&self, direction: Direction, dy: [usize; 4]) -> Result<()> {
        let name = direction.name();
        let invalid = |text: String| Err(Status::invalid_argument(format!("{name}: {text}")));
        if dy[0] != self.batch {
            return invalid(format!(
                "input and out_backprop must have the same batch size. Input batch: {}, outbackprop batch: {}, batch_dim: 0",
                self.batch, dy[0]
            ));
        }
        if dy[3] != self.out_c {
            return invalid("filter and out_backprop must have the same out_depth".into());
        }
        for (i, (axis, &size)) in [&self.h, &self.w].into_iter().zip(&dy[1..3]).enumerate() {
            if axis.output != size {
                let dim = i + 1;
                return invalid(format!(
                    "Size of out_backprop doesn't match computed: actual = {size}, computed = {} spatial_dim: {dim} input: {} filter: {} output: {size} stride: {} dilation: {}",
                    axis.output, axis.input, axis.window, axis.stride, axis.dilation
                ));
            }
        }
        Ok(())
    }

    /// Multiplications of the whole convolution.
    pub(crate) fn work(&self) -> usize {
        [
            self.batch,
            self.h.output,
            self.w.output,
            self.out_c,
            self.taps(),
            self.in_c / self.groups,
        ]
        .iter()
        .fold(1usize, |p, &d| p.saturating_mul(d))
    }

    /// Positions of the filter.
    pub(crate) fn taps(&self) -> usize {
        self.h.window * self.w.window
    }

    /// Input channels that one output channel sees.
    pub(crate) fn group_in(&self) -> usize {
        self.in_c / self.groups
    }

    /// Output channels of a group.
    pub(crate) fn group_out(&self) -> usize {
        self.out_c / self.groups
    }
}
