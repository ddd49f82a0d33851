//! Sliding windows: data formats, padding, and the sizes that follow from them, with
//! TensorFlow's checks. Convolutions and pools share this.

use downpour_graph::{Attrs, Result, Status};
use downpour_tensor::Tensor;

/// Where the channels are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Format {
    /// Channels last.
    Nhwc,
    /// Channels after the batch.
    Nchw,
}

impl Format {
    /// Reads the `data_format` attribute.
    pub(crate) fn parse(attrs: &Attrs) -> Result<Format> {
        match attrs.find("data_format") {
            None => Ok(Format::Nhwc),
            Some(_) => match attrs.str("data_format")? {
                "NHWC" | "NDHWC" => Ok(Format::Nhwc),
                "NCHW" | "NCDHW" => Ok(Format::Nchw),
                _ => Err(Status::invalid_argument("Invalid data format")),
            },
        }
    }

    /// The name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Format::Nhwc => "NHWC",
            Format::Nchw => "NCHW",
        }
    }

    /// `[batch, height, width, channels]` of a list in this format's order.
    pub(crate) fn order<T: Copy>(self, v: [T; 4]) -> [T; 4] {
        match self {
            Format::Nhwc => v,
            Format::Nchw => [v[0], v[2], v[3], v[1]],
        }
    }
}

/// How the edges are treated.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Padding {
    /// Only whole windows.
    Valid,
    /// As many windows as there are strides in the input.
    Same,
    /// `(before, after)` for height and width.
    Explicit([(usize, usize); 2]),
}

impl Padding {
    /// Reads `padding` and, with EXPLICIT, `explicit_paddings`.
    pub(crate) fn parse(attrs: &Attrs, format: Format) -> Result<Padding> {
        match attrs.str("padding")? {
            "VALID" => Ok(Padding::Valid),
            "SAME" => Ok(Padding::Same),
            _ => {
                let list = attrs.ints("explicit_paddings")?;
                let bad = |text: String| Err(Status::invalid_argument(text));
                if list.len() != 8 {
                    return bad(format!(
                        "explicit_paddings attribute must contain 8 values, but got: {}",
                        list.len()
                    ));
                }
                if list.iter().any(|&p| p < 0) {
                    return bad("All elements of explicit_paddings must be nonnegative".into());
                }
                let pair = |i: usize| (list[2 * i] as usize, list[2 * i + 1] as usize);
                let [n, h, w, c] = format.order([pair(0), pair(1), pair(2), pair(3)]);
                if n != (0, 0) || c != (0, 0) {
                    return bad(
                        "Nonzero explicit padding in the batch or depth dimensions is not supported"
                            .into(),
                    );
                }
                Ok(Padding::Explicit([h, w]))
            }
        }
    }
}

/// One spatial axis: sizes in and out, and where windows lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Axis {
    /// Input size.
    pub(crate) input: usize,
    /// Taps of the window.
    pub(crate) window: usize,
    /// Distance between windows.
    pub(crate) stride: usize,
    /// Distance between taps.
    pub(crate) dilation: usize,
    /// Number of windows.
    pub(crate) output: usize,
    /// Padding before the input.
    pub(crate) before: usize,
}

impl Axis {
    /// Computes the output size; `which` is 0 for height, 1 for width.
    pub(crate) fn new(
        input: usize,
        window: usize,
        stride: usize,
        dilation: usize,
        padding: &Padding,
        which: usize,
    ) -> Result<Axis> {
        if stride == 0 {
            return Err(Status::invalid_argument("Stride must be > 0, but got 0"));
        }
        if dilation == 0 {
            return Err(Status::invalid_argument(
                "Dilation rate must be >= 1, but got 0",
            ));
        }
        // Sizes that do not fit a window's extent into 63 bits are refused before they multiply.
        let extent = window
            .saturating_sub(1)
            .checked_mul(dilation)
            .and_then(|e| e.checked_add(1))
            .filter(|&e| e < isize::MAX as usize / 4)
            .ok_or_else(|| Status::invalid_argument("the window is too large"))?;
        let (output, before): (i128, i128) = match padding {
            Padding::Valid => {
                let out = input as i128 - extent as i128 + stride as i128;
                (out.div_euclid(stride as i128), 0)
            }
            Padding::Same => {
                let out = input.div_ceil(stride);
                let need = (out as i128 - 1) * stride as i128 + extent as i128 - input as i128;
                (out as i128, need.max(0) / 2)
            }
            Padding::Explicit(p) => {
                let (before, after) = p[which];
                let out = input as i128 + before as i128 + after as i128 - extent as i128
                    + stride as i128;
                (out.div_euclid(stride as i128), before as i128)
            }
        };
        if output < 0 {
            return Err(Status::invalid_argument(format!(
                "Computed output size would be negative: {output} [input_size: {input}, effective_filter_size: {extent}, stride: {stride}]"
            )));
        }
        Ok(Axis {
            input,
            window,
            stride,
            dilation,
            output: output as usize,
            before: before as usize,
        })
    }

