//! Momentum, TensorFlow's (the rate multiplies the step) and Keras's (it multiplies the
//! gradient), each also with Nesterov's look-ahead.

use super::check::{Check, LR, LR_SPACED, MOMENTUM};
use super::{Application, add};
use crate::state::number::Number;
use downpour_graph::Result;
use downpour_runtime::Registry;

const DENSE: &[Check] = &[LR, Check::Slot(1, "accum"), Check::Grad, MOMENTUM];
const SPARSE: &[Check] = &[
    Check::Slot(1, "accum"),
    Check::Vector,
    LR_SPACED,
    Check::Indices,
    Check::Rows,
    MOMENTUM,
    Check::Gradual,
];

#[rustfmt::skip]
pub(super) fn register(r: &mut Registry) {
    add!(r, ["ApplyMomentum", "ResourceApplyMomentum"], numbers dense, DENSE, momentum);
    add!(r, ["SparseApplyMomentum", "ResourceSparseApplyMomentum"],
        numbers sparse, SPARSE, momentum);
    add!(r, ["ResourceApplyKerasMomentum"], numbers dense, DENSE, keras);
    add!(r, ["ResourceSparseApplyKerasMomentum"], numbers sparse, SPARSE, keras);
}

fn momentum<T: Number>(a: &mut Application<'_>) -> Result<()> {
    let (lr, momentum) = (a.scalar::<T>("lr")?, a.scalar::<T>("momentum")?);
    if a.layout.nesterov {
        a.run2(|[v, m]: [T; 2], g| {
            let m = m * momentum + g;
            [v - (g * lr + m * momentum * lr), m]
        })
    } else {
        a.run2(|[v, m]: [T; 2], g| {
            let m = m * momentum + g;
            [v - m * lr, m]
        })
    }
}

fn keras<T: Number>(a: &mut Application<'_>) -> Result<()> {
    let (lr, momentum) = (a.scalar::<T>("lr")?, a.scalar::<T>("momentum")?);
    if a.layout.nesterov {
        a.run2(|[v, m]: [T; 2], g| {
            let m = m * momentum - g * lr;
            [v + (m * momentum - g * lr), m]
        })
    } else {
        a.run2(|[v, m]: [T; 2], g| {
            let m = m * momentum - g * lr;
            [v + m, m]
        })
    }
}
