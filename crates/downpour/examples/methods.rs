//! One way of training against another: softmax regression on handwritten digits with several replicas,
//! until a test accuracy is reached or a time is over, with the curve on the way. What
//! `cargo xtask methods` runs; ends with one line of JSON.
//!
//! `cargo run --release --example methods -- --method downpour-adagrad --target 0.915`

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program talks to its user"
)]

#[path = "methods/sandblaster.rs"]
mod sandblaster;

use downpour::losses::sparse_softmax_cross_entropy;
use downpour::mnist::{Classifier, Digits, Images, Mnist, PIXELS};
use downpour::train::shards::{Division, Shards};
use downpour::train::staleness::Bound;
use downpour::train::{
    Adagrad, DownpourSgd, DownpourTraining, GradientDescent, MonitoredSession, Optimizer,
    ShardBatches, Supervision, SyncReplicas, global_step,
};
use downpour::{
    Draws, Graph, Init, LocalCluster, Output, ReplicaDeviceSetter, Result, RunningServer, Session,
    SessionOptions, Status, Variable, inspect_task,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const PS: u32 = 2;
const BATCH: usize = 100;
const LOOK: Duration = Duration::from_millis(100);

/// What the command line says.
#[derive(Clone)]
struct Args {
    method: String,
    replicas: usize,
    target: f64,
    seconds: f64,
    /// Steps between two fetches, and two pushes, of Downpour SGD.
    every: u64,
    bound: Bound,
    /// What the last replica loses at each step.
    straggle: Duration,
    /// What each replica loses at some of its steps.
    hiccup: Duration,
}

impl Args {
    fn parse() -> Result<Args> {
        let mut args = Args {
            method: "downpour-adagrad".to_owned(),
            replicas: 4,
            target: 0.915,
            seconds: 30.0,
            every: 2,
            bound: Bound::Unlimited,
            straggle: Duration::ZERO,
            hiccup: Duration::ZERO,
        };
        let mut words = std::env::args().skip(1);
        while let Some(name) = words.next() {
            let wrong = |e: String| Status::invalid_argument(format!("{name}: {e}"));
            let value = words.next().unwrap_or_default();
            let number = || value.parse::<f64>().map_err(|e| wrong(e.to_string()));
            match name.as_str() {
                "--method" => args.method = value,
                "--replicas" => args.replicas = number()? as usize,
                "--target" => args.target = number()?,
                "--seconds" => args.seconds = number()?,
                "--every" => args.every = number()? as u64,
                "--bound" => args.bound = value.parse().map_err(wrong)?,
                "--straggle-ms" => args.straggle = Duration::from_secs_f64(number()? / 1000.0),
                "--hiccup-ms" => args.hiccup = Duration::from_secs_f64(number()? / 1000.0),
                _ => return Err(wrong("no option".to_owned())),
            }
        }
        Ok(args)
    }
}

/// The same graph for every method: variables in the same order are on the same servers.
struct Model {
    graph: Graph,
    digits: Digits,
    classifier: Classifier,
    loss: Output,
    step: Variable,
    shards: Shards,
}

fn build<R>(
    data: &Mnist,
    task: usize,
    more: impl FnOnce(&Model) -> Result<R>,
) -> Result<(Model, R)> {
    let g = Graph::new();
    let device = format!("/job:worker/task:{task}");
    let setter = ReplicaDeviceSetter::new(PS)
        .worker_device(&device)
        .build()?;
    g.clone().with_device_function(setter, || {
        let step = global_step(&g);
        let digits = Digits::placeholders(&g);
        let weights = g.variable("weights").shape([PIXELS, 10]);
        let weights = weights.init(Init::zeros()).build();
        let bias = g.variable("bias").shape([10]).init(Init::zeros()).build();
        let portions = Division::new(data.train.len() as u64, 1000);
        let shards = Shards::new(&g, "shards", portions);
        let logits = digits.images.matmul(&weights).bias_add(&bias);
        let model = Model {
            loss: sparse_softmax_cross_entropy(&digits.labels, &logits),
            classifier: digits.clone().classifier(&logits),
            graph: g,
            digits,
            step,
            shards,
        };
        let more = more(&model)?;
        Ok((model, more))
    })
}

fn open(
    cluster: &LocalCluster,
    task: usize,
    supervised: impl FnOnce(Supervision) -> Supervision,
    g: &Graph,
) -> Result<MonitoredSession> {
    let own = format!("/job:worker/task:{task}");
    let options = SessionOptions::new().device_filters(["/job:ps".to_owned(), own]);
    let supervision = Supervision::new(&cluster.workers()[task], g).chief(task == 0);
    supervised(supervision.options(options)).open()
}

/// What all threads share.
struct World<'a> {
    args: &'a Args,
    data: &'a Mnist,
    cluster: &'a LocalCluster,
    stop: &'a AtomicBool,
}

