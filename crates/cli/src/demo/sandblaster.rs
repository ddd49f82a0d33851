//! `downpour demo sandblaster`: softmax regression by Sandblaster L-BFGS. The chief coordinates and
//! holds no parameters, workers compute portions of the batch's gradient, each a process of its own.

use super::flags::Flags;
use super::model::Kind;
use super::progress::{Computed, EVERY, Log, Said, say_computed, say_progress, say_report};
use super::{Show, count};
use anyhow::{Context as _, Result, anyhow, bail};
use clap::Args;
use downpour::mnist::{Classifier, Digits, Mnist};
use downpour::program::{self, Report};
use downpour::train::Events;
use downpour::train::sandblaster::{Outcome, Plan, Progress, Sandblaster as Settings};
use downpour::{
    Graph, ReplicaDeviceSetter, Role, Server, ServerConfig, Session, SessionOptions, Spread,
    Status, Target,
};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Portions for each replica: many, so that all are busy to the end.
const PORTIONS_EACH: usize = 10;
/// Iterations that show what it can.
const ITERATIONS: i64 = 60;
/// Iterations between two checkpoints.
const SAVE_EVERY: u64 = 5;
/// How long a task waits for the others.
const PATIENCE: Duration = Duration::from_secs(60);

/// Flags of `downpour demo sandblaster`.
#[derive(Args)]
pub(crate) struct Sandblaster {
    #[command(flatten)]
    pub(super) flags: Flags,

    /// How many images to learn from, all at once
    #[arg(long, value_name = "N", default_value_t = 60_000, value_parser = clap::value_parser!(u32).range(100..=60_000))]
    images: u32,
}

impl Sandblaster {
    /// The job that shows it.
    pub(super) fn show(&self) -> Result<Show> {
        if self.flags.ps == 0 {
            bail!("--ps 0 leaves the parameters no place: the coordinator holds none");
        }
        let (ps, workers) = (self.flags.ps, self.flags.workers.unwrap_or(4));
        let plan = self.flags.plan(ITERATIONS, "iteration");
        let mut command = vec![
            "demo-sandblaster".to_owned(),
            format!("--images={}", self.images),
        ];
        command.extend(plan.to_flags());
        Ok(Show {
            title: format!(
                "MNIST, softmax: {ps} ps + 1 coordinator + {}, Sandblaster L-BFGS",
                count(workers, "replica")
            ),
            name: "sandblaster",
            command,
            counts: vec![("ps", ps), ("chief", 1), ("worker", workers)],
            plan,
        })
    }
}

/// Flags of `downpour demo-sandblaster`.
#[derive(Args)]
pub(crate) struct Task {
    #[arg(long)]
    images: usize,
    /// Where the images are
    #[arg(long)]
    data: String,
    /// Where checkpoints and event files go
    #[arg(long)]
    dir: String,
    #[arg(long)]
    steps: u64,
    #[arg(long)]
    seconds: Option<u64>,
}

impl Task {
    /// Works as the task that `TF_CONFIG` names.
    pub(crate) fn run(self) -> Result<ExitCode> {
        let config = std::env::var("TF_CONFIG").context("TF_CONFIG")?;
        let args = program::Args::parse([], Some(&config)).map_err(|e| anyhow!("TF_CONFIG: {e}"));
        let role = args?.options.role.context("TF_CONFIG names no task")?;
        program::log_to_stderr();
        // The coordinator saves and ends; replicas end when it has.
        let stop = program::Stop::on_signals();
        match self.work(&role, &stop) {
            Ok(()) => Ok(ExitCode::SUCCESS),
            // Unlike wrong usage, another attempt may help.
            Err(e) => {
                eprintln!("error: {e:#}");
                Ok(ExitCode::FAILURE)
            }
        }
    }

    fn work(&self, role: &Role, stop: &program::Stop) -> Result<()> {
        let begin = Instant::now();
        let tasks = |job: &str| role.cluster.job(job).map_or(0, |tasks| tasks.len());
        let portions = PORTIONS_EACH * tasks("worker").max(1);
        let failed = |e: Status| anyhow!("{e}");
        let model = Model::build(self, portions, tasks("ps")).map_err(failed)?;
        let server = Server::start(ServerConfig {
            cluster: role.cluster.clone(),
            job: role.job.clone(),
            task: role.task,
            bind: Some(role.listen.clone()),
            ..ServerConfig::local()
        });
        let server = server.map_err(|e| anyhow!("{e}"))?;
        let place = Place {
            target: Target::from(&server),
            // Only the servers and itself: what becomes of the others is not its business.
            options: SessionOptions::new().device_filters([
                "/job:ps".to_owned(),
                format!("/job:{}/task:{}", role.job, role.task),
            ]),
        };
        match role.job.as_str() {
            "chief" => {
                let end = self.seconds.map(|s| begin + Duration::from_secs(s));
                let outcome = model.coordinate(&place, &self.dir, end, stop);
                say_report(&outcome.map_err(failed)?);
            }
            "worker" => model
                .replicate(&place, role.task as usize)
                .map_err(failed)?,
            other => bail!("there is nothing to do for a {other}"),
        }
        Ok(())
    }
}

/// Where a task is.
struct Place {
    target: Target,
    options: SessionOptions,
}

/// What every task builds.
struct Model {
    data: Mnist,
    images: usize,
    digits: Digits,
    classifier: Classifier,
    plan: Plan,
}

