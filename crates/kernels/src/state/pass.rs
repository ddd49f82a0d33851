//! One fused pass over several arrays of equal length, some written and one read, cut into parts
//! that run in parallel. Safe because every part owns its own piece of every slice.
//!
//! The inner loops take each slice as a parameter of its own, which tells the compiler that they
//! do not overlap, so that it vectorises them; those over floats are compiled for wide registers.

use crate::math::isa::{Isa, Loop, Plain, dispatch, prefetch_run};
use downpour_tensor::{DType, Element};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Elements below which a part is not worth a thread.
const GRAIN: usize = 16 << 10;

/// Runs `body` on each part, in parallel. Parts must be independent.
fn in_parallel<P: Send>(parts: Vec<P>, body: impl Fn(P) + Sync) {
    let threads = rayon::current_num_threads().min(parts.len());
    if threads <= 1 {
        parts.into_iter().for_each(body);
        return;
    }
    let parts: Vec<Mutex<Option<P>>> = parts.into_iter().map(|p| Mutex::new(Some(p))).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(part) = parts.get(next.fetch_add(1, Ordering::Relaxed)) {
            let part = part.lock().take();
            if let Some(part) = part {
                body(part);
            }
        }
    };
    rayon::in_place_scope(|scope| {
        for _ in 1..threads {
            scope.spawn(|_| work());
        }
        work();
    });
}

/// How many parts to cut `elements` into.
fn part_count(elements: usize) -> usize {
    let threads = rayon::current_num_threads();
    if threads == 1 {
        1
    } else {
        (elements / GRAIN).clamp(1, threads * 4)
    }
}

/// Splits each slice off at `at`, leaving the rest behind.
fn split_off<'a, T, const N: usize>(rest: &mut [&'a mut [T]; N], at: usize) -> [&'a mut [T]; N] {
    std::array::from_fn(|i| {
        let (head, tail) = std::mem::take(&mut rest[i]).split_at_mut(at);
        rest[i] = tail;
        head
    })
}

/// Cuts `slices`, all as long as `read`, into parts of about equal size and runs `body` on each.
fn over_parts<T: Send + Sync, const N: usize>(
    mut slices: [&mut [T]; N],
    read: &[T],
    body: impl Fn([&mut [T]; N], &[T]) + Sync,
) {
    let total = read.len();
    let parts = part_count(total);
    if parts == 1 {
        return body(slices, read);
    }
    let mut list = Vec::with_capacity(parts);
    for part in 0..parts {
        let (start, end) = (total * part / parts, total * (part + 1) / parts);
        list.push((split_off(&mut slices, end - start), &read[start..end]));
    }
    in_parallel(list, |(slices, read)| body(slices, read));
}

/// Rows that are asked for before they are worked on: their places are known, and memory is slow.
const AHEAD: usize = 8;

/// Bins that rows are grouped into: enough that the rows of one lie near each other in memory.
const BINS: usize = 256;

/// Row numbers with their places in the gradient, grouped by bins of neighbouring rows.
struct Binned {
    /// Bins in the order of their rows; within a bin in the order the rows came.
    order: Vec<(usize, usize)>,
    /// Where each bin ends in `order`.
    ends: [usize; BINS],
    /// A row's number shifted right by this is its bin.
    shift: u32,
}

impl Binned {
    /// Groups `rows`, all of them below `limit`.
    fn new(rows: &[usize], limit: usize) -> Binned {
        let bits = usize::BITS - limit.saturating_sub(1).leading_zeros();
        let shift = bits.saturating_sub(BINS.trailing_zeros());
        let mut ends = [0; BINS];
        for row in rows {
            ends[row >> shift] += 1;
        }
        let mut sum = 0;
        for end in &mut ends {
            // Where the bin begins: it moves to the bin's end as rows are put in.
            sum += std::mem::replace(end, sum);
        }
        let mut order = vec![(0, 0); rows.len()];
        for (k, &row) in rows.iter().enumerate() {
            let at = &mut ends[row >> shift];
            order[*at] = (row, k);
            *at += 1;
        }
        Binned { order, ends, shift }
    }

