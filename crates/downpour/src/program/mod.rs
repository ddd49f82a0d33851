//! The fill-in program: of all distributed code only two places vary, *which model* and *what one
//! step does*. A [`Program`] says these two; [`run`] does the rest: cluster, role, placement,
//! session, hooks, checkpoints, end.

mod args;
mod stop;

pub use args::{Args, log_to_stderr, main};
pub use stop::Stop;

use crate::{ClusterSpec, LocalCluster, Role, Server, ServerConfig, ServerError, WhenDone};
use downpour_build::{
    Code, DeviceFunction, DeviceName, Graph, ModelPartitions, Operation, Output,
    ReplicaDeviceSetter, Replicas, Result, Spread, Status, Variable,
};
use downpour_client::{SessionOptions, Target};
use downpour_train::hooks::{Hook, StopAtStep};
use downpour_train::{
    CoordinatedElection, CoordinatorUrl, Every, LeaseElection, Minimize, MissingWorkers,
    MonitoredSession, Optimizer, SharedElection, Supervision, SyncReplicas, SyncTraining,
};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The lease of a chief that a service elects, unless the options say another.
const COORDINATED_LEASE: Duration = Duration::from_secs(1);

/// What varies between training programs.
///
/// ```
/// use downpour::program::{self, Options, Program, Worker};
/// use downpour::train::{GradientDescent, MonitoredSession};
/// use downpour::{DType, Init, Operation, Output, Result};
///
/// struct Line;
///
/// impl Program for Line {
///     type Model = (Output, Output, Operation);
///
///     fn build(&self, worker: &Worker) -> Result<Self::Model> {
///         let g = worker.graph();
///         let x = g.placeholder("x", DType::Float, [None]);
///         let y = g.placeholder("y", DType::Float, [None]);
///         let slope = g.variable("slope").init(Init::value(0.0f32)).build();
///         let loss = (&*slope * &x - &y).square().mean(());
///         let train = worker.minimize(&GradientDescent::new(0.1), &loss)?;
///         Ok((x, y, train))
///     }
///
///     fn step(&self, (x, y, train): &mut Self::Model, session: &mut MonitoredSession) -> Result<()> {
///         let step = session.step().feed(x, [1.0f32, 2.0]).feed(y, [3.0f32, 6.0]);
///         step.target(train).run()
///     }
/// }
///
/// let report = program::run(&Line, &Options { ps: 1, workers: 2, steps: 50, ..Options::default() })?;
/// assert!(report["steps"] >= 50.0);
/// # Ok::<(), downpour::program::ProgramError>(())
/// ```
pub trait Program: Sync {
    /// Steps of all workers together, when the command line does not say.
    const STEPS: i64 = 1000;

    /// What a worker keeps: its graph's tensors, its data.
    type Model;

    /// Builds the model. Variables land on the parameter servers, all else on this worker.
    fn build(&self, worker: &Worker) -> Result<Self::Model>;

    /// Runs one step. Running out of data is `OUT_OF_RANGE`, and ends this worker.
    fn step(&self, model: &mut Self::Model, session: &mut MonitoredSession) -> Result<()>;

    /// Looks at the trained model, on the chief, before the session ends: names and numbers for
    /// the report.
    fn finish(&self, _model: &mut Self::Model, _session: &mut MonitoredSession) -> Result<Report> {
        Ok(Report::new())
    }

    /// More work around steps, on the chief or on the other workers.
    fn hooks(&self, _model: &Self::Model, _worker: &Worker) -> Vec<Box<dyn Hook>> {
        Vec::new()
    }
}

/// Names and numbers that a program ends with.
///
/// [`run`] gives `steps`, `steps_per_second` and `recoveries`; [`Program::finish`] adds to them.
///
/// ```
/// use downpour::program::Report;
/// let mut report = Report::from([("steps".to_owned(), 100.0)]);
/// report.extend(Report::from([("accuracy".to_owned(), 0.92)]));
/// assert_eq!(report["accuracy"], 0.92);
/// assert!(report.keys().eq(["accuracy", "steps"]));
/// ```
pub type Report = BTreeMap<String, f64>;

