//! Models with their optimizers, built by Downpour's API as `optimizers.py` builds them by
//! TensorFlow's. First values follow a formula that both sides know.

use anyhow::{Result, bail};
use downpour_build::{
    Combiner, DType, Graph, Init, Lookup, Operation, Output, Partitioner, ReplicaDeviceSetter,
    Shape, SparseTensor, Spread, Tensor, Variable, embedding_lookup, embedding_lookup_sparse,
};
use downpour_train::{
    Adadelta, Adagrad, AdagradDa, Adam, ExponentialMovingAverage, Ftrl, GradientDescent, Minimize,
    Momentum, ProximalAdagrad, ProximalGradientDescent, RmsProp, Saver, Schedule, global_step,
};
use serde::{Deserialize, Serialize};

/// What is to be built.
#[derive(Deserialize)]
pub(crate) struct Training {
    model: String,
    optimizer: String,
    /// How variables spread over `tasks` parameter servers, if they do.
    #[serde(default)]
    place: Option<String>,
    #[serde(default)]
    tasks: u32,
}

/// The names of what was built.
#[derive(Serialize, Default)]
pub(crate) struct Trained {
    loss: String,
    train: String,
    init: String,
    variables: Vec<Kept>,
    /// Values of schedules, by name.
    rates: Vec<(String, String)>,
}

/// A variable: where it is, and how checkpoints keep it.
#[derive(Serialize)]
pub(crate) struct Kept {
    name: String,
    read: String,
    device: String,
    save_name: String,
    slice: String,
}

pub(crate) fn build(g: &Graph, asked: &Training) -> Result<Trained> {
    let spread = match asked.place.as_deref() {
        None => None,
        Some("round_robin") => Some(Spread::round_robin(asked.tasks)),
        Some("by_bytes") => Some(Spread::by_bytes(asked.tasks)),
        Some(other) => bail!("no strategy '{other}'"),
    };
    let Some(spread) = spread else {
        return inside(g, asked);
    };
    let setter = ReplicaDeviceSetter::new(asked.tasks).strategy(spread);
    let setter = setter.worker_device("/job:worker/task:1").build()?;
    g.with_device_function(setter, || inside(g, asked))
}

fn inside(g: &Graph, asked: &Training) -> Result<Trained> {
    match asked.model.as_str() {
        "schedules" => return Ok(schedules(g)),
        "beginnings" => return Ok(beginnings(g)),
        _ => {}
    }
    let loss = match asked.model.as_str() {
        "mlp" => mlp(g, DType::Float),
        "mlp64" => mlp(g, DType::Double),
        "embedding" => embedding(g),
        "parts" => parts(g),
        other => bail!("no model '{other}'"),
    };
    let step = global_step(g);
    let train = optimize(g, &asked.optimizer, &loss, &step)?;
    let init = g.initialize_variables();
    Saver::new(g)?;
    Ok(Trained {
        loss: loss.name(),
        train: train.name(),
        init: init.name(),
        variables: kept(g),
        rates: Vec::new(),
    })
}

pub(crate) fn kept(g: &Graph) -> Vec<Kept> {
    let kept = |v: &Variable| Kept {
        name: v.name().to_owned(),
        read: v.value().name(),
        device: v.handle().operation().device(),
        save_name: v.save_name().to_owned(),
        slice: v.save_slice(),
    };
    g.variables().iter().map(kept).collect()
}

/// Variables, whole and in parts, that begin at random with seeds.
fn beginnings(g: &Graph) -> Trained {
    let begin = |name: &str, init: Init| g.variable(name).shape([10, 4]).init(init.seed(5));
    begin("glorot", Init::glorot_uniform()).build();
    begin("normal", Init::normal(0.5, 2.0)).build();
    let three = Partitioner::fixed(3);
    begin("glorot_parts", Init::glorot_uniform()).partitioned(&three);
    begin("he_parts", Init::he_normal()).partitioned(&three.clone().axis(1));
    begin("uniform_parts", Init::uniform(-1.0, 3.0)).partitioned(&three);
    Trained {
        init: g.initialize_variables().name(),
        variables: kept(g),
        ..Default::default()
    }
}

