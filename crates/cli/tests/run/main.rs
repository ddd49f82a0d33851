//! `downpour run` as a user meets it: real servers, shell scripts and our own trainer as programs.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod process;
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
        "worker:1 ended with exit code 7; its 1 restarts are used up",
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
    job.line("ps:0 stopped");
    assert!(exists(worker) && !exists(ps));
    job.signal("INT");
    let (code, said) = job.wait();
    assert_eq!(code, Some(130), "{said}");
    assert!(said.contains("interrupted by signal 2 (SIGINT)"), "{said}");
    assert!(!exists(worker));
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
