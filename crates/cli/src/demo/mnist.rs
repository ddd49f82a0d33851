//! `downpour demo mnist`: every worker applies its gradients on its own, or all do so together.

use super::flags::Flags;
use super::model::Kind;
use super::{Show, worker_command};
use crate::coordinator::Coordinator;
use anyhow::{Result, bail};
use clap::Args;

/// Flags of `downpour demo mnist`.
#[derive(Args)]
pub(crate) struct Mnist {
    #[command(flatten)]
    pub(super) flags: Flags,

    /// One update for all workers instead of one for each
    #[arg(long)]
    sync: bool,

    /// With --sync: how many workers an update does not wait for
    #[arg(long, value_name = "N", default_value_t = 0, requires = "sync")]
    backup_workers: u32,

    /// Where the chief is elected: etcd://HOST:PORT[,…]/JOB, zk://HOST:PORT[,…]/JOB or file:///DIR
    #[arg(long, value_name = "URL")]
    coordinator: Option<Coordinator>,

    /// What is trained
    #[arg(long, value_enum, default_value_t = Kind::Softmax)]
    model: Kind,
}

impl Mnist {
    /// The job that shows it.
    pub(super) fn show(&self) -> Result<Show> {
        let workers = self.flags.workers.unwrap_or(2);
        if self.backup_workers >= workers.max(1) {
            bail!(
                "--backup-workers {} leaves nobody to wait for; there are {workers} workers",
                self.backup_workers,
            );
        }
        let how = match (self.sync, self.backup_workers) {
            (false, _) => "asynchronous".to_owned(),
            (true, 0) => "synchronous".to_owned(),
            (true, n) => format!("synchronous with {n} backup"),
        };
        let plan = self.flags.plan(self.model.steps(), "step");
        let mut command = worker_command(self.model, &plan);
        if self.sync {
            let backups = format!("--backups={}", self.backup_workers);
            command.extend(["--sync".to_owned(), backups]);
        }
        if let Some(service) = &self.coordinator {
            command.push(format!("--coordinator={}", service.answering()?));
        }
        Ok(Show {
            title: super::title(self.model, self.flags.ps, workers, &how),
            name: "mnist",
            command,
            counts: vec![("ps", self.flags.ps), ("worker", workers)],
            plan,
        })
    }
}
