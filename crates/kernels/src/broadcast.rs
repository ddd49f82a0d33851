//! Broadcasting of two shapes, and the walk over both operands that goes with it.

use downpour_tensor::{Dims, Shape};

/// How two operands meet: the result's shape and, after merging runs of equal behaviour, the
/// sizes and each operand's strides (0 where it repeats). The innermost strides are 0 or 1.
pub(crate) struct Broadcast {
    pub(crate) shape: Shape,
    /// Merged sizes, outermost first.
    pub(crate) sizes: Dims,
    pub(crate) left: Dims,
    pub(crate) right: Dims,
}

impl Broadcast {
    /// `None` when the shapes do not fit.
    pub(crate) fn new(a: &[usize], b: &[usize]) -> Option<Broadcast> {
        let rank = a.len().max(b.len());
        let dim = |s: &[usize], i: usize| (i + s.len()).checked_sub(rank).map_or(1, |j| s[j]);
        let mut shape = Dims::with_capacity(rank);
        for i in 0..rank {
            let (x, y) = (dim(a, i), dim(b, i));
            shape.push(match (x, y) {
                (x, y) if x == y => x,
                (1, y) => y,
                (x, 1) => x,
                _ => return None,
            });
        }
        let (mut sizes, mut left, mut right) = (Dims::new(), Dims::new(), Dims::new());
        let (mut stride_a, mut stride_b) = (1usize, 1usize);
        // Innermost first; merged with the previous dimension when both operands go on evenly.
        for i in (0..rank).rev() {
            let (x, y, n) = (dim(a, i), dim(b, i), shape[i]);
            if n != 1 {
                let (sa, sb) = (
                    if x == 1 { 0 } else { stride_a },
                    if y == 1 { 0 } else { stride_b },
                );
                match (sizes.last_mut(), left.last(), right.last()) {
                    // Saturating: a shape without elements may have any other dimension.
                    (Some(size), Some(&la), Some(&lb))
                        if sa == la.saturating_mul(*size) && sb == lb.saturating_mul(*size) =>
                    {
                        *size = size.saturating_mul(n)
                    }
                    _ => {
                        sizes.push(n);
                        left.push(sa);
                        right.push(sb);
                    }
                }
            }
            stride_a = stride_a.saturating_mul(x);
            stride_b = stride_b.saturating_mul(y);
        }
        if sizes.is_empty() {
            sizes.push(1);
            left.push(0);
            right.push(0);
        }
        sizes.reverse();
        left.reverse();
        right.reverse();
        Some(Broadcast {
            shape: Shape::from(shape),
            sizes,
            left,
            right,
        })
    }

    /// Elements of one innermost run.
    pub(crate) fn row_len(&self) -> usize {
        self.sizes.last().copied().unwrap_or(1)
    }

    /// Number of innermost runs.
    pub(crate) fn row_count(&self) -> usize {
        let outer = self.sizes.iter().rev().skip(1);
        outer.fold(1, |p, &n| p.saturating_mul(n))
    }

    /// The innermost steps of both operands.
    pub(crate) fn steps(&self) -> (usize, usize) {
        let inner = self.sizes.len() - 1;
        (self.left[inner], self.right[inner])
    }

    /// Calls `row(out offset, left offset, right offset)` for each innermost run; the run has
    /// `row_len` elements and moves by `steps`.
    pub(crate) fn rows(&self, row: impl FnMut(usize, usize, usize)) {
        self.rows_in(0..self.row_count(), row);
    }

    /// As [`Broadcast::rows`], for some of the runs.
    pub(crate) fn rows_in(
        &self,
        range: std::ops::Range<usize>,
        mut row: impl FnMut(usize, usize, usize),
    ) {
        if range.is_empty() || self.shape.num_elements() == 0 {
            return;
        }
        let outer = self.sizes.len() - 1;
        let n = self.sizes[outer];
        let mut index: Dims = smallvec::smallvec![0; outer];
        let (mut out, mut l, mut r) = (range.start * n, 0, 0);
        let mut rest = range.start;
        for d in (0..outer).rev() {
            index[d] = rest % self.sizes[d];
            rest /= self.sizes[d];
            l += index[d] * self.left[d];
            r += index[d] * self.right[d];
        }
        for _ in range {
            row(out, l, r);
            out += n;
            for d in (0..outer).rev() {
                index[d] += 1;
                l += self.left[d];
                r += self.right[d];
                if index[d] < self.sizes[d] {
                    break;
                }
                l -= self.left[d] * self.sizes[d];
                r -= self.right[d] * self.sizes[d];
                index[d] = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(a: &[usize], b: &[usize]) -> Vec<(usize, usize)> {
        let bc = Broadcast::new(a, b).unwrap();
        let mut out = vec![(usize::MAX, usize::MAX); bc.shape.num_elements()];
        let (n, (sl, sr)) = (bc.row_len(), bc.steps());
        bc.rows(|o, l, r| (0..n).for_each(|i| out[o + i] = (l + i * sl, r + i * sr)));
        for cut in 0..=bc.row_count() {
            let mut parts = vec![(usize::MAX, usize::MAX); out.len()];
            for range in [0..cut, cut..bc.row_count()] {
                bc.rows_in(range, |o, l, r| {
                    (0..n).for_each(|i| parts[o + i] = (l + i * sl, r + i * sr))
                });
            }
            assert_eq!(parts, out, "cut at {cut}");
        }
        out
    }

    #[test]
    fn shapes_meet_as_numpys_do() {
        assert!(Broadcast::new(&[2, 3], &[2]).is_none());
        assert_eq!(
            walk(&[2, 3], &[3]),
            [(0, 0), (1, 1), (2, 2), (3, 0), (4, 1), (5, 2)]
        );
        assert_eq!(walk(&[2, 1], &[1, 2]), [(0, 0), (0, 1), (1, 0), (1, 1)]);
        assert_eq!(walk(&[], &[2]), [(0, 0), (0, 1)]);
        assert_eq!(walk(&[1], &[]), [(0, 0)]);
        assert_eq!(
            walk(&[2, 1, 2], &[2, 2, 1]),
            [
                (0, 0),
                (1, 0),
                (0, 1),
                (1, 1),
                (2, 2),
                (3, 2),
                (2, 3),
                (3, 3)
            ]
        );
        assert!(walk(&[0, 2], &[1, 2]).is_empty());
        let huge = 1 << 40;
        let none = Broadcast::new(&[0, huge, huge], &[1, huge, huge]).unwrap();
        none.rows(|_, _, _| panic!("there is no element"));
        let same = Broadcast::new(&[4, 5, 6], &[4, 5, 6]).unwrap();
        assert_eq!(same.sizes.as_slice(), [120]);
    }
}
