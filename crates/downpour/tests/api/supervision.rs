//! Supervised training: checkpoints, recovery, stopping.

use downpour::train::hooks::{FinalFetch, StopAtStep};
use downpour::train::{
    Every, GradientDescent, Minimize, Supervision, global_step, latest_checkpoint, read_checkpoint,
};
use downpour::{DType, Graph, Init, LocalCluster, Operation, Output, Server, ServerConfig};
use std::time::Duration;

/// A line to fit, with a witness that counts steps beside the shared count.
struct Model {
    graph: Graph,
    x: Output,
    y: Output,
    train: Operation,
    weight: Output,
    witness: Output,
    step: Output,
}

fn model(ps: usize) -> Model {
    let g = Graph::new();
    let at = |task: usize| format!("/job:ps/task:{}", task % ps);
    let step = g.with_device(&at(0), || global_step(&g));
    let weight = g.with_device(&at(1), || {
        g.variable("weight").init(Init::value(0.0f32)).build()
    });
    let witness = g.with_device(&at(1), || {
        let witness = g.variable("witness").init(Init::value(0i64));
        witness.trainable(false).build()
    });
    let x = g.placeholder("x", DType::Float, [None]);
    let y = g.placeholder("y", DType::Float, [None]);
    let loss = (&*weight * &x - &y).square().mean(());
    let counted = GradientDescent::new(0.05)
        .minimize(&loss, Some(&step))
        .unwrap();
    let seen = witness.assign_add(&g.constant(1i64));
    let train = g.group("both", &[counted, seen]);
    Model {
        x,
        y,
        train,
        weight: weight.value().clone(),
        witness: witness.value().clone(),
        step: step.value().clone(),
        graph: g,
    }
}

#[test]
fn training_survives_the_loss_of_a_ps_and_no_step_counts_twice() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let mut cluster = LocalCluster::start(2, 1).unwrap();
    let model = model(2);
    let (last, values) = FinalFetch::new(&[model.weight, model.witness, model.step.clone()]);
    let mut session = Supervision::new(&cluster.workers()[0], &model.graph)
        .checkpoints(path, Every::Steps(10))
        .patience(Duration::from_secs(60))
        .hook(StopAtStep::new(120))
        .hook(last)
        .open()
        .unwrap();
    let mut runs = 0;
    while !session.should_stop() {
        let step = session.step().feed(&model.x, [1.0f32, 2.0]);
        step.feed(&model.y, [3.0f32, 6.0])
            .target(&model.train)
            .run()
            .unwrap();
        runs += 1;
        if runs == 50 {
            cluster.restart_ps(1).unwrap();
        }
    }
    let losses = session.losses();
    assert!(losses > 0, "nothing was lost");
    session.close().unwrap();
    let values = values.lock();
    let weight = values[0].scalar_value::<f32>().unwrap();
    assert!((weight - 3.0).abs() < 0.01, "{weight}");
    let (witness, step) = (
        values[1].scalar_value::<i64>().unwrap(),
        values[2].scalar_value::<i64>().unwrap(),
    );
    assert_eq!((witness, step), (120, 120), "after {losses} losses");
    let saved = latest_checkpoint(path).unwrap().unwrap();
    assert!(saved.ends_with("model.ckpt-120"), "{saved}");
    let count = read_checkpoint(&saved, "global_step").unwrap();
    assert_eq!(count.scalar_value::<i64>().unwrap(), 120);
}

#[test]
fn others_wait_for_the_chief_and_say_for_what() {
    let server = Server::start(ServerConfig::local()).unwrap();
    let g = Graph::new();
    g.variable("w").init(Init::value(1.0f32)).build();
    let follower = Supervision::new(&server, &g)
        .chief(false)
        .patience(Duration::from_millis(300));
    let error = match follower.open() {
        Ok(_) => panic!("there is no chief"),
        Err(e) => e,
    };
    assert!(
        error
            .message
            .contains("the chief has not initialised the model yet"),
        "{error}"
    );
    assert!(
        error.message.contains("global_step") && error.message.contains(" w"),
        "{error}"
    );
}

#[test]
fn training_goes_on_from_a_checkpoint_of_an_earlier_run() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    for (until, expected_before) in [(5, 0), (9, 5)] {
        let cluster = LocalCluster::start(1, 1).unwrap();
        let model = model(1);
        let mut session = Supervision::new(&cluster.workers()[0], &model.graph)
            .checkpoints(path, Every::Never)
            .hook(StopAtStep::new(until))
            .open()
            .unwrap();
        assert_eq!(session.global_step().unwrap(), expected_before);
        while !session.should_stop() {
            let step = session
                .step()
                .feed(&model.x, [1.0f32])
                .feed(&model.y, [3.0f32]);
            step.target(&model.train).run().unwrap();
        }
        session.close().unwrap();
    }
}
