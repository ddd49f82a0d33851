//! Work around steps: tracing, waiting, listening to saves, stopping after so many steps.

use downpour::train::hooks::{
    Checkpoints, LogTensors, Profiler, SaveListener, StepCounter, StopAtStep, WaitForStep,
};
use downpour::train::{Events, Every, Saver, Supervision, global_step};
use downpour::{
    Code, DType, Graph, Init, LocalCluster, Operation, Result, Server, ServerConfig, Session,
    SessionOptions, Tensor, check_gradients,
};
use downpour_formats::LocalStorage;
use downpour_formats::event::EventReader;
use downpour_wire::proto::event::What;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A graph that only counts steps.
fn counting() -> (Graph, Operation) {
    let g = Graph::new();
    let count = global_step(&g).assign_add(&g.constant(1i64));
    (g, count)
}

#[test]
fn a_profiled_step_leaves_a_timeline_and_statistics_of_all_tasks() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let events = Events::create(path).unwrap();
    let cluster = LocalCluster::start(1, 1).unwrap();
    let g = Graph::new();
    let step = g.with_device("/job:ps/task:0", || global_step(&g));
    let count = g.with_device("/job:worker/task:0", || {
        step.assign_add(&(g.constant(3i64) - g.placeholder("two", DType::Int64, ())))
    });
    let two = g.output("two:0").unwrap();
    let mut session = Supervision::new(&cluster.workers()[0], &g)
        .hook(Profiler::new(path, Every::Steps(3)).events(events.clone()))
        .hook(StepCounter::recording(Every::Steps(2), events.clone()))
        .hook(LogTensors::new([("step", step.value())], Every::Steps(2)).at_end())
        .hook(StopAtStep::new(8))
        .open()
        .unwrap();
    while !session.should_stop() {
        session
            .step()
            .feed(&two, 2i64)
            .target(&count)
            .run()
            .unwrap();
    }
    session.close().unwrap();
    let mut found: Vec<String> = std::fs::read_dir(path)
        .unwrap()
        .map(|f| f.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with("timeline-"))
        .collect();
    found.sort();
    // Whether a step's fetch sees the count of before or after it is not said.
    assert_eq!(found.len(), 2, "{found:?}");
    let text = std::fs::read_to_string(dir.path().join(&found[0])).unwrap();
    for part in ["traceEvents", "ps", "worker", "AssignAddVariableOp"] {
        assert!(text.contains(part), "no {part} in {text}");
    }
    events.flush().unwrap();
    let mut reader = EventReader::open(&LocalStorage::new(), &events.path()).unwrap();
    let (mut tags, mut speeds) = (Vec::new(), 0);
    while let Some(event) = reader.read().unwrap() {
        match event.what {
            Some(What::TaggedRunMetadata(run)) => {
                assert!(!run.run_metadata.is_empty());
                tags.push(run.tag);
            }
            Some(What::Summary(summary)) => speeds += summary.value.len(),
            _ => {}
        }
    }
    let named = |tag: &String| tag.replace("step_", "timeline-") + ".json";
    assert_eq!(tags.iter().map(named).collect::<Vec<_>>(), found);
    assert!(speeds > 0);
}

#[test]
fn a_worker_that_waits_for_a_step_begins_after_it() {
    let cluster = LocalCluster::start(1, 2).unwrap();
    let build = |task: usize| {
        let g = Graph::new();
        let step = g.with_device("/job:ps/task:0", || global_step(&g));
        let count = step.assign_add(&g.constant(1i64));
        let own = format!("/job:worker/task:{task}");
        let options = SessionOptions::new().device_filters(["/job:ps".to_owned(), own]);
        let supervision = Supervision::new(&cluster.workers()[task], &g)
            .options(options)
            .chief(task == 0)
            .patience(Duration::from_secs(60));
        (supervision, count, step)
    };
    std::thread::scope(|scope| {
        let late = scope.spawn(|| {
            let (supervision, _, step) = build(1);
            let mut session = supervision.hook(WaitForStep::new(20)).open().unwrap();
            let seen = session.step().fetch(&step).unwrap();
            assert!(seen.scalar_value::<i64>().unwrap() >= 20);
        });
        let (supervision, count, _) = build(0);
        let mut session = supervision.hook(StopAtStep::new(20)).open().unwrap();
        while !session.should_stop() {
            session.step().target(&count).run().unwrap();
        }
        late.join().unwrap();
    });
}

