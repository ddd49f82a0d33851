//! Clusters and the network: who is in a cluster, where a task listens, which limits hold, and
//! the [`Task`] interface through which a master drives any task, its own or another.

mod cluster;
mod deadline;
mod limits;
mod server;
mod task;

pub use cluster::{ClusterError, ClusterSpec};
pub use limits::Limits;
pub use server::{Listener, serve};
pub use task::{Canceller, Done, GraphOptions, PartialStep, StepEnd, StepStart, Task};
