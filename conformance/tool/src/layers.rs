//! Layers, losses, metrics and initializers, built by Downpour's API for `layers.py`, which says the
//! same in TensorFlow's words. Each case comes with the gradients of the sum of its squared outputs,
//! and with operations that give its variables values.

use anyhow::{Result, bail};
use downpour_build::layers::{
    BatchNorm, Conv2D, Dense, Embedding, LayerNorm, LstmCell, LstmState, MultiHeadAttention,
    dropout,
};
use downpour_build::metrics::Metric;
use downpour_build::{
    DType, Distribution, Fan, Graph, Init, Operation, Output, Padding, gradients, losses,
};
use serde::{Deserialize, Serialize};

/// What is to be built.
#[derive(Deserialize)]
pub(crate) struct Layer {
    name: String,
}

/// The names of what was built.
#[derive(Serialize, Default)]
pub(crate) struct Built {
    /// What a step computes.
    outputs: Vec<String>,
    /// What a step runs beside.
    updates: Vec<String>,
    /// What begins anew.
    resets: Vec<String>,
    /// Variable or placeholder → gradient.
    gradients: Vec<(String, String)>,
    /// Name, value, what to feed to give it another, and the operation that does.
    variables: Vec<[String; 4]>,
    init: String,
}

/// What a case makes.
#[derive(Default)]
struct Made {
    /// With respect to which of what is fed there are gradients.
    xs: Vec<Output>,
    outputs: Vec<Output>,
    updates: Vec<Operation>,
    resets: Vec<Operation>,
}

/// An output of inputs that have gradients.
fn of<const N: usize>(xs: [&Output; N], outputs: impl Into<Vec<Output>>) -> Made {
    Made {
        xs: xs.into_iter().cloned().collect(),
        outputs: outputs.into(),
        ..Default::default()
    }
}

pub(crate) fn build(g: &Graph, asked: &Layer) -> Result<Built> {
    let made = case(g, &asked.name)?;
    let trainable = g.trainable_variables();
    let mut xs: Vec<Output> = trainable.iter().map(|v| v.handle().clone()).collect();
    xs.extend(made.xs.iter().cloned());
    let mut named = Vec::new();
    if !xs.is_empty() && !made.outputs.is_empty() {
        let squares = made.outputs.iter().map(|y| y.square().sum(()));
        let ys: Vec<Output> = squares.collect();
        let names = trainable.iter().map(|v| v.name().to_owned());
        let names = names.chain(made.xs.iter().map(|x| x.operation().name()));
        for (name, gradient) in names.zip(gradients(&ys, &xs)?) {
            if let Some(gradient) = gradient {
                named.push((name, gradient.to_dense().name()));
            }
        }
    }
    let variables = g.variables().into_iter().map(|v| {
        let value = g.placeholder(&format!("{}_value", v.name()), v.dtype(), v.shape());
        let assign = v.assign(&value).name();
        [v.name().to_owned(), v.value().name(), value.name(), assign]
    });
    let names = |operations: &[Operation]| operations.iter().map(Operation::name).collect();
    Ok(Built {
        outputs: made.outputs.iter().map(Output::name).collect(),
        updates: names(&made.updates),
        resets: names(&made.resets),
        gradients: named,
        variables: variables.collect(),
        init: g.initialize_variables().name(),
    })
}

fn case(g: &Graph, name: &str) -> Result<Made> {
    let float = |name: &str, dims: &[usize]| g.placeholder(name, DType::Float, dims);
    let (kind, how) = name.split_once('/').unwrap_or((name, ""));
    Ok(match kind {
        "dense" => {
            let x = match how {
                "rows" => float("x", &[2, 3, 4]),
                _ => float("x", &[3, 4]),
            };
            let layer = match how {
                "bare" => Dense::without_bias(g, "dense", 4, 5),
                _ => Dense::new(g, "dense", 4, 5),
            };
            of([&x], [layer.apply(&x).tanh()])
        }
        "conv2d" => {
            let x = float("x", &[2, 7, 6, 3]);
            let mut layer = Conv2D::new(g, "conv2d", 3, 3, 4);
            if how == "valid" {
                (layer.stride, layer.padding) = (2, Padding::Valid);
            }
            of([&x], [layer.apply(&x)])
        }
        "pool" => {
            let x = float("x", &[2, 7, 6, 3]);
            let pools = [
                x.max_pool(2, 2, Padding::Same),
                x.max_pool(3, 1, Padding::Valid),
                x.avg_pool(2, 2, Padding::Same),
                x.avg_pool(3, 2, Padding::Valid),
            ];
            of([&x], pools)
        }
        "batch_norm" => batch_norm(g, how, &float),
        "layer_norm" => {
            let x = float("x", &[2, 3, 4]);
            of([&x], [LayerNorm::new(g, "layer_norm", 4).apply(&x)])
        }
        "dropout" => {
            let x = float("x", &[8, 9]);
            of(
                [&x],
                [dropout(&x, 0.3, Some(5)), dropout(&x, 0.75, Some(6))],
            )
        }
        "embedding" => {
            let ids = g.placeholder("ids", DType::Int64, [Some(2), Some(5)]);
            of([], [Embedding::new(g, "embedding", 7, 3).lookup(&ids)])
        }
        "lstm" => lstm(g, &float),
        "attention" => {
            let (x, y) = (float("x", &[2, 4, 6]), float("y", &[2, 5, 6]));
            let mask = g.placeholder("mask", DType::Bool, [Some(2), Some(1), Some(4), Some(4)]);
            let layer = MultiHeadAttention::new(g, "attention", 6, 3);
            of(
                [&x, &y],
                [layer.apply(&x, Some(&mask)), layer.look(&x, &y, None)],
            )
        }
        "losses" => all_losses(g, &float),
        "metrics" => metrics(g),
        "initializers" => initializers(g),
        other => bail!("no layer '{other}'"),
    })
}

