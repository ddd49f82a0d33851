//! What follows from the Schur form: `Eig`, `MatrixSquareRoot`, `MatrixLogarithm`.

use super::batch::{FOUR, by_field, each, invalid, over, square};
use super::field::{Dense, Field};
use super::schur::{Schur, schur};
use downpour_graph::Result;
use downpour_runtime::{Built, OpContext, Registry};
use downpour_tensor::DType;
use num_complex::Complex64;
use smallvec::smallvec;

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("Eig", &[("T", FOUR)], |b| {
        let vectors = b.attrs().bool("compute_v")?;
        let (input, output) = (b.attrs().dtype("T")?, b.attrs().dtype("Tout")?);
        let expected = match input {
            DType::Float | DType::Complex64 => DType::Complex64,
            _ => DType::Complex128,
        };
        if output != expected {
            return invalid(format!(
                "Invalid output dtype {} vs {}",
                output.number(),
                expected.number()
            ));
        }
        Built::costly(move |ctx| eigen(ctx, vectors))
    });
    r.add_typed("MatrixSquareRoot", &[("T", FOUR)], |b| {
        by_field(
            b,
            |ctx| map::<f64>(ctx, |a| real(&a, square_root)),
            |ctx| map::<Complex64>(ctx, |a| through_schur(a, square_root)),
        )
    });
    const COMPLEX: &[DType] = &[DType::Complex128, DType::Complex64];
    r.add_typed("MatrixLogarithm", &[("T", COMPLEX)], |_| {
        Built::costly(|ctx| map::<Complex64>(ctx, |a| through_schur(a, logarithm)))
    });
}

/// A function from square matrices to square matrices of the same size.
pub(super) fn map<C: Field>(
    ctx: &mut OpContext<'_>,
    f: impl Fn(Dense<C>) -> Dense<C> + Sync,
) -> Result<()> {
    each::<C>(
        ctx,
        1,
        |sizes| {
            let n = square(sizes)?;
            Ok(vec![smallvec![n, n]])
        },
        |given| Ok(given.into_iter().map(|a| f(a).values).collect()),
    )
}

/// A function of a real matrix; NaN where its value is not real.
fn real(a: &Dense<f64>, f: fn(Dense<Complex64>) -> Dense<Complex64>) -> Dense<f64> {
    let complex = a.values.iter().map(|&v| v.into()).collect();
    let found = through_schur(Dense::new(a.rows, a.cols, complex), f);
    let size: f64 = found.values.iter().map(|v| v.norm()).fold(0.0, f64::max);
    let is_real = found.values.iter().all(|v| !(v.im.abs() > 1e-6 * size));
    let value = |v: &Complex64| if is_real { v.re } else { f64::NAN };
    Dense::new(a.rows, a.cols, found.values.iter().map(value).collect())
}

/// `f` of the triangular factor, taken back; NaN when there is none.
fn through_schur(
    a: Dense<Complex64>,
    f: fn(Dense<Complex64>) -> Dense<Complex64>,
) -> Dense<Complex64> {
    let n = a.rows;
    match schur(a) {
        Some(Schur { q, t }) => {
            let inner = times(&q, &f(t));
            times(&inner, &q.adjoint())
        }
        None => Dense::new(n, n, vec![Complex64::new(f64::NAN, f64::NAN); n * n]),
    }
}

/// The product of two matrices.
pub(super) fn times<C: Field>(a: &Dense<C>, b: &Dense<C>) -> Dense<C> {
    let mut out = Dense::new(a.rows, b.cols, vec![C::ZERO; a.rows * b.cols]);
    for i in 0..a.rows {
        let row = &mut out.values[i * b.cols..(i + 1) * b.cols];
        for k in 0..a.cols {
            let v = a.get(i, k);
            for (to, from) in row.iter_mut().zip(&b.values[k * b.cols..(k + 1) * b.cols]) {
                *to = *to + v * *from;
            }
        }
    }
    out
}

