//! Handwritten digits by a small convolutional network, on a cluster.
//!
//! `cargo run --release --example mnist_cnn -- --ps 2 --workers 2 --steps 1500 [--sync] [--json]`

use downpour::layers::{Conv2D, Dense, dropout};
use downpour::losses::sparse_softmax_cross_entropy;
use downpour::mnist::{Images, Mnist, PIXELS};
use downpour::program::{Program, Report, Worker};
use downpour::train::{Adam, MonitoredSession};
use downpour::{DType, Operation, Output, Padding, Result};

struct Network {
    data: Mnist,
}

struct Model {
    images: Output,
    labels: Output,
    right: Output,
    train: Operation,
    share: Images,
    seed: u64,
}

impl Program for Network {
    type Model = Model;

    fn build(&self, worker: &Worker) -> Result<Model> {
        let g = worker.graph();
        let images = g.placeholder("images", DType::Float, [None, Some(PIXELS)]);
        let labels = g.placeholder("labels", DType::Int32, [None]);
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
        let trained = logits.apply(&dropout(&features(&images), 0.4, None));
        let loss = sparse_softmax_cross_entropy(&labels, &trained);
        let train = worker.minimize(&Adam::new(1e-3), &loss)?;
        let guess = logits.apply(&features(&images)).argmax(1);
        let right = guess.cast(DType::Int32).equal(&labels);
        Ok(Model {
            images,
            labels,
            right: right.cast(DType::Float).sum(()),
            train,
            share: self.data.train.share(worker.index(), worker.count()),
            seed: worker.index() as u64,
        })
    }

    fn step(&self, m: &mut Model, session: &mut MonitoredSession) -> Result<()> {
        m.seed += 1;
        let (images, labels) = m.share.batches(64, m.seed).next_batch();
        let step = session
            .step()
            .feed(&m.images, images)
            .feed(&m.labels, labels);
        step.target(&m.train).run()
    }

    fn finish(&self, m: &mut Model, session: &mut MonitoredSession) -> Result<Report> {
        let (test, mut right) = (&self.data.test, 0.0);
        for start in (0..test.len()).step_by(1000) {
            let (images, labels) = test.at(start..(start + 1000).min(test.len()));
            let session = session.raw()?;
            let step = session
                .step()
                .feed(&m.images, images)
                .feed(&m.labels, labels);
            right += f64::from(step.fetch(&m.right)?.scalar_value::<f32>()?);
        }
        let accuracy = right / test.len() as f64;
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
