//! What a task says of itself, put together from its parts.

use crate::machine;
use downpour_master::Master;
use downpour_net::{Admission, Reporter};
use downpour_wire::control::TaskReport;
use downpour_worker::Worker;
use std::sync::Arc;
use std::time::Instant;

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
