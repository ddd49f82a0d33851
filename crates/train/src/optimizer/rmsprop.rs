//! RMSProp, also centered.

use super::settings::{Settings, fused, settings};
use super::update::Given;
use super::{Optimizer, Rate, Slots, Update};
use downpour_build::{Graph, IndexedSlices, Init, Operation, Output, Variable};

/// Steps divided by the root of a running mean of squares, with momentum.
///
/// ```
/// use downpour::train::{Minimize, RmsProp};
/// use downpour::{Graph, Init, Server, ServerConfig, Session};
/// # let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let w = g.variable("w").init(Init::value(2.0f32)).build();
/// let train = RmsProp::new(1.0).decay(0.5).minimize(&(&*w * 7.0), None)?;
/// let session = Session::new(&server, &g)?;
/// session.run(&g.initialize_variables())?;
/// session.run(&train)?;
/// // The mean of squares begins with 1: 2 - 7 / √(0.5 · 1 + 0.5 · 7²)
/// let w = session.fetch(&w)?.scalar_value::<f32>()?;
/// assert!((w - 0.6).abs() < 1e-6, "{w}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct RmsProp {
    settings: Settings,
    rate: Rate,
    decay: Rate,
    momentum: Rate,
    epsilon: Rate,
    centered: bool,
}

settings!(RmsProp);

impl RmsProp {
    /// With this learning rate and TensorFlow's other numbers: decay 0.9, no momentum, 1e-10.
    pub fn new(rate: impl Into<Rate>) -> RmsProp {
        RmsProp {
            settings: Settings::new("RMSProp"),
            rate: rate.into(),
            decay: 0.9.into(),
            momentum: 0.0.into(),
            epsilon: 1e-10.into(),
            centered: false,
        }
    }

    /// How slowly the mean of squares changes.
    pub fn decay(mut self, decay: impl Into<Rate>) -> RmsProp {
        self.decay = decay.into();
        self
    }

    /// How much of the last step is repeated.
    pub fn momentum(mut self, momentum: impl Into<Rate>) -> RmsProp {
        self.momentum = momentum.into();
        self
    }

    /// What keeps the divisor from zero.
    pub fn epsilon(mut self, epsilon: impl Into<Rate>) -> RmsProp {
        self.epsilon = epsilon.into();
        self
    }

    /// Divides by the deviation instead: the mean gradient is kept too.
    pub fn centered(mut self) -> RmsProp {
        self.centered = true;
        self
    }

    fn apply(&self, update: &Update<'_>, given: Given<'_>) -> Operation {
        let w = update.variable;
        let op = match self.centered {
            true => update.op("CenteredRMSProp", given, &["mg", "rms", "momentum"]),
            false => update.op("RMSProp", given, &["rms", "momentum"]),
        };
        let op = op
            .input(&self.rate.for_variable(w))
            .input(&self.decay.for_variable(w))
            .input(&self.momentum.for_variable(w))
            .input(&self.epsilon.for_variable(w));
        given
            .to(op)
            .attr("use_locking", self.settings.locking)
            .build()
    }
}

impl Optimizer for RmsProp {
    fused!();

    fn make_slots(&self, _: &Graph, variables: &[Variable], slots: &mut Slots) {
        for variable in variables {
            slots.make("rms", variable, Init::ones());
            if self.centered {
                slots.make("mg", variable, Init::zeros());
            }
            slots.make("momentum", variable, Init::zeros());
        }
    }
}
