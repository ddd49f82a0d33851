//! Factorisations and solutions of larger matrices, cut into panels: a panel is worked on column by column, and what it
//! means for the rest of the matrix is one product. Row-major throughout, whatever is inner runs along rows.

use super::field::{Dense, Field};
use super::gemm::{Matrix, add_product};
use crate::math::isa::{Isa, Loop, dispatch};
use std::ops::Range;

/// Columns of a panel: the rows of a panel of doubles are a few cache lines each.
const PANEL: usize = 48;

/// `y -= f·x`.
#[inline(always)]
pub(super) fn subtract<C: Field>(y: &mut [C], f: C, x: &[C]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = *y - f * *x;
    }
}

/// The sum of products, in eight sums side by side.
#[inline(always)]
pub(super) fn dot<C: Field>(x: &[C], y: &[C]) -> C {
    let ((xs, x), (ys, y)) = (x.as_chunks::<8>(), y.as_chunks::<8>());
    let mut sums = [C::ZERO; 8];
    for (x, y) in xs.iter().zip(ys) {
        for i in 0..8 {
            sums[i] = sums[i] + x[i] * y[i];
        }
    }
    let mut sum = C::ZERO;
    for v in sums {
        sum = sum + v;
    }
    for (x, y) in x.iter().zip(y) {
        sum = sum + *x * *y;
    }
    sum
}

/// The block of `a` at `rows` and `cols`, each value negated: products are added.
fn negated<C: Field>(a: &[C], stride: usize, rows: Range<usize>, cols: Range<usize>) -> Vec<C> {
    let row = |i: usize| &a[i * stride + cols.start..i * stride + cols.end];
    rows.flat_map(row).map(|v| -*v).collect()
}

/// Eliminates within columns `from..to` of a square matrix, exchanging whole rows.
struct LuPanel<'a, C> {
    a: &'a mut Dense<C>,
    order: &'a mut [usize],
    from: usize,
    to: usize,
}

impl<C: Field> Loop for LuPanel<'_, C> {
    /// Whether the number of exchanges is odd.
    type Out = bool;
    #[inline(always)]
    fn run<I: Isa>(self) -> bool {
        let LuPanel { a, order, from, to } = self;
        let n = a.rows;
        let mut odd = false;
        for k in from..to {
            let (mut pivot, mut largest) = (k, a.get(k, k).abs());
            for i in k + 1..n {
                let size = a.get(i, k).abs();
                if size > largest {
                    (pivot, largest) = (i, size);
                }
            }
            if pivot != k {
                a.swap_rows(k, pivot);
                order.swap(k, pivot);
                odd = !odd;
            }
            let d = a.get(k, k);
            if d == C::ZERO {
                continue;
            }
            let (above, below) = a.values.split_at_mut((k + 1) * n);
            let top = &above[k * n + k + 1..k * n + to];
            for row in below.chunks_exact_mut(n) {
                let f = row[k] / d;
                row[k] = f;
                subtract(&mut row[k + 1..to], f, top);
            }
        }
        // The rows of the panel to the right of it.
        for i in from + 1..to {
            let (above, below) = a.values.split_at_mut(i * n);
            let row = &mut below[..n];
            for k in from..i {
                let f = row[k];
                subtract(&mut row[to..], f, &above[k * n + to..(k + 1) * n]);
            }
        }
        odd
    }
}

/// Factorises a square matrix in place, with row exchanges: gives the order of rows, and its sign.
pub(super) fn lu<C: Field>(a: &mut Dense<C>) -> (Vec<usize>, f64) {
    let n = a.rows;
    let mut order: Vec<usize> = (0..n).collect();
    let mut sign = 1.0;
    for from in (0..n).step_by(PANEL) {
        let to = (from + PANEL).min(n);
        let order = &mut order;
        if dispatch(LuPanel { a, order, from, to }) {
            sign = -sign;
        }
        if to == n {
            break;
        }
        let left = negated(&a.values, n, to..n, from..to);
        let (above, below) = a.values.split_at_mut(to * n);
        let right = Matrix {
            data: &above[from * n + to..],
            rows: to - from,
            cols: n - to,
            row_stride: n,
            col_stride: 1,
        };
        let left = Matrix::dense(&left, n - to, to - from, false);
        add_product(&mut below[to..], n, left, right, true);
    }
    (order, sign)
}

/// How a triangle is solved.
#[derive(Clone, Copy)]
pub(super) struct Triangle {
    /// From the first row on: a lower triangle.
    pub(super) forwards: bool,
    /// The diagonal counts as ones.
    pub(super) unit: bool,
}

