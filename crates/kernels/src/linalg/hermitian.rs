//! `SelfAdjointEigV2` and its first version: eigenvalues and eigenvectors of symmetric or Hermitian
//! matrices, of which only the lower triangle is read. Householder's reduction to a real
//! tridiagonal matrix, then implicit QL.

use super::batch::{FOUR, by_field, each, invalid, square};
use super::field::{Dense, Field};
use super::reflect::{Reflector, product, turn_rows};
use downpour_graph::Result;
use downpour_runtime::{Built, OpContext, Registry};
use downpour_tensor::DType;
use num_complex::Complex64;
use smallvec::smallvec;

/// Steps allowed for each eigenvalue; three are usual.
const MAX_STEPS: usize = 60;

pub(crate) fn register(r: &mut Registry) {
    for op in ["SelfAdjointEigV2", "BatchSelfAdjointEigV2"] {
        r.add_typed(op, &[("T", FOUR)], |b| {
            let vectors = b.attrs().bool("compute_v")?;
            by_field(
                b,
                move |ctx| eigen::<f64>(ctx, vectors, true),
                move |ctx| eigen::<Complex64>(ctx, vectors, true),
            )
        });
    }
    const REAL: &[DType] = crate::types::DOUBLE_FLOAT;
    r.add_typed("XlaSelfAdjointEig", &[("T", REAL)], |b| {
        let lower = b.attrs().bool("lower")?;
        Built::costly(move |ctx| eigen::<f64>(ctx, true, lower))
    });
    for op in ["SelfAdjointEig", "BatchSelfAdjointEig"] {
        r.add_typed(op, &[("T", REAL)], |_| Built::costly(together));
    }
}

/// The first version's one output: eigenvalues in the first row, eigenvectors in the columns below.
fn together(ctx: &mut OpContext<'_>) -> Result<()> {
    each::<f64>(
        ctx,
        1,
        |sizes| {
            let n = square(sizes)?;
            Ok(vec![smallvec![n + 1, n]])
        },
        |given| {
            let Some((mut out, rows)) = given.first().and_then(|a| decompose(a, true)) else {
                return invalid(NO_SUCCESS);
            };
            out.extend(transpose(&rows));
            Ok(vec![out])
        },
    )
}

const NO_SUCCESS: &str =
    "Self-adjoint eigen decomposition was not successful. The input might not be valid.";

/// Reads the lower triangle, or the upper one.
fn eigen<C: Field>(ctx: &mut OpContext<'_>, vectors: bool, lower: bool) -> Result<()> {
    each::<C>(
        ctx,
        1,
        |sizes| {
            let n = square(sizes)?;
            Ok(match vectors {
                true => vec![smallvec![n], smallvec![n, n]],
                false => vec![smallvec![n]],
            })
        },
        |given| {
            let turned = |a: &Dense<C>| decompose(&a.adjoint(), vectors);
            let found = given.first().and_then(|a| match lower {
                true => decompose(a, vectors),
                false => turned(a),
            });
            let Some((values, rows)) = found else {
                return invalid(NO_SUCCESS);
            };
            let values = values.into_iter().map(C::real).collect();
            Ok(vec![values, transpose(&rows)])
        },
    )
}

fn transpose<C: Field>(m: &Dense<C>) -> Vec<C> {
    let columns = 0..m.cols;
    columns
        .flat_map(|j| (0..m.rows).map(move |i| m.get(i, j)))
        .collect()
}

