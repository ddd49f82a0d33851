//! Watches for a loss that is no number any more.

use super::{Context, Hook, number};
use downpour_build::{Output, Result, Status};
use downpour_client::Run;
use tracing::error;

/// Ends training when a loss is not a number.
///
/// ```
/// use downpour::train::Supervision;
/// use downpour::train::hooks::NanGuard;
/// use downpour::{DType, Graph, Server, ServerConfig};
/// let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let x = g.placeholder("x", DType::Float, ());
/// let loss = x.log();
/// let mut session = Supervision::new(&server, &g).hook(NanGuard::new(&loss)).open()?;
/// session.step().feed(&x, 1.0f32).run()?;
/// let error = session.step().feed(&x, -1.0f32).run().unwrap_err();
/// assert!(error.message.starts_with("NaN loss during training"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct NanGuard {
    loss: Output,
    fail: bool,
    position: usize,
}

impl NanGuard {
    /// Fails when the loss is not a number.
    pub fn new(loss: &Output) -> NanGuard {
        NanGuard {
            loss: loss.clone(),
            fail: true,
            position: 0,
        }
    }

    /// Only stops instead of failing.
    pub fn only_stop(mut self) -> NanGuard {
        self.fail = false;
        self
    }
}

impl Hook for NanGuard {
    fn before_run(&mut self, run: &mut Run) {
        self.position = run.fetch(&self.loss);
    }

    fn after_run(&mut self, context: &mut Context<'_>) -> Result<()> {
        if !number(context.value(self.position)?)?.is_nan() {
            return Ok(());
        }
        let text = format!("NaN loss during training: '{}'", self.loss.name());
        if self.fail {
            return Err(Status::new(downpour_build::Code::Internal, text));
        }
        error!("{text}");
        context.request_stop();
        Ok(())
    }
}
