//! Copying between a contiguous array and an array walked with strides: the one loop behind
//! transposing, slicing, tiling, broadcasting, reversing and their gradients.
//!
//! Strides are in elements and may be zero or negative. A walk is checked once against the length
//! of the strided side (see [`Walk::fits`]); the loops then use slices, never unchecked indices.

use super::units::Unit;
use crate::uninit::{Filler, filled};
use downpour_graph::{Result, Status};
use downpour_runtime::{OpContext, parallel_for};
use downpour_tensor::{DType, Dims, Shape, Tensor};
use smallvec::{SmallVec, smallvec};

/// Elements below which a copy is not worth splitting.
const GRAIN: usize = 64 << 10;
/// Edge of the square block in which a transposition stays within the cache.
const BLOCK: usize = 32;

/// Sizes and signed strides of a walk, outermost first, with runs of equal behaviour merged.
#[derive(Clone, Debug)]
pub(crate) struct Walk {
    offset: isize,
    sizes: Dims,
    strides: SmallVec<[isize; 4]>,
}

impl Walk {
    /// A walk over `sizes` that starts at element `offset` and steps by `strides`.
    pub(crate) fn new(offset: isize, sizes: &[usize], strides: &[isize]) -> Walk {
        debug_assert_eq!(sizes.len(), strides.len());
        let mut out = Walk {
            offset,
            sizes: Dims::new(),
            strides: SmallVec::new(),
        };
        for (&n, &s) in sizes.iter().zip(strides) {
            if n == 1 {
                continue;
            }
            match (out.sizes.last_mut(), out.strides.last_mut()) {
                (Some(size), Some(stride)) if *stride == s.wrapping_mul(n as isize) => {
                    *size *= n;
                    *stride = s;
                }
                _ => {
                    out.sizes.push(n);
                    out.strides.push(s);
                }
            }
        }
        if out.sizes.is_empty() {
            out.sizes.push(1);
            out.strides.push(1);
        }
        out
    }

    /// Number of elements visited.
    fn total(&self) -> usize {
        self.sizes.iter().product()
    }

    /// Whether every visited element lies in `0..len`.
    fn fits(&self, len: usize) -> bool {
        if self.total() == 0 {
            return true;
        }
        let (mut low, mut high) = (self.offset as i128, self.offset as i128);
        for (&n, &s) in self.sizes.iter().zip(&self.strides) {
            let reach = (n as i128 - 1) * s as i128;
            if reach < 0 {
                low += reach
            } else {
                high += reach
            }
        }
        low >= 0 && high < len as i128
    }

    fn check(&self, len: usize) -> Result<()> {
        if self.fits(len) {
            Ok(())
        } else {
            Err(Status::internal("a copy would leave its tensor"))
        }
    }

    /// Calls `run` with the strided start of each innermost run of the rows `first..first+rows`.
    fn runs(&self, first: usize, rows: usize, mut run: impl FnMut(isize)) {
        let outer = self.sizes.len() - 1;
        let mut index: Dims = smallvec![0; outer];
        let mut at = self.offset;
        let mut rest = first;
        for d in (0..outer).rev() {
            index[d] = rest % self.sizes[d];
            rest /= self.sizes[d];
            at += index[d] as isize * self.strides[d];
        }
        for _ in 0..rows {
            run(at);
            for d in (0..outer).rev() {
                index[d] += 1;
                at += self.strides[d];
                if index[d] < self.sizes[d] {
                    break;
                }
                at -= self.strides[d] * self.sizes[d] as isize;
                index[d] = 0;
            }
        }
    }

    /// The two innermost dimensions when the outer one of them is contiguous: a transposition.
    fn is_transposition(&self) -> bool {
        match (self.sizes.as_slice(), self.strides.as_slice()) {
            ([.., rows, cols], [.., 1, s]) => *s > 1 && *rows >= 8 && *cols >= 8,
            _ => false,
        }
    }
}

