//! Downpour: distributed TensorFlow, rebuilt in Rust.
//!
//! This crate wires the others into a [`Server`], one task of a cluster: a master, a worker, its
//! devices and kernels behind one address. A stock TensorFlow client connects to it with
//! `tf.compat.v1.Session("grpc://host:port")`.

mod draws;
mod ending;
mod machine;
pub mod mnist;
pub mod program;
mod report;
mod running;
mod server;

pub use downpour_build::*;
pub use downpour_client::{
    Estimate, Machine, Outcome, PartialRun, Placement, Profile, Run, RunMetadata, Runner, Session,
    SessionOptions, Step, Target, Traced,
};
pub use downpour_cluster::{
    ClusterError, ClusterSpec, Definition, DefinitionError, Role, Transport, parse_bytes,
    parse_duration,
};
pub use downpour_net::{Limits, Refusal, inspect_task, stop_task};
pub use downpour_runtime::{Console, Stream};
pub use downpour_tensor::TensorMemory;
pub use downpour_train as train;
pub use downpour_wire::control::{SessionReport, StepCounts, TaskReport};
pub use draws::Draws;
pub use ending::{DONE_GRACE, EndConfig, EndReason, WhenDone};
pub use running::{LocalCluster, RunningServer};
pub use server::{Server, ServerConfig, ServerError};

/// Makes URLs of HDFS, S3, Google Cloud Storage and Azure paths like any other in this process, if the crate was built
/// with the feature `stores`. Servers and programs do so themselves; a client that only looks at files calls it first.
///
/// ```
/// downpour::install_storages();
/// let latest = downpour::train::latest_checkpoint("nosuch://bucket/model");
/// assert!(latest.unwrap_err().message.contains("scheme 'nosuch' not implemented"));
/// ```
pub fn install_storages() {
    #[cfg(feature = "stores")]
    downpour_stores::install();
}

/// The README's programs are tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// So are the book's.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/rust.md")]
struct Book;
