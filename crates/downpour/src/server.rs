//! One task of a cluster, ready to serve.

use crate::ending::{self, EndConfig, EndReason};
use crate::machine;
use crate::report::{reporter, step_recorder};
use downpour_cluster::{ClusterError, ClusterSpec, Transport};
use downpour_formats::{Files, StorageHandle};
use downpour_master::{Master, MasterConfig, MasterShell};
use downpour_net::{Admission, Control, Health, Lanes, Limits, Listener, Methods, Peers};
use downpour_runtime::{Console, Device, Extensions, Host, MemoryBudget, Registry, Timer};
use downpour_wire::Budget;
use downpour_worker::{Worker, WorkerConfig, WorkerShell};
use std::future::Future;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use tokio::sync::watch;

/// Which task to be, and how.
///
/// ```
/// use downpour::{ClusterSpec, Server, ServerConfig};
/// let server = Server::start(ServerConfig {
///     cluster: ClusterSpec::from_json(r#"{"ps": ["ps.example:2222"], "worker": ["w.example:2222"]}"#)?,
///     job: "ps".to_owned(),
///     task: 0,
///     // Other tasks use the name of the cluster; the task itself listens here.
///     bind: Some("127.0.0.1:0".to_owned()),
///     ..ServerConfig::local()
/// })?;
/// assert_eq!(server.name(), "/job:ps/replica:0/task:0");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// All jobs and tasks.
    pub cluster: ClusterSpec,
    /// This task's job.
    pub job: String,
    /// This task's index.
    pub task: u32,
    /// Address to listen on instead of the one in the cluster.
    pub bind: Option<String>,
    /// Bounds.
    pub limits: Limits,
    /// Executor threads; as many as cores if not given.
    pub threads: Option<usize>,
    /// Bytes that all tensors of the task may take; four fifths of the machine's memory if not given.
    pub memory_limit: Option<usize>,
    /// Bytes that those of one session may take; nine tenths of the task's if not given.
    pub session_memory_limit: Option<usize>,
    /// Bytes that those of one step may take; as many as a session's if not given.
    pub step_memory_limit: Option<usize>,
    /// CPU devices that the task shows, at least one: they have variables of their own and share the threads.
    pub cpu_devices: usize,
    /// Where `Print` writes; to the log if not given.
    pub console: Option<Console>,
    /// How it talks to other tasks that are ours.
    pub transport: Transport,
    /// How the task ends.
    pub ending: EndConfig,
    /// Whether other machines may ask what the task does.
    pub allow_remote_inspect: bool,
}

/// Why a server cannot start or go on.
///
/// ```
/// use downpour::{Server, ServerConfig, ServerError};
/// let error = Server::start(ServerConfig { task: 3, ..ServerConfig::local() }).err();
/// assert!(matches!(error, Some(ServerError::Cluster(_))));
/// let text = error.map(|e| e.to_string()).unwrap_or_default();
/// assert!(text.starts_with("job 'localhost' has no task 3"), "{text}");
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum ServerError {
    /// The cluster does not fit the task.
    Cluster(ClusterError),
    /// The address cannot be bound.
    Bind {
        /// Address.
        address: String,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The system gives no threads.
    Threads(std::io::Error),
}

impl std::fmt::Display for ServerError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ServerError::Cluster(e) => e.fmt(f),
            ServerError::Bind { address, source } => {
                write!(f, "cannot listen on {address}: {source}")
            }
            ServerError::Threads(e) => write!(f, "cannot start the network threads: {e}"),
        }
    }
}

impl std::error::Error for ServerError {}

impl From<ClusterError> for ServerError {
    fn from(e: ClusterError) -> ServerError {
        ServerError::Cluster(e)
    }
}

/// A task that listens but does not serve yet.
///
/// [`Server::start`] is for programs that are not async.
///
/// ```
/// use downpour::{EndReason, Server, ServerConfig};
/// # let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
/// # runtime.block_on(async {
/// let server = Server::bind(ServerConfig::local()).await?;
/// assert_ne!(server.address().port(), 0);
/// let enough = tokio::time::sleep(std::time::Duration::from_millis(50));
/// assert_eq!(server.serve(enough).await?, EndReason::Stopped);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Server {
    listener: Listener,
    master: Arc<Master>,
    worker: Arc<Worker>,
    peers: Arc<Peers>,
    limits: Limits,
    name: String,
    ending: EndConfig,
    allow_remote_inspect: bool,
}