/// The elements of `src` that `walk` visits, in its order.
pub(crate) fn collect<U: Unit>(src: &[U], walk: &Walk, mut out: Vec<U>) -> Result<Vec<U>> {
    let total = walk.total();
    if total == 0 {
        return Ok(out);
    }
    walk.check(src.len())?;
    let inner = walk.sizes[walk.sizes.len() - 1];
    let transposition = walk.is_transposition();
    if transposition
        && out.is_empty()
        && let Ok(zeros) = U::zeros(total)
    {
        out = zeros;
        transpose(src, walk, &mut out);
        return Ok(out);
    }
    Ok(filled(
        out,
        total,
        inner,
        GRAIN.div_ceil(inner),
        |first, out| {
            read(src, walk, first, out);
        },
    ))
}

/// Fills whole innermost runs, starting with run `first`.
fn read<U: Unit>(src: &[U], walk: &Walk, first: usize, out: &mut Filler<'_, U>) {
    let inner = walk.sizes[walk.sizes.len() - 1];
    let stride = walk.strides[walk.strides.len() - 1];
    walk.runs(first, out.missing() / inner, |at| match stride {
        1 => out.extend_from_slice(&src[at as usize..at as usize + inner]),
        0 => out.repeat(&src[at as usize], inner),
        s if s > 0 => {
            let from = src[at as usize..].iter().step_by(s as usize);
            out.extend(from.take(inner).cloned());
        }
        s => out.extend((0..inner as isize).map(|i| src[(at + i * s) as usize].clone())),
    });
}

/// Fills `out` block by block, the walk being a (batch of) transposition(s).
fn transpose<U: Unit>(src: &[U], walk: &Walk, out: &mut [U]) {
    let rank = walk.sizes.len();
    let (rows, cols, stride) = (
        walk.sizes[rank - 2],
        walk.sizes[rank - 1],
        walk.strides[rank - 1] as usize,
    );
    let mut planes = walk.clone();
    // One run of the shortened walk is one plane.
    planes.sizes.truncate(rank - 2);
    planes.strides.truncate(rank - 2);
    planes.sizes.push(1);
    planes.strides.push(1);
    // Work is cut into bands of BLOCK output rows of a plane.
    let bands = rows.div_ceil(BLOCK);
    let plane = |p: usize, first: usize, out: &mut [U]| {
        let mut start = 0;
        planes.runs(p, 1, |at| start = at as usize);
        let count = out.len() / cols;
        for c0 in (0..cols).step_by(BLOCK) {
            let width = BLOCK.min(cols - c0);
            for r in 0..count {
                let line = &mut out[r * cols + c0..r * cols + c0 + width];
                let from = src[start + first + r + c0 * stride..]
                    .iter()
                    .step_by(stride);
                line.iter_mut().zip(from).for_each(|(o, v)| *o = v.clone());
            }
        }
    };
    let mut chunks: Vec<(usize, usize, parking_lot::Mutex<&mut [U]>)> = Vec::new();
    for (p, page) in out.chunks_mut(rows * cols).enumerate() {
        for (b, band) in page.chunks_mut(BLOCK * cols).enumerate() {
            chunks.push((p, b * BLOCK, parking_lot::Mutex::new(band)));
        }
    }
    let grain = (GRAIN / (BLOCK * cols)).max(1).min(bands.max(1) * 4);
    parallel_for(chunks.len(), grain, |range| {
        for (p, first, band) in &chunks[range] {
            plane(*p, *first, &mut band.lock());
        }
    });
}

