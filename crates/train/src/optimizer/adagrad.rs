//! Adagrad.

use super::settings::{Settings, fused, settings};
use super::update::Given;
use super::{Optimizer, Rate, Slots, Update, positive};
use downpour_build::{Graph, IndexedSlices, Init, Operation, Output, Result, Variable};

/// Steps scaled by the root of all squares so far: `a += gradient²; w -= rate · gradient / √a`.
#[derive(Clone, Debug)]
pub struct Adagrad {
    settings: Settings,
    rate: Rate,
    initial: f64,
}

settings!(Adagrad);

impl Adagrad {
    /// With this learning rate; sums of squares begin with 0.1.
    pub fn new(rate: impl Into<Rate>) -> Adagrad {
        Adagrad {
            settings: Settings::new("Adagrad"),
            rate: rate.into(),
            initial: 0.1,
        }
    }

    /// What sums of squares begin with.
    pub fn initial_accumulator(mut self, value: f64) -> Adagrad {
        self.initial = value;
        self
    }

    fn apply(&self, update: &Update<'_>, given: Given<'_>) -> Operation {
        let op = update.op("Adagrad", given, &["accumulator"]);
        let op = op.input(&self.rate.for_variable(update.variable));
        given
            .to(op)
            .attr("use_locking", self.settings.locking)
            .build()
    }
}

impl Optimizer for Adagrad {
    fused!();

    fn check(&self) -> Result<()> {
        positive("initial_accumulator", self.initial)
    }

    fn make_slots(&self, _: &Graph, variables: &[Variable], slots: &mut Slots) {
        for variable in variables {
            slots.make("accumulator", variable, Init::filled(self.initial));
        }
    }
}
