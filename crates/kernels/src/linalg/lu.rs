//! LU factorisation with row exchanges, which solves and determinants build on; and the op `Lu`.

use super::batch::{FOUR, by_field, invalid, matrices};
use super::blocked::{self, Triangle, solve_triangle};
use super::field::{Dense, Field};
use crate::args::int_tensor;
use crate::types::INDEX;
use downpour_graph::Result;
use downpour_runtime::{OpContext, Registry};
use downpour_tensor::{DType, Shape};
use num_complex::Complex64;

pub(crate) fn register(r: &mut Registry) {
    let types = &[("T", FOUR), ("output_idx_type", INDEX)];
    r.add_typed("Lu", types, |b| {
        let index = b.attrs().dtype("output_idx_type")?;
        by_field(
            b,
            move |ctx| run::<f64>(ctx, index),
            move |ctx| run::<Complex64>(ctx, index),
        )
    });
}

fn run<C: Field>(ctx: &mut OpContext<'_>, index: DType) -> Result<()> {
    let x = ctx.take(0)?;
    let [outer @ .., rows, cols] = x.dims() else {
        return invalid(format!(
            "Input tensor must have rank >= 2, got {}",
            x.rank()
        ));
    };
    if rows != cols {
        return invalid("Input matrix must be square.");
    }
    let n = *rows;
    let dims = outer.iter().chain([&n]).map(|&d| d as i64);
    let order_shape = Shape::checked(dims)?;
    let mut factors = Vec::with_capacity(x.num_elements());
    let mut order = Vec::with_capacity(order_shape.num_elements());
    if n != 0 {
        for m in matrices::<C>(&x, n, n)? {
            let lu = Lu::new(m);
            if lu.is_singular() {
                return invalid("Input is not invertible.");
            }
            factors.extend(lu.factors.values);
            order.extend(lu.order.iter().map(|&i| i as i64));
        }
    }
    ctx.set_output(0, C::write(factors, x.shape().clone(), x.dtype())?);
    ctx.set_output(1, int_tensor(index, order, order_shape)?);
    Ok(())
}

/// A factorisation with row exchanges: both factors in one matrix, the order of rows, and the
/// sign of that order.
pub(super) struct Lu<C> {
    pub(super) factors: Dense<C>,
    pub(super) order: Vec<usize>,
    pub(super) sign: f64,
}

impl<C: Field> Lu<C> {
    /// Factorises a square matrix.
    pub(super) fn new(mut a: Dense<C>) -> Lu<C> {
        let (order, sign) = blocked::lu(&mut a);
        Lu {
            factors: a,
            order,
            sign,
        }
    }

    /// Whether a pivot is exactly zero.
    pub(super) fn is_singular(&self) -> bool {
        (0..self.factors.rows).any(|i| self.factors.get(i, i) == C::ZERO)
    }

    /// The solution of A x = b.
    pub(super) fn solve(&self, b: &Dense<C>) -> Dense<C> {
        let (n, cols) = (self.factors.rows, b.cols);
        let mut x = Dense::new(n, cols, Vec::with_capacity(n * cols));
        for &r in &self.order {
            x.values
                .extend_from_slice(&b.values[r * cols..(r + 1) * cols]);
        }
        for (forwards, unit) in [(true, true), (false, false)] {
            let kind = Triangle { forwards, unit };
            solve_triangle(&self.factors, &mut x.values, cols, kind);
        }
        x
    }
}
