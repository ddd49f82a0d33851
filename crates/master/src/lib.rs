//! Sessions: a client's graph, and what becomes of each request on it.
//!
//! [`Master`] owns the sessions; [`MasterShell`] is the gRPC shell around it. A request goes
//! `prune → merge → register` once and is then found by its feeds, fetches and targets. The
//! master runs nothing itself: steps go to tasks through `downpour_net::Task`.

mod calls;
mod costs;
mod gather;
mod leases;
mod lifecycle;
mod master;
mod partial;
mod plans;
mod recorder;
mod registry;
mod service;
mod session;
mod stalls;
mod step;
mod tasks;

pub use master::{Master, MasterConfig};
pub use service::MasterShell;
