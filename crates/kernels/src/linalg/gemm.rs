//! Matrix products `c = a·b (+ c)` on slices with strides: cuts the work into blocks that stay in
//! the caches, copies the right operand into panels block by block, and splits over threads.
#![allow(
    unsafe_code,
    reason = "threads write disjoint blocks of one result, which is not zeroed first"
)]

use super::tile::{Kernel, Sweep, Tiled};
use downpour_runtime::parallel_for;
use std::mem::MaybeUninit;
use std::ops::Range;

/// A matrix in a slice: rows, columns, and the distance between neighbours in each direction.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a, T> {
    pub(crate) data: &'a [T],
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) row_stride: usize,
    pub(crate) col_stride: usize,
}

impl<'a, T> Matrix<'a, T> {
    /// A dense row-major matrix; seen transposed if asked.
    pub(crate) fn dense(data: &'a [T], rows: usize, cols: usize, transposed: bool) -> Self {
        let m = Matrix {
            data,
            rows,
            cols,
            row_stride: cols,
            col_stride: 1,
        };
        if transposed { m.transpose() } else { m }
    }

    /// The same data, rows and columns exchanged.
    pub(crate) fn transpose(self) -> Self {
        Matrix {
            data: self.data,
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
        }
    }

    fn last(&self) -> Option<usize> {
        let rows = self.rows.checked_sub(1)?;
        let cols = self.cols.checked_sub(1)?;
        rows.checked_mul(self.row_stride)?
            .checked_add(cols.checked_mul(self.col_stride)?)
    }
}

/// Rows of the right operand in one block: a panel of that many rows stays in the first cache.
const DEPTH: usize = 256;

/// The same where a row is at most one vector.
const NARROW_DEPTH: usize = 1024;

/// Elements of the left operand in one block: half of a 2 MiB second-level cache.
const LEFT_BLOCK: usize = 256 << 10;

/// Multiplications below which splitting over threads costs more than it saves.
const PARALLEL_WORK: usize = 1 << 19;

/// A vector of `len` elements that `write` sets, all of them.
///
/// # Safety
/// `write` must set every element of what it is given.
pub(crate) unsafe fn written<T: Copy>(
    mut room: Vec<T>,
    len: usize,
    write: impl FnOnce(&mut [MaybeUninit<T>]),
) -> Vec<T> {
    room.clear();
    room.reserve_exact(len);
    write(&mut room.spare_capacity_mut()[..len]);
    // SAFETY: there is room for `len` elements, and `write` set them.
    unsafe { room.set_len(len) };
    room
}

/// The product `a·b`, dense and row-major, in `room` (of which only the memory is used).
pub(crate) fn product<T: Tiled>(
    room: Vec<T>,
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    parallel: bool,
) -> Vec<T> {
    // SAFETY: `multiply_into` sets every element.
    unsafe { written(room, a.rows * b.cols, |c| multiply_into(c, a, b, parallel)) }
}

/// `c = a·b` with `c` dense and row-major; sets every element of `c`.
pub(crate) fn multiply_into<T: Tiled>(
    c: &mut [MaybeUninit<T>],
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    parallel: bool,
) {
    assert_eq!(c.len(), a.rows * b.cols, "the result has another size");
    if a.cols == 0 {
        c.fill(MaybeUninit::new(T::default()));
        return;
    }
    // SAFETY: `c` has room for the product, exclusively ours.
    unsafe { run(c.as_mut_ptr().cast(), b.cols, a, b, false, parallel) }
}

/// `c += a·b` where the rows of `c` begin `stride` elements apart: a block of a larger matrix.
pub(crate) fn add_product<T: Tiled>(
    c: &mut [T],
    stride: usize,
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    parallel: bool,
) {
    if a.rows == 0 || a.cols == 0 || b.cols == 0 {
        return;
    }
    assert!(stride >= b.cols, "rows of the result overlap");
    assert!(
        (a.rows - 1) * stride + b.cols <= c.len(),
        "the result has another size"
    );
    // SAFETY: `c` holds the rows of the block, exclusively ours.
    unsafe { run(c.as_mut_ptr(), stride, a, b, true, parallel) }
}

