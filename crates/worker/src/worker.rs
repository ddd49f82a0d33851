//! Worker sessions and their graphs.

use crate::stats::device_stats;
use crate::steps::{PeerSource, Steps};
use downpour_graph::{Graph, Result, Status};
use downpour_net::{
    Canceller, ClusterSpec, Done, GraphOptions, Limits, LocalTask, NewSession, PartialStep, Peers,
    Reply, StepEnd, StepStart, Task, ready, task_name,
};
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
    /// The other tasks.
    pub peers: Arc<Peers>,
    /// Bounds.
    pub limits: Limits,
    /// Random numbers, for request ids.
    pub random: fn() -> u64,
}

/// The worker of this process.
pub struct Worker {
    pub(crate) config: WorkerConfig,
    sessions: Mutex<HashMap<String, Arc<WorkerSession>>>,
    pub(crate) steps: Steps,
}

pub(crate) struct WorkerSession {
    pub(crate) device: Arc<Device>,
    remote: Arc<PeerSource>,
    /// `(task, incarnation)` of the master it belongs to.
    master: (String, u64),
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
            steps: Steps::default(),
        }
    }

    pub(crate) fn session(&self, handle: &str) -> Result<Arc<WorkerSession>> {
        self.sessions.lock().get(handle).cloned().ok_or_else(|| {
            Status::aborted(format!(
                "Session handle is not found: {handle}. Possibly this worker (\"{}\") just restarted.",
                self.config.name
            ))
        })
    }

    /// What a part of a step runs in.
    fn step_env(
        &self,
        session: &WorkerSession,
        step_id: u64,
        shared: bool,
        cancellation: Arc<Cancellation>,
    ) -> StepEnv {
        let mut env = StepEnv::new(step_id, session.device.clone(), cancellation);
        env.functions = Some(session.functions.clone());
        if shared {
            env.rendezvous = self.steps.rendezvous(step_id);
            env.remote = Some(session.remote.clone());
        }
        env
    }

    /// Makes a session, in place of what a dead life of the same master left.
    fn new_session(&self, session: &NewSession) -> Result<()> {
        if session.handle.is_empty() {
            return Err(Status::invalid_argument("Session must be non-empty."));
        }
        let config = &self.config;
        let own_cluster = session
            .server_def
            .as_ref()
            .filter(|def| !def.cluster.jobs.is_empty());
        let (device, peers) = match own_cluster {
            Some(def) => {
                let spec = ClusterSpec::from_def(&def.cluster)
                    .map_err(|e| Status::invalid_argument(e.to_string()))?;
                let name = task_name(&def.job_name, def.task_index.max(0) as u32);
                let own = match session.isolate {
                    true => config.device.isolated(),
                    false => config.device.shared(),
                };
                let device = own.renamed(format!("{name}/device:CPU:0"), &def.job_name);
                let peers = Peers::new(&spec, &name, config.limits);
                (Arc::new(device), Arc::new(peers))
            }
            None if session.isolate => (Arc::new(config.device.isolated()), config.peers.clone()),
            None => (config.device.clone(), config.peers.clone()),
        };
        let functions = FunctionLibrary::new(config.registry.clone(), device.clone());
        let made = WorkerSession {
            device,
            functions: Arc::new(functions),
            remote: Arc::new(PeerSource {
                peers,
                random: config.random,
            }),
            master: (session.master_task.clone(), session.master_incarnation),
            kernels: KernelCache::default(),
            graphs: Mutex::default(),
        };
        let mut sessions = self.sessions.lock();
        if !session.master_task.is_empty() {
            sessions
                .retain(|_, old| old.master.0 != made.master.0 || old.master.1 == made.master.1);
        }
        sessions.insert(session.handle.clone(), Arc::new(made));
        Ok(())
    }

    pub(crate) fn compile(
        &self,
        session: &str,
        graph: &Graph,
        options: GraphOptions,
    ) -> Result<u64> {
        let session = self.session(session)?;
        let env = CompileEnv {
            registry: &self.config.registry,
            device: &session.device,
            cache: &session.kernels,
            fold_constants: options.fold_constants,
            site: "",
        };
        session.functions.add(graph);
        let plan = Plan::compile(graph, &env)?;
        let mut graphs = session.graphs.lock();
        graphs.0 += 1;
        let handle = graphs.0;
        graphs.1.insert(handle, plan);
        Ok(handle)
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

    fn create_session(&self, session: &NewSession) -> Reply<()> {
        ready(self.new_session(session))
    }

    fn delete_session(&self, session: &str) {
        let gone = self.sessions.lock().remove(session);
        drop(gone);
    }

    fn register_graph(&self, session: &str, graph: Graph, options: GraphOptions) -> Reply<u64> {
        ready(self.compile(session, &graph, options))
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
                let mut env = self.step_env(&session, step.step_id, step.shared, cancellation);
                let trace = step.trace.then(|| Arc::new(Trace::new(self.config.clock)));
                env.trace = trace.clone();
                let name = session.device.name.clone();
                Step::start_briefly(plan, Arc::new(env), step.feeds, move |outcome| {
                    let stats = trace.map(|t| device_stats(&name, t.take()));
                    let stats = stats.into_iter().collect();
                    done(outcome.map(|fetches| StepEnd { fetches, stats }));
                });
            }
        }
        Arc::new(move |reason| cancel.cancel(reason))
    }

    fn cleanup_step(&self, step_id: u64) {
        self.steps.cleanup(step_id);
    }

    fn cleanup_all(&self, containers: &[String]) -> Reply<()> {
        let device = &self.config.device;
        if containers.is_empty() {
            device.resources.clear(&device.default_container);
        }
        for container in containers {
            device.resources.clear(container);
        }
        ready(Ok(()))
    }
}

