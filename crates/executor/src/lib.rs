//! Runs graphs: compiles them into plans, and drives the steps of those.
//!
//! [`Plan::compile`] turns a checked, rewritten graph into arrays and kernel objects once;
//! [`Step::start`] runs it, touching only the step's own arrays. [`SessionFunctions`] compiles the
//! functions that kernels call. What kernels see of all this is in `runtime`, on which they alone
//! depend: a change here compiles no kernel again.

mod blame;
mod core;
mod drive;
mod edges;
mod fold;
mod frame_table;
mod frames;
mod functions;
mod fuse;
mod plan;
mod run_kernel;
#[cfg(test)]
mod scripts;
mod step;
#[cfg(test)]
mod testing;
mod work;

pub use functions::SessionFunctions;
pub use plan::{CompileEnv, KernelCache, Plan};
pub use step::Step;
