//! Decompositions of small matrices and what follows from them: `Cholesky`, `Qr`,
//! `MatrixInverse`, `MatrixDeterminant`, `LogMatrixDeterminant`, `MatrixSolve`,
//! `MatrixTriangularSolve`. Plain textbook algorithms in double precision.

use super::field::{Dense, Field};
use crate::broadcast::Broadcast;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{DType, Shape, Tensor};
use num_complex::Complex64;

const FOUR: &[DType] = &[
    DType::Complex128,
    DType::Complex64,
    DType::Double,
    DType::Float,
];
const FIVE: &[DType] = &[
    DType::Complex128,
    DType::Complex64,
    DType::Double,
    DType::Float,
    DType::Half,
];

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("Cholesky", &[("T", FOUR)], |b| {
        by_field(
            b,
            |ctx| square_to_square::<f64>(ctx, cholesky),
            |ctx| square_to_square::<Complex64>(ctx, cholesky),
        )
    });
    r.add_typed("MatrixInverse", &[("T", FIVE)], |b| {
        let adjoint = b.attrs().bool("adjoint")?;
        by_field(
            b,
            move |ctx| square_to_square::<f64>(ctx, |m| inverse(m, adjoint)),
            move |ctx| square_to_square::<Complex64>(ctx, |m| inverse(m, adjoint)),
        )
    });
    r.add_typed("MatrixDeterminant", &[("T", FOUR)], |b| {
        by_field(b, determinants::<f64>, determinants::<Complex64>)
    });
    r.add_typed("LogMatrixDeterminant", &[("T", FOUR)], |b| {
        by_field(b, log_determinants::<f64>, log_determinants::<Complex64>)
    });
    r.add_typed("MatrixSolve", &[("T", FOUR)], |b| {
        let adjoint = b.attrs().bool("adjoint")?;
        by_field(
            b,
            move |ctx| solve::<f64>(ctx, adjoint),
            move |ctx| solve::<Complex64>(ctx, adjoint),
        )
    });
    r.add_typed("MatrixTriangularSolve", &[("T", FOUR)], |b| {
        let (lower, adjoint) = (b.attrs().bool("lower")?, b.attrs().bool("adjoint")?);
        by_field(
            b,
            move |ctx| triangular_solve::<f64>(ctx, lower, adjoint),
            move |ctx| triangular_solve::<Complex64>(ctx, lower, adjoint),
        )
    });
    r.add_typed("Qr", &[("T", FIVE)], |b| {
        let full = b.attrs().bool("full_matrices")?;
        by_field(
            b,
            move |ctx| qr::<f64>(ctx, full),
            move |ctx| qr::<Complex64>(ctx, full),
        )
    });
}

