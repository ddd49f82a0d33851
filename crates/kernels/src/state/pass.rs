//! One fused pass over several arrays of equal length, some written and one read, cut into parts
//! that run in parallel. Safe because every part owns its own piece of every slice.
//!
//! The inner loops take each slice as a parameter of its own, which tells the compiler that they
//! do not overlap, so that it vectorises them; those over floats are compiled for wide registers.

use super::number::Number;
use crate::math::isa::{Isa, Loop, dispatch, prefetch_run};
use downpour_runtime::{num_threads, parallel_for};
use downpour_tensor::{DType, Element};
use parking_lot::Mutex;

/// Elements below which a part is not worth a thread.
const GRAIN: usize = 16 << 10;

/// Runs `body` on each part, in parallel. Parts must be independent.
fn in_parallel<P: Send>(parts: Vec<P>, body: &(dyn Fn(P) + Sync)) {
    let parts: Vec<Mutex<Option<P>>> = parts.into_iter().map(|p| Mutex::new(Some(p))).collect();
    parallel_for(parts.len(), 1, |range| {
        for part in &parts[range] {
            if let Some(part) = part.lock().take() {
                body(part);
            }
        }
    });
}

/// How many parts to cut `elements` into.
fn part_count(elements: usize) -> usize {
    let threads = num_threads();
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

/// What is done to a part of the arrays, or to a row of them, and its gradient. Called through a pointer, so that
/// only the innermost loop is compiled for each formula and not all that leads to it.
type Body<'a, T, const N: usize> = dyn Fn([&mut [T]; N], &[T]) + Sync + 'a;

/// Cuts `slices`, all as long as `read`, into parts of about equal size and runs `body` on each.
fn over_parts<T: Send + Sync, const N: usize>(
    mut slices: [&mut [T]; N],
    read: &[T],
    body: &Body<'_, T, N>,
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
    in_parallel(list, &|(slices, read)| body(slices, read));
}

/// Rows that are asked for before they are worked on: their places are known, and memory is slow.
const AHEAD: usize = 8;

/// Row numbers with their places, in the order of the rows and then of the places.
fn sorted_rows(rows: &[usize]) -> Vec<(usize, usize)> {
    let is_narrow = |n: usize| u32::try_from(n).is_ok();
    let top = rows.iter().copied().max().unwrap_or(0);
    if is_narrow(rows.len()) && is_narrow(top) {
        // Both in one number: half the memory, and one comparison.
        let packed = rows
            .iter()
            .zip(0u64..)
            .map(|(&row, k)| (row as u64) << 32 | k);
        let mut packed: Vec<u64> = packed.collect();
        if packed.len() < MANY {
            packed.sort_unstable();
        } else {
            packed = by_digits(packed, usize::BITS - top.leading_zeros());
        }
        let pair = |p: &u64| ((p >> 32) as usize, (p & u64::from(u32::MAX)) as usize);
        return packed.iter().map(pair).collect();
    }
    let mut order: Vec<(usize, usize)> = rows.iter().copied().zip(0..).collect();
    order.sort_unstable();
    order
}

/// Rows from which on sorting them digit by digit is quicker than by comparing.
const MANY: usize = 2048;

/// Sorts numbers by the `bits` above their lower half, and leaves those alike in their order.
fn by_digits(mut numbers: Vec<u64>, bits: u32) -> Vec<u64> {
    const DIGIT: u32 = 11;
    let mut other = vec![0; numbers.len()];
    for shift in (32..32 + bits).step_by(DIGIT as usize) {
        let digit = |n: u64| (n >> shift) as usize & ((1 << DIGIT) - 1);
        let mut places = vec![0u32; 1 << DIGIT];
        numbers.iter().for_each(|n| places[digit(*n)] += 1);
        let mut next = 0;
        for place in &mut places {
            next += std::mem::replace(place, next);
        }
        for n in &numbers {
            let place = &mut places[digit(*n)];
            other[*place as usize] = *n;
            *place += 1;
        }
        std::mem::swap(&mut numbers, &mut other);
    }
    numbers
}

/// Which row of the arrays each row of the gradient belongs to.
pub(crate) struct Rows<'a> {
    /// Row numbers, already checked against the arrays.
    pub(crate) rows: &'a [usize],
    /// Elements in a row.
    pub(crate) inner: usize,
}

/// What becomes of a row that is named more than once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Repeats {
    /// Its gradients come one after the other, in order.
    InTurn,
    /// They are added up first, in order, and come as one.
    Summed,
}

/// Rows of the arrays that one thread works on.
struct Part<'a, T, const N: usize> {
    slices: [&'a mut [T]; N],
    /// The row that `slices` begin with.
    first_row: usize,
    inner: usize,
    /// Rows with the places of their gradients.
    order: &'a [(usize, usize)],
    read: &'a [T],
}

impl<T, const N: usize> Part<'_, T, N> {
    /// Asks for the memory of what comes `AHEAD` of `i`.
    #[inline(always)]
    fn prepare(&self, i: usize) {
        if let Some(&(row, k)) = self.order.get(i + AHEAD) {
            let to = (row - self.first_row) * self.inner;
            for slice in &self.slices {
                prefetch_run(slice, to, self.inner);
            }
            prefetch_run(self.read, k * self.inner, self.inner);
        }
    }

    #[inline(always)]
    fn row(&mut self, row: usize) -> [&mut [T]; N] {
        let start = (row - self.first_row) * self.inner;
        let slices = self.slices.each_mut();
        slices.map(|slice| &mut slice[start..start + self.inner])
    }

    /// Each row with its gradient, as often as it is named.
    fn in_turn(mut self, body: &Body<'_, T, N>) {
        for (i, &(row, k)) in self.order.iter().enumerate() {
            self.prepare(i);
            let read = &self.read[k * self.inner..(k + 1) * self.inner];
            body(self.row(row), read);
        }
    }
}

