//! Variables: copy-on-write snapshots behind one lock. Ref (`VariableV2`) and resource
//! (`VarHandleOp`) ops are two doors to this one object. A reader clones the tensor (a reference
//! count); a writer changes it in place when no snapshot is out, else on a fresh buffer, so a
//! reader never sees a torn value.

use crate::StepEnv;
use crate::history::{History, StalenessFacts};
use crate::memory::Held;
use crate::resource::Resource;
use downpour_graph::Result;
use downpour_tensor::{DType, Shape, Tensor};
use parking_lot::{Mutex, MutexGuard};
use std::sync::{Arc, OnceLock};

/// A mutable cell that holds a tensor once it is initialised.
#[derive(Debug, Default)]
pub struct Variable {
    declared: Option<(DType, Shape)>,
    value: Mutex<Option<Tensor>>,
    /// Made when a step first uses the variable: those of a single step stay small.
    history: OnceLock<Box<History>>,
}

/// What there is to say of a variable without looking at its elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VariableFacts {
    /// Type and shape of the value, or those that were declared.
    pub contents: Option<(DType, Shape)>,
    /// Bytes of the value.
    pub bytes: usize,
    /// Whether there is a value.
    pub is_initialized: bool,
    /// How often steps changed it.
    pub updates: u64,
    /// How stale those steps were that had read it before.
    pub staleness: StalenessFacts,
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
            value: Mutex::new(Some(value)),
            ..Variable::default()
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
            ..Variable::default()
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

    /// A snapshot for a step, which may update the variable later.
    pub fn read_by(&self, step: u64) -> Option<Tensor> {
        let value = self.value.lock();
        // Counters and text are no parameters: who changes them is seldom late, and would hide who is.
        if value.as_ref().is_some_and(|t| is_parameter(t.dtype())) {
            self.history().read_by(step);
        }
        value.clone()
    }

    /// Notes that a step changes the value. Called by whoever holds the lock for it.
    pub fn note_update(&self, env: &StepEnv) {
        let stale = self.history().updated_by(env.step_id);
        if let (Some(stale), Some(writer)) = (stale, &env.writer) {
            writer.note(stale);
        }
    }

    fn history(&self) -> &History {
        self.history.get_or_init(Box::default)
    }

    /// What there is to say of it now.
    pub fn facts(&self) -> VariableFacts {
        let (contents, bytes, is_initialized) = {
            let value = self.value.lock();
            let contents = value.as_ref().map(|t| (t.dtype(), t.shape().clone()));
            let bytes = value.as_ref().map_or(0, Tensor::byte_len);
            (contents, bytes, value.is_some())
        };
        let history = self.history.get();
        VariableFacts {
            contents: contents.or_else(|| self.declared.clone()),
            bytes,
            is_initialized,
            updates: history.map_or(0, |h| h.updates()),
            staleness: history.map_or_else(StalenessFacts::default, |h| h.staleness()),
        }
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

/// Whether gradients are taken for such elements.
fn is_parameter(dtype: DType) -> bool {
    dtype.is_floating() || matches!(dtype, DType::Complex64 | DType::Complex128)
}

impl Resource for Variable {
    fn type_name(&self) -> &'static str {
        "N10tensorflow3VarE"
    }

    fn variable(&self) -> Option<&Variable> {
        Some(self)
    }

    fn held(&self) -> Option<Held> {
        Some(Held {
            kind: "variables",
            bytes: self.byte_len(),
        })
    }
}
