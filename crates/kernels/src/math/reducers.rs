//! The inner loops of reductions: runs folded into one value, rows folded into a row. How a
//! run is cut depends on its length only, never on the number of threads, so results do not
//! either.

use super::isa::{Isa, Loop, Plain, dispatch};
use half::{bf16, f16};
use num_complex::Complex;

/// Folding elements `T`: a commutative, associative operation and its neutral element.
pub(crate) trait Reducer<T>: Copy + Send + Sync + 'static {
    /// What partial results are.
    type Acc: Copy + Send + Sync;
    /// Whether the loops are compiled for several instruction sets.
    const VECTOR: bool = false;
    /// The neutral element.
    fn zero(self) -> Self::Acc;
    /// One element more; must be `#[inline(always)]`.
    fn add(self, acc: Self::Acc, x: T) -> Self::Acc;
    /// Two partial results; must be `#[inline(always)]`.
    fn merge(self, a: Self::Acc, b: Self::Acc) -> Self::Acc;
    /// The result over `count` elements.
    fn finish(self, acc: Self::Acc, count: usize) -> T;
}

/// Independent accumulators of a run: enough for the adders of any machine.
const LANES: usize = 64;
/// Longest stretch folded in one go; longer runs are folded as a tree over such stretches, which
/// also keeps rounding errors small.
pub(crate) const STRETCH: usize = 4 << 10;

struct RowPart<'a, T, R>(&'a [T], R);

impl<T: Copy, R: Reducer<T>> Loop for RowPart<'_, T, R> {
    type Out = R::Acc;
    #[inline(always)]
    fn run<I: Isa>(self) -> R::Acc {
        let RowPart(xs, r) = self;
        if xs.len() < LANES {
            return xs.iter().fold(r.zero(), |acc, &x| r.add(acc, x));
        }
        let mut lanes = [r.zero(); LANES];
        let (chunks, rest) = xs.as_chunks::<LANES>();
        for chunk in chunks {
            for (lane, &x) in lanes.iter_mut().zip(chunk) {
                *lane = r.add(*lane, x);
            }
        }
        for (lane, &x) in lanes.iter_mut().zip(rest) {
            *lane = r.add(*lane, x);
        }
        let mut width = LANES / 2;
        while width > 0 {
            for i in 0..width {
                lanes[i] = r.merge(lanes[i], lanes[i + width]);
            }
            width /= 2;
        }
        lanes[0]
    }
}

/// A [`Reducer`] behind a pointer, by whole runs and rows: what leads to these loops is compiled once for a type of
/// elements and of partial results, not once for each reducer.
pub(crate) trait Fold<T, A>: Sync {
    /// The neutral element.
    fn zero(&self) -> A;
    /// Folds at most [`STRETCH`] elements.
    fn stretch(&self, xs: &[T]) -> A;
    /// Folds at most [`ROWS_AT_ONCE`] rows of `acc.len()` elements, `stride` apart, into `acc`.
    fn some_rows(&self, acc: &mut [A], xs: &[T], stride: usize);
    /// Two partial results.
    fn merge(&self, a: A, b: A) -> A;
    /// Partial results of as many outputs as there are.
    fn merge_rows(&self, acc: &mut [A], more: &[A]);
    /// The result over `count` elements.
    fn finish(&self, acc: A, count: usize) -> T;
    /// The results of a row.
    fn finish_row(&self, out: &mut [T], acc: &[A], count: usize);
    /// The results of single elements.
    fn each(&self, xs: &[T]) -> Vec<T>;
}

impl<T: Copy, R: Reducer<T>> Fold<T, R::Acc> for R {
    fn zero(&self) -> R::Acc {
        Reducer::zero(*self)
    }

    fn stretch(&self, xs: &[T]) -> R::Acc {
        if R::VECTOR {
            dispatch(RowPart(xs, *self))
        } else {
            RowPart(xs, *self).run::<Plain>()
        }
    }

    fn some_rows(&self, acc: &mut [R::Acc], xs: &[T], stride: usize) {
        let r = *self;
        let rows = Rows { r, acc, xs, stride };
        if R::VECTOR {
            dispatch(rows)
        } else {
            rows.run::<Plain>()
        }
    }

    fn merge(&self, a: R::Acc, b: R::Acc) -> R::Acc {
        Reducer::merge(*self, a, b)
    }

