//! Optimizers that take a step and then pull weights towards zero: gradient descent and Adagrad
//! with penalties, and Adagrad with dual averaging.

use super::settings::{Settings, fused, settings};
use super::update::Given;
use super::{Optimizer, Rate, Slots, Update, positive};
use downpour_build::{DType, Graph, IndexedSlices, Init, Operation, Output, Result, Variable};

/// Gradient descent with penalties.
///
/// ```
/// use downpour::train::{Minimize, ProximalGradientDescent};
/// use downpour::{Graph, Init, Server, ServerConfig, Session};
/// # let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let w = g.variable("w").init(Init::value([1.0f32, 0.125])).build();
/// // The gradient is 1 and 0.
/// let loss = (&*w * g.constant([1.0f32, 0.0])).sum(());
/// let train = ProximalGradientDescent::new(0.5).l1(0.5).minimize(&loss, None)?;
/// let session = Session::new(&server, &g)?;
/// session.run(&g.initialize_variables())?;
/// session.run(&train)?;
/// // The step, and then 0.5 · 0.5 towards zero.
/// assert_eq!(session.fetch(&w)?.as_slice::<f32>()?, [0.25, 0.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ProximalGradientDescent {
    settings: Settings,
    rate: Rate,
    l1: Rate,
    l2: Rate,
}

/// Adagrad with penalties.
///
/// ```
/// use downpour::train::{Minimize, ProximalAdagrad};
/// use downpour::{Graph, Init, Server, ServerConfig, Session};
/// # let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let w = g.variable("w").init(Init::value([2.0f32, 1.0])).build();
/// let loss = w.sum(()) * 3.0;
/// let optimizer = ProximalAdagrad::new(1.0).initial_accumulator(7.0).l1(1.0);
/// let train = optimizer.minimize(&loss, None)?;
/// let session = Session::new(&server, &g)?;
/// session.run(&g.initialize_variables())?;
/// session.run(&train)?;
/// // The rate is 1 / √(7 + 3²): a step of 3 / 4, and then 1 / 4 towards zero.
/// assert_eq!(session.fetch(&w)?.as_slice::<f32>()?, [1.0, 0.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ProximalAdagrad {
    settings: Settings,
    rate: Rate,
    l1: Rate,
    l2: Rate,
    initial: f64,
}

/// Adagrad with dual averaging: weights follow from the sums of all gradients, so that a penalty
/// on absolute values leaves many exactly zero.
///
/// ```
/// use downpour::train::{AdagradDa, Minimize, global_step};
/// use downpour::{Graph, Init, Server, ServerConfig, Session};
/// # let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let w = g.variable("w").init(Init::value([1.0f32, 1.0])).build();
/// // The gradient is 3 and 0.5.
/// let loss = (&*w * g.constant([3.0f32, 0.5])).sum(());
/// let step = global_step(&g);
/// let optimizer = AdagradDa::new(1.0, &step).initial_accumulator(7.0).l1(1.0);
/// let train = optimizer.minimize(&loss, Some(&step))?;
/// let session = Session::new(&server, &g)?;
/// session.run(&g.initialize_variables())?;
/// session.run(&train)?;
/// // (1 - 3) / √(7 + 3²), whatever it was before; and 0.5 is below the penalty.
/// assert_eq!(session.fetch(&w)?.as_slice::<f32>()?, [-0.5, 0.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct AdagradDa {
    settings: Settings,
    rate: Rate,
    l1: Rate,
    l2: Rate,
    initial: f64,
    step: Output,
}

settings!(ProximalGradientDescent);
settings!(ProximalAdagrad);
settings!(AdagradDa);

macro_rules! penalties {
    ($($optimizer:ty)*) => {$(
        impl $optimizer {
            /// Penalty on absolute values.
            pub fn l1(mut self, strength: impl Into<Rate>) -> Self {
                self.l1 = strength.into();
                self
            }

            /// Penalty on squares.
            pub fn l2(mut self, strength: impl Into<Rate>) -> Self {
                self.l2 = strength.into();
                self
            }
        }
    )*};
}
penalties!(ProximalGradientDescent ProximalAdagrad AdagradDa);

