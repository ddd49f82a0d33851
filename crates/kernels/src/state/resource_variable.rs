//! Variables by handle: `VarHandleOp`, reading and assigning.

use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry, Variable};
use downpour_tensor::{DType, ResourceHandle, Tensor};
use std::sync::Arc;

/// TensorFlow's name of the variable type in handles and errors.
const VAR_TYPE: &str = "N10tensorflow3VarE";

pub(crate) fn register(r: &mut Registry) {
    r.add("VarHandleOp", var_handle);
    r.add("ReadVariableOp", read_variable);
    r.add("AssignVariableOp", assign_variable);
    r.add("VarIsInitializedOp", |_| {
        Built::cheap(|ctx| {
            let handle = ctx.handle(0)?;
            let found = find(ctx, handle).is_some_and(|v| v.is_initialized());
            ctx.set_output(0, Tensor::scalar(found));
            Ok(())
        })
    });
}

fn find(ctx: &OpContext<'_>, handle: &ResourceHandle) -> Option<Arc<Variable>> {
    ctx.device().resources.find(&handle.container, &handle.name)
}

/// The variable that input `i` names, initialised or not; FAILED_PRECONDITION if there is none.
pub(crate) fn variable(ctx: &OpContext<'_>, i: usize) -> Result<Arc<Variable>> {
    let handle = ctx.handle(i)?;
    find(ctx, handle).ok_or_else(|| missing(handle))
}

/// TensorFlow's text for a variable that was never assigned.
pub(crate) fn missing(handle: &ResourceHandle) -> Status {
    let (name, container) = (&handle.name, &handle.container);
    Status::failed_precondition(format!(
        "Could not find variable {name}. This could mean that the variable has been deleted. In TF1, it can also mean the variable is uninitialized. Debug info: container={container}, status error message=Resource {container}/{name}/{VAR_TYPE} does not exist."
    ))
}

fn var_handle(b: &KernelBuilder<'_>) -> Result<Built> {
    let (container, name) = b.resource_name()?;
    let contents = vec![(b.attrs().dtype("dtype")?, b.attrs().shape("shape")?.clone())];
    let handle = Tensor::resource(b.handle(&container, &name, VAR_TYPE, contents));
    Built::cheap(move |ctx| {
        ctx.set_output(0, handle.clone());
        Ok(())
    })
}

fn read_variable(b: &KernelBuilder<'_>) -> Result<Built> {
    let dtype = b.attrs().dtype("dtype")?;
    Built::cheap(move |ctx| {
        let value = variable(ctx, 0)?
            .read()
            .ok_or_else(|| match ctx.handle(0) {
                Ok(handle) => missing(handle),
                Err(e) => e,
            })?;
        check_dtype(dtype, &value)?;
        ctx.set_output(0, value);
        Ok(())
    })
}

fn check_dtype(wanted: DType, value: &Tensor) -> Result<()> {
    if value.dtype() == wanted {
        return Ok(());
    }
    Err(Status::invalid_argument(format!(
        "Trying to read variable with wrong dtype. Expected {wanted} got {}",
        value.dtype()
    )))
}

fn assign_variable(b: &KernelBuilder<'_>) -> Result<Built> {
    let dtype = b.attrs().dtype("dtype")?;
    Built::cheap(move |ctx| {
        let value = ctx.take(1)?;
        let handle = ctx.handle(0)?;
        let variable =
            ctx.device()
                .resources
                .find_or_create(&handle.container, &handle.name, || Ok(Variable::new()))?;
        variable.update(|old| {
            if let Some(old) = old
                && old.dtype() != dtype
            {
                return Err(Status::invalid_argument(format!(
                    "Trying to assign variable with wrong dtype. Expected {} got {dtype}",
                    old.dtype()
                )));
            }
            *old = Some(value);
            Ok(())
        })
    })
}
