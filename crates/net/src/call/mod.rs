//! What a task asks of others: connections to peers and masters, the values it pulls, what it knows of
//! tasks that do not answer.

pub(crate) mod awaited_tasks;
pub(crate) mod h2_client;
pub(crate) mod master;
pub(crate) mod peers;
pub(crate) mod pull;
pub(crate) mod record;
pub(crate) mod remote;
mod session_probe;
pub(crate) mod size_memory;
pub(crate) mod task_probe;
pub(crate) mod watch;
