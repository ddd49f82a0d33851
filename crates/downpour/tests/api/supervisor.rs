//! TensorFlow's supervisor: services beside training, also across a loss.

use downpour::train::hooks::StopAtStep;
use downpour::train::{
    GradientDescent, Minimize, Supervisor, SupervisorBuilder, global_step, latest_checkpoint,
    read_checkpoint,
};
use downpour::{
    Code, Graph, Init, LocalCluster, Operation, Server, ServerConfig, SessionOptions, Status,
    Tensor, summary,
};
use downpour_formats::LocalStorage;
use downpour_formats::event::EventReader;
use downpour_wire::proto::event::What;
use std::collections::BTreeSet;
use std::time::Duration;

const SHORT: Option<Duration> = Some(Duration::from_millis(10));

fn model() -> (Graph, Operation) {
    let g = Graph::new();
    let (step, w) = g.with_device("/job:ps/task:0", || {
        (
            global_step(&g),
            g.variable("w").init(Init::value(4.0f32)).build(),
        )
    });
    let loss = w.square();
    summary::scalar("loss", &loss);
    let descent = GradientDescent::new(0.01);
    (g.clone(), descent.minimize(&loss, Some(&step)).unwrap())
}

fn on(cluster: &LocalCluster, task: usize, g: &Graph) -> SupervisorBuilder {
    let own = format!("/job:worker/task:{task}");
    Supervisor::builder(&cluster.workers()[task], g)
        .chief(task == 0)
        .options(SessionOptions::new().device_filters(["/job:ps".to_owned(), own]))
        .patience(Duration::from_secs(60))
        .hook(StopAtStep::new(300))
}

#[test]
fn services_save_and_summarize_beside_training_and_survive_a_loss() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let mut cluster = LocalCluster::start(1, 1).unwrap();
    let (g, train) = model();
    let supervisor = on(&cluster, 0, &g)
        .logdir(path)
        .save_model_every(SHORT)
        .save_summaries_every(SHORT)
        .build()
        .unwrap();
    let mut session = supervisor.managed_session().unwrap();
    let again = supervisor.managed_session().map(|_| ()).unwrap_err();
    assert_eq!(again.code, Code::FailedPrecondition);
    let mut runs = 0;
    while !session.should_stop() {
        session.step().target(&train).run().unwrap();
        runs += 1;
        std::thread::sleep(Duration::from_millis(1));
        if runs == 100 {
            cluster.restart_ps(0).unwrap();
        }
    }
    let own = summary_of(&mut session);
    supervisor.summary_computed(&own, None).unwrap();
    assert!(session.losses() > 0);
    session.close().unwrap();
    assert!(supervisor.should_stop(), "threads go on");
    let saved = latest_checkpoint(path).unwrap().unwrap();
    let step = read_checkpoint(&saved, "global_step").unwrap();
    assert_eq!(step.scalar_value::<i64>().unwrap(), 300);
    let events = supervisor.events().unwrap().path();
    let mut reader = EventReader::open(&LocalStorage::new(), &events).unwrap();
    let (mut tags, mut starts, mut checkpoints) = (BTreeSet::new(), 0, 0);
    while let Some(event) = reader.read().unwrap() {
        match event.what {
            Some(What::Summary(summary)) => {
                tags.extend(summary.value.into_iter().map(|value| value.tag));
            }
            Some(What::SessionLog(log)) if log.checkpoint_path.is_empty() => starts += 1,
            Some(What::SessionLog(_)) => checkpoints += 1,
            _ => {}
        }
    }
    assert!(
        tags.contains("loss") && tags.contains("global_step/sec"),
        "{tags:?}"
    );
    assert!(starts >= 2 && checkpoints >= 2, "{starts} {checkpoints}");
}

/// The graph's own summaries, computed by a step of the program's.
fn summary_of(session: &mut downpour::train::MonitoredSession) -> Tensor {
    let raw = session.raw().unwrap();
    let all = raw.graph().collection("summaries");
    raw.fetch(&all[0]).unwrap()
}

#[test]
fn another_worker_waits_for_the_chief_and_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let cluster = LocalCluster::start(1, 2).unwrap();
    std::thread::scope(|scope| {
        let cluster = &cluster;
        for task in [1, 0] {
            scope.spawn(move || {
                let (g, train) = model();
                let supervisor = on(cluster, task, &g).logdir(path).build().unwrap();
                let session = supervisor.managed_session().unwrap();
                if task == 1 {
                    let summary = Tensor::scalar(0i64);
                    let refused = supervisor.summary_computed(&summary, Some(1)).unwrap_err();
                    assert!(refused.message.contains("requires a summary writer"));
                }
                session
                    .train(|session| session.step().target(&train).run())
                    .unwrap();
            });
        }
    });
    let files = std::fs::read_dir(path).unwrap();
    let names = files.map(|f| f.unwrap().file_name().into_string().unwrap());
    assert_eq!(names.filter(|name| name.contains("tfevents")).count(), 1);
}

#[test]
fn variables_without_a_device_are_refused_where_there_are_several_workers() {
    let server = Server::start(ServerConfig::local()).unwrap();
    let g = Graph::new();
    g.variable("lost").init(Init::value(1.0f32)).build();
    let refused = Supervisor::builder(&server, &g).chief(false).build();
    let error = refused.map(|_| ()).unwrap_err();
    assert_eq!(
        error.message,
        "When using replicas, all Variables must have their device set: lost"
    );
}

#[test]
fn an_error_in_a_loop_ends_training() {
    let server = Server::start(ServerConfig::local()).unwrap();
    let g = Graph::new();
    let count = global_step(&g).assign_add(&g.constant(1i64));
    let supervisor = Supervisor::builder(&server, &g).build().unwrap();
    supervisor
        .loop_every(Duration::from_millis(1), |_| {
            Err(Status::data_loss("the watcher has seen enough"))
        })
        .unwrap();
    let session = supervisor.managed_session();
    let ended = session.and_then(|s| s.train(|s| s.step().target(&count).run()));
    assert_eq!(ended.unwrap_err().message, "the watcher has seen enough");
}
