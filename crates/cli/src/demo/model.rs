//! What the demo trains: softmax regression, or a small convolutional network.

use super::downpour_sgd::{How, Pouring};
use super::progress::Reporter;
use clap::ValueEnum;
use downpour::layers::{Conv2D, Dense, dropout};
use downpour::losses::sparse_softmax_cross_entropy;
use downpour::mnist::{Batches, Classifier, Digits, Mnist, PIXELS};
use downpour::program::{Program, Report, Worker};
use downpour::train::hooks::{Hook, Summaries};
use downpour::train::{Adagrad, Adam, Events, Every, MonitoredSession, Optimizer, Schedule};
use downpour::{DType, Graph, Init, Operation, Output, Padding, Result, Status, summary};
use std::fmt;
use std::time::{Duration, Instant};

/// Which model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// Softmax regression: 92 % in seconds
    Softmax,
    /// Two convolutions and two dense layers: 98.5 % and more
    Cnn,
}

impl Kind {
    /// Steps that show what it can.
    pub(crate) fn steps(self) -> i64 {
        match self {
            Kind::Softmax => 8_000,
            Kind::Cnn => 2_000,
        }
    }

    fn batch(self) -> usize {
        match self {
            Kind::Softmax => 100,
            Kind::Cnn => 64,
        }
    }

    /// Scores to train with and scores to tell digits by.
    pub(super) fn logits(self, g: &Graph, images: &Output) -> (Output, Output) {
        match self {
            Kind::Softmax => {
                let weights = g.variable("weights").shape([PIXELS, 10]);
                let weights = weights.init(Init::zeros()).build();
                let bias = g.variable("bias").shape([10]).init(Init::zeros()).build();
                let logits = images.matmul(&weights).bias_add(&bias);
                (logits.clone(), logits)
            }
            Kind::Cnn => {
                let first = Conv2D::new(g, "conv1", 5, 1, 16);
                let second = Conv2D::new(g, "conv2", 5, 16, 32);
                let hidden = Dense::new(g, "hidden", 7 * 7 * 32, 128);
                let last = Dense::new(g, "logits", 128, 10);
                let x = images.reshape(&[-1, 28, 28, 1]);
                let x = first.apply(&x).relu().max_pool(2, 2, Padding::Same);
                let x = second.apply(&x).relu().max_pool(2, 2, Padding::Same);
                let x = hidden.apply(&x.reshape(&[-1, 7 * 7 * 32])).relu();
                (last.apply(&dropout(&x, 0.4, None)), last.apply(&x))
            }
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Softmax => "softmax",
            Kind::Cnn => "cnn",
        })
    }
}

/// Tells digits.
pub(crate) struct Teller {
    pub(crate) kind: Kind,
    pub(crate) data: Mnist,
    /// Where event files go.
    pub(crate) dir: String,
    /// How long this process trains.
    pub(crate) time: Option<Duration>,
    pub(crate) begin: Instant,
    /// By Downpour SGD, and how.
    pub(crate) downpour: Option<How>,
    /// All workers for every step.
    pub(crate) sync: bool,
}

/// What a worker keeps.
pub(crate) struct Model {
    classifier: Classifier,
    loss: Output,
    accuracy: Output,
    way: Way,
    step: Output,
    /// The chief's event file.
    events: Option<Events>,
}

/// How a worker learns.
enum Way {
    Step { train: Operation, batches: Batches },
    Downpour(Box<Pouring>),
}

impl Teller {
    /// An event file that begins with what was chosen.
    fn begin_events(&self, worker: &Worker) -> Result<Events> {
        let events = Events::create(&self.dir)?;
        let (model, optimizer, rate) = match self.kind {
            Kind::Softmax => ("softmax", "adagrad", 0.1),
            Kind::Cnn => ("cnn", "adam", 2e-3),
        };
        events.hyperparameters(&[
            ("model", model.into()),
            ("optimizer", optimizer.into()),
            ("learning_rate", rate.into()),
            ("batch", (self.kind.batch() as f64).into()),
            ("workers", (worker.count() as f64).into()),
            ("ps", (worker.ps() as f64).into()),
            ("sync", self.sync.into()),
            ("downpour", self.downpour.is_some().into()),
        ])?;
        Ok(events)
    }

