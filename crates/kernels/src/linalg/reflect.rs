//! Householder reflections: what turns a column into a multiple of the first unit vector.

use super::field::{Dense, Field};
use std::ops::Range;

/// H = 1 - tau·v·v*, acting on the coordinates from `first` on.
pub(super) struct Reflector<C> {
    first: usize,
    v: Vec<C>,
    tau: C,
}

impl<C: Field> Reflector<C> {
    /// The reflection whose adjoint takes the column `x`, at coordinates from `first` on, to
    /// `beta` times the first unit vector; `beta` is real. `None` if the column is already so.
    pub(super) fn new(first: usize, mut x: Vec<C>) -> (Option<Reflector<C>>, f64) {
        let Some((&head, rest)) = x.split_first() else {
            return (None, 0.0);
        };
        let tail: f64 = rest.iter().map(|v| v.abs().powi(2)).sum();
        if tail == 0.0 && head == C::real(head.re()) {
            return (None, head.re());
        }
        let norm = (head.abs().powi(2) + tail).sqrt();
        let beta = if head.re() >= 0.0 { -norm } else { norm };
        let scale = head - C::real(beta);
        x.iter_mut().for_each(|v| *v = *v / scale);
        x[0] = C::ONE;
        let tau = (C::real(beta) - head) / C::real(beta);
        (Some(Reflector { first, v: x, tau }), beta)
    }

    /// The columns `cols` of `a` become H* a.
    pub(super) fn adjoint_times(&self, a: &mut Dense<C>, cols: Range<usize>) {
        self.left(a, cols, self.tau.conj());
    }

    /// The columns `cols` of `a` become H a.
    pub(super) fn times(&self, a: &mut Dense<C>, cols: Range<usize>) {
        self.left(a, cols, self.tau);
    }

    fn left(&self, a: &mut Dense<C>, cols: Range<usize>, tau: C) {
        let width = a.cols;
        let row = |i: usize| {
            let start = (self.first + i) * width;
            start + cols.start..start + cols.end
        };
        let mut dots = vec![C::ZERO; cols.len()];
        for (i, v) in self.v.iter().enumerate() {
            let v = v.conj();
            for (dot, x) in dots.iter_mut().zip(&a.values[row(i)]) {
                *dot = *dot + v * *x;
            }
        }
        for (i, v) in self.v.iter().enumerate() {
            let v = tau * *v;
            for (x, dot) in a.values[row(i)].iter_mut().zip(&dots) {
                *x = *x - v * *dot;
            }
        }
    }

    /// The rows `rows` of `a` become a H.
    pub(super) fn after(&self, a: &mut Dense<C>, rows: Range<usize>) {
        for i in rows {
            let start = i * a.cols + self.first;
            let row = &mut a.values[start..start + self.v.len()];
            let dot = row
                .iter()
                .zip(&self.v)
                .fold(C::ZERO, |s, (x, v)| s + *x * *v);
            let dot = self.tau * dot;
            for (x, v) in row.iter_mut().zip(&self.v) {
                *x = *x - dot * v.conj();
            }
        }
    }
}

/// The product of the reflections, in order, cut to `cols` columns.
pub(super) fn product<C: Field>(reflectors: &[Reflector<C>], rows: usize, cols: usize) -> Dense<C> {
    let mut q = Dense::new(rows, cols, vec![C::ZERO; rows * cols]);
    (0..rows.min(cols)).for_each(|i| *q.at(i, i) = C::ONE);
    for r in reflectors.iter().rev() {
        r.times(&mut q, 0..cols);
    }
    q
}

/// Turns two rows of a matrix: (a, b) become (c·a + s·b, c·b - s·a).
pub(super) fn turn_rows<C: Field>(m: &mut Dense<C>, a: usize, b: usize, c: f64, s: f64) {
    let (low, high) = (a.min(b), a.max(b));
    let cols = m.cols;
    let (head, tail) = m.values.split_at_mut(high * cols);
    let (low_row, high_row) = (&mut head[low * cols..(low + 1) * cols], &mut tail[..cols]);
    let (x, y) = if a < b {
        (low_row, high_row)
    } else {
        (high_row, low_row)
    };
    let (c, s) = (C::real(c), C::real(s));
    for (x, y) in x.iter_mut().zip(y) {
        let (old_x, old_y) = (*x, *y);
        *x = c * old_x + s * old_y;
        *y = c * old_y - s * old_x;
    }
}
