//! Discrete Fourier transforms of one length: mixed radices for lengths of small factors, Bluestein's convolution for the
//! rest. In the precision of the numbers, with roots of unity rounded from doubles, and several lines at a time: lane by lane
//! beside each other, real and imaginary parts apart, so that every loop runs along neighbours in memory.

use crate::math::isa::{Isa, Loop, dispatch};
use num_complex::{Complex, Complex64};
use num_traits::Float;
use parking_lot::Mutex;
use std::f64::consts::PI;
use std::ops::AddAssign;
use std::sync::Arc;

/// The largest prime factor that is worth a sum over itself.
const LARGEST_FACTOR: usize = 31;

/// A precision.
pub(crate) trait Real: Float + AddAssign + Default + Send + Sync + 'static {
    /// Lines that are transformed together: a vector of numbers.
    const LANES: usize;
    /// The nearest number.
    fn of(v: f64) -> Self;
}

impl Real for f32 {
    const LANES: usize = 16;
    fn of(v: f64) -> f32 {
        v as f32
    }
}

impl Real for f64 {
    const LANES: usize = 8;
    fn of(v: f64) -> f64 {
        v
    }
}

/// The number of length 1 at an angle.
fn turned<T: Real>(angle: f64) -> Complex<T> {
    let v = Complex64::cis(angle);
    Complex::new(T::of(v.re), T::of(v.im))
}

/// Numbers of a group of lines, so that a group of long ones stays in the cache.
const GROUP: usize = 32 << 10;

/// Plans that a kernel keeps.
const KEPT: usize = 4;

/// The plans a kernel used last.
pub(super) struct Plans<T> {
    plain: Mutex<Vec<Arc<FftPlan<T>>>>,
    real: Mutex<Vec<Arc<RealPlan<T>>>>,
}

impl<T> Default for Plans<T> {
    fn default() -> Self {
        Plans {
            plain: Mutex::default(),
            real: Mutex::default(),
        }
    }
}

impl<T: Real> Plans<T> {
    /// The plan for transforms of `n` numbers.
    pub(super) fn get(&self, n: usize, inverse: bool) -> Arc<FftPlan<T>> {
        let is_it = |p: &FftPlan<T>| (p.n, p.inverse) == (n, inverse);
        keep(&self.plain, is_it, || FftPlan::new(n, inverse))
    }

    /// The same for real numbers.
    pub(super) fn real(&self, n: usize, inverse: bool) -> Arc<RealPlan<T>> {
        let is_it = |p: &RealPlan<T>| (p.n, p.plan.inverse) == (n, inverse);
        keep(&self.real, is_it, || RealPlan::new(n, inverse))
    }
}

fn keep<P>(
    kept: &Mutex<Vec<Arc<P>>>,
    is_it: impl Fn(&P) -> bool,
    make: impl FnOnce() -> P,
) -> Arc<P> {
    let mut kept = kept.lock();
    let plan = match kept.iter().position(|p| is_it(p)) {
        Some(i) => kept.remove(i),
        None => Arc::new(make()),
    };
    kept.truncate(KEPT - 1);
    kept.insert(0, plan.clone());
    plan
}

/// Transforms between real numbers and the half of their spectrum that determines the rest. An even number of them is
/// taken as half as many complex ones, whose spectrum holds those of the even and of the odd places.
pub(crate) struct RealPlan<T> {
    n: usize,
    plan: FftPlan<T>,
    /// The roots of unity up to half a turn, in the plan's direction.
    roots: Vec<Complex<T>>,
}

impl<T: Real> RealPlan<T> {
    pub(crate) fn new(n: usize, inverse: bool) -> RealPlan<T> {
        let sign = if inverse { 1.0 } else { -1.0 };
        let even = n.is_multiple_of(2);
        let root = |i: usize| turned(sign * 2.0 * PI * i as f64 / n as f64);
        RealPlan {
            n,
            plan: FftPlan::new(if even { n / 2 } else { n }, inverse),
            roots: (0..=n / 2).map(root).collect(),
        }
    }

    /// How many lines to transform together.
    pub(super) fn lanes(&self) -> usize {
        self.plan.lanes()
    }

