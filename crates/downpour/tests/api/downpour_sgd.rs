//! Downpour SGD on clusters of one process: replicas that die, come late, lag behind.

use downpour::train::shards::{Division, Shards};
use downpour::train::staleness::{Bound, Read, check};
use downpour::train::{
    DownpourSgd, DownpourTraining, GradientDescent, MonitoredSession, Replica, ShardBatches,
    Supervision, global_step,
};
use downpour::{DType, Draws, Graph, Init, LocalCluster, Output, SessionOptions, Tensor};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

const LEASE: Duration = Duration::from_millis(600);

struct Worker {
    x: Output,
    training: DownpourTraining,
    shards: Shards,
}

const EXAMPLES: u64 = 200;
const PORTION: u64 = 20;
const EPOCHS: u64 = 3;

/// `mean` descends to the mean of what the replicas are fed.
fn build(task: usize, settings: &DownpourSgd) -> Worker {
    let g = Graph::new();
    let (step, mean, shards) = g.with_device("/job:ps/task:0", || {
        let mean = g.variable("mean").init(Init::value(0.0f32)).build();
        let division = Division::new(EXAMPLES, PORTION).epochs(EPOCHS);
        let shards = Shards::new(&g, "shards", division).lease(LEASE);
        (global_step(&g), mean, shards)
    });
    g.with_device(&format!("/job:worker/task:{task}"), || {
        let x = g.placeholder("x", DType::Float, [None]);
        let loss = (&*mean - &x).square().mean(());
        let training = settings.minimize(&GradientDescent::new(0.01), &loss, &step);
        Worker {
            x,
            training: training.unwrap(),
            shards,
        }
    })
}

fn open(cluster: &LocalCluster, task: usize, worker: &Worker) -> MonitoredSession {
    let own = format!("/job:worker/task:{task}");
    let options = SessionOptions::new().device_filters(["/job:ps".to_owned(), own]);
    Supervision::new(&cluster.workers()[task], worker.training.graph())
        .chief(task == 0)
        .options(options)
        .patience(Duration::from_secs(60))
        .hook(worker.training.hook())
        .open()
        .unwrap()
}

fn step(replica: &mut Replica, session: &mut MonitoredSession, worker: &Worker) -> Read {
    let x = Tensor::vector(vec![1.0f32, 2.0]);
    replica.step(session, &[(&worker.x, x)]).unwrap().read
}

/// Trains on what the ledger gives, until all is done, or dies after so many steps. What it saw.
fn live(cluster: &LocalCluster, task: usize, dies_after: usize, seen: &[AtomicU64]) {
    let settings = DownpourSgd::new(4, task)
        .fetch_every(2)
        .push_every(3)
        .lease(LEASE);
    let worker = build(task, &settings);
    let mut session = open(cluster, task, &worker);
    let mut replica = worker.training.replica();
    let mut batches = ShardBatches::new(worker.shards.reader(task), 6, 9);
    for taken in 0.. {
        let Some(batch) = batches.next(&mut session, &mut replica).unwrap() else {
            break;
        };
        if taken == dies_after {
            // Without a word: its leases, its portion and what it accrued are left behind.
            return;
        }
        for i in &batch {
            seen[*i].fetch_add(1, Ordering::Relaxed);
        }
        let x = Tensor::vector(batch.into_iter().map(|i| i as f32).collect());
        replica.step(&mut session, &[(&worker.x, x)]).unwrap();
    }
    session.close().unwrap();
}

#[test]
fn whoever_dies_whenever_every_example_of_each_epoch_is_learned_from() {
    for seed in 0..3 {
        let mut draws = Draws::new(seed);
        let cluster = LocalCluster::start(1, 4).unwrap();
        let seen: Vec<AtomicU64> = (0..EXAMPLES).map(|_| AtomicU64::new(0)).collect();
        // Anyone but the last may die, at any batch; some come back.
        let deaths: Vec<usize> = (0..3).map(|_| draws.below(30)).collect();
        let returns: Vec<bool> = (0..3).map(|_| draws.below(2) == 0).collect();
        std::thread::scope(|scope| {
            let (cluster, seen) = (&cluster, &seen);
            for (task, (death, returns)) in deaths.iter().zip(&returns).enumerate() {
                scope.spawn(move || {
                    live(cluster, task, *death, seen);
                    if *returns {
                        live(cluster, task, usize::MAX, seen);
                    }
                });
            }
            scope.spawn(move || live(cluster, 3, usize::MAX, seen));
        });
        let worker = build(3, &DownpourSgd::new(4, 3));
        let mut session = open(&cluster, 3, &worker);
        let ledger = worker.shards.ledger(&session.raw().unwrap()).unwrap();
        let counts = ledger.counts();
        let about = format!("seed {seed}: {deaths:?} {returns:?} {counts:?}");
        assert!(
            ledger.is_over() && ledger.epochs_done() == EPOCHS,
            "{about}"
        );
        let portions = EPOCHS * EXAMPLES / PORTION;
        assert_eq!(counts.completed, portions, "{about}");
        assert_eq!(counts.issued, portions + counts.reissued, "{about}");
        assert!(counts.reissued > 0, "{about}");
        let seen: Vec<u64> = seen.iter().map(|n| n.load(Ordering::Relaxed)).collect();
        assert!(seen.iter().all(|n| *n >= EPOCHS), "{about} {seen:?}");
        // What came more often was in a portion that was handed out again.
        let more = seen.iter().sum::<u64>() - EPOCHS * EXAMPLES;
        assert!(more <= counts.reissued * PORTION, "{about} {seen:?}");
    }
}

