//! `downpour demo`: a whole cluster on this machine in one command. The launcher, the servers and
//! the trainers are those of `run`, `serve` and `downpour::program`; only the view is the demo's own.

mod data;
mod downpour_sgd;
mod model;
mod progress;
mod sketch;
mod view;
mod worker;

pub(crate) use worker::Worker;

use crate::dashboard::DashboardFlags;
use crate::run::conduct::{conduct, setup};
use crate::run::console::{Console, When};
use crate::run::kill;
use anyhow::{Context as _, Result, bail};
use clap::{Args, Subcommand};
use downpour_launch::{JobSpec, JobState, Local, Outcome, TaskName};
use model::Kind;
use progress::Progress;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use view::View;

/// How long training goes on after the last task was killed on demand, so that recovery is seen.
const AFTER_KILL: Duration = Duration::from_secs(8);

/// What to demonstrate.
#[derive(Args)]
pub(crate) struct Demo {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Handwritten digits: starts parameter servers and workers as processes, trains, shows how it goes, evaluates
    Mnist(Mnist),
    /// The same by Downpour SGD: replicas that fetch, compute and push at once, on portions of the data under leases
    Downpour(downpour_sgd::Downpour),
}

/// Flags of `downpour demo mnist`.
#[derive(Args)]
pub(crate) struct Mnist {
    /// Parameter servers
    #[arg(long, value_name = "N", default_value_t = 2)]
    ps: u32,

    /// Workers
    #[arg(long, value_name = "N", default_value_t = 2)]
    workers: u32,

    /// One update for all workers instead of one for each
    #[arg(long)]
    sync: bool,

    /// With --sync: how many workers an update does not wait for
    #[arg(long, value_name = "N", default_value_t = 0, requires = "sync")]
    backup_workers: u32,

    /// What is trained
    #[arg(long, value_enum, default_value_t = Kind::Softmax)]
    model: Kind,

    /// Steps of all workers together [default: 8000 for softmax, 2000 for cnn; with --kill, until recovery was seen]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..=1_000_000_000))]
    steps: Option<i64>,

    /// Kill a task so long after the start, to see recovery: ps:0@5s
    #[arg(long, value_name = "TASK@TIME", value_parser = kill)]
    kill: Vec<(TaskName, Duration)>,

    /// Where logs, checkpoints and event files go [default: downpour-runs/mnist-N]
    #[arg(long)]
    dir: Option<std::path::PathBuf>,

    /// Show nothing on the way and end with one line of JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    dashboard: DashboardFlags,

    /// How, if by Downpour SGD
    #[arg(skip)]
    downpour: Option<downpour_sgd::How>,
}

impl Demo {
    /// Runs the demo to its end.
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self.what {
            What::Mnist(mnist) => mnist.run(),
            What::Downpour(downpour) => downpour.mnist().run(),
        }
    }
}

impl Mnist {
    fn run(self) -> Result<ExitCode> {
        if self.backup_workers >= self.workers.max(1) {
            bail!(
                "--backup-workers {} leaves nobody to wait for; there are {} workers",
                self.backup_workers,
                self.workers
            );
        }
        let plan = Plan::of(&self);
        let local = Local::prepare(self.spec(&plan)?, setup(self.kill.clone())?)?;
        let state = local.monitor().snapshot();
        data::unpack(&state.dir.join("data"))
            .with_context(|| format!("cannot write the images to '{}'", state.dir.display()))?;
        let progress = Arc::new(Progress::default());
        let title = self.title();
        let mut subject = DashboardFlags::job(&local.monitor());
        subject.dirs.push(state.dir.join("train"));
        let dashboard = self.dashboard.start_beside(subject)?;
        if let Some(dashboard) = &dashboard {
            Console::new(When::Auto).note(&format!("dashboard at {}", dashboard.url()));
        }
        let view = match self.json {
            true => View::silent(),
            false => View::start(&title, &plan, local.monitor(), progress.clone()),
        };
        let heard = progress.clone();
        let (quiet, console) = (self.json, Console::new(When::Auto));
        let ended = conduct(
            local,
            move |task, _, line| heard.hear(task, line),
            move |happening| {
                if quiet {
                    console.note(&happening.to_string());
                }
            },
        );
        view.finish();
        let (outcome, state) = ended?;
        let _ = downpour_launch::write_summary(&outcome, &state);
        self.conclude(&outcome, &state, &progress);
        Ok(ExitCode::from(outcome.code()))
    }

