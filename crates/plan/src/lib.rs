//! From a session's graph and a request to what each task runs. Pure functions: graph in, graph
//! out; no kernels, no clock, no locks.
//!
//! [`lower`] replaces functional control flow when a graph grows, [`place`] gives its nodes devices. Then,
//! in the order a request meets them: [`rewrite`] (feeds and fetches become nodes, the rest is
//! pruned), [`skip_unused`] (values nobody uses), [`merge_common`] (common subexpressions),
//! [`shorten_signals`] (detours of control edges), [`partition`] (one graph per task). Beside them, for whoever wants a model split over tasks: a
//! [`CostGraph`] of what a step was seen to cost, and [`split`], which chooses the tasks.

mod cost;
mod cse;
mod lower;
mod partition;
mod place;
mod rewrite;
mod signals;
mod split;
mod unused;

pub use cost::{CostGraph, Estimate, Machine, Measured};
pub use cse::merge_common;
pub use lower::lower;
pub use partition::{DeviceRef, Partition, partition};
pub use place::{Placement, place};
pub use rewrite::{Endpoints, Request, rewrite};
pub use signals::shorten_signals;
pub use split::{round_robin, split};
pub use unused::skip_unused;
