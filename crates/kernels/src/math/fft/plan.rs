//! Discrete Fourier transforms of one length: mixed radices for lengths of small factors, Bluestein's convolution for the
//! rest. Always in double precision, and several lines at a time: lane by lane beside each other, real and imaginary parts
//! apart, so that every loop runs along neighbours in memory.

use crate::math::isa::{Isa, Loop, dispatch};
use num_complex::Complex64;
use parking_lot::Mutex;
use std::f64::consts::PI;
use std::sync::Arc;

/// The largest prime factor that is worth a sum over itself.
const LARGEST_FACTOR: usize = 31;

/// Lines that are transformed together: a vector of doubles.
const LANES: usize = 8;

/// Numbers of a group of lines, so that a group of long ones stays in the cache.
const GROUP: usize = 32 << 10;

/// Plans that a kernel keeps.
const KEPT: usize = 4;

/// The plans a kernel used last.
#[derive(Default)]
pub(super) struct Plans {
    plain: Mutex<Vec<Arc<FftPlan>>>,
    real: Mutex<Vec<Arc<RealPlan>>>,
}

impl Plans {
    /// The plan for transforms of `n` numbers.
    pub(super) fn get(&self, n: usize, inverse: bool) -> Arc<FftPlan> {
        let is_it = |p: &FftPlan| (p.n, p.inverse) == (n, inverse);
        keep(&self.plain, is_it, || FftPlan::new(n, inverse))
    }

