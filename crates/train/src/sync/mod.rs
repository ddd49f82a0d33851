//! Synchronous training: one update from the mean of many workers' gradients.
//!
//! Every worker pushes its gradients into accumulators beside the variables, says so in a queue,
//! and waits for a token of the new step in a queue of its own. The chief counts who has pushed;
//! when enough have, it applies the mean and hands out tokens. Gradients of an older step are
//! dropped by the accumulators, so a late worker spoils nothing.
//!
//! Unlike TensorFlow's barrier this one knows its members: workers beat; one that is silent is
//! named in the log and to whoever asks ([`MissingWorkers`]), and when its process is gone or its
//! lease is over, no longer waited for. One whose data ends says that it leaves. The chief tells all
//! when training ends. Nobody waits for ever.

mod beat;
mod chief;
mod members;
mod missing;

pub use missing::MissingWorkers;

use beat::{BEAT, Beating};

use crate::hooks::{Context, Hook, integer};
use crate::optimizer::{Minimize, Optimizer};
use chief::Chief;
use downpour_build::{
    AttrList, AttrValue, DType, Gradient, Graph, IndexedSlices, Init, Operation, Output, Result,
    Status, Tensor, Variable,
};
use downpour_client::{Run, Session};
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
        graph.check()?;
        Ok(SyncTraining {
            settings: self.clone(),
            graph,
            parts: Arc::new(parts),
            applied: step,
            global_step: global_step.value().clone(),
            missing: MissingWorkers::default(),
        })
    }
}

/// The operations of the barrier.
pub(crate) struct Parts {
    /// This worker's step: pushes its gradients and says so.
    train: Operation,
    /// The step whose gradients are pushed.
    local_step: Output,
    /// The newest of this worker's tokens; waits for one.
    token: Output,
    /// Who has pushed, and for which step: all that is known; waits for one. Not for so many as are missing: what a
    /// dequeue has taken is lost when it is given up, as in TensorFlow.
    arrived: [Output; 2],
    /// How many gradients to take the mean of.
    required: Output,
    /// The means.
    taken: Vec<(Gradient, Variable)>,
    /// Lets the accumulators begin at a step.
    reset: Operation,
    step_to_reset: Output,
    /// The workers' tokens.
    tokens: Vec<Output>,
    /// Gives a token to each worker.
    give: Vec<Operation>,
    token_to_give: Output,
    /// Gives the step after an update to each worker.
    give_applied: Vec<Operation>,
    beat: Operation,
    beats: Output,
    leave: Operation,
    join: Operation,
    left: Output,
}

impl Parts {
    fn new(
        g: &Graph,
        settings: &SyncReplicas,
        pairs: &[(Gradient, Variable)],
        global_step: &Variable,
    ) -> Parts {
        let home = global_step.handle().operation();
        let at_home = |body: &mut dyn FnMut() -> Output| g.with_colocation(&home, body);
        let scalar = |name: &str, dtype: DType| g.placeholder(name, dtype, ());
        let (local_step, required) = (
            scalar("local_step", DType::Int64),
            scalar("required", DType::Int32),
        );
        let (step_to_reset, token_to_give) = (
            scalar("step_to_reset", DType::Int64),
            scalar("token_to_give", DType::Int64),
        );
        let (mut pushed, mut taken, mut reset) = (Vec::new(), Vec::new(), Vec::new());
        for (gradient, variable) in pairs {
            g.with_colocation(&variable.handle().operation(), || {
                let accumulator = Accumulator::new(g, gradient, variable);
                pushed.push(accumulator.push(&local_step, gradient));
                taken.push((accumulator.take(&required), variable.clone()));
                reset.push(accumulator.reset(&step_to_reset));
            });
        }
        let ready = at_home(&mut || queue(g, "ready", 2));
        let tokens: Vec<Output> = (0..settings.replicas)
            .map(|i| at_home(&mut || queue(g, &format!("tokens_{i}"), 1)))
            .collect();
        let me = g.constant(settings.worker as i64);
        let train = g.with_control(&pushed, || {
            g.with_colocation(&home, || enqueue(g, &ready, &[me, local_step.clone()]))
        });
        let own = &tokens[settings.worker];
        let token = g.with_control(std::slice::from_ref(&train), || {
            g.with_colocation(&home, || newest(g, own))
        });
        let arrived = g.with_colocation(&home, || {
            let known = g.op("QueueSizeV2").input(&ready).output();
            dequeue(&ready, &known.maximum(&g.constant(1i32)))
        });
        let member = |name: &str| {
            g.with_colocation(&home, || {
                let counts = g.variable(name).shape([settings.replicas]);
                let counts = counts.dtype(DType::Int64).init(Init::zeros());
                counts.trainable(false).saved(false).build()
            })
        };
        let (beats, left) = (member("beats"), member("left"));
        let mark = |variable: &Variable, op: &str, value: i64| {
            g.with_colocation(&home, || {
                g.op(op)
                    .input(variable.handle())
                    .input(&g.constant([settings.worker as i64]))
                    .input(&g.constant([value]))
                    .attr("dtype", DType::Int64)
                    .build()
            })
        };
        let mut parts = Parts {
            train,
            local_step,
            token,
            arrived,
            required,
            taken,
            reset: g.group("reset", &reset),
            step_to_reset,
            tokens,
            give: Vec::new(),
            token_to_give,
            give_applied: Vec::new(),
            beat: mark(&beats, "ResourceScatterAdd", 1),
            beats: beats.value().clone(),
            leave: mark(&left, "ResourceScatterUpdate", 1),
            join: mark(&left, "ResourceScatterUpdate", 0),
            left: left.value().clone(),
        };
        parts.give = parts.give(&parts.token_to_give);
        parts
    }