impl LocalTask for Worker {
    fn start_partial(
        &self,
        session: &str,
        graph: u64,
        step_id: u64,
        shared: bool,
    ) -> Result<Arc<dyn PartialStep>> {
        let (session, plan) = self.plan(session, graph)?;
        let cancellation = Cancellation::new();
        let env = self.step_env(&session, step_id, shared, cancellation.clone());
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
}

type EndCallback = Box<dyn FnOnce(Result<()>) + Send>;

/// Either the outcome or who waits for it.
#[derive(Default)]
enum End {
    #[default]
    Running,
    Waiting(Vec<EndCallback>),
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
        if let End::Waiting(callbacks) = previous {
            for callback in callbacks {
                callback(outcome.clone());
            }
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
        match &mut *end {
            End::Running => *end = End::Waiting(vec![done]),
            End::Waiting(callbacks) => callbacks.push(done),
            End::Over(outcome) => {
                let outcome = outcome.clone();
                drop(end);
                done(outcome);
            }
        }
    }
}

/// The sender's incarnation in `sender;incarnation;receiver;name;frame:iteration`.
pub(crate) fn key_incarnation(key: &str) -> Result<u64> {
    let parts: Vec<&str> = key.split(';').collect();
    if let [_, incarnation, _, _, _] = parts.as_slice()
        && let Ok(incarnation) = u64::from_str_radix(incarnation, 16)
    {
        return Ok(incarnation);
    }
    Err(Status::invalid_argument(format!(
        "Invalid  rendezvous key: {key}"
    )))
}

impl Worker {
    /// Refuses a request for a value of an earlier life of this task: it will never come.
    pub(crate) fn check_incarnation(&self, wanted: u64) -> Result<()> {
        let have = self.config.device.incarnation;
        if wanted == have {
            return Ok(());
        }
        Err(Status::aborted(format!(
            "RecvTensor expects a different device incarnation: {wanted} vs. {have}. Your worker job (\"{}\") was probably restarted. Check your worker job for the reason why it was restarted.",
            self.config.name
        )))
    }
}
