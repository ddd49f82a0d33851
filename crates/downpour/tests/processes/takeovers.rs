//! Synchronous training whose chief is elected: it is killed, or stopped and goes on. Another leads meanwhile.

use crate::line::seconds;
use crate::tasks::{Tasks, wait};

const ELECTED: &str = "--sync --coordinator=file://{dir}/service --steps=1000000";

/// No worker has seen the shared count go back.
fn no_step_was_taken_back(tasks: &Tasks) {
    for worker in 0..3 {
        for pair in tasks.steps(worker, 0.0).windows(2) {
            assert!(pair[0].1 <= pair[1].1, "worker {worker}: {pair:?}");
        }
    }
}

#[test]
fn a_killed_chief_of_synchronous_training_is_replaced_and_comes_back_as_a_worker() {
    let mut tasks = Tasks::start(1, 3, ELECTED);
    for worker in 0..3 {
        tasks.trained(worker, 0.0, 10);
    }
    let mut last = 0;
    for _ in 0..3 {
        let (chief, epoch) = tasks.chief_after(last);
        tasks.kill("worker", chief);
        let killed = seconds();
        let (next, _) = tasks.chief_after(epoch);
        let elected = seconds();
        for worker in (0..3).filter(|worker| *worker != chief) {
            tasks.trained(worker, elected, 10);
        }
        // From the last step before to the first after, and between those that follow.
        let all = tasks.steps(next, 0.0);
        let pauses = all.windows(2).filter(|pair| pair[1].0 >= killed);
        let pauses = pauses.map(|pair| pair[1].0 - pair[0].0);
        println!(
            "takeover: worker {next} after {chief}; elected after {:.2} s, longest pause {:.2} s",
            elected - killed,
            pauses.fold(0.0, f64::max)
        );
        tasks.spawn("worker", chief);
        let back = seconds();
        tasks.trained(chief, back, 10);
        tasks.trained(next, back, 10);
        last = epoch;
    }
    no_step_was_taken_back(&tasks);
}

/// The epoch and the step of a checkpoint's name.
fn parts(checkpoint: &str) -> Option<(u64, i64)> {
    let (rest, step) = checkpoint.rsplit_once('-')?;
    let epoch = rest.rsplit_once("-e")?.1.parse().ok()?;
    Some((epoch, step.parse().ok()?))
}

#[test]
fn a_stopped_chief_that_goes_on_commits_nothing_and_takes_no_step_back() {
    let mut tasks = Tasks::start(1, 3, &format!("{ELECTED} --backups=1"));
    for worker in 0..3 {
        tasks.trained(worker, 0.0, 10);
    }
    let mut newest = (0, (0, 0));
    let watch = tasks.watch_record(move |record| {
        let committed = parts(&record.checkpoint).unwrap_or_default();
        assert!(committed.0 <= record.epoch, "{record:?}");
        let now = (record.epoch, committed);
        assert!(
            newest.0 <= now.0 && newest.1.0 <= now.1.0 && newest.1.1 <= now.1.1,
            "{record:?} after {newest:?}"
        );
        newest = now;
    });
    let mut last = 0;
    for _ in 0..3 {
        let (chief, epoch) = tasks.chief_after(last);
        tasks.signal("worker", chief, "STOP");
        tasks.chief_after(epoch);
        let elected = seconds();
        for worker in (0..3).filter(|worker| *worker != chief) {
            tasks.trained(worker, elected, 10);
        }
        wait("a checkpoint of a later chief", || {
            let (of, _) = parts(&tasks.record().checkpoint)?;
            (of > epoch).then_some(())
        });
        tasks.signal("worker", chief, "CONT");
        let back = seconds();
        tasks.trained(chief, back, 10);
        last = epoch;
    }
    watch.end();
    no_step_was_taken_back(&tasks);
}
