//! Ends training at a step; fetches something at the end.

use super::{Context, Hook, integer};
use crate::global_step;
use downpour_build::{Graph, Output, Result, Tensor};
use downpour_client::{Run, Session};
use parking_lot::Mutex;
use std::sync::Arc;

/// Stops when the shared count of steps reaches a number.
pub struct StopAtStep {
    last: i64,
    step: Option<Output>,
    position: usize,
}

impl StopAtStep {
    /// Stops at this step.
    pub fn new(last: i64) -> StopAtStep {
        StopAtStep {
            last,
            step: None,
            position: 0,
        }
    }
}

impl Hook for StopAtStep {
    fn begin(&mut self, graph: &Graph) -> Result<()> {
        self.step = Some(global_step(graph).value().clone());
        Ok(())
    }

    fn before_run(&mut self, run: &mut Run) {
        if let Some(step) = &self.step {
            self.position = run.fetch(step);
        }
    }

    fn after_run(&mut self, context: &mut Context<'_>) -> Result<()> {
        let seen = integer(context.value(self.position)?)?;
        if seen + 1 < self.last {
            return Ok(());
        }
        // What was fetched may be the count of before the step.
        if let Some(step) = &self.step
            && integer(&context.session.fetch(step)?)? >= self.last
        {
            context.request_stop();
        }
        Ok(())
    }
}

/// Fetches tensors when training ends.
pub struct FinalFetch {
    outputs: Vec<Output>,
    values: Arc<Mutex<Vec<Tensor>>>,
}

impl FinalFetch {
    /// Fetches these; their values are found behind the second result when training has ended.
    pub fn new(outputs: &[Output]) -> (FinalFetch, Arc<Mutex<Vec<Tensor>>>) {
        let values: Arc<Mutex<Vec<Tensor>>> = Arc::default();
        let hook = FinalFetch {
            outputs: outputs.to_vec(),
            values: values.clone(),
        };
        (hook, values)
    }
}

impl Hook for FinalFetch {
    fn end(&mut self, session: &Arc<Session>) -> Result<()> {
        *self.values.lock() = session.step().fetch_list(&self.outputs)?;
        Ok(())
    }
}
