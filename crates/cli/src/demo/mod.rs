//! `downpour demo`: a whole cluster on this machine in one command. The launcher, the servers and
//! the trainers are those of `run`, `serve` and `downpour::program`; only the view is the demo's own.

mod data;
mod downpour_sgd;
mod flags;
mod mnist;
mod model;
mod progress;
mod recovery;
mod sandblaster;
mod sketch;
mod slope;
mod view;
mod worker;

pub(crate) use sandblaster::Task;
pub(crate) use worker::Worker;

use crate::dashboard::{Beside, DashboardFlags};
use crate::run::conduct::{conduct, origin, setup};
use crate::run::console::{Console, When};
use anyhow::{Context as _, Result, bail};
use clap::{Args, Subcommand};
use downpour_launch::{HappeningKind, JobSpec, JobState, Launcher, Outcome};
use flags::Flags;
use model::Kind;
use progress::Progress;
use serde_json::json;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use view::View;

/// What to demonstrate.
#[derive(Args)]
pub(crate) struct Demo {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Handwritten digits: starts parameter servers and workers as processes, trains, shows how it goes, evaluates
    Mnist(mnist::Mnist),
    /// The same by Downpour SGD: replicas that fetch, compute and push at once, on portions of the data under leases
    Downpour(downpour_sgd::Downpour),
    /// The same by Sandblaster L-BFGS: a coordinator without parameters, replicas that compute the gradient of all images in portions
    Sandblaster(sandblaster::Sandblaster),
}

impl Demo {
    /// Runs the demo to its end.
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self.what {
            What::Mnist(demo) => demo.show()?.run(&demo.flags),
            What::Downpour(demo) => demo.show().run(&demo.flags),
            What::Sandblaster(demo) => demo.show()?.run(&demo.flags),
        }
    }
}

/// A demo as a job: `downpour serve` for each ps, this program's trainer for every other task.
struct Show {
    title: String,
    /// The job's, and the first part of its directory's.
    name: &'static str,
    /// What this program is told to be a trainer.
    command: Vec<String>,
    counts: Vec<(&'static str, u32)>,
    plan: DemoPlan,
}

impl Show {
    fn run(&self, flags: &Flags) -> Result<ExitCode> {
        if let Some(dir) = &flags.dir {
            crate::storage::check(dir)?;
        }
        let mut setup = setup(flags.kill.clone())?;
        setup.unlogged = Some(progress::MARK.to_owned());
        let kept = match &flags.data {
            Some(dir) => Some(data::given(dir)?),
            None => data::keep(),
        };
        if kept.is_none() && flags.dir.as_deref().is_some_and(crate::storage::is_url) {
            bail!(
                "the images need a place on this machine: set HOME or XDG_CACHE_HOME to a directory that can be written"
            );
        }
        let local = Launcher::prepare(self.spec(flags, kept.as_deref())?, setup)?;
        let state = local.monitor().snapshot();
        if kept.is_none() {
            data::unpack(&state.dir.join("data"))
                .with_context(|| format!("cannot write the images to '{}'", state.dir.display()))?;
        }
        let progress = Arc::new(Progress::default());
        let subject = DashboardFlags::job(&local.monitor());
        let dashboard = flags.dashboard.start_beside(subject)?;
        if let Some(dashboard) = &dashboard {
            Console::new(When::Auto).note(&format!("dashboard at {}", dashboard.url()));
        }
        let view = match flags.json {
            true => View::silent(),
            false => View::start(&self.title, &self.plan, local.monitor(), progress.clone()),
        };
        let (heard, told) = (progress.clone(), progress.clone());
        let (quiet, console) = (flags.json, Console::new(When::Auto));
        let origin = origin(&local, dashboard.as_ref().map(Beside::url));
        let ended = conduct(
            local,
            &origin,
            move |task, _, line| heard.hear(task, line),
            move |happening| {
                if let (HappeningKind::Loss, Some(task)) = (happening.kind, &happening.task) {
                    told.lost(task);
                }
                if quiet {
                    console.note(&happening.to_string());
                }
            },
        );
        view.finish();
        let (outcome, state) = ended?;
        self.conclude(flags.json, &outcome, &state, &progress);
        if let Some(dashboard) = &dashboard {
            dashboard.end(&outcome, &state, |url| {
                Console::new(When::Auto)
                    .note(&format!("the dashboard stays at {url}; Ctrl-C ends it"));
            });
        }
        Ok(ExitCode::from(outcome.code()))
    }

