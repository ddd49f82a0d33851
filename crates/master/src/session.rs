//! One session: a growing graph, its registered requests, its running steps. The shell around its
//! [`Lifecycle`], which decides who may still begin and when the session is deleted on its tasks.

use crate::costs;
use crate::gather::{Gather, Leftovers};
use crate::lifecycle::{Effect, Effects, Event, Lifecycle, UseId};
use crate::partial::PartialRuns;
use crate::plans::{Part, Plans, Registered};
use crate::tasks::Tasks;
use downpour_graph::{DeviceName, Graph, GraphDef, Result, Status, parse_endpoint};
use downpour_net::{Canceller, GraphOptions, Limits, PartialStep, StepEnd, StepStart};
use downpour_plan::{
    Endpoints, Placement, Request, lower, merge_common, partition, place, rewrite, shorten_signals,
    skip_unused,
};
use downpour_tensor::Tensor;
use downpour_wire::messages::{OptLevel, RunOptions, SessionConfig};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::oneshot;

/// A client's session.
pub(crate) struct Session {
    pub(crate) handle: String,
    pub(crate) tasks: Tasks,
    config: SessionConfig,
    limits: Limits,
    placement: Placement,
    /// Numbers the nodes that partitions add.
    serial: Mutex<u64>,
    state: Mutex<State>,
    /// Its graphs go with it: no need to deregister them one by one.
    closed: AtomicBool,
    pub(crate) partial: PartialRuns,
}

struct State {
    life: Lifecycle<Canceller>,
    graph: Arc<Graph>,
    plans: Plans,
    callables: HashMap<i64, (Arc<Registered>, RunOptions)>,
    next_callable: i64,
}

/// A request's hold on its session, which is not deleted on its tasks before all have let go.
pub(crate) struct Use {
    session: Arc<Session>,
    id: UseId,
}

impl Use {
    /// The session.
    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Which use it is.
    pub(crate) fn id(&self) -> UseId {
        self.id
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.session.tell(Event::End(self.id));
    }
}

/// A step under way. Dropping it cancels the step: the client has gone.
pub(crate) struct Running {
    outcome: oneshot::Receiver<Result<StepEnd>>,
    gather: Arc<Gather>,
    over: bool,
}

impl Running {
    /// Waits for the step.
    pub(crate) async fn wait(&mut self) -> Result<StepEnd> {
        let outcome = (&mut self.outcome).await;
        self.over = true;
        outcome.unwrap_or_else(|_| Err(Status::internal("the step ended without an outcome")))
    }

    /// Ends the step because its time is over.
    pub(crate) fn late(&self, reason: Status) {
        self.gather.late(reason);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.over {
            self.gather.gone();
        }
    }
}

/// A step fed and fetched bit by bit whose other parts run elsewhere.
struct SpreadStep {
    local: Arc<dyn PartialStep>,
    /// Ends all parts.
    all: Canceller,
    session: Arc<Session>,
    step_id: u64,
}

impl Drop for SpreadStep {
    fn drop(&mut self) {
        // Only now has the client fetched all it will.
        self.session.tasks.local.cleanup_step(self.step_id);
    }
}

impl PartialStep for SpreadStep {
    fn feed(&self, key: &str, value: Tensor) -> Result<()> {
        self.local.feed(key, value)
    }

    fn fetch(&self, key: &str, done: Box<dyn FnOnce(Result<Tensor>) + Send>) {
        self.local.fetch(key, done);
    }

    fn cancel(&self, reason: Status) {
        (self.all)(reason);
    }

    fn on_end(&self, done: Box<dyn FnOnce(Result<()>) + Send>) {
        self.local.on_end(done);
    }
}

impl Session {
    /// Places a first graph and opens the session on its tasks.
    pub(crate) async fn create(
        handle: String,
        tasks: Tasks,
        graph: GraphDef,
        config: SessionConfig,
        limits: Limits,
    ) -> Result<Session> {
        if config.use_per_session_threads || config.has_session_thread_pools {
            return Err(Status::invalid_argument(
                "Distributed session does not support session thread pool options.",
            ));
        }
        let devices = tasks
            .devices
            .iter()
            .map(|d| DeviceName::parse(&d.name).map_err(|e| Status::internal(e.to_string())))
            .collect::<Result<Vec<_>>>()?;
        let placement = Placement {
            devices,
            allow_soft_placement: config.allow_soft_placement,
        };
        let graph = tokio::task::block_in_place(|| {
            let many = placement.devices.len() > 1;
            let mut graph = lower(Graph::new(graph)?, 0, many);
            place(&mut graph, &placement)?;
            Ok::<_, Status>(graph)
        })?;
        tasks.create_session(&handle, &config).await?;
        Ok(Session {
            handle,
            tasks,
            config,
            limits,
            placement,
            serial: Mutex::new(0),
            state: Mutex::new(State {
                life: Lifecycle::new(),
                graph: Arc::new(graph),
                plans: Plans::default(),
                callables: HashMap::new(),
                next_callable: 0,
            }),
            closed: AtomicBool::new(false),
            partial: PartialRuns::default(),
        })
    }

