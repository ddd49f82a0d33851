//! Lets a worker begin only when others have come so far.

use super::{Hook, integer};
use crate::global_step;
use downpour_build::{Graph, Output, Result, Status};
use downpour_client::Session;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::info;

/// First and longest pause between two looks at the count.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));

/// After how long the wait is mentioned again.
const MENTION: Duration = Duration::from_secs(30);

/// Lets a worker's first step wait until the shared count of steps has reached a number: workers
/// that begin one after the other disturb a young model less.
///
/// ```
/// use downpour::train::Supervision;
/// use downpour::train::hooks::WaitForStep;
/// use downpour::{Graph, Server, ServerConfig};
/// use std::time::Duration;
/// let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let one = g.constant(1i32);
/// let wait = WaitForStep::new(5).patience(Duration::from_millis(50));
/// let mut session = Supervision::new(&server, &g).hook(wait).open()?;
/// let error = session.step().fetch(&one).unwrap_err();
/// assert!(error.message.contains("waited for step 5, but training is at 0"), "{error}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct WaitForStep {
    until: i64,
    patience: Option<Duration>,
    step: Option<Output>,
    is_over: bool,
}

impl WaitForStep {
    /// Waits for this step.
    pub fn new(step: i64) -> WaitForStep {
        WaitForStep {
            until: step,
            patience: None,
            step: None,
            is_over: step <= 0,
        }
    }

    /// Gives up with `DEADLINE_EXCEEDED` when the step does not come; without this it waits for as
    /// long as the session lasts.
    pub fn patience(mut self, patience: Duration) -> WaitForStep {
        self.patience = Some(patience);
        self
    }
}

impl Hook for WaitForStep {
    fn begin(&mut self, graph: &Graph) -> Result<()> {
        self.step = Some(global_step(graph).value().clone());
        Ok(())
    }

    fn prepare(&mut self, session: &Arc<Session>) -> Result<()> {
        let Some(step) = self.step.as_ref().filter(|_| !self.is_over) else {
            return Ok(());
        };
        let (start, mut mentioned) = (Instant::now(), None);
        let mut pause = PAUSES.0;
        loop {
            let now = integer(&session.fetch(step)?)?;
            if now >= self.until {
                self.is_over = true;
                return Ok(());
            }
            if self.patience.is_some_and(|p| start.elapsed() >= p) {
                return Err(Status::deadline_exceeded(format!(
                    "waited for step {}, but training is at {now}",
                    self.until
                )));
            }
            if mentioned.is_none_or(|m: Instant| m.elapsed() >= MENTION) {
                info!("waiting for step {}; training is at {now}", self.until);
                mentioned = Some(Instant::now());
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSES.1);
        }
    }
}
