//! Synchronous training: means of gradients, backups, workers that leave or fall silent.

use downpour::train::hooks::StopAtStep;
use downpour::train::{
    CoordinatedElection, Election, GradientDescent, MonitoredSession, SharedElection, Supervision,
    SyncReplicas, SyncTraining, global_step,
};
use downpour::{DType, Graph, Init, LocalCluster, Output, SessionOptions};
use std::time::{Duration, Instant};

struct Worker {
    x: Output,
    weight: Output,
    training: SyncTraining,
}

/// `weight` descends along the mean of what the workers are fed.
fn build(task: usize, settings: &SyncReplicas) -> Worker {
    let g = Graph::new();
    let (step, weight) = g.with_device("/job:ps/task:0", || {
        let weight = g.variable("weight").init(Init::value(0.0f32)).build();
        (global_step(&g), weight)
    });
    g.with_device(&format!("/job:worker/task:{task}"), || {
        let x = g.placeholder("x", DType::Float, ());
        let loss = (&*weight - &x).square();
        let training = settings.minimize(&GradientDescent::new(0.1), &loss, &step);
        Worker {
            x,
            weight: weight.value().clone(),
            training: training.unwrap(),
        }
    })
}

fn open(cluster: &LocalCluster, task: usize, worker: &Worker, last: i64) -> MonitoredSession {
    let own = format!("/job:worker/task:{task}");
    let options = SessionOptions::new().device_filters(["/job:ps".to_owned(), own]);
    Supervision::new(&cluster.workers()[task], worker.training.graph())
        .chief(task == 0)
        .options(options)
        .patience(Duration::from_secs(30))
        .hook(worker.training.hook(task == 0))
        .hook(StopAtStep::new(last))
        .open()
        .unwrap()
}

fn step(session: &mut MonitoredSession, worker: &Worker, value: f32) {
    let step = session.step().feed(&worker.x, value);
    step.target(worker.training.train()).run().unwrap();
}