/// A model that says in its loss what it was computed from: each replica's steps add one to its own
/// number, and the loss has all numbers as digits.
fn build_telling(task: usize, replicas: usize, settings: &DownpourSgd) -> DownpourTraining {
    let g = Graph::new();
    let (step, steps) = g.with_device("/job:ps/task:0", || {
        let steps = g
            .variable("steps")
            .init(Init::value(vec![0.0f64; replicas]));
        (global_step(&g), steps.build())
    });
    g.with_device(&format!("/job:worker/task:{task}"), || {
        let places: Vec<f64> = (0..replicas as i32).map(|i| DIGIT.powi(i)).collect();
        let mut own = vec![0.0f64; replicas];
        own[task] = 1.0;
        let told = (&*steps * &g.constant(places)).sum(());
        let own = (&*steps * &g.constant(own)).sum(());
        let loss = (told + &own).stop_gradient() - own;
        let training = settings.minimize(&GradientDescent::new(1.0), &loss, &step);
        training.unwrap()
    })
}

const DIGIT: f64 = 1000.0;

/// A step: what its log says, and how many steps of each replica the model had.
type Told = (Read, Vec<u64>);

fn straggle(cluster: &LocalCluster, task: usize, bound: Bound, seed: u64) -> Vec<Told> {
    let settings = DownpourSgd::new(3, task).bound(bound).fetch_every(2);
    let push_every = match bound {
        Bound::Steps(steps) => 1 + steps.min(2),
        Bound::Unlimited => 2,
    };
    let training = build_telling(task, 3, &settings.push_every(push_every));
    let own = format!("/job:worker/task:{task}");
    let options = SessionOptions::new().device_filters(["/job:ps".to_owned(), own]);
    let mut session = Supervision::new(&cluster.workers()[task], training.graph())
        .chief(task == 0)
        .options(options)
        .patience(Duration::from_secs(60))
        .hook(training.hook())
        .open()
        .unwrap();
    let mut replica = training.replica();
    let mut draws = Draws::new(seed * 10 + task as u64);
    let mut log = Vec::new();
    for _ in 0..30 {
        // Each is sometimes slow, the last one mostly.
        if draws.below(3) < task {
            std::thread::sleep(Duration::from_micros(draws.below(3000) as u64));
        }
        let taken = replica.step(&mut session, &[]).unwrap();
        let digit = |i: i32| (taken.loss / DIGIT.powi(i)) as u64 % DIGIT as u64;
        log.push((taken.read, (0..3).map(digit).collect()));
    }
    replica.flush(&mut session).unwrap();
    session.close().unwrap();
    log
}

/// By how many steps the oldest model of all lagged behind the step that was computed with it.
fn lag(logs: &[Vec<Told>]) -> u64 {
    let mut worst = 0;
    for (read, had) in logs.iter().flatten() {
        for (other, log) in logs.iter().enumerate() {
            // One that joins late begins with the slowest.
            let first = log.first().map_or(0, |(read, _)| read.step);
            if read.clocks[other].is_some() {
                worst = worst.max(read.step.saturating_sub(first + had[other]));
            }
        }
    }
    worst
}

#[test]
fn no_step_reads_a_model_older_than_the_bound() {
    let bounds = [0, 2, 5].map(Bound::Steps);
    for (seed, bound) in (1..).zip(bounds.into_iter().chain([Bound::Unlimited])) {
        let cluster = LocalCluster::start(1, 3).unwrap();
        let logs: Vec<Vec<Told>> = std::thread::scope(|scope| {
            let cluster = &cluster;
            let replicas =
                [0, 1, 2].map(|task| scope.spawn(move || straggle(cluster, task, bound, seed)));
            replicas.into_iter().map(|r| r.join().unwrap()).collect()
        });
        let log: Vec<Read> = logs
            .iter()
            .flatten()
            .map(|(read, _)| read.clone())
            .collect();
        assert_eq!(log.len(), 90);
        check(&log, bound).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        // The log may say what it wants: the model itself had these steps.
        if let Bound::Steps(steps) = bound {
            let lag = lag(&logs);
            assert!(lag <= steps, "seed {seed}: {lag} behind, {steps} allowed");
        }
    }
}

