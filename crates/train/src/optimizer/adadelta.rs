//! Adadelta.

use super::settings::{Settings, fused, settings};
use super::update::Given;
use super::{Optimizer, Rate, Slots, Update};
use downpour_build::{Graph, IndexedSlices, Init, Operation, Output, Variable};

/// Steps in the proportion of running means of past steps and gradients.
///
/// ```
/// use downpour::train::{Adadelta, Minimize};
/// use downpour::{Graph, Init, Server, ServerConfig, Session};
/// # let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let w = g.variable("w").init(Init::value(4.0f32)).build();
/// let optimizer = Adadelta::new(1.0).rho(0.25).epsilon(1.0);
/// let train = optimizer.minimize(&(&*w * 2.0), None)?;
/// let session = Session::new(&server, &g)?;
/// session.run(&g.initialize_variables())?;
/// session.run(&train)?;
/// // 4 - 2 · √(0 + 1) / √(0.75 · 2² + 1)
/// assert_eq!(session.fetch(&w)?.scalar_value::<f32>()?, 3.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Adadelta {
    settings: Settings,
    rate: Rate,
    rho: Rate,
    epsilon: Rate,
}

settings!(Adadelta);

impl Adadelta {
    /// With this learning rate and TensorFlow's other numbers: 0.95 and 1e-8.
    pub fn new(rate: impl Into<Rate>) -> Adadelta {
        Adadelta {
            settings: Settings::new("Adadelta"),
            rate: rate.into(),
            rho: 0.95.into(),
            epsilon: 1e-8.into(),
        }
    }

    /// How slowly the means change.
    pub fn rho(mut self, rho: impl Into<Rate>) -> Adadelta {
        self.rho = rho.into();
        self
    }

    /// What keeps divisors from zero, and begins the first steps.
    pub fn epsilon(mut self, epsilon: impl Into<Rate>) -> Adadelta {
        self.epsilon = epsilon.into();
        self
    }

    fn apply(&self, update: &Update<'_>, given: Given<'_>) -> Operation {
        let w = update.variable;
        let op = update.op("Adadelta", given, &["accum", "accum_update"]);
        let op = op
            .input(&self.rate.for_variable(w))
            .input(&self.rho.for_variable(w))
            .input(&self.epsilon.for_variable(w));
        given
            .to(op)
            .attr("use_locking", self.settings.locking)
            .build()
    }
}

impl Optimizer for Adadelta {
    fused!();

    fn make_slots(&self, _: &Graph, variables: &[Variable], slots: &mut Slots) {
        for variable in variables {
            slots.make("accum", variable, Init::zeros());
            slots.make("accum_update", variable, Init::zeros());
        }
    }
}
