//! Graphs written beside checkpoints, and gone on with by a program that did not build them.

use downpour::train::hooks::StopAtStep;
use downpour::train::{
    Adam, Every, MetaGraph, Minimize, Queue, QueueRunner, Supervision, global_step,
    latest_checkpoint, read_checkpoint,
};
use downpour::{Code, DType, Graph, Init, Partitioner, Server, ServerConfig, Session};

/// Trains to a step; the table as the checkpoint holds it then.
fn train(graph: &Graph, train: &str, dir: &str, until: i64) -> Vec<f32> {
    let server = Server::start(ServerConfig::local()).unwrap();
    let train = graph.operation(train).unwrap();
    Supervision::new(&server, graph)
        .checkpoints(dir, Every::Never)
        .hook(StopAtStep::new(until))
        .open()
        .unwrap()
        .train(|session| session.step().target(&train).run())
        .unwrap();
    let saved = latest_checkpoint(dir).unwrap().unwrap();
    assert!(saved.ends_with(&format!("-{until}")), "{saved}");
    let table = read_checkpoint(&saved, "table").unwrap();
    table.as_slice::<f32>().unwrap().to_vec()
}

/// A table in parts, whose rows a queue that fills itself makes smaller.
fn build() -> Graph {
    let g = Graph::new();
    let table = g
        .variable("table")
        .init(Init::value(vec![1.0f32, 2.0, 3.0]))
        .partitioned(&Partitioner::fixed(2));
    let queue = Queue::fifo(&g, "factors", 4)
        .component(DType::Float, ())
        .build();
    let put = queue.enqueue(&[g.constant(2.0f32)]);
    QueueRunner::new(&queue, &[put]).register();
    let whole = downpour::concat(
        &table
            .parts()
            .iter()
            .map(|p| p.value().clone())
            .collect::<Vec<_>>(),
        0,
    );
    let loss = (whole * &queue.dequeue()[0]).square().sum(());
    Adam::new(0.1)
        .minimize(&loss, Some(&global_step(&g)))
        .unwrap();
    g
}

#[test]
fn a_program_goes_on_with_a_graph_that_it_did_not_build() {
    let [whole, parted] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [whole, parted] = [&whole, &parted].map(|d| d.path().to_str().unwrap());
    let want = train(&build(), "Adam", whole, 20);
    train(&build(), "Adam", parted, 10);
    let saved = latest_checkpoint(parted).unwrap().unwrap();
    let meta = MetaGraph::read(&format!("{saved}.meta")).unwrap();
    assert!(meta.collections().contains(&"queue_runners"));
    assert_eq!(
        meta.names("trainable_variables"),
        ["table/part_0:0", "table/part_1:0"]
    );
    let g = Graph::new();
    let imported = meta.import(&g).unwrap();
    let op = imported.operations("train_op")[0].name();
    // Restores step 10 and goes on, its queue filled by the runner that came with the graph.
    assert_eq!(train(&g, &op, parted, 20), want);
    let again = meta.import(&g).map(|_| ()).unwrap_err();
    assert_ne!(again.code, Code::Internal, "{again}");
}

#[test]
fn the_saver_that_came_with_a_graph_saves_and_restores() {
    let dir = tempfile::tempdir().unwrap();
    let prefix = dir.path().join("model").to_str().unwrap().to_owned();
    let server = Server::start(ServerConfig::local()).unwrap();
    let g = Graph::new();
    let w = g.variable("w").init(Init::value(7.0f32)).build();
    let saver = downpour::train::Saver::builder(&g).keep(1).build().unwrap();
    MetaGraph::of(&g, Some(&saver))
        .unwrap()
        .write(&prefix)
        .unwrap();
    let h = Graph::new();
    let imported = MetaGraph::read(&prefix).unwrap().import(&h).unwrap();
    let saver = imported.saver.unwrap();
    let w = h.find_variable(w.name()).unwrap();
    let zero = w.assign(&h.constant(0.0f32));
    let session = Session::new(&server, &h).unwrap();
    session.run(&h.initialize_variables()).unwrap();
    let first = saver.save(&session, &prefix, Some(1)).unwrap();
    session.run(&zero).unwrap();
    let second = saver.save(&session, &prefix, Some(2)).unwrap();
    assert!(
        !std::path::Path::new(&format!("{first}.index")).exists(),
        "one is kept"
    );
    assert_eq!(
        read_checkpoint(&second, "w")
            .unwrap()
            .scalar_value::<f32>()
            .unwrap(),
        0.0
    );
    session.run(&h.initialize_variables()).unwrap();
    saver.restore(&session, &second).unwrap();
    assert_eq!(
        session.fetch(&w).unwrap().scalar_value::<f32>().unwrap(),
        0.0
    );
}

#[test]
fn what_is_no_meta_graph_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("junk.meta");
    std::fs::write(&path, b"\xff\xff\xff junk").unwrap();
    let error = MetaGraph::read(path.to_str().unwrap()).unwrap_err();
    assert_eq!(error.code, Code::DataLoss);
    let none = MetaGraph::read("/nowhere/model.meta").unwrap_err();
    assert_eq!(none.code, Code::NotFound);
}

#[test]
fn parts_of_checkpoints_that_were_not_finished_go() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let prefix = at("model").to_str().unwrap().to_owned();
    let g = Graph::new();
    g.variable("w").init(Init::value(1.0f32)).build();
    let saver = downpour::train::Saver::new(&g).unwrap();
    let server = Server::start(ServerConfig::local()).unwrap();
    let session = Session::new(&server, &g).unwrap();
    session.run(&g.initialize_variables()).unwrap();
    // Where the index belongs something else stands: the parts are written and cannot become a checkpoint.
    std::fs::create_dir_all(at("model-1.index").join("occupied")).unwrap();
    assert!(saver.save(&session, &prefix, Some(1)).is_err());
    assert!(!at("model-1_temp").exists());
    // What a chief that was killed has left, and what is not this saver's.
    for name in [
        "model-0_temp",
        "model-x_temp",
        "models-3_temp",
        "other_temp",
    ] {
        std::fs::create_dir(at(name)).unwrap();
        std::fs::write(at(name).join("part-00000-of-00001.index"), b"half").unwrap();
    }
    saver.save(&session, &prefix, Some(2)).unwrap();
    assert!(!at("model-0_temp").exists() && !at("model-2_temp").exists());
    for name in ["model-x_temp", "models-3_temp", "other_temp"] {
        assert!(
            at(name).join("part-00000-of-00001.index").exists(),
            "{name}"
        );
    }
    assert!(at("model-2.index").is_file());
}
