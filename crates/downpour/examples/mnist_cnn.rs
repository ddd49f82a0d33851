//! Handwritten digits by a small convolutional network, on a cluster: 98.5 % of the test images
//! and more. Shows layers, dropout that only training sees, and a learning rate that falls.
//!
//! `cargo run --release --example mnist_cnn -- --ps 2 --workers 2 [--sync] [--json]`

use downpour::layers::{Conv2D, Dense, dropout};
use downpour::losses::sparse_softmax_cross_entropy;
use downpour::mnist::{Batches, Classifier, Digits, Mnist};
use downpour::program::{Program, Report, Worker};
use downpour::train::{Adam, MonitoredSession, Schedule};
use downpour::{Operation, Output, Padding, Result};

struct Network {
    data: Mnist,
}

struct Model {
    classifier: Classifier,
    train: Operation,
    batches: Batches,
}

impl Program for Network {
    const STEPS: i64 = 1800;
    type Model = Model;

    fn build(&self, worker: &Worker) -> Result<Model> {
        let g = worker.graph();
        let digits = Digits::placeholders(g);
        let first = Conv2D::new(g, "conv1", 5, 1, 16);
        let second = Conv2D::new(g, "conv2", 5, 16, 32);
        let hidden = Dense::new(g, "hidden", 7 * 7 * 32, 128);
        let logits = Dense::new(g, "logits", 128, 10);
        let features = |images: &Output| {
            let x = images.reshape(&[-1, 28, 28, 1]);
            let x = first.apply(&x).relu().max_pool(2, 2, Padding::Same);
            let x = second.apply(&x).relu().max_pool(2, 2, Padding::Same);
            hidden.apply(&x.reshape(&[-1, 7 * 7 * 32])).relu()
        };
        let seen = features(&digits.images);
        let trained = logits.apply(&dropout(&seen, 0.25, None));
        let loss = sparse_softmax_cross_entropy(&digits.labels, &trained);
        let rate = Schedule::exponential(2e-3, 500.0, 0.5).at(worker.global_step());
        let share = self.data.train.share(worker.index(), worker.count());
        Ok(Model {
            train: worker.minimize(&Adam::new(&rate), &loss)?,
            classifier: digits.classifier(&logits.apply(&seen)),
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
        Ok(Network {
            data: Mnist::shipped()?,
        })
    })
}
