//! A session: a graph as a master knows it. What was built since the last step is sent before
//! the next; a request that was made before is found prepared.

use crate::runtime::{spawn, wait};
use crate::{Step, Target};
use downpour_build::{Graph, Operation, Output, Result, Tensor};
use downpour_net::MasterCalls;
use downpour_wire::messages::{
    CallableOptions, CloseSessionRequest, CreateSessionRequest, DeviceAttributes,
    ExtendSessionRequest, ListDevicesRequest, MakeCallableRequest, ResetRequest, RunOptions,
    SessionConfig,
};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// How a session is opened.
///
/// ```
/// use downpour::{Graph, Server, ServerConfig, Session, SessionOptions};
/// let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// // There is no such device: only a session that may place operations elsewhere computes it.
/// let root = g.with_device("/device:GPU:0", || g.constant(9.0f32).sqrt());
/// assert!(Session::new(&server, &g).and_then(|s| s.fetch(&root)).is_err());
/// let session = SessionOptions::new().soft_placement(true).open(&server, &g)?;
/// assert_eq!(session.fetch(&root)?.scalar_value::<f32>()?, 3.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct SessionOptions {
    config: SessionConfig,
}

impl SessionOptions {
    /// The usual settings.
    pub fn new() -> SessionOptions {
        SessionOptions::default()
    }

    /// Only devices matching one of these take part: `/job:ps`, `/job:worker/task:0`. A worker
    /// that lists the ps and itself does not wait for other workers.
    pub fn device_filters<S: Into<String>>(
        mut self,
        filters: impl IntoIterator<Item = S>,
    ) -> SessionOptions {
        self.config.device_filters = filters.into_iter().map(Into::into).collect();
        self
    }

    /// Places an operation elsewhere rather than fail.
    pub fn soft_placement(mut self, allow: bool) -> SessionOptions {
        self.config.allow_soft_placement = allow;
        self
    }

    /// Longest time that opening the session, or a step without a timeout of its own, may take.
    pub fn timeout(mut self, timeout: Duration) -> SessionOptions {
        self.config.operation_timeout = Some(timeout);
        self
    }

    /// Keeps variables apart from those of other sessions.
    pub fn isolated(mut self, isolated: bool) -> SessionOptions {
        self.config.isolate_session_state = isolated;
        self
    }

    /// Opens the session.
    pub fn open(self, target: impl Into<Target>, graph: &Graph) -> Result<Session> {
        let (master, name) = target.into().open()?;
        let def = graph.to_graph_def()?;
        let known = def.nodes.len();
        let limit = self.config.operation_timeout;
        let request = CreateSessionRequest {
            graph: def,
            config: self.config,
            target: name,
        };
        let create = master.clone().create_session(request);
        let reply = wait(limited(limit, "opening a session", create))?;
        Ok(Session {
            master,
            graph: graph.clone(),
            handle: reply.session_handle,
            limit,
            state: Mutex::new(State {
                known,
                version: reply.graph_version,
                prepared: HashMap::new(),
            }),
        })
    }
}

/// A graph on a master. Dropping it closes it.
///
/// ```
/// use downpour::{Graph, Init, Server, ServerConfig, Session};
/// let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let count = g.variable("count").init(Init::value(10i64)).build();
/// let session = Session::new(&server, &g)?;
/// session.run(count.initializer())?;
/// // What is built later is sent before the next step.
/// session.run(&count.assign_add(&g.constant(5i64)))?;
/// assert_eq!(session.fetch(&count)?.scalar_value::<i64>()?, 15);
/// session.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Session {
    pub(crate) master: Arc<dyn MasterCalls>,
    graph: Graph,
    pub(crate) handle: String,
    limit: Option<Duration>,
    state: Mutex<State>,
}

struct State {
    /// Nodes that the master knows.
    known: usize,
    version: i64,
    /// Callables by what they feed, fetch and run.
    prepared: HashMap<Request, i64>,
}

/// What a step feeds, fetches and runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Request {
    pub(crate) feeds: Vec<String>,
    pub(crate) fetches: Vec<String>,
    pub(crate) targets: Vec<String>,
    pub(crate) timeout: Option<Duration>,
}

