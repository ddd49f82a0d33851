//! Runs compiled graphs: kernels, plans, steps, resources.
//!
//! [`Plan::compile`] turns a checked, rewritten graph into arrays and kernel objects once;
//! [`Step::start`] runs it, touching only the step's own arrays. Kernels implement [`Kernel`] (or
//! [`AsyncKernel`] where they wait) and are found through a [`Registry`]; which kernels exist is
//! none of this crate's business. The runtime opens no file or socket and reads no clock: time
//! reaches it as cancellation, and traces through a [`Trace`] that brings its own.

mod cancel;
mod console;
mod crew;
mod device;
mod executor;
mod fold;
mod frame;
mod function;
mod fuse;
mod history;
mod host;
mod kernel;
mod memory;
mod parallel;
mod plan;
mod pool;
mod registry;
mod rendezvous;
mod resource;
mod timer;
mod trace;
mod variable;

pub use cancel::{CancelToken, Cancellation};
pub use console::{Console, Print, Stream};
pub use crew::num_threads;
pub use device::{Device, Extensions, as_own_thread, set_before_long};
pub use executor::{Siblings, Step, StepEnv};
pub use function::{
    Callee, Caller, Function, FunctionHandle, FunctionLibrary, call_op, checked_outputs,
};
pub use fuse::{Arithmetic, Around, Finder, Quick, Shortcut};
pub use history::{STALENESS_FROM, Staleness, StalenessCounts, StalenessFacts};
pub use host::Host;
pub use kernel::{
    AsyncKernel, AsyncOp, Built, Inputs, Kernel, KernelBuilder, NodeInfo, OpContext, Value,
};
pub use memory::{Held, MemoryBudget};
pub use parallel::{parallel_for, parallel_ranges};
pub use plan::{CompileEnv, KernelCache, Plan};
pub use registry::{Factory, Growth, Registration, Registry};
pub use rendezvous::{Delivery, Offer, Receiver, RemoteCall, RemoteSource, Rendezvous, Results};
pub use resource::{Resource, ResourceManager};
pub use timer::Timer;
pub use trace::{NodeTrace, Trace};
pub use variable::{Variable, VariableFacts, VariableGuard};
