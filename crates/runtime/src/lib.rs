//! What kernels see: their traits and registry, the step they run in, resources, threads.
//!
//! Kernels implement [`Kernel`] (or [`AsyncKernel`] where they wait) and are found through a
//! [`Registry`]; which kernels exist is none of this crate's business, nor how a graph of them is
//! run: `executor` does that and is reached through [`RunningStep`], [`Body`] and
//! [`FunctionLibrary`]. The runtime opens no file or socket and reads no clock: time reaches it as
//! cancellation, and traces through a [`Trace`] that brings its own.

mod arithmetic;
mod async_op;
mod call;
mod cancel;
mod console;
mod device;
mod edges;
mod helper_threads;
mod history;
mod host;
mod kernel;
mod memory;
mod parallel;
mod pool;
mod registry;
mod rendezvous;
mod resource;
mod shortcut;
mod step_env;
mod timer;
mod trace;
mod variable;

pub use arithmetic::Arithmetic;
pub use async_op::{AsyncOp, OpRun, RunningStep};
pub use call::{
    Body, Callee, Caller, Function, FunctionHandle, FunctionLibrary, Pace, call_by_name, call_op,
    checked_outputs,
};
pub use cancel::{CancelToken, Cancellation};
pub use console::{Console, Print, Stream};
pub use device::{Device, Extensions, as_own_thread, on_executor_thread};
pub use edges::{IncomingEdge, IncomingEdges, PeerSink, PeerWait, Received, TakenEdges};
pub use helper_threads::num_threads;
pub use history::{STALENESS_FROM, Staleness, StalenessCounts, StalenessFacts};
pub use host::Host;
pub use kernel::{
    AsyncKernel, Built, Inputs, Kernel, KernelBuilder, NodeInfo, OpContext, Outputs, Value,
};
pub use memory::{Held, MemoryBudget};
pub use parallel::{parallel_for, parallel_ranges};
pub use registry::{Factory, Growth, Registration, Registry};
pub use rendezvous::{Delivery, Offer, Receiver, RemoteCall, RemoteSource, Rendezvous, Results};
pub use resource::{LastFound, Resource, ResourceManager};
pub use shortcut::{Around, Finder, Quick, Shortcut};
pub use step_env::{Siblings, StepEnv};
pub use timer::Timer;
pub use trace::{NodeTrace, Trace};
pub use variable::{Variable, VariableFacts, VariableGuard};
