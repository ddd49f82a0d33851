//! The rows' graphs, as a worker of between-graph replication builds them: variables on the parameter
//! servers one after the other, the rest on the worker. `conformance/bench/native_models.py` builds the same.

use crate::data;
use anyhow::{Result, bail};
use downpour::losses::softmax_cross_entropy;
use downpour::train::{Adagrad, Adam, Minimize, Momentum, SyncReplicas, SyncTraining, global_step};
use downpour::{
    DType, Graph, Init, Lookup, Operation, Output, Padding, Partitioner, ReplicaDeviceSetter, Run,
    Tensor, Variable, embedding_lookup,
};
use std::time::Duration;

/// Rows looked up in a step of `sparse_rows`.
pub(crate) const LOOKED_UP: usize = 4096 * 10;
/// Floats in a row of its table.
const WIDTH: usize = 32;

/// A row's name and its size: `NAME` or `NAME:N`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) kind: Kind,
    /// What N counts is told by [`Kind`].
    pub(crate) size: usize,
}

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// N variables of 4 bytes to the worker and, changed, back.
    NullStep,
    /// Softmax regression, each worker on its own; N batches in memory.
    MnistAsync,
    /// The same, all workers together.
    MnistSync,
    /// Four variables of N bytes to the worker and, changed, back.
    DensePullPush,
    /// One variable of N bytes, likewise.
    OneVariable,
    /// Rows of a table of N rows: gathered, their gradients applied.
    SparseRows,
    /// A network of three dense layers on the worker alone; N batches in memory.
    MlpLocal,
    /// A convolutional network, likewise.
    CnnLocal,
}

/// Every row, with its usual size, parameter servers and workers.
const ROWS: [(&str, Kind, usize, usize, usize); 10] = [
    ("null_step", Kind::NullStep, 1, 1, 1),
    ("null_step_100", Kind::NullStep, 100, 1, 1),
    ("null_step_1000", Kind::NullStep, 1000, 1, 1),
    ("mnist_async", Kind::MnistAsync, 40, 2, 2),
    ("mnist_sync", Kind::MnistSync, 40, 2, 2),
    ("dense_pull_push", Kind::DensePullPush, 64 << 20, 1, 1),
    ("one_variable", Kind::OneVariable, 64 << 20, 1, 1),
    ("sparse_rows", Kind::SparseRows, 1_000_000, 2, 1),
    ("mlp_local", Kind::MlpLocal, 40, 0, 1),
    ("cnn_local", Kind::CnnLocal, 40, 0, 1),
];

impl Row {
    pub(crate) fn parse(text: &str) -> Result<Row> {
        let (name, size) = match text.split_once(':') {
            Some((name, size)) => (name, Some(size.parse()?)),
            None => (text, None),
        };
        let Some(row) = ROWS.iter().find(|row| row.0 == name) else {
            let known = ROWS.map(|row| row.0).join(", ");
            bail!("no such row: {name} (there are: {known})");
        };
        Ok(Row {
            kind: row.1,
            size: size.unwrap_or(row.2),
        })
    }

    /// How many parameter servers and workers it is run with.
    pub(crate) fn tasks(self) -> (usize, usize) {
        let row = ROWS.iter().find(|row| row.1 == self.kind);
        row.map_or((1, 1), |row| (row.3, row.4))
    }

    /// What a rate of steps amounts to: how many of which unit a step is.
    pub(crate) fn worth(self) -> (f64, &'static str) {
        match self.kind {
            Kind::DensePullPush => (8.0 * self.size as f64 / 1e9, "GB/s"),
            Kind::OneVariable => (2.0 * self.size as f64 / 1e9, "GB/s"),
            Kind::SparseRows => (LOOKED_UP as f64, "rows/s"),
            _ => (1.0, "steps/s"),
        }
    }
}

