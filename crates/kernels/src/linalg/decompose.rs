//! Decompositions of small matrices and what follows from them: `Cholesky`, `Qr`,
//! `MatrixInverse`, `MatrixDeterminant`, `LogMatrixDeterminant`, `MatrixSolve`,
//! `MatrixTriangularSolve`. In double precision.

use super::batch::{FIVE, FOUR, by_field, each, invalid, matrices, split, square};
use super::blocked::{self, Triangle, solve_triangle, subtract};
use super::field::{Dense, Field};
use super::functions::map;
use super::lu::Lu;
use super::reflect::{Reflector, product};
use crate::broadcast::Broadcast;
use crate::math::isa::{Isa, Loop, dispatch};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, OpContext, Registry};
use downpour_tensor::{DType, Shape};
use num_complex::Complex64;
use smallvec::smallvec;

pub(crate) fn register(r: &mut Registry) {
    for op in ["Cholesky", "BatchCholesky"] {
        r.add_typed(op, &[("T", FOUR)], |b| {
            by_field(
                b,
                |ctx| map::<f64>(ctx, cholesky),
                |ctx| map::<Complex64>(ctx, cholesky),
            )
        });
    }
    const REAL: &[DType] = crate::types::DOUBLE_FLOAT;
    for op in ["CholeskyGrad", "BatchCholeskyGrad"] {
        r.add_typed(op, &[("T", REAL)], |_| Built::costly(cholesky_gradient));
    }
    for op in ["MatrixInverse", "BatchMatrixInverse"] {
        r.add_typed(op, &[("T", FIVE)], |b| {
            let adjoint = b.attrs().bool("adjoint")?;
            by_field(
                b,
                move |ctx| inverse::<f64>(ctx, adjoint),
                move |ctx| inverse::<Complex64>(ctx, adjoint),
            )
        });
    }
    for op in ["MatrixDeterminant", "BatchMatrixDeterminant"] {
        r.add_typed(op, &[("T", FOUR)], |b| {
            by_field(b, determinants::<f64>, determinants::<Complex64>)
        });
    }
    r.add_typed("LogMatrixDeterminant", &[("T", FOUR)], |b| {
        by_field(b, log_determinants::<f64>, log_determinants::<Complex64>)
    });
    for op in ["MatrixSolve", "BatchMatrixSolve"] {
        r.add_typed(op, &[("T", FOUR)], |b| {
            let adjoint = b.attrs().bool("adjoint")?;
            by_field(
                b,
                move |ctx| solve::<f64>(ctx, adjoint),
                move |ctx| solve::<Complex64>(ctx, adjoint),
            )
        });
    }
    for op in ["MatrixTriangularSolve", "BatchMatrixTriangularSolve"] {
        r.add_typed(op, &[("T", FOUR)], |b| {
            let (lower, adjoint) = (b.attrs().bool("lower")?, b.attrs().bool("adjoint")?);
            by_field(
                b,
                move |ctx| triangular_solve::<f64>(ctx, lower, adjoint),
                move |ctx| triangular_solve::<Complex64>(ctx, lower, adjoint),
            )
        });
    }
    r.add_typed("Qr", &[("T", FIVE)], |b| {
        let full = b.attrs().bool("full_matrices")?;
        by_field(
            b,
            move |ctx| qr::<f64>(ctx, full),
            move |ctx| qr::<Complex64>(ctx, full),
        )
    });
}

/// The lower triangular factor; NaN if the matrix is not positive definite.
pub(super) fn cholesky<C: Field>(mut a: Dense<C>) -> Dense<C> {
    let n = a.rows;
    let failed = !blocked::cholesky(&mut a);
    for i in 0..n {
        for j in 0..n {
            if j > i {
                *a.at(i, j) = C::ZERO;
            } else if failed {
                *a.at(i, j) = C::real(f64::NAN);
            }
        }
    }
    a
}

/// The gradient of the lower triangular factor of a symmetric matrix, made symmetric.
fn cholesky_gradient(ctx: &mut OpContext<'_>) -> Result<()> {
    each::<f64>(
        ctx,
        2,
        |sizes| match sizes {
            [a, b] if a != b => invalid("Inputs (L and grad) must have the same shape."),
            [(rows, cols), _] if rows == cols => Ok(vec![smallvec![*rows, *rows]]),
            _ => invalid("Inputs must be a square matrices."),
        },
        |given| {
            let [l, mut g] = <[_; 2]>::try_from(given)
                .map_err(|_| Status::internal("two matrices were asked for"))?;
            let n = l.rows;
            dispatch(Undo { l: &l, g: &mut g });
            let value = |i: usize, j: usize| {
                let v = g.get(i.max(j), i.min(j));
                if i == j { v } else { v / 2.0 }
            };
            let rows = (0..n).flat_map(|i| (0..n).map(move |j| (i, j)));
            Ok(vec![rows.map(|(i, j)| value(i, j)).collect()])
        },
    )
}

