//! What a task answers: its listener, the calls of a step straight on HTTP/2 and all others through
//! the generated services, which of them are admitted, health, and the plain HTTP of the dashboard.

pub(crate) mod admission;
pub(crate) mod control;
pub(crate) mod deadline;
pub(crate) mod dedup;
pub(crate) mod h2_server;
pub(crate) mod health;
pub(crate) mod http;
pub(crate) mod listener;
pub(crate) mod metrics;
pub(crate) mod presence;
