//! RMSProp, plain and centered. The sparse ops average with other roundings than the dense ones.

use super::check::{Check, EPSILON, LR, LR_SPACED, MOMENTUM, RHO};
use super::{Application, add};
use crate::state::number::Number;
use downpour_graph::Result;
use downpour_runtime::Registry;

const DENSE: &[Check] = &[
    LR_SPACED,
    RHO,
    MOMENTUM,
    EPSILON,
    Check::Slot(1, "ms"),
    Check::Slot(2, "mom"),
    Check::Grad,
];
const SPARSE: &[Check] = &[
    LR,
    RHO,
    MOMENTUM,
    EPSILON,
    Check::Slot(1, "ms"),
    Check::Slot(2, "mom"),
    Check::Vector,
    Check::Indices,
    Check::Rows,
];
const CENTERED: &[Check] = &[
    LR_SPACED,
    RHO,
    MOMENTUM,
    EPSILON,
    Check::MeanGrad,
    Check::Slot(2, "ms"),
    Check::Slot(3, "mom"),
    Check::Grad,
];
const SPARSE_CENTERED: &[Check] = &[
    LR,
    RHO,
    MOMENTUM,
    EPSILON,
    Check::Slot(1, "mg"),
    Check::Slot(2, "ms"),
    Check::Slot(3, "mom"),
    Check::Vector,
    Check::Indices,
    Check::Rows,
];

#[rustfmt::skip]
pub(super) fn register(r: &mut Registry) {
    add!(r, ["ApplyRMSProp", "ResourceApplyRMSProp"], numbers dense, DENSE, dense);
    add!(r, ["SparseApplyRMSProp", "ResourceSparseApplyRMSProp"],
        numbers_but_bfloat16 sparse, SPARSE, sparse);
    add!(r, ["ApplyCenteredRMSProp", "ResourceApplyCenteredRMSProp"],
        numbers dense, CENTERED, centered);
    add!(r, ["SparseApplyCenteredRMSProp", "ResourceSparseApplyCenteredRMSProp"],
        numbers_but_bfloat16 sparse, SPARSE_CENTERED, sparse_centered);
}

struct Rates<T> {
    lr: T,
    rho: T,
    rest: T,
    momentum: T,
    epsilon: T,
}

fn rates<T: Number>(a: &Application<'_>) -> Result<Rates<T>> {
    let rho = a.scalar::<T>("rho")?;
    Ok(Rates {
        lr: a.scalar("lr")?,
        rho,
        rest: T::of(1.0) - rho,
        momentum: a.scalar("momentum")?,
        epsilon: a.scalar("epsilon")?,
    })
}

fn dense<T: Number>(a: &mut Application<'_>) -> Result<()> {
    let p = rates::<T>(a)?;
    a.run3(|[v, ms, mom]: [T; 3], g| {
        let ms = ms + (g.square() - ms) * p.rest;
        let mom = mom * p.momentum + (g * p.lr) / (ms + p.epsilon).sqrt();
        [v - mom, ms, mom]
    })
}

fn sparse<T: Number>(a: &mut Application<'_>) -> Result<()> {
    let p = rates::<T>(a)?;
    a.run3(|[v, ms, mom]: [T; 3], g| {
        let ms = ms * p.rho + g.square() * p.rest;
        let mom = mom * p.momentum + (ms + p.epsilon).rsqrt() * p.lr * g;
        [v - mom, ms, mom]
    })
}

fn centered<T: Number>(a: &mut Application<'_>) -> Result<()> {
    let p = rates::<T>(a)?;
    a.run4(|[v, mg, ms, mom]: [T; 4], g| {
        let ms = ms + (g.square() - ms) * p.rest;
        let mg = mg + (g - mg) * p.rest;
        let spread = (ms - mg.square()) + p.epsilon;
        let mom = mom * p.momentum + (g * p.lr) / spread.sqrt();
        [v - mom, mg, ms, mom]
    })
}

fn sparse_centered<T: Number>(a: &mut Application<'_>) -> Result<()> {
    let p = rates::<T>(a)?;
    a.run4(|[v, mg, ms, mom]: [T; 4], g| {
        let ms = ms * p.rho + g.square() * p.rest;
        let mg = mg * p.rho + g * p.rest;
        let spread = (ms - mg.square()) + p.epsilon;
        let mom = mom * p.momentum + spread.rsqrt() * p.lr * g;
        [v - mom, mg, ms, mom]
    })
}