    /// Rows of `n` real numbers to rows of `n / 2 + 1` complex ones.
    pub(crate) fn forward(&self, rows: &[T], out: &mut [Complex<T>], lines: &mut Lines<T>) {
        let (n, h, half) = (self.n, self.plan.n, self.n / 2 + 1);
        lines.open(h, rows.len() / n);
        for i in 0..h {
            for (lane, row) in rows.chunks_exact(n).enumerate() {
                let v = match h == n {
                    true => row[i].into(),
                    false => Complex::new(row[2 * i], row[2 * i + 1]),
                };
                lines.set(i, lane, v);
            }
        }
        self.plan.run(lines);
        for (lane, row) in out.chunks_exact_mut(half).enumerate() {
            if h == n {
                (0..half).for_each(|k| row[k] = lines.get(k, lane));
                continue;
            }
            for (k, out) in row.iter_mut().enumerate() {
                let (z, m) = (lines.get(k % h, lane), lines.get((h - k) % h, lane).conj());
                let (even, odd) = ((z + m) * T::of(0.5), (z - m) * T::of(0.5));
                // -i times the root.
                let w = Complex::new(self.roots[k].im, -self.roots[k].re);
                *out = even + w * odd;
            }
        }
    }

    /// Rows of `n / 2 + 1` complex numbers to rows of `n` real ones, times `scale`.
    pub(super) fn backward(
        &self,
        rows: &[Complex<T>],
        out: &mut [T],
        scale: T,
        lines: &mut Lines<T>,
    ) {
        let (n, h, half) = (self.n, self.plan.n, self.n / 2 + 1);
        lines.open(h, rows.len() / half);
        for (lane, row) in rows.chunks_exact(half).enumerate() {
            // The ends of the spectrum of real numbers are real, whatever stands there.
            let at = |k: usize| match k == 0 || 2 * k == n {
                true => row[k].re.into(),
                false => row[k],
            };
            if h == n {
                (0..half).for_each(|k| lines.set(k, lane, at(k)));
                (half..n).for_each(|k| lines.set(k, lane, at(n - k).conj()));
                continue;
            }
            for k in 0..h {
                let (x, m) = (at(k), at(h - k).conj());
                let odd = (x - m) * self.roots[k];
                let z = x + m + Complex::new(-odd.im, odd.re);
                lines.set(k, lane, z);
            }
        }
        self.plan.run(lines);
        for (lane, row) in out.chunks_exact_mut(n).enumerate() {
            if h == n {
                (0..n).for_each(|i| row[i] = lines.get(i, lane).re * scale);
                continue;
            }
            for (i, pair) in row.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                let v = lines.get(i, lane) * scale;
                *pair = [v.re, v.im];
            }
        }
    }
}

/// Everything that depends on the length and the direction alone.
pub(super) struct FftPlan<T> {
    n: usize,
    inverse: bool,
    kind: Kind<T>,
}

enum Kind<T> {
    /// Prime factors of the length and the roots of unity.
    Mixed(Vec<usize>, Vec<Complex<T>>),
    Chirp(Box<Chirp<T>>),
}

/// A transform as a convolution with a chirp, which is cyclic in a power of two.
struct Chirp<T> {
    forward: FftPlan<T>,
    backward: FftPlan<T>,
    factors: Vec<Complex<T>>,
    spectrum: Vec<Complex<T>>,
}

/// Lines under way: element `i` of line `l` is at `i * lanes + l`.
#[derive(Default)]
pub(crate) struct Lines<T> {
    pub(super) lanes: usize,
    pub(super) re: Vec<T>,
    pub(super) im: Vec<T>,
    room: [Vec<T>; 2],
}

impl<T: Real> Lines<T> {
    /// Makes room for `lanes` lines of `n` numbers, all 0.
    pub(super) fn reset(&mut self, n: usize, lanes: usize) {
        self.lanes = lanes;
        for part in [&mut self.re, &mut self.im] {
            part.clear();
            part.resize(n * lanes, T::zero());
        }
    }

    /// Makes room for `lanes` lines of `n` numbers, all of which will be set.
    pub(super) fn open(&mut self, n: usize, lanes: usize) {
        self.lanes = lanes;
        for part in [&mut self.re, &mut self.im] {
            part.resize(n * lanes, T::zero());
        }
    }