    fn title(&self) -> String {
        let how = match (self.sync, self.backup_workers, &self.downpour) {
            (_, _, Some(how)) => how.to_string(),
            (false, _, None) => "asynchronous".to_owned(),
            (true, 0, None) => "synchronous".to_owned(),
            (true, n, None) => format!("synchronous with {n} backup"),
        };
        let count = |n: u32, word: &str| match n {
            1 => format!("1 {word}"),
            n => format!("{n} {word}s"),
        };
        format!(
            "MNIST, {}: {} ps + {}, {how}",
            self.model,
            self.ps,
            count(self.workers, "worker")
        )
    }

    /// The job: `downpour serve` for each ps, this program's trainer for each worker.
    fn spec(&self, plan: &Plan) -> Result<JobSpec> {
        let own = std::env::current_exe().context("cannot find this program's own file")?;
        let own = own.to_str().context("this program's path is not UTF-8")?;
        let mut command = vec![own.to_owned(), "demo-worker".to_owned()];
        let mut flag = |name: &str, value: String| command.extend([name.to_owned(), value]);
        flag("--model", self.model.to_string());
        flag("--data", "{dir}/data".to_owned());
        flag("--dir", "{dir}/train".to_owned());
        flag("--steps", plan.steps.to_string());
        if let Some(time) = plan.time {
            flag("--seconds", time.as_secs().to_string());
        }
        if self.sync {
            flag("--backups", self.backup_workers.to_string());
            command.push("--sync".to_owned());
        }
        let name = match &self.downpour {
            Some(how) => {
                command.extend(how.to_flags());
                "downpour"
            }
            None => "mnist",
        };
        let counts = [("ps", self.ps), ("worker", self.workers)];
        let mut spec = JobSpec::new(name, command, &counts);
        spec.dir.clone_from(&self.dir);
        spec.train_dir = Some("{dir}/train".into());
        spec.drain = Duration::from_secs(5);
        spec.check()?;
        Ok(spec)
    }

    /// Says how it went and where everything is.
    fn conclude(&self, outcome: &Outcome, state: &JobState, progress: &Progress) {
        let train = state.train_dir.clone().unwrap_or_default();
        let report = progress.report();
        let checkpoint = downpour::train::latest_checkpoint(&train.to_string_lossy());
        let checkpoint = checkpoint.ok().flatten();
        let seconds = state.ended.unwrap_or_default().as_secs_f64();
        let restarts: u32 = state.tasks.iter().map(|t| t.restarts()).sum();
        let mut out = std::io::stdout().lock();
        if self.json {
            let mut line = serde_json::Map::new();
            line.extend(report.map(|(k, v)| (k, v.into())));
            line.insert("seconds".into(), seconds.into());
            line.insert("restarts".into(), restarts.into());
            line.insert("exit_code".into(), outcome.code().into());
            line.insert("dir".into(), state.dir.to_string_lossy().into());
            line.insert("checkpoint".into(), checkpoint.into());
            let _ = writeln!(out, "{}", serde_json::Value::Object(line));
            return;
        }
        let again = match restarts {
            0 => String::new(),
            1 => ", 1 restart".to_owned(),
            n => format!(", {n} restarts"),
        };
        let number = |name: &str| progress.reported(name);
        if let (Outcome::Done, Some(accuracy)) = (outcome, number("test_accuracy")) {
            let _ = writeln!(
                out,
                "\ntest accuracy {:.2} % after {} steps, {:.1} s in all{again}",
                accuracy * 100.0,
                sketch::thousands(number("steps").unwrap_or(0.0)),
                seconds
            );
        } else {
            Console::new(When::Auto).plain(&downpour_launch::summary(outcome, state));
        }
        let _ = write!(out, "{}", places(state, &train, checkpoint.as_deref()));
    }
}

/// Where things are, and how to open them.
fn places(state: &JobState, train: &Path, checkpoint: Option<&str>) -> String {
    let mut out = String::new();
    if let Some(prefix) = checkpoint {
        out +=
            &format!("checkpoint   {prefix}\n             downpour inspect checkpoint {prefix}\n");
    }
    if train.is_dir() {
        let train = train.display();
        out += &format!("event files  {train}\n             tensorboard --logdir {train}\n");
    }
    out += &format!("logs         {}\n", state.dir.join("logs").display());
    out
}

/// How long to train.
pub(crate) struct Plan {
    /// For so many steps,
    steps: i64,
    /// or for so long.
    time: Option<Duration>,
}

impl Plan {
    fn of(demo: &Mnist) -> Plan {
        let last = demo.kill.iter().map(|(_, after)| *after).max();
        match (demo.steps, last) {
            (Some(steps), _) => Plan { steps, time: None },
            (None, None) => Plan {
                steps: demo.model.steps(),
                time: None,
            },
            (None, Some(last)) => Plan {
                steps: i64::MAX / 2,
                time: Some(last + AFTER_KILL),
            },
        }
    }
}
