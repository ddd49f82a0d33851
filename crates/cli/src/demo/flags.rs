//! Flags that all demos share: how large the cluster is, how long it trains, what is shown.

use super::DemoPlan;
use crate::dashboard::DashboardFlags;
use crate::run::kill;
use clap::Args;
use downpour_launch::TaskName;
use std::path::PathBuf;
use std::time::Duration;

/// How long training goes on after the last task was killed on demand, so that recovery is seen.
const AFTER_KILL: Duration = Duration::from_secs(8);

/// Flags of every demo.
#[derive(Args)]
pub(crate) struct Flags {
    /// Parameter servers
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub(super) ps: u32,

    /// Workers, or replicas of the model [default: 2 workers, 4 replicas]
    #[arg(long, value_name = "N")]
    pub(super) workers: Option<u32>,

    /// Steps of all workers together, or iterations over all images [default: 8000 for softmax, 2000 for cnn, 60 iterations; with --kill,
    /// until recovery was seen]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..=1_000_000_000))]
    pub(super) steps: Option<i64>,

    /// Kill a task so long after the start, to see recovery: ps:0@5s, worker:1@3s
    #[arg(long, value_name = "TASK@TIME", value_parser = kill)]
    pub(super) kill: Vec<(TaskName, Duration)>,

    /// Where logs, checkpoints and event files go [default: downpour-runs/DEMO-N]; of hdfs://…, s3://…, gs://… and az://…
    /// all but the logs
    #[arg(long)]
    pub(super) dir: Option<PathBuf>,

    /// Where MNIST's four files are [default: those inside this program]
    #[arg(long, value_name = "DIR")]
    pub(super) data: Option<PathBuf>,

    /// Show nothing on the way and end with one line of JSON
    #[arg(long)]
    pub(super) json: bool,

    #[command(flatten)]
    pub(super) dashboard: DashboardFlags,
}

impl Flags {
    /// How long to train, when so many steps show what there is to see.
    pub(super) fn plan(&self, steps: i64, unit: &'static str) -> DemoPlan {
        let last = self.kill.iter().map(|(_, after)| *after).max();
        let (steps, time) = match (self.steps, last) {
            (Some(steps), _) => (steps, None),
            (None, None) => (steps, None),
            (None, Some(last)) => (i64::MAX / 2, Some(last + AFTER_KILL)),
        };
        DemoPlan { steps, time, unit }
    }
}