/// The principal square root of an upper triangular matrix.
fn square_root(t: Dense<Complex64>) -> Dense<Complex64> {
    let n = t.rows;
    let mut r = Dense::new(n, n, vec![Complex64::ZERO; n * n]);
    for j in 0..n {
        *r.at(j, j) = t.get(j, j).sqrt();
        for i in (0..j).rev() {
            let known: Complex64 = (i + 1..j).map(|k| r.get(i, k) * r.get(k, j)).sum();
            *r.at(i, j) = (t.get(i, j) - known) / (r.get(i, i) + r.get(j, j));
        }
    }
    r
}

/// The principal logarithm of an upper triangular matrix: square roots until it is near the
/// identity, then the diagonal Padé approximant, as a sum over Gauss and Legendre's nodes.
fn logarithm(mut t: Dense<Complex64>) -> Dense<Complex64> {
    const NODES: [(f64, f64); 4] = [
        (0.0, 0.417_959_183_673_469_4),
        (0.405_845_151_377_397_2, 0.381_830_050_505_118_9),
        (0.741_531_185_599_394_4, 0.279_705_391_489_276_67),
        (0.949_107_912_342_758_5, 0.129_484_966_168_869_7),
    ];
    let n = t.rows;
    let diagonal: Vec<Complex64> = (0..n).map(|i| t.get(i, i).ln()).collect();
    let mut roots = 0;
    // 64 square roots bring any double near one; a matrix without them stays NaN.
    while distance(&t) > 0.25 && roots < 100 {
        t = square_root(t);
        roots += 1;
    }
    (0..n).for_each(|i| *t.at(i, i) -= 1.0);
    let mut out = Dense::new(n, n, vec![Complex64::ZERO; n * n]);
    for (node, weight) in NODES {
        for sign in [1.0, -1.0] {
            if node == 0.0 && sign < 0.0 {
                continue;
            }
            // log(1 + x) = ∫ x / (1 + s·x) ds over [0, 1].
            let s = (1.0 + sign * node) / 2.0;
            let term = divide(&t, s);
            for (to, from) in out.values.iter_mut().zip(&term.values) {
                *to += from * (weight / 2.0);
            }
        }
    }
    let scale = 2f64.powi(roots);
    out.values.iter_mut().for_each(|v| *v *= scale);
    (0..n).for_each(|i| *out.at(i, i) = diagonal[i]);
    out
}

/// How far a matrix is from the identity, by its largest row.
fn distance(t: &Dense<Complex64>) -> f64 {
    let row = |i: usize| {
        (0..t.cols)
            .map(|j| (t.get(i, j) - f64::from(i == j)).norm())
            .sum::<f64>()
    };
    (0..t.rows).map(row).fold(0.0, f64::max)
}

/// x / (1 + s·x) of an upper triangular x.
fn divide(x: &Dense<Complex64>, s: f64) -> Dense<Complex64> {
    let n = x.rows;
    let mut out = Dense::new(n, n, vec![Complex64::ZERO; n * n]);
    for j in 0..n {
        for i in (0..=j).rev() {
            let known: Complex64 = (i + 1..=j).map(|k| x.get(i, k) * out.get(k, j)).sum();
            *out.at(i, j) = (x.get(i, j) - known * s) / (x.get(i, i) * s + 1.0);
        }
    }
    out
}

