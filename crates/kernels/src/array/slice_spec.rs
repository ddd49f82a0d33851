//! What `x[begin:end:stride, ..., new, index]` means for a tensor of a given shape: the rules of
//! `StridedSlice` and its relatives.

use super::strided::{Walk, strides_of};
use crate::args::ints;
use downpour_graph::{Attrs, Result, Status};
use downpour_tensor::{Dims, Shape, Tensor};

/// The five bit masks of a node.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Masks {
    begin: i64,
    end: i64,
    ellipsis: i64,
    new_axis: i64,
    shrink: i64,
}

impl Masks {
    pub(crate) fn of(attrs: &Attrs) -> Result<Masks> {
        Ok(Masks {
            begin: attrs.int("begin_mask")?,
            end: attrs.int("end_mask")?,
            ellipsis: attrs.int("ellipsis_mask")?,
            new_axis: attrs.int("new_axis_mask")?,
            shrink: attrs.int("shrink_axis_mask")?,
        })
    }
}

/// A slice of a tensor, all indices resolved.
#[derive(Debug)]
pub(crate) struct SliceSpec {
    /// Shape of the result.
    pub(super) shape: Shape,
    /// First index of each input dimension.
    begin: Dims,
    /// Indices taken from each input dimension.
    sizes: Dims,
    /// Step in each input dimension.
    strides: Vec<i64>,
}

fn invalid<T>(text: String) -> Result<T> {
    Err(Status::invalid_argument(text))
}

/// Where an output dimension comes from.
enum Source {
    Input(usize),
    New,
}

impl SliceSpec {
    pub(crate) fn new(
        input: &[usize],
        begin: &Tensor,
        end: &Tensor,
        strides: &Tensor,
        masks: Masks,
    ) -> Result<SliceSpec> {
        let same =
            begin.rank() == 1 && begin.shape() == end.shape() && end.shape() == strides.shape();
        if !same || begin.num_elements() >= 32 {
            return invalid(format!(
                "Expected begin, end, and strides to be 1D equal size tensors, but got shapes {}, {}, and {} instead.",
                begin.shape(),
                end.shape(),
                strides.shape()
            ));
        }
        SliceSpec::resolve(input, &ints(begin)?, &ints(end)?, &ints(strides)?, masks)
    }

    fn resolve(
        input: &[usize],
        begin: &[i64],
        end: &[i64],
        strides: &[i64],
        masks: Masks,
    ) -> Result<SliceSpec> {
        if masks.ellipsis & (masks.ellipsis.wrapping_sub(1)) != 0 {
            return invalid("Multiple ellipses in slice spec not allowed".to_owned());
        }
        let rank = input.len();
        let bit = |mask: i64, i: usize| mask >> i & 1 == 1;
        // Without an ellipsis there is one after the last entry.
        let given = begin.len();
        let explicit = (0..given).find(|&i| bit(masks.ellipsis, i));
        let ellipsis = explicit.unwrap_or(given);
        let entries = given + usize::from(explicit.is_none());
        let new_after = (ellipsis + 1..given)
            .filter(|&i| bit(masks.new_axis, i))
            .count();

        let mut dense: Vec<(i64, i64, i64, bool, bool, bool)> = Vec::with_capacity(rank);
        let mut gather = Vec::new();
        for i in 0..entries {
            if i == ellipsis {
                let next = (rank + 1 + new_after).saturating_sub(entries - i).min(rank);
                while dense.len() < next {
                    gather.push(Source::Input(dense.len()));
                    dense.push((0, 0, 1, true, true, false));
                }
            } else if bit(masks.new_axis, i) {
                gather.push(Source::New);
            } else {
                let at = dense.len();
                if at == rank {
                    return invalid(format!(
                        "Index out of range using input dim {at}; input has only {rank} dims"
                    ));
                }
                let shrink = bit(masks.shrink, i);
                if !shrink {
                    gather.push(Source::Input(at));
                }
                let (b, e) = (bit(masks.begin, i), bit(masks.end, i));
                dense.push((begin[i], end[i], strides[i], b, e, shrink));
            }
        }

        let mut spec = SliceSpec {
            shape: Shape::scalar(),
            begin: Dims::with_capacity(rank),
            sizes: Dims::with_capacity(rank),
            strides: Vec::with_capacity(rank),
        };
        for (i, (&dim, &(begin, end, stride, b_mask, e_mask, shrink))) in
            input.iter().zip(&dense).enumerate()
        {
            let dim = dim as i64;
            if stride == 0 {
                return invalid(format!("strides[{i}] must be non-zero"));
            }
            if shrink && stride <= 0 {
                return invalid("only stride 1 allowed on non-range indexing.".to_owned());
            }
            let forward = |x: i64| if x < 0 { x.saturating_add(dim) } else { x };
            let (first, size) = if shrink {
                let first = forward(begin);
                if !(0..dim).contains(&first) {
                    return invalid(format!(
                        "slice index {first} of dimension {i} out of bounds."
                    ));
                }
                (first, 1)
            } else {
                let range = if stride > 0 { (0, dim) } else { (-1, dim - 1) };
                let (low, high) = if stride > 0 {
                    range
                } else {
                    (range.1, range.0)
                };
                let from = if b_mask {
                    low
                } else {
                    forward(begin).clamp(range.0, range.1)
                };
                let to = if e_mask {
                    high
                } else {
                    forward(end).clamp(range.0, range.1)
                };
                (from, steps(to - from, stride))
            };
            spec.begin.push(if size == 0 { 0 } else { first as usize });
            spec.sizes.push(size as usize);
            spec.strides.push(stride);
        }
        spec.shape = gather
            .iter()
            .map(|g| match g {
                Source::Input(i) => spec.sizes[*i],
                Source::New => 1,
            })
            .collect();
        Ok(spec)
    }

