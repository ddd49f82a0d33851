//! Adagrad.

use super::settings::{Settings, fused, settings};
use super::update::Given;
use super::{Optimizer, Rate, Slots, Update, positive};
use downpour_build::{Graph, IndexedSlices, Init, Operation, Output, Result, Variable};

/// Steps scaled by the root of all squares so far: `a += gradient²; w -= rate · gradient / √a`.
///
/// ```
/// use downpour::train::{Adagrad, Minimize};
/// use downpour::{Graph, Init, Server, ServerConfig, Session};
/// # let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let w = g.variable("w").init(Init::value(1.0f32)).build();
/// let loss = &*w * 3.0;
/// let train = Adagrad::new(1.0).initial_accumulator(7.0).minimize(&loss, None)?;
/// let session = Session::new(&server, &g)?;
/// session.run(&g.initialize_variables())?;
/// session.run(&train)?;
/// // 1 - 3 / √(7 + 3²)
/// assert_eq!(session.fetch(&w)?.scalar_value::<f32>()?, 0.25);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