impl World<'_> {
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    /// The last replica is slow, if one is; any is at every tenth step, by chance, if they have
    /// hiccups.
    fn straggle(&self, task: usize, draws: &mut Draws) {
        let mut lost = Duration::ZERO;
        if task + 1 == self.args.replicas {
            lost += self.args.straggle;
        }
        if draws.below(10) == 0 {
            lost += self.args.hiccup;
        }
        if !lost.is_zero() {
            std::thread::sleep(lost);
        }
    }

    fn work(&self, task: usize) -> Result<()> {
        match self.args.method.as_str() {
            "downpour-sgd" => self.downpour(task, &GradientDescent::new(0.1)),
            "downpour-adagrad" => self.downpour(task, &Adagrad::new(0.1)),
            "sync-sgd" => self.synchronous(task),
            other => Err(Status::invalid_argument(format!("no method '{other}'"))),
        }
    }

    fn downpour<O: Optimizer>(&self, task: usize, optimizer: &O) -> Result<()> {
        let settings = DownpourSgd::new(self.args.replicas, task).bound(self.args.bound);
        let every = self.args.every;
        let settings = settings.fetch_every(every).push_every(every);
        let (model, training) = build(self.data, task, |m| -> Result<DownpourTraining> {
            settings.minimize(optimizer, &m.loss, &m.step)
        })?;
        let hooked = |s: Supervision| s.hook(training.hook());
        let mut session = open(self.cluster, task, hooked, &model.graph)?;
        let mut replica = training.replica();
        let mut batches = ShardBatches::new(model.shards.reader(task), BATCH, 1);
        let mut draws = Draws::new(task as u64);
        while self.goes_on() {
            let Some(positions) = batches.next(&mut session, &mut replica)? else {
                break;
            };
            let (images, labels) = self.data.train.at(positions.into_iter());
            self.straggle(task, &mut draws);
            let feeds = [
                (&model.digits.images, images),
                (&model.digits.labels, labels),
            ];
            replica.step(&mut session, &feeds)?;
        }
        batches.finish(&mut session, &mut replica)?;
        session.close()
    }

    fn synchronous(&self, task: usize) -> Result<()> {
        let settings = SyncReplicas::new(self.args.replicas, task);
        let (model, training) = build(self.data, task, |m| {
            settings.minimize(&GradientDescent::new(0.5), &m.loss, &m.step)
        })?;
        let hooked = |s: Supervision| s.hook(training.hook(task == 0));
        let mut session = open(self.cluster, task, hooked, &model.graph)?;
        let share: Images = self.data.train.share(task, self.args.replicas);
        let mut batches = share.batches(BATCH, task as u64);
        let mut draws = Draws::new(task as u64);
        while self.goes_on() && !session.should_stop() {
            self.straggle(task, &mut draws);
            let batch = batches.next_batch();
            model
                .classifier
                .train(&mut session, training.train(), batch)?;
        }
        session.close()
    }
}

/// A point of the curve.
struct Point {
    seconds: f64,
    steps: i64,
    bytes: u64,
    accuracy: f64,
}

/// Watches the model until the target is reached or the time is over.
fn evaluate(world: &World<'_>, begin: Instant) -> Result<Vec<Point>> {
    let (model, ()) = build(world.data, 0, |_| Ok(()))?;
    let session = Session::new(&world.cluster.workers()[0], &model.graph)?;
    let mut curve: Vec<Point> = Vec::new();
    loop {
        std::thread::sleep(LOOK);
        // Until the chief has given the variables their first values there is nothing to see.
        let seen = session.fetch(&model.step);
        let seconds = begin.elapsed().as_secs_f64();
        if let Ok(steps) = seen {
            curve.push(Point {
                seconds,
                steps: steps.scalar_value::<i64>()?,
                bytes: moved(world.cluster.workers())?,
                accuracy: model.classifier.accuracy(&session, &world.data.test)?,
            });
        }
        let reached = curve
            .last()
            .is_some_and(|p| p.accuracy >= world.args.target);
        if reached || seconds > world.args.seconds {
            return Ok(curve);
        }
    }
}

/// Bytes of tensors and messages between the workers and other tasks, both ways.
fn moved(workers: &[RunningServer]) -> Result<u64> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(|e| Status::unavailable(e.to_string()))?;
    let mut bytes = 0;
    for worker in workers {
        let address = worker.address().to_string();
        let report = runtime.block_on(inspect_task(&address, Duration::from_secs(10)));
        let report = report.map_err(|e| Status::unavailable(e.to_string()))?;
        bytes += report
            .peers
            .iter()
            .map(|p| p.bytes_sent + p.bytes_received)
            .sum::<u64>();
    }
    Ok(bytes)
}

/// All replicas until the target is reached or the time is over.
fn by_steps(world: &World<'_>, begin: Instant) -> Result<Vec<Point>> {
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..world.args.replicas)
            .map(|task| scope.spawn(move || world.work(task)))
            .collect();
        let curve = evaluate(world, begin);
        world.stop.store(true, Ordering::Relaxed);
        for worker in workers {
            match worker.join() {
                Ok(outcome) => outcome?,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        curve
    })
}

fn run() -> Result<String> {
    let args = Args::parse()?;
    let data = Mnist::shipped()?;
    let is_sandblaster = args.method == "sandblaster";
    // Its coordinator is a task of its own.
    let tasks = args.replicas + usize::from(is_sandblaster);
    let failed = |e: downpour::ServerError| Status::unavailable(e.to_string());
    let cluster = LocalCluster::start(PS as usize, tasks).map_err(failed)?;
    let stop = AtomicBool::new(false);
    let world = World {
        args: &args,
        data: &data,
        cluster: &cluster,
        stop: &stop,
    };
    let curve = match is_sandblaster {
        true => sandblaster::train(&world, Instant::now())?,
        false => by_steps(&world, Instant::now())?,
    };
    let points: Vec<String> = curve
        .iter()
        .map(|p| format!("[{:.3},{},{},{}]", p.seconds, p.steps, p.bytes, p.accuracy))
        .collect();
    Ok(format!("{{\"curve\":[{}]}}", points.join(",")))
}

fn main() -> std::process::ExitCode {
    match run() {
        Ok(line) => {
            println!("{line}");
            std::process::ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("error: {e}");
            std::process::ExitCode::FAILURE
        }
    }
}
