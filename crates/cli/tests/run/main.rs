//! `downpour run` as a user meets it: real servers, shell scripts and our own trainer as programs.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod process;
mod records;
mod refusals;

use process::{Job, exists, run};
use std::time::{Duration, Instant};

#[test]
fn a_job_of_servers_and_clients_ends_well() {
    let dir = tempfile::tempdir().unwrap();
    let script = "echo \"$0 at $DOWNPOUR_TARGET\"; test -n \"$TF_CONFIG\"";
    let (code, out, err) = run(
        dir.path(),
        &[
            "run",
            "--ps",
            "1",
            "--workers",
            "2",
            "--serve",
            "all",
            "--name",
            "demo",
            "--",
            "sh",
            "-c",
            script,
            "{job}:{task}",
        ],
    );
    assert_eq!(code, Some(0), "{err}");
    for task in ["worker:0", "worker:1"] {
        assert!(
            out.contains(&format!("{task}        | {task} at grpc://127.0.0.1:")),
            "{out}"
        );
    }
    assert!(err.contains("job 'demo' done after "), "{err}");
    assert!(
        !out.contains('\x1b') && !err.contains('\x1b'),
        "no colours in a pipe"
    );
    let logs = dir.path().join("downpour-runs/demo-1/logs");
    for log in [
        "ps-0.log",
        "worker-0-server.log",
        "worker-0.log",
        "worker-1.log",
    ] {
        assert!(logs.join(log).exists(), "{log}");
    }
    let summary = std::fs::read_to_string(logs.join("../summary.json")).unwrap();
    assert!(summary.contains("\"exit_code\": 0"), "{summary}");
}

#[test]
fn the_exit_code_is_that_of_the_task_at_fault() {
    let dir = tempfile::tempdir().unwrap();
    let script = "[ $0 = worker:1 ] && exit 7; exec sleep 1000";
    let (code, _, err) = run(
        dir.path(),
        &[
            "run",
            "--ps=1",
            "--workers=2",
            "--restarts=1",
            "--backoff=10ms",
            "--",
            "sh",
            "-c",
            script,
            "{job}:{task}",
        ],
    );
    assert_eq!(code, Some(7), "{err}");
    for text in [
        "worker:1 ended with exit code 7; starts again in 0.0 s",
        "worker:1 ended with exit code 7; its one restart is used up",
        "job 'sh' FAILED: worker:1 ended with exit code 7 after ",
        "worker:1  failed (exit code 7), 1 restart\n",
        "worker:0  stopped (signal 15 (SIGTERM))\n",
    ] {
        assert!(err.contains(text), "'{text}' is not in:\n{err}");
    }
}

#[test]
fn colours_come_when_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let (code, out, _) = run(
        dir.path(),
        &[
            "run",
            "--color=always",
            "--",
            "sh",
            "-c",
            "printf '\\033[2Jx\\n'",
        ],
    );
    assert_eq!(
        (code, out.as_str()),
        (Some(0), "\x1b[36mworker:0 | \x1b[0mx\n")
    );
    let (code, out, _) = run(dir.path(), &["run", "--quiet", "--", "echo", "x"]);
    assert_eq!((code, out.as_str()), (Some(0), ""));
}

#[test]
fn what_print_spec_prints_runs_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let (code, spec, err) = run(
        dir.path(),
        &[
            "run",
            "--workers=2",
            "--env=WORD=a b",
            "--name=once",
            "--print-spec",
            "--",
            "sh",
            "-c",
            "echo $WORD",
        ],
    );
    assert_eq!(code, Some(0), "{err}");
    std::fs::write(dir.path().join("job.json"), spec).unwrap();
    let (code, out, err) = run(dir.path(), &["run", "job.json"]);
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(out.matches("| a b\n").count(), 2, "{out}");
    // Flags go before the file.
    let (code, out, _) = run(
        dir.path(),
        &["run", "job.json", "--workers=1", "--env=WORD=c"],
    );
    assert_eq!((code, out.as_str()), (Some(0), "worker:0 | c\n"));
}

#[test]
fn ctrl_c_ends_all_tasks_and_a_second_one_the_stubborn() {
    let dir = tempfile::tempdir().unwrap();
    let script = "trap '' TERM INT; echo ready >&2; while :; do sleep 1; done";
    let args = ["run", "--ps=1", "--drain=1000s", "--", "sh", "-c", script];
    let mut job = Job::start(dir.path(), &args);
    let (ps, worker) = (job.process("ps:0"), job.process("worker:0"));
    job.line("| ready");
    job.signal("INT");
    job.line("tasks are asked to end");
    // What a program saves goes through the servers: they stay as long as it does.
    std::thread::sleep(Duration::from_millis(500));
    assert!(exists(worker) && exists(ps));
    job.signal("INT");
    let (code, said) = job.wait();
    assert_eq!(code, Some(130), "{said}");
    assert!(said.contains("interrupted by signal 2 (SIGINT)"), "{said}");
    assert!(!exists(worker) && !exists(ps));
}