/// `c = a·b`, or `c += a·b`, with `c` dense and row-major. Splits over threads when `parallel`
/// and there is enough to do; the result does not depend on the split.
#[cfg(test)]
fn multiply<T: Tiled>(
    c: &mut [T],
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    accumulate: bool,
    parallel: bool,
) {
    assert_eq!(c.len(), a.rows * b.cols, "the result has another size");
    if a.cols == 0 {
        if !accumulate {
            c.fill(T::default());
        }
        return;
    }
    // SAFETY: `c` holds as many values as the product, exclusively ours.
    unsafe { run(c.as_mut_ptr(), b.cols, a, b, accumulate, parallel) }
}

struct Target<T>(*mut T);

// SAFETY: shared only for writing disjoint parts, see `run`.
unsafe impl<T: Send> Sync for Target<T> {}

/// # Safety
/// `c` must be valid for writing `a.rows` rows of `b.cols` elements, `stride` apart (and hold values if
/// `accumulate`), used by no one else.
unsafe fn run<T: Tiled>(
    c: *mut T,
    stride: usize,
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    accumulate: bool,
    parallel: bool,
) {
    let (m, n, k) = (a.rows, b.cols, a.cols);
    assert_eq!(k, b.rows, "inner dimensions differ");
    if m == 0 || n == 0 {
        return;
    }
    let inside = |x: &Matrix<'_, T>| x.last().is_some_and(|i| i < x.data.len());
    assert!(inside(&a), "the left matrix reaches past its data");
    assert!(inside(&b), "the right matrix reaches past its data");
    let target = Target(c);
    let part = |rows: Range<usize>, cols: Range<usize>| {
        let target = &target;
        // SAFETY: the ranges are within `c` and no two threads get the same part of it.
        unsafe { block(target.0, stride, a, b, rows, cols, accumulate) }
    };
    let work = m.saturating_mul(n).saturating_mul(k);
    let kernel = T::kernel();
    if !parallel || work < 2 * PARALLEL_WORK {
        part(0..m, 0..n);
    } else if n >= m && n >= 4 * kernel.width {
        // Cut between panels, so that no panel is computed in two halves.
        let panels = n.div_ceil(kernel.width);
        let grain = (PARALLEL_WORK / (m * k * kernel.width).max(1)).max(1);
        parallel_for(panels, grain, |p| {
            part(0..m, p.start * kernel.width..(p.end * kernel.width).min(n));
        });
    } else {
        let tiles = m.div_ceil(kernel.rows);
        let grain = (PARALLEL_WORK / (n * k * kernel.rows).max(1)).max(1);
        parallel_for(tiles, grain, |t| {
            part(t.start * kernel.rows..(t.end * kernel.rows).min(m), 0..n);
        });
    }
}