impl ProximalGradientDescent {
    /// With this learning rate and no penalties.
    pub fn new(rate: impl Into<Rate>) -> ProximalGradientDescent {
        ProximalGradientDescent {
            settings: Settings::new("ProximalGradientDescent"),
            rate: rate.into(),
            l1: 0.0.into(),
            l2: 0.0.into(),
        }
    }

    fn apply(&self, update: &Update<'_>, given: Given<'_>) -> Operation {
        let w = update.variable;
        let op = update.op("ProximalGradientDescent", given, &[]);
        let op = op
            .input(&self.rate.for_variable(w))
            .input(&self.l1.for_variable(w))
            .input(&self.l2.for_variable(w));
        given
            .to(op)
            .attr("use_locking", self.settings.locking)
            .build()
    }
}

impl Optimizer for ProximalGradientDescent {
    fused!();

    fn make_slots(&self, _: &Graph, _: &[Variable], _: &mut Slots) {}
}

impl ProximalAdagrad {
    /// With this learning rate and no penalties; sums of squares begin with 0.1.
    pub fn new(rate: impl Into<Rate>) -> ProximalAdagrad {
        ProximalAdagrad {
            settings: Settings::new("ProximalAdagrad"),
            rate: rate.into(),
            l1: 0.0.into(),
            l2: 0.0.into(),
            initial: 0.1,
        }
    }

    /// What sums of squares begin with.
    pub fn initial_accumulator(mut self, value: f64) -> ProximalAdagrad {
        self.initial = value;
        self
    }

    fn apply(&self, update: &Update<'_>, given: Given<'_>) -> Operation {
        let w = update.variable;
        let op = update.op("ProximalAdagrad", given, &["accumulator"]);
        let op = op
            .input(&self.rate.for_variable(w))
            .input(&self.l1.for_variable(w))
            .input(&self.l2.for_variable(w));
        given
            .to(op)
            .attr("use_locking", self.settings.locking)
            .build()
    }
}

impl Optimizer for ProximalAdagrad {
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

impl AdagradDa {
    /// With this learning rate and no penalties; sums of squares begin with 0.1. The penalties
    /// grow with the count of steps.
    pub fn new(rate: impl Into<Rate>, global_step: &Variable) -> AdagradDa {
        AdagradDa {
            settings: Settings::new("AdagradDA"),
            rate: rate.into(),
            l1: 0.0.into(),
            l2: 0.0.into(),
            initial: 0.1,
            step: global_step.value().clone(),
        }
    }

    /// What sums of squares begin with.
    pub fn initial_accumulator(mut self, value: f64) -> AdagradDa {
        self.initial = value;
        self
    }

    fn apply(&self, update: &Update<'_>, given: Given<'_>) -> Operation {
        let w = update.variable;
        let slots = ["gradient_accumulator", "gradient_squared_accumulator"];
        let op = update.op("AdagradDA", given, &slots);
        given
            .to(op)
            .input(&self.rate.for_variable(w))
            .input(&self.l1.for_variable(w))
            .input(&self.l2.for_variable(w))
            .input(&(self.step.cast(DType::Int64) + 1))
            .attr("use_locking", self.settings.locking)
            .build()
    }
}

impl Optimizer for AdagradDa {
    fused!();

    fn check(&self) -> Result<()> {
        positive("initial_accumulator", self.initial)
    }

    fn make_slots(&self, _: &Graph, variables: &[Variable], slots: &mut Slots) {
        for variable in variables {
            slots.make("gradient_accumulator", variable, Init::zeros());
            let squares = Init::filled(self.initial);
            slots.make("gradient_squared_accumulator", variable, squares);
        }
    }
}
