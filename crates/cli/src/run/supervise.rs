//! `downpour supervise`: the launcher's half on another host. Started through ssh or srun, not by people.

use anyhow::{Context as _, Result};
use clap::Args;
use std::path::PathBuf;

/// Flags of `downpour supervise`.
#[derive(Args)]
pub(crate) struct Supervise {
    /// Start the task of this folder and stay until it ends
    #[arg(long, value_name = "FOLDER")]
    keep: Option<PathBuf>,
}

impl Supervise {
    /// Does what is asked on standard input, or keeps a task.
    pub(crate) fn run(self) -> Result<()> {
        if let Some(folder) = self.keep {
            return downpour_launch::keep(&folder).context("cannot keep the task");
        }
        let own = std::env::current_exe().context("cannot find this program's own file")?;
        let done = downpour_launch::supervise(&own, std::io::stdin(), std::io::stdout());
        done.context("the launcher is gone")
    }
}