/// Computes rows `rows` and columns `cols` of `c`, whose rows begin `pitch` elements apart.
///
/// # Safety
/// That part of `c` must be valid for writing and used by no one else.
unsafe fn block<T: Tiled>(
    c: *mut T,
    pitch: usize,
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    rows: Range<usize>,
    cols: Range<usize>,
    accumulate: bool,
) {
    let kernel = T::kernel();
    // So few columns that rows of the right operand are read where they are: what a vector reads past
    // the end of one is dropped with the columns past the last.
    // Not with a left operand read down its columns, where copying proved quicker.
    let narrow = b.col_stride == 1 && a.col_stride == 1 && b.cols <= kernel.lanes;
    let depth = a.cols.min(if narrow { NARROW_DEPTH } else { DEPTH });
    // A left operand that is not read along its rows is copied so that it is, tile by tile,
    // unless it is read only a few times anyway.
    let copy_left = a.col_stride != 1 && cols.len() > kernel.width;
    let height = (LEFT_BLOCK / depth).max(kernel.rows) / kernel.rows * kernel.rows;
    let mut panel: Vec<T> = Vec::with_capacity(depth * kernel.width);
    let mut left: Vec<T> = Vec::new();
    let (mut at, mut out_at) = (Vec::new(), Vec::new());
    // Rows after which a vector would read past the end of the data are copied after all.
    let whole = (b.data.len() + b.row_stride).saturating_sub(kernel.lanes) / b.row_stride.max(1);
    let mut k0 = 0;
    while k0 < a.cols {
        let mut ks = k0..(k0 + depth).min(a.cols);
        if narrow && k0 < whole {
            ks.end = ks.end.min(whole);
        }
        for r0 in rows.clone().step_by(height) {
            let rs = r0..(r0 + height).min(rows.end);
            let (a_data, step): (&[T], usize) = if copy_left {
                pack_left(&mut left, &a, rs.clone(), ks.clone(), kernel.rows);
                (&left, kernel.rows)
            } else {
                (a.data, a.col_stride)
            };
            at.clear();
            at.extend(rs.clone().enumerate().map(|(i, r)| {
                if copy_left {
                    i / kernel.rows * kernel.rows * ks.len() + i % kernel.rows
                } else {
                    r * a.row_stride + ks.start * a.col_stride
                }
            }));
            for c0 in cols.clone().step_by(kernel.width) {
                let cs = c0..(c0 + kernel.width).min(cols.end);
                let wide = b.col_stride == 1 && rs.len() <= kernel.rows && cs.len() == kernel.width;
                let direct = wide || (narrow && ks.end <= whole);
                let (b_data, stride): (&[T], usize) = if direct {
                    (&b.data[ks.start * b.row_stride + cs.start..], b.row_stride)
                } else {
                    pack_panel(&mut panel, kernel, &b, ks.clone(), cs.clone());
                    (&panel, kernel.width)
                };
                out_at.clear();
                out_at.extend(rs.clone().map(|r| r * pitch + cs.start));
                let sweep = Sweep {
                    a: a_data,
                    rows: &at,
                    segments: &[(0, 0)],
                    len: ks.len(),
                    step,
                    b: b_data,
                    stride,
                    panel: 0,
                    cols: cs.len(),
                    out_rows: &out_at,
                };
                let len = (a.rows - 1) * pitch + b.cols;
                // SAFETY: the rows named are in our part of `c`; from the second block on they
                // hold the sums of the first.
                unsafe { kernel.run_at(&sweep, c, len, accumulate || k0 > 0) };
            }
        }
        k0 = ks.end;
    }
}

/// Copies columns `cols` (at most a panel's width) of rows `rows` into `panel`, zeros after them.
fn pack_panel<T: Tiled>(
    panel: &mut Vec<T>,
    kernel: &Kernel<T>,
    b: &Matrix<'_, T>,
    rows: Range<usize>,
    cols: Range<usize>,
) {
    let width = kernel.width;
    panel.clear();
    panel.resize(rows.len() * width, T::default());
    if b.col_stride == 1 {
        // Not `chunks` of a row's stride: a single row may be longer than its stride says.
        let from = rows.map(|r| &b.data[r * b.row_stride + cols.start..]);
        match (width, cols.len()) {
            (32, 32) => copy_rows::<T, 32>(panel, from),
            (16, 16) => copy_rows::<T, 16>(panel, from),
            (_, n) => {
                for (to, from) in panel.chunks_exact_mut(width).zip(from) {
                    to[..n].copy_from_slice(&from[..n]);
                }
            }
        }
    } else if b.row_stride == 1 {
        let from = &b.data[cols.start * b.col_stride + rows.start..];
        kernel.transpose((from, b.col_stride), (panel, width), cols.len(), rows.len());
    } else {
        for (to, r) in panel.chunks_exact_mut(width).zip(rows) {
            for (to, c) in to.iter_mut().zip(cols.clone()) {
                *to = b.data[r * b.row_stride + c * b.col_stride];
            }
        }
    }
}

/// Copies the first `N` elements of each row of `from` to rows of `N` elements.
fn copy_rows<'a, T: Tiled, const N: usize>(to: &mut [T], from: impl Iterator<Item = &'a [T]>) {
    for (to, from) in to.as_chunks_mut::<N>().0.iter_mut().zip(from) {
        if let Some(from) = from.first_chunk::<N>() {
            *to = *from;
        }
    }
}

