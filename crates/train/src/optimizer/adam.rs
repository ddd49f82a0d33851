//! Adam.

use super::settings::{Settings, fused, settings};
use super::update::Given;
use super::{Optimizer, Rate, Slots, Update};
use downpour_build::{Graph, IndexedSlices, Init, Operation, Output, Variable};

/// Steps scaled by running means of the gradient and of its square.
///
/// ```
/// use downpour::train::{Adam, Minimize};
/// use downpour::{Graph, Init, Server, ServerConfig, Session};
/// # let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let w = g.variable("w").init(Init::value([1.0f32, 1.0])).build();
/// // The gradient is 100 and -0.01.
/// let loss = (&*w * g.constant([100.0f32, -0.01])).sum(());
/// let train = Adam::new(0.25).minimize(&loss, None)?;
/// let session = Session::new(&server, &g)?;
/// session.run(&g.initialize_variables())?;
/// session.run(&train)?;
/// // The first step is as long as the rate, however large the gradient is.
/// let w = session.fetch(&w)?;
/// let w = w.as_slice::<f32>()?;
/// assert!((w[0] - 0.75).abs() < 1e-4 && (w[1] - 1.25).abs() < 1e-4, "{w:?}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Adam {
    settings: Settings,
    rate: Rate,
    beta1: f64,
    beta2: f64,
    epsilon: f64,
}

settings!(Adam);

impl Adam {
    /// With this learning rate and TensorFlow's other numbers: 0.9, 0.999, 1e-8.
    pub fn new(rate: impl Into<Rate>) -> Adam {
        Adam {
            settings: Settings::new("Adam"),
            rate: rate.into(),
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
        }
    }

    /// How slowly the means of gradients and squares change.
    pub fn betas(mut self, beta1: f64, beta2: f64) -> Adam {
        (self.beta1, self.beta2) = (beta1, beta2);
        self
    }

    /// What keeps the divisor from zero.
    pub fn epsilon(mut self, epsilon: f64) -> Adam {
        self.epsilon = epsilon;
        self
    }

    fn apply(&self, update: &Update<'_>, given: Given<'_>) -> Operation {
        let (w, slots) = (update.variable, update.slots);
        let power = |name: &str| slots.shared(name).value().cast(w.dtype());
        let (power1, power2) = (power("beta1_power"), power("beta2_power"));
        match given {
            Given::Dense(gradient) => {
                let op = update.op("Adam", given, &["m", "v"]);
                op.input(&power1)
                    .input(&power2)
                    .input(&self.rate.for_variable(w))
                    .input(&update.number(self.beta1))
                    .input(&update.number(self.beta2))
                    .input(&update.number(self.epsilon))
                    .input(gradient)
                    .attr("use_locking", self.settings.locking)
                    .build()
            }
            Given::Sparse(slices) => self.rows(update, slices, (power1, power2)),
        }
    }

    /// There is no fused operation for rows. Every row's means decay, also where there is no
    /// gradient, and so every row moves.
    fn rows(
        &self,
        update: &Update<'_>,
        slices: &IndexedSlices,
        (power1, power2): (Output, Output),
    ) -> Operation {
        let w = update.variable;
        let g = w.handle().graph();
        let rate = self.rate.for_variable(w) * (1.0 - power2).sqrt() / (1.0 - power1);
        let grown = |slot: &str, beta: f64, part: &Output| {
            let (slot, beta) = (update.slot(slot), update.number(beta));
            let part = part * (1.0 - &beta);
            let decayed = slot.assign(&(slot.value() * &beta));
            let op = g.op("ResourceScatterAdd").input(slot.handle());
            let op = op.input(&slices.indices).input(&part).control(&decayed);
            let added = op.attr("dtype", slot.dtype()).build();
            g.with_control(&[added], || slot.read())
        };
        let m = grown("m", self.beta1, &slices.values);
        let v = grown("v", self.beta2, &(&slices.values * &slices.values));
        w.assign_sub(&(rate * m / (v.sqrt() + update.number(self.epsilon))))
    }
}

impl Optimizer for Adam {
    fused!();

    fn make_slots(&self, _: &Graph, variables: &[Variable], slots: &mut Slots) {
        // TensorFlow keeps the powers beside the variable whose name, with its output's number,
        // comes first.
        if let Some(first) = variables.iter().min_by_key(|v| format!("{}:0", v.name())) {
            slots.make_shared("beta1_power", first, Init::filled(self.beta1));
            slots.make_shared("beta2_power", first, Init::filled(self.beta2));
        }
        for variable in variables {
            slots.make("m", variable, Init::zeros());
            slots.make("v", variable, Init::zeros());
        }
    }

    fn finish(&self, graph: &Graph, slots: &Slots, updates: &[Operation]) -> Vec<Operation> {
        graph.with_control(updates, || {
            let powers = [("beta1_power", self.beta1), ("beta2_power", self.beta2)];
            powers
                .map(|(name, beta)| {
                    let power = slots.shared(name);
                    graph.with_colocation(&power.handle().operation(), || {
                        power.assign(&(power.read() * beta))
                    })
                })
                .into()
        })
    }
}
