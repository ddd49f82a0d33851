//! AddSign and PowerSign: steps scaled by whether gradient and momentum agree.

use super::check::{Check, LR};
use super::{Application, add};
use crate::state::number::Real;
use downpour_graph::Result;
use downpour_runtime::Registry;

const BETA: Check = Check::Scalar("beta", "beta is not a scalar: ");
const DECAY: Check = Check::Single("sign_decay");
const M: Check = Check::Slot(1, "m");
const ADD: &[Check] = &[
    LR,
    Check::Scalar("alpha", "alpha is not a scalar: "),
    BETA,
    M,
    Check::Grad,
    DECAY,
];
const POWER: &[Check] = &[
    LR,
    Check::Scalar("logbase", "logbase is not a scalar: "),
    BETA,
    M,
    Check::Grad,
    DECAY,
];

#[rustfmt::skip]
pub(super) fn register(r: &mut Registry) {
    add!(r, ["ApplyAddSign", "ResourceApplyAddSign"], floats dense, ADD, add_sign);
    add!(r, ["ApplyPowerSign", "ResourceApplyPowerSign"], floats dense, POWER, power_sign);
}

fn add_sign<T: Real>(a: &mut Application<'_>) -> Result<()> {
    let (lr, alpha) = (a.scalar::<T>("lr")?, a.scalar::<T>("alpha")?);
    let (decay, beta) = (a.scalar::<T>("sign_decay")?, a.scalar::<T>("beta")?);
    let rest = T::of(1.0) - beta;
    a.run2(|[v, m]: [T; 2], g| {
        let m = m * beta + g * rest;
        let agreement = g.sign() * m.sign();
        [v - lr * (alpha + decay * agreement) * g, m]
    })
}

fn power_sign<T: Real>(a: &mut Application<'_>) -> Result<()> {
    let (lr, logbase) = (a.scalar::<T>("lr")?, a.scalar::<T>("logbase")?);
    let (decay, beta) = (a.scalar::<T>("sign_decay")?, a.scalar::<T>("beta")?);
    let rest = T::of(1.0) - beta;
    a.run2(|[v, m]: [T; 2], g| {
        let m = m * beta + g * rest;
        let agreement = g.sign() * m.sign();
        let scale = (logbase * decay * agreement).exp();
        [v - lr * scale * g, m]
    })
}
