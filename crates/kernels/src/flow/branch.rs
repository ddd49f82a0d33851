//! Functional conditionals: `If`, `Case` and their stateless forms run one of their functions.

use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, Registry, call_op};
use downpour_tensor::{DType, Tensor};

pub(crate) fn register(r: &mut Registry) {
    for op in ["If", "StatelessIf", "_If"] {
        r.add(op, if_op);
    }
    for op in ["Case", "StatelessCase"] {
        r.add(op, case);
    }
}

fn if_op(b: &KernelBuilder<'_>) -> Result<Built> {
    let (then, otherwise) = (b.callee("then_branch")?, b.callee("else_branch")?);
    Built::waiting(move |op| match op.input(0).and_then(truth) {
        Ok(true) => call_op(op, &then, 1),
        Ok(false) => call_op(op, &otherwise, 1),
        Err(e) => op.finish(Err(e)),
    })
}

fn case(b: &KernelBuilder<'_>) -> Result<Built> {
    let branches = b.callees("branches")?;
    Built::waiting(move |op| {
        let index = op.input(0).and_then(|t| match t.rank() {
            0 => Ok(t.scalar_value::<i32>()?),
            _ => Err(Status::invalid_argument("branch_index must be scalar")),
        });
        // Whatever is out of range means the last branch.
        let branch = index.map(|i| {
            let found = usize::try_from(i).ok().and_then(|i| branches.get(i));
            found.or(branches.last())
        });
        match branch {
            Ok(Some(branch)) => call_op(op, branch, 1),
            Ok(None) => op.finish(Err(Status::invalid_argument("Case has no branches"))),
            Err(e) => op.finish(Err(e)),
        }
    })
}

/// What a tensor says as a condition: a scalar that it is not zero or empty, any other that it
/// has elements.
pub(crate) fn truth(t: &Tensor) -> Result<bool> {
    if t.rank() > 0 {
        return Ok(t.num_elements() > 0);
    }
    Ok(match t.dtype() {
        DType::Bool => t.scalar_value::<bool>()?,
        DType::Float => t.scalar_value::<f32>()? != 0.0,
        DType::Double => t.scalar_value::<f64>()? != 0.0,
        DType::Int32 => t.scalar_value::<i32>()? != 0,
        DType::UInt8 => t.scalar_value::<u8>()? != 0,
        DType::Int16 => t.scalar_value::<i16>()? != 0,
        DType::Int8 => t.scalar_value::<i8>()? != 0,
        DType::Int64 => t.scalar_value::<i64>()? != 0,
        DType::String => t.as_strings()?.first().is_some_and(|s| !s.is_empty()),
        other => {
            return Err(Status::invalid_argument(format!(
                "{other} cannot be converted to a boolean"
            )));
        }
    })
}
