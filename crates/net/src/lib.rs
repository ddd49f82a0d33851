//! Clusters and the network: who is in a cluster, where a task listens and how others are
//! reached, which limits hold, and the [`Task`] interface through which a master drives any task,
//! its own or another.

mod address;
mod cluster;
mod connection;
mod control;
mod counts;
mod deadline;
mod dedup;
mod definition;
mod edges;
mod gate;
mod health;
mod http;
mod known;
mod lane;
mod limits;
mod linger;
mod link;
mod master;
mod message;
mod metrics;
mod missing;
mod peers;
mod presence;
mod pull;
mod reach;
mod remote;
mod role;
mod server;
mod task;
mod traffic;
#[cfg(test)]
mod transport_tests;
mod tree;
mod watch;

pub use cluster::{ClusterError, ClusterSpec};
pub use connection::{Answer, HAS_LANES, Methods};
pub use control::{Control, Refusal, Reporter, inspect_task, stop_task};
pub use counts::{CountedStep, StepCounter};
pub use dedup::{RecentIds, RecentRequests};
pub use definition::{Definition, DefinitionError, parse_bytes, parse_duration};
pub use gate::Gate;
pub use health::Health;
pub use http::{HttpAnswer, HttpHandler, HttpRequest, serve_http};
pub use lane::{
    LaneHandler, LaneOffer, Lanes, RunEnded, StepState, Taker, Transport, begin_batch, end_batch,
    is_lent, let_go,
};
pub use limits::Limits;
pub use master::{MasterCalls, RemoteMaster};
pub use metrics::metrics_of;
pub use missing::Missing;
pub use peers::{EdgeWait, Expected, Peers, task_name};
pub use presence::Presence;
pub use reach::Reach;
pub use remote::RemoteTask;
pub use role::Role;
pub use server::{Listener, serve};
pub use task::{
    Canceller, Done, GraphOptions, LocalTask, NewSession, PartialStep, Reply, StepEnd, StepStart,
    Task, ready,
};
pub use traffic::{LaneCounts, Traffic};
pub use tree::TextError;
