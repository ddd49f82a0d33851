//! Jobs of many processes: what a job is ([`JobSpec`]), how it is conducted ([`Job`], a state
//! machine without I/O), and a launcher for this machine (`Local`). What a job looks like at any
//! moment is a [`JobState`], which a [`Monitor`] shows to whoever watches: the command line, the
//! dashboard.
//!
//! This crate starts and watches processes and never sees a tensor. It neither prints nor reads
//! arguments or environment; the program around it does.

mod job;
#[cfg(test)]
mod job_tests;
mod name;
mod plan;
mod policy;
mod spec;
mod state;
mod time;

pub use job::{Effect, Event, Job, Outcome, Rules, TaskId};
pub use name::TaskName;
pub use plan::{Planned, cluster, processes};
pub use policy::RestartPolicy;
pub use spec::{DoneWhen, Group, JobSpec, MAX_TASKS, MAX_TEXT, SpecError};
pub use state::{
    Exit, Happening, HappeningKind, JobPhase, JobState, MAX_HAPPENINGS, Monitor, TaskPhase,
    TaskRole, TaskState,
};
