//! `downpour demo-worker`: one worker of the demo, a `downpour::program` like any other. Started by
//! the launcher, not by people.

use super::downpour_sgd::How;
use super::model::{Kind, Teller};
use super::progress;
use anyhow::{Context as _, Result, bail};
use clap::Args;
use downpour::mnist::Mnist;
use downpour::program;
use downpour::train::{CoordinatorUrl, Every};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Flags of `downpour demo-worker`.
#[derive(Args)]
pub(crate) struct Worker {
    #[arg(long, value_enum)]
    model: Kind,
    /// Where the images are
    #[arg(long)]
    data: String,
    /// Where checkpoints and event files go
    #[arg(long)]
    dir: String,
    #[arg(long)]
    steps: i64,
    #[arg(long)]
    seconds: Option<u64>,
    #[arg(long)]
    sync: bool,
    #[arg(long, default_value_t = 0)]
    backups: usize,
    #[arg(long)]
    coordinator: Option<CoordinatorUrl>,
    #[arg(long)]
    downpour: bool,
    #[command(flatten)]
    how: How,
}

impl Worker {
    /// Trains as the task that `TF_CONFIG` names.
    pub(crate) fn run(self) -> Result<ExitCode> {
        let begin = Instant::now();
        let config = std::env::var("TF_CONFIG").context("TF_CONFIG")?;
        let args = match program::Args::parse([], Some(&config)) {
            Ok(args) => args,
            Err(e) => bail!("TF_CONFIG: {e}"),
        };
        program::log_to_stderr();
        let options = program::Options {
            stop: program::Stop::on_signals(),
            steps: self.steps,
            sync: self.sync,
            backups: self.backups,
            coordinator: self.coordinator,
            dir: Some(self.dir.clone()),
            save: Every::Time(Duration::from_secs(1)),
            patience: Duration::from_secs(60),
            ..args.options
        };
        let teller = Teller {
            kind: self.model,
            data: Mnist::read(&self.data).map_err(|e| anyhow::anyhow!("{e}"))?,
            dir: self.dir,
            time: self.seconds.map(Duration::from_secs),
            begin,
            downpour: self.downpour.then_some(self.how),
            sync: self.sync,
        };
        match program::run(&teller, &options) {
            Ok(report) => {
                progress::say_report(&report);
                Ok(ExitCode::SUCCESS)
            }
            // Unlike wrong usage, another attempt may help.
            Err(e) => {
                eprintln!("error: {e}");
                Ok(ExitCode::FAILURE)
            }
        }
    }
}
