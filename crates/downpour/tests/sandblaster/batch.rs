//! The batch's gradient while replicas die: every example counts once.

use crate::problem::{Model, PORTIONS, assert_close};
use crate::tasks::{Hosts, Task, alone, spawn};
use downpour::train::sandblaster::End;
use downpour::{Draws, LocalCluster, Result, Run, Status, Target};
use std::os::unix::process::ExitStatusExt as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

const REPLICAS: usize = 4;

/// How many replicas may be killed for each iteration that has ended. Without a bound a busy machine, which starts replicas
/// more slowly than they are killed, would end none.
const KILLS_AN_ITERATION: u64 = 3;

/// Lets replicas live and die until told to stop; how many have died. `iterations` have begun.
fn live_and_die(hosts: &Hosts, seed: u64, iterations: &AtomicU64, stop: &AtomicBool) -> u64 {
    let mut draws = Draws::new(seed);
    let mut lives = 0;
    let mut spawn_next = |worker: usize| {
        lives += 1;
        spawn(&format!("replica {}", seed * 1000 + lives), hosts, worker)
    };
    let mut replicas: Vec<Task> = (1..=REPLICAS).map(&mut spawn_next).collect();
    let mut deaths = 0;
    while !stop.load(Relaxed) {
        std::thread::sleep(Duration::from_millis(20 + draws.below(60) as u64));
        let is_allowed = deaths < KILLS_AN_ITERATION * iterations.load(Relaxed);
        if is_allowed && draws.below(20) == 0 {
            replicas[draws.below(REPLICAS)].0.kill().unwrap();
        }
        for (i, replica) in replicas.iter_mut().enumerate() {
            let Some(ended) = replica.0.try_wait().unwrap() else {
                continue;
            };
            // Whoever is not killed ends well, when the coordinator has.
            assert!(
                ended.success() || ended.signal().is_some(),
                "a replica failed: {ended}"
            );
            if !ended.success() && !stop.load(Relaxed) {
                deaths += 1;
                *replica = spawn_next(i + 1);
            }
        }
    }
    deaths
}

/// Ends the killing, also when the test fails.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Minimizes while replicas die, and looks at each iteration's gradient.
fn counts_every_example_once(seed: u64) {
    let hosts = Hosts::new(2, 1 + REPLICAS);
    let _ps = [hosts.start("ps", 0), hosts.start("ps", 1)];
    let worker = hosts.start("worker", 0);
    let model = Model::new(0);
    let (iterations, stop) = (AtomicU64::new(1), AtomicBool::new(false));
    let (outcome, deaths) = std::thread::scope(|scope| {
        let stops = Stops(&stop);
        let killer = scope.spawn(|| live_and_die(&hosts, seed, &iterations, &stop));
        let coordinator = model.plan.coordinator().options(alone(0));
        let outcome = coordinator.observe(|progress, session| {
            iterations.store(progress.iteration + 2, Relaxed);
            let parameters = model.parameters(session)?;
            let (value, gradient) = model.data.whole(&parameters);
            let at = format!("iteration {}", progress.iteration);
            assert_close(&[progress.value], &[value], 1e-12, &at);
            assert_close(&model.gradient(session)?, &gradient, 1e-12, &at);
            // On both servers, and not once more.
            assert_eq!(
                progress.added,
                progress.evaluations * 2 * PORTIONS as u64,
                "{at}"
            );
            Ok(())
        });
        let outcome = outcome.run(&worker);
        drop(stops);
        (outcome, killer.join().unwrap())
    });
    let outcome = outcome.unwrap();
    println!("{deaths} deaths; {outcome:?}");
    assert!(deaths >= 3, "only {deaths} replicas died");
    assert!(outcome.progress.handed > outcome.progress.evaluations * PORTIONS as u64);
    assert_eq!(outcome.end, End::SmallGradient, "{outcome:?}");
}

#[test]
fn every_example_counts_once_whoever_dies() {
    counts_every_example_once(1);
}

#[test]
fn every_example_counts_once_whoever_else_dies() {
    counts_every_example_once(2);
}

/// Takes a portion, brings its gradient to the first server only, and is gone.
fn brings_half(target: Target, iterations: &AtomicU64) -> Result<()> {
    let model = Model::new(1);
    let graph = model.x.graph();
    let session = alone(1).open(target.clone(), graph)?;
    let put = graph.operations().into_iter().find(|operation| {
        let is_put = operation.op() == "QueueEnqueueV2";
        is_put && operation.inputs()[0].name().contains("gradients_0")
    });
    let put = put.expect("the first server has a queue of gradients");
    let replica = model.plan.replica(1).options(alone(1));
    replica.work(target, |portion, run| {
        if iterations.load(Relaxed) < 3 {
            return model.feed(portion, run);
        }
        let evaluation = graph.find_variable("Sandblaster/current_0")?;
        let evaluation = session.fetch(evaluation.value())?.scalar_value::<i64>();
        let evaluation = evaluation.map_err(|e| Status::internal(e.to_string()))?;
        let mut half = Run::new();
        model.feed(portion, &mut half)?;
        let element = put.inputs();
        for (part, value) in element[1..].iter().zip([evaluation, portion as i64, 1]) {
            half.feed(part, value);
        }
        half.target(&put);
        session.execute(&half)?;
        Err(Status::out_of_range("gone"))
    })?;
    Ok(())
}

#[test]
fn a_portion_that_one_server_lacks_is_computed_again() {
    let cluster = LocalCluster::start(2, 3).unwrap();
    let model = Model::new(0);
    let iterations = AtomicU64::new(0);
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| {
            brings_half(Target::from(&cluster.workers()[1]), &iterations).unwrap();
            let model = Model::new(2);
            let replica = model.plan.replica(2).options(alone(2));
            let replica = replica.patience(Duration::from_secs(40));
            replica.work(&cluster.workers()[2], |portion, run| {
                model.feed(portion, run)
            })
        });
        let coordinator = model.plan.coordinator().options(alone(0));
        // Without the cure: until nobody has brought anything for so long.
        let coordinator = coordinator.patience(Duration::from_secs(20));
        let coordinator = coordinator.observe(|progress, _| {
            iterations.store(progress.iteration, Relaxed);
            Ok(())
        });
        coordinator.run(&cluster.workers()[0])
    });
    assert_eq!(outcome.unwrap().end, End::SmallGradient);
}