#[test]
fn without_a_bound_nobody_waits_and_the_log_shows_it() {
    let cluster = LocalCluster::start(1, 2).unwrap();
    let (begun, has_begun) = mpsc::channel::<()>();
    let (done, is_done) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let cluster = &cluster;
        scope.spawn(move || {
            let worker = build(0, &DownpourSgd::new(2, 0));
            let mut session = open(cluster, 0, &worker);
            let mut replica = worker.training.replica();
            step(&mut replica, &mut session, &worker);
            begun.send(()).unwrap();
            // Stands still while the other goes on.
            is_done.recv().unwrap();
            step(&mut replica, &mut session, &worker);
            replica.flush(&mut session).unwrap();
            let staleness = worker.training.staleness(&session.raw().unwrap()).unwrap();
            assert_eq!((staleness[0].updates, staleness[1].updates), (2, 20));
            // What it had fetched before it stood still lacked the other's steps.
            assert!(staleness[0].worst >= 15, "{staleness:?}");
            session.close().unwrap();
        });
        has_begun.recv().unwrap();
        let worker = build(1, &DownpourSgd::new(2, 1));
        let mut session = open(cluster, 1, &worker);
        let mut replica = worker.training.replica();
        let mut log = Vec::new();
        for _ in 0..20 {
            log.push(step(&mut replica, &mut session, &worker));
        }
        replica.flush(&mut session).unwrap();
        done.send(()).unwrap();
        assert!(check(&log, Bound::Unlimited).is_ok());
        assert!(check(&log, Bound::Steps(2)).is_err());
        session.close().unwrap();
    });
}

#[test]
fn a_dead_replica_holds_nobody_up_for_longer_than_its_lease() {
    let cluster = LocalCluster::start(1, 2).unwrap();
    let settings = |task| {
        DownpourSgd::new(2, task)
            .bound(Bound::Steps(1))
            .lease(LEASE)
    };
    let (died, is_dead) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let cluster = &cluster;
        scope.spawn(move || {
            let worker = build(0, &settings(0));
            let mut session = open(cluster, 0, &worker);
            let mut replica = worker.training.replica();
            step(&mut replica, &mut session, &worker);
            is_dead.recv().unwrap();
            let mut last = None;
            for _ in 0..20 {
                last = Some(step(&mut replica, &mut session, &worker));
            }
            // Given up: its clock counts no more.
            assert_eq!(last.unwrap().clocks[1], None);
            session.close().unwrap();
        });
        let worker = build(1, &settings(1));
        let mut session = open(cluster, 1, &worker);
        let mut replica = worker.training.replica();
        step(&mut replica, &mut session, &worker);
        drop((replica, session));
        died.send(()).unwrap();
    });
}

#[test]
fn one_replica_warms_the_model_up_and_one_that_comes_late_takes_part() {
    const WARM: u64 = 25;
    let cluster = LocalCluster::start(1, 2).unwrap();
    let settings = |task| {
        DownpourSgd::new(2, task)
            .warm_start(WARM)
            .bound(Bound::Steps(8))
    };
    let others = AtomicUsize::new(0);
    let (begun, has_begun) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let (cluster, others) = (&cluster, &others);
        scope.spawn(move || {
            let worker = build(0, &settings(0));
            let mut session = open(cluster, 0, &worker);
            let mut replica = worker.training.replica();
            step(&mut replica, &mut session, &worker);
            begun.send(()).unwrap();
            while others.load(Ordering::Relaxed) < 10 {
                step(&mut replica, &mut session, &worker);
            }
            session.close().unwrap();
        });
        has_begun.recv().unwrap();
        let worker = build(1, &settings(1));
        let mut session = open(cluster, 1, &worker);
        let mut replica = worker.training.replica();
        let first = step(&mut replica, &mut session, &worker);
        assert!(first.version >= WARM, "{first:?}");
        // It joins the slowest rather than begin at 0, which all would have to wait for.
        assert!(first.step + 10 >= WARM, "{first:?}");
        for _ in 0..20 {
            step(&mut replica, &mut session, &worker);
            others.fetch_add(1, Ordering::Relaxed);
        }
        replica.flush(&mut session).unwrap();
        let staleness = worker.training.staleness(&session.raw().unwrap()).unwrap();
        assert_eq!(staleness[1].updates, 21);
        session.close().unwrap();
    });
}
