//! A coordinator that is killed, and servers that forget: the minimization goes on where it was.

use crate::problem::{Model, assert_close};
use crate::tasks::{Hosts, alone, spawn};
use downpour::train::sandblaster::{End, Method, Outcome, Sandblaster};
use downpour::{DType, Draws, Graph, Init, LocalCluster, Output, Session, Status};
use std::cell::RefCell;
use std::io::{BufRead as _, BufReader};
use std::time::Duration;

/// Where a minimization was after an iteration.
#[derive(Debug)]
struct Place {
    iteration: u64,
    evaluations: u64,
    /// The gradient's largest element.
    largest: f64,
    parameters: Vec<f64>,
}

impl Place {
    /// What a coordinator of [`crate::tasks`] says, in a line that may begin with the harness's words.
    fn read(line: &str) -> Option<Place> {
        let (_, said) = line.split_once("at ")?;
        let mut words = said.splitn(4, ' ');
        Some(Place {
            iteration: words.next()?.parse().ok()?,
            evaluations: words.next()?.parse().ok()?,
            largest: words.next()?.parse().ok()?,
            parameters: words
                .next()?
                .trim_matches(['[', ']'])
                .split(", ")
                .map(|number| number.parse().unwrap())
                .collect(),
        })
    }
}

/// The way to the minimum without any trouble, from the first point on.
fn undisturbed() -> Vec<Place> {
    let cluster = LocalCluster::start(2, 2).unwrap();
    let model = Model::new(0);
    std::thread::scope(|scope| {
        let replica = scope.spawn(|| {
            let model = Model::new(1);
            let replica = model.plan.replica(1).options(alone(1));
            replica.work(&cluster.workers()[1], |portion, run| {
                model.feed(portion, run)
            })
        });
        let mut way = Vec::new();
        let coordinator = model.plan.coordinator().options(alone(0));
        let coordinator = coordinator.observe(|progress, session| {
            way.push(Place {
                iteration: progress.iteration,
                evaluations: progress.evaluations,
                largest: progress.largest,
                parameters: model.parameters(session)?,
            });
            Ok(())
        });
        coordinator.run(&cluster.workers()[0]).unwrap();
        let worked = replica.join().unwrap().unwrap();
        assert!(worked.portions > 0 && worked.losses == 0, "{worked:?}");
        let (_, gradient) = model.data.whole(&way.last().unwrap().parameters);
        assert!(gradient.iter().all(|g| g.abs() < 1e-5), "{gradient:?}");
        way
    })
}

/// Coordinators in turn, each killed soon after it has said where it is; the last one may end. What
/// all have said, and how many were killed.
fn mortal_coordinators(hosts: &Hosts, seed: u64) -> (Vec<Place>, u32) {
    let mut draws = Draws::new(seed);
    let (mut said, mut deaths) = (Vec::new(), 0);
    loop {
        let mut child = spawn("coordinator", hosts, 2);
        let lives = 1 + draws.below(3);
        let kill_after = Duration::from_micros(draws.below(60_000) as u64);
        let mut heard = 0;
        let mut ended = false;
        for line in BufReader::new(child.0.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            ended |= line.contains("end SmallGradient");
            let Some(place) = Place::read(&line) else {
                continue;
            };
            said.push(place);
            heard += 1;
            if heard == lives && deaths < 4 {
                std::thread::sleep(kill_after);
                child.0.kill().unwrap();
                deaths += 1;
                break;
            }
        }
        let status = child.0.wait().unwrap();
        if ended {
            return (said, deaths);
        }
        assert!(!status.success() && heard > 0, "{status}, {said:?}");
    }
}

