//! Losses over a sample of classes, and tables of theirs in parts.

use downpour::train::{Adagrad, Adam, Ftrl, Minimize, PerVariable};
use downpour::{
    Candidates, DType, Gradient, Graph, Init, Output, Partitioner, Server, ServerConfig, Session,
    Table, gradients, nce_loss, sampled_softmax_loss,
};

const CLASSES: usize = 5;

/// What a loss is built from: a batch of two examples with two right classes each.
struct Batch {
    inputs: Output,
    right: Output,
}

fn batch(g: &Graph) -> Batch {
    Batch {
        inputs: g.constant([[0.5f32, -1.0, 2.0], [1.5, 0.25, -0.5]]),
        right: g.constant([[3i64, 1], [0, 4]]),
    }
}

fn weights() -> Init {
    let values: Vec<f32> = (0..CLASSES * 3).map(|i| (i as f32).sin()).collect();
    Init::function(move |g, _, shape| {
        let (full, rows) = (
            g.constant(values.clone()).reshape(&[CLASSES as i32, 3]),
            shape,
        );
        assert_eq!(rows.to_string(), "[5,3]");
        full
    })
}

fn value(session: &Session, output: &Output) -> Vec<f32> {
    let value = session.fetch(output).unwrap();
    value.as_slice::<f32>().unwrap().to_vec()
}

fn close(a: &[f32], b: &[f32]) {
    assert_eq!(a.len(), b.len(), "{a:?} {b:?}");
    for (x, y) in a.iter().zip(b) {
        assert!((x - y).abs() <= 1e-5 * (1.0 + y.abs()), "{a:?} {b:?}");
    }
}

#[test]
fn with_every_class_in_the_sample_the_losses_are_the_full_ones() {
    let server = Server::start(ServerConfig::local()).unwrap();
    let g = Graph::new();
    let Batch { inputs, right } = batch(&g);
    let w = g.variable("w").shape([CLASSES, 3]).init(weights()).build();
    let b = g
        .variable("b")
        .init(Init::value([0.1f32, -0.2, 0.3, 0.0, 0.5]));
    let b = b.build();
    let all = Candidates::all(&right, CLASSES);
    let logits = inputs.matmul_as(&w, false, true) + b.value();
    let share = right.one_hot(CLASSES as i32, DType::Float).sum(1) * 0.5;
    let softmax = logits.softmax_cross_entropy(&share);
    let sampled = sampled_softmax_loss(&w, &b, &inputs, &all);
    // Every class once as noise, and the right ones once more with half a label each.
    let noise = logits.softplus().sum(1);
    let of_right = right.one_hot(CLASSES as i32, DType::Float).sum(1);
    let told = (&of_right * (logits.softplus() - &logits * 0.5)).sum(1);
    let nce = nce_loss(&w, &b, &inputs, &all);
    let init = g.initialize_variables();
    let session = Session::new(server.target(), &g).unwrap();
    session.run(&init).unwrap();
    close(&value(&session, &sampled), &value(&session, &softmax));
    close(&value(&session, &nce), &value(&session, &(noise + told)));
    let handles = [w.handle().clone(), b.handle().clone()];
    let found = gradients(&[sampled], &handles).unwrap();
    let full = gradients(&[softmax], &handles).unwrap();
    for (found, full) in found.iter().flatten().zip(full.iter().flatten()) {
        assert!(matches!(found, Gradient::Sparse(_)));
        let (found, full) = (found.to_dense(), full.to_dense());
        close(&value(&session, &found), &value(&session, &full));
    }
}