impl<T: Number, const N: usize> Part<'_, T, N> {
    /// Each row once, with the sum of its gradients. The order must be that of the rows.
    fn summed(mut self, body: &Body<'_, T, N>) {
        let inner = self.inner;
        let mut sum = Vec::new();
        let mut i = 0;
        while let Some(&(row, k)) = self.order.get(i) {
            self.prepare(i);
            i += 1;
            let mut grad = &self.read[k * inner..(k + 1) * inner];
            if self.order.get(i).is_some_and(|next| next.0 == row) {
                sum.clear();
                sum.extend_from_slice(grad);
                while let Some(&(_, k)) = self.order.get(i).filter(|next| next.0 == row) {
                    let more = &self.read[k * inner..(k + 1) * inner];
                    for (sum, more) in sum.iter_mut().zip(more) {
                        *sum = *sum + *more;
                    }
                    i += 1;
                }
                grad = &sum;
            }
            body(self.row(row), grad);
        }
    }
}

/// Cuts the rows that `at` names into parts and runs `body` on each.
fn over_row_parts<T: Send + Sync, const N: usize>(
    mut slices: [&mut [T]; N],
    at: &Rows<'_>,
    repeats: Repeats,
    read: &[T],
    body: &(dyn Fn(Part<'_, T, N>) + Sync),
) {
    let inner = at.inner;
    if inner == 0 || at.rows.is_empty() {
        return;
    }
    let parts = part_count(read.len()).min(at.rows.len());
    if parts == 1 && repeats == Repeats::InTurn {
        let order: Vec<(usize, usize)> = at.rows.iter().copied().zip(0..).collect();
        return body(Part {
            slices,
            first_row: 0,
            inner,
            order: &order,
            read,
        });
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
        list.push(Part {
            slices: split_off(&mut slices, (last_row + 1 - first_row) * inner),
            first_row,
            inner,
            order: mine,
            read,
        });
        first_row = last_row + 1;
    }
    in_parallel(list, body);
}

/// Runs `body` on the rows of `slices` that `at` names, with the matching row of `read`. A row
/// named twice is visited twice, in order.
pub(crate) fn over_rows<T: Send + Sync, const N: usize>(
    slices: [&mut [T]; N],
    at: &Rows<'_>,
    read: &[T],
    body: impl Fn([&mut [T]; N], &[T]) + Sync,
) {
    over_row_parts(slices, at, Repeats::InTurn, read, &|part| {
        part.in_turn(&body)
    });
}

/// Runs `body` on the rows of `slices` that `at` names, with their gradients or the sum of these.
fn apply_rows<T: Number, const N: usize>(
    slices: [&mut [T]; N],
    (at, repeats): (&Rows<'_>, Repeats),
    read: &[T],
    body: &Body<'_, T, N>,
) {
    over_row_parts(slices, at, repeats, read, &|part| match repeats {
        Repeats::InTurn => part.in_turn(body),
        Repeats::Summed => part.summed(body),
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
            over_parts(arrays, grad, &|arrays, grad| $wide { arrays, grad, f }.go());
        }

        /// The same for some rows of the arrays.
        pub(super) fn $sparse<T: Number>(
            arrays: [&mut [T]; $n],
            (at, repeats): (&Rows<'_>, Repeats),
            grad: &[T],
            f: impl Fn([T; $n], T) -> [T; $n] + Sync + Copy,
        ) {
            apply_rows(arrays, (at, repeats), grad, &|arrays, grad| $wide { arrays, grad, f }.go());
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
        sparse1([&mut got], (&at, Repeats::InTurn), &grad, |[x], g| {
            [step(x, g)]
        });
        assert!(rows.len() * inner > 4 * GRAIN);
        assert_eq!(got, expected);
    }

    #[test]
    fn repeated_rows_can_be_summed_first() {
        for (count, inner) in [(5, 3), (4096, 64)] {
            let rows: Vec<usize> = (0..count).map(|k| (k * 7) % 100).collect();
            let grad: Vec<f32> = (0..count * inner).map(|i| (i % 13) as f32 * 0.1).collect();
            let step = |x: f32, g: f32| x * 0.5 + g * g;
            let mut sums = vec![None::<Vec<f32>>; 100];
            for (k, &row) in rows.iter().enumerate() {
                let grad = &grad[k * inner..(k + 1) * inner];
                match &mut sums[row] {
                    None => sums[row] = Some(grad.to_vec()),
                    Some(sum) => sum.iter_mut().zip(grad).for_each(|(s, g)| *s += g),
                }
            }
            let mut expected = vec![1.0; 120 * inner];
            for (row, sum) in expected.chunks_mut(inner).zip(sums) {
                let sum = sum.unwrap_or_default();
                row.iter_mut().zip(sum).for_each(|(x, g)| *x = step(*x, g));
            }
            let mut got = vec![1.0f32; 120 * inner];
            let at = Rows { rows: &rows, inner };
            sparse1([&mut got], (&at, Repeats::Summed), &grad, |[x], g| {
                [step(x, g)]
            });
            assert_eq!(got, expected);
        }
    }

    #[test]
    fn many_rows_are_sorted_as_few_are() {
        let rows: Vec<usize> = (0..3 * MANY).map(|k| k * 7_919 % 5_000 * 613).collect();
        let mut want: Vec<(usize, usize)> = rows.iter().copied().zip(0..).collect();
        want.sort_unstable();
        assert_eq!(sorted_rows(&rows), want);
        let none = vec![0; MANY];
        assert!(sorted_rows(&none).into_iter().eq((0..MANY).map(|k| (0, k))));
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
