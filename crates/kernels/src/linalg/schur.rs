//! The complex Schur form A = Q·T·Q*, T upper triangular, by shifted QR steps on the Hessenberg
//! form. Eigenvectors and functions of matrices start from it.

use super::field::{Dense, Field};
use super::reflect::Reflector;
use crate::math::isa::{Isa, Loop, dispatch};
use num_complex::Complex64;

/// Steps allowed for each eigenvalue; three are usual.
const MAX_STEPS: usize = 60;

/// A unitary and an upper triangular factor.
pub(super) struct Schur {
    pub(super) q: Dense<Complex64>,
    pub(super) t: Dense<Complex64>,
}

/// Decomposes a square matrix; `None` when the iteration does not end.
pub(super) fn schur(mut t: Dense<Complex64>) -> Option<Schur> {
    let n = t.rows;
    let mut q = Dense::identity(n);
    for k in 0..n.saturating_sub(2) {
        let column = (k + 1..n).map(|i| t.get(i, k)).collect();
        if let (Some(r), beta) = Reflector::new(k + 1, column) {
            r.adjoint_times(&mut t, k + 1..n);
            r.after(&mut t, 0..n);
            r.after(&mut q, 0..n);
            *t.at(k + 1, k) = beta.into();
            (k + 2..n).for_each(|i| *t.at(i, k) = Complex64::ZERO);
        }
    }
    q.transpose();
    let (mut end, mut steps) = (n, 0);
    while end > 1 {
        let last = end - 1;
        let mut first = last;
        while first > 0 {
            let near = t.get(first - 1, first - 1).norm() + t.get(first, first).norm();
            let below = t.get(first, first - 1).norm();
            if below <= f64::EPSILON * near || below <= f64::MIN_POSITIVE {
                *t.at(first, first - 1) = Complex64::ZERO;
                break;
            }
            first -= 1;
        }
        if first == last {
            (end, steps) = (last, 0);
            continue;
        }
        if steps == MAX_STEPS {
            return None;
        }
        steps += 1;
        let shift = match steps % 10 {
            // Now and then another one, against cycles.
            0 => {
                let near = t.get(last, last - 1).norm();
                let far = if last > 1 {
                    t.get(last - 1, last - 2).norm()
                } else {
                    0.0
                };
                t.get(last, last) + (near + far)
            }
            _ => corner(&t, last),
        };
        step(&mut t, &mut q, first, last, shift);
    }
    q.transpose();
    Some(Schur { q, t })
}

/// The eigenvalue of the 2 by 2 block that ends at `last` which is nearer its corner.
fn corner(t: &Dense<Complex64>, last: usize) -> Complex64 {
    let (a, b) = (t.get(last - 1, last - 1), t.get(last - 1, last));
    let (c, d) = (t.get(last, last - 1), t.get(last, last));
    let half = (a - d) / 2.0;
    let root = (half * half + b * c).sqrt();
    let (x, y) = (half + root, half - root);
    let (near, far) = if x.norm() < y.norm() { (x, y) } else { (y, x) };
    // The nearer one from the product, which loses nothing: near · far = -b·c.
    let near = if far.norm() > 0.0 { -b * c / far } else { near };
    d + near
}

/// One QR step on rows and columns `first..=last`.
fn step(
    t: &mut Dense<Complex64>,
    q: &mut Dense<Complex64>,
    first: usize,
    last: usize,
    shift: Complex64,
) {
    dispatch(SchurStep {
        t,
        q,
        first,
        last,
        shift,
    });
}

struct SchurStep<'a> {
    t: &'a mut Dense<Complex64>,
    q: &'a mut Dense<Complex64>,
    first: usize,
    last: usize,
    shift: Complex64,
}

impl Loop for SchurStep<'_> {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        let SchurStep {
            t,
            q,
            first,
            last,
            shift,
        } = self;
        let n = t.rows;
        let (mut x, mut y) = (t.get(first, first) - shift, t.get(first + 1, first));
        for k in first..last {
            // A rotation G with G·(x, y) = (r, 0).
            let r = x.norm().hypot(y.norm());
            if r > 0.0 {
                let (c, s) = (x / r, y / r);
                let from = k.saturating_sub(1).max(first);
                let (upper, lower) = t.values[k * n..].split_at_mut(n);
                turn(&mut upper[from..], &mut lower[from..n], c.conj(), s.conj());
                for row in t.values.chunks_exact_mut(n).take((k + 3).min(last + 1)) {
                    let (a, b) = (row[k], row[k + 1]);
                    row[k] = a * c + b * s;
                    row[k + 1] = b * c.conj() - a * s.conj();
                }
                // The columns of Q stand in rows meanwhile.
                let (left, right) = q.values[k * n..].split_at_mut(n);
                turn(left, &mut right[..n], c, s);
            }
            if k + 1 < last {
                (x, y) = (t.get(k + 1, k), t.get(k + 2, k));
            }
            if k > first {
                *t.at(k + 1, k - 1) = Complex64::ZERO;
            }
        }
    }
}

/// (x, y) become (c·x + s·y, c*·y - s*·x).
#[inline(always)]
fn turn(x: &mut [Complex64], y: &mut [Complex64], c: Complex64, s: Complex64) {
    for (x, y) in x.iter_mut().zip(y) {
        let (a, b) = (*x, *y);
        *x = c * a + s * b;
        *y = c.conj() * b - s.conj() * a;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_multiply_back() {
        for n in 1..9 {
            for kind in 0..4 {
                let value = |i: usize| match kind {
                    0 => Complex64::new((i as f64 * 1.3).sin(), (i as f64 * 0.7).cos()),
                    1 => Complex64::new((i * i % 7) as f64 - 3.0, 0.0),
                    // A cyclic permutation: its plain shifts do not converge.
                    2 => Complex64::new(f64::from((i / n + 1) % n == i % n), 0.0),
                    _ => Complex64::default(),
                };
                let a = Dense::new(n, n, (0..n * n).map(value).collect());
                let copy = Dense::new(n, n, a.values.clone());
                let Schur { q, t } = schur(copy).unwrap();
                for i in 0..n {
                    for j in 0..n {
                        assert!(i <= j || t.get(i, j).norm() == 0.0);
                        let mut sum = Complex64::default();
                        for k in 0..n {
                            for l in 0..n {
                                sum += q.get(i, k) * t.get(k, l) * q.get(j, l).conj();
                            }
                        }
                        assert!((sum - a.get(i, j)).norm() < 1e-10, "{n} {kind} {i} {j}");
                    }
                }
            }
        }
        assert!(schur(Dense::new(3, 3, vec![Complex64::new(f64::NAN, 0.0); 9])).is_none());
    }
}
