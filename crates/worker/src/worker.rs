//! The shell around a worker's [`Lifecycle`]: compiles graphs, executes steps, and does what the
//! machine says. It holds the machine's lock only to tell it what happened.

use crate::attendance::{Attendance, AttendanceList};
use crate::lifecycle::{Bounds, Effect, Event, Lifecycle, Parts, RunId, Start};
use crate::partial::LocalPartialStep;
use crate::remote_functions::RemoteFunctions;
use crate::remote_rendezvous::PeerSource;
use crate::rpc_log::RpcLog;
use crate::stats::device_stats;
use crate::writers::Writers;
use downpour_executor::{CompileEnv, KernelCache, Plan, SessionFunctions, Step};
use downpour_graph::{Graph, Result, Status};
use downpour_net::{
    Canceller, Done, GraphOptions, Limits, LocalTask, NewSession, PartialStep, Peers, Reply,
    StepCounter, StepEnd, StepStart, StepState, Task, cluster_from_def, ready, task_name,
};
use downpour_runtime::{
    Cancellation, Device, Registry, Rendezvous, Siblings, Staleness, StepEnv, Trace,
};
use downpour_tensor::Tensor;
use downpour_tensor::account::{Account, Holder};
use downpour_wire::control::StepCounts;
use downpour_wire::messages::DeviceAttributes;
use parking_lot::Mutex;
use std::sync::Arc;

/// What a worker is made of.
pub struct WorkerConfig {
    /// `/job:J/replica:0/task:N`.
    pub name: String,
    /// Kernels.
    pub registry: Arc<Registry>,
    /// The task's CPU.
    pub device: Arc<Device>,
    /// Its further devices, if it was asked to have several.
    pub others: Vec<Arc<Device>>,
    /// Nanoseconds since the epoch, for traces.
    pub clock: fn() -> i64,
    /// The other tasks.
    pub peers: Arc<Peers>,
    /// Bounds.
    pub limits: Limits,
    /// Random numbers, for request ids.
    pub random: fn() -> u64,
}

impl WorkerConfig {
    /// All devices.
    fn devices(&self) -> impl Iterator<Item = &Arc<Device>> {
        std::iter::once(&self.device).chain(&self.others)
    }
}

/// What the devices of a traced step record to.
fn traces(env: &StepEnv) -> Vec<(Arc<Device>, Arc<Trace>)> {
    let traced = |env: &StepEnv| Some((env.device.clone(), env.trace.clone()?));
    let others = env.others.iter().filter_map(|env| traced(env));
    traced(env).into_iter().chain(others).collect()
}

/// The worker of this process.
pub struct Worker {
    pub(crate) config: WorkerConfig,
    pub(crate) machine: Machine,
    pub(crate) log: Arc<RpcLog>,
    attendance: AttendanceList,
    pub(crate) writers: Writers,
}

/// The machine, and the lock that only [`Machine::tell`] takes; beside it, how many runs it knew.
#[derive(Clone)]
pub(crate) struct Machine(Arc<(Mutex<Lifecycle<Live>>, StepCounter)>);

/// What the machine passes on in a running worker.
pub(crate) struct Live;

impl Parts for Live {
    type Session = Arc<WorkerSession>;
    type Graph = Arc<Plan>;
    type Rendezvous = Arc<Rendezvous>;
    type Stop = Arc<Cancellation>;
    type Answer = Box<dyn FnOnce(Result<()>) + Send>;

    fn rendezvous(_: u64) -> Arc<Rendezvous> {
        Arc::default()
    }
}

impl Machine {
    /// Tells the machine what happened and does what it says; what is meant for the caller comes
    /// back.
    pub(crate) fn tell(&self, event: Event<'_, Live>) -> Option<Effect<Live>> {
        let (machine, runs) = &*self.0;
        if let Event::Finished { error, .. } = &event {
            runs.ended(error.is_some());
        }
        let effects = machine.lock().step(event);
        let mut own = None;
        for effect in effects {
            if let Effect::Run { .. } = &effect {
                runs.started();
            }
            match effect {
                Effect::Stop(cancellation, reason) => cancellation.cancel(reason),
                Effect::Abort(rendezvous, reason) => rendezvous.abort(reason),
                Effect::Answer(answer, error) => answer(error.map_or(Ok(()), Err)),
                // Dropped here, outside the lock: kernels may take their time.
                Effect::FreeSession(_) | Effect::FreeGraph(_) => {}
                effect => own = Some(effect),
            }
        }
        own
    }

