//! `Svd`: singular values and vectors. Householder's reduction to a real bidiagonal matrix, then
//! implicit QR steps (Golub and Kahan).

use super::batch::{FOUR, by_field, each};
use super::field::{Dense, Field};
use super::reflect::{Reflector, product, turn_rows};
use downpour_graph::Result;
use downpour_runtime::{Built, OpContext, Registry};
use downpour_tensor::DType;
use num_complex::Complex64;
use smallvec::smallvec;

/// Steps allowed for each singular value; two are usual.
const MAX_STEPS: usize = 75;

pub(crate) fn register(r: &mut Registry) {
    const REAL: &[DType] = crate::types::DOUBLE_FLOAT;
    r.add_typed("XlaSvd", &[("T", REAL)], |_| {
        Built::costly(|ctx| run::<f64>(ctx, true, true))
    });
    for op in ["Svd", "BatchSvd"] {
        r.add_typed(op, &[("T", FOUR)], |b| {
            let (vectors, full) = (
                b.attrs().bool("compute_uv")?,
                b.attrs().bool("full_matrices")?,
            );
            by_field(
                b,
                move |ctx| run::<f64>(ctx, vectors, full),
                move |ctx| run::<Complex64>(ctx, vectors, full),
            )
        });
    }
}

fn run<C: Field>(ctx: &mut OpContext<'_>, vectors: bool, full: bool) -> Result<()> {
    let size = |sizes: &[(usize, usize)]| match sizes {
        [(m, n), ..] => (*m, *n),
        [] => (0, 0),
    };
    each::<C>(
        ctx,
        1,
        |sizes| {
            let (m, n) = size(sizes);
            let least = m.min(n);
            let (mut shapes, all) = (vec![smallvec![least]], |d| if full { d } else { least });
            if vectors {
                shapes.push(smallvec![m, all(m)]);
                shapes.push(smallvec![n, all(n)]);
            }
            Ok(shapes)
        },
        |given| {
            let mut out = Vec::new();
            for a in &given {
                let (m, n) = (a.rows, a.cols);
                let wanted = match (vectors, full) {
                    (false, _) => (0, 0),
                    (true, true) => (m, n),
                    (true, false) => (m.min(n), m.min(n)),
                };
                let nan = |len: usize| vec![C::real(f64::NAN); len];
                out = match decompose(a, wanted) {
                    Some(svd) => vec![
                        svd.values.into_iter().map(C::real).collect(),
                        transpose(&svd.left),
                        transpose(&svd.right),
                    ],
                    None => vec![nan(m.min(n)), nan(m * wanted.0), nan(n * wanted.1)],
                };
            }
            Ok(out)
        },
    )
}

/// The transpose of a matrix whose rows are vectors.
fn transpose<C: Field>(rows: &Dense<C>) -> Vec<C> {
    let columns = 0..rows.cols;
    columns
        .flat_map(|j| (0..rows.rows).map(move |i| rows.get(i, j)))
        .collect()
}

/// A decomposition; the vectors stand in rows.
pub(super) struct Svd<C> {
    /// Falling.
    pub(super) values: Vec<f64>,
    pub(super) left: Dense<C>,
    pub(super) right: Dense<C>,
}

