//! `downpour job-guard`: the process that ends a job's tasks when the launcher itself was killed.
//! Started by the launcher, not by people.

use crate::serve::duration;
use clap::Args;
use std::time::Duration;

/// Flags of `downpour job-guard`.
#[derive(Args)]
pub(crate) struct Guard {
    /// How long tasks may take to end when asked
    #[arg(long, value_parser = duration)]
    drain: Duration,
}

impl Guard {
    /// Stands guard until the launcher is gone.
    pub(crate) fn run(self) {
        downpour_launch::stand(std::io::stdin(), self.drain);
    }
}
