//! Plain gradient descent.

use super::{Optimizer, Rate, Slots, Update};
use downpour_build::{Graph, IndexedSlices, Operation, Output, Variable};

/// `w -= rate · gradient`.
#[derive(Clone, Debug)]
pub struct GradientDescent {
    rate: Rate,
}

impl GradientDescent {
    /// With this learning rate.
    pub fn new(rate: impl Into<Rate>) -> GradientDescent {
        GradientDescent { rate: rate.into() }
    }
}

impl Optimizer for GradientDescent {
    fn name(&self) -> &str {
        "GradientDescent"
    }

    fn make_slots(&self, _: &Graph, _: &[Variable], _: &mut Slots) {}

    fn apply_dense(&self, update: &Update<'_>, gradient: &Output) -> Operation {
        let (w, rate) = (update.variable, self.rate.for_variable(update.variable));
        let op = w.handle().graph().op("ResourceApplyGradientDescent");
        op.input(w.handle()).input(&rate).input(gradient).build()
    }

    fn apply_sparse(&self, update: &Update<'_>, gradient: &IndexedSlices) -> Operation {
        let (w, rate) = (update.variable, self.rate.for_variable(update.variable));
        let op = w
            .handle()
            .graph()
            .op("ResourceScatterAdd")
            .input(w.handle());
        let step = -(&gradient.values * &rate);
        op.input(&gradient.indices)
            .input(&step)
            .attr("dtype", w.dtype())
            .build()
    }

    fn sums_duplicates(&self) -> bool {
        false
    }
}
