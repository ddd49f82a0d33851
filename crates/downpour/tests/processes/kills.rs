//! Asynchronous training while tasks are killed.

use crate::line::seconds;
use crate::tasks::Tasks;

fn number(report: &str, name: &str) -> f64 {
    let rest = report.split(&format!("\"{name}\": ")).nth(1);
    let rest = rest.unwrap_or_else(|| panic!("no {name} in {report}"));
    rest.split([',', '}']).next().unwrap().parse().unwrap()
}

/// Trains while `fault` does its worst half-way, and looks at the result.
fn survives(name: &str, fault: impl FnOnce(&mut Tasks)) -> String {
    let mut tasks = Tasks::start(2, 2, "--steps=400");
    tasks.reach(50);
    let hit = seconds();
    fault(&mut tasks);
    let healed = seconds();
    let (ended_well, report) = tasks.end("worker", 0);
    assert!(ended_well, "{report}");
    // A step may have been under way when the fault struck: the next one was made after it.
    let again = tasks.steps(0, healed).get(1).map(|(t, _)| t - healed);
    let shown = again.map_or("ended before".to_owned(), |t| format!("{t:.2} s"));
    println!(
        "recovery {name}: struck for {:.2} s, the chief trains again after {shown}",
        healed - hit
    );
    let steps = number(&report, "steps");
    assert!(steps >= 400.0, "{report}");
    assert!((number(&report, "slope") - 3.0).abs() < 0.01, "{report}");
    let witness = number(&report, "witness");
    // The other worker may be in the middle of a step when the checkpoint is written from which training goes on, and
    // again when the two are read.
    assert!(
        (witness - steps).abs() <= 2.0,
        "a step counted twice or not at all: {report}"
    );
    report
}

#[test]
fn a_worker_is_lost_and_the_others_never_stop() {
    let report = survives("worker", |tasks| tasks.kill("worker", 1));
    assert_eq!(number(&report, "recoveries"), 0.0, "{report}");
}

#[test]
fn a_ps_is_lost_and_comes_back() {
    let report = survives("ps", |tasks| {
        tasks.kill("ps", 1);
        tasks.spawn("ps", 1);
    });
    assert!(number(&report, "recoveries") > 0.0, "{report}");
}

#[test]
fn the_chief_is_lost_and_comes_back() {
    survives("chief", |tasks| {
        tasks.kill("worker", 0);
        tasks.spawn("worker", 0);
    });
}

#[test]
fn all_are_lost_at_once_and_come_back() {
    survives("all", |tasks| {
        let all = [("ps", 0), ("ps", 1), ("worker", 0), ("worker", 1)];
        for (job, task) in all {
            tasks.kill(job, task);
        }
        for (job, task) in all {
            tasks.spawn(job, task);
        }
    });
}
