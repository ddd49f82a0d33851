//! FTRL-proximal, first form and second (with shrinkage). With `multiply_linear_by_lr` the slot
//! `linear` holds the sum times the learning rate, which lets that be zero.

use super::check::{Bound, Check, L1, L1_BOUND, L2, L2_BOUND, LR};
use super::{Application, add};
use crate::state::number::Real;
use downpour_graph::Result;
use downpour_runtime::Registry;

const ACCUM: Check = Check::Slot(1, "accum");
const LINEAR: Check = Check::Slot(2, "linear");
const POWER: Check = Check::Scalar("lr_power", "lr_power is not a scalar");
const LR_BOUND: Check = Check::Bounded(
    "lr",
    "lr is not a positive scalar (or zero if multiply_linear_by_lr is set): ",
    Bound::LearningRate,
);
const POWER_BOUND: Check = Check::Bounded(
    "lr_power",
    "lr_power is not a non-positive scalar: ",
    Bound::NonPositive,
);
const DENSE: &[Check] = &[ACCUM, LINEAR, Check::Grad, LR, L1, L2, POWER];
const DENSE_V2: &[Check] = &[
    ACCUM,
    LINEAR,
    Check::Grad,
    LR,
    L1,
    L2,
    POWER,
    Check::Scalar(
        "l2_shrinkage",
        "l2 shrinkage regularization strength is not a scalar: ",
    ),
];
const SPARSE: &[Check] = &[
    ACCUM,
    LINEAR,
    Check::Vector,
    Check::Indices,
    LR_BOUND,
    L1_BOUND,
    L2_BOUND,
    POWER_BOUND,
    Check::Rows,
    Check::Inner,
    Check::Gradual,
];
const SPARSE_V2: &[Check] = &[
    ACCUM,
    LINEAR,
    Check::Vector,
    Check::Indices,
    LR_BOUND,
    L1_BOUND,
    L2_BOUND,
    POWER_BOUND,
    Check::Rows,
    Check::Inner,
    Check::Bounded(
        "l2_shrinkage",
        "l2 shrinkage regularization strength is not a non-negative scalar: ",
        Bound::NonNegative,
    ),
    Check::Gradual,
];

#[rustfmt::skip]
pub(super) fn register(r: &mut Registry) {
    add!(r, ["ApplyFtrl", "ResourceApplyFtrl"], floats dense, DENSE, dense_first);
    add!(r, ["ApplyFtrlV2", "ResourceApplyFtrlV2"], floats dense, DENSE_V2, dense_second);
    add!(r, ["SparseApplyFtrl", "ResourceSparseApplyFtrl"], floats sparse, SPARSE, sparse_first);
    add!(r, ["SparseApplyFtrlV2", "ResourceSparseApplyFtrlV2"], floats sparse, SPARSE_V2, sparse_second);
}

fn dense_first<T: Real>(a: &mut Application<'_>) -> Result<()> {
    ftrl::<T>(a, None, zero_inside)
}

fn dense_second<T: Real>(a: &mut Application<'_>) -> Result<()> {
    let shrinkage = a.scalar::<T>("l2_shrinkage")?;
    ftrl::<T>(a, Some(shrinkage), zero_inside)
}

fn sparse_first<T: Real>(a: &mut Application<'_>) -> Result<()> {
    ftrl::<T>(a, None, past_limit)
}

fn sparse_second<T: Real>(a: &mut Application<'_>) -> Result<()> {
    let shrinkage = a.scalar::<T>("l2_shrinkage")?;
    ftrl::<T>(a, Some(shrinkage), past_limit)
}

/// How far `linear` goes past ±l1, over `quadratic`, as the dense update has it: zero where the
/// comparison does not hold, so for NaN too.
fn zero_inside<T: Real>(linear: T, l1: T, quadratic: T) -> T {
    if linear.abs() > l1 {
        (l1 * linear.sign() - linear) / quadratic
    } else {
        T::of(0.0)
    }
}

/// The same as the sparse update has it: by subtraction, which keeps NaN, also a `quadratic`'s.
fn past_limit<T: Real>(linear: T, l1: T, quadratic: T) -> T {
    let low = l1 * T::of(-1.0);
    let cut = if linear > l1 {
        l1
    } else if linear < low {
        low
    } else {
        linear
    };
    (cut - linear) / quadratic
}

fn ftrl<T: Real>(
    a: &mut Application<'_>,
    shrinkage: Option<T>,
    shrink: fn(T, T, T) -> T,
) -> Result<()> {
    let (lr, l1, l2) = (
        a.scalar::<T>("lr")?,
        a.scalar::<T>("l1")?,
        a.scalar::<T>("l2")?,
    );
    let power = a.scalar::<T>("lr_power")?;
    let root = power == T::of(-0.5);
    let scaled = a.layout.multiply_linear_by_lr;
    let two = T::of(2.0);
    let raise = move |x: T| if root { x.sqrt() } else { x.pow(-power) };
    let (l1, l2) = if scaled { (l1 * lr, l2 * lr) } else { (l1, l2) };
    a.run3(|[v, accum, linear]: [T; 3], g| {
        let shrunk = match shrinkage {
            Some(s) => g + two * s * v,
            None => g,
        };
        let new = accum + g.square();
        let grown = raise(new) - raise(accum);
        let linear = if scaled {
            linear + (shrunk * lr - grown * v)
        } else {
            linear + (shrunk - grown / lr * v)
        };
        let quadratic = if scaled {
            raise(new) + two * l2
        } else {
            raise(new) / lr + two * l2
        };
        [shrink(linear, l1, quadratic), new, linear]
    })
}