    /// A number.
    #[inline(always)]
    pub(super) fn get(&self, i: usize, lane: usize) -> Complex<T> {
        let at = i * self.lanes + lane;
        Complex::new(self.re[at], self.im[at])
    }

    /// Sets a number.
    #[inline(always)]
    pub(super) fn set(&mut self, i: usize, lane: usize, v: Complex<T>) {
        let at = i * self.lanes + lane;
        (self.re[at], self.im[at]) = (v.re, v.im);
    }
}

impl<T: Real> FftPlan<T> {
    /// A plan for transforms of `n` numbers; neither direction scales.
    pub(super) fn new(n: usize, inverse: bool) -> FftPlan<T> {
        let sign = if inverse { 1.0 } else { -1.0 };
        let factors = factors(n);
        let kind = if factors.iter().all(|&p| p <= LARGEST_FACTOR) {
            let root = |i: usize| turned(sign * 2.0 * PI * i as f64 / n as f64);
            Kind::Mixed(factors, (0..n).map(root).collect())
        } else {
            Kind::Chirp(Box::new(Chirp::new(n, sign)))
        };
        FftPlan { n, inverse, kind }
    }

    /// How many lines to transform together.
    pub(super) fn lanes(&self) -> usize {
        (GROUP / self.n.max(1)).clamp(1, T::LANES)
    }

    /// Transforms lines of the plan's length in place.
    pub(super) fn run(&self, lines: &mut Lines<T>) {
        match &self.kind {
            Kind::Mixed(factors, roots) => {
                // What was there is written over.
                for part in &mut lines.room {
                    part.resize(self.n * lines.lanes, T::zero());
                }
                dispatch(Mixed {
                    lines,
                    factors,
                    roots,
                    inverse: self.inverse,
                });
            }
            Kind::Chirp(chirp) => chirp.run(self.n, lines),
        }
    }
}

/// The prime factors of `n`, with fours for pairs of twos, which need no multiplications.
fn factors(mut n: usize) -> Vec<usize> {
    let mut out = Vec::new();
    let mut p = 4;
    while n > 1 {
        while n.is_multiple_of(p) {
            out.push(p);
            n /= p;
        }
        p = match p {
            4 => 2,
            2 => 3,
            p if p * p > n => n.max(2),
            p => p + 2,
        };
    }
    out
}

/// Stockham's transform: each stage reads `p` runs and writes them where the next one wants them, so that the last one
/// leaves everything in order.
struct Mixed<'a, T> {
    lines: &'a mut Lines<T>,
    factors: &'a [usize],
    roots: &'a [Complex<T>],
    inverse: bool,
}

/// One stage: `n` numbers are still to be transformed in each of `s` interleaved lines.
struct Stage<'a, T> {
    n: usize,
    s: usize,
    roots: &'a [Complex<T>],
    inverse: bool,
}

impl<T: Real> Loop for Mixed<'_, T> {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        let Lines {
            lanes,
            re,
            im,
            room: [to_re, to_im],
        } = self.lines;
        let (mut n, mut s) = (self.roots.len(), *lanes);
        for &p in self.factors {
            let stage = Stage {
                n,
                s,
                roots: self.roots,
                inverse: self.inverse,
            };
            let (from, to) = ((&**re, &**im), (&mut **to_re, &mut **to_im));
            match p {
                4 => stage.four(from, to),
                2 => stage.two(from, to),
                _ => stage.any(p, from, to),
            }
            std::mem::swap(re, to_re);
            std::mem::swap(im, to_im);
            (n, s) = (n / p, s * p);
        }
    }
}

type Parts<'a, T> = (&'a [T], &'a [T]);
type PartsMut<'a, T> = (&'a mut [T], &'a mut [T]);

