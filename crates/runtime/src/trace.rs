//! What a traced step records of each op. The clock comes with the trace: the runtime has none.

use downpour_tensor::{DType, Shape};
use parking_lot::Mutex;
use std::sync::Arc;

/// One op's run.
#[derive(Clone, Debug)]
pub struct NodeTrace {
    /// Node name.
    pub name: Arc<str>,
    /// Op type.
    pub op: String,
    /// Names of the inputs, for the label.
    pub inputs: Vec<String>,
    /// When it became ready, in nanoseconds since the epoch.
    pub scheduled_ns: i64,
    /// When its kernel began.
    pub start_ns: i64,
    /// When its kernel ended.
    pub end_ns: i64,
    /// Number of the thread that ran it.
    pub thread: u32,
    /// Type, shape and bytes of each output that was produced.
    pub outputs: Vec<(u32, DType, Shape, usize)>,
}

/// Collects what a step's ops did.
pub struct Trace {
    clock: Box<dyn Fn() -> i64 + Send + Sync>,
    nodes: Mutex<Vec<NodeTrace>>,
}

impl Trace {
    /// A trace that reads nanoseconds since the epoch from `clock`.
    pub fn new(clock: impl Fn() -> i64 + Send + Sync + 'static) -> Trace {
        Trace {
            clock: Box::new(clock),
            nodes: Mutex::default(),
        }
    }

    /// The time by the trace's clock.
    pub fn now(&self) -> i64 {
        (self.clock)()
    }

    /// Notes one run.
    pub fn record(&self, node: NodeTrace) {
        self.nodes.lock().push(node);
    }

    /// Takes what has been recorded so far.
    pub fn take(&self) -> Vec<NodeTrace> {
        std::mem::take(&mut self.nodes.lock())
    }
}
