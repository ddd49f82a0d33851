//! What TensorFlow checks before an optimizer touches anything, as data: one list per op, in
//! TensorFlow's order, because the first failure is the one a client sees. Every list must end
//! in [`Check::Grad`] or [`Check::Rows`] among its members: the passes rely on equal lengths.

use super::Application;
use downpour_graph::{Result, Status};
use downpour_tensor::{DType, Tensor};
use half::{bf16, f16};

/// One check.
#[derive(Clone, Copy)]
pub(super) enum Check {
    /// Variable `.0` has the shape of the first; `.1` is what the text calls it.
    Slot(usize, &'static str),
    /// The same for variable 1, in a text that names the first one's shape twice.
    MeanGrad,
    /// Input `.0` is a scalar; `.1` is the text before its shape.
    Scalar(&'static str, &'static str),
    /// Input `.0` is a scalar that satisfies `.2`.
    Bounded(&'static str, &'static str, Bound),
    /// Input `.0` has one element (TensorFlow itself aborts on more).
    Single(&'static str),
    /// The dense gradient has the variable's shape.
    Grad,
    /// The variable has rows.
    Vector,
    /// The indices are a vector.
    Indices,
    /// The gradient has the variable's rank.
    GradRank,
    /// The gradient has one row, of the variable's row shape, per index.
    Rows,
    /// A row has elements.
    Inner,
    /// Indices are only looked at row by row: those before a bad one take effect. (Without this,
    /// all indices are checked first.)
    Gradual,
}

/// What the value of a scalar must be.
#[derive(Clone, Copy)]
pub(super) enum Bound {
    Positive,
    NonNegative,
    NonPositive,
    /// Positive, or zero if `multiply_linear_by_lr`.
    LearningRate,
}

/// `lr` in the wording of most ops.
pub(super) const LR: Check = Check::Scalar("lr", "lr is not a scalar: ");
/// `lr` in the wording of the ops with a stray space.
pub(super) const LR_SPACED: Check = Check::Scalar("lr", "lr is not a scalar : ");
pub(super) const L1: Check = Check::Scalar("l1", "l1 regularization strength is not a scalar: ");
pub(super) const L2: Check = Check::Scalar("l2", "l2 regularization strength is not a scalar: ");
pub(super) const EPSILON: Check = Check::Scalar("epsilon", "epsilon is not a scalar: ");
pub(super) const RHO: Check = Check::Scalar("rho", "rho is not a scalar: ");
pub(super) const MOMENTUM: Check = Check::Scalar("momentum", "momentum is not a scalar: ");
pub(super) const GLOBAL_STEP: Check = Check::Scalar("global_step", "global_step is not a scalar: ");
pub(super) const L1_BOUND: Check = Check::Bounded(
    "l1",
    "l1 regularization strength is not a non-negative scalar: ",
    Bound::NonNegative,
);
pub(super) const L2_BOUND: Check = Check::Bounded(
    "l2",
    "l2 regularization strength is not a non-negative scalar: ",
    Bound::NonNegative,
);

/// Runs all checks, then reads the row numbers of a sparse gradient. An error in them that is to
/// come after the rows before it is left in the application.
pub(super) fn run(checks: &[Check], a: &mut Application<'_>) -> Result<()> {
    let wanted = a.layout.dtype;
    if let Some(t) = a.tensors.iter().find(|t| t.dtype() != wanted) {
        return Err(Status::invalid_argument(format!(
            "Trying to read variable with wrong dtype. Expected {wanted} got {}",
            t.dtype()
        )));
    }
    for check in checks {
        check.run(a)?;
    }
    if let Some(i) = a.layout.indices {
        let limit = a.tensors.first().and_then(|t| t.dims().first());
        let limit = limit.copied().unwrap_or(0);
        let gradual = checks.iter().any(|c| matches!(c, Check::Gradual));
        for (k, i) in crate::args::ints(a.ctx.input(i)?)?.into_iter().enumerate() {
            match usize::try_from(i) {
                Ok(row) if row < limit => a.rows.push(row),
                _ => {
                    a.bad_row = Some(bad_row(a, k, i, limit));
                    break;
                }
            }
        }
        if !gradual && let Some(error) = a.bad_row.take() {
            return Err(error);
        }
    }
    Ok(())
}

impl Check {
    fn run(self, a: &Application<'_>) -> Result<()> {
        let Some(var) = a.tensors.first() else {
            return Err(Status::internal("an optimizer op without a variable"));
        };
        let fail = |text: String| Err(Status::invalid_argument(text));
        match self {
            Check::Slot(i, label) => match a.tensors.get(i) {
                Some(slot) if slot.shape() == var.shape() => Ok(()),
                slot => fail(format!(
                    "var and {label} do not have the same shape{} {}",
                    var.shape(),
                    slot.map_or_else(String::new, |s| s.shape().to_string())
                )),
            },
            Check::MeanGrad => match a.tensors.get(1) {
                Some(slot) if slot.shape() == var.shape() => Ok(()),
                _ => fail(format!(
                    "var and mg do not have the same shape{0} {0}",
                    var.shape()
                )),
            },
            Check::Scalar(name, text) => {
                let shape = a.input(name)?.shape();
                if shape.is_scalar() {
                    return Ok(());
                }
                fail(format!("{text}{shape}"))
            }
            Check::Bounded(name, text, bound) => {
                let tensor = a.input(name)?;
                if tensor.shape().is_scalar()
                    && bound.admits(value(tensor)?, a.layout.multiply_linear_by_lr)
                {
                    return Ok(());
                }
                fail(format!("{text}{}", tensor.shape()))
            }
            Check::Single(name) => {
                let tensor = a.input(name)?;
                if tensor.num_elements() == 1 {
                    return Ok(());
                }
                fail(format!("{name} is not a scalar: {}", tensor.shape()))
            }
            Check::Grad => {
                let grad = a.grad()?;
                if grad.shape() == var.shape() {
                    return Ok(());
                }
                fail(format!(
                    "var and {} do not have the same shape{} {}",
                    a.layout.names[a.layout.grad],
                    var.shape(),
                    grad.shape()
                ))
            }
            Check::Vector if var.rank() == 0 => fail("var must be at least 1 dimensional".into()),
            Check::Indices if a.indices()?.rank() != 1 => {
                fail("indices must be one-dimensional".into())
            }
            Check::GradRank if a.grad()?.rank() != var.rank() => {
                fail("grad must have the same number of dimensions as var".into())
            }
            Check::Rows => grad_rows(var, a.grad()?, a.indices()?),
            Check::Inner if var.dims().get(1..).is_some_and(|d| d.contains(&0)) => {
                fail("Inner dimension should be greater than zero.".into())
            }
            Check::Vector | Check::Indices | Check::GradRank | Check::Inner | Check::Gradual => {
                Ok(())
            }
        }
    }
}

fn grad_rows(var: &Tensor, grad: &Tensor, indices: &Tensor) -> Result<()> {
    for (d, size) in var.dims().iter().enumerate().skip(1) {
        if grad.dims().get(d).is_some_and(|g| g != size) {
            return Err(Status::invalid_argument(format!(
                "var and grad must match in dimension {d}"
            )));
        }
    }
    if grad.dims().first() != indices.dims().first() {
        return Err(Status::invalid_argument(
            "grad must be the same size as indices in the first dimension.",
        ));
    }
    // TensorFlow reads past the gradient, or part of it, when the ranks differ.
    let inner: usize = var.dims().iter().skip(1).product();
    if grad.rank() < var.rank() || grad.num_elements() != indices.num_elements() * inner {
        return Err(Status::invalid_argument(
            "grad must have the same number of dimensions as var",
        ));
    }
    Ok(())
}

impl Application<'_> {
    fn indices(&self) -> Result<&Tensor> {
        let i = self.layout.indices;
        self.ctx
            .input(i.ok_or_else(|| Status::internal("a dense optimizer op has no indices"))?)
    }
}

/// The text for index `i`, the `k`-th, that names no row.
fn bad_row(a: &Application<'_>, k: usize, i: i64, limit: usize) -> Status {
    Status::invalid_argument(
        if a.ctx.info().node.op_name() == "ResourceSparseApplyKerasMomentum" {
            format!("indices[{k}] = {i} is not in [0, {limit})")
        } else {
            format!("Index {i} at offset {k} in indices is out of range")
        },
    )
}

impl Bound {
    fn admits(self, value: f64, zero_learning_rate: bool) -> bool {
        match self {
            Bound::Positive => value > 0.0,
            Bound::NonNegative => value >= 0.0,
            Bound::NonPositive => value <= 0.0,
            Bound::LearningRate => value > 0.0 || (zero_learning_rate && value >= 0.0),
        }
    }
}

fn value(scalar: &Tensor) -> Result<f64> {
    Ok(match scalar.dtype() {
        DType::Half => scalar.scalar_value::<f16>()?.to_f64(),
        DType::BFloat16 => scalar.scalar_value::<bf16>()?.to_f64(),
        DType::Float => scalar.scalar_value::<f32>()?.into(),
        _ => scalar.scalar_value::<f64>()?,
    })
}
