//! Model and data parallelism together: each replica's wide hidden layer is split over as many
//! workers as `--partitions` says, replicas train on their own shares of the digits, and parameter
//! servers keep the variables: 94 % of the test images.
//!
//! `cargo run --release --example model_parallel -- --ps 2 --workers 4 --partitions 2 [--sync]`, or
//! with a process for each task `downpour run --ps 2 --workers 4 -- PROGRAM --partitions 2`

use downpour::layers::{ColumnDense, RowDense};
use downpour::losses::sparse_softmax_cross_entropy;
use downpour::mnist::{Batches, Classifier, Digits, Mnist, PIXELS};
use downpour::program::{Program, Report, Worker};
use downpour::train::{Adagrad, MonitoredSession};
use downpour::{Operation, Result};

/// Width of the layer that is split.
const HIDDEN: usize = 512;

struct Wide {
    data: Mnist,
}

struct Model {
    classifier: Classifier,
    train: Operation,
    batches: Batches,
    partitions: usize,
}

impl Program for Wide {
    const STEPS: i64 = 1500;
    type Model = Model;

    fn build(&self, worker: &Worker) -> Result<Model> {
        let (g, tasks) = (worker.graph(), worker.partitions());
        let digits = Digits::placeholders(g);
        // Each task has some of the hidden units: between the two layers nothing travels.
        let hidden = ColumnDense::new(g, "hidden", PIXELS, HIDDEN, tasks);
        let output = RowDense::new(g, "output", HIDDEN, 10, tasks);
        let logits = output.apply(&hidden.apply(&digits.images).map(|h| h.relu()));
        let loss = sparse_softmax_cross_entropy(&digits.labels, &logits);
        let share = self.data.train.share(worker.index(), worker.count());
        Ok(Model {
            train: worker.minimize(&Adagrad::new(0.05), &loss)?,
            classifier: digits.classifier(&logits),
            batches: share.batches(100, worker.index() as u64),
            partitions: hidden.kernel.parts().len(),
        })
    }

    fn step(&self, m: &mut Model, session: &mut MonitoredSession) -> Result<()> {
        let batch = m.batches.next_batch();
        m.classifier.train(session, &m.train, batch)
    }

    fn finish(&self, m: &mut Model, session: &mut MonitoredSession) -> Result<Report> {
        let session = session.raw()?;
        let accuracy = m.classifier.accuracy(&session, &self.data.test)?;
        Ok(Report::from([
            ("test_accuracy".to_owned(), accuracy),
            ("partitions".to_owned(), m.partitions as f64),
        ]))
    }
}

fn main() -> std::process::ExitCode {
    downpour::program::main(|| {
        Ok(Wide {
            data: Mnist::shipped()?,
        })
    })
}
