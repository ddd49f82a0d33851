//! How much a node will do: what decides which thread runs its kernel.

use crate::plan::PlanNode;
use downpour_runtime::{Built, Inputs, StepEnv, Value};
use downpour_tensor::shared;

/// Bytes of work from which on a borrowed thread leaves a kernel to an executor thread.
pub(crate) const BRIEF_BYTES: usize = 64 << 10;

/// Bytes of work from which on a costly kernel is worth waking another thread up for.
pub(crate) const WAKE_BYTES: usize = 16 << 10;

/// Bytes of work from which on others get a turn beside a kernel: about a tenth of a millisecond.
pub(crate) const LONG_BYTES: usize = 1 << 20;

impl PlanNode {
    /// Runs its kernel so that what it makes lies where those can read it whom it is sent to.
    pub(crate) fn made<T>(&self, run: impl FnOnce() -> T) -> T {
        match self.is_sent {
            true => shared::outgoing(run),
            false => run(),
        }
    }

    pub(crate) fn is_costly(&self) -> bool {
        matches!(self.kernel, Some(Built::Costly(_)))
    }

    /// About how many bytes its kernel reads and writes with these inputs; all there are if that cannot be known.
    pub(crate) fn work(&self, inputs: &[Option<Value>]) -> usize {
        match self.growth {
            Some(growth) => {
                let grown = growth(&self.info.node, Inputs::new(inputs));
                grown.saturating_add(total_bytes(inputs))
            }
            None if self.is_costly() && !self.cost_by_inputs => usize::MAX,
            None => total_bytes(inputs),
        }
    }
}

/// Runs a kernel with so much work; others get their turn beside a long one.
pub(crate) fn taking<T>(env: &StepEnv, work: usize, run: impl FnOnce() -> T) -> T {
    match work >= LONG_BYTES {
        true => env.device.at_length(run),
        false => run(),
    }
}

fn total_bytes(values: &[Option<Value>]) -> usize {
    let size = |value: &Option<Value>| match value {
        Some(Value::Tensor(t)) => t.weight(),
        Some(Value::Ref(v)) => v.byte_len(),
        None => 0,
    };
    values.iter().map(size).sum()
}