    fn spec(&self, flags: &Flags, data: Option<&Path>) -> Result<JobSpec> {
        let own = std::env::current_exe().context("cannot find this program's own file")?;
        let own = own.to_str().context("this program's path is not UTF-8")?;
        let mut command = vec![own.to_owned()];
        command.extend_from_slice(&self.command);
        command.push(match data.and_then(Path::to_str) {
            Some(data) => format!("--data={data}"),
            None => "--data={dir}/data".to_owned(),
        });
        let mut spec = JobSpec::new(self.name, command, &self.counts);
        spec.dir.clone_from(&flags.dir);
        spec.train_dir = Some("{dir}/train".into());
        spec.drain = Duration::from_secs(5);
        spec.check()?;
        Ok(spec)
    }

    /// Says how it went and where everything is.
    fn conclude(&self, json: bool, outcome: &Outcome, state: &JobState, progress: &Progress) {
        let train = state.train_dir.clone().unwrap_or_default();
        let report = progress.report();
        let checkpoint = downpour::train::latest_checkpoint(&train.to_string_lossy());
        let checkpoint = checkpoint.ok().flatten();
        let seconds = state.ended.unwrap_or_default().as_secs_f64();
        let restarts: u32 = state.tasks.iter().map(|t| t.restarts()).sum();
        // Others may have made some steps between the chief's last look and its last checkpoint.
        let saved = checkpoint.as_deref().and_then(step_of);
        let steps = progress.reported("steps").into_iter().chain(saved);
        let steps = steps.max_by(f64::total_cmp);
        let mut out = std::io::stdout().lock();
        if json {
            let mut line = serde_json::Map::new();
            line.extend(report.map(|(k, v)| (k, v.into())));
            line.insert("seconds".into(), seconds.into());
            line.insert("restarts".into(), restarts.into());
            line.insert("exit_code".into(), outcome.code().into());
            line.insert("dir".into(), state.dir.to_string_lossy().into());
            if let Some(steps) = steps {
                line.insert("steps".into(), steps.into());
            }
            line.insert("recovered".into(), json!(progress.recoveries()));
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
                "\ntest accuracy {:.2} % after {} {}s, {:.1} s in all{again}",
                accuracy * 100.0,
                sketch::thousands(steps.unwrap_or(0.0)),
                self.plan.unit,
                seconds
            );
        } else {
            Console::new(When::Auto).plain(&downpour_launch::summary(outcome, state));
        }
        for line in progress.now().recoveries(self.plan.unit) {
            let _ = writeln!(out, "{line}");
        }
        let _ = write!(out, "{}", places(state, &train, checkpoint.as_deref()));
    }
}

/// The step of a checkpoint, by its name.
fn step_of(prefix: &str) -> Option<f64> {
    let (_, step) = prefix.rsplit_once('-')?;
    step.parse::<u64>().ok().map(|step| step as f64)
}

/// Where things are, and how to open them.
fn places(state: &JobState, train: &Path, checkpoint: Option<&str>) -> String {
    let mut out = String::new();
    if let Some(prefix) = checkpoint {
        out +=
            &format!("checkpoint   {prefix}\n             downpour inspect checkpoint {prefix}\n");
    }
    if downpour_formats::Files::new().is_dir(&train.to_string_lossy()) {
        let train = train.display();
        out += &format!("event files  {train}\n             tensorboard --logdir {train}\n");
    }
    out += &format!("logs         {}\n", state.dir.join("logs").display());
    out
}

/// How long to train.
pub(crate) struct DemoPlan {
    /// For so many steps,
    steps: i64,
    /// or for so long.
    time: Option<Duration>,
    /// What is counted: `step` or `iteration`.
    unit: &'static str,
}

impl DemoPlan {
    /// The same, and where results go, as flags of a trainer.
    fn to_flags(&self) -> Vec<String> {
        let mut flags = vec![
            "--dir={dir}/train".to_owned(),
            format!("--steps={}", self.steps),
        ];
        flags.extend(
            self.time
                .map(|time| format!("--seconds={}", time.as_secs())),
        );
        flags
    }
}

/// The command of a worker that learns from batches.
fn worker_command(model: Kind, plan: &DemoPlan) -> Vec<String> {
    let mut command = vec!["demo-worker".to_owned(), format!("--model={model}")];
    command.extend(plan.to_flags());
    command
}

/// What stands above the view.
fn title(model: Kind, ps: u32, workers: u32, how: &str) -> String {
    let workers = count(workers, "worker");
    format!("MNIST, {model}: {ps} ps + {workers}, {how}")
}

/// `1 worker`, `2 workers`.
fn count(n: u32, word: &str) -> String {
    match n {
        1 => format!("1 {word}"),
        n => format!("{n} {word}s"),
    }
}