#[test]
fn a_table_in_parts_gives_the_same_loss_and_each_part_its_own_rows() {
    let server = Server::start(ServerConfig::local()).unwrap();
    let g = Graph::new();
    let Batch { inputs, right } = batch(&g);
    let whole = g
        .variable("whole")
        .shape([CLASSES, 3])
        .init(Init::normal(0.0, 1.0).seed(3));
    let whole = whole.build();
    let parts = g.variable("parts").shape([CLASSES, 3]);
    let parts = parts.partitioned(&Partitioner::fixed(2));
    let b = g.variable("b").shape([CLASSES]).init(Init::zeros()).build();
    let all = Candidates::all(&right, CLASSES);
    let losses = [
        nce_loss(&whole, &b, &inputs, &all),
        nce_loss(&parts, &b, &inputs, &all),
    ];
    let copy = parts.assign(&whole);
    let handles: Vec<Output> = parts
        .table_parts()
        .iter()
        .map(|p| p.handle().clone())
        .collect();
    let found = gradients(&losses[1..], &handles).unwrap();
    assert!(found.iter().all(|g| matches!(g, Some(Gradient::Sparse(_)))));
    let init = g.initialize_variables();
    let session = Session::new(server.target(), &g).unwrap();
    session.run(&init).unwrap();
    session.run(&copy).unwrap();
    close(&value(&session, &losses[1]), &value(&session, &losses[0]));
}

#[test]
fn samples_are_of_different_classes_and_unknown_widths_are_refused() {
    let server = Server::start(ServerConfig::local()).unwrap();
    let g = Graph::new();
    let Batch { inputs, right } = batch(&g);
    let w = g.variable("w").shape([CLASSES, 3]).build();
    let b = g.variable("b").shape([CLASSES]).build();
    let counts = [1.0, 2.0, 3.0, 4.0, 5.0];
    let losses = [
        Candidates::log_uniform(&right, 3, CLASSES),
        Candidates::uniform(&right, 3, CLASSES),
        Candidates::unigram(&right, 3, &counts, 0.75),
    ]
    .map(|c| sampled_softmax_loss(&w, &b, &inputs, &c));
    let init = g.initialize_variables();
    let session = Session::new(server.target(), &g).unwrap();
    session.run(&init).unwrap();
    for loss in &losses {
        let value = value(&session, loss);
        assert!(value.iter().all(|v| v.is_finite()), "{value:?}");
    }
    let labels = g.placeholder("labels", DType::Int64, [None, None]);
    Candidates::uniform(&labels, 3, CLASSES);
    let error = g.check().unwrap_err();
    assert!(
        error.message.contains("the second of known length"),
        "{error}"
    );
}

#[test]
fn each_variable_is_changed_by_its_own_optimizer() {
    let server = Server::start(ServerConfig::local()).unwrap();
    let changed = |together: bool| {
        let g = Graph::new();
        let variable = |name: &str| {
            let init = Init::value([[1.0f32, 2.0], [3.0, 4.0], [5.0, 6.0]]);
            g.variable(name).init(init).build()
        };
        let all = ["ftrl", "adam", "adagrad"].map(variable);
        let ids = g.constant([2i64, 0, 2]);
        let losses = all.clone().map(|v| v.gather(&ids).square().sum(()));
        let named = |name: &'static str| move |v: &downpour::Variable| v.name() == name;
        let train = match together {
            true => {
                let optimizer = PerVariable::new(Adagrad::new(0.5))
                    .with(named("ftrl"), Ftrl::new(0.5).l1(0.1))
                    .with(named("adam"), Adam::new(0.5));
                let loss = &losses[0] + &losses[1] + &losses[2];
                vec![optimizer.minimize(&loss, None).unwrap()]
            }
            false => vec![
                Ftrl::new(0.5).l1(0.1).minimize(&losses[0], None).unwrap(),
                Adam::new(0.5).minimize(&losses[1], None).unwrap(),
                Adagrad::new(0.5).minimize(&losses[2], None).unwrap(),
            ],
        };
        let train = g.group("train", &train);
        let init = g.initialize_variables();
        let session = Session::new(server.target(), &g).unwrap();
        session.run(&init).unwrap();
        for _ in 0..3 {
            session.run(&train).unwrap();
        }
        all.map(|v| value(&session, v.value())).concat()
    };
    assert_eq!(changed(true), changed(false));
}
