//! The two ways to a variable: a reference (`Ref` inputs) and a resource handle. Ops that exist
//! in both forms ask here for their variables and are otherwise one piece of code.

use super::resource_variable;
use downpour_graph::{Result, Status};
use downpour_runtime::{KernelBuilder, OpContext, Variable, VariableGuard};
use downpour_tensor::Tensor;
use std::sync::Arc;

/// How an op names its variables.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum VariableAccess {
    /// By reference; the first output passes the reference on.
    Ref,
    /// By handle.
    Resource,
}

impl VariableAccess {
    /// What the node's first input is.
    pub(super) fn of(b: &KernelBuilder<'_>) -> VariableAccess {
        match b.node.input_types.first() {
            Some((_, true)) => VariableAccess::Ref,
            _ => VariableAccess::Resource,
        }
    }

    /// The variable in input `i`; NOT_FOUND if a handle names none.
    pub(super) fn variable(self, ctx: &OpContext<'_>, i: usize) -> Result<Arc<Variable>> {
        match self {
            VariableAccess::Ref => ctx.input_ref(i),
            VariableAccess::Resource => resource_variable::lookup(ctx, i),
        }
    }

    /// Passes the reference on once the op is done.
    pub(super) fn finish(self, ctx: &mut OpContext<'_>) {
        if self == VariableAccess::Ref {
            ctx.forward(0, 0);
        }
    }

    /// Runs `update` on the tensor of the variable in input 0, under its lock, then passes the
    /// reference on.
    pub(super) fn update(
        self,
        ctx: &mut OpContext<'_>,
        update: impl FnOnce(&OpContext<'_>, &mut Tensor) -> Result<()>,
    ) -> Result<()> {
        let variable = self.variable(ctx, 0)?;
        let mut guard = variable.lock();
        let tensor = guard.as_mut().ok_or_else(|| uninitialized(ctx, 0))?;
        update(ctx, tensor)?;
        variable.note_update(ctx.env());
        drop(guard);
        self.finish(ctx);
        Ok(())
    }
}

/// The variables of one op, locked together.
pub(super) struct Locked<'a> {
    guards: Vec<Option<VariableGuard<'a>>>,
    /// Stand-ins for a variable that the op names twice: the first mention is the one that lasts.
    copies: Vec<Option<Tensor>>,
}

impl<'a> Locked<'a> {
    /// Locks `variables`, which came in inputs `0..`.
    pub(super) fn new(ctx: &OpContext<'_>, variables: &'a [Arc<Variable>]) -> Result<Locked<'a>> {
        let list: Vec<&Arc<Variable>> = variables.iter().collect();
        let guards = Variable::lock_all(&list);
        let mut copies = Vec::with_capacity(guards.len());
        for (i, guard) in guards.iter().enumerate() {
            let value = match guard {
                Some(guard) => guard.as_ref(),
                None => variables
                    .iter()
                    .zip(&guards)
                    .find(|(v, g)| g.is_some() && Arc::ptr_eq(v, &variables[i]))
                    .and_then(|(_, g)| g.as_ref()?.as_ref()),
            };
            let value = value.ok_or_else(|| uninitialized(ctx, i))?;
            copies.push(guard.is_none().then(|| value.clone()));
        }
        Ok(Locked { guards, copies })
    }

    /// The tensors, in the order of the variables.
    pub(super) fn tensors(&mut self) -> Vec<&mut Tensor> {
        self.guards
            .iter_mut()
            .zip(&mut self.copies)
            .filter_map(|(guard, copy)| match guard {
                Some(guard) => guard.as_mut(),
                None => copy.as_mut(),
            })
            .collect()
    }
}

/// TensorFlow's text for a variable without a value.
pub(super) fn uninitialized(ctx: &OpContext<'_>, i: usize) -> Status {
    Status::failed_precondition(format!(
        "Attempting to use uninitialized variables: {}",
        ctx.info().input_names.get(i).map_or("", String::as_str)
    ))
}
