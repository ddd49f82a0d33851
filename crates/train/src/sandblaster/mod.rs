//! Sandblaster: batch methods on a cluster, after "Large Scale Distributed Deep Networks" (2012),
//! section 4.2. A coordinator minimizes an objective of millions of parameters by L-BFGS or conjugate
//! gradients without ever holding a vector of them: it sends small commands to the parameter servers,
//! which keep the parameters, the gradient and the history and work on them in place. Replicas of the
//! model compute the gradient of the whole batch in small portions, handed out as they become idle,
//! the last ones twice, each counted exactly once.
//!
//! The pure parts know no cluster: `machine` (what comes next), `search` (line search),
//! `direction` (two-loop recursion on coefficients), `portions` (who computes what). `vectors`
//! and `exchange` are graphs; `coordinator` and `replica` run them.

mod coordinator;
mod direction;
mod exchange;
mod machine;
mod order;
mod portions;
mod replica;
mod search;
mod vectors;

pub use coordinator::Coordinator;
pub use direction::Method;
pub use machine::End;
pub use replica::{Replica, Worked};

use crate::GradientDescent;
use crate::optimizer::Minimize;
use crate::ready::Ready;
use downpour_build::{Graph, Output, Result, Status, Variable};
use downpour_client::SessionOptions;
use exchange::Exchange;
use machine::{Limits, Machine, Settings};
use portions::Rules;
use search::Wolfe;
use std::collections::HashMap;
use std::time::Duration;
use vectors::Vectors;

/// How long coordinators and replicas wait for others unless told otherwise.
const PATIENCE: Duration = Duration::from_secs(600);

/// Most portions: each costs the coordinator a message.
const MAX_PORTIONS: usize = 1_000_000;
/// Longest history: each pair costs two vectors of the model's size.
const MAX_HISTORY: usize = 1_000;

/// A minimization about to be built.
///
/// The objective is the sum of a loss over all portions of the batch. `x² + y²`-like functions need
/// no data; here each of four portions adds the distance to a point of its own, so that the minimum
/// is at the points' mean:
///
/// ```
/// use downpour::train::sandblaster::Sandblaster;
/// use downpour::{DType, Graph, Init, LocalCluster};
/// let cluster = LocalCluster::start(1, 2)?;
/// let g = Graph::new();
/// let x = g.with_device("/job:ps/task:0", || {
///     g.variable("x").init(Init::value([9.0f64, -9.0])).build()
/// });
/// let (point, plan) = g.with_device("/job:worker/task:1", || {
///     let point = g.placeholder("point", DType::Double, [2]);
///     let loss = (&*x - &point).square().sum(());
///     (point, Sandblaster::new(4).build(&loss))
/// });
/// let plan = plan?;
/// let points = [[0.0f64, 0.0], [2.0, 0.0], [0.0, 4.0], [2.0, 4.0]];
/// let outcome = std::thread::scope(|scope| {
///     // In a real cluster this is a process of its own, and there are many.
///     scope.spawn(|| {
///         let replica = plan.replica(0);
///         replica.work(&cluster.workers()[1], |portion, run| {
///             run.feed(&point, points[portion]);
///             Ok(())
///         })
///     });
///     let mut mean = Vec::new();
///     let coordinator = plan.coordinator().observe(|_, session| {
///         mean = session.fetch(&x)?.as_slice::<f64>().map(<[f64]>::to_vec).unwrap_or_default();
///         Ok(())
///     });
///     let outcome = coordinator.run(&cluster.workers()[0])?;
///     assert!((mean[0] - 1.0).abs() < 1e-4 && (mean[1] - 2.0).abs() < 1e-4, "{mean:?}");
///     Ok::<_, downpour::Status>(outcome)
/// })?;
/// assert!((outcome.progress.value - 20.0).abs() < 1e-6);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Sandblaster {
    portions: usize,
    method: Method,
    decrease: f64,
    curvature: Option<f64>,
    trials: u32,
    limits: Limits,
    l2: f64,
    rules: Rules,
}

