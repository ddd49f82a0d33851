//! Batching across steps: `Batch`, `BatchFunction` and `Unbatch` join the inputs of several steps,
//! which then are computed together.

mod batch;
mod rows;
mod scheduler;
mod unbatch;

use downpour_graph::{Result, Status};
use downpour_runtime::{Device, Registry, Timer};

pub(crate) fn register(r: &mut Registry) {
    batch::register(r);
    unbatch::register(r);
}

/// The clock that waiting batches go by.
fn timer(device: &Device) -> Result<Timer> {
    let timer = device.extensions.get::<Timer>().cloned();
    timer.ok_or_else(|| Status::internal("this task has no clock to time batches with"))
}