/// The kernel for real or for complex matrices.
fn by_field(
    b: &KernelBuilder<'_>,
    real: impl Fn(&mut OpContext<'_>) -> Result<()> + Send + Sync + 'static,
    complex: impl Fn(&mut OpContext<'_>) -> Result<()> + Send + Sync + 'static,
) -> Result<Built> {
    match b.attrs().dtype("T")? {
        DType::Complex64 | DType::Complex128 => Built::costly(complex),
        _ => Built::costly(real),
    }
}

fn invalid<T>(text: impl Into<String>) -> Result<T> {
    Err(Status::invalid_argument(text))
}

/// The dimensions before the last two, and those.
fn split(t: &Tensor, which: usize) -> Result<(&[usize], usize, usize)> {
    match t.dims() {
        [outer @ .., rows, cols] => Ok((outer, *rows, *cols)),
        other => invalid(format!(
            "Input tensor {which} must have rank >= 2, got {}",
            other.len()
        )),
    }
}

fn square(t: &Tensor) -> Result<(&[usize], usize)> {
    let (outer, rows, cols) = split(t, 0)?;
    if rows != cols {
        return invalid("Input matrix must be square.");
    }
    Ok((outer, rows))
}

/// All matrices of a tensor.
fn matrices<C: Field>(t: &Tensor, rows: usize, cols: usize) -> Result<Vec<Dense<C>>> {
    let count: usize = t.dims()[..t.rank() - 2].iter().product();
    let values = C::read(t)?;
    let size = rows * cols;
    Ok((0..count)
        .map(|i| Dense::new(rows, cols, values[i * size..(i + 1) * size].to_vec()))
        .collect())
}

fn square_to_square<C: Field>(
    ctx: &mut OpContext<'_>,
    f: impl Fn(Dense<C>) -> Result<Dense<C>>,
) -> Result<()> {
    let x = ctx.take(0)?;
    let (_, n) = square(&x)?;
    let mut out = Vec::with_capacity(x.num_elements());
    for m in matrices::<C>(&x, n, n)? {
        out.extend(f(m)?.values);
    }
    ctx.set_output(0, C::write(out, x.shape().clone(), x.dtype())?);
    Ok(())
}

/// The lower triangular factor; NaN if the matrix is not positive definite.
fn cholesky<C: Field>(mut a: Dense<C>) -> Result<Dense<C>> {
    let n = a.rows;
    let mut failed = false;
    for j in 0..n {
        let mut d = a.get(j, j).re();
        for k in 0..j {
            let v = a.get(j, k).abs();
            d -= v * v;
        }
        // A NaN fails as well.
        if d.is_nan() || d <= 0.0 {
            failed = true;
            break;
        }
        let d = d.sqrt();
        *a.at(j, j) = C::real(d);
        for i in j + 1..n {
            let mut v = a.get(i, j);
            for k in 0..j {
                v = v - a.get(i, k) * a.get(j, k).conj();
            }
            *a.at(i, j) = v / C::real(d);
        }
    }
    for i in 0..n {
        for j in 0..n {
            if j > i {
                *a.at(i, j) = C::ZERO;
            } else if failed {
                *a.at(i, j) = C::real(f64::NAN);
            }
        }
    }
    Ok(a)
}

/// A factorisation with row exchanges: both factors in one matrix, the order of rows, and the
/// sign of that order.
struct Lu<C> {
    factors: Dense<C>,
    order: Vec<usize>,
    sign: f64,
}

impl<C: Field> Lu<C> {
    fn new(mut a: Dense<C>) -> Lu<C> {
        let n = a.rows;
        let mut order: Vec<usize> = (0..n).collect();
        let mut sign = 1.0;
        for k in 0..n {
            let size = |i: usize| a.get(i, k).abs();
            let pivot = (k..n).fold(k, |best, i| if size(i) > size(best) { i } else { best });
            if pivot != k {
                a.swap_rows(k, pivot);
                order.swap(k, pivot);
                sign = -sign;
            }
            let d = a.get(k, k);
            if d == C::ZERO {
                continue;
            }
            for i in k + 1..n {
                let f = a.get(i, k) / d;
                *a.at(i, k) = f;
                for j in k + 1..n {
                    *a.at(i, j) = a.get(i, j) - f * a.get(k, j);
                }
            }
        }
        Lu {
            factors: a,
            order,
            sign,
        }
    }

    fn is_singular(&self) -> bool {
        (0..self.factors.rows).any(|i| self.factors.get(i, i) == C::ZERO)
    }

    fn solve(&self, b: &Dense<C>) -> Dense<C> {
        let (n, cols) = (self.factors.rows, b.cols);
        let mut x = Dense::new(n, cols, Vec::with_capacity(n * cols));
        for &r in &self.order {
            x.values
                .extend_from_slice(&b.values[r * cols..(r + 1) * cols]);
        }
        for j in 0..cols {
            for i in 0..n {
                let mut v = x.get(i, j);
                for k in 0..i {
                    v = v - self.factors.get(i, k) * x.get(k, j);
                }
                *x.at(i, j) = v;
            }
            for i in (0..n).rev() {
                let mut v = x.get(i, j);
                for k in i + 1..n {
                    v = v - self.factors.get(i, k) * x.get(k, j);
                }
                *x.at(i, j) = v / self.factors.get(i, i);
            }
        }
        x
    }
}

fn inverse<C: Field>(m: Dense<C>, adjoint: bool) -> Result<Dense<C>> {
    let n = m.rows;
    let lu = Lu::new(if adjoint { m.adjoint() } else { m });
    if lu.is_singular() {
        return invalid("Input is not invertible.");
    }
    Ok(lu.solve(&Dense::identity(n)))
}

fn determinants<C: Field>(ctx: &mut OpContext<'_>) -> Result<()> {
    let x = ctx.take(0)?;
    let (outer, n) = square(&x)?;
    let out = matrices::<C>(&x, n, n)?
        .into_iter()
        .map(|m| {
            let lu = Lu::new(m);
            let diagonal = (0..n).map(|i| lu.factors.get(i, i));
            diagonal.fold(C::real(lu.sign), |p, d| p * d)
        })
        .collect();
    ctx.set_output(0, C::write(out, Shape::from(outer), x.dtype())?);
    Ok(())
}

fn log_determinants<C: Field>(ctx: &mut OpContext<'_>) -> Result<()> {
    let x = ctx.take(0)?;
    let (outer, n) = square(&x)?;
    let (mut signs, mut logs) = (Vec::new(), Vec::new());
    for m in matrices::<C>(&x, n, n)? {
        let lu = Lu::new(m);
        let (mut sign, mut log) = (C::real(lu.sign), 0.0);
        for d in (0..n).map(|i| lu.factors.get(i, i)) {
            let size = d.abs();
            sign = if size == 0.0 {
                C::ZERO
            } else {
                sign * d / C::real(size)
            };
            log += size.ln();
        }
        signs.push(sign);
        logs.push(C::real(log));
    }
    let shape = Shape::from(outer);
    ctx.set_output(0, C::write(signs, shape.clone(), x.dtype())?);
    ctx.set_output(1, C::write(logs, shape, x.dtype())?);
    Ok(())
}

fn solve<C: Field>(ctx: &mut OpContext<'_>, adjoint: bool) -> Result<()> {
    let (a, b) = (ctx.take(0)?, ctx.take(1)?);
    let (outer, rows, cols) = split(&a, 0)?;
    if a.rank() != b.rank() {
        return invalid("All input tensors must have the same rank.");
    }
    let (outer_b, rows_b, cols_b) = split(&b, 1)?;
    if outer != outer_b {
        return invalid("All input tensors must have the same outer dimensions.");
    }
    if rows != cols {
        return invalid("First input (lhs) must be a square matrix.");
    }
    if rows != rows_b {
        return invalid("Input matrix and rhs are incompatible.");
    }
    let mut out = Vec::with_capacity(b.num_elements());
    let right = matrices::<C>(&b, rows_b, cols_b)?;
    for (m, rhs) in matrices::<C>(&a, rows, cols)?.into_iter().zip(right) {
        let lu = Lu::new(if adjoint { m.adjoint() } else { m });
        if lu.is_singular() {
            return invalid("Input matrix is not invertible.");
        }
        out.extend(lu.solve(&rhs).values);
    }
    ctx.set_output(0, C::write(out, b.shape().clone(), b.dtype())?);
    Ok(())
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
    let n = a.rows;
    let mut x = Dense::new(n, b.cols, b.values.clone());
    // The adjoint of a lower triangle is an upper one.
    let forwards = lower != adjoint;
    for j in 0..b.cols {
        for step in 0..n {
            let i = if forwards { step } else { n - 1 - step };
            let known = if forwards { 0..i } else { i + 1..n };
            let mut v = x.get(i, j);
            for k in known {
                v = v - a.get(i, k) * x.get(k, j);
            }
            *x.at(i, j) = v / a.get(i, i);
        }
    }
    x
}

fn qr<C: Field>(ctx: &mut OpContext<'_>, full: bool) -> Result<()> {
    let x = ctx.take(0)?;
    let (outer, rows, cols) = split(&x, 0)?;
    let inner = if full { rows } else { rows.min(cols) };
    let shape = |a: usize, b: usize| -> Result<Shape> {
        let dims = outer.iter().copied().chain([a, b]);
        Ok(Shape::checked(dims.map(|d| d as i64))?)
    };
    let (q_shape, r_shape) = (shape(rows, inner)?, shape(inner, cols)?);
    ctx.check_alloc(x.dtype(), &q_shape)?;
    ctx.check_alloc(x.dtype(), &shape(rows, rows)?)?;
    let (mut qs, mut rs) = (Vec::new(), Vec::new());
    for m in matrices::<C>(&x, rows, cols)? {
        let (q, r) = householder(m);
        for i in 0..rows {
            qs.extend_from_slice(&q.values[i * rows..i * rows + inner]);
        }
        rs.extend_from_slice(&r.values[..inner * cols]);
    }
    ctx.set_output(0, C::write(qs, q_shape, x.dtype())?);
    ctx.set_output(1, C::write(rs, r_shape, x.dtype())?);
    Ok(())
}

/// The orthogonal and the triangular factor, by reflections. A column that is already done is
/// left as it is, so its diagonal keeps its sign.
fn householder<C: Field>(mut r: Dense<C>) -> (Dense<C>, Dense<C>) {
    let (rows, cols) = (r.rows, r.cols);
    let mut q = Dense::identity(rows);
    for k in 0..rows.min(cols) {
        let tail: f64 = (k + 1..rows).map(|i| r.get(i, k).abs().powi(2)).sum();
        let head = r.get(k, k);
        if tail == 0.0 && head == C::real(head.re()) {
            continue;
        }
        let norm = (head.abs().powi(2) + tail).sqrt();
        let beta = if head.re() >= 0.0 { -norm } else { norm };
        let mut v: Vec<C> = (k..rows).map(|i| r.get(i, k)).collect();
        let scale = head - C::real(beta);
        v.iter_mut().for_each(|x| *x = *x / scale);
        v[0] = C::ONE;
        // H = 1 - tau v v*, with H* applied to the matrix so that the diagonal becomes real.
        let tau = (C::real(beta) - head) / C::real(beta);
        for j in 0..cols {
            let dot = (0..v.len()).fold(C::ZERO, |s, i| s + v[i].conj() * r.get(k + i, j));
            for (i, x) in v.iter().enumerate() {
                *r.at(k + i, j) = r.get(k + i, j) - tau.conj() * *x * dot;
            }
        }
        for i in 0..rows {
            let dot = (0..v.len()).fold(C::ZERO, |s, j| s + q.get(i, k + j) * v[j]);
            for (j, x) in v.iter().enumerate() {
                *q.at(i, k + j) = q.get(i, k + j) - tau * dot * x.conj();
            }
        }
        for i in k + 1..rows {
            *r.at(i, k) = C::ZERO;
        }
    }
    (q, r)
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
