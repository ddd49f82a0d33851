//! Variables: copy-on-write snapshots behind one lock. Ref (`VariableV2`) and resource
//! (`VarHandleOp`) ops are two doors to this one object. A reader clones the tensor (a reference
//! count); a writer changes it in place when no snapshot is out, else on a fresh buffer, so a
//! reader never sees a torn value.

use crate::resource::Resource;
use downpour_graph::Result;
use downpour_tensor::{DType, Shape, Tensor};
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;

/// A mutable cell that holds a tensor once it is initialised.
#[derive(Debug, Default)]
pub struct Variable {
    declared: Option<(DType, Shape)>,
    value: Mutex<Option<Tensor>>,
}

/// Exclusive access to a variable's tensor.
pub type VariableGuard<'a> = MutexGuard<'a, Option<Tensor>>;

impl Variable {
    /// An uninitialised variable.
    pub fn new() -> Variable {
        Variable::default()
    }

    /// A variable with a value.
    pub fn with_value(value: Tensor) -> Variable {
        Variable {
            declared: None,
            value: Mutex::new(Some(value)),
        }
    }

    /// A variable whose node declares what it will hold. Without elements there is nothing to
    /// assign, so such a variable is initialised from the start.
    pub fn declared(dtype: DType, shape: Shape) -> Variable {
        let empty = shape.num_elements() == 0;
        let value = if empty {
            Tensor::zeros(dtype, shape.clone()).ok()
        } else {
            None
        };
        Variable {
            declared: Some((dtype, shape)),
            value: Mutex::new(value),
        }
    }

    /// What the variable's node declared, if it did.
    pub fn declaration(&self) -> Option<&(DType, Shape)> {
        self.declared.as_ref()
    }

    /// A snapshot, or `None` before initialisation.
    pub fn read(&self) -> Option<Tensor> {
        self.value.lock().clone()
    }

    /// Bytes of the value; of what was declared while somebody holds the lock.
    pub fn byte_len(&self) -> usize {
        match (self.value.try_lock(), &self.declared) {
            (Some(value), _) => value.as_ref().map_or(0, Tensor::byte_len),
            (None, Some((dtype, shape))) => shape.num_elements() * dtype.size().unwrap_or(0),
            (None, None) => 0,
        }
    }

    /// Whether a value has been assigned.
    pub fn is_initialized(&self) -> bool {
        self.value.lock().is_some()
    }

    /// Replaces the value.
    pub fn assign(&self, value: Tensor) {
        *self.value.lock() = Some(value);
    }

    /// Exclusive access for an update.
    pub fn lock(&self) -> VariableGuard<'_> {
        self.value.lock()
    }

    /// Locks several variables at once, in an order that no two callers can deadlock on. The
    /// guards come back in the order of `variables`; `None` stands for a variable that already
    /// appeared earlier in the list.
    pub fn lock_all<'a>(variables: &[&'a Arc<Variable>]) -> Vec<Option<VariableGuard<'a>>> {
        let mut order: Vec<usize> = (0..variables.len()).collect();
        order.sort_by_key(|&i| Arc::as_ptr(variables[i]));
        let mut guards: Vec<Option<VariableGuard<'a>>> = variables.iter().map(|_| None).collect();
        let mut last: Option<*const Variable> = None;
        for i in order {
            let at = Arc::as_ptr(variables[i]);
            if last != Some(at) {
                guards[i] = Some(variables[i].lock());
                last = Some(at);
            }
        }
        guards
    }

    /// Runs `update` on the value under the lock. `None` in means uninitialised.
    pub fn update<R>(&self, update: impl FnOnce(&mut Option<Tensor>) -> Result<R>) -> Result<R> {
        update(&mut self.value.lock())
    }
}

impl Resource for Variable {
    fn type_name(&self) -> &'static str {
        "N10tensorflow3VarE"
    }
}