impl<T: Real> Stage<'_, T> {
    /// Run `q` of quarter (or third, …) `r`, of which there are `m` runs each.
    #[inline(always)]
    fn run<'b>(&self, x: Parts<'b, T>, q: usize, m: usize, r: usize) -> Parts<'b, T> {
        let at = self.s * (q + m * r);
        (&x.0[at..at + self.s], &x.1[at..at + self.s])
    }

    /// The `i`-th root of unity of order `n`.
    #[inline(always)]
    fn root(&self, i: usize) -> Complex<T> {
        self.roots[i * (self.roots.len() / self.n)]
    }

    #[inline(always)]
    fn two(&self, x: Parts<'_, T>, y: PartsMut<'_, T>) {
        let (m, s) = (self.n / 2, self.s);
        let places = y.0.chunks_exact_mut(2 * s).zip(y.1.chunks_exact_mut(2 * s));
        for (q, (yr, yi)) in places.enumerate() {
            let w = self.root(q);
            let ((ar, ai), (br, bi)) = (self.run(x, q, m, 0), self.run(x, q, m, 1));
            let ((yr0, yr1), (yi0, yi1)) = (yr.split_at_mut(s), yi.split_at_mut(s));
            each(
                [ar, ai, br, bi],
                [yr0, yi0, yr1, yi1],
                |[ar, ai, br, bi]| {
                    let (dr, di) = (ar - br, ai - bi);
                    let turned = [w.re * dr - w.im * di, w.re * di + w.im * dr];
                    [ar + br, ai + bi, turned[0], turned[1]]
                },
            );
        }
    }

    #[inline(always)]
    fn four(&self, x: Parts<'_, T>, y: PartsMut<'_, T>) {
        let (m, s) = (self.n / 4, self.s);
        // A quarter turn, forwards or back.
        let turn = if self.inverse { T::one() } else { -T::one() };
        let places = y.0.chunks_exact_mut(4 * s).zip(y.1.chunks_exact_mut(4 * s));
        for (q, (yr, yi)) in places.enumerate() {
            let (w1, w2, w3) = (self.root(q), self.root(2 * q), self.root(3 * q));
            let ((x0r, x0i), (x1r, x1i)) = (self.run(x, q, m, 0), self.run(x, q, m, 1));
            let ((x2r, x2i), (x3r, x3i)) = (self.run(x, q, m, 2), self.run(x, q, m, 3));
            let ((yr01, yr23), (yi01, yi23)) = (yr.split_at_mut(2 * s), yi.split_at_mut(2 * s));
            let ((yr0, yr1), (yr2, yr3)) = (yr01.split_at_mut(s), yr23.split_at_mut(s));
            let ((yi0, yi1), (yi2, yi3)) = (yi01.split_at_mut(s), yi23.split_at_mut(s));
            let from = [x0r, x0i, x1r, x1i, x2r, x2i, x3r, x3i];
            let to = [yr0, yi0, yr1, yi1, yr2, yi2, yr3, yi3];
            each(from, to, |[x0r, x0i, x1r, x1i, x2r, x2i, x3r, x3i]| {
                let (ar, ai) = (x0r + x2r, x0i + x2i);
                let (br, bi) = (x0r - x2r, x0i - x2i);
                let (cr, ci) = (x1r + x3r, x1i + x3i);
                let (dr, di) = (-turn * (x1i - x3i), turn * (x1r - x3r));
                let (v1r, v1i) = (br + dr, bi + di);
                let (v2r, v2i) = (ar - cr, ai - ci);
                let (v3r, v3i) = (br - dr, bi - di);
                [
                    ar + cr,
                    ai + ci,
                    w1.re * v1r - w1.im * v1i,
                    w1.re * v1i + w1.im * v1r,
                    w2.re * v2r - w2.im * v2i,
                    w2.re * v2i + w2.im * v2r,
                    w3.re * v3r - w3.im * v3i,
                    w3.re * v3i + w3.im * v3r,
                ]
            });
        }
    }

    #[inline(always)]
    fn any(&self, p: usize, x: Parts<'_, T>, y: PartsMut<'_, T>) {
        let (m, s) = (self.n / p, self.s);
        let turn = self.roots.len() / p;
        let places = y.0.chunks_exact_mut(p * s).zip(y.1.chunks_exact_mut(p * s));
        for (q, (yr, yi)) in places.enumerate() {
            let places = yr.chunks_exact_mut(s).zip(yi.chunks_exact_mut(s));
            for (j, (yr, yi)) in places.enumerate() {
                let (ar, ai) = self.run(x, q, m, 0);
                yr.copy_from_slice(ar);
                yi.copy_from_slice(ai);
                for r in 1..p {
                    // The product stays below p², far from overflow.
                    let w = self.roots[j * r % p * turn];
                    let (ar, ai) = self.run(x, q, m, r);
                    for k in 0..s {
                        yr[k] += w.re * ar[k] - w.im * ai[k];
                        yi[k] += w.re * ai[k] + w.im * ar[k];
                    }
                }
                let w = self.root(j * q);
                for k in 0..s {
                    let (vr, vi) = (yr[k], yi[k]);
                    yr[k] = w.re * vr - w.im * vi;
                    yi[k] = w.re * vi + w.im * vr;
                }
            }
        }
    }
}

