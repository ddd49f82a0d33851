//! `downpour stop`: ends a task that runs elsewhere.

use crate::serve::duration;
use anyhow::{Context, Result, bail};
use clap::Args;
use std::io::Write;
use std::time::Duration;

/// Flags of `downpour stop`.
#[derive(Args)]
pub(crate) struct Stop {
    /// Where the task listens
    #[arg(value_name = "HOST:PORT")]
    address: String,

    /// How long its steps under way may take to end, as in 30s [default: the task's own --drain]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    drain: Option<Duration>,
}

impl Stop {
    /// Stops the task and waits for its end.
    pub(crate) fn run(self) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the network")?;
        let address = self.address.strip_prefix("grpc://");
        let address = address.unwrap_or(&self.address);
        match runtime.block_on(downpour::stop_task(address, self.drain)) {
            Ok(task) => {
                let _ = writeln!(std::io::stdout(), "{task} has stopped");
                Ok(())
            }
            Err(e) => bail!("{}", e.message),
        }
    }
}
