//! Time, lent to kernels: the runtime itself reads no clock.

use std::sync::Arc;
use std::time::Duration;

type Job = Box<dyn FnOnce() + Send>;

/// Runs jobs later. Lent to kernels through their device's extensions.
#[derive(Clone)]
pub struct Timer(Arc<dyn Fn(Duration, Job) + Send + Sync>);

impl Timer {
    /// A timer that hands jobs to `after`, which runs them when their time has come.
    pub fn new(after: impl Fn(Duration, Job) + Send + Sync + 'static) -> Timer {
        Timer(Arc::new(after))
    }

    /// Has `job` run after `delay`, briefly and on a thread that is not the caller's.
    pub fn after(&self, delay: Duration, job: impl FnOnce() + Send + 'static) {
        (self.0)(delay, Box::new(job));
    }
}
