//! Tasks for programs that are not async themselves: a server on threads of its own, and a whole
//! cluster in one process.

use crate::{ClusterSpec, EndConfig, Limits, Server, ServerConfig, ServerError, Transport};
use downpour_client::Target;
use downpour_master::Master;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::sync::oneshot;

/// A task that serves until it is dropped.
///
/// ```
/// use downpour::{Server, ServerConfig};
/// let server = Server::start(ServerConfig::local())?;
/// assert_eq!(server.name(), "/job:localhost/replica:0/task:0");
/// let address = server.address();
/// assert_eq!(server.target(), format!("grpc://{address}"));
/// assert!(std::net::TcpStream::connect(address).is_ok());
/// server.stop()?;
/// assert!(std::net::TcpStream::connect(address).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct RunningServer {
    name: String,
    address: SocketAddr,
    master: Arc<Master>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<(), ServerError>>>,
}

impl Server {
    /// Starts a task on threads of its own.
    ///
    /// ```
    /// use downpour::{Graph, Server, ServerConfig, Session};
    /// let server = Server::start(ServerConfig::local())?;
    /// let g = Graph::new();
    /// let sum = g.constant(vec![1.0f32, 2.0]).sum(());
    /// let session = Session::new(&server, &g)?;
    /// assert_eq!(session.fetch(&sum)?.scalar_value::<f32>()?, 3.0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn start(config: ServerConfig) -> Result<RunningServer, ServerError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name(format!("{}-{}", config.job, config.task))
            .enable_all()
            .build()
            .map_err(ServerError::Threads)?;
        let server = runtime.block_on(Server::bind(config))?;
        let (name, address) = (server.name().to_owned(), server.address());
        let master = server.master();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name(name.clone())
            .spawn(move || {
                let ended = runtime.block_on(server.serve(async {
                    let _ = stopped.await;
                }));
                // Kernels that run on must not keep the process.
                runtime.shutdown_background();
                ended.map(|_| ())
            })
            .map_err(ServerError::Threads)?;
        Ok(RunningServer {
            name,
            address,
            master,
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl RunningServer {
    /// `/job:J/replica:0/task:N`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The address that was bound.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `grpc://host:port`, for clients of other processes.
    pub fn target(&self) -> String {
        format!("grpc://{}", self.address)
    }

    /// Stops serving and waits until that is done.
    pub fn stop(mut self) -> Result<(), ServerError> {
        self.end()
    }

    /// Serves until the process ends, or until the network fails.
    pub fn join(mut self) -> Result<(), ServerError> {
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(ended)) => ended,
            _ => Ok(()),
        }
    }

    fn end(&mut self) -> Result<(), ServerError> {
        if let Some(stop) = self.stop.take() {
            // A server that has ended by itself does not listen any more.
            let _ = stop.send(());
        }
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(ended)) => ended,
            _ => Ok(()),
        }
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

impl From<&RunningServer> for Target {
    fn from(server: &RunningServer) -> Target {
        Target::local(server.master.clone())
    }
}

/// Parameter servers and workers in one process, on free ports of the loopback interface. They
/// talk to each other as tasks of different machines do.
///
/// ```
/// use downpour::{Graph, Init, LocalCluster, Session};
/// let cluster = LocalCluster::start(1, 2)?;
/// let g = Graph::new();
/// let count = g.with_device("/job:ps/task:0", || {
///     g.variable("count").init(Init::value(1i64)).build()
/// });
/// let [first, second] = [0, 1].map(|i| Session::new(&cluster.workers()[i], &g));
/// first?.run(count.initializer())?;
/// // Both workers see the variable of the parameter server.
/// assert_eq!(second?.fetch(&count)?.scalar_value::<i64>()?, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct LocalCluster {
    spec: ClusterSpec,
    ps: Vec<RunningServer>,
    workers: Vec<RunningServer>,
}

/// How often a cluster is tried again when another process takes one of its ports.
const ATTEMPTS: usize = 5;

impl LocalCluster {
    /// Starts a cluster.
    pub fn start(ps: usize, workers: usize) -> Result<LocalCluster, ServerError> {
        let mut attempt = 1;
        loop {
            match LocalCluster::try_start(ps, workers) {
                Err(ServerError::Bind { .. }) if attempt < ATTEMPTS => attempt += 1,
                outcome => return outcome,
            }
        }
    }

    fn try_start(ps: usize, workers: usize) -> Result<LocalCluster, ServerError> {
        let spec = free_cluster(ps, workers)?;
        let all = |job: &str, count: usize| -> Result<Vec<RunningServer>, ServerError> {
            (0..count).map(|task| start(job, task, &spec)).collect()
        };
        Ok(LocalCluster {
            ps: all("ps", ps)?,
            workers: all("worker", workers)?,
            spec,
        })
    }

    /// Its tasks and addresses.
    pub fn spec(&self) -> &ClusterSpec {
        &self.spec
    }

    /// Its parameter servers.
    pub fn ps(&self) -> &[RunningServer] {
        &self.ps
    }

    /// Stops a parameter server and starts it again at the same address, without its variables:
    /// what tests of recovery need.
    pub fn restart_ps(&mut self, task: usize) -> Result<(), ServerError> {
        let _ = self.ps[task].end();
        self.ps[task] = start("ps", task, &self.spec)?;
        Ok(())
    }

    /// Its workers.
    pub fn workers(&self) -> &[RunningServer] {
        &self.workers
    }
}

fn start(job: &str, task: usize, cluster: &ClusterSpec) -> Result<RunningServer, ServerError> {
    Server::start(ServerConfig {
        job: job.to_owned(),
        task: task as u32,
        cluster: cluster.clone(),
        ..ServerConfig::local()
    })
}

/// Ports of the loopback interface that were free a moment ago.
fn free_cluster(ps: usize, workers: usize) -> Result<ClusterSpec, ServerError> {
    let address = "127.0.0.1:0".to_owned();
    let failed = |source| ServerError::Bind {
        address: address.clone(),
        source,
    };
    // All are held at once, so that no two are the same.
    let held: Vec<TcpListener> = (0..ps + workers)
        .map(|_| TcpListener::bind("127.0.0.1:0"))
        .collect::<Result<_, _>>()
        .map_err(failed)?;
    let addresses: Vec<String> = held
        .iter()
        .map(|l| l.local_addr().map(|a| a.to_string()))
        .collect::<Result<_, _>>()
        .map_err(failed)?;
    let (ps, workers) = addresses.split_at(ps);
    let mut spec = ClusterSpec::default();
    for (job, addresses) in [("ps", ps), ("worker", workers)] {
        if !addresses.is_empty() {
            spec.add_hosts(job, &addresses.join(","))?;
        }
    }
    Ok(spec)
}

impl ServerConfig {
    /// The only task of a cluster in this process, on a free port.
    pub fn local() -> ServerConfig {
        ServerConfig {
            cluster: ClusterSpec::single("localhost", "127.0.0.1:0").unwrap_or_default(),
            job: "localhost".to_owned(),
            task: 0,
            bind: None,
            limits: Limits::default(),
            threads: None,
            memory_limit: None,
            session_memory_limit: None,
            step_memory_limit: None,
            cpu_devices: 1,
            console: None,
            transport: Transport::Auto,
            // Whoever drops a server of their own process wants it gone.
            ending: EndConfig {
                drain: std::time::Duration::ZERO,
                ..Default::default()
            },
            allow_remote_inspect: false,
        }
    }
}