/// How a program runs.
///
/// ```
/// use downpour::program::{self, Options, Program, Worker};
/// # use downpour::train::MonitoredSession;
/// # use downpour::{Operation, Result};
/// #
/// # struct Count;
/// # impl Program for Count {
/// #     const STEPS: i64 = 3;
/// #     type Model = Operation;
/// #     fn build(&self, worker: &Worker) -> Result<Operation> {
/// #         Ok(worker.global_step().assign_add(&worker.graph().constant(1i64)))
/// #     }
/// #     fn step(&self, count: &mut Operation, session: &mut MonitoredSession) -> Result<()> {
/// #         session.step().target(count).run()
/// #     }
/// # }
/// #
/// let dir = tempfile::tempdir()?;
/// let five = Options {
///     dir: Some(dir.path().to_string_lossy().into_owned()),
///     steps: 5,
///     ..Options::default()
/// };
/// assert_eq!(program::run(&Count, &five)?["steps"], 5.0);
/// // Goes on from the checkpoint of the first run: these are three steps more.
/// let eight = Options { steps: 8, ..five };
/// assert_eq!(program::run(&Count, &eight)?["steps"], 8.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    /// Parameter servers of a cluster in this process; without any, workers keep the variables.
    pub ps: usize,
    /// Workers of a cluster in this process.
    pub workers: usize,
    /// Workers that compute one replica of the model together: every so many of them, the first of
    /// which leads.
    pub partitions: usize,
    /// Which task of which cluster to be, instead.
    pub role: Option<Role>,
    /// One update for all workers instead of one for each.
    pub sync: bool,
    /// With `sync`: how many workers an update does not wait for.
    pub backups: usize,
    /// Steps of all workers together.
    pub steps: i64,
    /// Where checkpoints go.
    pub dir: Option<String>,
    /// How often.
    pub save: Every,
    /// Elects the chief by a lease of this length in `dir`, so that another worker takes over when
    /// it is gone, instead of appointing the first one.
    pub elect: Option<Duration>,
    /// Elects the chief in this service instead of `dir`, by a lease of `elect` or a second.
    pub coordinator: Option<CoordinatorUrl>,
    /// How long to wait for the cluster.
    pub patience: Duration,
    /// Saves and ends early when somebody asks.
    pub stop: Stop,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            ps: 1,
            workers: 1,
            partitions: 1,
            role: None,
            sync: false,
            backups: 0,
            steps: 1000,
            dir: None,
            save: Every::Time(Duration::from_secs(60)),
            elect: None,
            coordinator: None,
            patience: Duration::from_secs(600),
            stop: Stop::default(),
        }
    }
}

/// Why a program could not run or go on.
///
/// ```
/// use downpour::program::{self, Options, Program, ProgramError, Worker};
/// # use downpour::train::MonitoredSession;
/// # use downpour::{Operation, Result};
/// #
/// # struct Count;
/// # impl Program for Count {
/// #     const STEPS: i64 = 3;
/// #     type Model = Operation;
/// #     fn build(&self, worker: &Worker) -> Result<Operation> {
/// #         Ok(worker.global_step().assign_add(&worker.graph().constant(1i64)))
/// #     }
/// #     fn step(&self, count: &mut Operation, session: &mut MonitoredSession) -> Result<()> {
/// #         session.step().target(count).run()
/// #     }
/// # }
/// #
/// // A chief can only be elected in a directory that all workers see.
/// let lost = Options { elect: Some(std::time::Duration::from_secs(5)), ..Options::default() };
/// let error = program::run(&Count, &lost).err();
/// assert!(matches!(&error, Some(ProgramError::Training(e)) if e.message.contains("--dir")));
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum ProgramError {
    /// A task could not be started.
    Server(ServerError),
    /// Building or training failed.
    Training(Status),
}

