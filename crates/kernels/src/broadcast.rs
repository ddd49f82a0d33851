//! Broadcasting of two shapes, and the walk over both operands that goes with it.

use downpour_tensor::{Dims, Shape};

/// How two operands meet: the result's shape and, after merging runs of equal behaviour, the
/// sizes and each operand's strides (0 where it repeats).
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
        let (mut stride_a, mut stride_b) = (1, 1);
        // Innermost first; merged with the previous dimension when both operands go on evenly.
        for i in (0..rank).rev() {
            let (x, y, n) = (dim(a, i), dim(b, i), shape[i]);
            if n != 1 {
                let (sa, sb) = (
                    if x == 1 { 0 } else { stride_a },
                    if y == 1 { 0 } else { stride_b },
                );
                match (sizes.last_mut(), left.last(), right.last()) {
                    (Some(size), Some(&la), Some(&lb)) if sa == la * *size && sb == lb * *size => {
                        *size *= n
                    }
                    _ => {
                        sizes.push(n);
                        left.push(sa);
                        right.push(sb);
                    }
                }
            }
            stride_a *= x;
            stride_b *= y;
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

    /// Calls `row(out offset, left offset, right offset)` for each innermost run; the run has
    /// `sizes.last()` elements and steps by `left.last()` and `right.last()`.
    pub(crate) fn rows(&self, mut row: impl FnMut(usize, usize, usize)) {
        if self.shape.num_elements() == 0 {
            return;
        }
        let outer = self.sizes.len() - 1;
        let n = self.sizes[outer];
        let mut index: Dims = smallvec::smallvec![0; outer];
        let (mut out, mut l, mut r) = (0, 0, 0);
        loop {
            row(out, l, r);
            out += n;
            let mut d = outer;
            loop {
                if d == 0 {
                    return;
                }
                d -= 1;
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
        let (n, sl, sr) = (
            *bc.sizes.last().unwrap(),
            *bc.left.last().unwrap(),
            *bc.right.last().unwrap(),
        );
        bc.rows(|o, l, r| (0..n).for_each(|i| out[o + i] = (l + i * sl, r + i * sr)));
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
        let same = Broadcast::new(&[4, 5, 6], &[4, 5, 6]).unwrap();
        assert_eq!(same.sizes.as_slice(), [120]);
    }
}
