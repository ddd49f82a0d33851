//! How a master sees a task: sessions, registered graphs, steps. Implemented by the worker of the
//! same process without any encoding; by a remote task's stub over gRPC.

use downpour_graph::{Graph, Result, Status};
use downpour_tensor::Tensor;
use downpour_wire::messages::{DeviceAttributes, DeviceStepStats, ServerDef};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

/// Ends a step early for a reason.
pub type Canceller = Arc<dyn Fn(Status) + Send + Sync>;

/// Takes the outcome of a step.
pub type Done = Box<dyn FnOnce(Result<StepEnd>) + Send>;

/// An answer that may have to travel.
pub type Reply<T> = Pin<Box<dyn Future<Output = Result<T>> + Send>>;

/// An answer that is there.
pub fn ready<T: Send + 'static>(outcome: Result<T>) -> Reply<T> {
    Box::pin(std::future::ready(outcome))
}

/// How to compile a graph.
#[derive(Clone, Copy, Debug)]
pub struct GraphOptions {
    /// Evaluate constant parts once.
    pub fold_constants: bool,
}

/// A session as its tasks see it.
#[derive(Clone, Debug, Default)]
pub struct NewSession {
    /// Its handle.
    pub handle: String,
    /// Whether it shares no state with other sessions.
    pub isolate: bool,
    /// `/job:J/replica:0/task:N` of the master.
    pub master_task: String,
    /// Which life of the master this is.
    pub master_incarnation: u64,
    /// Who the task is in this session, if the client brought its own cluster.
    pub server_def: Option<ServerDef>,
}

/// What a step is given.
#[derive(Debug, Default)]
pub struct StepStart {
    /// One id for all partitions of the step.
    pub step_id: u64,
    /// Values of the `_Arg` nodes.
    pub feeds: Vec<Tensor>,
    /// Record what each op did.
    pub trace: bool,
    /// Whether other tasks run parts of the step.
    pub shared: bool,
}

/// What a step gave.
#[derive(Debug, Default)]
pub struct StepEnd {
    /// Values of the `_Retval` nodes.
    pub fetches: Vec<Tensor>,
    /// What each op did, if asked.
    pub stats: Vec<DeviceStepStats>,
    /// Whether the task has forgotten the step: nothing of it was left.
    pub is_over: bool,
}

/// A step that is fed and fetched bit by bit.
pub trait PartialStep: Send + Sync {
    /// Gives the value of a feed.
    fn feed(&self, key: &str, value: Tensor) -> Result<()>;
    /// Calls back with the value of a fetch.
    fn fetch(&self, key: &str, done: Box<dyn FnOnce(Result<Tensor>) + Send>);
    /// Ends the step early.
    fn cancel(&self, reason: Status);
    /// Calls back when the step is over.
    fn on_end(&self, done: Box<dyn FnOnce(Result<()>) + Send>);
}

/// A task of the cluster.
pub trait Task: Send + Sync {
    /// `/job:J/replica:0/task:N`.
    fn name(&self) -> &str;
    /// Its devices, with incarnations.
    fn devices(&self) -> Vec<DeviceAttributes>;
    /// Whether it sends values to others that do before they ask for them.
    fn pushes(&self) -> bool {
        false
    }
    /// Opens a session; isolated ones share no state.
    fn create_session(&self, session: &NewSession) -> Reply<()>;
    /// Drops a session and its graphs; unknown ones are fine. Nobody waits for it.
    fn delete_session(&self, session: &str);
    /// Compiles a graph and returns its handle.
    fn register_graph(&self, session: &str, graph: Graph, options: GraphOptions) -> Reply<u64>;
    /// Forgets a graph.
    fn deregister_graph(&self, session: &str, graph: u64);
    /// Runs a registered graph; `done` is called once, from any thread.
    fn run_graph(&self, session: &str, graph: u64, step: StepStart, done: Done) -> Canceller;
    /// Drops what a shared step left behind: every part of it is over.
    fn cleanup_step(&self, step_id: u64);
    /// Drops the resources of these containers, or of the default one if none is named.
    fn cleanup_all(&self, containers: &[String]) -> Reply<()>;
}

/// The task of this process.
pub trait LocalTask: Task {
    /// Starts a graph whose ends are `_Recv` and `_Send` nodes; `shared` as in [`StepStart`].
    fn start_partial(
        &self,
        session: &str,
        graph: u64,
        step_id: u64,
        shared: bool,
    ) -> Result<Arc<dyn PartialStep>>;
}