/// Numbers of a run that are worked on together. The first runs are no longer than there are lanes: loops over just as many
/// would be loops over single numbers.
const WIDTH: usize = 8;

/// Sets runs of equal length from others, place by place. A group is read, computed and written as a whole: so it stays in
/// registers.
#[inline(always)]
fn each<T: Real, const N: usize>(
    from: [&[T]; N],
    mut to: [&mut [T]; N],
    f: impl Fn([T; N]) -> [T; N],
) {
    let len = from[0].len();
    let whole = len / WIDTH;
    let groups = from.map(|run| &run.as_chunks::<WIDTH>().0[..whole]);
    let set = to
        .each_mut()
        .map(|run| &mut run.as_chunks_mut::<WIDTH>().0[..whole]);
    for g in 0..whole {
        let x: [[T; WIDTH]; N] = std::array::from_fn(|i| groups[i][g]);
        let mut y = [[T::zero(); WIDTH]; N];
        for k in 0..WIDTH {
            let made = f(std::array::from_fn(|i| x[i][k]));
            for i in 0..N {
                y[i][k] = made[i];
            }
        }
        for i in 0..N {
            set[i][g] = y[i];
        }
    }
    for k in whole * WIDTH..len {
        let made = f(std::array::from_fn(|i| from[i][k]));
        for i in 0..N {
            to[i][k] = made[i];
        }
    }
}

impl<T: Real> Chirp<T> {
    fn new(n: usize, sign: f64) -> Chirp<T> {
        let size = (2 * n - 1).next_power_of_two();
        // The square is taken modulo 2n so that the angle stays exact.
        let square = |i: usize| (i as u128 * i as u128 % (2 * n as u128)) as f64;
        let factors: Vec<Complex<T>> = (0..n)
            .map(|i| turned(sign * PI * square(i) / n as f64))
            .collect();
        let (forward, backward) = (FftPlan::new(size, false), FftPlan::new(size, true));
        let mut lines = Lines::default();
        lines.reset(size, 1);
        for (i, f) in factors.iter().enumerate() {
            lines.set(i, 0, f.conj());
            lines.set((size - i) % size, 0, f.conj());
        }
        forward.run(&mut lines);
        let scale = T::of(1.0 / size as f64);
        let spectrum = (0..size).map(|i| lines.get(i, 0) * scale).collect();
        Chirp {
            forward,
            backward,
            factors,
            spectrum,
        }
    }

    fn run(&self, n: usize, lines: &mut Lines<T>) {
        let lanes = lines.lanes;
        let mut wide = Lines::default();
        wide.reset(self.forward.n, lanes);
        multiply((&lines.re, &lines.im), &self.factors, &mut wide);
        self.forward.run(&mut wide);
        let (re, im) = (wide.re.clone(), wide.im.clone());
        multiply((&re, &im), &self.spectrum, &mut wide);
        self.backward.run(&mut wide);
        let len = n * lanes;
        multiply((&wide.re[..len], &wide.im[..len]), &self.factors, lines);
    }
}