impl Server {
    /// Binds the task's own address and prepares its devices and kernels.
    pub async fn bind(config: ServerConfig) -> Result<Server, ServerError> {
        let address = config.cluster.address(&config.job, config.task)?.to_owned();
        let address = config.bind.unwrap_or(address);
        let listener = Listener::bind(&address)
            .await
            .map_err(|source| ServerError::Bind { address, source })?;
        let name = format!("/job:{}/replica:0/task:{}", config.job, config.task);
        let mut registry = Registry::new();
        downpour_kernels::register(&mut registry);
        // What does not fit in most of the machine would only get the process killed.
        let whole = (config.memory_limit).unwrap_or_else(|| machine::memory_bytes() / 5 * 4);
        let mut memory = MemoryBudget::of_process(whole);
        memory.session = config.session_memory_limit.unwrap_or(memory.session);
        memory.step = config.step_memory_limit.unwrap_or(memory.session);
        memory.max_tensor_bytes = memory.session.min(memory.step).min(whole);
        let mut extensions = Extensions::default();
        if let Some(console) = config.console {
            extensions.insert(console);
        }
        extensions.insert(Host {
            name: machine::host_name(),
            now_ns: machine::now_ns,
        });
        crate::install_storages();
        extensions.insert(StorageHandle(Arc::new(Files::new())));
        let clock = tokio::runtime::Handle::current();
        extensions.insert(Timer::new(move |delay, job| {
            clock.spawn(async move {
                tokio::time::sleep(delay).await;
                job();
            });
        }));
        let device = Arc::new(Device::cpu(
            format!("{name}/device:CPU:0"),
            &config.job,
            machine::random().max(1),
            config.threads.unwrap_or_else(machine::cores),
            memory,
            extensions,
        ));
        let others = (1..config.cpu_devices.max(1)).map(|i| {
            let other = device.isolated();
            Arc::new(other.renamed(format!("{name}/device:CPU:{i}"), &config.job))
        });
        let others = others.collect();
        let lanes = match config.transport {
            Transport::Grpc => None,
            // Without them everything goes over gRPC.
            _ => Lanes::new(&name, device.incarnation, config.limits).ok(),
        };
        let peers = Peers::new(&config.cluster, &name, config.limits).with_lanes(lanes.clone());
        let peers = Arc::new(peers);
        let worker = Arc::new(Worker::new(WorkerConfig {
            name: name.clone(),
            registry: Arc::new(registry),
            device,
            others,
            clock: machine::now_ns,
            peers: peers.clone(),
            limits: config.limits,
            random: machine::random,
        }));
        if let Some(lanes) = &lanes {
            let handler: Weak<Worker> = Arc::downgrade(&worker);
            lanes.handled_by(handler);
            lanes.among(&config.cluster, &config.job, config.task);
        }
        let master = Arc::new(Master::new(MasterConfig {
            task: worker.clone(),
            peers: peers.clone(),
            limits: config.limits,
            budget: Budget::default(),
            random: machine::random,
        }));
        Ok(Server {
            listener,
            master,
            worker,
            peers,
            limits: config.limits,
            name,
            ending: config.ending,
            allow_remote_inspect: config.allow_remote_inspect,
        })
    }

    /// The address that was bound.
    pub fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// Its master, for clients of the same process.
    pub(crate) fn master(&self) -> Arc<Master> {
        self.master.clone()
    }

    /// `/job:J/replica:0/task:N`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Serves until `stop` resolves, until it is asked to stop, or until those it waits for are
    /// done. Then steps under way end and open calls are answered.
    pub async fn serve(
        self,
        stop: impl Future<Output = ()> + Send,
    ) -> Result<EndReason, ServerError> {
        let admission = Admission::new(&self.name);
        let (order, mut orders) = watch::channel(None);
        let control = Control {
            task: self.name,
            allow_remote: self.ending.allow_remote_stop,
            allow_remote_inspect: self.allow_remote_inspect,
            reporter: reporter(self.master.clone(), self.worker.clone(), admission.clone()),
            drain: self.ending.drain,
            admission: admission.clone(),
            order,
        };
        admission.show_metrics(&control.reporter, self.allow_remote_inspect);
        let recorder = step_recorder(self.master.clone());
        admission.show_steps(recorder, self.allow_remote_inspect);
        let shell = MasterShell::service(self.master.clone(), self.limits.message_bytes);
        let worker = WorkerShell::new(self.worker.clone());
        let mut methods = Methods::default();
        MasterShell::add_methods(&self.master, &mut methods);
        worker.add_methods(&mut methods);
        let (mut health, health_service) = Health::serving().await;
        let routes = tonic::service::Routes::new(shell)
            .add_service(worker.service())
            .add_service(control.service())
            .add_service(health_service);
        let mut reason = EndReason::Stopped;
        let end = async {
            let mut drain = self.ending.drain;
            let done = async {
                match &self.ending.when_done {
                    Some(when) => ending::done(when, &self.worker, &self.peers, &admission).await,
                    None => std::future::pending().await,
                }
            };
            let lease = match &self.ending.when_done {
                Some(when) => when.lost().min(self.limits.lease),
                None => self.limits.lease,
            };
            tokio::select! {
                () = stop => {}
                () = ending::end_leases(lease, &self.master) => {}
                () = done => reason = EndReason::Done,
                Ok(order) = orders.wait_for(Option::is_some) => {
                    drain = order.unwrap_or(drain);
                    reason = EndReason::Asked;
                }
            }
            health.draining().await;
            ending::wind_down(&admission, &self.master, &self.peers, drain, &mut orders).await;
            health.ended().await;
        };
        let (listener, limits) = (self.listener, self.limits);
        let doors = (admission.clone(), self.peers.lanes().cloned());
        downpour_net::serve(listener, routes, methods, limits, doors, end).await;
        Ok(reason)
    }
}