/// Copies a block of the left operand as tiles of `tile` rows: `[tile][column][row in tile]`.
fn pack_left<T: Tiled>(
    left: &mut Vec<T>,
    a: &Matrix<'_, T>,
    rows: Range<usize>,
    cols: Range<usize>,
    tile: usize,
) {
    let size = tile * cols.len();
    left.clear();
    left.resize(rows.len().div_ceil(tile) * size, T::default());
    for (i, c) in cols.clone().enumerate() {
        let line = &a.data[rows.start * a.row_stride + c * a.col_stride..];
        if a.row_stride == 1 {
            let line = &line[..rows.len()];
            let places = left[i * tile..].chunks_mut(size);
            if tile == 8 {
                let (whole, rest) = line.as_chunks::<8>();
                let mut places = places;
                for (from, to) in whole.iter().zip(&mut places) {
                    if let Some(to) = to.first_chunk_mut::<8>() {
                        *to = *from;
                    }
                }
                if let Some(to) = places.next() {
                    to[..rest.len()].copy_from_slice(rest);
                }
            } else {
                for (from, to) in line.chunks(tile).zip(places) {
                    to[..from.len()].copy_from_slice(from);
                }
            }
        } else {
            for (r, at) in rows.clone().enumerate() {
                left[r / tile * size + i * tile + r % tile] =
                    a.data[at * a.row_stride + c * a.col_stride];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn naive(a: Matrix<'_, f32>, b: Matrix<'_, f32>) -> Vec<f32> {
        let mut c = vec![0.0; a.rows * b.cols];
        for i in 0..a.rows {
            for j in 0..b.cols {
                c[i * b.cols + j] = (0..a.cols)
                    .map(|p| {
                        a.data[i * a.row_stride + p * a.col_stride]
                            * b.data[p * b.row_stride + j * b.col_stride]
                    })
                    .sum();
            }
        }
        c
    }

    #[test]
    fn a_product_is_added_to_a_block_of_a_larger_matrix() {
        let (m, k, n, stride) = (13, 9, 21, 30);
        let a: Vec<f32> = (0..m * k).map(|i| ((i * 7) % 13) as f32 - 6.0).collect();
        let b: Vec<f32> = (0..k * n).map(|i| ((i * 5) % 11) as f32 - 5.0).collect();
        let (a, b) = (
            Matrix::dense(&a, m, k, false),
            Matrix::dense(&b, k, n, false),
        );
        let mut c = vec![1.0f32; (m - 1) * stride + n];
        add_product(&mut c, stride, a, b, false);
        let want = naive(a, b);
        for (i, v) in c.iter().enumerate() {
            let (row, col) = (i / stride, i % stride);
            let added = if col < n { want[row * n + col] } else { 0.0 };
            assert_eq!(*v, 1.0 + added);
        }
    }

    #[test]
    fn products_agree_with_the_definition_for_every_transpose_and_split() {
        for (m, k, n) in [
            (1, 1, 1),
            (3, 4, 5),
            (1, 300, 65),
            (100, 784, 10),
            (130, 200, 300),
            (300, 200, 7),
            (11, 520, 33),
            (2, 0, 3),
            (70, 100, 200),
            (49, 129, 98),
            (5, 2100, 16),
            (9, 1, 10),
            (9, 2, 1),
        ] {
            let a: Vec<f32> = (0..m * k).map(|i| ((i * 7) % 13) as f32 - 6.0).collect();
            let b: Vec<f32> = (0..k * n).map(|i| ((i * 5) % 11) as f32 - 5.0).collect();
            for (ta, tb) in [(false, false), (true, false), (false, true), (true, true)] {
                let ma = if ta {
                    Matrix::dense(&a, k, m, true)
                } else {
                    Matrix::dense(&a, m, k, false)
                };
                let mb = if tb {
                    Matrix::dense(&b, n, k, true)
                } else {
                    Matrix::dense(&b, k, n, false)
                };
                let mut c = product(vec![f32::NAN; 3], ma, mb, true);
                assert_eq!(c, naive(ma, mb), "{m}x{k}x{n} {ta} {tb}");
                multiply(&mut c, ma, mb, true, false);
                let twice: Vec<f32> = naive(ma, mb).iter().map(|v| v * 2.0).collect();
                assert_eq!(c, twice);
            }
        }
    }
}
