//! What happens around the steps of a [`MonitoredSession`](crate::MonitoredSession): stopping,
//! saving, counting, logging, watching for numbers that are none, tracing, feeding, waiting.
//!
//! | here | TensorFlow |
//! | --- | --- |
//! | [`StopAtStep`] | `StopAtStepHook` |
//! | [`Checkpoints`], [`SaveListener`] | `CheckpointSaverHook`, `CheckpointSaverListener` |
//! | [`Summaries`] | `SummarySaverHook` |
//! | [`StepCounter`] | `StepCounterHook` |
//! | [`LogTensors`] | `LoggingTensorHook` |
//! | [`NanGuard`] | `NanTensorHook` |
//! | [`FinalFetch`] | `FinalOpsHook` |
//! | [`Feed`] | `FeedFnHook` |
//! | [`WaitForStep`] | `GlobalStepWaiterHook` |
//! | [`Profiler`] | `ProfilerHook` |

mod checkpoint;
mod feed;
mod log;
mod nan;
mod profile;
mod stop;
mod summary;
mod timer;
mod wait;

pub use checkpoint::{Checkpoints, SaveListener};
pub use feed::Feed;
pub use log::{LogTensors, StepCounter};
pub use nan::NanGuard;
pub use profile::Profiler;
pub use stop::{FinalFetch, StopAtStep};
pub use summary::Summaries;
pub use wait::WaitForStep;

use downpour_build::{DType, Graph, Result, Status, Tensor};
use downpour_client::{Run, RunMetadata, Session};
use std::sync::Arc;

/// What a hook sees after a step.
///
/// ```
/// use downpour::train::Supervision;
/// use downpour::train::hooks::{Context, Hook};
/// use downpour::{Graph, Result, Server, ServerConfig};
///
/// /// Stops when a step has fetched nothing.
/// struct StopWhenIdle;
///
/// impl Hook for StopWhenIdle {
///     fn after_run(&mut self, context: &mut Context<'_>) -> Result<()> {
///         if context.values.is_empty() {
///             context.request_stop();
///         }
///         Ok(())
///     }
/// }
///
/// let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let two = g.constant(1i32) + 1;
/// let mut session = Supervision::new(&server, &g).hook(StopWhenIdle).open()?;
/// session.step().fetch(&two)?;
/// assert!(!session.should_stop());
/// session.step().target(&two.operation()).run()?;
/// assert!(session.should_stop());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Context<'a> {
    /// The session that ran it.
    pub session: &'a Arc<Session>,
    /// All that was fetched; a hook's own fetches have the positions that [`Run::fetch`] gave.
    pub values: &'a [Tensor],
    /// What each operation did, if the step was traced.
    pub metadata: Option<&'a RunMetadata>,
    pub(crate) stop: &'a mut bool,
}

impl Context<'_> {
    /// Asks to stop training.
    pub fn request_stop(&mut self) {
        *self.stop = true;
    }

    /// The value at a position that [`Run::fetch`] gave.
    pub fn value(&self, position: usize) -> Result<&Tensor> {
        let missing = || Status::internal(format!("the step fetched no value {position}"));
        self.values.get(position).ok_or_else(missing)
    }
}

/// Work around steps. Every method does nothing unless given.
///
/// ```
/// use downpour::train::Supervision;
/// use downpour::train::hooks::{Context, Hook};
/// use downpour::{Graph, Output, Result, Run, Server, ServerConfig};
///
/// /// Stops when a loss is small enough.
/// struct GoodEnough {
///     loss: Output,
///     enough: f32,
///     position: usize,
/// }
///
/// impl Hook for GoodEnough {
///     fn before_run(&mut self, run: &mut Run) {
///         self.position = run.fetch(&self.loss);
///     }
///
///     fn after_run(&mut self, context: &mut Context<'_>) -> Result<()> {
///         let loss = context.value(self.position)?.as_slice::<f32>().map(|v| v[0]);
///         if loss.is_ok_and(|loss| loss < self.enough) {
///             context.request_stop();
///         }
///         Ok(())
///     }
/// }
///
/// let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let w = g.variable("w").init(downpour::Init::value(8.0f32)).build();
/// let halve = w.assign(&(&*w * 0.5));
/// let hook = GoodEnough { loss: w.value().clone(), enough: 1.0, position: 0 };
/// let mut session = Supervision::new(&server, &g).hook(hook).open()?;
/// while !session.should_stop() {
///     session.step().target(&halve).run()?;
/// }
/// assert!(session.raw()?.fetch(&w)?.scalar_value::<f32>()? < 1.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Hook: Send {
    /// Adds operations to the graph, before any session exists.
    fn begin(&mut self, _graph: &Graph) -> Result<()> {
        Ok(())
    }

    /// A session exists, the first or one after a loss.
    fn after_create(&mut self, _session: &Arc<Session>) -> Result<()> {
        Ok(())
    }

    /// A step is about to be put together: the place to wait for something.
    fn prepare(&mut self, _session: &Arc<Session>) -> Result<()> {
        Ok(())
    }

    /// Adds feeds, fetches and targets to a step.
    fn before_run(&mut self, _run: &mut Run) {}

    /// A step is done.
    fn after_run(&mut self, _context: &mut Context<'_>) -> Result<()> {
        Ok(())
    }

    /// This worker is no longer the chief, and this is a hook of the chief's: it must stop what it
    /// does beside steps.
    fn retire(&mut self) {}

    /// Training ends well.
    fn end(&mut self, _session: &Arc<Session>) -> Result<()> {
        Ok(())
    }
}

/// The integer in a scalar.
pub(crate) fn integer(value: &Tensor) -> Result<i64> {
    let wrong = |e: downpour_build::TensorError| Status::internal(e.to_string());
    match value.dtype() {
        DType::Int32 => value.scalar_value::<i32>().map(i64::from).map_err(wrong),
        _ => value.scalar_value::<i64>().map_err(wrong),
    }
}

/// The number in a scalar.
pub(crate) fn number(value: &Tensor) -> Result<f64> {
    let wrong = |e: downpour_build::TensorError| Status::internal(e.to_string());
    match value.dtype() {
        DType::Float => value.scalar_value::<f32>().map(f64::from).map_err(wrong),
        DType::Double => value.scalar_value::<f64>().map_err(wrong),
        _ => integer(value).map(|v| v as f64),
    }
}
