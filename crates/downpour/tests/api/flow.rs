//! Loops and branches whose bodies are spread over tasks, with gradients: the same values as on one
//! task, and every wait ends.

use downpour::train::{GradientDescent, Minimize};
use downpour::{
    Code, DType, Graph, Init, LocalCluster, Output, Server, ServerConfig, Session, Tensor, cond,
    gradients, while_loop,
};
use std::collections::BTreeSet;
use std::time::Duration;

/// What a step fetches: the result and its gradients.
struct Model {
    x: Output,
    count: Output,
    fetches: Vec<Output>,
}

/// Does `body` on a task if the model is spread, else wherever it is.
fn on<T>(g: &Graph, spread: bool, task: &str, body: impl FnOnce() -> T) -> T {
    match spread {
        true => g.with_device(task, body),
        false => body(),
    }
}

const PS: [&str; 2] = ["/job:ps/task:0", "/job:ps/task:1"];
const WORKERS: [&str; 2] = ["/job:worker/task:0", "/job:worker/task:1"];

fn numbers(rows: usize, columns: usize, seed: usize) -> Tensor {
    let number = |i: usize| ((i * 7919 + seed * 10_473) % 1000) as f32 / 1000.0 - 0.5;
    let values: Vec<f32> = (0..rows * columns).map(number).collect();
    Tensor::vector(values).reshaped([rows, columns]).unwrap()
}

/// A loop that goes round the cluster, with a branch inside whose sides are on different tasks.
fn looping(g: &Graph, spread: bool) -> Model {
    let x = g.placeholder("x", DType::Float, [Some(3), Some(4)]);
    let count = g.placeholder("count", DType::Int32, ());
    let variable = |name: &str, task: usize, rows: usize, columns: usize| {
        on(g, spread, PS[task], || {
            let first = Init::value(numbers(rows, columns, task + 1));
            g.variable(name).init(first).build()
        })
    };
    let (w, u) = (variable("w", 0, 4, 4), variable("u", 1, 1, 4));
    let (handles, limit) = ([w.handle().clone(), u.handle().clone()], count.clone());
    let last = while_loop(
        &[g.constant(0i32), x.clone()],
        |g, v| on(g, spread, WORKERS[0], || v[0].less(&limit)),
        |g, v| {
            let product = on(g, spread, WORKERS[1], || v[1].matmul(&w).tanh());
            let moved = on(g, spread, PS[1], || product + &*u);
            let is_up = on(g, spread, WORKERS[0], || {
                moved.mean(()).greater(&g.constant(0.0f32))
            });
            let next = cond(
                &is_up,
                |g| on(g, spread, WORKERS[1], || vec![&moved * 1.5]),
                |g| on(g, spread, PS[0], || vec![&moved - v[1].square()]),
            );
            vec![&v[0] + 1, next[0].clone()]
        },
    );
    let loss = last[1].square().sum(());
    let [w, u] = handles;
    let found = gradients(std::slice::from_ref(&loss), &[w, u, x.clone()]).unwrap();
    let mut fetches = vec![last[0].clone(), loss];
    fetches.extend(found.into_iter().flatten().map(|g| g.to_dense()));
    Model { x, count, fetches }
}

/// A branch that trains one of two variables on different tasks, and the gradients of both.
fn branching(g: &Graph, spread: bool) -> Model {
    let x = g.placeholder("x", DType::Float, [Some(3), Some(4)]);
    let count = g.placeholder("count", DType::Int32, ());
    let [a, b] = [0, 1].map(|task| {
        on(g, spread, PS[task], || {
            let first = Init::value(numbers(4, 4, 5 + task));
            g.variable(["a", "b"][task]).init(first).build()
        })
    });
    let is_even = on(g, spread, WORKERS[0], || {
        (&count - count.floor_div(&g.constant(2i32)) * 2).equal(&g.constant(0i32))
    });
    let y = cond(
        &is_even,
        |g| on(g, spread, WORKERS[1], || vec![x.matmul(&a).sigmoid()]),
        |g| on(g, spread, PS[1], || vec![x.matmul(&b).tanh() * 2.0]),
    );
    let loss = on(g, spread, WORKERS[0], || y[0].square().sum(()));
    let xs = [a.handle().clone(), b.handle().clone(), x.clone()];
    let found = gradients(std::slice::from_ref(&loss), &xs).unwrap();
    let mut fetches = vec![y[0].clone(), loss];
    fetches.extend(found.into_iter().flatten().map(|g| g.to_dense()));
    Model { x, count, fetches }
}

/// The values of all fetches, and on how many tasks the step ran.
fn values(session: &Session, m: &Model, count: i32) -> (Vec<Tensor>, usize) {
    let step = session
        .step()
        .feed(&m.x, numbers(3, 4, 3))
        .feed(&m.count, count);
    let traced = step.trace(&m.fetches).unwrap();
    let stats = traced.metadata.step_stats.as_ref().unwrap();
    let task = |d: &str| d.split("/device:").next().unwrap_or_default().to_owned();
    let tasks: BTreeSet<String> = stats.devices.iter().map(|d| task(&d.device)).collect();
    (traced.values, tasks.len())
}