impl std::fmt::Display for ProgramError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ProgramError::Server(e) => e.fmt(f),
            ProgramError::Training(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for ProgramError {}

impl From<ServerError> for ProgramError {
    fn from(e: ServerError) -> ProgramError {
        ProgramError::Server(e)
    }
}

impl From<Status> for ProgramError {
    fn from(e: Status) -> ProgramError {
        ProgramError::Training(e)
    }
}

/// One worker while its model is built.
///
/// ```
/// use downpour::program::{self, Options, Program, Report, Worker};
/// use downpour::train::MonitoredSession;
/// use downpour::{Operation, Result};
///
/// struct Own;
///
/// impl Program for Own {
///     type Model = (usize, Operation);
///
///     fn build(&self, worker: &Worker) -> Result<Self::Model> {
///         assert!(worker.index() < worker.count());
///         assert_eq!(worker.is_chief(), worker.index() == 0);
///         let one = worker.graph().constant(1i64);
///         Ok((worker.count(), worker.global_step().assign_add(&one)))
///     }
///
///     fn step(&self, (_, count): &mut Self::Model, session: &mut MonitoredSession) -> Result<()> {
///         session.step().target(count).run()
///     }
///
///     fn finish(&self, model: &mut Self::Model, _: &mut MonitoredSession) -> Result<Report> {
///         Ok(Report::from([("workers".to_owned(), model.0 as f64)]))
///     }
/// }
///
/// let report = program::run(&Own, &Options { workers: 2, steps: 4, ..Options::default() })?;
/// assert_eq!(report["workers"], 2.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Worker {
    graph: Graph,
    job: String,
    index: usize,
    count: usize,
    ps: usize,
    is_chief: bool,
    partitions: ModelPartitions,
    sync: Option<SyncReplicas>,
    global_step: Variable,
    training: RefCell<Option<SyncTraining>>,
}

impl Worker {
    /// The graph to build in.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The tasks that its model may be split over: itself, and as many others as
    /// [`Options::partitions`] says.
    pub fn partitions(&self) -> &ModelPartitions {
        &self.partitions
    }

    /// Its number among the workers that lead a replica: all of them if models are not split.
    pub fn index(&self) -> usize {
        self.index
    }

    /// How many workers there are, or replicas of several workers each.
    pub fn count(&self) -> usize {
        self.count
    }

    /// How many tasks keep variables: into so many parts a large table is best cut.
    pub fn ps(&self) -> usize {
        self.ps
    }

    /// Whether it initialises, saves and reports.
    pub fn is_chief(&self) -> bool {
        self.is_chief
    }

    /// The count of steps that all workers share.
    pub fn global_step(&self) -> &Variable {
        &self.global_step
    }

    /// Who holds synchronous training up, from when [`Self::minimize`] has built it. Nobody ever
    /// does when every worker trains on its own.
    pub fn missing(&self) -> MissingWorkers {
        let training = self.training.borrow();
        training
            .as_ref()
            .map(SyncTraining::missing)
            .unwrap_or_default()
    }

    /// The operation of one step: on its own, or together with the other workers.
    pub fn minimize(&self, optimizer: &impl Optimizer, loss: &Output) -> Result<Operation> {
        let Some(sync) = &self.sync else {
            return optimizer.minimize(loss, Some(&self.global_step));
        };
        let training = sync.minimize(optimizer, loss, &self.global_step)?;
        let train = training.train().clone();
        *self.training.borrow_mut() = Some(training);
        Ok(train)
    }
}

/// Runs a program: in the given role, or as a whole cluster in this process. The chief's report;
/// another task's is empty.
///
/// ```
/// use downpour::program::{self, Options, Program, Worker};
/// use downpour::train::MonitoredSession;
/// use downpour::{Operation, Result};
///
/// /// Does nothing but count its steps.
/// struct Count;
///
/// impl Program for Count {
///     type Model = Operation;
///
///     fn build(&self, worker: &Worker) -> Result<Operation> {
///         Ok(worker.global_step().assign_add(&worker.graph().constant(1i64)))
///     }
///
///     fn step(&self, count: &mut Operation, session: &mut MonitoredSession) -> Result<()> {
///         session.step().target(count).run()
///     }
/// }
///
/// let report = program::run(&Count, &Options { steps: 7, ..Options::default() })?;
/// assert_eq!(report["steps"], 7.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn run<P: Program>(program: &P, options: &Options) -> Result<Report, ProgramError> {
    match &options.role {
        Some(role) => as_task(program, options, role),
        None => locally(program, options),
    }
}

