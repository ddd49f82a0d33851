//! One fused pass over several arrays of equal length, some written and one read, cut into parts
//! that run in parallel. Safe because every part owns its own piece of every slice.
//!
//! The inner loops take each slice as a parameter of its own, which tells the compiler that they
//! do not overlap, so that it vectorises them; those over floats are compiled for wide registers.

use crate::math::isa::{Isa, Loop, dispatch, prefetch_run};
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

/// Row numbers with their places, in the order of the rows and then of the places.
fn sorted_rows(rows: &[usize]) -> Vec<(usize, usize)> {
    let is_narrow = |n: usize| u32::try_from(n).is_ok();
    if is_narrow(rows.len()) && rows.iter().all(|&row| is_narrow(row)) {
        // Both in one number: half the memory, and one comparison.
        let packed = rows
            .iter()
            .zip(0u64..)
            .map(|(&row, k)| (row as u64) << 32 | k);
        let mut packed: Vec<u64> = packed.collect();
        packed.sort_unstable();
        let pair = |p: &u64| ((p >> 32) as usize, (p & u64::from(u32::MAX)) as usize);
        return packed.iter().map(pair).collect();
    }
    let mut order: Vec<(usize, usize)> = rows.iter().copied().zip(0..).collect();
    order.sort_unstable();
    order
}

/// Which row of the arrays each row of the gradient belongs to.
pub(crate) struct Rows<'a> {
    /// Row numbers, already checked against the arrays.
    pub(crate) rows: &'a [usize],
    /// Elements in a row.
    pub(crate) inner: usize,
}

/// Runs `body` on the rows of `slices` that `rows` names, with the matching row of `read`. A row
/// named twice is visited twice, in order.
pub(crate) fn over_rows<T: Send + Sync, const N: usize>(
    mut slices: [&mut [T]; N],
    at: &Rows<'_>,
    read: &[T],
    body: impl Fn([&mut [T]; N], &[T]) + Sync,
) {
    let inner = at.inner;
    if inner == 0 || at.rows.is_empty() {
        return;
    }
    let visit = |slices: &mut [&mut [T]; N], row: usize, k: usize| {
        let mut parts = slices.iter_mut();
        let row: [&mut [T]; N] = std::array::from_fn(|_| {
            parts
                .next()
                .map_or(&mut [][..], |s| &mut s[row * inner..(row + 1) * inner])
        });
        body(row, &read[k * inner..(k + 1) * inner]);
    };
    let parts = part_count(read.len()).min(at.rows.len());
    if parts == 1 {
        for (k, &row) in at.rows.iter().enumerate() {
            visit(&mut slices, row, k);
        }
        return;
    }
    // Rows do not depend on each other, so visiting them in row order gives the same result; the
    // stable sort keeps the order of repeats of one row, and no row may straddle two parts.
    let order = sorted_rows(at.rows);
    let mut list = Vec::with_capacity(parts);
    let (mut rest, mut first_row) = (&order[..], 0);
    for part in 0..parts {
        let done = order.len() - rest.len();
        let mut end = (order.len() * (part + 1) / parts).saturating_sub(done);
        while end > 0 && end < rest.len() && rest[end].0 == rest[end - 1].0 {
            end += 1;
        }
        if end == 0 {
            continue;
        }
        let (mine, others) = rest.split_at(end);
        rest = others;
        let last_row = mine[end - 1].0;
        let mine_slices = split_off(&mut slices, (last_row + 1 - first_row) * inner);
        list.push((mine_slices, first_row, mine));
        first_row = last_row + 1;
    }
    in_parallel(list, |(mut slices, first_row, mine)| {
        for (i, &(row, k)) in mine.iter().enumerate() {
            if let Some(&(row, k)) = mine.get(i + AHEAD) {
                let to = (row - first_row) * inner;
                slices.iter().for_each(|s| prefetch_run(s, to, inner));
                prefetch_run(read, k * inner, inner);
            }
            visit(&mut slices, row - first_row, k);
        }
    });
}

macro_rules! passes {
    ($n:literal, $dense:ident, $sparse:ident, $inner:ident, $wide:ident, $(($a:ident, $b:ident)),+) => {
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

        /// The same for some rows of the arrays.
        pub(super) fn $sparse<T: Element>(
            arrays: [&mut [T]; $n],
            at: &Rows<'_>,
            grad: &[T],
            f: impl Fn([T; $n], T) -> [T; $n] + Sync + Copy,
        ) {
            over_rows(arrays, at, grad, |arrays, grad| $wide { arrays, grad, f }.go());
        }
    };
}
passes!(1, dense1, sparse1, pass1, Pass1, (a, p));
passes!(2, dense2, sparse2, pass2, Pass2, (a, p), (b, q));
passes!(3, dense3, sparse3, pass3, Pass3, (a, p), (b, q), (c, r));
passes!(
    4,
    dense4,
    sparse4,
    pass4,
    Pass4,
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
    fn rows_are_sorted_with_their_places_however_large_they_are() {
        let rows = [7, 3, 7, 0, 3];
        let want = [(0, 3), (3, 1), (3, 4), (7, 0), (7, 2)];
        assert_eq!(sorted_rows(&rows), want);
        let far = 1 << 40;
        let rows = rows.map(|r| r + far);
        assert_eq!(sorted_rows(&rows), want.map(|(r, k)| (r + far, k)));
    }
}