#[test]
fn every_update_is_the_mean_of_all_workers() {
    let cluster = LocalCluster::start(1, 3).unwrap();
    let results: Vec<f32> = std::thread::scope(|scope| {
        let cluster = &cluster;
        let threads: Vec<_> = (0..3)
            .map(|task| {
                scope.spawn(move || {
                    let worker = build(task, &SyncReplicas::new(3, task));
                    let mut session = open(cluster, task, &worker, 20);
                    while !session.should_stop() {
                        step(&mut session, &worker, task as f32);
                    }
                    let weight = session.raw().unwrap().fetch(&worker.weight).unwrap();
                    session.close().unwrap();
                    weight.scalar_value::<f32>().unwrap()
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    // The mean of the gradients 2 (w - x) for x = 0, 1, 2, twenty times.
    let mut want = 0.0f32;
    for _ in 0..20 {
        want -= 0.1 * 2.0 * (want - 1.0);
    }
    for got in results {
        assert!((got - want).abs() < 1e-5, "{got} instead of {want}");
    }
}

#[test]
fn a_backup_lets_training_go_on_without_a_stuck_worker() {
    let cluster = LocalCluster::start(1, 3).unwrap();
    std::thread::scope(|scope| {
        let cluster = &cluster;
        for task in 0..3 {
            scope.spawn(move || {
                let settings = SyncReplicas::new(3, task).backups(1);
                let worker = build(task, &settings);
                let mut session = open(cluster, task, &worker, 40);
                let mut done = 0;
                while !session.should_stop() {
                    step(&mut session, &worker, task as f32);
                    done += 1;
                    if task == 2 && done == 3 {
                        // Stuck: neither works nor says that it leaves.
                        return;
                    }
                }
                session.close().unwrap();
            });
        }
    });
}

#[test]
fn a_silent_worker_is_named_and_not_waited_for_for_ever() {
    let cluster = LocalCluster::start(1, 2).unwrap();
    let settings = |task| {
        SyncReplicas::new(2, task)
            .patience(Duration::from_millis(700))
            .lease(Duration::from_secs(4))
    };
    std::thread::scope(|scope| {
        let cluster = &cluster;
        scope.spawn(move || {
            let worker = build(1, &settings(1));
            let mut session = open(cluster, 1, &worker, 1000);
            for _ in 0..3 {
                step(&mut session, &worker, 1.0);
            }
            // Gone without a word.
        });
        let worker = build(0, &settings(0));
        let missing = worker.training.missing();
        let mut session = open(cluster, 0, &worker, 30);
        let watch = scope.spawn(move || {
            // On a busy machine the other may be late too.
            let (begin, mut seen) = (Instant::now(), Vec::new());
            while seen != ["/job:worker/task:1"] && begin.elapsed() < Duration::from_secs(60) {
                seen = missing.changed_from(&seen, Duration::from_secs(60));
            }
            seen
        });
        while !session.should_stop() {
            step(&mut session, &worker, 0.0);
        }
        assert_eq!(watch.join().unwrap(), ["/job:worker/task:1"]);
        session.close().unwrap();
    });
}

#[test]
fn a_worker_whose_data_ends_leaves_and_the_rest_go_on() {
    let cluster = LocalCluster::start(1, 2).unwrap();
    std::thread::scope(|scope| {
        let cluster = &cluster;
        for (task, steps) in [(0, usize::MAX), (1, 4)] {
            scope.spawn(move || {
                let worker = build(task, &SyncReplicas::new(2, task));
                let mut session = open(cluster, task, &worker, 25);
                let mut done = 0;
                while !session.should_stop() && done < steps {
                    step(&mut session, &worker, 1.0);
                    done += 1;
                }
                session.close().unwrap();
            });
        }
    });
}

/// As [`open`], with an elected chief.
fn open_elected(
    cluster: &LocalCluster,
    task: usize,
    worker: &Worker,
    last: i64,
    service: &str,
) -> (MonitoredSession, SharedElection) {
    let own = format!("/job:worker/task:{task}");
    let lease = Duration::from_secs(1);
    let election = CoordinatedElection::join(&service.parse().unwrap(), &own, lease).unwrap();
    let election = SharedElection::new(election);
    let options = SessionOptions::new().device_filters(["/job:ps".to_owned(), own]);
    let session = Supervision::new(&cluster.workers()[task], worker.training.graph())
        .election(election.clone())
        .options(options)
        .patience(Duration::from_secs(60))
        .hook(worker.training.elected_hook(&election))
        .hook(StopAtStep::new(last))
        .open()
        .unwrap();
    (session, election)
}

#[test]
fn when_the_elected_chief_is_lost_another_leads_and_no_step_is_taken_back() {
    let dir = tempfile::tempdir().unwrap();
    let service = format!("file://{}", dir.path().display());
    let cluster = LocalCluster::start(1, 3).unwrap();
    let first_chief = std::sync::Mutex::new(None);
    let results: Vec<Option<f32>> = std::thread::scope(|scope| {
        let (cluster, service, first_chief) = (&cluster, &service, &first_chief);
        let threads: Vec<_> = (0..3)
            .map(|task| {
                scope.spawn(move || {
                    // Its server lives on in this process: it is waited for until this lease ends.
                    let settings = SyncReplicas::new(3, task).lease(Duration::from_secs(4));
                    let worker = build(task, &settings);
                    let (mut session, mut election) =
                        open_elected(cluster, task, &worker, 30, service);
                    let mut last = 0;
                    while !session.should_stop() {
                        step(&mut session, &worker, task as f32);
                        let now = session.global_step().unwrap();
                        assert!(now >= last, "from step {last} back to {now}");
                        last = now;
                        let mut first = first_chief.lock().unwrap();
                        if now >= 10 && first.is_none() && election.is_chief() {
                            *first = Some(task);
                            // Lost without a word.
                            return None;
                        }
                    }
                    let weight = session.raw().unwrap().fetch(&worker.weight).unwrap();
                    session.close().unwrap();
                    Some(weight.scalar_value::<f32>().unwrap())
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    let lost = first_chief.lock().unwrap().unwrap();
    assert_eq!(results.iter().filter(|r| r.is_none()).count(), 1);
    // The others' mean, more or less.
    let left: Vec<usize> = (0..3).filter(|task| *task != lost).collect();
    let (low, high) = (left[0] as f32, left[1] as f32);
    for weight in results.into_iter().flatten() {
        let range = low.min(1.0)..=high.max(1.0);
        assert!(range.contains(&weight), "{weight} with {left:?} left");
    }
}
