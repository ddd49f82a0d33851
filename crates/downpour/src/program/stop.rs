//! Asking a program to stop: after the step under way it saves and ends, as when its steps are done.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::signal::unix::{SignalKind, signal};

/// Whether a program is to stop. Clones are the same.
///
/// ```
/// use downpour::program::{self, Options, Program, Stop, Worker};
/// use downpour::train::MonitoredSession;
/// use downpour::{Operation, Result};
///
/// /// Counts its steps, and is asked to stop at the fifth.
/// struct Count(Stop);
///
/// impl Program for Count {
///     type Model = (Operation, i64);
///
///     fn build(&self, worker: &Worker) -> Result<Self::Model> {
///         Ok((worker.global_step().assign_add(&worker.graph().constant(1i64)), 0))
///     }
///
///     fn step(&self, (count, made): &mut Self::Model, session: &mut MonitoredSession) -> Result<()> {
///         *made += 1;
///         if *made == 5 {
///             self.0.ask();
///         }
///         session.step().target(count).run()
///     }
/// }
///
/// # let dir = tempfile::tempdir()?;
/// # let dir = dir.path().to_string_lossy().into_owned();
/// let stop = Stop::default();
/// let options = Options { steps: 1000, dir: Some(dir.clone()), stop: stop.clone(), ..Options::default() };
/// let report = program::run(&Count(stop), &options)?;
/// assert_eq!(report["steps"], 5.0);
/// // What was reached is saved.
/// assert!(std::path::Path::new(&dir).join("model.ckpt-5.index").exists());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Asks.
    pub fn ask(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether somebody has asked.
    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Asks when the process gets SIGINT or SIGTERM for the first time; the second ends it at once.
    /// For a program's `main`. Where signals cannot be watched they end the process as they do any.
    pub fn on_signals() -> Stop {
        let stop = Stop::default();
        let made = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let Ok(runtime) = made else {
            return stop;
        };
        let asked = stop.clone();
        std::thread::spawn(move || {
            runtime.block_on(async {
                let streams = [SignalKind::interrupt(), SignalKind::terminate()].map(signal);
                let [Ok(mut interrupt), Ok(mut terminate)] = streams else {
                    return;
                };
                loop {
                    let number = tokio::select! {
                        _ = interrupt.recv() => SignalKind::interrupt().as_raw_value(),
                        _ = terminate.recv() => SignalKind::terminate().as_raw_value(),
                    };
                    if asked.is_asked() {
                        // The code that a shell shows for a process ended by a signal.
                        std::process::exit(128 + number);
                    }
                    tracing::warn!(
                        "asked to stop: saving what there is; a second signal ends at once"
                    );
                    asked.ask();
                }
            });
        });
        stop
    }
}
