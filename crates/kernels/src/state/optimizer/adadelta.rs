//! Adadelta.

use super::check::{Check, EPSILON, LR, RHO};
use super::{Application, add};
use crate::state::number::Number;
use downpour_graph::Result;
use downpour_runtime::Registry;

const DENSE: &[Check] = &[LR, RHO, EPSILON, Check::Slot(1, "accum"), Check::Grad];
const SPARSE: &[Check] = &[
    Check::Slot(1, "accum_grad"),
    Check::Slot(2, "accum_update"),
    Check::Vector,
    LR,
    RHO,
    EPSILON,
    Check::Indices,
    Check::Rows,
];

#[rustfmt::skip]
pub(super) fn register(r: &mut Registry) {
    add!(r, ["ApplyAdadelta", "ResourceApplyAdadelta"], numbers dense, DENSE, adadelta);
    add!(r, ["SparseApplyAdadelta", "ResourceSparseApplyAdadelta"],
        numbers sparse, SPARSE, adadelta);
}

fn adadelta<T: Number>(a: &mut Application<'_>) -> Result<()> {
    let (lr, rho) = (a.scalar::<T>("lr")?, a.scalar::<T>("rho")?);
    let epsilon = a.scalar::<T>("epsilon")?;
    let rest = T::of(1.0) - rho;
    a.run3(|[v, squares, updates]: [T; 3], g| {
        let squares = squares * rho + g.square() * rest;
        let update = (updates + epsilon).sqrt() * (squares + epsilon).rsqrt() * g;
        let updates = updates * rho + update.square() * rest;
        [v - update * lr, squares, updates]
    })
}