/// Writes down what it hears; asks to stop at a step.
struct Listener(Arc<Mutex<Vec<String>>>, i64);

impl Listener {
    fn hears(&self, what: &str, step: i64) {
        self.0.lock().unwrap().push(format!("{what} {step}"));
    }
}

impl SaveListener for Listener {
    fn before_save(&mut self, _: &Arc<Session>, step: i64) -> Result<()> {
        self.hears("before", step);
        Ok(())
    }

    fn after_save(&mut self, _: &Arc<Session>, step: i64, path: &str) -> Result<bool> {
        assert!(std::path::Path::new(&format!("{path}.index")).exists());
        self.hears("after", step);
        Ok(step == self.1)
    }

    fn end(&mut self, _: &Arc<Session>, step: i64) -> Result<()> {
        self.hears("end", step);
        Ok(())
    }
}

#[test]
fn listeners_hear_of_every_save_and_may_stop_training() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(ServerConfig::local()).unwrap();
    let (g, count) = counting();
    let heard: Arc<Mutex<Vec<String>>> = Arc::default();
    let mut session = Supervision::new(&server, &g)
        .checkpoints(dir.path().to_str().unwrap(), Every::Steps(2))
        .listener(Listener(heard.clone(), 4))
        .open()
        .unwrap();
    while !session.should_stop() {
        session.step().target(&count).run().unwrap();
    }
    session.close().unwrap();
    let expected = [
        "before 0", "after 0", "before 2", "after 2", "before 4", "after 4", "end 4",
    ];
    assert_eq!(*heard.lock().unwrap(), expected);
}

#[test]
fn saves_in_the_background_are_told_when_they_are_done() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let server = Server::start(ServerConfig::local()).unwrap();
    let (g, count) = counting();
    let heard: Arc<Mutex<Vec<String>>> = Arc::default();
    let saver = Arc::new(Saver::new(&g).unwrap());
    let events = Events::create(path).unwrap();
    let hook = Checkpoints::new(saver, path, Every::Steps(5))
        .in_background()
        .events(events.clone())
        .listener(Listener(heard.clone(), -1));
    let mut session = Supervision::new(&server, &g)
        .hook(hook)
        .hook(StopAtStep::after(5))
        .open()
        .unwrap();
    while !session.should_stop() {
        session.step().target(&count).run().unwrap();
    }
    session.close().unwrap();
    let expected = ["before 0", "after 0", "before 5", "after 5", "end 5"];
    assert_eq!(*heard.lock().unwrap(), expected);
    events.flush().unwrap();
    let mut reader = EventReader::open(&LocalStorage::new(), &events.path()).unwrap();
    let mut saved = Vec::new();
    while let Some(event) = reader.read().unwrap() {
        if let Some(What::SessionLog(_)) = event.what {
            saved.push(event.step);
        }
    }
    assert_eq!(saved, [0, 5]);
}

#[test]
fn a_session_evaluates_what_a_check_of_gradients_asks_for() {
    let server = Server::start(ServerConfig::local()).unwrap();
    let g = Graph::new();
    let x = g.placeholder("x", DType::Double, [Some(2)]);
    let w = g.variable("w").init(Init::value([2.0f64, 5.0])).build();
    let right = (&x * &x * &*w).sin();
    // Rounding hides the slope: the builder says 1, small steps say otherwise.
    let wrong = g.constant([1.0f64, 1.0]) * x.stop_gradient();
    let session = Session::new(&server, &g).unwrap();
    session.run(&g.initialize_variables()).unwrap();
    let at = [(x.clone(), Tensor::vector(vec![0.3, -0.7]))];
    let mut evaluator = &session;
    let found = check_gradients(&mut evaluator, &right, &x, &at, 1e-4).unwrap();
    assert!(found.max_error < 1e-5, "{found:?}");
    let found = check_gradients(&mut evaluator, &wrong, &x, &at, 1e-4).unwrap();
    assert!((found.max_error - 1.0).abs() < 1e-6, "{found:?}");
    let wrong_feed = [(x.clone(), Tensor::vector(vec![1.0f32]))];
    let error = check_gradients(&mut evaluator, &right, &x, &wrong_feed, 1e-4).unwrap_err();
    assert_eq!(error.code, Code::InvalidArgument);
}
