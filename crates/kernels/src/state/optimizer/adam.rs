//! Adam, also with Nesterov's momentum and with AMSGrad, and AdaMax.

use super::check::{Check, EPSILON, LR_SPACED};
use super::{Application, add};
use crate::state::number::{Number, Real};
use downpour_graph::Result;
use downpour_runtime::Registry;

const BETA1_POWER: Check = Check::Scalar("beta1_power", "beta1_power is not a scalar: ");
const BETA2_POWER: Check = Check::Scalar("beta2_power", "beta2_power is not a scalar: ");
const BETA1: Check = Check::Scalar("beta1", "beta1 is not a scalar: ");
const BETA2: Check = Check::Scalar("beta2", "beta2 is not a scalar: ");
const ADAM: &[Check] = &[
    BETA1_POWER,
    BETA2_POWER,
    LR_SPACED,
    BETA1,
    BETA2,
    EPSILON,
    Check::Slot(1, "m"),
    Check::Slot(2, "v"),
    Check::Grad,
];
const ADAMAX: &[Check] = &[
    BETA1_POWER,
    LR_SPACED,
    BETA1,
    BETA2,
    EPSILON,
    Check::Slot(1, "m"),
    Check::Slot(2, "v"),
    Check::Grad,
];

#[rustfmt::skip]
pub(super) fn register(r: &mut Registry) {
    add!(r, ["ApplyAdam", "ResourceApplyAdam"], numbers dense, ADAM, adam);
    add!(r, ["ResourceApplyAdamWithAmsgrad"], floats dense, ADAM, amsgrad);
    add!(r, ["ApplyAdaMax", "ResourceApplyAdaMax"], floats_but_bfloat16 dense, ADAMAX, adamax);
}

/// The learning rate with both moments' bias taken out.
fn rate<T: Number>(a: &Application<'_>) -> Result<T> {
    let one = T::of(1.0);
    let (p1, p2) = (a.scalar::<T>("beta1_power")?, a.scalar::<T>("beta2_power")?);
    Ok(a.scalar::<T>("lr")? * (one - p2).sqrt() / (one - p1))
}

fn adam<T: Number>(a: &mut Application<'_>) -> Result<()> {
    let rate = rate::<T>(a)?;
    let (beta1, beta2) = (a.scalar::<T>("beta1")?, a.scalar::<T>("beta2")?);
    let epsilon = a.scalar::<T>("epsilon")?;
    let (rest1, rest2) = (T::of(1.0) - beta1, T::of(1.0) - beta2);
    if a.layout.nesterov {
        a.run3(|[var, m, v]: [T; 3], g| {
            let m = m + (g - m) * rest1;
            let v = v + (g.square() - v) * rest2;
            let step = (g * rest1 + m * beta1) * rate / (v.sqrt() + epsilon);
            [var - step, m, v]
        })
    } else {
        a.run3(|[var, m, v]: [T; 3], g| {
            let m = m + (g - m) * rest1;
            let v = v + (g.square() - v) * rest2;
            [var - m * rate / (v.sqrt() + epsilon), m, v]
        })
    }
}

fn amsgrad<T: Real>(a: &mut Application<'_>) -> Result<()> {
    let rate = rate::<T>(a)?;
    let (beta1, beta2) = (a.scalar::<T>("beta1")?, a.scalar::<T>("beta2")?);
    let epsilon = a.scalar::<T>("epsilon")?;
    let (rest1, rest2) = (T::of(1.0) - beta1, T::of(1.0) - beta2);
    a.run4(|[var, m, v, largest]: [T; 4], g| {
        let m = m + (g - m) * rest1;
        let v = v + (g.square() - v) * rest2;
        let largest = largest.max(v);
        let step = m * rate / (largest.sqrt() + epsilon);
        [var - step, m, v, largest]
    })
}

fn adamax<T: Real>(a: &mut Application<'_>) -> Result<()> {
    let (beta1, beta2) = (a.scalar::<T>("beta1")?, a.scalar::<T>("beta2")?);
    let epsilon = a.scalar::<T>("epsilon")?;
    let one = T::of(1.0);
    let rate = a.scalar::<T>("lr")? / (one - a.scalar("beta1_power")?);
    a.run3(|[var, m, v]: [T; 3], g| {
        let m = m + (g - m) * (one - beta1);
        let v = (beta2 * v).max(g.abs());
        [var - rate * (m / (v + epsilon)), m, v]
    })
}
