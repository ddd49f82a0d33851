//! Jobs of many processes: what a job is ([`JobSpec`]), how it is conducted ([`Job`], a state
//! machine without I/O), and what starts its tasks ([`Launcher`]) on this machine, on hosts by ssh, in
//! containers, in pods, in an allocation of Slurm or in containers of YARN. What a job looks like at any
//! moment is a [`JobState`], which a [`Monitor`] shows to whoever watches: the command line, the
//! dashboard.
//!
//! This crate starts and watches processes and never sees a tensor. It neither prints nor reads
//! arguments or environment; the program around it does.

mod cause;
mod dir;
mod docker;
mod engine;
mod framed;
mod frames;
mod guard;
mod job;
#[cfg(test)]
mod job_tests;
mod kubernetes;
mod launcher;
mod local;
mod name;
mod output;
mod plan;
mod policy;
mod ports;
mod program;
mod record;
mod remote;
mod site;
mod slurm;
mod spec;
mod ssh;
mod state;
mod summary;
mod supervise;
mod time;
mod yarn;

pub use dir::RUNS;
pub use docker::compose;
pub use guard::stand;
pub use job::{Effect, Event, Job, Outcome, Rules, Seat, TaskId};
pub use kubernetes::{Kubernetes, Pod, manifests};
pub use launcher::{Control, LaunchError, Launcher, Setup};
pub use name::TaskName;
pub use output::{Listener, Printed};
pub use plan::{Planned, cluster, processes};
pub use policy::RestartPolicy;
pub use record::{Origin, RECORD, checked_out, enlist, list_dir, process_start, write_record};
pub use site::{Docker, On, Resources, Slurm, Ssh};
pub use slurm::{Submission, script, submit};
pub use spec::{DoneWhen, Group, JobSpec, MAX_TASKS, MAX_TEXT, SpecError};
pub use state::{
    Exit, Happening, HappeningKind, JobPhase, JobState, MAX_HAPPENINGS, Monitor, TaskPhase,
    TaskRole, TaskState,
};
pub use summary::{summary, write_summary};
pub use supervise::{keep, supervise};
pub use yarn::{Yarn, YarnConf, YarnJob, YarnMaster, agent, submit_to_yarn};