impl Sandblaster {
    /// Of a batch in so many portions: several times as many as there are replicas, so that all are
    /// busy to the end. Each is a push of the whole gradient.
    pub fn new(portions: usize) -> Sandblaster {
        Sandblaster {
            portions,
            method: Method::LBfgs(10),
            decrease: 1e-3,
            curvature: None,
            trials: 20,
            limits: Limits {
                iterations: 100,
                gradient: 1e-5,
                decrease: 1e7 * f64::EPSILON,
            },
            l2: 0.0,
            rules: Rules {
                copies: 2,
                lease: Duration::from_secs(10),
            },
        }
    }

    /// The method: L-BFGS with a history of ten pairs unless told otherwise.
    pub fn method(mut self, method: Method) -> Sandblaster {
        self.method = method;
        self
    }

    /// Most iterations: 100 unless told otherwise.
    pub fn iterations(mut self, iterations: u64) -> Sandblaster {
        self.limits.iterations = iterations;
        self
    }

    /// Ends when no element of the gradient is larger: 1e-5 unless told otherwise.
    pub fn small_gradient(mut self, largest: f64) -> Sandblaster {
        self.limits.gradient = largest;
        self
    }

    /// Ends when an iteration lowers the objective by no larger part of it: 2.2e-9 unless told
    /// otherwise.
    pub fn small_decrease(mut self, part: f64) -> Sandblaster {
        self.limits.decrease = part;
        self
    }

    /// The strong Wolfe conditions of the line search: sufficient decrease (1e-3) and curvature (0.9
    /// for L-BFGS, 0.1 for conjugate gradients).
    pub fn wolfe(mut self, decrease: f64, curvature: f64) -> Sandblaster {
        self.decrease = decrease;
        self.curvature = Some(curvature);
        self
    }

    /// Adds `factor / 2` times the square of all parameters to the objective. The parameter servers
    /// do it by themselves, once and not once for each portion.
    pub fn l2(mut self, factor: f64) -> Sandblaster {
        self.l2 = factor;
        self
    }

    /// How often the last portions are handed out, of which the first result counts: 2 unless told
    /// otherwise, 1 for never twice.
    pub fn copies(mut self, copies: u32) -> Sandblaster {
        self.rules.copies = copies.max(1);
        self
    }

    /// How long a replica may keep a portion before others get it, however many have tried: ten
    /// seconds unless told otherwise.
    pub fn lease(mut self, lease: Duration) -> Sandblaster {
        self.rules.lease = lease;
        self
    }

    /// Adds everything to the loss's graph: for all trainable variables that it depends on, on their
    /// devices. `loss` is one portion's part of the objective: a sum over its examples, or that over
    /// the number of all examples, but not their mean.
    ///
    /// Coordinator and replicas build the same, each in its own process.
    pub fn build(&self, loss: &Output) -> Result<Plan> {
        self.check()?;
        let graph = loss.graph().clone();
        let found = GradientDescent::new(1.0).compute_gradients(loss)?;
        let parameters: Vec<Variable> = found.iter().map(|(_, v)| v.clone()).collect();
        let refused = parameters.iter().find(|v| !v.dtype().is_floating());
        if let Some(v) = refused {
            let text = format!(
                "'{}' is {}: no direction leads there",
                v.name(),
                v.dtype().name()
            );
            return Err(Status::invalid_argument(text));
        }
        let settings = Settings {
            method: self.method,
            wolfe: Wolfe {
                decrease: self.decrease,
                curvature: self.curvature.unwrap_or(match self.method {
                    Method::LBfgs(_) => 0.9,
                    Method::ConjugateGradient => 0.1,
                }),
                width: 0.1,
                trials: self.trials,
            },
            limits: self.limits,
        };
        let (history, numbers) = (self.method.history(), Machine::count(self.method));
        let dense: HashMap<String, Output> = found
            .iter()
            .map(|(gradient, v)| (v.name().to_owned(), gradient.to_dense()))
            .collect();
        let (vectors, exchange) = graph.without_control(|| {
            let vectors = Vectors::new(&graph, &parameters, history, numbers, self.l2);
            let of = |v: &Variable| dense.get(v.name()).cloned();
            let gradients: Vec<Vec<Output>> = vectors
                .shards
                .iter()
                .map(|shard| shard.parameters().filter_map(of).collect())
                .collect();
            let shards = &vectors.shards;
            let exchange = Exchange::new(&graph, shards, self.portions, loss, &gradients);
            (vectors, exchange)
        });
        // Whether the model is ready is asked of the servers, not of whoever builds this.
        order::beside(vectors.shards[0].home(), || crate::global_step(&graph));
        let ready = Ready::new(&graph);
        graph.check()?;
        Ok(Plan {
            graph,
            settings,
            rules: self.rules,
            portions: self.portions,
            vectors,
            exchange,
            ready,
        })
    }