/// The factorisation's steps undone, last column first.
struct Undo<'a> {
    l: &'a Dense<f64>,
    g: &'a mut Dense<f64>,
}

impl Loop for Undo<'_> {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        let (l, g, n) = (self.l, self.g, self.l.rows);
        for k in (0..n).rev() {
            let d = l.get(k, k);
            for i in k + 1..n {
                *g.at(i, k) /= d;
                *g.at(k, k) -= l.get(i, k) * g.get(i, k);
            }
            *g.at(k, k) /= 2.0 * d;
            let (above, below) = g.values.split_at_mut((k + 1) * n);
            let (left, own) = above[k * n..].split_at_mut(k);
            subtract(left, 2.0 * own[0], &l.values[k * n..k * n + k]);
            for (i, row) in (k + 1..n).zip(below.chunks_exact_mut(n)) {
                let v = row[k];
                subtract(&mut row[..k], v, &l.values[k * n..k * n + k]);
                subtract(left, v, &l.values[i * n..i * n + k]);
            }
        }
    }
}

fn inverse<C: Field>(ctx: &mut OpContext<'_>, adjoint: bool) -> Result<()> {
    each::<C>(
        ctx,
        1,
        |sizes| {
            let n = square(sizes)?;
            Ok(vec![smallvec![n, n]])
        },
        |given| {
            let invert = |m: Dense<C>| {
                let n = m.rows;
                let lu = Lu::new(if adjoint { m.adjoint() } else { m });
                match lu.is_singular() {
                    true => invalid("Input is not invertible."),
                    false => Ok(lu.solve(&Dense::identity(n)).values),
                }
            };
            given.into_iter().map(invert).collect()
        },
    )
}

fn determinants<C: Field>(ctx: &mut OpContext<'_>) -> Result<()> {
    let scalar = |sizes: &[(usize, usize)]| square(sizes).map(|_| vec![smallvec![]]);
    each::<C>(ctx, 1, scalar, |given| {
        let determinant = |m: Dense<C>| {
            let lu = Lu::new(m);
            let diagonal = (0..lu.factors.rows).map(|i| lu.factors.get(i, i));
            vec![diagonal.fold(C::real(lu.sign), |p, d| p * d)]
        };
        Ok(given.into_iter().map(determinant).collect())
    })
}

fn log_determinants<C: Field>(ctx: &mut OpContext<'_>) -> Result<()> {
    let scalars = |sizes: &[(usize, usize)]| square(sizes).map(|_| vec![smallvec![], smallvec![]]);
    each::<C>(ctx, 1, scalars, |given| {
        let (mut sign, mut log) = (C::ONE, 0.0);
        for m in given {
            let lu = Lu::new(m);
            (sign, log) = (C::real(lu.sign), 0.0);
            for d in (0..lu.factors.rows).map(|i| lu.factors.get(i, i)) {
                let size = d.abs();
                sign = if size == 0.0 {
                    C::ZERO
                } else {
                    sign * d / C::real(size)
                };
                log += size.ln();
            }
        }
        Ok(vec![vec![sign], vec![C::real(log)]])
    })
}

fn solve<C: Field>(ctx: &mut OpContext<'_>, adjoint: bool) -> Result<()> {
    each::<C>(
        ctx,
        2,
        |sizes| match sizes {
            [(rows, cols), _] if rows != cols => {
                invalid("First input (lhs) must be a square matrix.")
            }
            [(rows, _), (other, cols)] if rows == other => Ok(vec![smallvec![*rows, *cols]]),
            _ => invalid("Input matrix and rhs are incompatible."),
        },
        |given| {
            let [m, rhs] = <[_; 2]>::try_from(given)
                .map_err(|_| Status::internal("two matrices were asked for"))?;
            let lu = Lu::new(if adjoint { m.adjoint() } else { m });
            if lu.is_singular() {
                return invalid("Input matrix is not invertible.");
            }
            Ok(vec![lu.solve(&rhs).values])
        },
    )
}

