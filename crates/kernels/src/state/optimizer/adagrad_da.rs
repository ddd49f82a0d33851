//! Adagrad with dual averaging: the variable is recomputed from sums of gradients.

use super::check::{Check, GLOBAL_STEP, L1, L2, LR};
use super::{Application, add};
use crate::state::number::Real;
use downpour_graph::Result;
use downpour_runtime::Registry;

const SUM: Check = Check::Slot(1, "accum");
const SQUARES: Check = Check::Slot(2, "accum");
const DENSE: &[Check] = &[SUM, SQUARES, Check::Grad, LR, L1, L2, GLOBAL_STEP];
const SPARSE: &[Check] = &[
    SUM,
    SQUARES,
    Check::Vector,
    Check::Indices,
    LR,
    L1,
    L2,
    GLOBAL_STEP,
    Check::Rows,
    Check::Inner,
    Check::Gradual,
];

#[rustfmt::skip]
pub(super) fn register(r: &mut Registry) {
    add!(r, ["ApplyAdagradDA", "ResourceApplyAdagradDA"], wide dense, DENSE, dense);
    add!(r, ["SparseApplyAdagradDA", "ResourceSparseApplyAdagradDA"],
        wide sparse, SPARSE, sparse);
}

fn dense<T: Real>(a: &mut Application<'_>) -> Result<()> {
    let (lr, l1, l2) = (
        a.scalar::<T>("lr")?,
        a.scalar::<T>("l1")?,
        a.scalar::<T>("l2")?,
    );
    let step = T::of_int(a.scalar::<i64>("global_step")?);
    a.run3(|[_, sum, squares]: [T; 3], g| {
        let (sum, squares) = (sum + g, squares + g.square());
        let pull = if l1 > T::of(0.0) {
            sum.sign() * (sum.abs() - step * l1).max(T::of(0.0))
        } else {
            sum
        };
        let v = lr * T::of(-1.0) * pull / (l2 * (step * lr) + squares.sqrt());
        [v, sum, squares]
    })
}

/// The sparse update divides by the step where the dense one multiplies, which tells at steps that
/// are zero or negative.
fn sparse<T: Real>(a: &mut Application<'_>) -> Result<()> {
    let (lr, l1, l2) = (
        a.scalar::<T>("lr")?,
        a.scalar::<T>("l1")?,
        a.scalar::<T>("l2")?,
    );
    let step = T::of_int(a.scalar::<i64>("global_step")?);
    a.run3(|[_, sum, squares]: [T; 3], g| {
        let (sum, squares) = (sum + g, squares + g.square());
        let pull = if l1 > T::of(0.0) {
            sum.sign() * (sum.abs() / step - l1).max(T::of(0.0))
        } else {
            sum / step
        };
        let v = T::of(-1.0) * pull / (l2 + squares.sqrt() / (step * lr));
        [v, sum, squares]
    })
}