    /// Tells the machine what happened and does what it says; what is meant for the caller comes
    /// back.
    fn tell(&self, event: Event<Canceller>) -> Option<Effect<Canceller>> {
        let effects = self.state.lock().life.step(event);
        self.act(effects)
    }

    fn act(&self, effects: Effects<Canceller>) -> Option<Effect<Canceller>> {
        let mut own = None;
        for effect in effects {
            match effect {
                Effect::Stop(cancel, reason) => cancel(reason),
                Effect::Delete => self.tasks.delete_session(&self.handle),
                effect => own = Some(effect),
            }
        }
        own
    }

    fn begun(self: &Arc<Self>, effects: Effects<Canceller>) -> Result<Use> {
        match self.act(effects) {
            Some(Effect::Begun(id)) => Ok(Use {
                session: self.clone(),
                id,
            }),
            Some(Effect::Refuse(e)) => Err(e),
            _ => Err(Status::internal(
                "the session's machine gave no answer; please report this",
            )),
        }
    }

    /// Lets a request use the session, unless that is closed.
    pub(crate) fn begin(self: &Arc<Self>) -> Result<Use> {
        let effects = self.state.lock().life.step(Event::Begin);
        self.begun(effects)
    }

    /// As [`Session::begin`], with the graph that was built for the request, if it was.
    pub(crate) fn find(
        self: &Arc<Self>,
        request: &Request,
    ) -> Result<(Use, Option<Arc<Registered>>)> {
        let (effects, found) = {
            let mut state = self.state.lock();
            (state.life.step(Event::Begin), state.plans.get(request))
        };
        Ok((self.begun(effects)?, found))
    }

    /// Says how to end the step that a use has started.
    pub(crate) fn attach(&self, id: UseId, cancel: Canceller) {
        self.tell(Event::Attach(id, cancel));
    }

    /// Adds nodes to the graph and returns its new version.
    pub(crate) fn extend(&self, def: GraphDef, version: i64) -> Result<i64> {
        let graph = {
            let state = self.state.lock();
            state.life.check_version(version)?;
            state.graph.clone()
        };
        let mut graph = Arc::unwrap_or_clone(graph);
        let base = graph.len();
        graph.extend(def)?;
        let mut graph = lower(graph, base, self.placement.devices.len() > 1);
        place(&mut graph, &self.placement)?;
        let graph = Arc::new(graph);
        // Another request may have been quicker: then this graph is not built on the latest.
        let mut state = self.state.lock();
        let effects = state.life.step(Event::Extend { expected: version });
        if let Some(Effect::Extended(_)) = effects.first() {
            state.graph = graph;
        }
        drop(state);
        match self.act(effects) {
            Some(Effect::Extended(version)) => Ok(version),
            Some(Effect::Refuse(e)) => Err(e),
            _ => Err(Status::internal(
                "the session's machine gave no answer; please report this",
            )),
        }
    }

