//! Adam.

use super::{Optimizer, Rate, Slots, Update};
use downpour_build::{Graph, IndexedSlices, Init, Operation, Output, Variable};

/// Steps scaled by running means of the gradient and of its square.
#[derive(Clone, Debug)]
pub struct Adam {
    rate: Rate,
    beta1: f64,
    beta2: f64,
    epsilon: f64,
}

impl Adam {
    /// With this learning rate and TensorFlow's other numbers: 0.9, 0.999, 1e-8.
    pub fn new(rate: impl Into<Rate>) -> Adam {
        Adam {
            rate: rate.into(),
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
        }
    }

    /// How slowly the means of gradients and squares change.
    pub fn betas(mut self, beta1: f64, beta2: f64) -> Adam {
        (self.beta1, self.beta2) = (beta1, beta2);
        self
    }

    /// What keeps the divisor from zero.
    pub fn epsilon(mut self, epsilon: f64) -> Adam {
        self.epsilon = epsilon;
        self
    }
}

impl Optimizer for Adam {
    fn name(&self) -> &str {
        "Adam"
    }

    fn make_slots(&self, _: &Graph, variables: &[Variable], slots: &mut Slots) {
        // TensorFlow keeps the powers beside the variable whose name comes first.
        if let Some(first) = variables.iter().min_by_key(|v| v.name().to_owned()) {
            slots.make_shared("beta1_power", first, Init::filled(self.beta1));
            slots.make_shared("beta2_power", first, Init::filled(self.beta2));
        }
        for variable in variables {
            slots.make("m", variable, Init::zeros());
            slots.make("v", variable, Init::zeros());
        }
    }

    fn apply_dense(&self, update: &Update<'_>, gradient: &Output) -> Operation {
        let (w, slots) = (update.variable, update.slots);
        let number = |value: f64| Rate::from(value).for_variable(w);
        let op = w.handle().graph().op("ResourceApplyAdam");
        op.input(w.handle())
            .input(slots.get("m", w).handle())
            .input(slots.get("v", w).handle())
            .input(&slots.shared("beta1_power").cast(w.dtype()))
            .input(&slots.shared("beta2_power").cast(w.dtype()))
            .input(&self.rate.for_variable(w))
            .input(&number(self.beta1))
            .input(&number(self.beta2))
            .input(&number(self.epsilon))
            .input(gradient)
            .build()
    }

    fn apply_sparse(&self, update: &Update<'_>, gradient: &IndexedSlices) -> Operation {
        let (w, slots) = (update.variable, update.slots);
        let g = w.handle().graph().clone();
        let (m, v) = (slots.get("m", w), slots.get("v", w));
        let (power1, power2) = (
            slots.shared("beta1_power").cast(w.dtype()),
            slots.shared("beta2_power").cast(w.dtype()),
        );
        let rate = self.rate.for_variable(w) * (1.0 - power2).sqrt() / (1.0 - power1);
        // Every row's means decay; those with a gradient also grow.
        let grown = |slot: &Variable, beta: f64, part: Output| {
            let decayed = slot.assign(&(slot.value() * beta));
            let op = g.op("ResourceScatterAdd").input(slot.handle());
            let op = op.input(&gradient.indices).input(&part).control(&decayed);
            let added = op.attr("dtype", slot.dtype()).build();
            g.with_control(&[added], || slot.read())
        };
        let m = grown(m, self.beta1, &gradient.values * (1.0 - self.beta1));
        let v = grown(v, self.beta2, gradient.values.square() * (1.0 - self.beta2));
        w.assign_sub(&(rate * m / (v.sqrt() + self.epsilon)))
    }

    fn finish(&self, graph: &Graph, slots: &Slots, updates: &[Operation]) -> Vec<Operation> {
        graph.with_control(updates, || {
            let powers = [("beta1_power", self.beta1), ("beta2_power", self.beta2)];
            powers
                .map(|(name, beta)| {
                    let power = slots.shared(name);
                    graph.with_colocation(&power.handle().operation(), || {
                        power.assign(&(power.read() * beta))
                    })
                })
                .into()
        })
    }
}
