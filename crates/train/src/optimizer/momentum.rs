//! Gradient descent with momentum.

use super::settings::{Settings, fused, settings};
use super::update::Given;
use super::{Optimizer, Rate, Slots, Update};
use downpour_build::{Graph, IndexedSlices, Init, Operation, Output, Variable};

/// `a = momentum · a + gradient; w -= rate · a`, or Nesterov's form of it.
///
/// ```
/// use downpour::train::{Minimize, Momentum};
/// use downpour::{Graph, Init, Server, ServerConfig, Session};
/// # let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let w = g.variable("w").init(Init::value(4.0f32)).build();
/// let train = Momentum::new(0.5, 0.5).minimize(&(&*w * 2.0), None)?;
/// let session = Session::new(&server, &g)?;
/// session.run(&g.initialize_variables())?;
/// session.run(&train)?;
/// assert_eq!(session.fetch(&w)?.scalar_value::<f32>()?, 3.0);
/// // Half of the last step is repeated: 3 - 0.5 · (0.5 · 2 + 2)
/// session.run(&train)?;
/// assert_eq!(session.fetch(&w)?.scalar_value::<f32>()?, 1.5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Momentum {
    settings: Settings,
    rate: Rate,
    momentum: Rate,
    nesterov: bool,
}

settings!(Momentum);

impl Momentum {
    /// With this learning rate and momentum.
    pub fn new(rate: impl Into<Rate>, momentum: impl Into<Rate>) -> Momentum {
        Momentum {
            settings: Settings::new("Momentum"),
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

    fn apply(&self, update: &Update<'_>, given: Given<'_>) -> Operation {
        let w = update.variable;
        let op = update.op("Momentum", given, &["momentum"]);
        given
            .to(op.input(&self.rate.for_variable(w)))
            .input(&self.momentum.for_variable(w))
            .attr("use_nesterov", self.nesterov)
            .attr("use_locking", self.settings.locking)
            .build()
    }
}

impl Optimizer for Momentum {
    fused!();

    fn make_slots(&self, _: &Graph, variables: &[Variable], slots: &mut Slots) {
        for variable in variables {
            slots.make("momentum", variable, Init::zeros());
        }
    }
}