    fn check(&self) -> Result<()> {
        let wolfe = (self.decrease, self.curvature.unwrap_or(0.9));
        let wrong = if self.portions == 0 || self.portions > MAX_PORTIONS {
            format!("{} portions; 1 to {MAX_PORTIONS} make sense", self.portions)
        } else if self.method.history() > MAX_HISTORY {
            format!("a history of {} pairs is too long", self.method.history())
        } else if !(wolfe.0 > 0.0 && wolfe.0 < wolfe.1 && wolfe.1 < 1.0) {
            let (decrease, curvature) = wolfe;
            format!("Wolfe's conditions need 0 < {decrease} < {curvature} < 1")
        } else if !(self.l2 >= 0.0 && self.l2.is_finite()) {
            format!("a penalty of {} has no minimum", self.l2)
        } else {
            return Ok(());
        };
        Err(Status::invalid_argument(wrong))
    }
}

/// A minimization as part of a graph.
///
/// [`Sandblaster::build`] makes it.
pub struct Plan {
    graph: Graph,
    settings: Settings,
    rules: Rules,
    portions: usize,
    vectors: Vectors,
    exchange: Exchange,
    ready: Ready,
}

impl Plan {
    /// The graph.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Number of portions.
    pub fn portions(&self) -> usize {
        self.portions
    }

    /// The coordinator: one for the whole cluster.
    pub fn coordinator(&self) -> Coordinator<'_> {
        Coordinator::new(self)
    }

    /// A replica with a number of its own.
    pub fn replica(&self, index: usize) -> Replica<'_> {
        Replica {
            plan: self,
            index: index as i64,
            options: SessionOptions::new(),
            patience: PATIENCE,
        }
    }

    /// The gradient at the last point that was tried, by parameter: for who wants to look at it.
    pub fn gradients(&self) -> Vec<(Variable, Variable)> {
        let of = |shard: &vectors::Shard| -> Vec<(Variable, Variable)> {
            shard.parameters().cloned().zip(shard.gradients()).collect()
        };
        self.vectors.shards.iter().flat_map(of).collect()
    }
}

/// How far a minimization is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Steps taken.
    pub iteration: u64,
    /// How often the objective and its gradient were computed.
    pub evaluations: u64,
    /// The objective.
    pub value: f64,
    /// The gradient's largest element.
    pub largest: f64,
    /// Portions that were handed out by this coordinator, copies included.
    pub handed: u64,
    /// Gradients of portions that this coordinator has let the shards add: each portion once for each
    /// shard and evaluation, however often it was handed out.
    pub added: u64,
    /// Replicas that have brought some in the last evaluation or before.
    pub replicas: usize,
}

/// How a minimization ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Why.
    pub end: End,
    /// Where.
    pub progress: Progress,
    /// How often the coordinator lost its session.
    pub losses: u64,
}

fn not_ready(patience: Duration, why: &str) -> Status {
    Status::deadline_exceeded(format!("the model was not ready after {patience:?}: {why}"))
}
