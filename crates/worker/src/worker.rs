//! Worker sessions and their graphs.

use crate::stats::device_stats;
use downpour_graph::{Graph, Result, Status};
use downpour_net::{Canceller, Done, GraphOptions, PartialStep, StepEnd, StepStart, Task};
use downpour_runtime::{
    Cancellation, CompileEnv, Delivery, Device, FunctionLibrary, KernelCache, Plan, Registry,
    Rendezvous, Step, StepEnv, Trace,
};
use downpour_tensor::Tensor;
use downpour_wire::messages::DeviceAttributes;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// What a worker is made of.
pub struct WorkerConfig {
    /// `/job:J/replica:0/task:N`.
    pub name: String,
    /// Kernels.
    pub registry: Arc<Registry>,
    /// The task's CPU.
    pub device: Arc<Device>,
    /// Nanoseconds since the epoch, for traces.
    pub clock: fn() -> i64,
}

/// The worker of this process.
pub struct Worker {
    config: WorkerConfig,
    sessions: Mutex<HashMap<String, Arc<WorkerSession>>>,
}

struct WorkerSession {
    device: Arc<Device>,
    kernels: KernelCache,
    functions: Arc<FunctionLibrary>,
    graphs: Mutex<(u64, HashMap<u64, Arc<Plan>>)>,
}

impl Worker {
    /// A worker without sessions.
    pub fn new(config: WorkerConfig) -> Worker {
        Worker {
            config,
            sessions: Mutex::default(),
        }
    }

    fn session(&self, handle: &str) -> Result<Arc<WorkerSession>> {
        self.sessions.lock().get(handle).cloned().ok_or_else(|| {
            Status::aborted(format!(
                "Session handle is not found: {handle}. Possibly this worker (\"{}\") just restarted.",
                self.config.name
            ))
        })
    }

    fn plan(&self, session: &str, graph: u64) -> Result<(Arc<WorkerSession>, Arc<Plan>)> {
        let session = self.session(session)?;
        let plan = session
            .graphs
            .lock()
            .1
            .get(&graph)
            .cloned()
            .ok_or_else(|| Status::aborted(format!("Graph handle is not found: {graph:016x}")))?;
        Ok((session, plan))
    }
}

impl Task for Worker {
    fn name(&self) -> &str {
        &self.config.name
    }

    fn devices(&self) -> Vec<DeviceAttributes> {
        let device = &self.config.device;
        vec![DeviceAttributes {
            name: device.name.clone(),
            device_type: "CPU".into(),
            // TensorFlow reports this for every CPU, whatever its memory.
            memory_limit: 268_435_456,
            incarnation: device.incarnation,
            xla_global_id: -1,
            ..Default::default()
        }]
    }

    fn create_session(&self, session: &str, isolate: bool) -> Result<()> {
        if session.is_empty() {
            return Err(Status::invalid_argument("Session must be non-empty."));
        }
        let device = match isolate {
            true => Arc::new(self.config.device.isolated()),
            false => self.config.device.clone(),
        };
        let functions = FunctionLibrary::new(self.config.registry.clone(), device.clone());
        let made = WorkerSession {
            device,
            kernels: KernelCache::default(),
            functions: Arc::new(functions),
            graphs: Mutex::default(),
        };
        self.sessions
            .lock()
            .insert(session.to_owned(), Arc::new(made));
        Ok(())
    }

    fn delete_session(&self, session: &str) {
        let gone = self.sessions.lock().remove(session);
        drop(gone);
    }

    fn register_graph(&self, session: &str, graph: Graph, options: GraphOptions) -> Result<u64> {
        let session = self.session(session)?;
        let env = CompileEnv {
            registry: &self.config.registry,
            device: &session.device,
            cache: &session.kernels,
            fold_constants: options.fold_constants,
        };
        session.functions.add(&graph);
        let plan = Plan::compile(&graph, &env)?;
        let mut graphs = session.graphs.lock();
        graphs.0 += 1;
        let handle = graphs.0;
        graphs.1.insert(handle, plan);
        Ok(handle)
    }