#[test]
fn a_killed_coordinator_goes_on_with_its_iteration() {
    let expected = undisturbed();
    let hosts = Hosts::new(2, 3);
    let _ps = [hosts.start("ps", 0), hosts.start("ps", 1)];
    let workers = [hosts.start("worker", 0), hosts.start("worker", 1)];
    std::thread::scope(|scope| {
        let replicas: Vec<_> = workers
            .iter()
            .enumerate()
            .map(|(i, server)| {
                scope.spawn(move || {
                    let model = Model::new(i);
                    let replica = model.plan.replica(i).options(alone(i));
                    replica.work(server, |portion, run| {
                        // An evaluation takes a while, so that most deaths are in the middle of one.
                        std::thread::sleep(Duration::from_millis(1));
                        model.feed(portion, run)
                    })
                })
            })
            .collect();
        let (said, deaths) = mortal_coordinators(&hosts, 7);
        assert!(deaths >= 3, "{deaths} deaths, {said:?}");
        // Iterations only ever go up: the one under way at a death is done once.
        let order: Vec<u64> = said.iter().map(|place| place.iteration).collect();
        assert!(order.windows(2).all(|w| w[0] < w[1]), "{order:?}");
        // Gradients are added in another order each time; near the minimum that decides.
        for place in said.iter().filter(|place| place.largest > 1e-4) {
            let wanted = &expected[place.iteration as usize];
            let at = format!("iteration {}", place.iteration);
            // Not one more: the line search goes on where it was, and does not begin again.
            assert_eq!(place.evaluations, wanted.evaluations, "{at}");
            assert_close(&place.parameters, &wanted.parameters, 1e-8, &at);
        }
        let (last, minimum) = (said.last().unwrap(), expected.last().unwrap());
        assert!(last.iteration.abs_diff(minimum.iteration) <= 3, "{last:?}");
        assert_close(&last.parameters, &minimum.parameters, 1e-5, "the minimum");
        for replica in replicas {
            let worked = replica.join().unwrap().unwrap();
            assert_eq!(worked.losses, 0);
        }
    });
}

#[test]
fn a_server_that_forgets_gets_the_last_checkpoint_and_it_goes_on() {
    let expected = undisturbed();
    let dir = tempfile::tempdir().unwrap();
    let cluster = std::sync::RwLock::new(LocalCluster::start(2, 2).unwrap());
    let targets = [0, 1].map(|i| downpour::Target::from(&cluster.read().unwrap().workers()[i]));
    let model = Model::new(0);
    let last = RefCell::new((Vec::new(), Vec::new()));
    let outcome = std::thread::scope(|scope| {
        let replica = scope.spawn(|| {
            let model = Model::new(1);
            let replica = model.plan.replica(1).options(alone(1));
            replica.work(&targets[1], |portion, run| model.feed(portion, run))
        });
        let coordinator = model.plan.coordinator().options(alone(0));
        let coordinator = coordinator
            .checkpoints(dir.path().to_str().unwrap(), 2)
            .unwrap();
        let coordinator = coordinator.observe(|progress, session| {
            let mut last = last.borrow_mut();
            last.1 = model.parameters(session)?;
            if progress.iteration == 5 && !last.0.contains(&5) {
                cluster.write().unwrap().restart_ps(1).unwrap();
            }
            last.0.push(progress.iteration);
            Ok(())
        });
        let outcome = coordinator.run(&targets[0]).unwrap();
        let worked = replica.join().unwrap().unwrap();
        assert!(worked.losses >= 1, "{worked:?}");
        outcome
    });
    let (order, found) = last.into_inner();
    assert_eq!(outcome.losses, 1);
    // From the checkpoint of the fourth iteration: the fifth is done again.
    assert_eq!(order[..7], [0, 1, 2, 3, 4, 5, 5], "{order:?}");
    let minimum = &expected.last().unwrap().parameters;
    assert_close(&found, minimum, 1e-5, "the minimum");
}

/// A bowl without data, of which each of the portions is a part.
fn bowl(g: &Graph, x: &Output, portions: usize) -> Output {
    let n = 6;
    let weights: Vec<f64> = (0..n)
        .map(|i| 10f64.powi(i / 2) / portions as f64)
        .collect();
    ((x - 1.0).square() * &g.constant(weights)).sum(()) * 0.5
}