/// Writes `src`, which is contiguous, to the elements of `dst` that `walk` visits.
pub(crate) fn place<U: Unit>(dst: &mut [U], walk: &Walk, src: &[U]) -> Result<()> {
    let total = walk.total();
    if total == 0 {
        return Ok(());
    }
    walk.check(dst.len())?;
    if src.len() != total {
        return Err(Status::internal("a copy would leave its source"));
    }
    let inner = walk.sizes[walk.sizes.len() - 1];
    let stride = walk.strides[walk.strides.len() - 1];
    let mut chunks = src.chunks_exact(inner);
    walk.runs(0, total / inner, |at| {
        let Some(chunk) = chunks.next() else { return };
        match stride {
            1 => dst[at as usize..at as usize + inner].clone_from_slice(chunk),
            s => chunk
                .iter()
                .enumerate()
                .for_each(|(i, v)| dst[(at + i as isize * s) as usize] = v.clone()),
        }
    });
    Ok(())
}

/// Row-major strides of `shape`, signed.
pub(crate) fn strides_of(dims: &[usize]) -> SmallVec<[isize; 4]> {
    let mut strides: SmallVec<[isize; 4]> = smallvec![1; dims.len()];
    for i in (1..dims.len()).rev() {
        strides[i - 1] = strides[i] * dims[i].max(1) as isize;
    }
    strides
}

/// A new tensor of `shape` whose elements are those of `src` that `walk` visits.
pub(crate) fn gathered(
    ctx: &OpContext<'_>,
    src: &Tensor,
    walk: &Walk,
    shape: Shape,
) -> Result<Tensor> {
    let dtype: DType = src.dtype();
    super::units::with_unit!(dtype, U => {
        let out = super::units::room::<U>(ctx, dtype, &shape)?;
        let out = collect(U::view(src)?, walk, out)?;
        U::tensor(dtype, out, shape)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn naive(src: &[u32], offset: isize, sizes: &[usize], strides: &[isize]) -> Vec<u32> {
        let total: usize = sizes.iter().product();
        (0..total)
            .map(|mut i| {
                let mut at = offset;
                for d in (0..sizes.len()).rev() {
                    at += (i % sizes[d]) as isize * strides[d];
                    i /= sizes[d];
                }
                src[at as usize]
            })
            .collect()
    }

    #[test]
    fn walks_visit_what_their_strides_say() {
        let src: Vec<u32> = (0..200 * 300).collect();
        for (offset, sizes, strides) in [
            (0, vec![200, 300], vec![300, 1]),
            (0, vec![300, 200], vec![1, 300]),
            (5, vec![3, 4, 5], vec![0, 7, -1]),
            (59999, vec![60000], vec![-1]),
            (10, vec![2, 3, 2], vec![100, 0, 3]),
            (0, vec![4, 100, 50, 3], vec![15000, 3, 300, 1]),
            (0, vec![2, 50, 600], vec![30000, 1, 50]),
            (7, vec![1, 1], vec![9, 9]),
            (0, vec![3, 0], vec![1, 1]),
        ] {
            let walk = Walk::new(offset, &sizes, &strides);
            let got = collect(&src, &walk, Vec::new()).unwrap();
            assert_eq!(
                got,
                naive(&src, offset, &sizes, &strides),
                "{sizes:?} {strides:?}"
            );
        }
    }

    #[test]
    fn placing_undoes_collecting() {
        let src: Vec<u32> = (0..24).collect();
        let walk = Walk::new(23, &[4, 3, 2], &[-6, -1, -3]);
        let got = collect(&src, &walk, Vec::new()).unwrap();
        let mut back = vec![0; 24];
        place(&mut back, &walk, &got).unwrap();
        assert_eq!(back, src);
    }

    #[test]
    fn walks_outside_the_tensor_are_refused() {
        let src = [1u8, 2, 3];
        assert!(collect(&src, &Walk::new(0, &[4], &[1]), Vec::new()).is_err());
        assert!(collect(&src, &Walk::new(0, &[2], &[-1]), Vec::new()).is_err());
        assert!(collect(&src, &Walk::new(9, &[0, 2], &[1, 1]), Vec::new()).is_ok());
        assert!(place(&mut [0u8; 2], &Walk::new(1, &[2], &[1]), &[1, 2]).is_err());
    }
}