/// What a worker runs.
pub(crate) struct Model {
    pub(crate) graph: Graph,
    /// Steps, taken in turn.
    pub(crate) steps: Vec<Run>,
    /// Whose values tell whether both sides have computed the same.
    pub(crate) values: Vec<(&'static str, Output)>,
    /// What the values are computed of.
    pub(crate) example: Run,
    /// Gives variables their first values.
    pub(crate) init: Operation,
    /// Training that waits for the other workers.
    pub(crate) sync: Option<SyncTraining>,
}

/// Builds what worker `worker` of `workers` runs on a cluster with so many parameter servers.
pub(crate) fn build(row: Row, ps: usize, worker: usize, workers: usize) -> Result<Model> {
    let g = Graph::new();
    let setter = ReplicaDeviceSetter::new(ps as u32);
    let setter = setter.worker_device(&format!("/job:worker/task:{worker}"));
    g.with_device_function(setter.build()?, || match row.kind {
        Kind::NullStep => null_step(&g, row.size),
        Kind::MnistAsync => softmax(&g, row.size, worker, None),
        Kind::MnistSync => softmax(&g, row.size, worker, Some(workers)),
        Kind::DensePullPush => dense(&g, 4, row.size),
        Kind::OneVariable => dense(&g, 1, row.size),
        Kind::SparseRows => sparse_rows(&g, ps, row.size),
        Kind::MlpLocal => mlp(&g, row.size),
        Kind::CnnLocal => cnn(&g, row.size),
    })
}

fn null_step(g: &Graph, count: usize) -> Result<Model> {
    let variables: Vec<Variable> = (0..count)
        .map(|i| g.variable(&format!("v{i}")).shape(()).init(Init::zeros()))
        .map(|v| v.build())
        .collect();
    let one = g.constant(1.0f32);
    let push: Vec<Operation> = variables.iter().map(|v| v.assign(&(&**v + &one))).collect();
    let mut step = Run::new();
    step.target(&g.group("push", &push));
    let values = [("first", 0), ("last", count - 1)].map(|(n, i)| (n, variables[i].read()));
    model(g, vec![step], values.to_vec(), Run::new())
}

fn dense(g: &Graph, count: usize, bytes: usize) -> Result<Model> {
    let variables: Vec<Variable> = (0..count)
        .map(|i| g.variable(&format!("v{i}")).shape([bytes / 4]))
        .map(|v| v.init(Init::ones()).build())
        .collect();
    let push: Vec<Operation> = variables.iter().map(|v| v.assign(&-&**v)).collect();
    let mut step = Run::new();
    step.target(&g.group("push", &push));
    let total = |v: &Variable| {
        let home = v.handle().operation();
        g.with_colocation(&home, || v.read().sum(()))
    };
    let values = vec![
        ("first", total(&variables[0])),
        ("last", total(&variables[count - 1])),
    ];
    model(g, vec![step], values, Run::new())
}

fn softmax(g: &Graph, batches: usize, worker: usize, sync: Option<usize>) -> Result<Model> {
    let digits = Digits::new(g, batches, 100);
    let w = g.variable("w").shape([data::PIXELS, 10]);
    let w = w.init(Init::zeros()).build();
    let b = g.variable("b").shape([10]).init(Init::zeros()).build();
    let loss = softmax_cross_entropy(&digits.y, &(digits.x.matmul(&w) + &*b));
    let (optimizer, counted) = (Adagrad::new(0.01), global_step(g));
    let (train, sync) = match sync {
        None => (optimizer.minimize(&loss, Some(&counted))?, None),
        Some(workers) => {
            // Nobody is missing while the other side has its turn.
            let long = Duration::from_secs(3600);
            let settings = SyncReplicas::new(workers, worker);
            let settings = settings.patience(long).lease(long);
            let training = settings.minimize(&optimizer, &loss, &counted)?;
            (training.train().clone(), Some(training))
        }
    };
    let total = w.read().square().sum(());
    let values = vec![
        ("loss", loss.clone()),
        ("weights", total),
        ("steps", counted.read().cast(DType::Float)),
    ];
    let mut steps = digits.steps(&train, &loss);
    // Workers go through the same examples, each from somewhere else.
    let begin = worker * 20 % steps.len();
    steps.rotate_left(begin);
    let made = model(g, steps, values, digits.feed(&digits.batches[0]))?;
    Ok(Model { sync, ..made })
}

/// Images and their classes, fed in batches.
struct Digits {
    x: Output,
    y: Output,
    batches: Vec<(Tensor, Tensor)>,
}

impl Digits {
    fn new(g: &Graph, batches: usize, batch: usize) -> Digits {
        Digits {
            x: g.placeholder("x", DType::Float, [None, Some(data::PIXELS)]),
            y: g.placeholder("y", DType::Float, [None, Some(10)]),
            batches: data::digits(batches, batch),
        }
    }

    fn feed(&self, (images, labels): &(Tensor, Tensor)) -> Run {
        let mut run = Run::new();
        run.feed(&self.x, images).feed(&self.y, labels);
        run
    }

    fn steps(&self, train: &Operation, loss: &Output) -> Vec<Run> {
        let steps = self.batches.iter().map(|batch| {
            let mut run = self.feed(batch);
            run.target(train).fetch(loss);
            run
        });
        steps.collect()
    }