    fn merge_rows(&self, acc: &mut [R::Acc], more: &[R::Acc]) {
        for (acc, &more) in acc.iter_mut().zip(more) {
            *acc = Reducer::merge(*self, *acc, more);
        }
    }

    fn finish(&self, acc: R::Acc, count: usize) -> T {
        Reducer::finish(*self, acc, count)
    }

    fn finish_row(&self, out: &mut [T], acc: &[R::Acc], count: usize) {
        for (out, &acc) in out.iter_mut().zip(acc) {
            *out = Reducer::finish(*self, acc, count);
        }
    }

    fn each(&self, xs: &[T]) -> Vec<T> {
        let mut out = Vec::with_capacity(xs.len());
        for &x in xs {
            let acc = self.add(Reducer::zero(*self), x);
            out.push(Reducer::finish(*self, acc, 1));
        }
        out
    }
}

/// Folds a run of any length.
pub(crate) fn run<T, A: Copy>(r: &dyn Fold<T, A>, xs: &[T]) -> A {
    if xs.len() <= STRETCH {
        return r.stretch(xs);
    }
    let parts: Vec<A> = xs.chunks(STRETCH).map(|c| r.stretch(c)).collect();
    tree(r, &parts)
}

/// Folds partial results pairwise.
pub(crate) fn tree<T, A: Copy>(r: &dyn Fold<T, A>, parts: &[A]) -> A {
    match parts {
        [] => r.zero(),
        [one] => *one,
        _ => {
            let (a, b) = parts.split_at(parts.len() / 2);
            r.merge(tree(r, a), tree(r, b))
        }
    }
}

struct Rows<'a, T, R: Reducer<T>> {
    r: R,
    acc: &'a mut [R::Acc],
    xs: &'a [T],
    stride: usize,
}

impl<T: Copy, R: Reducer<T>> Loop for Rows<'_, T, R> {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        let Rows { r, acc, xs, stride } = self;
        let n = acc.len();
        let mut rest = xs;
        // Four rows at a time: a quarter of the traffic to the accumulators.
        while rest.len() >= 3 * stride + n {
            let (a, b) = (&rest[..n], &rest[stride..stride + n]);
            let (c, d) = (
                &rest[2 * stride..2 * stride + n],
                &rest[3 * stride..3 * stride + n],
            );
            for i in 0..n {
                let left = r.add(r.add(r.zero(), a[i]), b[i]);
                let right = r.add(r.add(r.zero(), c[i]), d[i]);
                acc[i] = r.merge(acc[i], r.merge(left, right));
            }
            rest = rest.get(4 * stride..).unwrap_or(&[]);
        }
        while rest.len() >= n && n > 0 {
            for (acc, &x) in acc.iter_mut().zip(&rest[..n]) {
                *acc = r.add(*acc, x);
            }
            rest = rest.get(stride..).unwrap_or(&[]);
        }
    }
}

/// Rows folded into one set of accumulators before these are merged.
const ROWS_AT_ONCE: usize = 256;

/// Folds rows of `acc.len()` elements, `stride` apart, into `acc`. `xs` starts with the first row
/// and ends with the last.
pub(crate) fn rows<T, A: Copy>(r: &dyn Fold<T, A>, acc: &mut [A], xs: &[T], stride: usize) {
    if xs.len() <= ROWS_AT_ONCE * stride {
        return r.some_rows(acc, xs, stride);
    }
    let mut part = vec![r.zero(); acc.len()];
    for xs in xs.chunks(ROWS_AT_ONCE * stride) {
        part.fill(r.zero());
        r.some_rows(&mut part, xs, stride);
        r.merge_rows(acc, &part);
    }
}

/// Sum, or mean.
#[derive(Clone, Copy)]
pub(crate) struct Sum;
/// Mean.
#[derive(Clone, Copy)]
pub(crate) struct Mean;
/// Product.
#[derive(Clone, Copy)]
pub(crate) struct Prod;
/// Square root of the sum of squares.
#[derive(Clone, Copy)]
pub(crate) struct Norm;
/// Half the sum of squares.
#[derive(Clone, Copy)]
pub(crate) struct HalfSquares;
/// Largest element; NaN if there is one.
#[derive(Clone, Copy)]
pub(crate) struct Max;
/// Smallest element; NaN if there is one.
#[derive(Clone, Copy)]
pub(crate) struct Min;
/// Whether all bytes are 1.
#[derive(Clone, Copy)]
pub(crate) struct All;
/// Whether some byte is 1.
#[derive(Clone, Copy)]
pub(crate) struct Any;