    /// Gives a token to each worker.
    fn give(&self, token: &Output) -> Vec<Operation> {
        let g = token.graph();
        let give = |queue: &Output| {
            g.with_colocation(&queue.operation(), || {
                enqueue(g, queue, std::slice::from_ref(token))
            })
        };
        self.tokens.iter().map(give).collect()
    }
}

/// Gradients of one variable on their way to a mean.
struct Accumulator {
    handle: Output,
    sparse: bool,
    dtype: DType,
}

impl Accumulator {
    fn new(g: &Graph, gradient: &Gradient, variable: &Variable) -> Accumulator {
        let sparse = matches!(gradient, Gradient::Sparse(_));
        let op = match sparse {
            true => "SparseConditionalAccumulator",
            false => "ConditionalAccumulator",
        };
        let handle = g
            .op(op)
            .attr("dtype", variable.dtype())
            .attr("shape", AttrValue::Shape(variable.shape()))
            .attr(
                "shared_name",
                format!("{}/grad_accum", variable.name()).as_str(),
            )
            .output();
        Accumulator {
            handle,
            sparse,
            dtype: variable.dtype(),
        }
    }

    fn push(&self, step: &Output, gradient: &Gradient) -> Operation {
        let g = self.handle.graph();
        match gradient {
            Gradient::Dense(gradient) => {
                let op = g.op("AccumulatorApplyGradient").input(&self.handle);
                op.input(step).input(gradient).build()
            }
            Gradient::Sparse(slices) => g
                .op("SparseAccumulatorApplyGradient")
                .input(&self.handle)
                .input(step)
                .input(&slices.indices.cast(DType::Int64))
                .input(&slices.values)
                .input(&slices.shape.cast(DType::Int64))
                .attr("has_known_shape", true)
                .build(),
        }
    }

    fn take(&self, required: &Output) -> Gradient {
        let g = self.handle.graph();
        let op = match self.sparse {
            true => "SparseAccumulatorTakeGradient",
            false => "AccumulatorTakeGradient",
        };
        let op = g.op(op).input(&self.handle).input(required);
        let taken = op.attr("dtype", self.dtype).build();
        match self.sparse {
            false => Gradient::Dense(taken.output(0)),
            true => Gradient::Sparse(IndexedSlices {
                indices: taken.output(0),
                values: taken.output(1),
                shape: taken.output(2),
            }),
        }
    }

    fn reset(&self, step: &Output) -> Operation {
        let op = self.handle.graph().op("AccumulatorSetGlobalStep");
        op.input(&self.handle).input(step).build()
    }
}

/// A queue of so many int64 scalars, shared by name.
fn queue(g: &Graph, name: &str, parts: usize) -> Output {
    let scalar = downpour_build::PartialShape::from_dims([]);
    g.op("FIFOQueueV2")
        .name(name)
        .attr(
            "component_types",
            AttrValue::List(AttrList::Type(vec![DType::Int64; parts])),
        )
        .attr(
            "shapes",
            AttrValue::List(AttrList::Shape(vec![scalar; parts])),
        )
        .attr("capacity", -1i64)
        .attr("shared_name", format!("sync/{name}").as_str())
        .output()
}

fn enqueue(g: &Graph, queue: &Output, values: &[Output]) -> Operation {
    g.op("QueueEnqueueV2").input(queue).inputs(values).build()
}

/// So many pairs out of a queue.
fn dequeue(queue: &Output, count: &Output) -> [Output; 2] {
    let types = AttrValue::List(AttrList::Type(vec![DType::Int64; 2]));
    let g = queue.graph();
    let op = g.op("QueueDequeueManyV2").input(queue).input(count);
    let taken = op.attr("component_types", types).build();
    [taken.output(0), taken.output(1)]
}

/// The last of all that a queue holds; waits for one if it holds none.
fn newest(g: &Graph, queue: &Output) -> Output {
    let size = g.op("QueueSizeV2").input(queue).output();
    let count = size.maximum(&g.constant(1i32));
    let types = AttrValue::List(AttrList::Type(vec![DType::Int64]));
    let op = g.op("QueueDequeueManyV2").input(queue).input(&count);
    let all = op.attr("component_types", types).output();
    all.gather(&(count - 1), 0)
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
    applied: Output,
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
        let chief = is_chief.then(|| {
            Chief::new(
                self.settings.clone(),
                self.parts.clone(),
                self.applied.clone(),
                self.global_step.clone(),
                self.missing.clone(),
            )
        });
        SyncHook {
            parts: self.parts.clone(),
            global_step: self.global_step.clone(),
            local_step: 0,
            position: None,
            chief,
            beating: None,
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
    beating: Option<Beating>,
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
        let watch = self.chief.is_none().then(|| self.missing.clone());
        self.beating = None;
        let beating = Beating::start(session, &self.parts, &self.settings, watch)?;
        self.beating = Some(beating);
        match &mut self.chief {
            Some(chief) => chief.start(session),
            None => Ok(()),
        }
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
            step => self.local_step = step,
        }
        Ok(())
    }

    fn end(&mut self, session: &Arc<Session>) -> Result<()> {
        self.beating = None;
        match &mut self.chief {
            Some(chief) => chief.stop(session),
            None => session.run(&self.parts.leave),
        }
    }
}
