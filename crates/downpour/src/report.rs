//! What a task says of itself, put together from its parts: its report, and what its next steps do.

use crate::machine;
use downpour_master::Master;
use downpour_net::{Admission, Reporter, StepRecorder};
use downpour_train::chrome_trace;
use downpour_wire::control::TaskReport;
use downpour_worker::Worker;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a recording waits for steps.
const RECORDING: Duration = Duration::from_secs(5);

/// Records the next steps of a task's master, for Chrome's trace viewer and the dashboard.
pub(crate) fn step_recorder(master: Arc<Master>) -> StepRecorder {
    Arc::new(move || {
        let master = master.clone();
        Box::pin(async move {
            match master.record(tokio::time::sleep(RECORDING)).await {
                Ok(Some(steps)) => Ok(chrome_trace(&steps)),
                Ok(None) => Err(format!("no step ended within {RECORDING:?}")),
                Err(e) => Err(e.message),
            }
        })
    })
}

/// Reports of a task whose life begins now.
pub(crate) fn reporter(
    master: Arc<Master>,
    worker: Arc<Worker>,
    admission: Arc<Admission>,
) -> Reporter {
    let begin = Instant::now();
    Arc::new(move || {
        let mut report = TaskReport {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_millis: begin.elapsed().as_millis() as u64,
            resident_bytes: machine::resident_bytes(),
            cpu_millis: machine::cpu_millis(),
            is_draining: admission.is_draining(),
            ..Default::default()
        };
        worker.report(&mut report);
        master.report(&mut report);
        report
    })
}
