//! One session: a growing graph, its registered requests, its running steps.
//!
//! ```text
//! open ──extend──► open ──close──► closed: running steps end, new requests are refused
//! ```

use crate::partial::PartialRuns;
use crate::plans::{Part, Plans, Registered};
use crate::step::{Gather, Leftovers};
use crate::tasks::Tasks;
use downpour_graph::{DeviceName, Graph, GraphDef, Result, Status, parse_endpoint};
use downpour_net::{Canceller, GraphOptions, Limits, PartialStep, StepEnd, StepStart};
use downpour_plan::{
    Endpoints, Placement, Request, lower, merge_common, partition, place, rewrite, skip_unused,
};
use downpour_tensor::Tensor;
use downpour_wire::messages::{OptLevel, RunOptions, SessionConfig};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
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
    pub(crate) partial: PartialRuns,
}

struct State {
    graph: Arc<Graph>,
    version: i64,
    closed: Option<Status>,
    plans: Plans,
    callables: HashMap<i64, (Arc<Registered>, RunOptions)>,
    next_callable: i64,
    running: HashMap<u64, Canceller>,
}

/// A step under way. Dropping it cancels the step: the client has gone.
pub(crate) struct Running {
    outcome: oneshot::Receiver<Result<StepEnd>>,
    cancel: Canceller,
    session: Arc<Session>,
    step_id: u64,
    over: bool,
}

impl Running {
    /// Waits for the step.
    pub(crate) async fn wait(mut self) -> Result<StepEnd> {
        let outcome = (&mut self.outcome).await;
        self.over = true;
        outcome.unwrap_or_else(|_| Err(Status::internal("the step ended without an outcome")))
    }

