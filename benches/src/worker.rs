//! One worker process. `run.py` and `row` tell it what to do, a line at a time, and it answers each
//! with a line:
//!
//! - `ready` comes first, once the session is open (and, of the chief, variables have their first values);
//! - `run SECONDS`, `steps N` → `{"steps": …, "seconds": …, "cpu_seconds": …}`; after `run`, in synchronous
//!   training, it goes on with steps that do not count, for others may need them, until `stop` → `stopped`;
//! - `value` → `{"loss": …}`; `trace PATH` writes one step's timeline; `quit` ends, as does the end of stdin.

use crate::models::{self, Model, Row};
use crate::processes;
use anyhow::{Context as _, Result, bail};
use clap::Args;
use downpour::train::{MonitoredSession, Supervision};
use downpour::{
    ClusterSpec, Run, Runner as _, RunningServer, Server, ServerConfig, Session, SessionOptions,
    Tensor,
};
use serde_json::{Map, Value, json};
use std::io::{BufRead as _, Write as _};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Which worker of which cluster.
#[derive(Args)]
pub(crate) struct Options {
    /// NAME or NAME:SIZE
    #[arg(long)]
    row: String,
    /// `{"ps": [addresses], "worker": [addresses]}`
    #[arg(long)]
    cluster: String,
    /// Index of this worker
    #[arg(long)]
    task: u32,
}

/// Serves until stdin ends or says so.
pub(crate) fn run(options: &Options) -> Result<()> {
    let lines = stdin();
    let (_server, mut worker) = start(options)?;
    say("ready")?;
    while let Ok(line) = lines.recv() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["run", seconds] => {
                let time = Duration::try_from_secs_f64(seconds.parse()?)?;
                say(&worker.repeat(|begin, _| begin.elapsed() < time)?)?;
                if worker.is_sync() {
                    until_stop(&mut worker, &lines)?;
                }
            }
            ["steps", count] => {
                let count: u64 = count.parse()?;
                say(&worker.repeat(|_, steps| steps < count)?)?;
            }
            ["value"] => say(&worker.values()?.to_string())?,
            ["trace", path] => {
                worker.trace(path)?;
                say("traced")?;
            }
            ["quit"] => break,
            _ => bail!("unknown order: {line}"),
        }
    }
    Ok(())
}

/// Goes on for the others' sake.
fn until_stop(worker: &mut Worker, lines: &Receiver<String>) -> Result<()> {
    while lines.try_recv().ok().as_deref() != Some("stop") {
        worker.step()?;
    }
    say("stopped")
}

/// Lines of stdin, read by a thread so that one can look whether there is another.
fn stdin() -> Receiver<String> {
    let (send, lines) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { break };
            if send.send(line.trim().to_owned()).is_err() {
                break;
            }
        }
    });
    lines
}

fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// The task, and its session.
fn start(options: &Options) -> Result<(RunningServer, Worker)> {
    let cluster = ClusterSpec::from_json(&options.cluster)?;
    let count = |job: &str| cluster.jobs().get(job).map_or(0, |tasks| tasks.len());
    let (ps, workers) = (count("ps"), count("worker"));
    let row = Row::parse(&options.row)?;
    let server = Server::start(ServerConfig {
        cluster,
        job: "worker".to_owned(),
        task: options.task,
        ..ServerConfig::local()
    })?;
    let model = models::build(row, ps, options.task as usize, workers)?;
    let worker = Worker::open(&server, model, options.task)?;
    Ok((server, worker))
}

enum Training {
    Alone(Session),
    Together(Box<MonitoredSession>),
}

struct Worker {
    model: Model,
    training: Training,
    next: usize,
}

impl Worker {
    fn open(server: &RunningServer, model: Model, task: u32) -> Result<Worker> {
        // Workers do not wait for each other.
        let filters = ["/job:ps".to_owned(), format!("/job:worker/task:{task}")];
        let options = SessionOptions::new().device_filters(filters);
        let is_chief = task == 0;
        let training = match &model.sync {
            None => {
                let session = options.open(server, &model.graph)?;
                if is_chief {
                    session.run(&model.init)?;
                }
                Training::Alone(session)
            }
            Some(sync) => {
                let session = Supervision::new(server, &model.graph).options(options);
                let session = session.chief(is_chief).hook(sync.hook(is_chief)).open()?;
                Training::Together(Box::new(session))
            }
        };
        Ok(Worker {
            model,
            training,
            next: 0,
        })
    }

    fn is_sync(&self) -> bool {
        matches!(self.training, Training::Together(_))
    }

    fn step(&mut self) -> Result<()> {
        let run = &self.model.steps[self.next];
        self.next = (self.next + 1) % self.model.steps.len();
        match &mut self.training {
            Training::Alone(session) => drop(session.execute(run)?),
            Training::Together(session) => drop(session.perform(run)?),
        }
        Ok(())
    }

    /// Steps until it is enough, one at least; what that took.
    fn repeat(&mut self, mut more: impl FnMut(Instant, u64) -> bool) -> Result<String> {
        let cpu = processes::cpu_seconds(std::process::id())?;
        let begin = Instant::now();
        let mut steps = 0;
        while steps == 0 || more(begin, steps) {
            self.step()?;
            steps += 1;
        }
        let seconds = begin.elapsed().as_secs_f64();
        let cpu = processes::cpu_seconds(std::process::id())? - cpu;
        Ok(json!({"steps": steps, "seconds": seconds, "cpu_seconds": cpu}).to_string())
    }

    /// What was learned.
    fn values(&mut self) -> Result<Value> {
        let mut run = self.model.example.clone();
        for (_, output) in &self.model.values {
            run.fetch(output);
        }
        let found = self.outside(&run)?;
        let values = self.model.values.iter().zip(&found);
        let values = values.map(|((name, _), value)| {
            let value = value.scalar_value::<f32>()?;
            Ok(((*name).to_owned(), json!(value)))
        });
        Ok(Value::Object(values.collect::<Result<Map<_, _>>>()?))
    }

    /// Runs what is no step of training.
    fn outside(&mut self, run: &Run) -> Result<Vec<Tensor>> {
        match &mut self.training {
            Training::Alone(session) => Ok(session.execute(run)?),
            Training::Together(session) => Ok(session.raw()?.execute(run)?),
        }
    }

    /// Writes one step's timeline.
    fn trace(&mut self, path: &str) -> Result<()> {
        let mut run = self.model.steps[self.next].clone();
        run.trace();
        let outcome = match &mut self.training {
            Training::Alone(session) => (&*session).perform(&run)?,
            Training::Together(session) => session.perform(&run)?,
        };
        let metadata = outcome.metadata.context("the step was not traced")?;
        let stats = metadata.step_stats.context("the trace holds no times")?;
        let text = downpour::train::chrome_trace(&stats);
        std::fs::write(path, text).with_context(|| format!("cannot write {path}"))
    }
}
