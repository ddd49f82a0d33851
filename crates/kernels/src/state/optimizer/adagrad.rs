//! Adagrad: the first form, the second (with an epsilon), and the proximal one.

use super::check::{Bound, Check, EPSILON, L1_BOUND, L2_BOUND, LR};
use super::gradient_descent::shrink;
use super::{Application, add};
use crate::state::number::{Number, Real};
use downpour_graph::Result;
use downpour_runtime::Registry;

const ACCUM: Check = Check::Slot(1, "accum");
const LR_BOUND: Check = Check::Bounded("lr", "lr is not a positive scalar: ", Bound::Positive);
const DENSE: &[Check] = &[LR, ACCUM, Check::Grad];
const DENSE_V2: &[Check] = &[LR, EPSILON, ACCUM, Check::Grad];
const SPARSE: &[Check] = &[
    ACCUM,
    Check::Vector,
    LR,
    Check::Indices,
    Check::GradRank,
    Check::Rows,
    Check::Inner,
];
const SPARSE_V2: &[Check] = &[
    ACCUM,
    Check::Vector,
    LR,
    EPSILON,
    Check::Indices,
    Check::GradRank,
    Check::Rows,
    Check::Inner,
];
const PROXIMAL: &[Check] = &[ACCUM, LR_BOUND, L1_BOUND, L2_BOUND, Check::Grad];
const SPARSE_PROXIMAL: &[Check] = &[
    ACCUM,
    Check::Vector,
    LR_BOUND,
    L1_BOUND,
    L2_BOUND,
    Check::Indices,
    Check::Rows,
    Check::Inner,
    Check::Gradual,
];

#[rustfmt::skip]
pub(super) fn register(r: &mut Registry) {
    add!(r, ["ApplyAdagrad", "ResourceApplyAdagrad"], numbers dense, DENSE, first);
    add!(r, ["ApplyAdagradV2", "ResourceApplyAdagradV2"], numbers dense, DENSE_V2, second);
    add!(r, ["SparseApplyAdagrad", "ResourceSparseApplyAdagrad"], numbers sparse, SPARSE, first);
    add!(r, ["SparseApplyAdagradV2", "ResourceSparseApplyAdagradV2"],
        numbers sparse, SPARSE_V2, second);
    add!(r, ["ApplyProximalAdagrad", "ResourceApplyProximalAdagrad"],
        wide dense, PROXIMAL, proximal);
    add!(r, ["SparseApplyProximalAdagrad", "ResourceSparseApplyProximalAdagrad"],
        wide sparse, SPARSE_PROXIMAL, proximal);
}

fn first<T: Number>(a: &mut Application<'_>) -> Result<()> {
    let lr = a.scalar::<T>("lr")?;
    if a.layout.update_slots {
        a.run2(|[v, s]: [T; 2], g| {
            let s = s + g.square();
            [v - g * lr * s.rsqrt(), s]
        })
    } else {
        a.run2(|[v, s]: [T; 2], g| [v - g * lr * s.rsqrt(), s])
    }
}

fn second<T: Number>(a: &mut Application<'_>) -> Result<()> {
    let (lr, epsilon) = (a.scalar::<T>("lr")?, a.scalar::<T>("epsilon")?);
    if a.layout.update_slots {
        a.run2(|[v, s]: [T; 2], g| {
            let s = s + g.square();
            [v - g * lr / (s.sqrt() + epsilon), s]
        })
    } else {
        a.run2(|[v, s]: [T; 2], g| [v - g * lr / (s.sqrt() + epsilon), s])
    }
}

fn proximal<T: Real>(a: &mut Application<'_>) -> Result<()> {
    let (lr, l1, l2) = (a.scalar::<T>("lr")?, a.scalar("l1")?, a.scalar::<T>("l2")?);
    a.run2(|[v, s]: [T; 2], g| {
        let s = s + g.square();
        let rate = lr * s.rsqrt();
        [shrink(v - g * rate, rate, l1, l2), s]
    })
}
