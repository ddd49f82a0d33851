//! Downpour SGD: replicas of a model that train without waiting for each other ("Large Scale
//! Distributed Deep Networks", Dean and others, NIPS 2012, section 4.1), with a bound on staleness
//! where one is wanted.
//!
//! A replica computes with a copy of the parameters that it keeps in its own memory. Three things happen at
//! the same time, each in steps of its own: it fetches the parameters every `n_fetch` steps, computes
//! gradients on its own task, and pushes what it accrued every `n_push` steps to the parameter servers,
//! which apply it with any optimizer. The copy is fed to the model as the value of its variables, so
//! a model is built as for any other training, and a step of computing touches no other task.
//! (A table whose gradient is sparse is read where it is: its rows are fetched as they are needed.)

mod background_queue;
mod batches;
mod gradient_buffer;
mod parts;
mod replica;
mod waiting;

pub use batches::ShardBatches;
pub use replica::{Replica, Taken};

use crate::hooks::Hook;
use crate::optimizer::{Minimize, Optimizer};
use crate::staleness::table::Member;
use crate::staleness::{Bound, ReplicaStaleness, View};
use downpour_build::{Graph, Output, Result, Status, Variable};
use downpour_client::Session;
use parking_lot::Mutex;
use parts::Parts;
use std::sync::Arc;
use std::time::Duration;

/// Settings of Downpour SGD.
///
/// ```
/// use downpour::train::hooks::StopAtStep;
/// use downpour::train::staleness::Bound;
/// use downpour::train::{Adagrad, DownpourSgd, Supervision, global_step};
/// use downpour::{DType, Graph, Init, Result, Server, ServerConfig, Tensor};
/// let server = Server::start(ServerConfig::local())?;
/// let train = |number: usize| -> Result<f32> {
///     let g = Graph::new();
///     let x = g.placeholder("x", DType::Float, [None]);
///     let w = g.variable("w").init(Init::value(0.0f32)).build();
///     // The slope of y = 3x.
///     let loss = (&*w * &x - &x * 3.0).square().mean(());
///     let settings = DownpourSgd::new(2, number).fetch_every(2).push_every(2);
///     let settings = settings.bound(Bound::Steps(8)).warm_start(10);
///     let training = settings.minimize(&Adagrad::new(0.5), &loss, &global_step(&g))?;
///     let mut replica = training.replica();
///     let mut session = Supervision::new(&server, &g)
///         .chief(number == 0)
///         .hook(training.hook())
///         .hook(StopAtStep::new(100))
///         .open()?;
///     while !session.should_stop() {
///         replica.step(&mut session, &[(&x, Tensor::vector(vec![1.0f32, 2.0]))])?;
///     }
///     let w = session.raw()?.fetch(&w)?.scalar_value::<f32>().unwrap_or_default();
///     session.close()?;
///     Ok(w)
/// };
/// let slopes = std::thread::scope(|scope| {
///     let replicas = [0, 1].map(|n| scope.spawn(move || train(n)));
///     replicas.map(|r| r.join().unwrap())
/// });
/// for slope in slopes {
///     assert!((slope? - 3.0).abs() < 0.1);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct DownpourSgd {
    replicas: usize,
    replica: usize,
    n_fetch: u64,
    n_push: u64,
    overlap: bool,
    local_rate: Option<f64>,
    bound: Bound,
    warm_start: u64,
    lease: Duration,
}

impl DownpourSgd {
    /// Training by up to `replicas` replicas, of which this is number `replica`; each fetches and
    /// pushes at every step. Not all need to be there.
    pub fn new(replicas: usize, replica: usize) -> DownpourSgd {
        DownpourSgd {
            replicas: replicas.max(1),
            replica,
            n_fetch: 1,
            n_push: 1,
            overlap: true,
            local_rate: None,
            bound: Bound::Unlimited,
            warm_start: 0,
            lease: Duration::from_secs(10),
        }
    }

    /// Fetches the parameters only every so many steps.
    pub fn fetch_every(mut self, steps: u64) -> DownpourSgd {
        self.n_fetch = steps.max(1);
        self
    }

    /// Pushes the sum of so many steps' gradients.
    pub fn push_every(mut self, steps: u64) -> DownpourSgd {
        self.n_push = steps.max(1);
        self
    }

