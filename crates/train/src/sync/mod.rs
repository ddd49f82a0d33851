//! Synchronous training: one update from the mean of many workers' gradients.
//!
//! Every worker pushes its gradients into accumulators beside the variables, says so in a queue,
//! and waits for a token of the new step in a queue of its own. The chief counts who has pushed;
//! when enough have, it applies the mean and hands out tokens, all in one step as long as nobody is
//! missing. Gradients of an older step are dropped by the accumulators, so a late worker spoils
//! nothing.
//!
//! Unlike TensorFlow's barrier this one knows its members: workers beat; one that is silent is
//! named in the log and to whoever asks ([`MissingWorkers`]), and when its process is gone or its
//! lease is over, no longer waited for. One whose data ends says that it leaves. The chief tells all
//! when training ends. Nobody waits for ever.
//!
//! The chief is appointed, or elected: then each worker has what it takes to lead, and another goes on
//! where the last one was. What it needs to know lies on the servers, beside the model.

mod chief;
#[cfg(test)]
mod exhaustive_tests;
mod lead;
mod members;
mod missing;
mod parts;
mod wake_chief;
mod watch_workers;

pub use missing::MissingWorkers;

use crate::election::SharedElection;
use crate::heartbeat::Heartbeat;
use watch_workers::HEARTBEAT_EVERY;

use crate::hooks::{Context, Hook, integer};
use crate::optimizer::{Minimize, Optimizer};
use chief::Chief;
use downpour_build::{Gradient, Graph, Operation, Output, Result, Status, Tensor, Variable};
use downpour_client::{Run, Session};
use parts::Parts;
use std::sync::Arc;
use std::time::Duration;

/// The token that ends training.
const END: i64 = -1;

/// Settings of synchronous training.
///
/// ```
/// use downpour::train::hooks::StopAtStep;
/// use downpour::train::{GradientDescent, Supervision, SyncReplicas, global_step};
/// use downpour::{Graph, Init, Result, Server, ServerConfig, Session};
/// let server = Server::start(ServerConfig::local())?;
/// let train = |worker: usize| -> Result<(f32, i64)> {
///     let g = Graph::new();
///     let w = g.variable("w").init(Init::value(8.0f32)).build();
///     let (loss, step) = (&*w * 2.0, global_step(&g));
///     let training = SyncReplicas::new(2, worker).minimize(&GradientDescent::new(0.25), &loss, &step)?;
///     let session = Supervision::new(&server, &g)
///         .chief(worker == 0)
///         .hook(training.hook(worker == 0))
///         .hook(StopAtStep::new(3))
///         .open()?;
///     session.train(|session| session.step().target(training.train()).run())?;
///     let [w, step] = Session::new(&server, &g)?.step().fetch_all([&w, &step])?;
///     Ok((w.scalar_value::<f32>().unwrap(), step.scalar_value::<i64>().unwrap()))
/// };
/// let (w, step) = std::thread::scope(|scope| {
///     let other = scope.spawn(|| train(1));
///     let chief = train(0)?;
///     other.join().unwrap()?;
///     Ok::<_, downpour::Status>(chief)
/// })?;
/// // Two workers' gradients make one step, by their mean.
/// assert_eq!(w, 8.0 - 0.25 * 2.0 * step as f32);
/// assert!(step >= 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct SyncReplicas {
    replicas: usize,
    aggregate: usize,
    worker: usize,
    name: String,
    tasks: Vec<String>,
    patience: Duration,
    lease: Duration,
}

impl SyncReplicas {
    /// Training by `replicas` workers, of which this is number `worker`; all are waited for.
    pub fn new(replicas: usize, worker: usize) -> SyncReplicas {
        SyncReplicas {
            replicas,
            aggregate: replicas,
            worker,
            name: "worker".to_owned(),
            tasks: Vec::new(),
            patience: Duration::from_secs(3),
            lease: Duration::from_secs(30),
        }
    }

    /// Waits for so many fewer: the slowest of each step are left behind.
    pub fn backups(mut self, backups: usize) -> SyncReplicas {
        self.aggregate = self.replicas.saturating_sub(backups);
        self
    }

    /// The job that the workers are called after in reports.
    pub fn job(mut self, name: impl Into<String>) -> SyncReplicas {
        self.name = name.into();
        self
    }

    /// What each worker is called, `/job:J/task:N`, where they are not the tasks of one job.
    pub fn tasks(mut self, names: impl IntoIterator<Item = String>) -> SyncReplicas {
        self.tasks = names.into_iter().collect();
        self
    }

