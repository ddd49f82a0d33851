//! One task's half of a session: compiled graphs, stateful kernels, running steps.
//!
//! [`Worker`] implements `downpour_net::Task` for the process it lives in. It does not know which
//! kernels exist (a `Registry` is handed in), nor who asks.

mod attendance;
mod ending;
mod lanes;
mod lifecycle;
mod parameters;
mod partial;
mod remote_functions;
mod remote_rendezvous;
mod report;
mod rpc_log;
mod service;
mod stats;
mod trainings;
mod worker;
mod writers;

pub use attendance::Attendance;
pub use ending::{Ending, Patience, Verdict};
pub use service::WorkerShell;
pub use worker::{Worker, WorkerConfig};