#[test]
fn a_program_saves_through_its_servers_when_it_is_asked_to_end() {
    let dir = tempfile::tempdir().unwrap();
    let script = "trap 'sleep 0.5; echo saved >&2; exit 0' TERM; echo ready >&2; while :; do sleep 0.1; done";
    let args = ["run", "--ps=1", "--", "sh", "-c", script];
    let mut job = Job::start(dir.path(), &args);
    job.line("| ready");
    job.signal("TERM");
    let (code, said) = job.wait();
    assert_eq!(code, Some(143), "{said}");
    let at = |words: &str| {
        said.find(words)
            .unwrap_or_else(|| panic!("no '{words}' in\n{said}"))
    };
    assert!(at("| saved") < at("ps:0 stopped"), "{said}");
}

#[test]
fn the_drain_is_as_long_as_was_said() {
    let dir = tempfile::tempdir().unwrap();
    let script = "trap '' TERM; echo ready >&2; while :; do sleep 0.1; done";
    let args = ["run", "--drain=1s", "--", "sh", "-c", script];
    let mut job = Job::start(dir.path(), &args);
    job.line("| ready");
    let begin = Instant::now();
    job.signal("TERM");
    job.wait();
    let took = begin.elapsed();
    assert!(
        took >= Duration::from_secs(1) && took < Duration::from_secs(4),
        "{took:?}"
    );
}

#[test]
fn a_program_that_cannot_run_is_given_up_with_its_cause() {
    let dir = tempfile::tempdir().unwrap();
    let script = "echo \"at $(date +%N)\"; echo \"ModuleNotFoundError: No module named 'tensorflow'\" >&2; exit 1";
    let args = ["run", "--ps=1", "--workers=2", "--", "sh", "-c", script];
    let (code, _, err) = run(dir.path(), &args);
    assert_eq!(code, Some(1), "{err}");
    let starts = err.matches(" (process ").count();
    assert!(starts <= 1 + 2 * 2, "{starts} starts:\n{err}");
    assert_eq!(err.matches("root cause: worker:").count(), 1, "{err}");
    for text in [
        "ended with exit code 1\n",
        "  | ModuleNotFoundError: No module named 'tensorflow'\n",
        "  hint      a Python package is missing",
        "/logs/worker-",
        "and would again",
    ] {
        assert!(err.contains(text), "'{text}' is not in:\n{err}");
    }
}

#[test]
fn a_task_is_said_to_have_started_before_it_speaks() {
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..5 {
        let args = ["run", "--workers=3", "--", "sh", "-c", "echo hello >&2"];
        let (code, _, err) = run(dir.path(), &args);
        assert_eq!(code, Some(0), "{err}");
        for worker in 0..3 {
            let at = |words: String| {
                err.find(&words)
                    .unwrap_or_else(|| panic!("no '{words}' in\n{err}"))
            };
            let started = at(format!("worker:{worker} started"));
            assert!(started < at(format!("worker:{worker} | hello")), "{err}");
        }
    }
}

#[test]
fn sigterm_ends_a_job_as_ctrl_c_does() {
    let dir = tempfile::tempdir().unwrap();
    let mut job = Job::start(dir.path(), &["run", "--ps=1", "--", "sleep", "1000"]);
    let worker = job.process("worker:0");
    job.signal("TERM");
    let (code, said) = job.wait();
    assert_eq!(code, Some(143), "{said}");
    assert!(!exists(worker));
}

#[test]
fn the_tasks_of_a_killed_launcher_end_too() {
    let dir = tempfile::tempdir().unwrap();
    // The shell's own child is in its group as well.
    let args = ["run", "--ps=1", "--", "sh", "-c", "sleep 1000; true"];
    let mut job = Job::start(dir.path(), &args);
    let (ps, worker) = (job.process("ps:0"), job.process("worker:0"));
    job.child.kill().unwrap();
    job.child.wait().unwrap();
    let start = Instant::now();
    while exists(ps) || exists(worker) {
        assert!(start.elapsed() < Duration::from_secs(60), "tasks are left");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_closed_output_stops_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let downpour = env!("CARGO_BIN_EXE_downpour");
    let script =
        format!("'{downpour}' run --ps 1 --workers 2 -- sh -c 'seq 20000' >&- 2>&-; echo $?");
    let out = std::process::Command::new("sh")
        .args(["-c", &script])
        .current_dir(dir.path())
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&out.stdout), "0\n");
}

#[test]
fn our_own_trainer_survives_the_loss_of_a_worker_and_of_a_ps() {
    let dir = tempfile::tempdir().unwrap();
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/mnist");
    let downpour = env!("CARGO_BIN_EXE_downpour");
    let (code, out, err) = run(
        dir.path(),
        &[
            "run",
            "--ps=2",
            "--workers=2",
            "--backoff=100ms",
            "--kill=worker:1@1s",
            "--kill=ps:0@2s",
            "--name=digits",
            "--",
            downpour,
            "demo-worker",
            "--model=softmax",
            "--data",
            data,
            "--dir={dir}/train",
            "--steps=1000000",
            "--seconds=6",
        ],
    );
    assert_eq!(code, Some(0), "{err}");
    assert!(err.contains("ps:0      stopped, 1 restart\n"), "{err}");
    assert!(err.contains("worker:1  done, 1 restart\n"), "{err}");
    let report = out
        .lines()
        .find_map(|l| l.split_once("| @report "))
        .unwrap()
        .1;
    let report: serde_json::Value = serde_json::from_str(report).unwrap();
    let steps = report["steps"].as_f64().unwrap();
    assert!(
        steps > 0.0 && report["test_accuracy"].as_f64().unwrap() > 0.5,
        "{report}"
    );
}