/// Runs all tasks in this process.
fn locally<P: Program>(program: &P, options: &Options) -> Result<Report, ProgramError> {
    let replicas = replicas(
        (0..options.workers.max(1) as u32).map(|task| ("worker".to_owned(), task)),
        0..options.ps as u32,
        options,
    )?;
    let cluster = LocalCluster::start(options.ps, options.workers.max(1))?;
    let place = |index: usize| Place {
        target: Target::from(&cluster.workers()[index * options.partitions]),
        cluster: cluster.spec(),
        job: "worker",
        index,
        is_chief: index == 0,
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..replicas.count())
            .map(|i| scope.spawn(move || work(program, options, &place(i))))
            .collect();
        let mut report = work(program, options, &place(0));
        for other in others {
            // Only the chief's says something, and any worker may have been elected.
            match other.join() {
                Ok(outcome) => {
                    let other = outcome?;
                    report = report.map(|report| if report.is_empty() { other } else { report });
                }
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok(report?)
    })
}

/// Runs one task of a cluster of many processes.
fn as_task<P: Program>(
    program: &P,
    options: &Options,
    role: &Role,
) -> Result<Report, ProgramError> {
    let mut config = ServerConfig {
        cluster: role.cluster.clone(),
        job: role.job.clone(),
        task: role.task,
        bind: Some(role.listen.clone()),
        ..ServerConfig::local()
    };
    let all = masters(&role.cluster);
    let own = all.iter().position(|m| *m == (role.job.clone(), role.task));
    replicas(all.clone(), ps_tasks(&role.cluster), options)?;
    let leads: Vec<(String, u32)> = all.into_iter().step_by(options.partitions).collect();
    let (is_chief, own) = (own == Some(0), own.unwrap_or(0));
    let (index, leads_one) = (own / options.partitions, own % options.partitions == 0);
    if role.job == "ps" || !leads_one {
        // A replica's other workers serve the one that leads, and all replicas if variables are here.
        let wait_for = match role.job == "ps" || index == 0 && role.cluster.job("ps").is_err() {
            true => leads,
            false => leads.into_iter().skip(index).take(1).collect(),
        };
        config.ending.when_done = Some(WhenDone {
            wait_for,
            grace: Duration::from_secs(5),
        });
        Server::start(config)?.join()?;
        return Ok(Report::new());
    }
    let server = Server::start(config)?;
    Ok(work(
        program,
        options,
        &Place {
            target: Target::from(&server),
            cluster: &role.cluster,
            job: &role.job,
            index,
            is_chief,
        },
    )?)
}

/// The tasks that train, the chief first.
fn masters(cluster: &ClusterSpec) -> Vec<(String, u32)> {
    let rank = |job: &str| match job {
        "chief" => Some(0),
        "master" => Some(1),
        "worker" => Some(2),
        _ => None,
    };
    let mut all: Vec<(i32, String, u32)> = cluster
        .tasks()
        .filter_map(|(job, task, _)| Some((rank(job)?, job.to_owned(), task)))
        .collect();
    all.sort();
    all.into_iter().map(|(_, job, task)| (job, task)).collect()
}

/// The numbers of the parameter servers.
fn ps_tasks(cluster: &ClusterSpec) -> Vec<u32> {
    match cluster.job("ps") {
        Ok(tasks) => tasks.keys().copied().collect(),
        Err(_) => Vec::new(),
    }
}

/// The workers as replicas of as many tasks as the options say.
fn replicas(
    masters: impl IntoIterator<Item = (String, u32)>,
    ps: impl IntoIterator<Item = u32>,
    options: &Options,
) -> Result<Replicas> {
    let devices = masters.into_iter();
    let devices = devices.map(|(job, task)| format!("/job:{job}/task:{task}"));
    Ok(Replicas::over(devices, options.partitions)?.ps_tasks(ps))
}

/// Where a worker is.
struct Place<'a> {
    target: Target,
    cluster: &'a ClusterSpec,
    job: &'a str,
    index: usize,
    is_chief: bool,
}

