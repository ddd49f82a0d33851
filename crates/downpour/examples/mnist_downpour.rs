//! Handwritten digits by Downpour SGD: every worker is a replica with its own copy of the
//! parameters, which takes portions of the data as it gets on; Adagrad on the parameter servers.
//! 91.5 % of the test images and more.
//!
//! `cargo run --release --example mnist_downpour -- --ps 2 --workers 4 [--json]`

use downpour::losses::sparse_softmax_cross_entropy;
use downpour::mnist::{Classifier, Digits, Mnist, PIXELS};
use downpour::program::{Program, Report, Worker};
use downpour::train::hooks::Hook;
use downpour::train::shards::{Division, Shards};
use downpour::train::{
    Adagrad, DownpourSgd, DownpourTraining, MonitoredSession, Replica, ShardBatches,
};
use downpour::{Init, Result, Status};

struct Softmax {
    data: Mnist,
}

struct Model {
    digits: Digits,
    classifier: Classifier,
    training: DownpourTraining,
    replica: Replica,
    shards: Shards,
    batches: ShardBatches,
}

impl Program for Softmax {
    /// Updates, of two batches each.
    const STEPS: i64 = 1500;
    type Model = Model;

    fn build(&self, worker: &Worker) -> Result<Model> {
        let g = worker.graph();
        let digits = Digits::placeholders(g);
        let weights = g.variable("weights").shape([PIXELS, 10]);
        let weights = weights.init(Init::zeros()).build();
        let bias = g.variable("bias").shape([10]).init(Init::zeros()).build();
        let logits = digits.images.matmul(&weights).bias_add(&bias);
        let loss = sparse_softmax_cross_entropy(&digits.labels, &logits);
        let settings = DownpourSgd::new(worker.count(), worker.index());
        let settings = settings.fetch_every(2).push_every(2).warm_start(50);
        let training = settings.minimize(&Adagrad::new(0.1), &loss, worker.global_step())?;
        let portions = Division::new(self.data.train.len() as u64, 1000);
        let shards = Shards::new(g, "shards", portions);
        Ok(Model {
            replica: training.replica(),
            batches: ShardBatches::new(shards.reader(worker.index()), 100, 1),
            classifier: digits.clone().classifier(&logits),
            digits,
            training,
            shards,
        })
    }

    fn step(&self, m: &mut Model, session: &mut MonitoredSession) -> Result<()> {
        let Some(positions) = m.batches.next(session, &mut m.replica)? else {
            return Err(Status::out_of_range("no more data"));
        };
        let (images, labels) = self.data.train.at(positions.into_iter());
        let feeds = [(&m.digits.images, images), (&m.digits.labels, labels)];
        m.replica.step(session, &feeds).map(|_| ())
    }

    fn hooks(&self, m: &Model, _: &Worker) -> Vec<Box<dyn Hook>> {
        vec![Box::new(m.training.hook())]
    }

    fn finish(&self, m: &mut Model, session: &mut MonitoredSession) -> Result<Report> {
        m.batches.finish(session, &mut m.replica)?;
        let session = session.raw()?;
        let accuracy = m.classifier.accuracy(&session, &self.data.test)?;
        let replicas = m.training.staleness(&session)?;
        let updates: u64 = replicas.iter().map(|r| r.updates).sum();
        let stale: u64 = replicas.iter().map(|r| r.total).sum();
        let ledger = m.shards.ledger(&session)?;
        let number = |name: &str, value: f64| (name.to_owned(), value);
        Ok(Report::from([
            number("test_accuracy", accuracy),
            number("mean_staleness", stale as f64 / updates.max(1) as f64),
            number("epochs", ledger.epochs_done() as f64),
            number("portions_again", ledger.counts().reissued as f64),
        ]))
    }
}

fn main() -> std::process::ExitCode {
    downpour::program::main(|| {
        Ok(Softmax {
            data: Mnist::shipped()?,
        })
    })
}
