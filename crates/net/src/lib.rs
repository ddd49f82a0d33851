//! The network: where a task listens and what it answers (`serve`), how others are called (`call`),
//! the faster way between tasks that are both ours (`lane`), which limits hold, and the [`Task`]
//! interface through which a master drives any task, its own or another.
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        reason = "tests make files and read a clock"
    )
)]

mod call;
mod counts;
mod grpc_frames;
mod lane;
mod limits;
mod serve;
mod spin;
mod task;
mod traffic;
#[cfg(test)]
mod transport_tests;

pub use call::awaited_tasks::AwaitedTasks;
pub use call::master::{MasterCalls, RemoteMaster};
pub use call::peers::{EdgeSink, EdgeWait, Expected, Peers, cluster_from_def, task_name};
pub use call::record::record_steps;
pub use call::remote::RemoteTask;
pub use call::task_probe::TaskProbe;
pub use counts::{CountedStep, StepCounter};
pub use lane::{
    LaneHandler, LaneOffer, Lanes, RunEnded, StepState, Taker, begin_batch, end_batch, flush_batch,
    is_waiting_client,
};
pub use limits::Limits;
pub use serve::admission::{Admission, Recording, StepRecorder};
pub use serve::control::{Control, Refusal, Reporter, inspect_task, stop_task};
pub use serve::dedup::{RecentIds, RecentRequests};
pub use serve::h2_server::{Answer, HAS_LANES, Methods};
pub use serve::health::Health;
pub use serve::http::{HttpAnswer, HttpHandler, HttpRequest, serve_http};
pub use serve::listener::{Listener, serve};
pub use serve::metrics::metrics_of;
pub use serve::presence::Presence;
pub use task::{
    Canceller, Done, GraphOptions, LocalTask, NewSession, PartialStep, Reply, StepEnd, StepStart,
    Task, ready,
};
pub use traffic::{PeerTraffic, Traffic};