/// Eigenvalues in rising order and, if wanted, an eigenvector in each row; `None` when the
/// iteration does not end.
pub(super) fn decompose<C: Field>(given: &Dense<C>, vectors: bool) -> Option<(Vec<f64>, Dense<C>)> {
    let n = given.rows;
    let mut a = Dense::new(n, n, vec![C::ZERO; n * n]);
    for i in 0..n {
        for j in 0..i {
            *a.at(i, j) = given.get(i, j);
            *a.at(j, i) = given.get(i, j).conj();
        }
        *a.at(i, i) = C::real(given.get(i, i).re());
    }
    let scale = a.values.iter().map(|v| v.abs()).fold(0.0, f64::max);
    let scale = if scale > 0.0 && scale.is_finite() {
        scale
    } else {
        1.0
    };
    let factor = C::real(1.0 / scale);
    a.values.iter_mut().for_each(|v| *v = *v * factor);
    let (mut diagonal, mut beside) = (Vec::with_capacity(n), Vec::with_capacity(n));
    let mut reflectors = Vec::new();
    for k in 0..n {
        diagonal.push(a.get(k, k).re());
        let column = (k + 1..n).map(|i| a.get(i, k)).collect();
        let (reflector, beta) = Reflector::new(k + 1, column);
        beside.push(beta);
        if let Some(r) = reflector {
            r.adjoint_times(&mut a, k + 1..n);
            r.after(&mut a, k + 1..n);
            reflectors.push(r);
        }
    }
    let mut rows = match vectors {
        true => {
            let q = product(&reflectors, n, n);
            Dense::new(n, n, transpose(&q))
        }
        false => Dense::new(n, 0, Vec::new()),
    };
    ql(&mut diagonal, &mut beside, &mut rows)?;
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|&a, &b| diagonal[a].total_cmp(&diagonal[b]));
    let values = order.iter().map(|&i| diagonal[i] * scale).collect();
    let width = rows.cols;
    let sorted = order
        .iter()
        .flat_map(|&i| &rows.values[i * width..(i + 1) * width]);
    let sorted = Dense::new(n, width, sorted.copied().collect());
    Some((values, sorted))
}

/// Makes the tridiagonal matrix (`d`, `e`) diagonal and turns the rows of `z` along.
fn ql<C: Field>(d: &mut [f64], e: &mut [f64], z: &mut Dense<C>) -> Option<()> {
    let n = d.len();
    for l in 0..n {
        for steps in 0.. {
            // The end of the block that is not yet split at l.
            let small = |i: usize| e[i].abs() <= f64::EPSILON * (d[i].abs() + d[i + 1].abs());
            let m = (l..n - 1)
                .find(|&i| small(i) || e[i] == 0.0)
                .unwrap_or(n - 1);
            if m == l {
                break;
            }
            if steps == MAX_STEPS {
                return None;
            }
            let g = (d[l + 1] - d[l]) / (2.0 * e[l]);
            let r = g.hypot(1.0);
            let mut g = d[m] - d[l] + e[l] / (g + r.copysign(g));
            let (mut s, mut c, mut p) = (1.0, 1.0, 0.0);
            let mut early = false;
            for i in (l..m).rev() {
                let (f, b) = (s * e[i], c * e[i]);
                let r = f.hypot(g);
                e[i + 1] = r;
                if r == 0.0 {
                    // A rotation ended before the block did: begin again.
                    d[i + 1] -= p;
                    e[m] = 0.0;
                    early = true;
                    break;
                }
                (s, c) = (f / r, g / r);
                g = d[i + 1] - p;
                let r = (d[i] - g) * s + 2.0 * c * b;
                p = s * r;
                d[i + 1] = g + p;
                g = c * r - b;
                if z.cols > 0 {
                    turn_rows(z, i + 1, i, c, s);
                }
            }
            if !early {
                d[l] -= p;
                e[l] = g;
                e[m] = 0.0;
            }
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(a: Dense<Complex64>) {
        let n = a.rows;
        let (values, rows) = decompose(&a, true).unwrap();
        assert!(values.windows(2).all(|w| w[0] <= w[1]));
        for (k, value) in values.iter().enumerate() {
            let v = &rows.values[k * n..(k + 1) * n];
            let norm: f64 = v.iter().map(|x| x.norm_sqr()).sum();
            assert!((norm - 1.0).abs() < 1e-12);
            for i in 0..n {
                let av: Complex64 = (0..n).map(|j| a.get(i, j) * v[j]).sum();
                assert!((av - v[i] * value).norm() < 1e-10, "{n} {k} {i}");
            }
        }
    }

    #[test]
    fn vectors_are_only_stretched() {
        for n in 1..9 {
            let mut a = Dense::new(n, n, vec![Complex64::default(); n * n]);
            for i in 0..n {
                for j in 0..i {
                    let v = Complex64::new((i * 3 + j) as f64 % 5.0, (i + 2 * j) as f64 % 3.0);
                    *a.at(i, j) = v;
                    *a.at(j, i) = v.conj();
                }
                *a.at(i, i) = Complex64::new(i as f64 - 2.0, 0.0);
            }
            check(a);
        }
        check(Dense::new(4, 4, vec![Complex64::default(); 16]));
        check(Dense::identity(5));
    }

    #[test]
    fn what_is_not_a_number_ends() {
        let nan = Dense::new(3, 3, vec![f64::NAN; 9]);
        assert!(decompose(&nan, true).is_none());
    }
}