    /// Input positions `start..end` that window `o` of undilated taps covers.
    pub(crate) fn span(&self, o: usize) -> (usize, usize) {
        let start = (o * self.stride) as isize - self.before as isize;
        let end = start.saturating_add(self.window as isize);
        (
            start.max(0) as usize,
            end.clamp(0, self.input as isize) as usize,
        )
    }
}

/// A tensor in the order batch, spatial…, channels, whatever its format.
pub(crate) fn channels_last(t: &Tensor, format: Format) -> Result<Tensor> {
    if format == Format::Nhwc || t.rank() < 3 {
        return Ok(t.clone());
    }
    let d = t.dims();
    let (n, c) = (d[0], d[1]);
    let inner: usize = d[2..].iter().product();
    let mut dims = vec![n];
    dims.extend_from_slice(&d[2..]);
    dims.push(c);
    Ok(swap_inner(t, n, c, inner)?.reshaped(dims)?)
}

/// The inverse of [`channels_last`].
pub(crate) fn from_channels_last(t: Tensor, format: Format) -> Result<Tensor> {
    if format == Format::Nhwc || t.rank() < 3 {
        return Ok(t);
    }
    let d = t.dims().to_vec();
    let (n, c) = (d[0], d[d.len() - 1]);
    let inner: usize = d[1..d.len() - 1].iter().product();
    let mut dims = vec![n, c];
    dims.extend_from_slice(&d[1..d.len() - 1]);
    Ok(swap_inner(&t, n, inner, c)?.reshaped(dims)?)
}

/// `[n, a, b]` to `[n, b, a]`, elements of any plain type.
fn swap_inner(t: &Tensor, n: usize, a: usize, b: usize) -> Result<Tensor> {
    fn swap<U: downpour_tensor::Element>(
        t: &Tensor,
        n: usize,
        a: usize,
        b: usize,
    ) -> Result<Tensor> {
        let from = t.as_slice::<U>()?;
        let mut to = vec![U::default(); from.len()];
        if a * b != 0 {
            for (from, to) in from.chunks(a * b).zip(to.chunks_mut(a * b)) {
                // Blocks that keep both sides in the first-level cache.
                for i0 in (0..a).step_by(16) {
                    for j in 0..b {
                        for i in i0..(i0 + 16).min(a) {
                            to[j * a + i] = from[i * b + j];
                        }
                    }
                }
            }
        }
        Ok(Tensor::from_vec(to, [n, b, a])?)
    }
    crate::types::with_type!(t.dtype(), U in reals => swap::<U>(t, n, a, b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_tensorflows_rules() {
        let a = |i, w, s, d, p: &Padding| {
            let x = Axis::new(i, w, s, d, p, 0).unwrap();
            (x.output, x.before)
        };
        assert_eq!(a(5, 3, 1, 1, &Padding::Valid), (3, 0));
        assert_eq!(a(5, 3, 2, 1, &Padding::Same), (3, 1));
        assert_eq!(a(6, 3, 2, 1, &Padding::Same), (3, 0));
        assert_eq!(a(5, 3, 1, 2, &Padding::Valid), (1, 0));
        assert_eq!(a(2, 3, 1, 1, &Padding::Valid), (0, 0));
        let e = Padding::Explicit([(1, 2), (0, 0)]);
        assert_eq!(a(5, 3, 2, 1, &e), (3, 1));
        let e = Axis::new(2, 5, 1, 1, &Padding::Valid, 0).unwrap_err();
        assert_eq!(
            e.message,
            "Computed output size would be negative: -2 [input_size: 2, effective_filter_size: 5, stride: 1]"
        );
        assert!(Axis::new(2, usize::MAX, 1, usize::MAX, &Padding::Same, 0).is_err());
    }

    #[test]
    fn formats_are_exchanged_and_restored() {
        let t = Tensor::from_vec((0..24).collect::<Vec<i32>>(), [2, 3, 2, 2]).unwrap();
        let last = channels_last(&t, Format::Nchw).unwrap();
        assert_eq!(last.dims(), [2, 2, 2, 3]);
        assert_eq!(last.as_slice::<i32>().unwrap()[..6], [0, 4, 8, 1, 5, 9]);
        let back = from_channels_last(last, Format::Nchw).unwrap();
        assert_eq!(back.dims(), t.dims());
        assert_eq!(
            back.as_slice::<i32>().unwrap(),
            t.as_slice::<i32>().unwrap()
        );
    }
}
