//! Handwritten digits by softmax regression, the usual first model, on a cluster: 91.5 % of the
//! test images and more.
//!
//! `cargo run --release --example mnist_softmax -- --ps 2 --workers 2 [--sync] [--json]`

use downpour::losses::sparse_softmax_cross_entropy;
use downpour::mnist::{Batches, Classifier, Digits, Mnist, PIXELS};
use downpour::program::{Program, Report, Worker};
use downpour::train::{Adagrad, MonitoredSession};
use downpour::{Init, Operation, Result};

struct Softmax {
    data: Mnist,
}

struct Model {
    classifier: Classifier,
    train: Operation,
    batches: Batches,
}

impl Program for Softmax {
    const STEPS: i64 = 2000;
    type Model = Model;

    fn build(&self, worker: &Worker) -> Result<Model> {
        let g = worker.graph();
        let digits = Digits::placeholders(g);
        let weights = g.variable("weights").shape([PIXELS, 10]);
        let weights = weights.init(Init::zeros()).build();
        let bias = g.variable("bias").shape([10]).init(Init::zeros()).build();
        let logits = digits.images.matmul(&weights).bias_add(&bias);
        let loss = sparse_softmax_cross_entropy(&digits.labels, &logits);
        let share = self.data.train.share(worker.index(), worker.count());
        Ok(Model {
            train: worker.minimize(&Adagrad::new(0.1), &loss)?,
            classifier: digits.classifier(&logits),
            batches: share.batches(100, worker.index() as u64),
        })
    }

    fn step(&self, m: &mut Model, session: &mut MonitoredSession) -> Result<()> {
        let batch = m.batches.next_batch();
        m.classifier.train(session, &m.train, batch)
    }

    fn finish(&self, m: &mut Model, session: &mut MonitoredSession) -> Result<Report> {
        let session = session.raw()?;
        let accuracy = m.classifier.accuracy(&session, &self.data.test)?;
        Ok(Report::from([("test_accuracy".to_owned(), accuracy)]))
    }
}

fn main() -> std::process::ExitCode {
    downpour::program::main(|| {
        Ok(Softmax {
            data: Mnist::shipped()?,
        })
    })
}
