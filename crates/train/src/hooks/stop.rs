//! Ends training at a step; fetches something at the end.

use super::{Context, Hook, integer};
use crate::global_step;
use downpour_build::{Graph, Output, Result, Tensor};
use downpour_client::{Run, Session};
use parking_lot::Mutex;
use std::sync::Arc;

/// Stops when the shared count of steps reaches a number.
///
/// ```
/// use downpour::train::hooks::StopAtStep;
/// use downpour::train::{Supervision, global_step};
/// use downpour::{Graph, Server, ServerConfig};
/// let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let count = global_step(&g).assign_add(&g.constant(1i64));
/// for expected in [3, 6] {
///     let mut session = Supervision::new(&server, &g).hook(StopAtStep::after(3)).open()?;
///     while !session.should_stop() {
///         session.step().target(&count).run()?;
///     }
///     assert_eq!(session.global_step()?, expected);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct StopAtStep {
    last: Option<i64>,
    /// How many steps from the beginning of training, where `last` is not known yet.
    after: i64,
    step: Option<Output>,
    position: usize,
}

impl StopAtStep {
    /// Stops at this step.
    pub fn new(last: i64) -> StopAtStep {
        StopAtStep {
            last: Some(last),
            ..StopAtStep::after(0)
        }
    }

    /// Stops so many steps after the one that training begins at; a loss in between changes
    /// nothing of it.
    pub fn after(steps: i64) -> StopAtStep {
        StopAtStep {
            last: None,
            after: steps,
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

    fn after_create(&mut self, session: &Arc<Session>) -> Result<()> {
        if let (None, Some(step)) = (self.last, &self.step) {
            self.last = Some(integer(&session.fetch(step)?)? + self.after);
        }
        Ok(())
    }

    fn before_run(&mut self, run: &mut Run) {
        if let Some(step) = &self.step {
            self.position = run.fetch(step);
        }
    }

    fn after_run(&mut self, context: &mut Context<'_>) -> Result<()> {
        let seen = integer(context.value(self.position)?)?;
        let Some(last) = self.last.filter(|last| seen + 1 >= *last) else {
            return Ok(());
        };
        // What was fetched may be the count of before the step.
        if let Some(step) = &self.step
            && integer(&context.session.fetch(step)?)? >= last
        {
            context.request_stop();
        }
        Ok(())
    }
}

/// Fetches tensors when training ends.
///
/// ```
/// use downpour::train::hooks::{FinalFetch, StopAtStep};
/// use downpour::train::{GradientDescent, Minimize, Supervision, global_step};
/// use downpour::{Graph, Init, Server, ServerConfig};
/// let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let w = g.variable("w").init(Init::value(8.0f32)).build();
/// let train = GradientDescent::new(0.25).minimize(&w.square(), Some(&global_step(&g)))?;
/// let (hook, values) = FinalFetch::new(&[w.value().clone()]);
/// let session = Supervision::new(&server, &g).hook(StopAtStep::new(2)).hook(hook).open()?;
/// session.train(|session| session.step().target(&train).run())?;
/// assert_eq!(values.lock()[0].scalar_value::<f32>()?, 2.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