    /// How many runs there were.
    pub(crate) fn runs(&self) -> StepCounts {
        self.0.1.counts()
    }

    /// Where values of a shared step meet, if it is known.
    pub(crate) fn rendezvous(&self, step_id: u64) -> Option<Arc<Rendezvous>> {
        self.0.0.lock().rendezvous(step_id)
    }

    /// What is known of a shared step.
    pub(crate) fn state(&self, step_id: u64) -> StepState {
        self.0.0.lock().state(step_id)
    }

    /// Ends a run early.
    pub(crate) fn stop(&self, run: RunId, reason: Status) {
        self.tell(Event::Stop { run, reason });
    }
}

pub(crate) struct WorkerSession {
    pub(crate) device: Arc<Device>,
    others: Vec<Arc<Device>>,
    /// All of them with their functions, if there are several.
    siblings: Option<Siblings>,
    remote: Arc<PeerSource>,
    kernels: KernelCache,
    /// The functions of each device, of its own first.
    functions: Vec<Arc<SessionFunctions>>,
    /// Counts how stale its updates are.
    writer: Arc<Staleness>,
    /// What it holds.
    account: Arc<Account>,
}

/// A run that the machine knows of and that must now be executed.
pub(crate) struct StartedRun {
    pub(crate) run: RunId,
    session: Arc<WorkerSession>,
    pub(crate) plan: Arc<Plan>,
    cancellation: Arc<Cancellation>,
    /// Where its values meet those of other tasks or calls.
    pub(crate) rendezvous: Option<Arc<Rendezvous>>,
}

impl StartedRun {
    /// What the run happens in; `trace` makes what each device records to.
    pub(crate) fn env(&self, step_id: u64, trace: impl Fn() -> Option<Arc<Trace>>) -> StepEnv {
        let cancellation = self.cancellation.clone();
        let mut env = StepEnv::new(step_id, self.session.device.clone(), cancellation);
        env.functions = self.session.functions.first().map(|f| f.clone() as _);
        env.remote = Some(self.session.remote.clone());
        env.writer = Some(self.session.writer.clone());
        env.session = self.session.account.clone();
        if let Some(rendezvous) = &self.rendezvous {
            env.rendezvous = rendezvous.clone();
        }
        env.trace = trace();
        if let Some(siblings) = &self.session.siblings {
            env.spread(siblings, trace);
        }
        env
    }
}

impl Worker {
    /// A worker without sessions.
    pub fn new(config: WorkerConfig) -> Worker {
        let bounds = Bounds {
            idle: config.limits.idle_steps,
            cleaned: config.limits.ended_steps,
            requests: config.limits.remembered_requests,
        };
        let machine = Lifecycle::new(&config.name, bounds);
        Worker {
            config,
            machine: Machine(Arc::new((Mutex::new(machine), StepCounter::default()))),
            log: Arc::default(),
            attendance: AttendanceList::default(),
            writers: Writers::default(),
        }
    }

    /// Who has used this task.
    pub fn attendance(&self) -> Attendance {
        self.attendance.attendance()
    }

    /// Asks the machine to start a run.
    pub(crate) fn begin(&self, start: &Start<'_>) -> Result<StartedRun> {
        match self.begin_or_continue(start)? {
            Ok(started) => Ok(started),
            Err(_) => Err(lost()),
        }
    }

