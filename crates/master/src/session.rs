//! One session: a growing graph, its registered requests, its running steps.
//!
//! ```text
//! open ──extend──► open ──close──► closed: running steps end, new requests are refused
//! ```

use crate::partial::PartialRuns;
use crate::plans::{Plans, Registered};
use downpour_graph::{DeviceName, Graph, GraphDef, Result, Status, parse_endpoint};
use downpour_net::{Canceller, GraphOptions, Limits, StepEnd, StepStart, Task};
use downpour_plan::{Endpoints, Placement, Request, merge_common, place, rewrite, skip_unused};
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
    pub(crate) task: Arc<dyn Task>,
    config: SessionConfig,
    limits: Limits,
    placement: Placement,
    client_device: (String, u64),
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

impl Session {
    pub(crate) fn create(
        handle: String,
        task: Arc<dyn Task>,
        graph: GraphDef,
        config: SessionConfig,
        limits: Limits,
    ) -> Result<Session> {
        if config.use_per_session_threads || config.has_session_thread_pools {
            return Err(Status::invalid_argument(
                "Distributed session does not support session thread pool options.",
            ));
        }
        let attributes = task.devices();
        let devices = attributes
            .iter()
            .map(|d| DeviceName::parse(&d.name).map_err(|e| Status::internal(e.to_string())))
            .collect::<Result<Vec<_>>>()?;
        let client_device = attributes
            .first()
            .map(|d| (d.name.clone(), d.incarnation))
            .ok_or_else(|| Status::internal("the task has no device"))?;
        let placement = Placement {
            devices,
            allow_soft_placement: config.allow_soft_placement,
        };
        let graph = Graph::new(graph)?;
        place(&graph, &placement)?;
        task.create_session(&handle, config.isolate_session_state)?;
        Ok(Session {
            handle,
            task,
            config,
            limits,
            placement,
            client_device,
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
        graph.extend(def)?;
        place(&graph, &self.placement)?;
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

    /// Finds or builds the graph for a request.
    pub(crate) fn register(&self, request: Request, ends: &Endpoints) -> Result<Arc<Registered>> {
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
        let (mut rewritten, feed_types) = rewrite(&graph, &request, ends)?;
        let optimizer = &self.config.graph_options;
        let optimize = optimizer.opt_level != OptLevel::L0;
        if optimize {
            rewritten = merge_common(&skip_unused(&rewritten, &request.targets));
        }
        let options = GraphOptions {
            fold_constants: optimize,
        };
        let handle = self
            .task
            .register_graph(&self.handle, rewritten.clone(), options)?;
        let plan = Arc::new(Registered {
            handle,
            request,
            feed_types,
            graph: rewritten,
        });
        if positional {
            let gone = self
                .state
                .lock()
                .plans
                .insert(plan.clone(), self.limits.plans_per_session);
            if let Some(gone) = gone {
                self.task.deregister_graph(&self.handle, gone.handle);
            }
        }
        Ok(plan)
    }

    /// Ends of a partial run: `_Recv` and `_Send` on the client's device.
    pub(crate) fn rendezvous_ends(&self) -> Endpoints {
        let (device, incarnation) = self.client_device.clone();
        Endpoints::Rendezvous {
            device,
            incarnation,
        }
    }

    /// The rendezvous key of a feed or fetch of a partial run.
    pub(crate) fn client_key(&self, name: &str) -> String {
        let (device, incarnation) = &self.client_device;
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
        let step = StepStart {
            step_id,
            feeds,
            trace,
        };
        let cancel = self.task.run_graph(&self.handle, plan.handle, step, done);
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

    /// How long a step may take when its own options do not say.
    pub(crate) fn operation_timeout(&self) -> Option<Duration> {
        self.config.operation_timeout
    }

    /// Names the task an error came from, as TensorFlow's master does.
    pub(crate) fn blame_task(&self, e: Status) -> Status {
        // A step that was ended from here failed nowhere else.
        if self.state.lock().closed.as_ref() == Some(&e) {
            return e;
        }
        Status {
            message: format!("From {}:\n{}", self.task.name(), e.message),
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
        self.task.delete_session(&self.handle);
    }
}
