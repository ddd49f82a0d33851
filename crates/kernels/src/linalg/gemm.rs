//! The one door to the GEMM crate: `c = a·b (+ c)` on row-major slices with strides, split over
//! threads by us so that a kernel never waits inside someone else's thread pool.
#![allow(unsafe_code, reason = "the GEMM crate's interface takes raw pointers")]

use downpour_runtime::parallel_for;

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

/// Types the GEMM crate multiplies.
pub(crate) trait Scalar: Copy + Send + Sync + 'static {
    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;
}

impl Scalar for f32 {
    const ZERO: f32 = 0.0;
    const ONE: f32 = 1.0;
}

impl Scalar for f64 {
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;
}

impl Scalar for num_complex::Complex32 {
    const ZERO: Self = Self::new(0.0, 0.0);
    const ONE: Self = Self::new(1.0, 0.0);
}

impl Scalar for num_complex::Complex64 {
    const ZERO: Self = Self::new(0.0, 0.0);
    const ONE: Self = Self::new(1.0, 0.0);
}

/// Multiplications and additions below which splitting over threads costs more than it saves.
const PARALLEL_WORK: usize = 1 << 20;

/// `c = a·b`, or `c += a·b`, with `c` dense and row-major. Splits over threads when `parallel`
/// and there is enough to do. A part of `c` is always computed by one thread in one order, so
/// the result does not depend on the split.
pub(crate) fn multiply<T: Scalar>(
    c: &mut [T],
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    accumulate: bool,
    parallel: bool,
) {
    let (m, n, k) = (a.rows, b.cols, a.cols);
    assert_eq!(k, b.rows, "inner dimensions differ");
    assert_eq!(c.len(), m * n, "the result has another size");
    if m == 0 || n == 0 {
        return;
    }
    if k == 0 {
        if !accumulate {
            c.fill(T::ZERO);
        }
        return;
    }
    assert!(
        a.last().is_some_and(|i| i < a.data.len()),
        "the left matrix reaches past its data"
    );
    assert!(
        b.last().is_some_and(|i| i < b.data.len()),
        "the right matrix reaches past its data"
    );
    let target = Target(c.as_mut_ptr());
    let part = |rows: std::ops::Range<usize>, cols: std::ops::Range<usize>| {
        let target = &target;
        // SAFETY: `a`, `b` and `c` cover every index the strides reach (asserted above); parts
        // given to different threads are disjoint blocks of `c`, and `c` is exclusively borrowed
        // for the whole call. With `read_dst` false the old contents of `c` are not read.
        unsafe {
            gemm::gemm(
                rows.len(),
                cols.len(),
                k,
                target.0.add(rows.start * n + cols.start),
                1,
                n as isize,
                accumulate,
                a.data.as_ptr().add(rows.start * a.row_stride),
                a.col_stride as isize,
                a.row_stride as isize,
                b.data.as_ptr().add(cols.start * b.col_stride),
                b.col_stride as isize,
                b.row_stride as isize,
                T::ONE,
                T::ONE,
                false,
                false,
                false,
                gemm::Parallelism::None,
            );
        }
    };
    let work = m.saturating_mul(n).saturating_mul(k);
    if !parallel || work < 2 * PARALLEL_WORK {
        part(0..m, 0..n);
    } else if n >= m {
        let grain = (PARALLEL_WORK / (m * k).max(1)).max(64);
        parallel_for(n, grain, |cols| part(0..m, cols));
    } else {
        let grain = (PARALLEL_WORK / (n * k).max(1)).max(16);
        parallel_for(m, grain, |rows| part(rows, 0..n));
    }
}

struct Target<T>(*mut T);

// SAFETY: shared only for writing disjoint parts, see `multiply`.
unsafe impl<T: Send> Sync for Target<T> {}

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
    fn products_agree_with_the_definition_for_every_transpose_and_split() {
        for (m, k, n) in [
            (1, 1, 1),
            (3, 4, 5),
            (100, 784, 10),
            (130, 200, 300),
            (300, 200, 7),
            (2, 0, 3),
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
                let mut c = vec![f32::NAN; m * n];
                multiply(&mut c, ma, mb, false, true);
                assert_eq!(c, naive(ma, mb), "{m}x{k}x{n} {ta} {tb}");
                multiply(&mut c, ma, mb, true, false);
                let twice: Vec<f32> = naive(ma, mb).iter().map(|v| v * 2.0).collect();
                assert_eq!(c, twice);
            }
        }
    }
}