    /// Finds or builds the graphs for a request of someone who uses the session.
    pub(crate) async fn register(
        self: &Arc<Self>,
        request: Request,
        ends: &Endpoints,
    ) -> Result<Arc<Registered>> {
        let positional = matches!(ends, Endpoints::Positional);
        let graph = {
            let mut state = self.state.lock();
            if positional && let Some(found) = state.plans.get(&request) {
                return Ok(found);
            }
            state.graph.clone()
        };
        let optimize = self.config.graph_options.opt_level != OptLevel::L0;
        let options = GraphOptions {
            fold_constants: optimize,
        };
        let (rewritten, feed_types, calls) = tokio::task::block_in_place(|| {
            let (mut rewritten, feed_types) = rewrite(&graph, &request, ends)?;
            if optimize {
                rewritten = skip_unused(&rewritten, &request.targets);
                rewritten = merge_common(&rewritten, &request.targets);
                rewritten = shorten_signals(&rewritten, &request.targets);
            }
            let parts = partition(&rewritten, &self.tasks.devices, &mut self.serial.lock())?;
            let calls: Vec<_> = parts
                .into_iter()
                .map(|part| {
                    let task = self.tasks.get(part.task);
                    let call = task.register_graph(&self.handle, part.graph.clone(), options);
                    (part, call)
                })
                .collect();
            Ok::<_, Status>((rewritten, feed_types, calls))
        })?;
        let mut parts = Vec::with_capacity(calls.len());
        let mut failed = None;
        for (part, call) in calls {
            match call.await {
                Ok(handle) => parts.push(Part {
                    task: part.task,
                    handle,
                    graph: part.graph,
                }),
                Err(e) => failed = failed.or(Some(e)),
            }
        }
        let plan = Arc::new(Registered {
            parts,
            request,
            feed_types,
            graph: rewritten,
            steps: AtomicU64::new(0),
            home: Arc::downgrade(self),
        });
        if let Some(e) = failed {
            return Err(e);
        }
        if positional {
            let limit = self.limits.plans_per_session;
            let gone = self.state.lock().plans.insert(plan.clone(), limit);
            // Deregistered with its last user, which may be running right now.
            drop(gone);
        }
        Ok(plan)
    }

    /// Forgets a request's graphs on their tasks.
    pub(crate) fn deregister(&self, parts: &[Part]) {
        if self.closed.load(Ordering::Acquire) {
            return;
        }
        for part in parts {
            let task = self.tasks.get(part.task);
            task.deregister_graph(&self.handle, part.handle);
        }
    }

    /// Ends of a partial run: `_Recv` and `_Send` on the client's device.
    pub(crate) fn rendezvous_ends(&self) -> Endpoints {
        let client = self.tasks.client_device();
        Endpoints::Rendezvous {
            device: client.name.to_string(),
            incarnation: client.incarnation,
        }
    }

    /// The rendezvous key of a feed or fetch of a partial run.
    pub(crate) fn client_key(&self, name: &str) -> String {
        let client = self.tasks.client_device();
        let (device, incarnation) = (&client.name, client.incarnation);
        format!("{device};{incarnation:016x};{device};{name};0:0")
    }

    /// Starts a step. `feeds` are in the order of the registered request.
    pub(crate) fn start(
        in_use: Use,
        plan: &Registered,
        step_id: u64,
        feeds: Vec<Tensor>,
        trace: bool,
    ) -> Result<Running> {
        for (i, (value, wanted)) in feeds.iter().zip(&plan.feed_types).enumerate() {
            if value.dtype() != *wanted {
                let name = plan.request.feeds.get(i).map_or("", String::as_str);
                let (node, output) = parse_endpoint(name).unwrap_or((name, 0));
                // TensorFlow's words, from the op that receives the feed.
                return Err(Status::internal(format!(
                    "Output 0 of type {} does not match declared output type {wanted} for node {{{{node _recv_{node}_{output}}}}}",
                    value.dtype(),
                )));
            }
        }
        let (tx, outcome) = oneshot::channel();
        let done = Box::new(move |end| {
            // The receiver is gone when the client is.
            let _ = tx.send(end);
        });
        let gather = launch(in_use, plan, step_id, feeds, (trace, done));
        gather.attach();
        Ok(Running {
            outcome,
            gather,
            over: false,
        })
    }