/// One implementation of [`Reducer`].
macro_rules! reducer {
    ($r:ident, $t:ty, $acc:ty, $vector:expr, $zero:expr,
        |$a:ident, $x:ident| $add:expr, |$b:ident, $c:ident| $merge:expr,
        |$d:ident, $n:ident| $finish:expr) => {
        impl Reducer<$t> for $r {
            type Acc = $acc;
            const VECTOR: bool = $vector;
            #[inline(always)]
            fn zero(self) -> $acc {
                $zero
            }
            #[inline(always)]
            fn add(self, $a: $acc, $x: $t) -> $acc {
                $add
            }
            #[inline(always)]
            fn merge(self, $b: $acc, $c: $acc) -> $acc {
                $merge
            }
            fn finish(self, $d: $acc, $n: usize) -> $t {
                let _ = $n;
                $finish
            }
        }
    };
}

macro_rules! float_reducers {
    ($($t:ty, $vector:expr;)*) => {$(
        reducer!(Sum, $t, $t, $vector, 0.0, |a, x| a + x, |a, b| a + b, |a, n| a);
        reducer!(Mean, $t, $t, $vector, 0.0, |a, x| a + x, |a, b| a + b, |a, n| a / n as $t);
        reducer!(Prod, $t, $t, $vector, 1.0, |a, x| a * x, |a, b| a * b, |a, n| a);
        reducer!(Norm, $t, $t, $vector, 0.0, |a, x| a + x * x, |a, b| a + b, |a, n| a.sqrt());
        reducer!(HalfSquares, $t, $t, $vector, 0.0,
            |a, x| a + x * x, |a, b| a + b, |a, n| a / 2.0);
        reducer!(Max, $t, $t, $vector, <$t>::NEG_INFINITY,
            |a, x| if (x > a) | x.is_nan() { x } else { a },
            |a, x| if (x > a) | x.is_nan() { x } else { a }, |a, n| a);
        reducer!(Min, $t, $t, $vector, <$t>::INFINITY,
            |a, x| if (x < a) | x.is_nan() { x } else { a },
            |a, x| if (x < a) | x.is_nan() { x } else { a }, |a, n| a);
    )*};
}

float_reducers! { f32, true; f64, false; }

/// Partial results in single precision, rounded once.
macro_rules! half_reducers {
    ($($t:ident),*) => {$(
        reducer!(Sum, $t, f32, false, 0.0,
            |a, x| a + x.to_f32(), |a, b| a + b, |a, n| $t::from_f32(a));
        reducer!(Mean, $t, f32, false, 0.0,
            |a, x| a + x.to_f32(), |a, b| a + b, |a, n| $t::from_f32(a / n as f32));
        reducer!(Prod, $t, f32, false, 1.0,
            |a, x| a * x.to_f32(), |a, b| a * b, |a, n| $t::from_f32(a));
        reducer!(Norm, $t, f32, false, 0.0,
            |a, x| a + x.to_f32() * x.to_f32(), |a, b| a + b, |a, n| $t::from_f32(a.sqrt()));
        reducer!(HalfSquares, $t, f32, false, 0.0,
            |a, x| a + x.to_f32() * x.to_f32(), |a, b| a + b, |a, n| $t::from_f32(a / 2.0));
        reducer!(Max, $t, f32, false, f32::NEG_INFINITY,
            |a, x| Max.add(a, x.to_f32()), |a, b| Reducer::<f32>::merge(Max, a, b),
            |a, n| $t::from_f32(a));
        reducer!(Min, $t, f32, false, f32::INFINITY,
            |a, x| Min.add(a, x.to_f32()), |a, b| Reducer::<f32>::merge(Min, a, b),
            |a, n| $t::from_f32(a));
    )*};
}

half_reducers!(f16, bf16);

/// Sums, products and norms wrap.
macro_rules! wrapping_reducers {
    ($($t:ty),*) => {$(
        reducer!(Sum, $t, $t, false, 0,
            |a, x| a.wrapping_add(x), |a, b| a.wrapping_add(b), |a, n| a);
        reducer!(Prod, $t, $t, false, 1,
            |a, x| a.wrapping_mul(x), |a, b| a.wrapping_mul(b), |a, n| a);
    )*};
}