    fn way(
        &self,
        worker: &Worker,
        optimizer: &impl Optimizer,
        loss: &Output,
        digits: &Digits,
    ) -> Result<Way> {
        if let Some(how) = &self.downpour {
            let data = (digits, &self.data.train, self.kind.batch());
            let pouring = how.build(worker, optimizer, loss, data)?;
            return Ok(Way::Downpour(Box::new(pouring)));
        }
        let share = self.data.train.share(worker.index(), worker.count());
        Ok(Way::Step {
            train: worker.minimize(optimizer, loss)?,
            batches: share.batches(self.kind.batch(), worker.index() as u64),
        })
    }
}

impl Program for Teller {
    type Model = Model;

    fn build(&self, worker: &Worker) -> Result<Model> {
        let g = worker.graph();
        let digits = Digits::placeholders(g);
        let (trained, scores) = self.kind.logits(g, &digits.images);
        let loss = sparse_softmax_cross_entropy(&digits.labels, &trained);
        let right = scores.argmax(1).cast(DType::Int32).equal(&digits.labels);
        let accuracy = right.cast(DType::Float).mean(());
        summary::scalar("loss", &loss);
        summary::scalar("accuracy", &accuracy);
        for variable in g.trainable_variables() {
            summary::histogram(variable.name(), variable.value());
        }
        let way = match self.kind {
            Kind::Softmax => self.way(worker, &Adagrad::new(0.1), &loss, &digits)?,
            Kind::Cnn => {
                let rate = Schedule::exponential(2e-3, 500.0, 0.5).at(worker.global_step());
                self.way(worker, &Adam::new(&rate), &loss, &digits)?
            }
        };
        Ok(Model {
            classifier: digits.classifier(&scores),
            loss,
            accuracy,
            way,
            step: worker.global_step().value().clone(),
            // Without event files the demo still shows how it goes.
            events: match worker.is_chief() {
                true => self.begin_events(worker).ok(),
                false => None,
            },
        })
    }

    fn step(&self, m: &mut Model, session: &mut MonitoredSession) -> Result<()> {
        if self.time.is_some_and(|time| self.begin.elapsed() >= time) {
            return Err(Status::out_of_range("the time is over"));
        }
        match &mut m.way {
            Way::Step { train, batches } => {
                let batch = batches.next_batch();
                m.classifier.train(session, train, batch)
            }
            Way::Downpour(pouring) => pouring.step(session, &self.data.train),
        }
    }

    fn hooks(&self, m: &Model, _worker: &Worker) -> Vec<Box<dyn Hook>> {
        let mut hooks: Vec<Box<dyn Hook>> = vec![Box::new(Reporter::new(&m.loss, &m.accuracy))];
        if let Way::Downpour(pouring) = &m.way {
            hooks.push(Box::new(pouring.hook()));
        }
        if let Some(events) = &m.events {
            let every = Every::Time(Duration::from_millis(250));
            hooks.push(Box::new(Summaries::new(events.clone(), every)));
        }
        hooks
    }

    fn finish(&self, m: &mut Model, session: &mut MonitoredSession) -> Result<Report> {
        let mut report = match &mut m.way {
            Way::Step { .. } => Report::new(),
            Way::Downpour(pouring) => pouring.finish(session)?,
        };
        let session = session.raw()?;
        let accuracy = m.classifier.accuracy(&session, &self.data.test)?;
        report.insert("test_accuracy".to_owned(), accuracy);
        // TensorBoard and dashboards of past runs show it; without event files it is printed all the same.
        if let Some(events) = &m.events {
            let step = session.fetch(&m.step)?.scalar_value::<i64>()?;
            events.scalar(step, "test_accuracy", accuracy as f32)?;
            events.flush()?;
        }
        Ok(report)
    }
}