    /// Cuts into at most about `parts` runs of whole bins: the run and the row that it ends before.
    fn parts(&self, parts: usize) -> Vec<(&[(usize, usize)], usize)> {
        let least = self.order.len().div_ceil(parts);
        let mut list = Vec::with_capacity(parts + 1);
        let mut start = 0;
        for (bin, &end) in self.ends.iter().enumerate() {
            if end - start >= least || (bin == BINS - 1 && end > start) {
                list.push((&self.order[start..end], (bin + 1) << self.shift));
                start = end;
            }
        }
        list
    }
}

/// Which row of the arrays each row of the gradient belongs to.
pub(crate) struct Rows<'a> {
    /// Row numbers, already checked against the arrays.
    pub(crate) rows: &'a [usize],
    /// Elements in a row.
    pub(crate) inner: usize,
}

/// What is done to a row of the arrays with its row of the gradient.
trait RowStep<T, const N: usize>: Sync {
    /// Changes the row; `#[inline(always)]` where it is to be compiled for wide registers.
    fn step(&self, row: [&mut [T]; N], read: &[T]);
}

/// A function of whole rows.
struct Whole<F>(F);

impl<T, const N: usize, F: Fn([&mut [T]; N], &[T]) + Sync> RowStep<T, N> for Whole<F> {
    #[inline(always)]
    fn step(&self, row: [&mut [T]; N], read: &[T]) {
        (self.0)(row, read);
    }
}

/// A walk over rows of slices that begin with row `first_row`: `place` gives the i-th row and the
/// gradient's row for it.
struct RowsLoop<'a, T, S, P, const N: usize> {
    slices: [&'a mut [T]; N],
    first_row: usize,
    inner: usize,
    place: P,
    read: &'a [T],
    step: &'a S,
}

impl<T, S, P, const N: usize> Loop for RowsLoop<'_, T, S, P, N>
where
    S: RowStep<T, N>,
    P: Fn(usize) -> Option<(usize, usize)>,
{
    type Out = ();

    #[inline(always)]
    fn run<I: Isa>(mut self) {
        let inner = self.inner;
        let mut i = 0;
        while let Some((row, k)) = (self.place)(i) {
            if let Some((row, k)) = (self.place)(i + AHEAD) {
                let to = (row - self.first_row) * inner;
                for slice in &self.slices {
                    prefetch_run(slice, to, inner);
                }
                prefetch_run(self.read, k * inner, inner);
            }
            let at = (row - self.first_row) * inner;
            let rows = self.slices.each_mut().map(|s| &mut s[at..at + inner]);
            self.step.step(rows, &self.read[k * inner..(k + 1) * inner]);
            i += 1;
        }
    }
}

/// Runs `body` on the rows of `slices` that `at` names, with the matching row of `read`. A row
/// named twice is visited twice, in order.
pub(crate) fn over_rows<T: Send + Sync, const N: usize>(
    slices: [&mut [T]; N],
    at: &Rows<'_>,
    read: &[T],
    body: impl Fn([&mut [T]; N], &[T]) + Sync,
) {
    walk_rows::<T, N, false>(slices, at, read, Whole(body));
}

