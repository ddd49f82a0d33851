//! Plain gradient descent.

use super::settings::{Settings, fused, settings};
use super::update::Given;
use super::{Optimizer, Rate, Slots, Update};
use downpour_build::{Graph, IndexedSlices, Operation, Output, Variable};

/// `w -= rate · gradient`.
#[derive(Clone, Debug)]
pub struct GradientDescent {
    settings: Settings,
    rate: Rate,
}

settings!(GradientDescent);

impl GradientDescent {
    /// With this learning rate.
    pub fn new(rate: impl Into<Rate>) -> GradientDescent {
        GradientDescent {
            settings: Settings::new("GradientDescent"),
            rate: rate.into(),
        }
    }

    fn apply(&self, update: &Update<'_>, given: Given<'_>) -> Operation {
        let (w, rate) = (update.variable, self.rate.for_variable(update.variable));
        match given {
            Given::Dense(gradient) => {
                let op = update.op("GradientDescent", given, &[]).input(&rate);
                op.input(gradient)
                    .attr("use_locking", self.settings.locking)
                    .build()
            }
            Given::Sparse(slices) => {
                let op = w.handle().graph().op("ResourceScatterAdd");
                op.input(w.handle())
                    .input(&slices.indices)
                    .input(&(-&slices.values * rate))
                    .attr("dtype", w.dtype())
                    .build()
            }
        }
    }
}

impl Optimizer for GradientDescent {
    fused!();

    fn make_slots(&self, _: &Graph, _: &[Variable], _: &mut Slots) {}

    fn sums_duplicates(&self) -> bool {
        false
    }
}