    /// The same for real numbers.
    pub(super) fn real(&self, n: usize, inverse: bool) -> Arc<RealPlan> {
        let is_it = |p: &RealPlan| (p.n, p.plan.inverse) == (n, inverse);
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
pub(crate) struct RealPlan {
    n: usize,
    plan: FftPlan,
    /// The roots of unity up to half a turn, in the plan's direction.
    roots: Vec<Complex64>,
}

impl RealPlan {
    pub(crate) fn new(n: usize, inverse: bool) -> RealPlan {
        let sign = if inverse { 1.0 } else { -1.0 };
        let even = n.is_multiple_of(2);
        let root = |i: usize| Complex64::cis(sign * 2.0 * PI * i as f64 / n as f64);
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
    pub(crate) fn forward(&self, rows: &[f64], out: &mut [Complex64], lines: &mut Lines) {
        let (n, h, half) = (self.n, self.plan.n, self.n / 2 + 1);
        lines.reset(h, rows.len() / n);
        for (lane, row) in rows.chunks_exact(n).enumerate() {
            if h == n {
                (0..n).for_each(|i| lines.set(i, lane, row[i].into()));
            } else {
                let pairs = row.as_chunks::<2>().0.iter().enumerate();
                pairs.for_each(|(i, &[a, b])| lines.set(i, lane, Complex64::new(a, b)));
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
                let (even, odd) = ((z + m) / 2.0, (z - m) / 2.0);
                // -i times the root.
                let w = Complex64::new(self.roots[k].im, -self.roots[k].re);
                *out = even + w * odd;
            }
        }
    }

    /// Rows of `n / 2 + 1` complex numbers to rows of `n` real ones, times `scale`.
    pub(super) fn backward(
        &self,
        rows: &[Complex64],
        out: &mut [f64],
        scale: f64,
        lines: &mut Lines,
    ) {
        let (n, h, half) = (self.n, self.plan.n, self.n / 2 + 1);
        lines.reset(h, rows.len() / half);
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
                let z = x + m + Complex64::new(-odd.im, odd.re);
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
pub(super) struct FftPlan {
    n: usize,
    inverse: bool,
    kind: Kind,
}

enum Kind {
    /// Prime factors of the length and the roots of unity.
    Mixed(Vec<usize>, Vec<Complex64>),
    Chirp(Box<Chirp>),
}

/// A transform as a convolution with a chirp, which is cyclic in a power of two.
struct Chirp {
    forward: FftPlan,
    backward: FftPlan,
    factors: Vec<Complex64>,
    spectrum: Vec<Complex64>,
}

/// Lines under way: element `i` of line `l` is at `i * lanes + l`.
#[derive(Default)]
pub(crate) struct Lines {
    pub(super) lanes: usize,
    pub(super) re: Vec<f64>,
    pub(super) im: Vec<f64>,
    room: [Vec<f64>; 2],
}

impl Lines {
    /// Makes room for `lanes` lines of `n` numbers, all 0.
    pub(super) fn reset(&mut self, n: usize, lanes: usize) {
        self.lanes = lanes;
        for part in [&mut self.re, &mut self.im] {
            part.clear();
            part.resize(n * lanes, 0.0);
        }
    }

    /// A number.
    #[inline(always)]
    pub(super) fn get(&self, i: usize, lane: usize) -> Complex64 {
        let at = i * self.lanes + lane;
        Complex64::new(self.re[at], self.im[at])
    }

    /// Sets a number.
    #[inline(always)]
    pub(super) fn set(&mut self, i: usize, lane: usize, v: Complex64) {
        let at = i * self.lanes + lane;
        (self.re[at], self.im[at]) = (v.re, v.im);
    }
}

impl FftPlan {
    /// A plan for transforms of `n` numbers; neither direction scales.
    pub(super) fn new(n: usize, inverse: bool) -> FftPlan {
        let sign = if inverse { 1.0 } else { -1.0 };
        let factors = factors(n);
        let kind = if factors.iter().all(|&p| p <= LARGEST_FACTOR) {
            let root = |i: usize| Complex64::cis(sign * 2.0 * PI * i as f64 / n as f64);
            Kind::Mixed(factors, (0..n).map(root).collect())
        } else {
            Kind::Chirp(Box::new(Chirp::new(n, sign)))
        };
        FftPlan { n, inverse, kind }
    }

    /// How many lines to transform together.
    pub(super) fn lanes(&self) -> usize {
        (GROUP / self.n.max(1)).clamp(1, LANES)
    }

    /// Transforms lines of the plan's length in place.
    pub(super) fn run(&self, lines: &mut Lines) {
        match &self.kind {
            Kind::Mixed(factors, roots) => {
                for part in &mut lines.room {
                    part.clear();
                    part.resize(self.n * lines.lanes, 0.0);
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
struct Mixed<'a> {
    lines: &'a mut Lines,
    factors: &'a [usize],
    roots: &'a [Complex64],
    inverse: bool,
}

/// One stage: `n` numbers are still to be transformed in each of `s` interleaved lines.
struct Stage<'a> {
    n: usize,
    s: usize,
    roots: &'a [Complex64],
    inverse: bool,
}

impl Loop for Mixed<'_> {
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

type Parts<'a> = (&'a [f64], &'a [f64]);
type PartsMut<'a> = (&'a mut [f64], &'a mut [f64]);

impl Stage<'_> {
    /// Run `q` of quarter (or third, …) `r`, of which there are `m` runs each.
    #[inline(always)]
    fn run<'b>(&self, x: Parts<'b>, q: usize, m: usize, r: usize) -> Parts<'b> {
        let at = self.s * (q + m * r);
        (&x.0[at..at + self.s], &x.1[at..at + self.s])
    }

    /// The `i`-th root of unity of order `n`.
    #[inline(always)]
    fn root(&self, i: usize) -> Complex64 {
        self.roots[i * (self.roots.len() / self.n)]
    }

    #[inline(always)]
    fn two(&self, x: Parts<'_>, y: PartsMut<'_>) {
        let (m, s) = (self.n / 2, self.s);
        let places = y.0.chunks_exact_mut(2 * s).zip(y.1.chunks_exact_mut(2 * s));
        for (q, (yr, yi)) in places.enumerate() {
            let w = self.root(q);
            let ((ar, ai), (br, bi)) = (self.run(x, q, m, 0), self.run(x, q, m, 1));
            let ((yr0, yr1), (yi0, yi1)) = (yr.split_at_mut(s), yi.split_at_mut(s));
            for k in 0..s {
                yr0[k] = ar[k] + br[k];
                yi0[k] = ai[k] + bi[k];
                let (dr, di) = (ar[k] - br[k], ai[k] - bi[k]);
                yr1[k] = w.re * dr - w.im * di;
                yi1[k] = w.re * di + w.im * dr;
            }
        }
    }

    #[inline(always)]
    fn four(&self, x: Parts<'_>, y: PartsMut<'_>) {
        let (m, s) = (self.n / 4, self.s);
        // A quarter turn, forwards or back.
        let turn = if self.inverse { 1.0 } else { -1.0 };
        let places = y.0.chunks_exact_mut(4 * s).zip(y.1.chunks_exact_mut(4 * s));
        for (q, (yr, yi)) in places.enumerate() {
            let (w1, w2, w3) = (self.root(q), self.root(2 * q), self.root(3 * q));
            let ((x0r, x0i), (x1r, x1i)) = (self.run(x, q, m, 0), self.run(x, q, m, 1));
            let ((x2r, x2i), (x3r, x3i)) = (self.run(x, q, m, 2), self.run(x, q, m, 3));
            let ((yr01, yr23), (yi01, yi23)) = (yr.split_at_mut(2 * s), yi.split_at_mut(2 * s));
            let ((yr0, yr1), (yr2, yr3)) = (yr01.split_at_mut(s), yr23.split_at_mut(s));
            let ((yi0, yi1), (yi2, yi3)) = (yi01.split_at_mut(s), yi23.split_at_mut(s));
            for k in 0..s {
                let (ar, ai) = (x0r[k] + x2r[k], x0i[k] + x2i[k]);
                let (br, bi) = (x0r[k] - x2r[k], x0i[k] - x2i[k]);
                let (cr, ci) = (x1r[k] + x3r[k], x1i[k] + x3i[k]);
                let (dr, di) = (-turn * (x1i[k] - x3i[k]), turn * (x1r[k] - x3r[k]));
                yr0[k] = ar + cr;
                yi0[k] = ai + ci;
                let (vr, vi) = (br + dr, bi + di);
                yr1[k] = w1.re * vr - w1.im * vi;
                yi1[k] = w1.re * vi + w1.im * vr;
                let (vr, vi) = (ar - cr, ai - ci);
                yr2[k] = w2.re * vr - w2.im * vi;
                yi2[k] = w2.re * vi + w2.im * vr;
                let (vr, vi) = (br - dr, bi - di);
                yr3[k] = w3.re * vr - w3.im * vi;
                yi3[k] = w3.re * vi + w3.im * vr;
            }
        }
    }

    #[inline(always)]
    fn any(&self, p: usize, x: Parts<'_>, y: PartsMut<'_>) {
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

impl Chirp {
    fn new(n: usize, sign: f64) -> Chirp {
        let size = (2 * n - 1).next_power_of_two();
        // The square is taken modulo 2n so that the angle stays exact.
        let square = |i: usize| (i as u128 * i as u128 % (2 * n as u128)) as f64;
        let factors: Vec<Complex64> = (0..n)
            .map(|i| Complex64::cis(sign * PI * square(i) / n as f64))
            .collect();
        let (forward, backward) = (FftPlan::new(size, false), FftPlan::new(size, true));
        let mut lines = Lines::default();
        lines.reset(size, 1);
        for (i, f) in factors.iter().enumerate() {
            lines.set(i, 0, f.conj());
            lines.set((size - i) % size, 0, f.conj());
        }
        forward.run(&mut lines);
        let scale = 1.0 / size as f64;
        let spectrum = (0..size).map(|i| lines.get(i, 0) * scale).collect();
        Chirp {
            forward,
            backward,
            factors,
            spectrum,
        }
    }

    fn run(&self, n: usize, lines: &mut Lines) {
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
fn multiply(from: Parts<'_>, by: &[Complex64], to: &mut Lines) {
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
                let mut lines = Lines::default();
                // Three lines, of which the second one counts.
                lines.reset(n, 3);
                x.iter().enumerate().for_each(|(i, v)| lines.set(i, 1, *v));
                FftPlan::new(n, inverse).run(&mut lines);
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
            let (half, mut lines) = (n / 2 + 1, Lines::default());
            let mut got = vec![Complex64::default(); 2 * half];
            RealPlan::new(n, false).forward(&rows, &mut got, &mut lines);
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
            RealPlan::new(n, true).backward(&got, &mut back, scale, &mut lines);
            let far = back[n..].iter().zip(&row).map(|(a, b)| (a - b).abs());
            assert!(far.fold(0.0, f64::max) < 1e-10, "{n}");
        }
    }
}