    /// What trains a network with these logits.
    fn training(&self, logits: &Output, optimizer: &impl Minimize) -> Result<Model> {
        let loss = softmax_cross_entropy(&self.y, logits);
        let train = optimizer.minimize(&loss, None)?;
        let (steps, example) = (self.steps(&train, &loss), self.feed(&self.batches[0]));
        model(logits.graph(), steps, vec![("loss", loss)], example)
    }
}

/// Weights that both sides draw alike.
fn weights(g: &Graph, name: &str, shape: &[usize], deviation: f64) -> Variable {
    let init = Init::truncated_normal(0.0, deviation).seed(5);
    g.variable(name).shape(shape).init(init).build()
}

/// 784-1024-1024-10, ReLU, Adam, batch 100.
fn mlp(g: &Graph, batches: usize) -> Result<Model> {
    let digits = Digits::new(g, batches, 100);
    let layer = |x: &Output, name: &str, [n, m]: [usize; 2]| {
        let w = weights(g, &format!("{name}_w"), &[n, m], (n as f64).powf(-0.5));
        let b = g.variable(&format!("{name}_b")).shape([m]);
        x.matmul(&w).bias_add(&b.init(Init::zeros()).build())
    };
    let first = layer(&digits.x, "l1", [data::PIXELS, 1024]).relu();
    let second = layer(&first, "l2", [1024, 1024]).relu();
    digits.training(&layer(&second, "out", [1024, 10]), &Adam::new(1e-3))
}

/// conv5x5x32, pool, conv5x5x64, pool, dense 512, 10; Momentum, batch 64.
fn cnn(g: &Graph, batches: usize) -> Result<Model> {
    let digits = Digits::new(g, batches, 64);
    let conv = |x: &Output, name: &str, [n, m]: [usize; 2]| {
        let w = weights(g, &format!("{name}_w"), &[5, 5, n, m], 0.1);
        let b = weights(g, &format!("{name}_b"), &[m], 0.1);
        let x = x.conv2d(&w, 1, Padding::Same).bias_add(&b);
        x.relu().max_pool(2, 2, Padding::Same)
    };
    let dense = |x: &Output, name: &str, [n, m]: [usize; 2], deviation: f64| {
        let w = weights(g, &format!("{name}_w"), &[n, m], deviation);
        let b = weights(g, &format!("{name}_b"), &[m], 0.1);
        x.matmul(&w).bias_add(&b)
    };
    let x = conv(&digits.x.reshape(&[-1, 28, 28, 1]), "c1", [1, 32]);
    let x = conv(&x, "c2", [32, 64]).reshape(&[-1, 7 * 7 * 64]);
    let x = dense(&x, "f1", [7 * 7 * 64, 512], 0.02).relu();
    let logits = dense(&x, "f2", [512, 10], 0.05);
    digits.training(&logits, &Momentum::new(0.01, 0.9))
}

fn sparse_rows(g: &Graph, ps: usize, rows: usize) -> Result<Model> {
    let ids = g.placeholder("ids", DType::Int64, [None]);
    let table = g.variable("table").shape([rows, WIDTH]).init(Init::ones());
    let table = table.partitioned(&Partitioner::fixed(ps));
    let found = embedding_lookup(&table, &ids, Lookup::Div);
    // A sum: the gradients of a mean of so many are too small to change a row.
    let loss = found.square().sum(());
    let train = Adagrad::new(0.01).minimize(&loss, None)?;
    let batches = data::row_numbers(16, LOOKED_UP, rows);
    let steps = batches.iter().map(|batch| {
        let mut run = Run::new();
        run.feed(&ids, batch).target(&train);
        run
    });
    let steps = steps.collect();
    let mut example = Run::new();
    example.feed(&ids, &batches[0]);
    model(g, steps, vec![("loss", loss)], example)
}

fn model(
    g: &Graph,
    steps: Vec<Run>,
    values: Vec<(&'static str, Output)>,
    example: Run,
) -> Result<Model> {
    let init = g.initialize_variables();
    g.check()?;
    Ok(Model {
        graph: g.clone(),
        steps,
        values,
        example,
        init,
        sync: None,
    })
}

#[cfg(test)]
mod tests {
    use super::{Kind, ROWS, Row, build};

    #[test]
    fn a_row_may_say_its_size() {
        let row = |text: &str| Row::parse(text).map(|r| (r.kind, r.size)).ok();
        assert_eq!(row("null_step"), Some((Kind::NullStep, 1)));
        assert_eq!(row("null_step:100"), Some((Kind::NullStep, 100)));
        assert_eq!((row("nothing"), row("null_step:x")), (None, None));
    }

    #[test]
    fn every_row_has_a_graph() {
        for (name, kind, ..) in ROWS {
            let row = Row { kind, size: 64 };
            assert!(build(row, 2, 0, 2).is_ok(), "{name}");
        }
    }
}