    /// What a worker is called.
    fn task(&self, worker: usize) -> String {
        let name = self.tasks.get(worker).cloned();
        name.unwrap_or_else(|| format!("/job:{}/task:{worker}", self.name))
    }

    /// After how long a worker that is waited for is named.
    pub fn patience(mut self, patience: Duration) -> SyncReplicas {
        self.patience = patience;
        self
    }

    /// After how long a silent worker is no longer waited for.
    pub fn lease(mut self, lease: Duration) -> SyncReplicas {
        self.lease = lease;
        self
    }

    /// Builds the step of this worker, and what the chief does with it.
    pub fn minimize<O: Optimizer>(
        &self,
        optimizer: &O,
        loss: &Output,
        global_step: &Variable,
    ) -> Result<SyncTraining> {
        self.apply_gradients(optimizer, &optimizer.compute_gradients(loss)?, global_step)
    }

    /// As [`Self::minimize`], with gradients that were computed before.
    pub fn apply_gradients<O: Optimizer>(
        &self,
        optimizer: &O,
        pairs: &[(Gradient, Variable)],
        global_step: &Variable,
    ) -> Result<SyncTraining> {
        if self.worker >= self.replicas || self.aggregate == 0 {
            return Err(Status::invalid_argument(format!(
                "worker {} of {} replicas, {} of which are waited for: no such worker, or nothing to wait for",
                self.worker, self.replicas, self.aggregate
            )));
        }
        let graph = global_step.handle().graph().clone();
        let mut parts = graph.with_scope("sync", || Parts::new(&graph, self, pairs, global_step));
        let taken = parts.taken.clone();
        let apply = optimizer.apply_gradients(&taken, Some(global_step))?;
        let step = graph.with_control(&[apply], || {
            graph.with_colocation(&global_step.handle().operation(), || global_step.read())
        });
        parts.give_applied = graph.with_scope("sync", || parts.give(&step));
        let outcome = graph.with_scope("sync", || {
            graph.with_colocation(&global_step.handle().operation(), || {
                parts.gate.outcome(&step)
            })
        });
        graph.check()?;
        Ok(SyncTraining {
            settings: self.clone(),
            graph,
            parts: Arc::new(parts),
            outcome,
            global_step: global_step.value().clone(),
            missing: MissingWorkers::default(),
        })
    }
}

/// Synchronous training of one worker.
///
/// [`SyncReplicas::minimize`] makes it.
///
/// ```
/// use downpour::train::hooks::StopAtStep;
/// use downpour::train::{GradientDescent, Supervision, SyncReplicas, global_step};
/// use downpour::{Graph, Init, Server, ServerConfig};
/// let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let w = g.variable("w").init(Init::value(8.0f32)).build();
/// let settings = SyncReplicas::new(1, 0);
/// let training = settings.minimize(&GradientDescent::new(0.25), &w.square(), &global_step(&g))?;
/// let mut session = Supervision::new(&server, training.graph())
///     .hook(training.hook(true))
///     .hook(StopAtStep::new(3))
///     .open()?;
/// while !session.should_stop() {
///     session.step().target(training.train()).run()?;
/// }
/// // Each update halves it.
/// assert!(session.raw()?.fetch(&w)?.scalar_value::<f32>()? <= 1.0);
/// assert!(training.missing().names().is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SyncTraining {
    settings: SyncReplicas,
    graph: Graph,
    parts: Arc<Parts>,
    outcome: Output,
    global_step: Output,
    missing: MissingWorkers,
}

impl SyncTraining {
    /// This worker's step. It must run in sessions that [`Self::hook`] looks after.
    pub fn train(&self) -> &Operation {
        &self.parts.train
    }

    /// The graph.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// What makes a worker's steps wait for the others, and lets the chief update the model.
    pub fn hook(&self, is_chief: bool) -> SyncHook {
        self.hook_of(is_chief.then(|| self.chief(None)))
    }

