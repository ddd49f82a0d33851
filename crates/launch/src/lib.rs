//! Jobs of many processes: what a job is ([`JobSpec`]), how it is conducted ([`Job`], a state
//! machine without I/O), and a launcher for this machine ([`Local`]). What a job looks like at any
//! moment is a [`JobState`], which a [`Monitor`] shows to whoever watches: the command line, the
//! dashboard.
//!
//! This crate starts and watches processes and never sees a tensor. It neither prints nor reads
//! arguments or environment; the program around it does.

mod cause;
mod dir;
mod guard;
mod job;
#[cfg(test)]
mod job_tests;
mod local;
mod name;
mod output;
mod plan;
mod policy;
mod ports;
mod program;
mod record;
mod spec;
mod state;
mod summary;
mod time;

pub use dir::RUNS;
pub use guard::stand;
pub use job::{Effect, Event, Job, Outcome, Rules, TaskId};
pub use local::{Control, LaunchError, Local, Setup};
pub use name::TaskName;
pub use output::{Listener, Printed};
pub use plan::{Planned, cluster, processes};
pub use policy::RestartPolicy;
pub use record::{Origin, RECORD, checked_out, enlist, list_dir, process_start, write_record};
pub use spec::{DoneWhen, Group, JobSpec, MAX_TASKS, MAX_TEXT, SpecError};
pub use state::{
    Exit, Happening, HappeningKind, JobPhase, JobState, MAX_HAPPENINGS, Monitor, TaskPhase,
    TaskRole, TaskState,
};
pub use summary::{summary, write_summary};