/// Decomposes `a`; `wanted` says how many left and right vectors to give. `None` for numbers that
/// are not finite or an iteration that does not end.
pub(super) fn decompose<C: Field>(a: &Dense<C>, wanted: (usize, usize)) -> Option<Svd<C>> {
    if a.rows < a.cols {
        let turned = decompose(&a.adjoint(), (wanted.1, wanted.0))?;
        return Some(Svd {
            values: turned.values,
            left: turned.right,
            right: turned.left,
        });
    }
    if !a.values.iter().all(|v| v.abs().is_finite()) {
        return None;
    }
    let (m, n) = (a.rows, a.cols);
    let scale = a.values.iter().map(|v| v.abs()).fold(0.0, f64::max);
    let scale = if scale > 0.0 { scale } else { 1.0 };
    let factor = C::real(1.0 / scale);
    let mut a = Dense::new(m, n, a.values.iter().map(|v| *v * factor).collect());
    let (mut s, mut e) = (vec![0.0; n], vec![0.0; n]);
    let (mut lefts, mut rights) = (Vec::new(), Vec::new());
    for k in 0..n {
        let column = (k..m).map(|i| a.get(i, k)).collect();
        let (reflector, beta) = Reflector::new(k, column);
        s[k] = beta;
        if let Some(r) = reflector {
            r.adjoint_times(&mut a, k + 1..n);
            lefts.push(r);
        }
        if k + 1 < n {
            let row = (k + 1..n).map(|j| a.get(k, j).conj()).collect();
            let (reflector, beta) = Reflector::new(k + 1, row);
            e[k] = beta;
            if let Some(r) = reflector {
                r.after(&mut a, k + 1..m);
                rights.push(r);
            }
        }
    }
    let rows = |q: Dense<C>| Dense::new(q.cols, q.rows, transpose(&q));
    let mut left = rows(product(&lefts, m, wanted.0));
    let mut right = rows(product(&rights, n, wanted.1));
    diagonalize(&mut s, &mut e, &mut left, &mut right)?;
    for (i, value) in s.iter_mut().enumerate() {
        if *value < 0.0 {
            *value = -*value;
            if i < right.rows {
                let cols = right.cols;
                let row = &mut right.values[i * cols..(i + 1) * cols];
                row.iter_mut().for_each(|v| *v = -*v);
            }
        }
    }
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|&a, &b| s[b].total_cmp(&s[a]));
    Some(Svd {
        values: order.iter().map(|&i| s[i] * scale).collect(),
        left: reorder(left, &order),
        right: reorder(right, &order),
    })
}

/// The rows in the given order; those it does not name stay behind them.
fn reorder<C: Field>(m: Dense<C>, order: &[usize]) -> Dense<C> {
    let all = order.iter().copied().filter(|&i| i < m.rows);
    let all = all.chain(order.len()..m.rows);
    let values = all.flat_map(|i| m.values[i * m.cols..(i + 1) * m.cols].to_vec());
    Dense::new(m.rows, m.cols, values.collect())
}

