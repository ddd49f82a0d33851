//! Follow the regularized leader.

use super::settings::{Settings, fused, settings};
use super::update::Given;
use super::{Optimizer, Rate, Slots, Update, not_negative};
use downpour_build::{Graph, IndexedSlices, Init, Operation, Output, Result, Status, Variable};

/// FTRL-proximal, for wide and sparse linear models: weights that do not pay are exactly zero.
///
/// ```
/// use downpour::train::{Ftrl, Minimize};
/// use downpour::{Graph, Init, Server, ServerConfig, Session};
/// # let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let w = g.variable("w").init(Init::value([0.0f32, 0.0])).build();
/// // The gradient is 3 and 0.5.
/// let loss = (&*w * g.constant([3.0f32, 0.5])).sum(());
/// let train = Ftrl::new(1.0).initial_accumulator(7.0).l1(1.0).minimize(&loss, None)?;
/// let session = Session::new(&server, &g)?;
/// session.run(&g.initialize_variables())?;
/// session.run(&train)?;
/// // (1 - 3) / √(7 + 3²); and 0.5 is below the penalty.
/// assert_eq!(session.fetch(&w)?.as_slice::<f32>()?, [-0.5, 0.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Ftrl {
    settings: Settings,
    rate: Rate,
    power: f64,
    initial: f64,
    l1: f64,
    l2: f64,
    l2_shrinkage: f64,
    beta: f64,
    names: (Option<String>, Option<String>),
}

settings!(Ftrl);

impl Ftrl {
    /// With this learning rate, power -0.5, no penalties; sums of squares begin with 0.1.
    pub fn new(rate: impl Into<Rate>) -> Ftrl {
        Ftrl {
            settings: Settings::new("Ftrl"),
            rate: rate.into(),
            power: -0.5,
            initial: 0.1,
            l1: 0.0,
            l2: 0.0,
            l2_shrinkage: 0.0,
            beta: 0.0,
            names: (None, None),
        }
    }

    /// How the rate falls with the sum of squares; at most zero, which keeps it fixed.
    pub fn learning_rate_power(mut self, power: f64) -> Ftrl {
        self.power = power;
        self
    }

    /// What sums of squares begin with.
    pub fn initial_accumulator(mut self, value: f64) -> Ftrl {
        self.initial = value;
        self
    }

    /// Penalty on absolute values.
    pub fn l1(mut self, strength: f64) -> Ftrl {
        self.l1 = strength;
        self
    }

    /// Penalty on squares, which stabilizes.
    pub fn l2(mut self, strength: f64) -> Ftrl {
        self.l2 = strength;
        self
    }

    /// Penalty on squares, as part of the loss.
    pub fn l2_shrinkage(mut self, strength: f64) -> Ftrl {
        self.l2_shrinkage = strength;
        self
    }

    /// The paper's beta: how slowly the rate of a coordinate begins.
    pub fn beta(mut self, beta: f64) -> Ftrl {
        self.beta = beta;
        self
    }

    /// Names of the two slots instead of the optimizer's: sums of squares, and linear terms.
    pub fn slot_names(mut self, accum: &str, linear: &str) -> Ftrl {
        self.names = (Some(accum.to_owned()), Some(linear.to_owned()));
        self
    }

    fn apply(&self, update: &Update<'_>, given: Given<'_>) -> Operation {
        let shrinks = self.l2_shrinkage > 0.0;
        let op = match shrinks {
            true => update.op("FtrlV2", given, &["accum", "linear"]),
            false => update.op("Ftrl", given, &["accum", "linear"]),
        };
        let rate = self.rate.for_variable(update.variable);
        let l2 = match self.beta {
            0.0 => update.number(self.l2),
            beta => {
                let least = update.number(1e-36);
                update.number(beta) / (rate.maximum(&least) * 2.0) + update.number(self.l2)
            }
        };
        let op = given.to(op).input(&rate).input(&update.number(self.l1));
        let op = op.input(&l2);
        let op = match shrinks {
            true => op.input(&update.number(self.l2_shrinkage)),
            false => op,
        };
        op.input(&update.number(self.power))
            .attr("use_locking", self.settings.locking)
            .build()
    }
}

impl Optimizer for Ftrl {
    fused!();

    fn check(&self) -> Result<()> {
        if self.power > 0.0 {
            return Err(Status::invalid_argument(format!(
                "learning_rate_power {} needs to be negative or zero",
                self.power
            )));
        }
        not_negative("initial_accumulator", self.initial)?;
        not_negative("l1", self.l1)?;
        not_negative("l2", self.l2)?;
        not_negative("l2_shrinkage", self.l2_shrinkage)
    }

    fn make_slots(&self, _: &Graph, variables: &[Variable], slots: &mut Slots) {
        let name = |own: &Option<String>| own.as_ref().unwrap_or(&self.settings.name).clone();
        let (accum, linear) = (name(&self.names.0), name(&self.names.1));
        for variable in variables {
            slots.make_named("accum", variable, Init::filled(self.initial), &accum);
            slots.make_named("linear", variable, Init::zeros(), &linear);
        }
    }
}