fn same_on_one_task_and_on_four(build: fn(&Graph, bool) -> Model) {
    let cluster = LocalCluster::start(2, 2).unwrap();
    let server = Server::start(ServerConfig::local()).unwrap();
    let (alone, spread) = (Graph::new(), Graph::new());
    let (one, four) = (build(&alone, false), build(&spread, true));
    assert_eq!(one.fetches.len(), 5);
    let single = Session::new(&server, &alone).unwrap();
    let many = Session::new(&cluster.workers()[0], &spread).unwrap();
    single.run(&alone.initialize_variables()).unwrap();
    many.run(&spread.initialize_variables()).unwrap();
    for count in [0, 1, 2, 3, 7, 0] {
        let (want, _) = values(&single, &one, count);
        let (got, tasks) = values(&many, &four, count);
        assert_eq!(tasks, 4, "the step should run on every task");
        for (i, (want, got)) in want.iter().zip(&got).enumerate() {
            assert_eq!(want.shape(), got.shape(), "fetch {i} of count {count}");
            if want.dtype() == DType::Int32 {
                assert_eq!(got.scalar_value::<i32>().unwrap(), count);
                continue;
            }
            let pairs = want.as_slice::<f32>().unwrap().iter();
            for (want, got) in pairs.zip(got.as_slice::<f32>().unwrap()) {
                let near = (want - got).abs() <= 1e-4 * want.abs().max(1.0);
                assert!(near, "fetch {i} of count {count}: {got} instead of {want}");
            }
        }
    }
}

#[test]
fn a_loop_round_the_cluster_is_worth_what_it_is_on_one_task() {
    same_on_one_task_and_on_four(looping);
}

#[test]
fn a_branch_on_other_tasks_is_worth_what_it_is_on_one_task() {
    same_on_one_task_and_on_four(branching);
}

#[test]
fn a_loop_over_tasks_can_be_trained() {
    let cluster = LocalCluster::start(2, 2).unwrap();
    let g = Graph::new();
    let m = looping(&g, true);
    let train = GradientDescent::new(0.02);
    let train = train.minimize(&m.fetches[1], None).unwrap();
    let session = Session::new(&cluster.workers()[0], &g).unwrap();
    session.run(&g.initialize_variables()).unwrap();
    let mut losses = Vec::new();
    for _ in 0..30 {
        let step = session
            .step()
            .feed(&m.x, numbers(3, 4, 3))
            .feed(&m.count, 3i32);
        let loss = step.target(&train).fetch(&m.fetches[1]).unwrap();
        losses.push(loss.scalar_value::<f32>().unwrap());
    }
    assert!(losses[29] < 0.7 * losses[0], "{losses:?}");
}

#[test]
fn a_loop_over_tasks_that_never_ends_ends_at_its_deadline() {
    let cluster = LocalCluster::start(1, 2).unwrap();
    let g = Graph::new();
    let last = while_loop(
        &[g.constant(0.0f32)],
        |g, _| g.constant(true),
        |g, v| {
            let there = g.with_device("/job:worker/task:1", || &v[0] + 1.0);
            g.with_device("/job:ps/task:0", || vec![there * 0.5])
        },
    );
    let after = g.with_device("/job:worker/task:1", || g.constant(2.0f32) * 3.0);
    let session = Session::new(&cluster.workers()[0], &g).unwrap();
    let step = session.step().timeout(Duration::from_millis(500));
    let error = step.fetch(&last[0]).unwrap_err();
    assert_eq!(error.code, Code::DeadlineExceeded, "{error}");
    let value = session.fetch(&after).unwrap();
    assert_eq!(value.scalar_value::<f32>().unwrap(), 6.0);
}

#[test]
fn an_error_in_a_body_on_another_task_ends_the_step_and_names_the_task() {
    let cluster = LocalCluster::start(1, 2).unwrap();
    let g = Graph::new();
    let limit = g.placeholder("limit", DType::Int32, ());
    let last = while_loop(
        &[g.constant(0i32)],
        |g, v| v[0].less(&g.constant(10i32)),
        |g, v| {
            let left = g.with_device("/job:worker/task:1", || {
                // Fails in the iteration in which nothing is left to divide by.
                let left = &limit - &v[0];
                g.constant(12i32).floor_div(&left) * g.constant(0i32)
            });
            vec![&v[0] + 1 + left]
        },
    );
    let session = Session::new(&cluster.workers()[0], &g).unwrap();
    let step = session
        .step()
        .feed(&limit, 5i32)
        .timeout(Duration::from_secs(60));
    let error = step.fetch(&last[0]).unwrap_err();
    assert_eq!(error.code, Code::InvalidArgument, "{error}");
    assert!(
        error.message.contains("/job:worker/replica:0/task:1"),
        "{error}"
    );
    let step = session
        .step()
        .feed(&limit, 50i32)
        .timeout(Duration::from_secs(60));
    let value = step.fetch(&last[0]).unwrap();
    assert_eq!(value.scalar_value::<i32>().unwrap(), 10);
}
