//! Graphs built, differentiated and trained from Rust, on real servers.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod devices;
mod downpour_counts;
mod downpour_sgd;
mod election;
mod flow;
mod hooks;
mod meta;
mod placement;
mod profile;
mod queues;
mod replicas;
mod report;
mod sampled;
mod shared;
mod split;
mod summaries;
mod supervision;
mod supervisor;
mod sync;
mod waiting;

use downpour::train::{Minimize, Momentum};
use downpour::{
    DType, Graph, Init, LocalCluster, Server, ServerConfig, Session, SessionOptions, TensorMemory,
};

/// As in the program itself, so that tasks share what they send.
#[global_allocator]
static MEMORY: TensorMemory<std::alloc::System> = TensorMemory(std::alloc::System);

#[test]
fn a_line_is_fitted_on_a_cluster() {
    let cluster = LocalCluster::start(1, 2).unwrap();
    let g = Graph::new();
    let (x, y) = (
        g.placeholder("x", DType::Float, [None]),
        g.placeholder("y", DType::Float, [None]),
    );
    let (a, b) = g.with_device("/job:ps/task:0", || {
        (
            g.variable("a").init(Init::value(0.0f32)).build(),
            g.variable("b").init(Init::value(0.0f32)).build(),
        )
    });
    let (loss, train) = g.with_device("/job:worker/task:0", || {
        let loss = (&*a * &x + &*b - &y).square().mean(());
        let train = Momentum::new(0.02, 0.9).minimize(&loss, None).unwrap();
        (loss, train)
    });
    let init = g.initialize_variables();
    let session = Session::new(&cluster.workers()[0], &g).unwrap();
    session.run(&init).unwrap();
    let (xs, ys) = (vec![0.0f32, 1.0, 2.0, 3.0], vec![1.0f32, 3.0, 5.0, 7.0]);
    for _ in 0..200 {
        let step = session.step().feed(&x, xs.clone()).feed(&y, ys.clone());
        step.target(&train).run().unwrap();
    }
    let [a, b] = session.step().fetch_all([&a, &b]).unwrap();
    let (a, b) = (
        a.scalar_value::<f32>().unwrap(),
        b.scalar_value::<f32>().unwrap(),
    );
    assert!((a - 2.0).abs() < 0.05 && (b - 1.0).abs() < 0.1, "{a} {b}");
    let left = session
        .step()
        .feed(&x, xs)
        .feed(&y, ys)
        .fetch(&loss)
        .unwrap();
    assert!(left.scalar_value::<f32>().unwrap() < 0.01);
}

#[test]
fn sessions_reach_a_master_by_address_too_and_see_what_is_built_later() {
    let server = Server::start(ServerConfig::local()).unwrap();
    let g = Graph::new();
    let x = g.placeholder("x", DType::Float, [Some(2)]);
    let session = Session::new(server.target(), &g).unwrap();
    let y = &x * 3.0;
    let value = session.step().feed(&x, [1.0f32, 2.0]).fetch(&y).unwrap();
    assert_eq!(value.as_slice::<f32>().unwrap(), [3.0, 6.0]);
    let wrong = session.step().feed(&x, [1.0f32]).fetch(&y).unwrap_err();
    assert!(
        wrong
            .message
            .contains("'x:0' has shape [2], but is fed [1]"),
        "{wrong}"
    );
    let wrong = session.step().feed(&x, [1i32, 2]).fetch(&y).unwrap_err();
    assert!(
        wrong.message.contains("is float, but is fed int32"),
        "{wrong}"
    );
}

#[test]
fn nobody_there_is_an_error_in_time() {
    let g = Graph::new();
    let options = SessionOptions::new().timeout(std::time::Duration::from_secs(5));
    let error = match options.open("grpc://127.0.0.1:1", &g) {
        Ok(_) => panic!("nobody listens there"),
        Err(e) => e,
    };
    assert!(error.message.contains("127.0.0.1:1"), "{error}");
}