impl Model {
    fn build(task: &Task, portions: usize, ps: usize) -> downpour::Result<Model> {
        let data = Mnist::read(&task.data)?;
        let images = task.images.min(data.train.len());
        let g = Graph::new();
        // Without another device, all but the variables runs where the session is.
        let setter = ReplicaDeviceSetter::new(ps as u32)
            .worker_device("")
            .strategy(Spread::by_bytes(ps as u32));
        g.clone().with_device_function(setter.build()?, || {
            let digits = Digits::placeholders(&g);
            let (logits, _) = Kind::Softmax.logits(&g, &digits.images);
            let loss = logits.sparse_softmax_cross_entropy(&digits.labels).sum(());
            let settings = Settings::new(portions).l2(1e-4).iterations(task.steps);
            Ok(Model {
                plan: settings.build(&(loss * (1.0 / images as f64)))?,
                classifier: digits.clone().classifier(&logits),
                digits,
                data,
                images,
            })
        })
    }

    /// Computes portions until the coordinator has ended.
    fn replicate(&self, place: &Place, index: usize) -> downpour::Result<()> {
        let portions = self.plan.portions();
        let (mut begin, mut told) = (None, Instant::now());
        let mut computed = 0;
        let replica = self.plan.replica(index).options(place.options.clone());
        let worked = replica
            .patience(PATIENCE)
            .work(&place.target, |portion, run| {
                let begin = *begin.get_or_insert_with(Instant::now);
                if told.elapsed() >= EVERY {
                    told = Instant::now();
                    say_computed(&Computed {
                        portions: computed,
                        seconds: begin.elapsed().as_secs_f64(),
                    });
                }
                computed += 1;
                let at = |portion: usize| portion * self.images / portions;
                let (images, labels) = self.data.train.at(at(portion)..at(portion + 1));
                run.feed(&self.digits.images, images)
                    .feed(&self.digits.labels, labels);
                Ok(())
            });
        worked.map(|_| ())
    }

    /// Minimizes, until a moment if there is one; what came of it.
    fn coordinate(
        &self,
        place: &Place,
        dir: &str,
        end: Option<Instant>,
        stop: &program::Stop,
    ) -> downpour::Result<Report> {
        let mut teller = Teller::new(self, dir);
        let coordinator = self.plan.coordinator().options(place.options.clone());
        let coordinator = coordinator
            .patience(PATIENCE)
            .checkpoints(dir, SAVE_EVERY)?;
        let coordinator = coordinator.observe(|progress, session| {
            teller.tell(progress, session)?;
            let is_over = end.is_some_and(|end| Instant::now() >= end);
            match is_over || stop.is_asked() {
                true => Err(Status::out_of_range("the time is over")),
                false => Ok(()),
            }
        });
        let outcome = coordinator.run(&place.target)?;
        if stop.is_asked() {
            return Ok(Report::new());
        }
        let session = place.options.clone();
        let session = session.open(&place.target, self.plan.graph())?;
        let accuracy = self.classifier.accuracy(&session, &self.data.test)?;
        Ok(report(&outcome, accuracy, self.plan.portions()))
    }
}

fn report(outcome: &Outcome, accuracy: f64, portions: usize) -> Report {
    let at = &outcome.progress;
    let number = |name: &str, value: f64| (name.to_owned(), value);
    Report::from([
        number("test_accuracy", accuracy),
        number("steps", at.iteration as f64),
        number("objective", at.value),
        number("evaluations", at.evaluations as f64),
        number("portions", portions as f64),
        // Since this coordinator started, which may not be the first.
        number("portions_handed_out", at.handed as f64),
        number("recoveries", outcome.losses as f64),
    ])
}

/// Says how far the coordinator is, on its output and in an event file.
struct Teller<'a> {
    model: &'a Model,
    /// Without event files the demo still shows how it goes.
    events: Option<Events>,
    log: Log,
    first: Option<(u64, Instant)>,
    /// When the accuracy was looked at, and what it was.
    looked: Option<(Instant, f64)>,
}

impl<'a> Teller<'a> {
    fn new(model: &'a Model, dir: &str) -> Teller<'a> {
        Teller {
            model,
            events: Events::create(dir).ok(),
            log: Log::new("iteration"),
            first: None,
            looked: None,
        }
    }

    fn tell(&mut self, progress: &Progress, session: &Session) -> downpour::Result<()> {
        let now = Instant::now();
        let (first, begin) = *self.first.get_or_insert((progress.iteration, now));
        let accuracy = match self.looked {
            Some((at, accuracy)) if now - at < EVERY => accuracy,
            _ => {
                let test = &self.model.data.test;
                let accuracy = self.model.classifier.accuracy(session, test)?;
                self.looked = Some((Instant::now(), accuracy));
                accuracy
            }
        };
        let step = i64::try_from(progress.iteration).unwrap_or(i64::MAX);
        if let Some(events) = &self.events {
            let told = events.scalar(step, "loss", progress.value as f32);
            // A full disk must not end the training.
            let told = told.and_then(|()| events.scalar(step, "accuracy", accuracy as f32));
            // Iterations take long: flush after each, so that viewers see it.
            let _ = told.and_then(|()| events.flush());
        }
        let said = Said {
            step,
            own: i64::try_from(progress.iteration - first).unwrap_or(i64::MAX),
            loss: progress.value,
            accuracy,
            seconds: begin.elapsed().as_secs_f64(),
            whole: true,
        };
        say_progress(&said);
        self.log.tell(&said);
        Ok(())
    }
}
