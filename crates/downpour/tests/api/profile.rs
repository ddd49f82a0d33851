//! Models placed by what their steps were measured to cost: better than by turns, and the same
//! results as on one task.

use downpour::layers::Dense;
use downpour::train::{GradientDescent, Minimize};
use downpour::{
    DType, Draws, Graph, LocalCluster, Machine, Operation, Output, Placement, Run, RunningServer,
    Session, SessionOptions, Tensor, inspect_task,
};
use std::time::Duration;

const TASKS: [&str; 2] = ["/job:worker/task:0", "/job:worker/task:1"];
const WIDTH: usize = 192;
const BATCH: usize = 64;

struct Model {
    graph: Graph,
    x: Output,
    train: Operation,
    init: Operation,
}

/// Two towers of dense layers over the same images, joined at the end.
fn build() -> Model {
    let g = Graph::new();
    g.set_seed(7);
    let x = g.placeholder("x", DType::Float, [None, Some(WIDTH)]);
    let tower = |name: &str| {
        g.with_scope(name, || {
            let first = Dense::new(&g, "first", WIDTH, WIDTH).apply(&x).relu();
            let second = Dense::new(&g, "second", WIDTH, WIDTH).apply(&first).relu();
            Dense::new(&g, "third", WIDTH, 4).apply(&second)
        })
    };
    let loss = (tower("left") - tower("right") - 1.0).square().mean(());
    let train = GradientDescent::new(0.05).minimize(&loss, None).unwrap();
    let init = g.initialize_variables();
    Model {
        graph: g,
        x,
        train,
        init,
    }
}

fn batch() -> Tensor {
    let mut draws = Draws::new(3);
    let values = (0..BATCH * WIDTH).map(|_| draws.uniform()).collect();
    Tensor::from_vec(values, [BATCH, WIDTH]).unwrap()
}

fn step(model: &Model) -> Run {
    let mut run = Run::new();
    run.feed(&model.x, batch()).target(&model.train);
    run
}

/// Bytes that a server has got from others so far.
fn received(server: &RunningServer) -> u64 {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let address = server.address().to_string();
    let report = runtime.block_on(inspect_task(&address, Duration::from_secs(30)));
    report.unwrap().peers.iter().map(|p| p.bytes_received).sum()
}

/// Bytes that travel in each of some steps, and the variables after them.
fn trained(cluster: &LocalCluster, placement: Option<&Placement>) -> (u64, Vec<Tensor>) {
    const STEPS: u64 = 4;
    let model = build();
    if let Some(placement) = placement {
        placement.apply(&model.graph);
    }
    let run = step(&model);
    let session = SessionOptions::new().isolated(true);
    let session = session.open(&cluster.workers()[0], &model.graph).unwrap();
    session.run(&model.init).unwrap();
    session.execute(&run).unwrap();
    let total = || cluster.workers().iter().map(received).sum::<u64>();
    let before = total();
    for _ in 0..STEPS {
        session.execute(&run).unwrap();
    }
    let bytes = (total() - before) / STEPS;
    let variables = model.graph.variables();
    let values: Vec<Output> = variables.iter().map(|v| v.value().clone()).collect();
    (bytes, session.step().fetch_list(&values).unwrap())
}

#[test]
fn a_measured_placement_beats_turns_and_computes_the_same() {
    let cluster = LocalCluster::start(0, 2).unwrap();
    let model = build();
    let session = Session::new(&cluster.workers()[0], &model.graph).unwrap();
    session.run(&model.init).unwrap();
    let profile = session.profile(&step(&model), 3).unwrap();
    assert!(profile.nanos("left/MatMul").unwrap() > 0);
    let machine = Machine::default();
    let chosen = profile.place(&model.graph, &TASKS, &machine).unwrap();
    let turns = profile
        .place_in_turn(&model.graph, &TASKS, &machine)
        .unwrap();
    let (a, b) = (chosen.estimate(), turns.estimate());
    assert!(a.nanos < b.nanos && a.bytes * 4 < b.bytes, "{a:?} {b:?}");
    // Half of the variables each, but for a quarter.
    let whole: u64 = a.memory.iter().sum();
    assert!(
        a.memory.iter().all(|m| *m <= whole / 2 + whole / 8),
        "{a:?}"
    );

    let (alone_bytes, alone) = trained(&cluster, None);
    let (chosen_bytes, split) = trained(&cluster, Some(&chosen));
    let (turn_bytes, by_turns) = trained(&cluster, Some(&turns));
    assert_eq!(alone_bytes, 0);
    assert!(
        chosen_bytes > 0 && chosen_bytes * 4 < turn_bytes,
        "{chosen_bytes} {turn_bytes}"
    );
    // The estimate counts what a step sends, feeds and signals included.
    assert!(chosen_bytes < a.bytes * 2 + 10_000, "{chosen_bytes} {a:?}");
    let slices = |values: &[Tensor]| -> Vec<Vec<f32>> {
        let floats = |t: &Tensor| t.as_slice::<f32>().unwrap().to_vec();
        values.iter().map(floats).collect()
    };
    assert_eq!(slices(&split), slices(&alone));
    assert_eq!(slices(&by_turns), slices(&alone));
}

#[test]
fn what_was_built_on_a_device_stays_there() {
    let cluster = LocalCluster::start(1, 2).unwrap();
    let g = Graph::new();
    let x = g.placeholder("x", DType::Float, [None, Some(WIDTH)]);
    let w = g.with_device("/job:ps/task:0", || {
        g.variable("w").shape([WIDTH, WIDTH]).build()
    });
    let y = g.with_device(TASKS[1], || x.matmul(&w).named("y"));
    let z = y.square().sum(()).named("z");
    let init = g.initialize_variables();
    let session = Session::new(&cluster.workers()[0], &g).unwrap();
    session.run(&init).unwrap();
    let mut run = Run::new();
    run.feed(&x, batch()).fetch(&z);
    let profile = session.profile(&run, 1).unwrap();
    let placement = profile.place(&g, &TASKS, &Machine::default()).unwrap();
    assert_eq!(placement.device("w"), None);
    assert_eq!(placement.device("y"), Some(TASKS[1]));
    // What makes a number of it goes where it is.
    assert_eq!(placement.device("Square"), Some(TASKS[1]));
    placement.apply(&g);
    assert_eq!(w.handle().operation().device(), "/job:ps/task:0");
    let before = session.execute(&run).unwrap();
    let after = Session::new(&cluster.workers()[0], &g)
        .unwrap()
        .execute(&run)
        .unwrap();
    let value = |t: &[Tensor]| t[0].scalar_value::<f32>().unwrap();
    assert_eq!(value(&before), value(&after));
    let none: [&str; 0] = [];
    assert!(profile.place(&g, &none, &Machine::default()).is_err());
}