/// Solves for the rows `rows` alone, of which none depends on others any more.
struct Diagonal<'a, C> {
    a: &'a Dense<C>,
    x: &'a mut [C],
    cols: usize,
    rows: Range<usize>,
    kind: Triangle,
}

impl<C: Field> Loop for Diagonal<'_, C> {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        let Diagonal {
            a,
            x,
            cols,
            rows,
            kind,
        } = self;
        for step in 0..rows.len() {
            if kind.forwards {
                let i = rows.start + step;
                let (known, rest) = x.split_at_mut(i * cols);
                let row = &mut rest[..cols];
                for k in rows.start..i {
                    subtract(row, a.get(i, k), &known[k * cols..(k + 1) * cols]);
                }
                divide(row, a.get(i, i), kind);
            } else {
                let i = rows.end - 1 - step;
                let (rest, known) = x.split_at_mut((i + 1) * cols);
                let row = &mut rest[i * cols..];
                for k in i + 1..rows.end {
                    let at = k - i - 1;
                    subtract(row, a.get(i, k), &known[at * cols..(at + 1) * cols]);
                }
                divide(row, a.get(i, i), kind);
            }
        }
    }
}

#[inline(always)]
fn divide<C: Field>(row: &mut [C], d: C, kind: Triangle) {
    if !kind.unit {
        for v in row {
            *v = *v / d;
        }
    }
}

/// One right-hand side: each row is one sum along the triangle's row.
struct Vector<'a, C> {
    a: &'a Dense<C>,
    x: &'a mut [C],
    kind: Triangle,
}

impl<C: Field> Loop for Vector<'_, C> {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        let (a, x, n) = (self.a, self.x, self.a.rows);
        for step in 0..n {
            let i = if self.kind.forwards {
                step
            } else {
                n - 1 - step
            };
            let row = &a.values[i * n..(i + 1) * n];
            let known = match self.kind.forwards {
                true => dot(&row[..i], &x[..i]),
                false => dot(&row[i + 1..], &x[i + 1..]),
            };
            let v = x[i] - known;
            x[i] = if self.kind.unit { v } else { v / row[i] };
        }
    }
}

/// `x`, rows of `cols` numbers, becomes the solution of A·X = X for a triangle of `a`.
pub(super) fn solve_triangle<C: Field>(a: &Dense<C>, x: &mut [C], cols: usize, kind: Triangle) {
    let n = a.rows;
    if n == 0 || cols == 0 {
        return;
    }
    if cols == 1 {
        dispatch(Vector { a, x, kind });
        return;
    }
    let panels = n.div_ceil(PANEL);
    for p in 0..panels {
        let p = if kind.forwards { p } else { panels - 1 - p };
        let rows = p * PANEL..((p + 1) * PANEL).min(n);
        dispatch(Diagonal {
            a,
            x,
            cols,
            rows: rows.clone(),
            kind,
        });
        // Everything that still waits for these rows.
        let later = if kind.forwards {
            rows.end..n
        } else {
            0..rows.start
        };
        let left = negated(&a.values, n, later.clone(), rows.clone());
        let left = Matrix::dense(&left, later.len(), rows.len(), false);
        let (above, below) = match kind.forwards {
            true => x.split_at_mut(rows.end * cols),
            false => x.split_at_mut(rows.start * cols),
        };
        let (known, open) = match kind.forwards {
            true => (&above[rows.start * cols..], below),
            false => (&below[..rows.len() * cols], above),
        };
        let right = Matrix::dense(known, rows.len(), cols, false);
        add_product(open, cols, left, right, true);
    }
}

/// Factorises the diagonal block `from..to` and the rows below it.
struct CholeskyPanel<'a, C> {
    a: &'a mut Dense<C>,
    from: usize,
    to: usize,
}

impl<C: Field> Loop for CholeskyPanel<'_, C> {
    /// Whether all pivots were positive.
    type Out = bool;
    #[inline(always)]
    fn run<I: Isa>(self) -> bool {
        let CholeskyPanel { a, from, to } = self;
        let n = a.rows;
        let mut turned = [C::ZERO; PANEL * PANEL];
        for k in from..to {
            let d = a.get(k, k).re();
            // A NaN fails as well.
            if d.is_nan() || d <= 0.0 {
                return false;
            }
            let d = C::real(d.sqrt());
            *a.at(k, k) = d;
            let column = &mut turned[(k - from) * PANEL..(k - from + 1) * PANEL];
            column[k - from] = d;
            for i in k + 1..to {
                let v = a.get(i, k) / d;
                *a.at(i, k) = v;
                column[i - from] = v.conj();
            }
            for i in k + 1..to {
                let row = &mut a.values[i * n + from..i * n + to];
                let f = row[k - from];
                let own = k + 1 - from..i + 1 - from;
                subtract(&mut row[own.clone()], f, &column[own]);
            }
        }
        let width = to - from;
        for i in to..n {
            let row = &mut a.values[i * n + from..i * n + to];
            for k in 0..width {
                let column = &turned[k * PANEL + k..k * PANEL + width];
                let f = row[k] / column[0];
                row[k] = f;
                subtract(&mut row[k + 1..], f, &column[1..]);
            }
        }
        true
    }
}

