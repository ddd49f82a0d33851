//! Handwritten digits by softmax regression, on a cluster.
//!
//! `cargo run --release --example mnist_softmax -- --ps 2 --workers 2 [--sync] [--json]`

use downpour::mnist::{Images, Mnist, PIXELS};
use downpour::program::{Program, Report, Worker};
use downpour::train::{Adagrad, MonitoredSession};
use downpour::{DType, Init, Operation, Output, Result};

struct Softmax {
    data: Mnist,
}

struct Model {
    images: Output,
    labels: Output,
    accuracy: Output,
    train: Operation,
    share: Images,
    seed: u64,
}

impl Program for Softmax {
    type Model = Model;

    fn build(&self, worker: &Worker) -> Result<Model> {
        let g = worker.graph();
        let images = g.placeholder("images", DType::Float, [None, Some(PIXELS)]);
        let labels = g.placeholder("labels", DType::Int32, [None]);
        let weights = g
            .variable("weights")
            .shape([PIXELS, 10])
            .init(Init::zeros())
            .build();
        let bias = g.variable("bias").shape([10]).init(Init::zeros()).build();
        let logits = images.matmul(&weights).bias_add(&bias);
        let loss = logits.sparse_softmax_cross_entropy(&labels).mean(());
        let train = worker.minimize(&Adagrad::new(0.1), &loss)?;
        let right = logits.argmax(1).cast(DType::Int32).equal(&labels);
        Ok(Model {
            images,
            labels,
            accuracy: right.cast(DType::Float).mean(()),
            train,
            share: self.data.train.share(worker.index(), worker.count()),
            seed: worker.index() as u64,
        })
    }

    fn step(&self, m: &mut Model, session: &mut MonitoredSession) -> Result<()> {
        m.seed += 1;
        let (images, labels) = m.share.batches(100, m.seed).next_batch();
        let step = session
            .step()
            .feed(&m.images, images)
            .feed(&m.labels, labels);
        step.target(&m.train).run()
    }

    fn finish(&self, m: &mut Model, session: &mut MonitoredSession) -> Result<Report> {
        let (images, labels) = self.data.test.all();
        let step = session
            .step()
            .feed(&m.images, images)
            .feed(&m.labels, labels);
        let accuracy = step.fetch(&m.accuracy)?.scalar_value::<f32>()?;
        Ok(Report::from([(
            "test_accuracy".to_owned(),
            accuracy.into(),
        )]))
    }
}

fn main() -> std::process::ExitCode {
    downpour::program::main(|| {
        Ok(Softmax {
            data: Mnist::shipped()?,
        })
    })
}
