//! Plain gradient descent.

use super::settings::{Settings, fused, settings};
use super::update::Given;
use super::{Optimizer, Rate, Slots, Update};
use downpour_build::{Graph, IndexedSlices, Operation, Output, Variable};

/// `w -= rate · gradient`.
///
/// ```
/// use downpour::train::{GradientDescent, Minimize};
/// use downpour::{Graph, Init, Server, ServerConfig, Session};
/// # let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let w = g.variable("w").init(Init::value(4.0f32)).build();
/// let train = GradientDescent::new(0.25).minimize(&w.square(), None)?;
/// let session = Session::new(&server, &g)?;
/// session.run(&g.initialize_variables())?;
/// session.run(&train)?;
/// // 4 - 0.25 · 2 · 4
/// assert_eq!(session.fetch(&w)?.scalar_value::<f32>()?, 2.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
