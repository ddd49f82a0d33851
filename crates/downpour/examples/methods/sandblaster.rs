//! Sandblaster L-BFGS in the comparison: the same model and the same data, all of them in every
//! iteration. A point of the curve is an iteration.

use super::{Args, PS, Point, World, moved};
use downpour::mnist::{Classifier, Digits, Mnist, PIXELS};
use downpour::train::sandblaster::{Plan, Sandblaster};
use downpour::{Draws, Graph, Init, ReplicaDeviceSetter, Result, SessionOptions, Status, Target};
use std::time::Instant;

/// Portions for each replica.
const PORTIONS_EACH: usize = 10;

struct Model {
    plan: Plan,
    digits: Digits,
    classifier: Classifier,
}

impl Model {
    fn build(args: &Args, data: &Mnist) -> Result<Model> {
        let g = Graph::new();
        // Without another device, all but the variables runs where the session is.
        let setter = ReplicaDeviceSetter::new(PS).worker_device("").build()?;
        g.clone().with_device_function(setter, || {
            let digits = Digits::placeholders(&g);
            let weights = g.variable("weights").shape([PIXELS, 10]);
            let weights = weights.init(Init::zeros()).build();
            let bias = g.variable("bias").shape([10]).init(Init::zeros()).build();
            let logits = digits.images.matmul(&weights).bias_add(&bias);
            let loss = logits.sparse_softmax_cross_entropy(&digits.labels).sum(());
            let loss = loss * (1.0 / data.train.len() as f64);
            let portions = PORTIONS_EACH * args.replicas.max(1);
            Ok(Model {
                plan: Sandblaster::new(portions).iterations(10_000).build(&loss)?,
                classifier: digits.clone().classifier(&logits),
                digits,
            })
        })
    }
}

/// Trains until the target is reached or the time is over. The cluster has a worker more than there
/// are replicas: the coordinator's.
pub(super) fn train(world: &World<'_>, begin: Instant) -> Result<Vec<Point>> {
    let (args, data, workers) = (world.args, world.data, world.cluster.workers());
    let model = Model::build(args, data)?;
    std::thread::scope(|scope| {
        let replicas: Vec<_> = (0..args.replicas)
            .map(|task| {
                let (model, target) = (&model, Target::from(&workers[task]));
                scope.spawn(move || replicate(world, model, task, target))
            })
            .collect();
        let mut curve: Vec<Point> = Vec::new();
        let coordinator = model.plan.coordinator().observe(|progress, session| {
            let accuracy = model.classifier.accuracy(session, &data.test)?;
            let seconds = begin.elapsed().as_secs_f64();
            curve.push(Point {
                seconds,
                steps: progress.iteration as i64,
                bytes: moved(workers)?,
                accuracy,
            });
            match accuracy >= args.target || seconds > args.seconds {
                true => Err(Status::out_of_range("it is enough")),
                false => Ok(()),
            }
        });
        coordinator.run(&workers[args.replicas])?;
        for replica in replicas {
            match replica.join() {
                Ok(outcome) => outcome?,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok(curve)
    })
}

fn replicate(world: &World<'_>, model: &Model, task: usize, target: Target) -> Result<()> {
    let (count, portions) = (world.data.train.len(), model.plan.portions());
    let own = format!("/job:worker/task:{task}");
    let options = SessionOptions::new().device_filters(["/job:ps".to_owned(), own]);
    let replica = model.plan.replica(task).options(options);
    let mut draws = Draws::new(task as u64);
    let worked = replica.work(target, |portion, run| {
        let rows = portion * count / portions..(portion + 1) * count / portions;
        let (images, labels) = world.data.train.at(rows);
        world.straggle(task, &mut draws);
        run.feed(&model.digits.images, images)
            .feed(&model.digits.labels, labels);
        Ok(())
    });
    worked.map(|_| ())
}
