//! Gradient descent with momentum.

use super::{Optimizer, Rate, Slots, Update};
use downpour_build::{Graph, IndexedSlices, Init, Operation, Output, Variable};

/// `a = momentum · a + gradient; w -= rate · a`, or Nesterov's form of it.
#[derive(Clone, Debug)]
pub struct Momentum {
    rate: Rate,
    momentum: Rate,
    nesterov: bool,
}

impl Momentum {
    /// With this learning rate and momentum.
    pub fn new(rate: impl Into<Rate>, momentum: impl Into<Rate>) -> Momentum {
        Momentum {
            rate: rate.into(),
            momentum: momentum.into(),
            nesterov: false,
        }
    }

    /// Nesterov's form: looks ahead by the momentum.
    pub fn nesterov(mut self) -> Momentum {
        self.nesterov = true;
        self
    }
}

impl Optimizer for Momentum {
    fn name(&self) -> &str {
        "Momentum"
    }

    fn make_slots(&self, _: &Graph, variables: &[Variable], slots: &mut Slots) {
        for variable in variables {
            slots.make("momentum", variable, Init::zeros());
        }
    }

    fn apply_dense(&self, update: &Update<'_>, gradient: &Output) -> Operation {
        let w = update.variable;
        let op = w.handle().graph().op("ResourceApplyMomentum");
        op.input(w.handle())
            .input(update.slots.get("momentum", w).handle())
            .input(&self.rate.for_variable(w))
            .input(gradient)
            .input(&self.momentum.for_variable(w))
            .attr("use_nesterov", self.nesterov)
            .build()
    }

    fn apply_sparse(&self, update: &Update<'_>, gradient: &IndexedSlices) -> Operation {
        let w = update.variable;
        let op = w.handle().graph().op("ResourceSparseApplyMomentum");
        op.input(w.handle())
            .input(update.slots.get("momentum", w).handle())
            .input(&self.rate.for_variable(w))
            .input(&gradient.values)
            .input(&gradient.indices)
            .input(&self.momentum.for_variable(w))
            .attr("use_nesterov", self.nesterov)
            .build()
    }
}
