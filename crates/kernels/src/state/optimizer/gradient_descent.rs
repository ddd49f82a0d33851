//! Gradient descent, plain and proximal (Fobos).

use super::check::{Check, L1, L2};
use super::{Application, add};
use crate::state::number::{Number, Real};
use downpour_graph::Result;
use downpour_runtime::Registry;

const ALPHA: Check = Check::Scalar("alpha", "alpha is not a scalar: ");
const PLAIN: &[Check] = &[ALPHA, Check::Grad];
const PROXIMAL: &[Check] = &[ALPHA, L1, L2, Check::Grad];
const SPARSE_PROXIMAL: &[Check] = &[
    Check::Vector,
    Check::Scalar("alpha", "lr is not a scalar: "),
    L1,
    L2,
    Check::Indices,
    Check::Rows,
    Check::Inner,
    Check::Gradual,
];

#[rustfmt::skip]
pub(super) fn register(r: &mut Registry) {
    add!(r, ["ApplyGradientDescent", "ResourceApplyGradientDescent"],
        numbers dense, PLAIN, plain);
    add!(r, ["ApplyProximalGradientDescent", "ResourceApplyProximalGradientDescent"],
        wide dense, PROXIMAL, proximal);
    add!(r, ["SparseApplyProximalGradientDescent", "ResourceSparseApplyProximalGradientDescent"],
        wide sparse, SPARSE_PROXIMAL, proximal);
}

fn plain<T: Number>(a: &mut Application<'_>) -> Result<()> {
    let lr = a.scalar::<T>("alpha")?;
    a.run1(|[v]: [T; 1], g| [v - g * lr])
}

fn proximal<T: Real>(a: &mut Application<'_>) -> Result<()> {
    let (lr, l1, l2) = (
        a.scalar::<T>("alpha")?,
        a.scalar("l1")?,
        a.scalar::<T>("l2")?,
    );
    a.run1(|[v]: [T; 1], g| [shrink(v - g * lr, lr, l1, l2)])
}

/// The proximal step: what remains of `v`, already moved, under both penalties at rate `lr`.
pub(super) fn shrink<T: Real>(v: T, lr: T, l1: T, l2: T) -> T {
    let kept = if l1 > T::of(0.0) {
        v.sign() * (v.abs() - lr * l1).max(T::of(0.0))
    } else {
        v
    };
    kept / (T::of(1.0) + l2 * lr)
}