wrapping_reducers!(i8, i16, i32, i64);

macro_rules! int_reducers {
    ($($t:ty, $wide:ty;)*) => {$(
        // Summed as 64 bits, then cut; the mean of nothing is 0.
        reducer!(Mean, $t, $wide, false, 0,
            |a, x| a.wrapping_add(<$wide>::from(x)), |a, b| a.wrapping_add(b),
            |a, n| a.checked_div(n as $wide).unwrap_or(0) as $t);
        reducer!(Norm, $t, $t, false, 0,
            |a, x| a.wrapping_add(x.wrapping_mul(x)), |a, b| a.wrapping_add(b),
            |a, n| (a as f64).sqrt() as $t);
        reducer!(Max, $t, $t, false, <$t>::MIN, |a, x| a.max(x), |a, b| a.max(b), |a, n| a);
        reducer!(Min, $t, $t, false, <$t>::MAX, |a, x| a.min(x), |a, b| a.min(b), |a, n| a);
    )*};
}

int_reducers! {
    i8, i64; i16, i64; i32, i64; i64, i64; u8, u64; u16, u64; u32, u64; u64, u64;
}

macro_rules! complex_reducers {
    ($($t:ty),*) => {$(
        reducer!(Sum, Complex<$t>, Complex<$t>, false, Complex::new(0.0, 0.0),
            |a, x| a + x, |a, b| a + b, |a, n| a);
        reducer!(Mean, Complex<$t>, Complex<$t>, false, Complex::new(0.0, 0.0),
            |a, x| a + x, |a, b| a + b, |a, n| a / n as $t);
        reducer!(Prod, Complex<$t>, Complex<$t>, false, Complex::new(1.0, 0.0),
            |a, x| a * x, |a, b| a * b, |a, n| a);
        reducer!(Norm, Complex<$t>, $t, false, 0.0,
            |a, x| a + x.norm_sqr(), |a, b| a + b, |a, n| Complex::new(a.sqrt(), 0.0));
    )*};
}

complex_reducers!(f32, f64);

reducer!(All, u8, u8, true, 1, |a, x| a & x, |a, b| a & b, |a, n| a);
reducer!(Any, u8, u8, true, 0, |a, x| a | x, |a, b| a | b, |a, n| a);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_sums_keep_their_digits() {
        let xs = vec![0.1f32; 1_000_003];
        let want = f64::from(0.1f32) * 1_000_003.0;
        let got = f64::from(Reducer::<f32>::finish(Sum, run(&Sum, &xs), xs.len()));
        assert!((got - want).abs() < 1e-6 * want, "{got} {want}");
        let mut acc = [0.0f32; 3];
        rows(&Sum, &mut acc, &xs[..999_999], 3);
        let want = want / 1_000_003.0 * 333_333.0;
        assert!(
            acc.iter()
                .all(|&a| (f64::from(a) - want).abs() < 1e-5 * want),
            "{acc:?} {want}"
        );
    }

    #[test]
    fn every_element_counts_once_whatever_the_length() {
        for n in (0..300).chain([STRETCH - 1, STRETCH, STRETCH + 1, 3 * STRETCH + 7]) {
            let xs: Vec<i64> = (0..n as i64).collect();
            assert_eq!(run(&Sum, &xs), (n * n.saturating_sub(1) / 2) as i64, "{n}");
        }
        for (count, n, stride) in [(1, 3, 3), (3, 1, 4), (4, 5, 5), (1025, 2, 3), (7, 3, 10)] {
            let xs: Vec<i64> = (0..((count - 1) * stride + n) as i64).collect();
            let mut acc = vec![0i64; n];
            rows(&Sum, &mut acc, &xs, stride);
            for (i, &got) in acc.iter().enumerate() {
                let want: i64 = (0..count).map(|row| (row * stride + i) as i64).sum();
                assert_eq!(got, want, "{count} {n} {stride}");
            }
        }
    }

    #[test]
    fn nan_survives_wherever_it_is() {
        for n in [1, 5, 64, 100, 1000] {
            for at in [0, n / 2, n - 1] {
                let mut xs = vec![1.0f32; n];
                xs[at] = f32::NAN;
                assert!(run(&Max, &xs).is_nan() && run(&Min, &xs).is_nan());
            }
        }
    }
}