fn triangular_solve<C: Field>(ctx: &mut OpContext<'_>, lower: bool, adjoint: bool) -> Result<()> {
    let (a, b) = (ctx.take(0)?, ctx.take(1)?);
    for (i, t) in [&a, &b].iter().enumerate() {
        if t.rank() < 2 {
            return invalid(format!("In[{i}] ndims must be >= 2: {}", t.rank()));
        }
    }
    let ((outer_a, n, cols), (outer_b, m, k)) = (split(&a, 0)?, split(&b, 1)?);
    let Some(bc) = Broadcast::new(outer_a, outer_b) else {
        return invalid(format!(
            "In[0] and In[1] must have compatible batch dimensions: {} vs. {}",
            a.shape(),
            b.shape()
        ));
    };
    if n != cols {
        return invalid(format!(
            "In[0] matrices in the last dimensions must be square ({cols} =/= {n})"
        ));
    }
    if n != m {
        return invalid(format!(
            "In[0] mismatch In[1] shape: {n} vs. {m}: {} {} {} {}",
            a.shape(),
            b.shape(),
            u8::from(lower),
            u8::from(adjoint)
        ));
    }
    let shape = Shape::checked(bc.shape.iter().copied().chain([m, k]).map(|d| d as i64))?;
    ctx.check_alloc(b.dtype(), &shape)?;
    let (left, right) = (matrices::<C>(&a, n, n)?, matrices::<C>(&b, m, k)?);
    let mut out = Vec::with_capacity(shape.num_elements());
    let inner = bc.sizes.len() - 1;
    let (sa, sb) = (bc.left[inner], bc.right[inner]);
    if shape.num_elements() != 0 {
        bc.rows(|_, l, r| {
            for i in 0..bc.sizes[inner] {
                let a = &left[l + i * sa];
                let x = triangular(a, &right[r + i * sb], lower, adjoint);
                out.extend(x.values);
            }
        });
    }
    ctx.set_output(0, C::write(out, shape, b.dtype())?);
    Ok(())
}

fn triangular<C: Field>(a: &Dense<C>, b: &Dense<C>, lower: bool, adjoint: bool) -> Dense<C> {
    let turned;
    let a = if adjoint {
        turned = a.adjoint();
        &turned
    } else {
        a
    };
    let mut x = Dense::new(a.rows, b.cols, b.values.clone());
    // The adjoint of a lower triangle is an upper one.
    let forwards = lower != adjoint;
    let kind = Triangle {
        forwards,
        unit: false,
    };
    solve_triangle(a, &mut x.values, b.cols, kind);
    x
}

fn qr<C: Field>(ctx: &mut OpContext<'_>, full: bool) -> Result<()> {
    let inner = |rows: usize, cols: usize| if full { rows } else { rows.min(cols) };
    each::<C>(
        ctx,
        1,
        |sizes| {
            let (rows, cols) = sizes[0];
            let inner = inner(rows, cols);
            Ok(vec![smallvec![rows, inner], smallvec![inner, cols]])
        },
        |given| {
            let mut out = Vec::new();
            for mut r in given {
                let (rows, cols) = (r.rows, r.cols);
                let inner = inner(rows, cols);
                let mut reflectors = Vec::new();
                for k in 0..rows.min(cols) {
                    let column = (k..rows).map(|i| r.get(i, k)).collect();
                    // A column that is already done keeps the sign of its diagonal.
                    if let (Some(reflector), beta) = Reflector::new(k, column) {
                        reflector.adjoint_times(&mut r, k + 1..cols);
                        *r.at(k, k) = C::real(beta);
                        (k + 1..rows).for_each(|i| *r.at(i, k) = C::ZERO);
                        reflectors.push(reflector);
                    }
                }
                r.values.truncate(inner * cols);
                out = vec![product(&reflectors, rows, inner).values, r.values];
            }
            Ok(out)
        },
    )
}

#[cfg(test)]
mod tests {
    use crate::testing::run_op;
    use downpour_graph::AttrValue;
    use downpour_tensor::{DType, Tensor};
    use num_complex::Complex64;

    fn m(values: &[f32], dims: &[usize]) -> Tensor {
        Tensor::from_vec(values.to_vec(), dims).unwrap()
    }

    fn spd() -> Tensor {
        m(&[4.0, 1.0, 0.0, 1.0, 3.0, 1.0, 0.0, 1.0, 2.0], &[3, 3])
    }

    fn general() -> Tensor {
        m(&[4.0, 1.0, 0.0, 2.0, 3.0, 1.0, 0.0, 1.0, 2.0], &[3, 3])
    }

