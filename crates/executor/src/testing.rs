//! What tests of steps need of another task.

use downpour_graph::{EdgeId, Result};
use downpour_runtime::{
    Delivery, PeerSink, PeerWait, Receiver, RemoteCall, RemoteSource, Rendezvous, Results, StepEnv,
};
use downpour_tensor::Tensor;
use parking_lot::Mutex;
use std::sync::Arc;

/// A task that sends back, along the same edges, what a step pushes to it.
pub(crate) struct Echo(Arc<Echoed>);

struct Echoed {
    rendezvous: Arc<Rendezvous>,
    portions: Mutex<String>,
}

impl Echo {
    /// That of the step with this rendezvous.
    pub(crate) fn of(rendezvous: &Arc<Rendezvous>) -> Arc<Echo> {
        Arc::new(Echo(Arc::new(Echoed {
            rendezvous: rendezvous.clone(),
            portions: Mutex::default(),
        })))
    }

    /// What came, a line for each portion.
    pub(crate) fn portions(&self) -> String {
        self.0.portions.lock().clone()
    }
}

impl PeerSink for Echoed {
    fn push(&self, _: u64, values: &mut Vec<(EdgeId, Option<Tensor>)>) -> Result<()> {
        let show = |(EdgeId(edge), tensor): &(EdgeId, Option<Tensor>)| match tensor {
            Some(_) => format!(" {edge}"),
            None => format!(" {edge}-"),
        };
        let line = match values.len() {
            ..=8 => values.iter().map(show).collect(),
            many => format!(" {many} values"),
        };
        self.portions.lock().push_str(&format!("pushed:{line}\n"));
        self.rendezvous.deliver(values.drain(..))
    }
}

/// Nobody counts.
struct Uncounted;

impl PeerWait for Uncounted {
    fn begin(&self, _: usize) {}

    fn end(&self, _: usize) {}
}

const NO_KEYS: &str = "the other task has numbered edges only";

impl RemoteSource for Echo {
    fn recv(&self, _: &StepEnv, _: &str, _: Receiver) {
        unreachable!("{NO_KEYS}");
    }

    fn await_pushed(&self, _: &StepEnv, _: &str, _: Receiver) {
        unreachable!("{NO_KEYS}");
    }

    fn push(&self, _: &StepEnv, _: &str, _: Delivery) -> Result<()> {
        unreachable!("{NO_KEYS}");
    }

    fn sink(&self, _: &StepEnv, _: &str) -> Result<Arc<dyn PeerSink>> {
        Ok(self.0.clone())
    }

    fn wait_for(&self, _: &StepEnv, _: &str) -> Result<Box<dyn PeerWait>> {
        Ok(Box::new(Uncounted))
    }

    fn log_from(&self, _: &StepEnv) -> Option<i64> {
        None
    }

    fn log(&self, _: &StepEnv, _: &str, _: &Tensor, _: i64) {}

    fn begin_batch(&self) -> bool {
        false
    }

    fn end_batch(&self) {}

    fn flush_batch(&self) {}

    fn call(&self, _: &StepEnv, _: RemoteCall, _: Results) {
        unreachable!("{NO_KEYS}");
    }
}