impl Session {
    /// Opens a session with the usual settings.
    ///
    /// ```no_run
    /// use downpour_build::Graph;
    /// use downpour_client::Session;
    /// let g = Graph::new();
    /// let sum = g.constant(1.0f32) + 2.0;
    /// let session = Session::new("grpc://127.0.0.1:2222", &g)?;
    /// assert_eq!(session.fetch(&sum)?.scalar_value::<f32>()?, 3.0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(target: impl Into<Target>, graph: &Graph) -> Result<Session> {
        SessionOptions::new().open(target, graph)
    }

    /// The graph.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Begins a step.
    pub fn step(&self) -> Step<&Session> {
        Step::on(self)
    }

    /// Runs an operation.
    pub fn run(&self, operation: &Operation) -> Result<()> {
        self.step().target(operation).run()
    }

    /// Computes a tensor.
    pub fn fetch(&self, output: &Output) -> Result<Tensor> {
        self.step().fetch(output)
    }

    /// The devices that the session can use.
    pub fn devices(&self) -> Result<Vec<DeviceAttributes>> {
        let request = ListDevicesRequest {
            session_handle: self.handle.clone(),
        };
        let reply = wait(self.master.clone().list_devices(request))?;
        Ok(reply
            .local_device
            .into_iter()
            .chain(reply.remote_device)
            .collect())
    }

    /// Whether anything listens where a task of the cluster, `/job:J/task:N`, should be: a process
    /// that was killed refuses connections, one that hangs does not. Nothing if it cannot be told,
    /// as behind `grpc://`.
    pub fn listens(&self, task: &str) -> Result<Option<bool>> {
        wait(self.master.clone().listens(task.to_owned()))
    }

    /// Closes the session; running steps end.
    pub fn close(self) -> Result<()> {
        let request = CloseSessionRequest {
            session_handle: self.handle.clone(),
        };
        wait(self.master.clone().close_session(request))
    }

    /// Ends every session of a master and forgets its variables, queues and tables.
    pub fn reset(target: impl Into<Target>) -> Result<()> {
        let (master, _) = target.into().open()?;
        wait(master.reset(ResetRequest::default()))
    }

    /// Longest time of a step that has none of its own.
    pub(crate) fn limit(&self) -> Option<Duration> {
        self.limit
    }

    /// Sends what was built since the last step.
    pub(crate) fn extend(&self) -> Result<()> {
        self.graph.check()?;
        let mut state = self.state.lock();
        let count = self.graph.len();
        if count == state.known {
            return Ok(());
        }
        let request = ExtendSessionRequest {
            session_handle: self.handle.clone(),
            graph: self.graph.graph_def_since(state.known)?,
            current_graph_version: state.version,
        };
        let added = request.graph.nodes.len();
        let reply = wait(self.master.clone().extend_session(request))?;
        state.known += added;
        state.version = reply.new_graph_version;
        Ok(())
    }

    /// The callable for a request, prepared now or before.
    pub(crate) fn prepared(&self, request: &Request) -> Result<i64> {
        if let Some(handle) = self.state.lock().prepared.get(request) {
            return Ok(*handle);
        }
        self.extend()?;
        let options = CallableOptions {
            feed: request.feeds.clone(),
            fetch: request.fetches.clone(),
            target: request.targets.clone(),
            run_options: RunOptions {
                timeout: request.timeout,
                ..Default::default()
            },
            ..Default::default()
        };
        let make = self.master.clone().make_callable(MakeCallableRequest {
            session_handle: self.handle.clone(),
            options,
            request_id: 0,
        });
        let reply = wait(limited(self.limit, "preparing a step", make))?;
        let mut state = self.state.lock();
        state.prepared.insert(request.clone(), reply.handle);
        Ok(reply.handle)
    }
}

impl Session {
    /// Closes the session without waiting for the master's answer, which may never come; running
    /// steps end, and further ones fail.
    pub fn abandon(&self) {
        let request = CloseSessionRequest {
            session_handle: self.handle.clone(),
        };
        let farewell = self.master.clone().close_session(request);
        spawn(async move {
            // A master that is gone has forgotten the session already.
            let _ = farewell.await;
        });
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.abandon();
    }
}

/// Gives up on `call` after `limit`.
pub(crate) async fn limited<T>(
    limit: Option<Duration>,
    what: &str,
    call: impl Future<Output = Result<T>>,
) -> Result<T> {
    let Some(limit) = limit else {
        return call.await;
    };
    match tokio::time::timeout(limit, call).await {
        Ok(outcome) => outcome,
        Err(_) => Err(downpour_build::Status::deadline_exceeded(format!(
            "{what} took longer than {limit:?}"
        ))),
    }
}