    fn deregister_graph(&self, session: &str, graph: u64) {
        if let Ok(session) = self.session(session) {
            session.graphs.lock().1.remove(&graph);
        }
    }

    fn run_graph(&self, session: &str, graph: u64, step: StepStart, done: Done) -> Canceller {
        let cancellation = Cancellation::new();
        let cancel = cancellation.clone();
        match self.plan(session, graph) {
            Err(e) => done(Err(e)),
            Ok((session, plan)) => {
                let mut env = StepEnv::new(step.step_id, session.device.clone(), cancellation);
                let trace = step.trace.then(|| Arc::new(Trace::new(self.config.clock)));
                env.trace = trace.clone();
                env.functions = Some(session.functions.clone());
                let name = session.device.name.clone();
                Step::start_briefly(plan, Arc::new(env), step.feeds, move |outcome| {
                    let stats = trace.map(|t| device_stats(&name, t.take()));
                    done(outcome.map(|fetches| StepEnd { fetches, stats }));
                });
            }
        }
        Arc::new(move |reason| cancel.cancel(reason))
    }

    fn start_partial(
        &self,
        session: &str,
        graph: u64,
        step_id: u64,
    ) -> Result<Arc<dyn PartialStep>> {
        let (session, plan) = self.plan(session, graph)?;
        let cancellation = Cancellation::new();
        let mut env = StepEnv::new(step_id, session.device.clone(), cancellation.clone());
        env.functions = Some(session.functions.clone());
        let step = Arc::new(LocalPartialStep {
            rendezvous: env.rendezvous.clone(),
            cancellation,
            end: Mutex::default(),
        });
        let ended = step.clone();
        session.device.spawn(move || {
            Step::start(plan, Arc::new(env), vec![], move |outcome| {
                ended.ended(outcome.map(|_| ()))
            });
        });
        Ok(step)
    }

    fn cleanup_all(&self, containers: &[String]) {
        let device = &self.config.device;
        if containers.is_empty() {
            device.resources.clear(&device.default_container);
        }
        for container in containers {
            device.resources.clear(container);
        }
    }
}

type EndCallback = Box<dyn FnOnce(Result<()>) + Send>;

/// Either the outcome or who waits for it.
#[derive(Default)]
enum End {
    #[default]
    Running,
    Waiting(EndCallback),
    Over(Result<()>),
}

struct LocalPartialStep {
    rendezvous: Arc<Rendezvous>,
    cancellation: Arc<Cancellation>,
    end: Mutex<End>,
}

impl LocalPartialStep {
    fn ended(&self, outcome: Result<()>) {
        let previous = std::mem::replace(&mut *self.end.lock(), End::Over(outcome.clone()));
        if let End::Waiting(callback) = previous {
            callback(outcome);
        }
    }
}

impl PartialStep for LocalPartialStep {
    fn feed(&self, key: &str, value: Tensor) -> Result<()> {
        self.rendezvous.send(
            key,
            Delivery {
                tensor: Some(value),
            },
        )
    }

    fn fetch(&self, key: &str, done: Box<dyn FnOnce(Result<Tensor>) + Send>) {
        let name = key.rsplit(';').nth(1).unwrap_or(key).to_owned();
        self.rendezvous.recv(key, move |delivery| {
            done(delivery.and_then(|d| {
                d.tensor.ok_or_else(|| {
                    Status::invalid_argument(format!(
                        "The tensor returned for {name} was not valid."
                    ))
                })
            }));
        });
    }

    fn cancel(&self, reason: Status) {
        self.rendezvous.abort(reason.clone());
        self.cancellation.cancel(reason);
    }

    fn on_end(&self, done: EndCallback) {
        let mut end = self.end.lock();
        if let End::Over(outcome) = &*end {
            let outcome = outcome.clone();
            drop(end);
            done(outcome);
        } else {
            *end = End::Waiting(done);
        }
    }
}