/// The lower triangular factor in the lower triangle of `a`; `false` if the matrix is not positive definite.
pub(super) fn cholesky<C: Field>(a: &mut Dense<C>) -> bool {
    let n = a.rows;
    for from in (0..n).step_by(PANEL) {
        let to = (from + PANEL).min(n);
        if !dispatch(CholeskyPanel { a, from, to }) {
            return false;
        }
        let width = to - from;
        let left = negated(&a.values, n, to..n, from..to);
        let mut right = Vec::with_capacity(left.len());
        for k in 0..width {
            right.extend((0..n - to).map(|i| -left[i * width + k].conj()));
        }
        // Only what lies below the diagonal, by strips of rows.
        for start in (to..n).step_by(PANEL) {
            let end = (start + PANEL).min(n);
            let rows = &left[(start - to) * width..(end - to) * width];
            let right = Matrix {
                data: &right,
                rows: width,
                cols: end - to,
                row_stride: n - to,
                col_stride: 1,
            };
            let rows = Matrix::dense(rows, end - start, width, false);
            add_product(&mut a.values[start * n + to..], n, rows, right, true);
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use num_complex::Complex64;

    fn number(i: usize) -> Complex64 {
        let i = i as f64;
        Complex64::new((i * 1.7).sin(), (i * 0.9 + 1.0).cos())
    }

    fn times<C: Field>(a: &Dense<C>, b: &Dense<C>) -> Dense<C> {
        let mut c = Dense::new(a.rows, b.cols, vec![C::ZERO; a.rows * b.cols]);
        for i in 0..a.rows {
            for j in 0..b.cols {
                for k in 0..a.cols {
                    *c.at(i, j) = c.get(i, j) + a.get(i, k) * b.get(k, j);
                }
            }
        }
        c
    }

    fn close<C: Field>(a: &Dense<C>, b: &Dense<C>, what: &str) {
        let far = a.values.iter().zip(&b.values).map(|(a, b)| (*a - *b).abs());
        let worst = far.fold(0.0, f64::max);
        assert!(worst < 1e-9, "{what} {}: {worst}", a.rows);
    }

    fn check<C: Field>(value: fn(usize) -> C) {
        for n in [1, 3, 47, 48, 49, 100, 130] {
            let random = |seed: usize| (0..n * n).map(|i| value(i * 7 + seed)).collect();
            let a: Dense<C> = Dense::new(n, n, random(1));
            let mut f = Dense::new(n, n, a.values.clone());
            let (order, _) = lu(&mut f);
            let part = |low: bool| {
                let mut m = Dense::identity(n);
                for i in 0..n {
                    for j in 0..n {
                        if (j < i) == low && !(low && i == j) {
                            *m.at(i, j) = f.get(i, j);
                        }
                    }
                }
                m
            };
            let rows = order.iter().flat_map(|&r| &a.values[r * n..(r + 1) * n]);
            let permuted = Dense::new(n, n, rows.copied().collect());
            close(&times(&part(true), &part(false)), &permuted, "lu");
            // A·A* with a heavier diagonal is positive definite.
            let mut spd = times(&a, &a.adjoint());
            (0..n).for_each(|i| *spd.at(i, i) = spd.get(i, i) + C::ONE);
            let mut l = Dense::new(n, n, spd.values.clone());
            assert!(cholesky(&mut l));
            for i in 0..n {
                (i + 1..n).for_each(|j| *l.at(i, j) = C::ZERO);
            }
            close(&times(&l, &l.adjoint()), &spd, "cholesky");
            for (cols, forwards) in [(1, true), (1, false), (5, true), (70, false), (20, true)] {
                let t = if forwards {
                    Dense::new(n, n, l.values.clone())
                } else {
                    l.adjoint()
                };
                let b = Dense::new(n, cols, (0..n * cols).map(value).collect());
                let mut x = Dense::new(n, cols, b.values.clone());
                let unit = false;
                solve_triangle(&t, &mut x.values, cols, Triangle { forwards, unit });
                close(&times(&t, &x), &b, "triangle");
            }
        }
    }

    #[test]
    fn factors_multiply_back_and_solutions_fit_for_sizes_around_a_panel() {
        check::<f64>(|i| number(i).re);
        check::<Complex64>(number);
    }
}
