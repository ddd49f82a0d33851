//! Householder reflections: what turns a column into a multiple of the first unit vector.

use super::blocked::{dot, subtract};
use super::field::{Dense, Field};
use crate::math::isa::{Isa, Loop, dispatch};
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
        dispatch(Left {
            r: self,
            a,
            cols,
            tau,
        });
    }

    /// The rows `rows` of `a` become a H.
    pub(super) fn after(&self, a: &mut Dense<C>, rows: Range<usize>) {
        dispatch(After { r: self, a, rows });
    }
}

struct Left<'a, C> {
    r: &'a Reflector<C>,
    a: &'a mut Dense<C>,
    cols: Range<usize>,
    tau: C,
}

impl<C: Field> Loop for Left<'_, C> {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        let width = self.a.cols;
        let (start, len) = (self.r.first * width + self.cols.start, self.cols.len());
        let mut dots = vec![C::ZERO; len];
        for (i, v) in self.r.v.iter().enumerate() {
            let row = &self.a.values[start + i * width..start + i * width + len];
            subtract(&mut dots, -v.conj(), row);
        }
        for (i, v) in self.r.v.iter().enumerate() {
            let row = &mut self.a.values[start + i * width..start + i * width + len];
            subtract(row, self.tau * *v, &dots);
        }
    }
}

struct After<'a, C> {
    r: &'a Reflector<C>,
    a: &'a mut Dense<C>,
    rows: Range<usize>,
}

impl<C: Field> Loop for After<'_, C> {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        let v = &self.r.v;
        let mut turned = Vec::with_capacity(v.len());
        for v in v {
            turned.push(v.conj());
        }
        for i in self.rows {
            let start = i * self.a.cols + self.r.first;
            let row = &mut self.a.values[start..start + v.len()];
            let f = self.r.tau * dot(row, v);
            subtract(row, f, &turned);
        }
    }
}

/// The product of the reflections, in order, cut to `cols` columns.
pub(super) fn product<C: Field>(reflectors: &[Reflector<C>], rows: usize, cols: usize) -> Dense<C> {
    let mut q = Dense::new(rows, cols, vec![C::ZERO; rows * cols]);
    (0..rows.min(cols)).for_each(|i| *q.at(i, i) = C::ONE);
    for r in reflectors.iter().rev() {
        // Columns before its first are still those of the identity, which it does not change.
        r.times(&mut q, r.first.min(cols)..cols);
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
    dispatch(Turn { x, y, c, s });
}

struct Turn<'a, C> {
    x: &'a mut [C],
    y: &'a mut [C],
    c: f64,
    s: f64,
}

impl<C: Field> Loop for Turn<'_, C> {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        for (x, y) in self.x.iter_mut().zip(self.y) {
            let (old_x, old_y) = (*x, *y);
            *x = old_x.times_real(self.c) + old_y.times_real(self.s);
            *y = old_y.times_real(self.c) - old_x.times_real(self.s);
        }
    }
}
