//! `MatrixSolveLs`: least squares, by the normal equations or, slower and for any rank, by the
//! singular values.

use super::batch::{FOUR, by_field, each, invalid};
use super::decompose::cholesky;
use super::field::{Dense, Field};
use super::functions::times;
use super::svd::decompose;
use downpour_graph::{Result, Status};
use downpour_runtime::{OpContext, Registry};
use downpour_tensor::DType;
use num_complex::Complex64;
use smallvec::smallvec;

pub(crate) fn register(r: &mut Registry) {
    for op in ["MatrixSolveLs", "BatchMatrixSolveLs"] {
        r.add_typed(op, &[("T", FOUR)], |b| {
            let fast = b.attrs().bool("fast")?;
            by_field(
                b,
                move |ctx| run::<f64>(ctx, fast),
                move |ctx| run::<Complex64>(ctx, fast),
            )
        });
    }
}

fn run<C: Field>(ctx: &mut OpContext<'_>, fast: bool) -> Result<()> {
    let l2 = ctx.input(2)?.clone();
    let epsilon = match ctx.input(0)?.dtype() {
        DType::Float | DType::Complex64 => f64::from(f32::EPSILON),
        _ => f64::EPSILON,
    };
    each::<C>(
        ctx,
        2,
        |sizes| match sizes {
            [(rows, cols), (other, width)] if rows == other => Ok(vec![smallvec![*cols, *width]]),
            _ => invalid("Input matrix and rhs are incompatible."),
        },
        |given| {
            let [a, b] = <[_; 2]>::try_from(given)
                .map_err(|_| Status::internal("two matrices were asked for"))?;
            if l2.rank() != 0 {
                return invalid(format!(
                    "l2_regularizer must be scalar, got shape {}",
                    l2.shape()
                ));
            }
            let l2 = l2.scalar_value::<f64>()?;
            if !(l2 >= 0.0) {
                return invalid("l2_regularizer must be >= 0.");
            }
            if a.rows == 0 || a.cols == 0 {
                return Ok(vec![vec![C::ZERO; a.cols * b.cols]]);
            }
            let x = match fast {
                true => normal_equations(&a, &b, l2)?,
                false => smallest_solution(&a, &b, epsilon),
            };
            Ok(vec![x.values])
        },
    )
}

fn normal_equations<C: Field>(a: &Dense<C>, b: &Dense<C>, l2: f64) -> Result<Dense<C>> {
    let over = a.rows >= a.cols;
    let adjoint = a.adjoint();
    let mut gram = if over {
        times(&adjoint, a)
    } else {
        times(a, &adjoint)
    };
    for i in 0..gram.rows {
        *gram.at(i, i) = gram.get(i, i) + C::real(l2);
    }
    let l = cholesky(gram);
    if l.values.iter().any(|v| v.abs().is_nan()) {
        return invalid(match over {
            true => {
                "Input matrix was rank deficient or ill-conditioned. Try setting fast=False or provide a larger l2_regularizer > 0."
            }
            false => {
                "Input matrix was rank deficient or ill-conditioned. Try setting fast=False or provide an l2_regularizer > 0."
            }
        });
    }
    Ok(if over {
        back(&l, times(&adjoint, b))
    } else {
        times(
            &adjoint,
            &back(&l, Dense::new(b.rows, b.cols, b.values.clone())),
        )
    })
}

/// The solution of L·L*·x = b.
fn back<C: Field>(l: &Dense<C>, mut x: Dense<C>) -> Dense<C> {
    let n = l.rows;
    for j in 0..x.cols {
        for i in 0..n {
            let known = (0..i).fold(C::ZERO, |s, k| s + l.get(i, k) * x.get(k, j));
            *x.at(i, j) = (x.get(i, j) - known) / l.get(i, i);
        }
        for i in (0..n).rev() {
            let known = (i + 1..n).fold(C::ZERO, |s, k| s + l.get(k, i).conj() * x.get(k, j));
            *x.at(i, j) = (x.get(i, j) - known) / l.get(i, i);
        }
    }
    x
}

/// Of all solutions the one of least norm; singular values below rounding count as zero.
fn smallest_solution<C: Field>(a: &Dense<C>, b: &Dense<C>, epsilon: f64) -> Dense<C> {
    let least = a.rows.min(a.cols);
    let Some(svd) = decompose(a, (least, least)) else {
        return Dense::new(a.cols, b.cols, vec![C::real(f64::NAN); a.cols * b.cols]);
    };
    let largest = svd.values.first().copied().unwrap_or(0.0);
    let mut x = Dense::new(a.cols, b.cols, vec![C::ZERO; a.cols * b.cols]);
    for (k, &value) in svd.values.iter().enumerate() {
        if value <= epsilon * least as f64 * largest {
            continue;
        }
        for j in 0..b.cols {
            let dot = (0..b.rows).fold(C::ZERO, |s, i| s + svd.left.get(k, i).conj() * b.get(i, j));
            let dot = dot / C::real(value);
            for i in 0..a.cols {
                *x.at(i, j) = x.get(i, j) + dot * svd.right.get(k, i);
            }
        }
    }
    x
}