/// Numbers between -scale/2 and scale/2 that look random.
fn first(dims: &[usize], seed: u64, scale: f64, dtype: DType) -> Init {
    let count: usize = dims.iter().product();
    let number = |i: usize| ((i as u64 * 7919 + seed * 104_729) % 1000) as f64 / 1000.0 - 0.5;
    let values = (0..count).map(|i| number(i) * scale);
    let tensor = match dtype {
        DType::Double => Tensor::vector(values.collect::<Vec<f64>>()),
        _ => Tensor::vector(values.map(|v| v as f32).collect::<Vec<f32>>()),
    };
    let flat = tensor.clone();
    Init::value(tensor.reshaped(Shape::from(dims)).unwrap_or(flat))
}

/// Two layers.
fn mlp(g: &Graph, dtype: DType) -> Output {
    let x = g.placeholder("x", dtype, [None, Some(4)]);
    let labels = g.placeholder("labels", DType::Int64, [None]);
    let layer = |name: &str, x: &Output, dims: [usize; 2], seed: u64| {
        g.with_scope(name, || {
            let w = g.variable("w").init(first(&dims, seed, 1.0, dtype)).build();
            let b = g
                .variable("b")
                .init(first(&dims[1..], seed + 1, 0.1, dtype));
            x.matmul(&w) + b.build().value()
        })
    };
    let hidden = layer("hidden", &x, [4, 5], 1).tanh();
    let logits = layer("out", &hidden, [5, 3], 3);
    logits.sparse_softmax_cross_entropy(&labels).mean(())
}

/// A table of which steps touch some rows, some of them twice.
fn embedding(g: &Graph) -> Output {
    let ids = g.placeholder("ids", DType::Int64, [None, Some(2)]);
    let target = g.placeholder("target", DType::Float, [None, Some(2)]);
    let table = g
        .variable("table")
        .init(first(&[20, 3], 1, 1.0, DType::Float))
        .build();
    let w = g
        .variable("w")
        .init(first(&[3, 2], 2, 1.0, DType::Float))
        .build();
    let rows = embedding_lookup(&table, &ids, Lookup::Mod).sum(1);
    (rows.matmul(&w) - target).square().mean(())
}

/// Tables and weights in parts.
fn parts(g: &Graph) -> Output {
    let ids = g.placeholder("ids", DType::Int64, [None, Some(2)]);
    let target = g.placeholder("target", DType::Float, [None, Some(2)]);
    let bags = SparseTensor {
        indices: g.placeholder("bags_indices", DType::Int64, [None, Some(2)]),
        values: g.placeholder("bags_values", DType::Int64, [None]),
        shape: g.placeholder("bags_shape", DType::Int64, [Some(2)]),
    };
    let weights = g.placeholder("bags_weights", DType::Float, [None]);
    let table = g
        .variable("table")
        .init(first(&[11, 3], 1, 1.0, DType::Float))
        .partitioned(&Partitioner::fixed(3));
    let words = g
        .variable("words")
        .init(first(&[10, 3], 2, 1.0, DType::Float))
        .partitioned(&Partitioner::axis_size(48));
    let w = g
        .variable("w")
        .init(first(&[3, 2], 3, 1.0, DType::Float))
        .partitioned(&Partitioner::min_max(2).min_bytes(8));
    let rows = embedding_lookup(&table, &ids, Lookup::Mod).sum(1);
    let plain = embedding_lookup_sparse(&words, &bags, None, Lookup::Div, Combiner::SqrtN);
    let mean = embedding_lookup_sparse(&words, &bags, Some(&weights), Lookup::Div, Combiner::Mean);
    let all = rows + plain + mean + words.gather(&ids).sum(1);
    (all.matmul(&w) - target).square().mean(())
}