#[test]
fn conjugate_gradients_find_the_minimum_by_the_same_commands() {
    let cluster = LocalCluster::start(1, 1).unwrap();
    let g = Graph::new();
    let x = g.with_device("/job:ps/task:0", || {
        g.variable("x").init(Init::value(vec![-2.0f64; 6])).build()
    });
    assert_eq!(x.dtype(), DType::Double);
    let run = |method: Method, iterations: u64| -> (Outcome, Vec<f64>) {
        let plan = g.with_device("/job:worker/task:0", || {
            let settings = Sandblaster::new(3).method(method).iterations(iterations);
            settings
                .small_gradient(1e-9)
                .small_decrease(0.0)
                .build(&bowl(&g, &x, 3))
                .unwrap()
        });
        let last = RefCell::new(Vec::new());
        let outcome = std::thread::scope(|scope| {
            scope.spawn(|| {
                plan.replica(0)
                    .work(&cluster.workers()[0], |_, _| Ok(()))
                    .unwrap()
            });
            let coordinator = plan.coordinator().observe(|_, session: &Session| {
                *last.borrow_mut() = session.fetch(&x)?.as_slice::<f64>().unwrap().to_vec();
                Ok(())
            });
            coordinator.run(&cluster.workers()[0]).unwrap()
        });
        (outcome, last.into_inner())
    };
    let (outcome, found) = run(Method::ConjugateGradient, 200);
    assert_eq!(outcome.end, End::SmallGradient, "{outcome:?}");
    assert_close(&found, &[1.0; 6], 1e-8, "the minimum");
    // Three curvatures: hardly more steps than that are needed.
    assert!(outcome.progress.iteration < 30, "{outcome:?}");
}

#[test]
fn who_observes_may_end_it_and_another_run_goes_on() {
    let cluster = LocalCluster::start(2, 2).unwrap();
    let model = Model::new(0);
    let mut order = Vec::new();
    let mut run = |last: u64| {
        std::thread::scope(|scope| {
            let replica = scope.spawn(|| {
                let model = Model::new(1);
                let replica = model.plan.replica(1).options(alone(1));
                replica.work(&cluster.workers()[1], |portion, run| {
                    model.feed(portion, run)
                })
            });
            let coordinator = model.plan.coordinator().options(alone(0));
            let coordinator = coordinator.observe(|progress, _| {
                order.push(progress.iteration);
                match progress.iteration >= last {
                    true => Err(Status::out_of_range("enough")),
                    false => Ok(()),
                }
            });
            let outcome = coordinator.run(&cluster.workers()[0]).unwrap();
            // It leaves, too.
            assert!(replica.join().unwrap().unwrap().portions > 0);
            outcome
        })
    };
    let first = run(3);
    assert_eq!((first.end, first.progress.iteration), (End::Stopped, 3));
    let second = run(6);
    assert_eq!((second.end, second.progress.iteration), (End::Stopped, 6));
    assert_eq!(order, [0, 1, 2, 3, 4, 5, 6]);
}

#[test]
fn mistakes_are_told_before_anything_runs() {
    let g = Graph::new();
    let x = g.variable("x").init(Init::value(1.0f64)).build();
    let loss = x.square();
    for (settings, text) in [
        (Sandblaster::new(0), "0 portions"),
        (Sandblaster::new(1).wolfe(0.5, 0.1), "Wolfe"),
        (Sandblaster::new(1).l2(-1.0), "penalty"),
        (Sandblaster::new(1).method(Method::LBfgs(5000)), "history"),
    ] {
        let error = settings.build(&loss).err().unwrap();
        assert!(error.message.contains(text), "{error}");
    }
    let error = Sandblaster::new(1)
        .build(&g.constant(1.0f64))
        .err()
        .unwrap();
    assert!(error.message.contains("depends on none"), "{error}");
}

#[test]
fn without_replicas_patience_ends() {
    let cluster = LocalCluster::start(1, 1).unwrap();
    let g = Graph::new();
    let x = g.with_device("/job:ps/task:0", || {
        g.variable("x").init(Init::value(1.0f64)).build()
    });
    let plan = Sandblaster::new(3).build(&x.square()).unwrap();
    let coordinator = plan.coordinator().patience(Duration::from_millis(300));
    let error = coordinator.run(&cluster.workers()[0]).unwrap_err();
    assert!(error.message.contains("0 of 3 portions"), "{error}");
    let replica = plan.replica(0).patience(Duration::from_millis(200));
    let error = replica
        .work(&cluster.workers()[0], |_, _| Ok(()))
        .unwrap_err();
    println!("{error}");
}