    /// Asks the machine to start a run, or to go on with a partial one.
    pub(crate) fn begin_or_continue(
        &self,
        start: &Start<'_>,
    ) -> Result<Result<StartedRun, (RunId, Arc<Rendezvous>)>> {
        let cancellation = Cancellation::new();
        let event = Event::Start(*start, cancellation.clone());
        match self.machine.tell(event) {
            Some(Effect::Run {
                run,
                session,
                graph,
                rendezvous,
            }) => Ok(Ok(StartedRun {
                run,
                session,
                plan: graph,
                cancellation,
                rendezvous,
            })),
            Some(Effect::Continue { run, rendezvous }) => Ok(Err((run, rendezvous))),
            Some(Effect::Refuse(e)) => Err(e),
            _ => Err(lost()),
        }
    }

    /// Executes a run; `done` is called once, from any thread.
    pub(crate) fn execute(
        &self,
        started: StartedRun,
        step_id: u64,
        feeds: Vec<Tensor>,
        trace: bool,
        done: Done,
    ) {
        let clock = self.config.clock;
        let env = started.env(step_id, || trace.then(|| Arc::new(Trace::new(clock))));
        let (machine, run) = (self.machine.clone(), started.run);
        let traced = trace.then(|| (traces(&env), self.log.clone()));
        Step::start_briefly(started.plan, Arc::new(env), feeds, move |outcome| {
            let error = outcome.as_ref().err().cloned();
            machine.tell(Event::Finished { run, error });
            let stats = traced.map_or_else(Vec::new, |(traces, log)| {
                let taken = traces
                    .iter()
                    .map(|(device, t)| device_stats(&device.name, t.take()));
                // The first is the device that clients talk to; of the others, those that did something.
                let mut all: Vec<_> = taken.collect();
                let mut is_first = true;
                all.retain(|d| std::mem::take(&mut is_first) || !d.nodes.is_empty());
                for received in log.take(step_id).unwrap_or_default() {
                    match all.iter_mut().find(|d| d.device == received.device) {
                        Some(device) => device.nodes.extend(received.nodes),
                        None => all.push(received),
                    }
                }
                all
            });
            done(outcome.map(|fetches| StepEnd {
                fetches,
                stats,
                is_over: false,
            }));
        });
    }

    /// The rendezvous where a peer meets a value of a step.
    pub(crate) fn want(&self, step_id: u64, request_id: i64) -> Result<Arc<Rendezvous>> {
        let wanted = Event::Want {
            step_id,
            request_id,
        };
        match self.machine.tell(wanted) {
            Some(Effect::Meet(rendezvous)) => Ok(rendezvous),
            Some(Effect::Refuse(e)) => Err(e),
            _ => Err(lost()),
        }
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
        let isolated = |device: &Arc<Device>| match session.isolate {
            true => Arc::new(device.isolated()),
            false => device.clone(),
        };
        let (devices, peers) = match own_cluster {
            Some(def) => {
                let spec = cluster_from_def(&def.cluster)
                    .map_err(|e| Status::invalid_argument(e.to_string()))?;
                let name = task_name(&def.job_name, def.task_index.max(0) as u32);
                let renamed = |(i, device): (usize, &Arc<Device>)| {
                    let own = isolated(device).shared();
                    Arc::new(own.renamed(format!("{name}/device:CPU:{i}"), &def.job_name))
                };
                let devices: Vec<_> = config.devices().enumerate().map(renamed).collect();
                let peers = Peers::new(&spec, &name, config.limits)
                    .counted_by(config.peers.traffic().clone());
                (devices, Arc::new(peers))
            }
            None => (
                config.devices().map(isolated).collect(),
                config.peers.clone(),
            ),
        };
        let remote = Arc::new(PeerSource {
            functions: RemoteFunctions::new(&session.handle, peers.clone(), config.random),
            peers,
            random: config.random,
            log: (self.log.clone(), config.clock),
        });
        let library = |device: &Arc<Device>| {
            let functions = SessionFunctions::new(config.registry.clone(), device.clone());
            Arc::new(functions.with_remote(remote.clone()))
        };
        let functions: Vec<_> = devices.iter().map(library).collect();
        let each = devices.iter().zip(&functions);
        let siblings: Siblings = each.map(|(d, f)| (d.clone(), f.clone() as _)).collect();
        let device = devices.first().cloned().ok_or_else(lost)?;
        let holder = Holder::Session(session.handle.clone());
        let made = WorkerSession {
            account: device.account.below(holder, device.memory.session),
            device,
            others: devices.into_iter().skip(1).collect(),
            functions,
            siblings: (siblings.len() > 1).then_some(siblings),
            remote,
            kernels: KernelCache::default(),
            writer: self.writers.of(&session.master_task, &config.name),
        };
        self.machine.tell(Event::Open {
            handle: &session.handle,
            master: (session.master_task.clone(), session.master_incarnation),
            session: Arc::new(made),
        });
        let master = &session.master_task;
        self.attendance
            .enter(&session.handle, master, session.master_incarnation);
        Ok(())
    }

