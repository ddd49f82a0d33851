//! One task's half of a session: compiled graphs, stateful kernels, running steps.
//!
//! [`Worker`] implements `downpour_net::Task` for the process it lives in. It does not know which
//! kernels exist (a `Registry` is handed in), nor who asks.

mod stats;
mod worker;

pub use worker::{Worker, WorkerConfig};