    /// Ends the step early.
    pub(crate) fn canceller(&self) -> Canceller {
        self.cancel.clone()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.session.state.lock().running.remove(&self.step_id);
        if !self.over {
            (self.cancel)(Status::cancelled("RunStep was cancelled by the client"));
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
                graph: Arc::new(graph),
                version: 0,
                closed: None,
                plans: Plans::default(),
                callables: HashMap::new(),
                next_callable: 0,
                running: HashMap::new(),
            }),
            partial: PartialRuns::default(),
        })
    }

    /// Adds nodes to the graph and returns its new version.
    pub(crate) fn extend(&self, def: GraphDef, version: i64) -> Result<i64> {
        let (graph, closed) = {
            let state = self.state.lock();
            (state.graph.clone(), state.closed.is_some())
        };
        if closed {
            return Err(Status::failed_precondition("Session is closed."));
        }
        let stale = |current: i64| {
            Err(Status::aborted(format!(
                "Current version is {current} but caller expected {version}."
            )))
        };
        let current = self.state.lock().version;
        if current != version {
            return stale(current);
        }
        let mut graph = Arc::unwrap_or_clone(graph);
        let base = graph.len();
        graph.extend(def)?;
        let mut graph = lower(graph, base, self.placement.devices.len() > 1);
        place(&mut graph, &self.placement)?;
        let mut state = self.state.lock();
        if state.version != version {
            return stale(state.version);
        }
        state.graph = Arc::new(graph);
        state.version += 1;
        Ok(state.version)
    }

    /// The graph that was built for a request, if it was.
    pub(crate) fn find(&self, request: &Request) -> Result<Option<Arc<Registered>>> {
        let mut state = self.state.lock();
        if let Some(reason) = &state.closed {
            return Err(reason.clone());
        }
        Ok(state.plans.get(request))
    }

    /// Finds or builds the graphs for a request.
    pub(crate) async fn register(
        &self,
        request: Request,
        ends: &Endpoints,
    ) -> Result<Arc<Registered>> {
        let positional = matches!(ends, Endpoints::Positional);
        if positional && let Some(found) = self.find(&request)? {
            return Ok(found);
        }
        let graph = {
            let state = self.state.lock();
            if let Some(reason) = &state.closed {
                return Err(reason.clone());
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
                rewritten = merge_common(&skip_unused(&rewritten, &request.targets));
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
        });
        if let Some(e) = failed {
            self.deregister(&plan.parts);
            return Err(e);
        }
        if positional {
            let gone = self
                .state
                .lock()
                .plans
                .insert(plan.clone(), self.limits.plans_per_session);
            if let Some(gone) = gone {
                self.deregister(&gone.parts);
            }
        }
        Ok(plan)
    }

    /// Forgets a request's graphs on their tasks.
    pub(crate) fn deregister(&self, parts: &[Part]) {
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
        self: &Arc<Self>,
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
        let cancel = self.launch(plan, step_id, feeds, trace, done);
        let running = Running {
            outcome,
            cancel: cancel.clone(),
            session: self.clone(),
            step_id,
            over: false,
        };
        let mut state = self.state.lock();
        if let Some(reason) = state.closed.clone() {
            drop(state);
            cancel(reason);
        } else {
            state.running.insert(step_id, cancel);
        }
        Ok(running)
    }

    /// Starts every part of a step; the outcome is that of all of them.
    fn launch(
        self: &Arc<Self>,
        plan: &Registered,
        step_id: u64,
        feeds: Vec<Tensor>,
        trace: bool,
        done: downpour_net::Done,
    ) -> Canceller {
        let shared = plan.parts.len() > 1 || plan.parts.iter().any(|p| p.task != 0);
        let leftovers = match shared {
            true => Leftovers::Everywhere,
            false => Leftovers::None,
        };
        let gather = Gather::new(self.clone(), step_id, plan.parts.len(), leftovers, done);
        let mut feeds = Some(feeds);
        // Others first: the own part may begin to run right here.
        let (own, others): (Vec<&Part>, Vec<&Part>) = plan.parts.iter().partition(|p| p.task == 0);
        for part in others.into_iter().chain(own) {
            let step = StepStart {
                step_id,
                feeds: match part.task {
                    0 => feeds.take().unwrap_or_default(),
                    _ => Vec::new(),
                },
                trace,
                shared,
            };
            self.run_part(&gather, part, step);
        }
        gather.canceller()
    }

    /// Starts a step that is fed and fetched bit by bit: the client's end of it runs here, parts
    /// on other tasks run as they always do.
    pub(crate) fn start_partial(
        self: &Arc<Self>,
        plan: &Registered,
        step_id: u64,
    ) -> Result<Arc<dyn PartialStep>> {
        let own = plan.parts.iter().find(|p| p.task == 0).ok_or_else(|| {
            Status::internal("a partial run has no part on its master's own task")
        })?;
        let shared = plan.parts.len() > 1;
        let local = &self.tasks.local;
        let step = local.start_partial(&self.handle, own.handle, step_id, shared)?;
        let others: Vec<Part> = plan.parts.iter().filter(|p| p.task != 0).cloned().collect();
        if others.is_empty() {
            return Ok(step);
        }
        let (session, gone) = (self.clone(), others.clone());
        let done = Box::new(move |_| session.deregister(&gone));
        let leftovers = Leftovers::Elsewhere;
        let gather = Gather::new(self.clone(), step_id, others.len() + 1, leftovers, done);
        let ended = gather.part(0);
        step.on_end(Box::new(move |outcome| {
            ended(outcome.map(|()| StepEnd::default()));
        }));
        let fails = step.clone();
        gather.cancel_with(Arc::new(move |reason| fails.cancel(reason)));
        for part in &others {
            let start = StepStart {
                step_id,
                shared,
                ..Default::default()
            };
            self.run_part(&gather, part, start);
        }
        let all = gather.canceller();
        Ok(Arc::new(SpreadStep {
            local: step,
            all,
            session: self.clone(),
            step_id,
        }))
    }

    fn run_part(&self, gather: &Arc<Gather>, part: &Part, step: StepStart) {
        let task = self.tasks.get(part.task);
        let ended = gather.part(part.task);
        gather.cancel_with(task.run_graph(&self.handle, part.handle, step, ended));
    }

    /// How long a step may take when its own options do not say.
    pub(crate) fn operation_timeout(&self) -> Option<Duration> {
        self.config.operation_timeout
    }

    /// Names the task an error came from, as TensorFlow's master does.
    pub(crate) fn blame_task(&self, task: usize, e: Status) -> Status {
        // A step that was ended from here failed nowhere else.
        if self.state.lock().closed.as_ref() == Some(&e) {
            return e;
        }
        Status {
            message: format!("From {}:\n{}", self.tasks.name(task), e.message),
            ..e
        }
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
        self.state.lock().callables.remove(&handle);
    }

    /// Ends the session: running steps fail with `reason`.
    pub(crate) fn close(&self, reason: Status) {
        let running = {
            let mut state = self.state.lock();
            state.closed.get_or_insert(reason.clone());
            std::mem::take(&mut state.running)
        };
        for cancel in running.into_values() {
            cancel(reason.clone());
        }
        self.partial.cancel_all(&reason);
        self.tasks.delete_session(&self.handle);
    }
}