    fn run(op: &str, inputs: Vec<Tensor>, flags: &[&'static str]) -> Vec<Vec<f32>> {
        let mut attrs: Vec<(&str, AttrValue)> = vec![("T", DType::Float.into())];
        attrs.extend(flags.iter().map(|f| (*f, true.into())));
        let out = run_op(op, inputs, &attrs).unwrap();
        out.iter()
            .map(|t| t.as_slice::<f32>().unwrap().to_vec())
            .collect()
    }

    fn close(got: &[f32], want: &[f32]) {
        assert_eq!(got.len(), want.len());
        let near = |(g, w): (&f32, &f32)| (g - w).abs() < 1e-6 || (g.is_nan() && w.is_nan());
        assert!(got.iter().zip(want).all(near), "{got:?} {want:?}");
    }

    // Values: the raw ops of the same names.
    #[test]
    fn factors_agree_with_tensorflow() {
        let l = run("Cholesky", vec![spd()], &[]);
        let want = [
            2.0, 0.0, 0.0, 0.5, 1.6583124, 0.0, 0.0, 0.6030227, 1.2792042,
        ];
        close(&l[0], &want);
        let n = f32::NAN;
        let bad = run("Cholesky", vec![m(&[0.0; 4], &[2, 2])], &[]);
        close(&bad[0], &[n, 0.0, n, n]);
        let qr = run("Qr", vec![spd()], &[]);
        close(&qr[0][..3], &[-0.9701426, 0.22710603, 0.08512565]);
        close(&qr[1][6..], &[0.0, 0.0, 1.5322617]);
        let tall = m(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[3, 2]);
        let qr = run("Qr", vec![tall.clone()], &[]);
        let want = [
            -0.16903079,
            0.897085,
            -0.5070925,
            0.2760267,
            -0.8451542,
            -0.34503305,
        ];
        close(&qr[0], &want);
        close(&qr[1], &[-5.91608, -7.437357, 0.0, 0.82807845]);
        let qr = run("Qr", vec![tall], &["full_matrices"]);
        assert_eq!((qr[0].len(), qr[1].len()), (9, 6));
    }

    #[test]
    fn solutions_agree_with_tensorflow() {
        let b = || m(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0], &[3, 2]);
        let x = run("MatrixSolve", vec![general(), b()], &[]);
        close(&x[0], &[0.0, 0.25, 0.0, 0.0, 2.0, 2.5]);
        let x = run("MatrixSolve", vec![general(), b()], &["adjoint"]);
        close(&x[0], &[0.0, 0.1875, 0.0, 0.125, 2.0, 2.4375]);
        let x = run("MatrixTriangularSolve", vec![general(), b()], &[]);
        close(
            &x[0],
            &[0.0, 0.25, 0.6666667, 0.8333334, 1.6666666, 2.0833333],
        );
        let inverse = run("MatrixInverse", vec![general()], &["adjoint"]);
        let want = [
            0.3125, -0.25, 0.125, -0.125, 0.5, -0.25, 0.0625, -0.25, 0.625,
        ];
        close(&inverse[0], &want);
        close(&run("MatrixDeterminant", vec![spd()], &[])[0], &[18.0]);
        let log = run("LogMatrixDeterminant", vec![spd()], &[]);
        close(&log[0], &[1.0]);
        close(&log[1], &[2.8903718]);
    }

    #[test]
    fn complex_factors_multiply_back() {
        let c = |re: f64, im: f64| Complex64::new(re, im);
        let values = vec![
            c(1.0, 2.0),
            c(0.5, -1.0),
            c(-2.0, 0.25),
            c(3.0, 1.0),
            c(0.0, 1.0),
            c(2.0, 2.0),
        ];
        let a = Tensor::from_vec(values.clone(), [3, 2]).unwrap();
        let out = run_op("Qr", vec![a], &[("T", DType::Complex128.into())]).unwrap();
        let (q, r) = (
            out[0].as_slice::<Complex64>().unwrap(),
            out[1].as_slice::<Complex64>().unwrap(),
        );
        for i in 0..3 {
            for j in 0..2 {
                let v = q[i * 2] * r[j] + q[i * 2 + 1] * r[2 + j];
                assert!((v - values[i * 2 + j]).norm() < 1e-12);
            }
        }
        let dot = q[0].conj() * q[1] + q[2].conj() * q[3] + q[4].conj() * q[5];
        assert!(dot.norm() < 1e-12);
    }

    #[test]
    fn what_cannot_be_solved_is_refused() {
        let attrs = [("T", DType::Float.into())];
        let fail = |op: &str, inputs: Vec<Tensor>| run_op(op, inputs, &attrs).unwrap_err().message;
        let zero = || m(&[0.0; 9], &[3, 3]);
        assert!(fail("MatrixInverse", vec![zero()]).starts_with("Input is not invertible."));
        assert!(
            fail("Cholesky", vec![m(&[0.0; 6], &[2, 3])])
                .starts_with("Input matrix must be square.")
        );
        let rhs = m(&[0.0; 6], &[3, 2]);
        let e = fail("MatrixSolve", vec![zero(), rhs]);
        assert!(e.starts_with("Input matrix is not invertible."));
        let e = fail("Qr", vec![m(&[0.0; 3], &[3])]);
        assert!(e.starts_with("Input tensor 0 must have rank >= 2, got 1"));
    }
}
