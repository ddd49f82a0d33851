//! Images with their padding around them: a block of rows of one image copied once, so that every
//! window lies inside. An image that needs no padding is read where it is.

use downpour_graph::{Result, Status};
use std::ops::Range;

/// Rows `rows` and columns `cols` of an image, in coordinates where the image itself begins at
/// (0, 0); what is outside is zero.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) rows: Range<isize>,
    pub(crate) cols: Range<isize>,
    pub(crate) channels: usize,
}

impl Frame {
    /// Elements from one row to the next.
    pub(crate) fn pitch(&self) -> usize {
        self.cols.len() * self.channels
    }

    /// Number of elements.
    pub(crate) fn len(&self) -> usize {
        self.rows.len() * self.pitch()
    }

    /// Refuses a frame that does not fit into `limit` bytes: padding and dilation are given by
    /// users and may be far larger than any tensor.
    pub(crate) fn check(&self, element: usize, limit: usize) -> Result<()> {
        let bytes = [
            self.rows.len(),
            self.cols.len(),
            self.channels.max(1),
            element,
        ]
        .iter()
        .try_fold(1usize, |p, &d| p.checked_mul(d));
        match bytes {
            Some(b) if b <= limit => Ok(()),
            _ => Err(Status::resource_exhausted(format!(
                "OOM: an image padded to {} rows of {} columns with {} channels is too large",
                self.rows.len(),
                self.cols.len(),
                self.channels
            ))),
        }
    }

    /// Whether the frame is a block of whole rows of an image of this size.
    pub(crate) fn is_inside(&self, height: usize, width: usize) -> bool {
        self.rows.start >= 0 && self.rows.end <= height as isize && self.cols == (0..width as isize)
    }

    /// Appends the frame's elements to `out`, from an image of `height` rows and `width` columns.
    pub(crate) fn copy<T: Copy + Default>(
        &self,
        image: &[T],
        height: usize,
        width: usize,
        out: &mut Vec<T>,
    ) {
        let c = self.channels;
        out.reserve(self.len());
        let inside =
            self.cols.start.clamp(0, width as isize)..self.cols.end.clamp(0, width as isize);
        let left = (inside.start - self.cols.start).max(0) as usize;
        let middle = inside.len();
        let (left, right) = if middle == 0 {
            (self.cols.len(), 0)
        } else {
            (left, self.cols.len() - left - middle)
        };
        let zeros = |n: usize| std::iter::repeat_n(T::default(), n * c);
        for y in self.rows.clone() {
            if y < 0 || y >= height as isize {
                out.extend(zeros(self.cols.len()));
                continue;
            }
            out.extend(zeros(left));
            let from = (y as usize * width + inside.start as usize) * c;
            out.extend_from_slice(&image[from..from + middle * c]);
            out.extend(zeros(right));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_zero_outside_the_image() {
        let image: Vec<i32> = (1..=6).collect();
        let frame = |rows: Range<isize>, cols: Range<isize>| {
            let f = Frame {
                rows,
                cols,
                channels: 1,
            };
            let mut out = Vec::new();
            f.copy(&image, 2, 3, &mut out);
            assert_eq!(out.len(), f.len());
            out
        };
        assert_eq!(
            frame(-1..2, -1..4),
            [0, 0, 0, 0, 0, 0, 1, 2, 3, 0, 0, 4, 5, 6, 0]
        );
        assert_eq!(frame(1..3, 1..2), [5, 0]);
        assert_eq!(frame(0..1, 5..7), [0, 0]);
        assert_eq!(frame(0..1, -3..-1), [0, 0]);
        let f = Frame {
            rows: 0..1 << 40,
            cols: 0..1 << 40,
            channels: 1,
        };
        assert!(f.check(4, 1 << 30).is_err());
    }
}