    /// Whether the slice is the whole tensor in its order.
    pub(super) fn is_identity(&self, input: &[usize]) -> bool {
        self.sizes.as_slice() == input && self.unit_strides(0)
    }

    /// Start and count when only the first dimension is cut, and without gaps.
    pub(super) fn rows(&self, input: &[usize]) -> Option<(usize, usize)> {
        let rest = input.get(1..)?;
        (self.sizes[1..] == *rest && self.unit_strides(0)).then(|| (self.begin[0], self.sizes[0]))
    }

    fn unit_strides(&self, from: usize) -> bool {
        (from..self.sizes.len()).all(|i| self.strides[i] == 1 || self.sizes[i] <= 1)
    }

    /// The same slice of the tensor seen as bytes: one more dimension, `size` long.
    fn of_bytes(&self, size: usize) -> SliceSpec {
        let mut spec = SliceSpec {
            shape: self.shape.clone(),
            begin: self.begin.clone(),
            sizes: self.sizes.clone(),
            strides: self.strides.clone(),
        };
        spec.begin.push(0);
        spec.sizes.push(size);
        spec.strides.push(1);
        spec
    }

    /// The walk over the bytes of a tensor of shape `input` and elements of `size` bytes.
    pub(super) fn byte_walk(&self, input: &[usize], size: usize) -> Walk {
        let mut dims = Dims::from_slice(input);
        dims.push(size);
        self.of_bytes(size).walk(&dims)
    }

    /// The walk over a tensor of shape `input` that visits the slice.
    pub(super) fn walk(&self, input: &[usize]) -> Walk {
        let memory = strides_of(input);
        let mut offset = 0isize;
        let mut strides = Vec::with_capacity(input.len());
        for (i, &m) in memory.iter().enumerate() {
            offset += self.begin[i] as isize * m;
            strides.push(if self.sizes[i] <= 1 {
                0
            } else {
                self.strides[i] as isize * m
            });
        }
        Walk::new(offset, &self.sizes, &strides)
    }
}

/// How often `stride` fits into the half-open way of `length` (both may be negative).
fn steps(length: i64, stride: i64) -> i64 {
    if length == 0 || (length < 0) != (stride < 0) {
        0
    } else {
        length / stride + i64::from(length % stride != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(input: &[usize], b: &[i64], e: &[i64], s: &[i64], masks: Masks) -> Result<Vec<usize>> {
        SliceSpec::resolve(input, b, e, s, masks).map(|s| s.shape.to_vec())
    }

    #[test]
    fn slices_mean_what_numpy_says() {
        let none = Masks::default();
        assert_eq!(
            shape(&[3, 4], &[2, 3], &[0, 0], &[-1, -2], none).unwrap(),
            [2, 2]
        );
        let open = Masks {
            begin: 3,
            end: 3,
            ..none
        };
        assert_eq!(
            shape(&[3, 4], &[2, 3], &[0, 0], &[-1, -2], open).unwrap(),
            [3, 2]
        );
        let last = Masks {
            ellipsis: 1,
            ..none
        };
        assert_eq!(
            shape(&[3, 4], &[0, 1], &[0, 3], &[1, 1], last).unwrap(),
            [3, 2]
        );
        let new = Masks {
            new_axis: 1,
            ..none
        };
        assert_eq!(
            shape(&[3, 4], &[0, 1], &[0, 3], &[1, 1], new).unwrap(),
            [1, 2, 4]
        );
        let index = Masks {
            new_axis: 1,
            shrink: 3,
            ..none
        };
        assert_eq!(
            shape(&[3, 4], &[0, 1], &[0, 3], &[1, 1], index).unwrap(),
            [1, 4]
        );
        assert_eq!(shape(&[3, 4], &[-100], &[100], &[1], none).unwrap(), [3, 4]);
        assert_eq!(
            shape(&[3, 4], &[100], &[-100], &[i64::MIN], none).unwrap(),
            [1, 4]
        );
        let mixed = Masks {
            ellipsis: 2,
            new_axis: 0b101,
            shrink: 8,
            ..none
        };
        assert_eq!(
            shape(&[2, 3, 4], &[0, 0, 0, 1], &[0; 4], &[1; 4], mixed).unwrap(),
            [1, 2, 3, 1]
        );
    }

    #[test]
    fn bad_slices_are_named() {
        let none = Masks::default();
        let text =
            |b: &[i64], e: &[i64], s: &[i64], m| shape(&[3, 4], b, e, s, m).unwrap_err().message;
        assert_eq!(text(&[0], &[1], &[0], none), "strides[0] must be non-zero");
        let index = Masks { shrink: 1, ..none };
        assert_eq!(
            text(&[-4], &[1], &[1], index),
            "slice index -1 of dimension 0 out of bounds."
        );
        assert_eq!(
            text(&[0], &[1], &[-1], index),
            "only stride 1 allowed on non-range indexing."
        );
        assert_eq!(
            text(&[0; 3], &[1; 3], &[1; 3], none),
            "Index out of range using input dim 2; input has only 2 dims"
        );
        let two = Masks {
            ellipsis: 3,
            ..none
        };
        assert_eq!(
            text(&[0; 2], &[1; 2], &[1; 2], two),
            "Multiple ellipses in slice spec not allowed"
        );
    }
}
