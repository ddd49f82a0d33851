//! `downpour ps`, `logs` and `clean` on real jobs: what they know of one that runs, one that is over and one whose
//! launcher was killed.

use crate::process::{Job, run};
use serde_json::Value;
use std::path::Path;

fn listed(dir: &Path, args: &[&str]) -> Vec<(String, String)> {
    let (code, out, err) = run(dir, &[&["ps", "--json"], args].concat());
    assert_eq!(code, Some(0), "{err}");
    let rows: Value = serde_json::from_str(&out).unwrap();
    let word = |row: &Value, key: &str| row[key].as_str().unwrap().to_owned();
    let rows = rows.as_array().unwrap().iter();
    rows.map(|row| (word(row, "name"), word(row, "status")))
        .collect()
}

fn pair(name: &str, status: &str) -> (String, String) {
    (name.to_owned(), status.to_owned())
}

#[test]
fn jobs_are_listed_while_they_run_and_after() {
    let dir = tempfile::tempdir().unwrap();
    let over = ["run", "--workers=1", "--name=short", "--quiet", "--"];
    let (code, _, err) = run(dir.path(), &[&over[..], &["true"]].concat());
    assert_eq!(code, Some(0), "{err}");
    let long = ["run", "--workers=1", "--name=long", "--drain=1s", "--"];
    let mut job = Job::start(dir.path(), &[&long[..], &["sleep", "1000"]].concat());
    job.line("worker:0 started");
    assert_eq!(listed(dir.path(), &[]), [pair("long-1", "running")]);
    assert_eq!(
        listed(dir.path(), &["--all"]),
        [pair("long-1", "running"), pair("short-1", "done")]
    );
    let (_, out, _) = run(dir.path(), &["ps"]);
    let rows: Vec<&str> = out.lines().collect();
    assert!(rows[0].starts_with("JOB     STATUS   AGE"), "{out}");
    assert!(rows[1].starts_with("long-1  running  "), "{out}");
    job.signal("KILL");
    job.child.wait().unwrap();
    assert_eq!(
        listed(dir.path(), &["--all"])[0],
        pair("long-1", "lost"),
        "its launcher is gone without a word"
    );
}

#[test]
fn logs_are_printed_by_task_and_followed_to_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let script = "echo hello from $0; sleep 1; echo bye";
    let args = [
        "run",
        "--workers=2",
        "--name=talk",
        "--quiet",
        "--",
        "sh",
        "-c",
        script,
        "{job}:{task}",
    ];
    let mut job = Job::start(dir.path(), &args);
    job.line("worker:1 started");
    // Ends by itself, because the job does.
    let (code, out, err) = run(dir.path(), &["logs", "--follow", "talk-1"]);
    assert_eq!(code, Some(0), "{err}");
    for wanted in [
        "worker:0 | hello from worker:0",
        "worker:1 | hello from worker:1",
    ] {
        assert!(out.lines().any(|line| line == wanted), "{wanted}: {out}");
    }
    assert_eq!(out.matches("| bye").count(), 2, "{out}");
    assert_eq!(job.child.wait().unwrap().code(), Some(0));
    let (_, out, _) = run(dir.path(), &["logs", "--task", "worker:1"]);
    let lines: Vec<&str> = out.lines().collect();
    let wanted = [
        "worker:1 | --- worker:1 start 1: sh",
        "worker:1 | hello from worker:1",
        "worker:1 | bye",
    ];
    assert_eq!(lines, wanted);
    let (code, _, err) = run(dir.path(), &["logs", "--task", "worker:9"]);
    assert_eq!(code, Some(2), "{err}");
    assert!(
        err.contains("talk-1 has no task 'worker:9'; it has worker:0, worker:1"),
        "{err}"
    );
    let (_, _, err) = run(dir.path(), &["logs", "nobody"]);
    assert!(
        err.contains("there is no run 'nobody'; downpour ps --all lists them"),
        "{err}"
    );
}

#[test]
fn only_runs_that_are_over_are_removed_and_only_when_told() {
    let dir = tempfile::tempdir().unwrap();
    let over = ["run", "--workers=1", "--quiet", "--name=old", "--"];
    for _ in 0..2 {
        run(dir.path(), &[&over[..], &["true"]].concat());
    }
    let named = ["run", "--workers=1", "--quiet", "--dir=mine", "--", "true"];
    run(dir.path(), &named);
    let long = [
        "run",
        "--workers=1",
        "--name=long",
        "--drain=1s",
        "--",
        "sleep",
        "1000",
    ];
    let mut job = Job::start(dir.path(), &long);
    job.line("worker:0 started");
    let at = |name: &str| dir.path().join("downpour-runs").join(name).exists();
    let (_, out, _) = run(dir.path(), &["clean"]);
    assert!(out.contains("no run is that old"), "{out}");
    let (_, out, _) = run(dir.path(), &["clean", "--older-than", "0s"]);
    assert!(
        out.contains("nothing was removed; --yes removes them"),
        "{out}"
    );
    assert!(at("old-1") && at("old-2"));
    let (code, out, err) = run(dir.path(), &["clean", "--older-than", "0s", "--yes"]);
    assert_eq!(code, Some(0), "{err}");
    assert!(!at("old-1") && !at("old-2"), "{out}");
    assert!(at("long-1"), "it runs: {out}");
    assert!(
        dir.path().join("mine").exists(),
        "its place was named: {out}"
    );
    job.signal("INT");
    assert_eq!(job.child.wait().unwrap().code(), Some(130));
}

#[test]
fn what_jobs_do_is_seen_at_a_glance() {
    let dir = tempfile::tempdir().unwrap();
    let args = [
        "run",
        "--ps=1",
        "--workers=1",
        "--name=busy",
        "--drain=1s",
        "--",
        "sleep",
        "1000",
    ];
    let mut job = Job::start(dir.path(), &args);
    job.line("worker:0 started");
    let (code, out, err) = run(dir.path(), &["top", "--every=100ms"]);
    assert_eq!(code, Some(0), "{err}");
    let rows: Vec<Vec<&str>> = out
        .lines()
        .map(|l| l.split_whitespace().collect())
        .collect();
    // The worker brings no server of its own.
    assert!(out.starts_with("busy-1  up "), "{out}");
    assert!(
        rows[0].ends_with(&["1", "of", "2", "tasks", "answer"]),
        "{out}"
    );
    assert_eq!(rows[1][..3], ["TASK", "CPU", "MEMORY"], "{out}");
    let of = |task: &str| rows.iter().find(|r| r[0] == task).unwrap();
    assert!(of("ps:0")[1].parse::<f64>().is_ok(), "{out}");
    assert_eq!(of("worker:0")[1..], ["-"; 7], "{out}");
    let (code, _, err) = run(dir.path(), &["top", "nobody"]);
    assert_eq!(code, Some(2), "{err}");
    assert!(
        err.contains("no job 'nobody' runs; downpour ps lists"),
        "{err}"
    );
    job.signal("INT");
    assert_eq!(job.child.wait().unwrap().code(), Some(130));
    let (_, out, _) = run(dir.path(), &["top", "--every=100ms"]);
    assert!(out.starts_with("no jobs run"), "{out}");
}