/// Makes the bidiagonal matrix of diagonal `s` and superdiagonal `e` diagonal, turning the rows
/// of `u` and `v` along.
fn diagonalize<C: Field>(
    s: &mut [f64],
    e: &mut [f64],
    u: &mut Dense<C>,
    v: &mut Dense<C>,
) -> Option<()> {
    let turn = |m: &mut Dense<C>, a: usize, b: usize, c: f64, s: f64| {
        if a.max(b) < m.rows {
            turn_rows(m, a, b, c, s);
        }
    };
    let norm = (0..s.len())
        .map(|i| s[i].abs() + e[i].abs())
        .fold(0.0, f64::max);
    let tiny = f64::EPSILON * norm * 1e-3;
    let (mut end, mut steps) = (s.len(), 0);
    while end > 0 {
        let last = end - 1;
        // The block first..end has no negligible element above its diagonal.
        let mut first = last;
        while first > 0 {
            let near = s[first - 1].abs() + s[first].abs();
            if e[first - 1].abs() <= f64::EPSILON * near || e[first - 1].abs() <= f64::MIN_POSITIVE
            {
                e[first - 1] = 0.0;
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
        // A zero on the diagonal lets the row or column beside it be cleared.
        if let Some(k) = (first..last).find(|&k| s[k].abs() <= tiny) {
            s[k] = 0.0;
            let mut f = e[k];
            e[k] = 0.0;
            for j in k + 1..end {
                let r = f.hypot(s[j]);
                if r == 0.0 {
                    break;
                }
                let (c, t) = (s[j] / r, f / r);
                s[j] = r;
                f = -t * e[j];
                e[j] *= c;
                turn(u, j, k, c, t);
            }
            continue;
        }
        if s[last].abs() <= tiny {
            s[last] = 0.0;
            let mut f = e[last - 1];
            e[last - 1] = 0.0;
            for j in (first..last).rev() {
                let r = f.hypot(s[j]);
                if r == 0.0 {
                    break;
                }
                let (c, t) = (s[j] / r, f / r);
                s[j] = r;
                if j > first {
                    f = -t * e[j - 1];
                    e[j - 1] *= c;
                }
                turn(v, j, last, c, t);
            }
            continue;
        }
        // The eigenvalue of the trailing 2 by 2 block that is nearer its corner.
        let scale = [s[last], s[last - 1], e[last - 1], s[first], e[first]]
            .iter()
            .fold(0.0, |m: f64, x| m.max(x.abs()));
        let (sp, sp1, ep1) = (s[last] / scale, s[last - 1] / scale, e[last - 1] / scale);
        let (sk, ek) = (s[first] / scale, e[first] / scale);
        let b = ((sp1 + sp) * (sp1 - sp) + ep1 * ep1) / 2.0;
        let c = (sp * ep1) * (sp * ep1);
        let mut shift = 0.0;
        if b != 0.0 || c != 0.0 {
            let root = (b * b + c).sqrt();
            shift = c / (b + root.copysign(b));
        }
        let mut f = (sk + sp) * (sk - sp) + shift;
        let mut g = sk * ek;
        for j in first..last {
            let r = f.hypot(g);
            let (c, t) = if r == 0.0 { (1.0, 0.0) } else { (f / r, g / r) };
            if j > first {
                e[j - 1] = r;
            }
            f = c * s[j] + t * e[j];
            e[j] = c * e[j] - t * s[j];
            g = t * s[j + 1];
            s[j + 1] *= c;
            turn(v, j, j + 1, c, t);
            let r = f.hypot(g);
            let (c, t) = if r == 0.0 { (1.0, 0.0) } else { (f / r, g / r) };
            s[j] = r;
            f = c * e[j] + t * s[j + 1];
            s[j + 1] = c * s[j + 1] - t * e[j];
            g = t * e[j + 1];
            e[j + 1] *= c;
            turn(u, j, j + 1, c, t);
        }
        e[last - 1] = f;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(a: &Dense<Complex64>) {
        let (m, n) = (a.rows, a.cols);
        let svd = decompose(a, (m, n)).unwrap();
        assert!(svd.values.windows(2).all(|w| w[0] >= w[1] && w[1] >= 0.0));
        for i in 0..m {
            for j in 0..n {
                let sum: Complex64 = (0..m.min(n))
                    .map(|k| svd.left.get(k, i) * svd.values[k] * svd.right.get(k, j).conj())
                    .sum();
                assert!(
                    (sum - a.get(i, j)).norm() < 1e-9,
                    "{m} {n}: {sum} {}",
                    a.get(i, j)
                );
            }
        }
        for q in [&svd.left, &svd.right] {
            for i in 0..q.rows {
                for j in 0..q.rows {
                    let dot: Complex64 =
                        (0..q.cols).map(|k| q.get(i, k).conj() * q.get(j, k)).sum();
                    let want = if i == j { 1.0 } else { 0.0 };
                    assert!((dot - want).norm() < 1e-10);
                }
            }
        }
    }

    #[test]
    fn factors_multiply_back() {
        for m in 1..8 {
            for n in 1..8 {
                let value = |i: usize| {
                    let i = i as f64;
                    Complex64::new((i * 1.7).sin() * 3.0, (i * 0.9 + 1.0).cos())
                };
                check(&Dense::new(m, n, (0..m * n).map(value).collect()));
                let low = |i: usize| Complex64::new((i / n * (i % n)) as f64, 0.0);
                check(&Dense::new(m, n, (0..m * n).map(low).collect()));
                let ones = vec![Complex64::new(1.0, 0.0); m * n];
                check(&Dense::new(m, n, ones));
                check(&Dense::new(m, n, vec![Complex64::default(); m * n]));
            }
        }
        // A zero inside the diagonal of an upper bidiagonal matrix.
        let mut a = Dense::new(4, 4, vec![Complex64::default(); 16]);
        for i in 0..4 {
            *a.at(i, i) = Complex64::new(if i == 1 { 0.0 } else { 2.0 }, 0.0);
            if i < 3 {
                *a.at(i, i + 1) = Complex64::new(1.0, 0.0);
            }
        }
        check(&a);
    }

    #[test]
    fn what_is_not_finite_has_none() {
        assert!(decompose(&Dense::new(2, 2, vec![f64::NAN, 1.0, 2.0, 3.0]), (2, 2)).is_none());
        assert!(decompose(&Dense::new(1, 2, vec![f64::INFINITY, 1.0]), (1, 2)).is_none());
    }
}
