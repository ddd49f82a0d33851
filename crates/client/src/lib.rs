//! Running graphs: a [`Session`] sends what a [`Graph`](downpour_build::Graph) holds to a master
//! and runs steps on it, whether the master lives in this process or behind `grpc://`, ours or
//! TensorFlow's.
//!
//! Calls block the thread that makes them; every one of them ends in a value or in an error.

mod profile;
mod runtime;
mod session;
mod step;
mod target;

pub use downpour_plan::{Estimate, Machine};
pub use downpour_wire::messages::RunMetadata;
pub use profile::{Placement, Profile};
pub use session::{Session, SessionOptions};
pub use step::{Outcome, PartialRun, Run, Runner, Step, Traced};
pub use target::Target;