/// Builds and trains as one worker.
fn work<P: Program>(program: &P, options: &Options, place: &Place<'_>) -> Result<Report> {
    let graph = Graph::new();
    let ps = ps_tasks(place.cluster);
    let replicas = replicas(masters(place.cluster), ps.iter().copied(), options)?;
    let (count, keepers) = (replicas.count(), ps.len().max(1));
    let device = replicas.lead(place.index);
    let partitions = replicas.partitions(place.index)?;
    let function = match options.partitions {
        1 => setter(&device, ps, &replicas.lead(0))?,
        _ => replicas.device_function(place.index)?,
    };
    let (model, worker) = graph.with_device_function(function, || {
        let worker = Worker {
            global_step: downpour_train::global_step(&graph),
            graph: graph.clone(),
            job: place.job.to_owned(),
            index: place.index,
            count,
            ps: keepers,
            is_chief: place.is_chief,
            partitions,
            sync: options.sync.then(|| {
                let sync = SyncReplicas::new(count, place.index).backups(options.backups);
                sync.tasks((0..count).map(|replica| replicas.lead(replica)))
            }),
            training: RefCell::new(None),
        };
        program.build(&worker).map(|model| (model, worker))
    })?;
    let mut model = model;
    graph.check()?;
    let filters = replicas.filters(place.index);
    let mut supervision = Supervision::new(&place.target, &graph)
        .chief(place.is_chief)
        .options(SessionOptions::new().device_filters(filters))
        .patience(options.patience);
    if let Some(dir) = &options.dir {
        supervision = supervision.checkpoints(dir, options.save);
    }
    let election = election(options, &device)?;
    if let Some(election) = &election {
        supervision = supervision.election(election.clone());
    }
    if let Some(training) = &*worker.training.borrow() {
        supervision = supervision.hook(match &election {
            Some(election) => training.elected_hook(election),
            None => training.hook(place.is_chief),
        });
    }
    for hook in program.hooks(&model, &worker) {
        supervision = supervision.boxed_hook(hook);
    }
    let mut session = supervision.hook(StopAtStep::new(options.steps)).open()?;
    tracing::info!(worker = place.index, job = worker.job, "training begins");
    let begin = (Instant::now(), session.global_step()?);
    while !session.should_stop() && !options.stop.is_asked() {
        match program.step(&mut model, &mut session) {
            Err(e) if e.code == Code::OutOfRange => break,
            outcome => outcome?,
        }
    }
    let mut report = Report::new();
    if session.is_chief() {
        let (seconds, step) = (begin.0.elapsed().as_secs_f64(), session.global_step()?);
        report.insert("steps".to_owned(), step as f64);
        let speed = (step - begin.1) as f64 / seconds.max(1e-9);
        report.insert("steps_per_second".to_owned(), speed);
        report.insert("recoveries".to_owned(), session.losses() as f64);
        // Who asks to stop wants what there is to be saved, and nothing else that takes time.
        if !options.stop.is_asked() {
            report.extend(program.finish(&mut model, &mut session)?);
        }
    }
    session.close()?;
    Ok(report)
}

/// This worker's part in the election of a chief, if there is one.
fn election(options: &Options, device: &str) -> Result<Option<SharedElection>> {
    let election = match (&options.coordinator, options.elect, &options.dir) {
        (Some(service), lease, _) => {
            let lease = lease.unwrap_or(COORDINATED_LEASE);
            SharedElection::new(CoordinatedElection::join(service, device, lease)?)
        }
        (None, Some(lease), Some(dir)) => {
            SharedElection::new(LeaseElection::new(dir, device, lease))
        }
        (None, Some(_), None) => {
            return Err(Status::invalid_argument(
                "an election needs a directory that all workers see: --dir",
            ));
        }
        (None, None, _) => return Ok(None),
    };
    Ok(Some(election))
}

/// Variables on the parameter servers by their size, or on the chief if there are none; all else on
/// the worker.
fn setter(worker: &str, ps: Vec<u32>, chief: &str) -> Result<DeviceFunction> {
    if ps.is_empty() {
        let setter = ReplicaDeviceSetter::new(1).worker_device(worker);
        let on_chief = DeviceName::parse(chief)
            .unwrap_or_default()
            .task
            .unwrap_or(0);
        let job = chief.split("/task:").next().unwrap_or(chief);
        return setter
            .ps_device(job)
            .strategy(Spread::by(move |_| on_chief))
            .build();
    }
    let setter = ReplicaDeviceSetter::new(ps.len() as u32).worker_device(worker);
    setter.strategy(Spread::by_bytes_over(ps)).build()
}