    /// As [`Self::hook`], for a worker that updates the model while an election says so. The session must follow
    /// the same one.
    ///
    /// ```
    /// use downpour::train::hooks::StopAtStep;
    /// use downpour::train::{
    ///     CoordinatedElection, GradientDescent, SharedElection, Supervision, SyncReplicas, global_step,
    /// };
    /// use downpour::{Graph, Init, Server, ServerConfig};
    /// use std::time::Duration;
    /// # let dir = tempfile::tempdir()?;
    /// let service = format!("file://{}", dir.path().display()).parse()?;
    /// let server = Server::start(ServerConfig::local())?;
    /// let g = Graph::new();
    /// let w = g.variable("w").init(Init::value(8.0f32)).build();
    /// let settings = SyncReplicas::new(1, 0);
    /// let training = settings.minimize(&GradientDescent::new(0.25), &w.square(), &global_step(&g))?;
    /// let lease = Duration::from_secs(1);
    /// let election = CoordinatedElection::join(&service, "/job:worker/task:0", lease)?;
    /// let election = SharedElection::new(election);
    /// let mut session = Supervision::new(&server, &g)
    ///     .election(election.clone())
    ///     .hook(training.elected_hook(&election))
    ///     .hook(StopAtStep::new(3))
    ///     .open()?;
    /// while !session.should_stop() {
    ///     session.step().target(training.train()).run()?;
    /// }
    /// assert!(session.global_step()? >= 3);
    /// session.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn elected_hook(&self, election: &SharedElection) -> SyncHook {
        self.hook_of(Some(self.chief(Some(election.clone()))))
    }

    fn chief(&self, election: Option<SharedElection>) -> Chief {
        Chief::new(
            self.settings.clone(),
            self.parts.clone(),
            self.outcome.clone(),
            self.global_step.clone(),
            self.missing.clone(),
            election,
        )
    }

    fn hook_of(&self, chief: Option<Chief>) -> SyncHook {
        SyncHook {
            parts: self.parts.clone(),
            global_step: self.global_step.clone(),
            local_step: 0,
            position: None,
            chief,
            heartbeat: None,
            settings: self.settings.clone(),
            missing: self.missing.clone(),
        }
    }

    /// Who holds training up longer than patience.
    pub fn missing(&self) -> MissingWorkers {
        self.missing.clone()
    }
}

/// Looks after one worker's part in synchronous training.
///
/// [`SyncTraining::hook`] makes it.
///
/// ```
/// use downpour::train::hooks::StopAtStep;
/// use downpour::train::{GradientDescent, Supervision, SyncHook, SyncReplicas, global_step};
/// use downpour::{Graph, Init, Server, ServerConfig};
/// let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let w = g.variable("w").init(Init::value(8.0f32)).build();
/// // Of two workers the first to come is enough.
/// let settings = SyncReplicas::new(2, 0).backups(1);
/// let training = settings.minimize(&GradientDescent::new(0.25), &w.square(), &global_step(&g))?;
/// let hook: SyncHook = training.hook(true);
/// let mut session = Supervision::new(&server, &g).hook(hook).hook(StopAtStep::new(3)).open()?;
/// while !session.should_stop() {
///     session.step().target(training.train()).run()?;
/// }
/// assert!(session.global_step()? >= 3);
/// session.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SyncHook {
    parts: Arc<Parts>,
    global_step: Output,
    local_step: i64,
    position: Option<usize>,
    chief: Option<Chief>,
    heartbeat: Option<Heartbeat>,
    settings: SyncReplicas,
    missing: MissingWorkers,
}

/// What is counted for each worker.
fn counts(values: &Tensor) -> Result<Vec<i64>> {
    let values = values.as_slice::<i64>().map(<[i64]>::to_vec);
    values.map_err(|e| Status::internal(e.to_string()))
}

impl Hook for SyncHook {
    fn after_create(&mut self, session: &Arc<Session>) -> Result<()> {
        self.local_step = integer(&session.fetch(&self.global_step)?)?;
        session.run(&self.parts.join)?;
        // What was known of others is to be learned anew.
        self.missing.tell(&[]);
        self.heartbeat = None;
        if let Some(chief) = &mut self.chief {
            chief.start(session)?;
        }
        let leads = self.chief.as_ref().map(|chief| chief.leads().clone());
        let watch = (self.missing.clone(), leads.unwrap_or_default());
        let heartbeat = watch_workers::start(session, &self.parts, &self.settings, watch)?;
        self.heartbeat = Some(heartbeat);
        Ok(())
    }

    fn before_run(&mut self, run: &mut Run) {
        self.position = run.runs(&self.parts.train).then(|| {
            run.feed(&self.parts.local_step, self.local_step);
            run.fetch(&self.parts.token)
        });
    }

    fn after_run(&mut self, context: &mut Context<'_>) -> Result<()> {
        let Some(position) = self.position else {
            return Ok(());
        };
        match integer(context.value(position)?)? {
            END => context.request_stop(),
            // One that was left for this worker before it was started again is older.
            step => self.local_step = self.local_step.max(step),
        }
        Ok(())
    }

    fn end(&mut self, session: &Arc<Session>) -> Result<()> {
        self.heartbeat = None;
        match &mut self.chief {
            Some(chief) => chief.stop(session),
            None => session.run(&self.parts.leave),
        }
    }
}
