//! Handwritten digits by softmax regression and L-BFGS: a coordinator that holds no parameters, and
//! replicas that compute the gradient of all 60,000 images in portions. 92 % of the test images and more.
//!
//! `cargo run --release --example mnist_sandblaster -- --ps 2 --workers 4 [--steps ITERATIONS] [--json]`
//!
//! As processes, with a coordinator that is the chief:
//! `downpour run --ps 2 --chief --workers 4 -- target/release/examples/mnist_sandblaster`

use downpour::mnist::{Classifier, Digits, Mnist, PIXELS};
use downpour::program::Args;
use downpour::train::sandblaster::{Outcome, Plan, Sandblaster};
use downpour::{
    Graph, Init, LocalCluster, ReplicaDeviceSetter, Result, Role, RunningServer, Server,
    ServerConfig, Session, SessionOptions, Target,
};
use std::time::{Duration, Instant};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Several for each replica, so that all are busy to the end.
const PORTIONS: usize = 40;

/// What every process builds.
struct Model {
    data: Mnist,
    digits: Digits,
    classifier: Classifier,
    plan: Plan,
}

impl Model {
    fn build(ps: usize, iterations: i64) -> Result<Model> {
        let data = Mnist::shipped()?;
        let g = Graph::new();
        // Without another device, all but the variables runs where the session is.
        let setter = ReplicaDeviceSetter::new(ps as u32).worker_device("");
        g.clone().with_device_function(setter.build()?, || {
            let weights = g.variable("weights").shape([PIXELS, 10]);
            let weights = weights.init(Init::zeros()).build();
            let bias = g.variable("bias").shape([10]).init(Init::zeros()).build();
            let digits = Digits::placeholders(&g);
            let logits = digits.images.matmul(&weights).bias_add(&bias);
            let loss = logits.sparse_softmax_cross_entropy(&digits.labels).sum(());
            // A portion's share of the mean over all images.
            let loss = loss * (1.0 / data.train.len() as f64);
            let settings = Sandblaster::new(PORTIONS).l2(1e-4);
            Ok(Model {
                plan: settings.iterations(iterations.max(1) as u64).build(&loss)?,
                classifier: digits.clone().classifier(&logits),
                digits,
                data,
            })
        })
    }

    /// Computes portions until the coordinator has ended.
    fn replicate(&self, index: usize, target: Target, options: SessionOptions) -> Result<()> {
        let count = self.data.train.len();
        let replica = self.plan.replica(index).options(options);
        let worked = replica
            .patience(Duration::from_secs(60))
            .work(target, |i, run| {
                let rows = i * count / PORTIONS..(i + 1) * count / PORTIONS;
                let (images, labels) = self.data.train.at(rows);
                run.feed(&self.digits.images, images)
                    .feed(&self.digits.labels, labels);
                Ok(())
            });
        worked.map(|_| ())
    }

    /// Minimizes; how it ended, and the test accuracy.
    #[expect(clippy::print_stdout, reason = "a program shows how far it is")]
    fn coordinate(
        &self,
        target: &Target,
        options: &SessionOptions,
        json: bool,
    ) -> Result<(Outcome, f64)> {
        let coordinator = self.plan.coordinator().options(options.clone());
        let outcome = coordinator
            .observe(|progress, _| {
                if !json {
                    println!("{:>3}  {:.5}", progress.iteration, progress.value);
                }
                Ok(())
            })
            .run(target)?;
        let session: Session = options.clone().open(target, self.plan.graph())?;
        let accuracy = self.classifier.accuracy(&session, &self.data.test)?;
        Ok((outcome, accuracy))
    }
}

/// Everything in this process; the coordinator is a task of its own beside the replicas.
fn locally(model: &Model, args: &Args) -> Result<(Outcome, f64), Failure> {
    let workers = args.options.workers;
    let cluster = LocalCluster::start(args.options.ps, workers + 1)?;
    std::thread::scope(|scope| {
        let replicas: Vec<_> = (0..workers)
            .map(|i| {
                let target = Target::from(&cluster.workers()[i]);
                scope.spawn(move || model.replicate(i, target, SessionOptions::new()))
            })
            .collect();
        let target = Target::from(&cluster.workers()[workers]);
        let found = model.coordinate(&target, &SessionOptions::new(), args.json)?;
        for replica in replicas {
            replica.join().map_err(|_| "a replica panicked")??;
        }
        Ok(found)
    })
}

/// One task of a cluster of processes: the chief coordinates, workers are replicas.
fn as_task(model: &Model, args: &Args, role: &Role) -> Result<Option<(Outcome, f64)>, Failure> {
    let server: RunningServer = Server::start(ServerConfig {
        cluster: role.cluster.clone(),
        job: role.job.clone(),
        task: role.task,
        bind: Some(role.listen.clone()),
        ..ServerConfig::local()
    })?;
    // Only the servers and itself, so that another replica's death is none of its business.
    let own = format!("/job:{}/task:{}", role.job, role.task);
    let options = SessionOptions::new().device_filters(["/job:ps".to_owned(), own]);
    let target = Target::from(&server);
    match role.job.as_str() {
        "ps" => server.join()?,
        "chief" => return Ok(Some(model.coordinate(&target, &options, args.json)?)),
        _ => model.replicate(role.task as usize, target, options)?,
    }
    Ok(None)
}

#[expect(clippy::print_stdout, reason = "a program tells how it ended")]
fn main() -> Result<(), Failure> {
    downpour::program::log_to_stderr();
    let options = downpour::program::Options {
        ps: 2,
        workers: 4,
        steps: 60,
        ..Default::default()
    };
    let config = std::env::var("TF_CONFIG").ok();
    let args = Args::parse_over(options, std::env::args().skip(1), config.as_deref())?;
    let role = args.options.role.as_ref();
    let ps = match role {
        Some(role) => role.cluster.job("ps").map_or(0, |tasks| tasks.len()),
        None => args.options.ps,
    };
    let model = Model::build(ps, args.options.steps)?;
    let begin = Instant::now();
    let found = match role {
        Some(role) => as_task(&model, &args, role)?,
        None => Some(locally(&model, &args)?),
    };
    if let Some((outcome, accuracy)) = found {
        let (seconds, at) = (begin.elapsed().as_secs_f64(), outcome.progress);
        println!(
            "{{\"test_accuracy\":{accuracy},\"objective\":{},\"iterations\":{},\"evaluations\":{},\"seconds\":{seconds:.1}}}",
            at.value, at.iteration, at.evaluations
        );
    }
    Ok(())
}