/// The same; `WIDE`: compiled for several instruction sets.
fn walk_rows<T: Send + Sync, const N: usize, const WIDE: bool>(
    mut slices: [&mut [T]; N],
    at: &Rows<'_>,
    read: &[T],
    step: impl RowStep<T, N>,
) {
    let inner = at.inner;
    if inner == 0 || at.rows.is_empty() {
        return;
    }
    let step = &step;
    fn go<const WIDE: bool>(rows: impl Loop<Out = ()>) {
        if WIDE {
            dispatch(rows);
        } else {
            rows.run::<Plain>();
        }
    }
    let parts = part_count(read.len()).min(at.rows.len());
    if parts == 1 {
        let place = |i: usize| at.rows.get(i).map(|&row| (row, i));
        let first_row = 0;
        return go::<WIDE>(RowsLoop {
            slices,
            first_row,
            inner,
            place,
            read,
            step,
        });
    }
    // Rows do not depend on each other, so bins may be visited apart; repeats of one row are in
    // one bin, in order.
    let limit = slices.first().map_or(0, |s| s.len() / inner);
    let binned = Binned::new(at.rows, limit);
    let mut list = Vec::with_capacity(parts + 1);
    let mut first_row = 0;
    for (mine, end) in binned.parts(parts) {
        let end = end.min(limit);
        let slices = split_off(&mut slices, (end - first_row) * inner);
        list.push((slices, first_row, mine));
        first_row = end;
    }
    in_parallel(list, |(slices, first_row, mine)| {
        let place = |i: usize| mine.get(i).copied();
        go::<WIDE>(RowsLoop {
            slices,
            first_row,
            inner,
            place,
            read,
            step,
        });
    });
}

/// Elements of a row that are worked on as one array, whose length the compiler knows: rows are too
/// short for a loop that unrolls itself.
const CHUNK: usize = 16;