    /// Lets a replica wait for its fetches and pushes instead of computing meanwhile.
    pub fn in_turn(mut self) -> DownpourSgd {
        self.overlap = false;
        self
    }

    /// Descends on the replica's own copy too, with this rate, until the next fetch replaces it.
    pub fn local_rate(mut self, rate: f64) -> DownpourSgd {
        self.local_rate = Some(rate);
        self
    }

    /// How far a replica may be ahead of the slowest one.
    pub fn bound(mut self, bound: Bound) -> DownpourSgd {
        self.bound = bound;
        self
    }

    /// Lets the first replica that is there make so many updates before the others begin.
    pub fn warm_start(mut self, updates: u64) -> DownpourSgd {
        self.warm_start = updates;
        self
    }

    /// After how long a silent replica is no longer waited for; 10 s if not given.
    pub fn lease(mut self, lease: Duration) -> DownpourSgd {
        self.lease = lease;
        self
    }

    /// Builds what a replica does to make a loss smaller.
    pub fn minimize<O: Optimizer>(
        &self,
        optimizer: &O,
        loss: &Output,
        global_step: &Variable,
    ) -> Result<DownpourTraining> {
        if self.replica >= self.replicas {
            return Err(Status::invalid_argument(format!(
                "replica {} of {}",
                self.replica, self.replicas
            )));
        }
        let pairs = optimizer.compute_gradients(loss)?;
        let parts = Parts::build(self, optimizer, loss, &pairs, global_step)?;
        Ok(DownpourTraining {
            settings: self.clone(),
            graph: loss.graph().clone(),
            parts: Arc::new(parts),
            here: Arc::default(),
        })
    }
}

/// Downpour SGD of one replica.
///
/// [`DownpourSgd::minimize`] makes it.
///
/// ```
/// use downpour::train::hooks::StopAtStep;
/// use downpour::train::{DownpourSgd, DownpourTraining, GradientDescent, Supervision, global_step};
/// use downpour::{Graph, Init, Server, ServerConfig};
/// let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let w = g.variable("w").init(Init::value(8.0f32)).build();
/// let settings = DownpourSgd::new(1, 0).in_turn();
/// let training: DownpourTraining =
///     settings.minimize(&GradientDescent::new(0.25), &w.square(), &global_step(&g))?;
/// let mut session = Supervision::new(&server, &g).hook(training.hook()).open()?;
/// let mut replica = training.replica();
/// let mut losses = Vec::new();
/// for _ in 0..3 {
///     losses.push(replica.step(&mut session, &[])?.loss);
/// }
/// // Each step halves it.
/// assert_eq!(losses, [64.0, 16.0, 4.0]);
/// let raw = session.raw()?;
/// assert_eq!(training.view(&raw)?.clocks, [Some(3)]);
/// assert_eq!(training.staleness(&raw)?[0].classes[0], 3);
/// session.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct DownpourTraining {
    settings: DownpourSgd,
    graph: Graph,
    parts: Arc<Parts>,
    here: Here,
}

/// Where a replica's present life is known to its hook.
type Here = Arc<Mutex<Option<Member>>>;

impl DownpourTraining {
    /// What computes, fetches and pushes.
    pub fn replica(&self) -> Replica {
        Replica::new(&self.settings, &self.parts, &self.here)
    }

    /// The graph.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// What says to the others that this replica leaves, when training ends well. Without it they
    /// wait for its lease to end, where they wait for anybody.
    pub fn hook(&self) -> DownpourHook {
        DownpourHook {
            parts: self.parts.clone(),
            here: self.here.clone(),
        }
    }

    /// The model's version, and how far each replica is.
    pub fn view(&self, session: &Session) -> Result<View> {
        self.parts.table.look(session)
    }

    /// How stale each replica's updates were.
    pub fn staleness(&self, session: &Session) -> Result<Vec<ReplicaStaleness>> {
        self.parts.table.staleness(session)
    }
}

/// Says that a replica leaves.
///
/// [`DownpourTraining::hook`] makes it.
pub struct DownpourHook {
    parts: Arc<Parts>,
    here: Here,
}

impl Hook for DownpourHook {
    fn end(&mut self, session: &Arc<Session>) -> Result<()> {
        match self.here.lock().take() {
            Some(member) => self.parts.table.remove(session, member, None),
            None => Ok(()),
        }
    }
}