fn optimize(g: &Graph, name: &str, loss: &Output, step: &Variable) -> Result<Operation> {
    let at = Some(step);
    Ok(match name {
        "sgd" => GradientDescent::new(0.1).minimize(loss, at)?,
        "momentum" => Momentum::new(0.05, 0.9).minimize(loss, at)?,
        "nesterov" => Momentum::new(0.05, 0.9).nesterov().minimize(loss, at)?,
        "adagrad" => Adagrad::new(0.1).use_locking(true).minimize(loss, at)?,
        "adadelta" => {
            let adadelta = Adadelta::new(1.0).rho(0.9).epsilon(1e-6);
            adadelta.minimize(loss, at)?
        }
        "adam" => Adam::new(0.01).minimize(loss, None)?,
        "named_adam" => {
            let adam = Adam::new(0.01).betas(0.8, 0.99).epsilon(1e-4);
            adam.named("Other").minimize(loss, at)?
        }
        "rmsprop" => RmsProp::new(0.01).momentum(0.5).minimize(loss, at)?,
        "centered" => {
            let rmsprop = RmsProp::new(0.01).decay(0.8).momentum(0.3).epsilon(1e-4);
            rmsprop.centered().minimize(loss, at)?
        }
        "ftrl" => Ftrl::new(0.1).l1(0.001).l2(0.002).minimize(loss, at)?,
        "ftrl_v2" => {
            let ftrl = Ftrl::new(0.1).l1(0.001).l2_shrinkage(0.01);
            ftrl.learning_rate_power(-0.6).minimize(loss, at)?
        }
        "ftrl_beta" => Ftrl::new(0.1).l2(0.001).beta(0.1).minimize(loss, at)?,
        "proximal_adagrad" => {
            let adagrad = ProximalAdagrad::new(0.1).l1(0.001).l2(0.002);
            adagrad.minimize(loss, at)?
        }
        "proximal_sgd" => {
            let descent = ProximalGradientDescent::new(0.1).l1(0.001).l2(0.002);
            descent.minimize(loss, at)?
        }
        "adagrad_da" => {
            let adagrad = AdagradDa::new(0.1, step).l1(0.001).l2(0.002);
            adagrad.minimize(loss, at)?
        }
        "decayed" => {
            let rate = Schedule::exponential(0.5, 10.0, 0.7).at(step);
            GradientDescent::new(rate).minimize(loss, at)?
        }
        "clipped" => Momentum::new(0.1, 0.9).minimize_clipped(loss, 0.05, at)?,
        "averaged" => {
            let train = Adam::new(0.01).minimize(loss, at)?;
            let averages = ExponentialMovingAverage::new(0.9).num_updates(step);
            let variables = g.trainable_variables();
            g.with_control(&[train], || averages.apply(&variables))?
        }
        "twice" => {
            // The second time finds the slots of the first.
            let momentum = Momentum::new(0.01, 0.9);
            let once = momentum.minimize(loss, at)?;
            let again = g.with_control(&[once], || -> Result<Operation> {
                let second = g.trainable_variables();
                let squares: Vec<Output> = second.iter().map(|v| v.read().l2_loss()).collect();
                let squares = g.op("AddN").inputs(&squares).output();
                Ok(momentum.minimize(&squares, at)?)
            });
            again?
        }
        other => bail!("no optimizer '{other}'"),
    })
}

/// Every schedule, of a step that is fed.
fn schedules(g: &Graph) -> Trained {
    let step = g.placeholder("step", DType::Int64, ());
    let all = [
        ("exponential", Schedule::exponential(0.1, 7.0, 0.9)),
        (
            "staircase",
            Schedule::exponential(0.1, 7.0, 0.9).staircase(),
        ),
        ("natural_exp", Schedule::natural_exp(0.1, 7.0, 0.3)),
        (
            "natural_exp_stairs",
            Schedule::natural_exp(0.1, 7.0, 0.3).staircase(),
        ),
        ("inverse_time", Schedule::inverse_time(0.1, 7.0, 0.5)),
        (
            "inverse_time_stairs",
            Schedule::inverse_time(0.1, 7.0, 0.5).staircase(),
        ),
        ("polynomial", Schedule::polynomial(0.1, 20.0, 0.01, 2.0)),
        (
            "polynomial_cycle",
            Schedule::polynomial(0.1, 20.0, 0.01, 0.5).cycle(),
        ),
        ("cosine", Schedule::cosine(0.1, 30.0, 0.1)),
        (
            "restarts",
            Schedule::cosine_restarts(0.1, 7.0, 2.0, 0.9, 0.1),
        ),
        (
            "restarts_even",
            Schedule::cosine_restarts(0.1, 7.0, 1.0, 0.9, 0.0),
        ),
        (
            "piecewise",
            Schedule::piecewise_constant(&[5, 20], &[0.1, 0.05, 0.01]),
        ),
    ];
    let rate = |(name, schedule): (&str, Schedule)| (name.to_owned(), schedule.at(&step).name());
    Trained {
        rates: all.into_iter().map(rate).collect(),
        ..Default::default()
    }
}
