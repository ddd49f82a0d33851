//! Synchronous training while a worker is stopped (SIGSTOP): it neither works nor ends.

use crate::line::seconds;
use crate::tasks::Tasks;

/// A stopped worker is named after 5 s at most; on a busy machine it may take a while longer.
const NAMED: f64 = 5.0;
const SLACK: f64 = 3.0;

fn is_named(tasks: &Tasks, by: usize, task: &str, stopped: f64) {
    let after = tasks.missing(by, stopped, task) - stopped;
    println!("worker {by} names {task} after {after:.2} s");
    assert!(after <= NAMED * SLACK, "{task} was named after {after} s");
    let log = tasks.log("worker", by);
    let line = format!("synchronous training waits for {task} (nothing was heard of it for ");
    assert!(log.contains(&line), "{log}");
}

#[test]
fn with_a_backup_training_goes_on_without_a_stopped_worker() {
    let mut tasks = Tasks::start(1, 3, "--sync --backups=1 --steps=1000000");
    for worker in 0..3 {
        tasks.trained(worker, 0.0, 5);
    }
    tasks.signal("worker", 2, "STOP");
    let stopped = seconds();
    // Longer than it takes to be named: nobody waits, not even for a while.
    tasks.trained(0, stopped + 5.0, 20);
    tasks.trained(1, stopped + 5.0, 20);
    let steps = tasks.steps(0, stopped);
    let pause = steps
        .windows(2)
        .map(|w| w[1].0 - w[0].0)
        .fold(0.0, f64::max);
    println!("longest pause of worker 0 while worker 2 is stopped: {pause:.2} s");
    assert!(pause < NAMED, "worker 0 stood still for {pause} s");
    assert!(
        !tasks
            .log("worker", 0)
            .contains("waits for /job:worker/task:2")
    );
    tasks.signal("worker", 2, "CONT");
    let back = seconds();
    tasks.trained(2, back, 5);
    tasks.trained(0, back, 5);
}

#[test]
fn without_a_backup_a_stopped_worker_is_named_until_it_returns_or_leaves() {
    let mut tasks = Tasks::start(1, 2, "--sync --steps=1000000");
    tasks.trained(0, 0.0, 10);
    tasks.trained(1, 0.0, 10);

    // It is waited for, by name, and training goes on when it does.
    let at = seconds();
    tasks.signal("worker", 1, "STOP");
    is_named(&tasks, 0, "/job:worker/task:1", at);
    let alone = tasks.steps(0, at + 1.0).len();
    assert!(
        alone <= 1,
        "{alone} steps were made without a worker that is waited for"
    );
    tasks.signal("worker", 1, "CONT");
    let back = seconds();
    tasks.missing(0, back, "");
    tasks.trained(0, back, 10);
    tasks.trained(1, back, 10);

    // Stopped again, and killed: its process is gone, and it is not waited for any longer.
    let at = seconds();
    tasks.signal("worker", 1, "STOP");
    is_named(&tasks, 0, "/job:worker/task:1", at);
    tasks.kill("worker", 1);
    let gone = seconds();
    tasks.missing(0, gone, "");
    tasks.trained(0, gone, 10);
    assert!(
        tasks
            .log("worker", 0)
            .contains("without /job:worker/task:1: its process is gone")
    );

    // It comes back as a new process, and leaves when its data ends.
    tasks.spawn_with_data("worker", 1, 20);
    let (ended_well, _) = tasks.end("worker", 1);
    assert!(ended_well);
    let left = seconds();
    assert!(tasks.steps(1, gone).len() >= 20);
    tasks.trained(0, left, 10);
}

#[test]
fn a_stopped_chief_is_named_by_the_others() {
    let mut tasks = Tasks::start(1, 2, "--sync --steps=1000000");
    tasks.trained(0, 0.0, 10);
    tasks.trained(1, 0.0, 10);
    let at = seconds();
    tasks.signal("worker", 0, "STOP");
    is_named(&tasks, 1, "/job:worker/task:0", at);
    tasks.signal("worker", 0, "CONT");
    let back = seconds();
    tasks.missing(1, back, "");
    tasks.trained(0, back, 10);
    tasks.trained(1, back, 10);
}