fn batch_norm(g: &Graph, how: &str, float: &dyn Fn(&str, &[usize]) -> Output) -> Made {
    let x = match how {
        "images" => float("x", &[2, 5, 4, 3]),
        _ => float("x", &[6, 3]),
    };
    let layer = BatchNorm::new(g, "batch_norm", 3);
    if how == "infer" {
        return of([&x], [layer.infer(&x)]);
    }
    let (y, update) = layer.train(&x);
    Made {
        updates: vec![update],
        ..of([&x], [y])
    }
}

fn lstm(g: &Graph, float: &dyn Fn(&str, &[usize]) -> Output) -> Made {
    let (x, c, h) = (
        float("x", &[3, 2, 4]),
        float("c", &[2, 5]),
        float("h", &[2, 5]),
    );
    let cell = LstmCell::new(g, "lstm", 4, 5);
    let mut state = LstmState {
        c: c.clone(),
        h: h.clone(),
    };
    let mut outputs = Vec::new();
    for t in 0..3 {
        let now = x.slice(&[t, 0, 0], &[1, -1, -1]).reshape(&[2, 4]);
        state = cell.step(&now, &state);
        outputs.extend([state.c.clone(), state.h.clone()]);
    }
    let fresh = cell.step(
        &x.slice(&[0, 0, 0], &[1, -1, -1]).reshape(&[2, 4]),
        &cell.zero_state(2, DType::Float),
    );
    outputs.push(fresh.h);
    of([&x, &c, &h], outputs)
}

fn all_losses(g: &Graph, float: &dyn Fn(&str, &[usize]) -> Output) -> Made {
    let logits = float("logits", &[6, 4]);
    let values = float("values", &[6, 4]);
    let labels = float("labels", &[6, 4]);
    let rows = float("rows", &[6, 4]);
    let classes = g.placeholder("classes", DType::Int64, [Some(6)]);
    let weights = float("weights", &[6, 1]);
    let shares = logits.sigmoid();
    let w = g.variable("w").shape([3, 2]).build();
    let v = g.variable("v").shape([4]).build();
    let decay = losses::l2_regularizer(&[w, v], 0.3);
    let all = [
        losses::mean_squared_error(&values, &logits),
        losses::absolute_difference(&values, &logits),
        losses::softmax_cross_entropy(&rows, &logits),
        losses::sparse_softmax_cross_entropy(&classes, &logits),
        losses::sigmoid_cross_entropy(&labels, &logits),
        losses::sigmoid_cross_entropy_elements(&labels, &(&logits * 100.0)),
        losses::hinge(&labels, &logits),
        losses::huber(&values, &logits, 0.7),
        losses::log_loss(&labels, &shares),
        losses::weighted(&logits.square(), &weights),
    ];
    of([&logits], all.into_iter().chain(decay).collect::<Vec<_>>())
}

fn metrics(g: &Graph) -> Made {
    let values = g.placeholder("values", DType::Float, [Some(7)]);
    let labels = g.placeholder("labels", DType::Int64, [Some(7)]);
    let guesses = g.placeholder("guesses", DType::Int64, [Some(7)]);
    let all = [
        Metric::mean("mean", &values),
        Metric::accuracy("accuracy", &labels, &guesses),
        Metric::auc("auc", &labels, &values, 50),
        Metric::auc("fine", &labels, &values, 200),
    ];
    Made {
        outputs: all.iter().map(|m| m.value.clone()).collect(),
        updates: all.iter().map(|m| m.update.clone()).collect(),
        resets: all.iter().map(|m| m.reset.clone()).collect(),
        ..Default::default()
    }
}

/// Variables of two shapes by every initializer, with seeds.
fn initializers(g: &Graph) -> Made {
    let shapes: [(&str, &[usize]); 2] = [("matrix", &[30, 20]), ("filter", &[3, 3, 8, 16])];
    let mut all = vec![
        ("uniform", Init::uniform(-0.5, 1.5)),
        ("normal", Init::normal(0.5, 2.0)),
        ("truncated", Init::truncated_normal(-1.0, 0.5)),
        ("glorot_uniform", Init::glorot_uniform()),
        ("glorot_normal", Init::glorot_normal()),
        ("he_normal", Init::he_normal()),
    ];
    for (mode, fan) in [
        ("in", Fan::In),
        ("out", Fan::Out),
        ("average", Fan::Average),
    ] {
        for (shape, distribution) in [
            ("truncated", Distribution::TruncatedNormal),
            ("normal", Distribution::Normal),
            ("uniform", Distribution::Uniform),
        ] {
            let name: &str = Box::leak(format!("scaled_{mode}_{shape}").into_boxed_str());
            all.push((name, Init::variance_scaling(1.7, fan, distribution)));
        }
    }
    let mut outputs = Vec::new();
    for (seed, (name, init)) in all.into_iter().enumerate() {
        for (shape, dims) in shapes {
            let variable = g.variable(&format!("{name}_{shape}")).shape(dims);
            let variable = variable.init(init.clone().seed(11 + seed as i64));
            outputs.push(variable.trainable(false).build().value().clone());
        }
    }
    for (name, init) in [
        ("zeros", Init::zeros()),
        ("ones", Init::ones()),
        ("seven", Init::filled(7.0)),
    ] {
        let variable = g.variable(name).shape([4, 3]).init(init);
        outputs.push(variable.trainable(false).build().value().clone());
    }
    Made {
        outputs,
        ..Default::default()
    }
}