    pub(crate) fn compile(
        &self,
        handle: &str,
        graph: &Graph,
        options: GraphOptions,
    ) -> Result<u64> {
        let (id, session) = {
            let machine = self.machine.0.0.lock();
            let (id, session) = machine.session(handle)?;
            (id, session.clone())
        };
        let env = CompileEnv {
            registry: &self.config.registry,
            device: &session.device,
            cache: &session.kernels,
            fold_constants: options.fold_constants,
            site: "",
            others: &session.others,
        };
        for functions in &session.functions {
            functions.add(graph);
        }
        let compiled = Event::Compiled {
            handle,
            session: id,
            graph: Plan::compile(graph, &env)?,
        };
        match self.machine.tell(compiled) {
            Some(Effect::Registered(number)) => Ok(number),
            Some(Effect::Refuse(e)) => Err(e),
            _ => Err(lost()),
        }
    }
}

/// The machine answers every question; this says that it did not.
fn lost() -> Status {
    Status::internal("the worker's machine gave no answer; please report this")
}

impl Task for Worker {
    fn name(&self) -> &str {
        &self.config.name
    }

    fn devices(&self) -> Vec<DeviceAttributes> {
        let attributes = |device: &Arc<Device>| DeviceAttributes {
            name: device.name.clone(),
            device_type: "CPU".into(),
            // TensorFlow reports this for every CPU, whatever its memory.
            memory_limit: 268_435_456,
            incarnation: device.incarnation,
            xla_global_id: -1,
            ..Default::default()
        };
        self.config.devices().map(attributes).collect()
    }

    fn pushes(&self) -> bool {
        self.config.peers.lanes().is_some()
    }

    fn create_session(&self, session: &NewSession) -> Reply<()> {
        ready(self.new_session(session))
    }

    fn delete_session(&self, session: &str) {
        self.attendance.leave(session);
        self.machine.tell(Event::Delete { handle: session });
    }

    fn register_graph(&self, session: &str, graph: Graph, options: GraphOptions) -> Reply<u64> {
        ready(self.compile(session, &graph, options))
    }

    fn deregister_graph(&self, session: &str, graph: u64) {
        let handle = session;
        self.machine.tell(Event::Deregister { handle, graph });
    }

    fn run_graph(&self, session: &str, graph: u64, step: StepStart, done: Done) -> Canceller {
        let started = self.begin(&Start {
            session,
            graph,
            step_id: step.step_id,
            shared: step.shared,
            partial: false,
            request_id: 0,
        });
        match started {
            Ok(started) => {
                let (machine, run) = (self.machine.clone(), started.run);
                self.execute(started, step.step_id, step.feeds, step.trace, done);
                Arc::new(move |reason| machine.stop(run, reason))
            }
            Err(e) => {
                done(Err(e));
                Arc::new(|_| {})
            }
        }
    }

    fn cleanup_step(&self, step_id: u64) {
        self.machine.tell(Event::Cleanup { step_id });
    }

    fn cleanup_all(&self, containers: &[String]) -> Reply<()> {
        for device in self.config.devices() {
            if containers.is_empty() {
                device.resources.clear(&device.default_container);
            }
            for container in containers {
                device.resources.clear(container);
            }
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
        let started = self.begin(&Start {
            session,
            graph,
            step_id,
            shared,
            partial: false,
            request_id: 0,
        })?;
        Ok(LocalPartialStep::start(self, started, step_id))
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
