//! `downpour demo downpour`: the demo's cluster, trained by Downpour SGD. Only what differs from
//! `demo mnist` is here: the flags, and what a worker does in a step.

use super::flags::Flags;
use super::model::Kind;
use super::{Show, worker_command};
use clap::Args;
use downpour::mnist::{Digits, Images};
use downpour::program::{Report, Worker};
use downpour::train::shards::{Division, Shards};
use downpour::train::staleness::Bound;
use downpour::train::{
    DownpourHook, DownpourSgd, DownpourTraining, MonitoredSession, Optimizer, Replica, ShardBatches,
};
use downpour::{Output, Result, Status};
use std::fmt;

/// Images of a portion.
const PORTION: u64 = 1000;

/// Flags of `downpour demo downpour`.
#[derive(Args)]
pub(crate) struct Downpour {
    #[command(flatten)]
    pub(super) flags: Flags,

    #[command(flatten)]
    how: How,

    /// What is trained
    #[arg(long, value_enum, default_value_t = Kind::Softmax)]
    model: Kind,
}

impl Downpour {
    /// The job that shows it.
    pub(super) fn show(&self) -> Show {
        let (ps, workers) = (self.flags.ps, self.flags.workers.unwrap_or(4));
        let plan = self.flags.plan(self.model.steps(), "step");
        let mut command = worker_command(self.model, &plan);
        command.extend(self.how.to_flags());
        Show {
            title: super::title(self.model, ps, workers, &self.how.to_string()),
            name: "downpour",
            command,
            counts: vec![("ps", ps), ("worker", workers)],
            plan,
        }
    }
}

/// How a replica trains.
#[derive(Args, Clone, Debug)]
pub(crate) struct How {
    /// Fetch the parameters every so many steps
    #[arg(long, value_name = "N", default_value_t = 2)]
    fetch_every: u64,

    /// Push the gradients of so many steps
    #[arg(long, value_name = "N", default_value_t = 2)]
    push_every: u64,

    /// How many steps a replica may be ahead of the slowest, or 'unlimited'
    #[arg(long, value_name = "N", default_value_t = Bound::Unlimited)]
    bound: Bound,

    /// Updates that one replica makes before the others begin
    #[arg(long, value_name = "N", default_value_t = 50)]
    warm_start: u64,
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Downpour SGD")?;
        match self.bound {
            Bound::Unlimited => Ok(()),
            bound => write!(f, " with the bound {bound}"),
        }
    }
}

impl How {
    /// The same as flags of a worker.
    fn to_flags(&self) -> Vec<String> {
        vec![
            "--downpour".to_owned(),
            format!("--fetch-every={}", self.fetch_every),
            format!("--push-every={}", self.push_every),
            format!("--bound={}", self.bound),
            format!("--warm-start={}", self.warm_start),
        ]
    }

    /// Builds what a replica does.
    pub(crate) fn build<O: Optimizer>(
        &self,
        worker: &Worker,
        optimizer: &O,
        loss: &Output,
        (digits, images, batch): (&Digits, &Images, usize),
    ) -> Result<Pouring> {
        let settings = DownpourSgd::new(worker.count(), worker.index())
            .fetch_every(self.fetch_every)
            .push_every(self.push_every)
            .bound(self.bound)
            .warm_start(self.warm_start);
        let training = settings.minimize(optimizer, loss, worker.global_step())?;
        let portions = Division::new(images.len() as u64, PORTION);
        let shards = Shards::new(worker.graph(), "shards", portions);
        Ok(Pouring {
            digits: digits.clone(),
            replica: training.replica(),
            batches: ShardBatches::new(shards.reader(worker.index()), batch, 1),
            training,
            shards,
        })
    }
}

/// A replica of the demo.
pub(crate) struct Pouring {
    digits: Digits,
    training: DownpourTraining,
    replica: Replica,
    shards: Shards,
    batches: ShardBatches,
}

impl Pouring {
    /// Says to the others when this replica leaves.
    pub(crate) fn hook(&self) -> DownpourHook {
        self.training.hook()
    }

    /// Learns from the next batch.
    pub(crate) fn step(&mut self, session: &mut MonitoredSession, images: &Images) -> Result<()> {
        let Some(positions) = self.batches.next(session, &mut self.replica)? else {
            return Err(Status::out_of_range("no more data"));
        };
        let (pixels, labels) = images.at(positions.into_iter());
        let feeds = [(&self.digits.images, pixels), (&self.digits.labels, labels)];
        self.replica.step(session, &feeds).map(|_| ())
    }

    /// Ends in order; what there is to tell.
    pub(crate) fn finish(&mut self, session: &mut MonitoredSession) -> Result<Report> {
        self.batches.finish(session, &mut self.replica)?;
        let session = session.raw()?;
        let replicas = self.training.staleness(&session)?;
        let updates: u64 = replicas.iter().map(|r| r.updates).sum();
        let stale: u64 = replicas.iter().map(|r| r.total).sum();
        let ledger = self.shards.ledger(&session)?;
        let number = |name: &str, value: f64| (name.to_owned(), value);
        Ok(Report::from([
            number("mean_staleness", stale as f64 / updates.max(1) as f64),
            number("epochs", ledger.epochs_done() as f64),
            number("portions_again", ledger.counts().reissued as f64),
        ]))
    }
}