macro_rules! passes {
    ($n:literal, $dense:ident, $sparse:ident, $inner:ident, $wide:ident, $row:ident, $(($a:ident, $b:ident)),+) => {
        #[inline(always)]
        fn $inner<T: Copy>($($a: &mut [T],)+ grad: &[T], f: impl Fn([T; $n], T) -> [T; $n]) {
            let n = grad.len();
            $(let $a = &mut $a[..n];)+
            for i in 0..n {
                let [$($b),+] = f([$($a[i]),+], grad[i]);
                $($a[i] = $b;)+
            }
        }

        struct $wide<'a, T, F> {
            arrays: [&'a mut [T]; $n],
            grad: &'a [T],
            f: F,
        }

        impl<T: Copy, F: Fn([T; $n], T) -> [T; $n]> Loop for $wide<'_, T, F> {
            type Out = ();

            #[inline(always)]
            fn run<I: Isa>(self) {
                let [$($a),+] = self.arrays;
                $inner($($a,)+ self.grad, self.f);
            }
        }

        impl<T: Element, F: Fn([T; $n], T) -> [T; $n]> $wide<'_, T, F> {
            #[inline(never)]
            fn go(self) {
                // Other types are rare enough that three copies of the loop are not worth it.
                if const { matches!(T::DTYPE, DType::Float) } {
                    dispatch(self);
                } else {
                    let [$($a),+] = self.arrays;
                    $inner($($a,)+ self.grad, self.f);
                }
            }
        }

        /// Replaces each element of the arrays by what `f` makes of it and the gradient's.
        pub(super) fn $dense<T: Element>(
            arrays: [&mut [T]; $n],
            grad: &[T],
            f: impl Fn([T; $n], T) -> [T; $n] + Sync + Copy,
        ) {
            over_parts(arrays, grad, |arrays, grad| $wide { arrays, grad, f }.go());
        }

        struct $row<F>(F);

        impl<T: Copy, F: Fn([T; $n], T) -> [T; $n] + Sync> RowStep<T, $n> for $row<F> {
            #[inline(always)]
            fn step(&self, arrays: [&mut [T]; $n], grad: &[T]) {
                let [$($a),+] = arrays;
                $(let ($a, $b) = $a.as_chunks_mut::<CHUNK>();)+
                let (whole, rest) = grad.as_chunks::<CHUNK>();
                for (i, grad) in whole.iter().enumerate() {
                    $inner($(&mut $a[i],)+ grad, &self.0);
                }
                $inner($($b,)+ rest, &self.0);
            }
        }

        /// The same for some rows of the arrays.
        pub(super) fn $sparse<T: Element>(
            arrays: [&mut [T]; $n],
            at: &Rows<'_>,
            grad: &[T],
            f: impl Fn([T; $n], T) -> [T; $n] + Sync + Copy,
        ) {
            // Other types are rare enough that three copies of the loop are not worth it.
            if const { matches!(T::DTYPE, DType::Float) } {
                walk_rows::<T, $n, true>(arrays, at, grad, $row(f));
            } else {
                walk_rows::<T, $n, false>(arrays, at, grad, $row(f));
            }
        }
    };
}
passes!(1, dense1, sparse1, pass1, Pass1, Row1, (a, p));
passes!(2, dense2, sparse2, pass2, Pass2, Row2, (a, p), (b, q));
passes!(
    3,
    dense3,
    sparse3,
    pass3,
    Pass3,
    Row3,
    (a, p),
    (b, q),
    (c, r)
);
passes!(
    4,
    dense4,
    sparse4,
    pass4,
    Pass4,
    Row4,
    (a, p),
    (b, q),
    (c, r),
    (d, s)
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dense_pass_visits_each_element_once_however_it_is_cut() {
        for n in [0, 1, GRAIN - 1, 7 * GRAIN + 3] {
            let mut a: Vec<f64> = (0..n).map(|i| i as f64).collect();
            let mut b = vec![0.0; n];
            let g = vec![2.0; n];
            dense2([&mut a, &mut b], &g, |[a, b], g| [a + g, b + a]);
            assert!(a.iter().enumerate().all(|(i, &x)| x == i as f64 + 2.0));
            assert!(b.iter().enumerate().all(|(i, &x)| x == i as f64));
        }
    }

    #[test]
    fn repeated_rows_are_applied_in_order_also_in_parallel() {
        let inner = 64;
        let rows: Vec<usize> = (0..4096).map(|k| (k * 7) % 100).collect();
        let grad: Vec<f64> = (0..rows.len() * inner).map(|i| (i % 13) as f64).collect();
        let step = |x: f64, g: f64| x * 0.5 + g;
        let mut expected = vec![1.0; 120 * inner];
        for (k, &row) in rows.iter().enumerate() {
            for i in 0..inner {
                let x = &mut expected[row * inner + i];
                *x = step(*x, grad[k * inner + i]);
            }
        }
        let mut got = vec![1.0; 120 * inner];
        let at = Rows { rows: &rows, inner };
        sparse1([&mut got], &at, &grad, |[x], g| [step(x, g)]);
        assert!(rows.len() * inner > 4 * GRAIN);
        assert_eq!(got, expected);
    }

    #[test]
    fn rows_are_grouped_with_their_places_however_many_there_are() {
        for limit in [1usize, 2, 100, 256, 257, 5000, 1 << 20] {
            let rows: Vec<usize> = (0..3000).map(|k| (k * 7919) % limit).collect();
            let binned = Binned::new(&rows, limit);
            let mut want: Vec<(usize, usize)> = rows.iter().copied().zip(0..).collect();
            want.sort_by_key(|(row, _)| row >> binned.shift);
            assert_eq!(binned.order, want, "{limit}");
            let (mut covered, mut from) = (0, 0);
            for (part, end) in binned.parts(8) {
                assert!(part.iter().all(|(row, _)| (from..end).contains(row)));
                covered += part.len();
                from = end;
            }
            assert_eq!(covered, rows.len());
            assert!(from >= limit || rows.iter().all(|row| *row < from));
        }
    }

    #[test]
    fn rows_of_every_length_are_stepped_through() {
        for inner in [1, 15, 16, 17, 35, 48] {
            let mut a: Vec<f32> = vec![1.0; 10 * inner];
            let mut b = vec![0.0; 10 * inner];
            let grad: Vec<f32> = (0..3 * inner).map(|i| i as f32).collect();
            let at = Rows {
                rows: &[9, 0, 9],
                inner,
            };
            sparse2([&mut a, &mut b], &at, &grad, |[a, b], g| [a + g, b + 1.0]);
            for i in 0..inner {
                assert_eq!(a[i], 1.0 + (inner + i) as f32);
                assert_eq!(a[9 * inner + i], 1.0 + (i + 2 * inner + i) as f32);
                assert_eq!((b[i], b[inner], b[9 * inner + i]), (1.0, 0.0, 2.0));
            }
        }
    }
}