    /// Starts a step that is fed and fetched bit by bit: the client's end of it runs here, parts
    /// on other tasks run as they always do.
    pub(crate) fn start_partial(
        self: &Arc<Self>,
        in_use: Use,
        plan: Arc<Registered>,
        step_id: u64,
    ) -> Result<Arc<dyn PartialStep>> {
        let own = plan.parts.iter().find(|p| p.task == 0).ok_or_else(|| {
            Status::internal("a partial run has no part on its master's own task")
        })?;
        let shared = plan.parts.len() > 1;
        let local = &self.tasks.local;
        let step = local.start_partial(&self.handle, own.handle, step_id, shared)?;
        let ends = step.clone();
        let cancel: Canceller = Arc::new(move |reason| ends.cancel(reason));
        if !shared {
            self.attach(in_use.id(), cancel);
            // The graph is used once: its feeds arrive under names that only this run waits for.
            step.on_end(Box::new(move |_| drop((plan, in_use))));
            return Ok(step);
        }
        let others: SmallVec<[Part; 2]> =
            plan.parts.iter().filter(|p| p.task != 0).cloned().collect();
        let tasks = std::iter::once(0).chain(others.iter().map(|p| p.task));
        let done = Box::new(move |_| drop(plan));
        let gather = Gather::new(in_use, step_id, tasks, Leftovers::Elsewhere, done);
        let ended = gather.part(0);
        step.on_end(Box::new(move |outcome| {
            ended(outcome.map(|()| StepEnd::default()));
        }));
        gather.launched(0, cancel);
        for (i, part) in others.iter().enumerate() {
            let start = StepStart {
                step_id,
                shared,
                ..Default::default()
            };
            self.run_part(&gather, i + 1, part, start);
        }
        gather.attach();
        let all = gather.canceller();
        Ok(Arc::new(SpreadStep {
            local: step,
            all,
            session: self.clone(),
            step_id,
        }))
    }

    fn run_part(&self, gather: &Arc<Gather>, i: usize, part: &Part, step: StepStart) {
        let task = self.tasks.get(part.task);
        let ended = gather.part(i);
        let cancel = task.run_graph(&self.handle, part.handle, step, ended);
        gather.launched(i, cancel);
    }

    /// Whether the next step of `plan` reports what its nodes cost.
    pub(crate) fn wants_costs(&self, plan: &Registered) -> bool {
        let options = &self.config.graph_options;
        options.build_cost_model > 0
            && costs::are_wanted(options, plan.steps.fetch_add(1, Ordering::Relaxed))
    }

    /// How long a step may take when its own options do not say.
    pub(crate) fn operation_timeout(&self) -> Option<Duration> {
        self.config.operation_timeout
    }

    /// Names the task an error came from, as TensorFlow's master does.
    pub(crate) fn blame_task(&self, task: usize, e: Status) -> Status {
        // A step that was ended from here failed nowhere else.
        if self.state.lock().life.closed() == Some(&e) {
            return e;
        }
        self.tasks.blame(task, e)
    }

    pub(crate) fn add_callable(&self, plan: Arc<Registered>, options: RunOptions) -> i64 {
        let mut state = self.state.lock();
        let handle = state.next_callable;
        state.next_callable += 1;
        state.callables.insert(handle, (plan, options));
        handle
    }

    pub(crate) fn callable(&self, handle: i64) -> Result<(Arc<Registered>, RunOptions)> {
        let state = self.state.lock();
        if let Some(found) = state.callables.get(&handle) {
            return Ok(found.clone());
        }
        Err(Status::invalid_argument(
            if (0..state.next_callable).contains(&handle) {
                format!("Attempted to run callable after handle was released: {handle}")
            } else {
                format!("No such callable handle: {handle}")
            },
        ))
    }

    pub(crate) fn release_callable(&self, handle: i64) {
        let gone = self.state.lock().callables.remove(&handle);
        drop(gone);
    }

    /// Ends the session: running steps fail with `reason`, and its tasks forget it when they have.
    pub(crate) fn close(&self, reason: Status) {
        self.closed.store(true, Ordering::Release);
        self.tell(Event::Close(reason));
        self.partial.clear();
    }
}

/// Starts every part of a step; the outcome is that of all of them.
fn launch(
    in_use: Use,
    plan: &Registered,
    step_id: u64,
    feeds: Vec<Tensor>,
    (trace, done): (bool, downpour_net::Done),
) -> Arc<Gather> {
    let shared = plan.parts.len() > 1 || plan.parts.iter().any(|p| p.task != 0);
    let leftovers = match shared {
        true => Leftovers::Everywhere,
        false => Leftovers::None,
    };
    let session = in_use.session().clone();
    // Others first: the own part may begin to run right here.
    let mut parts: SmallVec<[&Part; 4]> = plan.parts.iter().collect();
    parts.sort_by_key(|p| p.task == 0);
    let tasks = parts.iter().map(|p| p.task);
    let gather = Gather::new(in_use, step_id, tasks, leftovers, done);
    let mut feeds = Some(feeds);
    for (i, part) in parts.into_iter().enumerate() {
        let step = StepStart {
            step_id,
            feeds: match part.task {
                0 => feeds.take().unwrap_or_default(),
                _ => Vec::new(),
            },
            trace,
            shared,
        };
        session.run_part(&gather, i, part, step);
    }
    gather
}
