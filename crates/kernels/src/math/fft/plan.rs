//! Discrete Fourier transforms of one length: mixed radices for lengths of small factors,
//! Bluestein's convolution for the rest. Always in double precision.

use num_complex::Complex64;
use std::f64::consts::PI;

/// The largest prime factor that is worth a sum over itself.
const LARGEST_FACTOR: usize = 31;

/// Everything that depends on the length and the direction alone.
pub(crate) struct Plan {
    n: usize,
    kind: Kind,
}

enum Kind {
    /// Prime factors of the length and the roots of unity.
    Mixed(Vec<usize>, Vec<Complex64>),
    Chirp(Box<Chirp>),
}

/// A transform as a convolution with a chirp, which is cyclic in a power of two.
struct Chirp {
    forward: Plan,
    backward: Plan,
    factors: Vec<Complex64>,
    spectrum: Vec<Complex64>,
}

impl Plan {
    /// A plan for transforms of `n` numbers; neither direction scales.
    pub(crate) fn new(n: usize, inverse: bool) -> Plan {
        let sign = if inverse { 1.0 } else { -1.0 };
        let factors = factors(n);
        let kind = if factors.iter().all(|&p| p <= LARGEST_FACTOR) {
            let root = |i: usize| Complex64::cis(sign * 2.0 * PI * i as f64 / n as f64);
            Kind::Mixed(factors, (0..n).map(root).collect())
        } else {
            Kind::Chirp(Box::new(Chirp::new(n, sign)))
        };
        Plan { n, kind }
    }

    /// Transforms `data`, of the plan's length, in place; `room` is kept between calls.
    pub(crate) fn run(&self, data: &mut [Complex64], room: &mut Vec<Complex64>) {
        match &self.kind {
            Kind::Mixed(factors, roots) => {
                room.clear();
                room.extend_from_slice(data);
                mixed(room, 1, data, factors, roots);
            }
            Kind::Chirp(chirp) => chirp.run(data, room),
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

/// Transforms every `stride`-th element of `from` into `to`, by decimation in time.
fn mixed(
    from: &[Complex64],
    stride: usize,
    to: &mut [Complex64],
    factors: &[usize],
    roots: &[Complex64],
) {
    let n = to.len();
    let Some((&p, rest)) = factors.split_first() else {
        if let (Some(to), Some(from)) = (to.first_mut(), from.first()) {
            *to = *from;
        }
        return;
    };
    let m = n / p;
    for (r, part) in to.chunks_mut(m).enumerate() {
        mixed(&from[r * stride..], stride * p, part, rest, roots);
    }
    // roots[i * step] is the i-th root of unity of order n.
    let step = roots.len() / n;
    let quarter = roots.len() / 4;
    let mut terms = [Complex64::default(); LARGEST_FACTOR];
    for k in 0..m {
        for (r, term) in terms.iter_mut().take(p).enumerate() {
            *term = to[r * m + k] * roots[r * k * step];
        }
        match p {
            2 => {
                to[k] = terms[0] + terms[1];
                to[k + m] = terms[0] - terms[1];
            }
            4 => {
                let (a, b) = (terms[0] + terms[2], terms[0] - terms[2]);
                let (c, d) = (terms[1] + terms[3], (terms[1] - terms[3]) * roots[quarter]);
                to[k] = a + c;
                to[k + m] = b + d;
                to[k + 2 * m] = a - c;
                to[k + 3 * m] = b - d;
            }
            _ => {
                let turn = roots.len() / p;
                for q in 0..p {
                    let sum = terms[1..p].iter().enumerate().map(|(r, term)| {
                        // The product stays below p², far from overflow.
                        term * roots[(r + 1) * q % p * turn]
                    });
                    to[q * m + k] = terms[0] + sum.sum::<Complex64>();
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
        let (forward, backward) = (Plan::new(size, false), Plan::new(size, true));
        let mut spectrum = vec![Complex64::default(); size];
        for (i, f) in factors.iter().enumerate() {
            spectrum[i] = f.conj();
            spectrum[(size - i) % size] = f.conj();
        }
        forward.run(&mut spectrum, &mut Vec::new());
        let scale = 1.0 / size as f64;
        spectrum.iter_mut().for_each(|v| *v *= scale);
        Chirp {
            forward,
            backward,
            factors,
            spectrum,
        }
    }

    fn run(&self, data: &mut [Complex64], room: &mut Vec<Complex64>) {
        let mut wide = vec![Complex64::default(); self.forward.n];
        for ((w, d), f) in wide.iter_mut().zip(&*data).zip(&self.factors) {
            *w = d * f;
        }
        self.forward.run(&mut wide, room);
        wide.iter_mut()
            .zip(&self.spectrum)
            .for_each(|(w, s)| *w *= s);
        self.backward.run(&mut wide, room);
        for ((d, w), f) in data.iter_mut().zip(&wide).zip(&self.factors) {
            *d = w * f;
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
                let mut got = x.clone();
                Plan::new(n, inverse).run(&mut got, &mut Vec::new());
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
}