fn eigen(ctx: &mut OpContext<'_>, vectors: bool) -> Result<()> {
    let mut x = ctx.take(0)?;
    let real = !x.dtype().is_complex();
    if real {
        let values = f64::read(&x)?.into_iter().map(Complex64::from).collect();
        x = Complex64::write(values, x.shape().clone(), DType::Complex128)?;
    }
    over::<Complex64>(
        ctx,
        &[x],
        |sizes| {
            let n = square(sizes)?;
            Ok(match vectors {
                true => vec![smallvec![n], smallvec![n, n]],
                false => vec![smallvec![n]],
            })
        },
        |given| {
            let mut out = Vec::new();
            for a in given {
                let Some(Schur { q, t }) = schur(a) else {
                    return invalid(
                        "Eigen decomposition was not successful. The input might not be valid.",
                    );
                };
                let n = t.rows;
                let size = t.values.iter().map(|v| v.norm()).fold(0.0, f64::max);
                let noise = if real {
                    size * n as f64 * 8.0 * f64::EPSILON
                } else {
                    0.0
                };
                let value = |i: usize| {
                    let v = t.get(i, i);
                    if real && v.im.abs() <= noise {
                        v.re.into()
                    } else {
                        v
                    }
                };
                let mut order: Vec<usize> = (0..n).collect();
                // TensorFlow sorts the eigenvalues of complex matrices, but not of real ones.
                if !real {
                    order.sort_by(|&a, &b| value(a).norm().total_cmp(&value(b).norm()));
                }
                out.push(order.iter().map(|&i| value(i)).collect());
                if vectors {
                    out.push(eigenvectors(&q, &t, &order).values);
                }
            }
            Ok(out)
        },
    )
}

/// Unit eigenvectors in columns, in the given order.
fn eigenvectors(q: &Dense<Complex64>, t: &Dense<Complex64>, order: &[usize]) -> Dense<Complex64> {
    let n = t.rows;
    let norm = t.values.iter().map(|v| v.norm()).fold(0.0, f64::max);
    let least = (f64::EPSILON * norm).max(f64::MIN_POSITIVE);
    let mut x = Dense::new(n, n, vec![Complex64::ZERO; n * n]);
    for (column, &k) in order.iter().enumerate() {
        *x.at(k, column) = Complex64::ONE;
        for i in (0..k).rev() {
            let known: Complex64 = (i + 1..=k).map(|j| t.get(i, j) * x.get(j, column)).sum();
            let mut gap = t.get(i, i) - t.get(k, k);
            if gap.norm() < least {
                gap = least.into();
            }
            *x.at(i, column) = -known / gap;
        }
    }
    let mut v = times(q, &x);
    for j in 0..n {
        let norm = (0..n).map(|i| v.get(i, j).norm_sqr()).sum::<f64>().sqrt();
        (0..n).for_each(|i| *v.at(i, j) /= norm);
    }
    v
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(n: usize) -> Dense<Complex64> {
        let value = |i: usize| {
            let noise = Complex64::new((i as f64 * 1.3).sin(), (i as f64 * 0.7).cos());
            noise * 0.4 + if i / n == i % n { 3.0 } else { 0.0 }
        };
        Dense::new(n, n, (0..n * n).map(value).collect())
    }

    fn close(a: &Dense<Complex64>, b: &Dense<Complex64>) {
        let pairs = a.values.iter().zip(&b.values);
        for (a, b) in pairs {
            assert!((a - b).norm() < 1e-9, "{a} {b}");
        }
    }

    #[test]
    fn functions_have_their_inverses() {
        for n in 1..7 {
            let root = through_schur(sample(n), square_root);
            close(&times(&root, &root), &sample(n));
            // A logarithm is twice that of the root.
            let log = through_schur(root, logarithm);
            let twice = log.values.iter().map(|v| v * 2.0).collect();
            close(
                &through_schur(sample(n), logarithm),
                &Dense::new(n, n, twice),
            );
        }
        let log = logarithm(Dense::new(1, 1, vec![Complex64::new(1e9, 0.0)]));
        assert!((log.values[0].re - 1e9f64.ln()).abs() < 1e-12);
        let turn = Dense::new(2, 2, vec![-1.0, 0.0, 0.0, -2.0]);
        assert!(real(&turn, square_root).values.iter().all(|v| v.is_nan()));
    }

    #[test]
    fn eigenvectors_are_only_stretched() {
        for n in 1..7 {
            let Schur { q, t } = schur(sample(n)).unwrap();
            let order: Vec<usize> = (0..n).rev().collect();
            let v = eigenvectors(&q, &t, &order);
            let av = times(&sample(n), &v);
            for (j, &k) in order.iter().enumerate() {
                for i in 0..n {
                    assert!((av.get(i, j) - v.get(i, j) * t.get(k, k)).norm() < 1e-9);
                }
            }
        }
    }
}