/// Each number of all lines times its factor.
fn multiply<T: Real>(from: Parts<'_, T>, by: &[Complex<T>], to: &mut Lines<T>) {
    let lanes = to.lanes;
    let from = from.0.chunks_exact(lanes).zip(from.1.chunks_exact(lanes));
    let to = to
        .re
        .chunks_exact_mut(lanes)
        .zip(to.im.chunks_exact_mut(lanes));
    for (((fr, fi), (tr, ti)), w) in from.zip(to).zip(by) {
        for k in 0..lanes {
            tr[k] = w.re * fr[k] - w.im * fi[k];
            ti[k] = w.re * fi[k] + w.im * fr[k];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_agrees_with_the_definition() {
        for n in (1..=40).chain([60, 64, 74, 97, 128, 210, 254]) {
            for inverse in [false, true] {
                let x: Vec<Complex64> = (0..n)
                    .map(|i| Complex64::new((i * i % 7) as f64 - 3.0, (i % 5) as f64))
                    .collect();
                let mut lines = Lines::<f64>::default();
                // Three lines, of which the second one counts.
                lines.reset(n, 3);
                x.iter().enumerate().for_each(|(i, v)| lines.set(i, 1, *v));
                FftPlan::<f64>::new(n, inverse).run(&mut lines);
                let got: Vec<Complex64> = (0..n).map(|i| lines.get(i, 1)).collect();
                assert!((0..n).all(|i| lines.get(i, 2).norm() == 0.0));
                let sign = if inverse { 2.0 } else { -2.0 };
                for (k, got) in got.iter().enumerate() {
                    let want: Complex64 = x
                        .iter()
                        .enumerate()
                        .map(|(i, v)| v * Complex64::cis(sign * PI * (i * k % n) as f64 / n as f64))
                        .sum();
                    assert!(
                        (got - want).norm() < 1e-10,
                        "{n} {inverse} {k}: {got} {want}"
                    );
                }
            }
        }
    }

    #[test]
    fn real_numbers_go_to_half_their_spectrum_and_back_row_by_row() {
        for n in (1..=20).chain([60, 74, 97, 128]) {
            let row: Vec<f64> = (0..n).map(|i| (i * i % 7) as f64 - 3.0).collect();
            // A row that is not a number says nothing about the next.
            let rows = [&vec![f64::NAN; n][..], &row].concat();
            let (half, mut lines) = (n / 2 + 1, Lines::<f64>::default());
            let mut got = vec![Complex64::default(); 2 * half];
            RealPlan::<f64>::new(n, false).forward(&rows, &mut got, &mut lines);
            for k in 0..half {
                let term =
                    |i: usize| row[i] * Complex64::cis(-2.0 * PI * (i * k % n) as f64 / n as f64);
                let want: Complex64 = (0..n).map(term).sum();
                assert!((got[half + k] - want).norm() < 1e-10, "{n} {k}");
            }
            // Imaginary parts that no real numbers have are left out.
            got[half].im = 5.0;
            let mut back = vec![0.0; 2 * n];
            let scale = 1.0 / n as f64;
            RealPlan::<f64>::new(n, true).backward(&got, &mut back, scale, &mut lines);
            let far = back[n..].iter().zip(&row).map(|(a, b)| (a - b).abs());
            assert!(far.fold(0.0, f64::max) < 1e-10, "{n}");
        }
    }

    #[test]
    fn floats_are_transformed_as_exactly_as_floats_can_be() {
        for n in [7, 64, 97, 250, 1024, 3000, 4096] {
            let x: Vec<Complex64> = (0..n)
                .map(|i| Complex64::new((i as f64 * 0.7).sin(), (i as f64 * 1.9).cos()))
                .collect();
            let (mut single, mut double) = (Lines::<f32>::default(), Lines::<f64>::default());
            single.reset(n, 1);
            double.reset(n, 1);
            for (i, v) in x.iter().enumerate() {
                single.set(i, 0, Complex::new(v.re as f32, v.im as f32));
                double.set(i, 0, *v);
            }
            FftPlan::new(n, false).run(&mut single);
            FftPlan::new(n, false).run(&mut double);
            let far = |k: usize| {
                let v = single.get(k, 0);
                (Complex64::new(v.re.into(), v.im.into()) - double.get(k, 0)).norm()
            };
            let norm = (n as f64).sqrt();
            assert!((0..n).all(|k| far(k) < 3e-6 * norm), "{n}");
        }
    }
}
