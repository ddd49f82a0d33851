//! Every way to be told wrongly, with the words that come back.

use crate::process::{Task, downpour, run};
use std::io::Write as _;

/// Runs `serve` with flags and `TF_CONFIG`; it must fail with exactly this line.
#[track_caller]
fn refused(args: &[&str], tf_config: Option<&str>, want: &str) {
    let mut command = downpour(&["serve"]);
    command.args(args);
    if let Some(text) = tf_config {
        command.env("TF_CONFIG", text);
    }
    let output = run(&mut command);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said, format!("error: {want}\n"), "{args:?} {tf_config:?}");
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
}

/// A file with this text.
fn file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

#[test]
fn flags_that_are_wrong() {
    let two = r#"{"ps": ["127.0.0.1:1"], "worker": ["127.0.0.1:2", "127.0.0.1:3"]}"#;
    for (args, want) in [
        (
            &[][..],
            "say where to listen: --port N for a single task, or --cluster with --job and --task",
        ),
        (
            &["--cluster", two],
            "--job is needed: which job of the cluster (ps, worker) is this task in?",
        ),
        (
            &["--cluster", two, "--job", "worker"],
            "--task is needed: which task of job 'worker' is this?",
        ),
        (
            &["--cluster", two, "--job", "wroker", "--task", "0"],
            "job 'wroker' is not in the cluster, which has ps (task 0), worker (tasks 0-1); did you mean 'worker'?",
        ),
        (
            &["--cluster", two, "--job_name=worker", "--task_index=2"],
            "job 'worker' has no task 2; it has tasks 0-1",
        ),
        (
            &["--ps_hosts", "a:1,,b:1"],
            "--ps-hosts: host number 2 of the list is empty",
        ),
        (&["--worker_hosts", ""], "--worker-hosts: it names no host"),
        (
            &["--chief_hosts", "c", "--ps_hosts", "p:1"],
            "--chief-hosts: task 0 of job 'chief' has address 'c': there is no ':port'",
        ),
        (
            &["--ps_hosts", "a:1", "--worker_hosts", "A:1"],
            "--worker-hosts: address 'A:1' is given to both /job:ps/task:0 and /job:worker/task:0",
        ),
        (
            &["--ps_hosts", "::1:22"],
            "--ps-hosts: task 0 of job 'ps' has address '::1:22': an IPv6 address needs brackets, as in [::1]:2222",
        ),
        (
            &["--cluster", r#"{"ps": ["h:99999"]}"#],
            "--cluster: task 0 of job 'ps' has address 'h:99999': the port is not a number from 0 to 65535",
        ),
        (
            &["--cluster", r#"{"ps": ["h:1"], "ps": ["h:2"]}"#],
            "--cluster: 'ps' is given twice",
        ),
        (
            &["--cluster", "/nowhere/cluster.toml"],
            "--cluster: cannot read '/nowhere/cluster.toml': No such file or directory (os error 2)",
        ),
        (
            &["--port", "0", "--threads", "0"],
            "--threads is 0; it must be at least 1",
        ),
        (
            &["--port", "0", "--bind", "nowhere:"],
            "--bind is 'nowhere:'; it must be host:port or host, as in 0.0.0.0:2222 or [::]:2222",
        ),
        (
            &["--port", "0", "--bind", "192.0.2.1:7"],
            "cannot listen on 192.0.2.1:7: it is not an address of this machine; say which to listen on, as in --bind 0.0.0.0:7",
        ),
    ] {
        refused(args, None, want);
    }
}

#[test]
fn tf_config_that_is_wrong() {
    let cluster = r#""cluster": {"chief": ["127.0.0.1:1"], "ps": ["127.0.0.1:2"]}"#;
    let with = |rest: &str| format!("{{{cluster}, {rest}}}");
    for (text, want) in [
        (
            "{".to_owned(),
            "TF_CONFIG: not valid JSON: EOF while parsing an object at line 1 column 1",
        ),
        (
            with(r#""taks": {}"#),
            "TF_CONFIG: unknown key 'taks'; did you mean 'task'?",
        ),
        (
            with(r#""task": {"type": "ps", "idx": 0}"#),
            "TF_CONFIG: unknown key 'task.idx'; known are index, type",
        ),
        (
            with(r#""task": {"type": "ps", "index": 5}"#),
            "job 'ps' has no task 5; it has task 0",
        ),
        (
            with(r#""task": {"type": "evaluator", "index": 0}"#),
            "this task is the evaluator, which is not in the cluster: it reads checkpoints and needs no server, so run its program alone",
        ),
        (
            with(r#""environment": "cloud""#),
            "--job is needed: which job of the cluster (chief, ps) is this task in?",
        ),
    ] {
        refused(&[], Some(&text), want);
    }
    // Another job's index is not this one's.
    let text = r#"{"cluster": {"ps": ["a:1", "b:1"], "worker": ["c:1"]}, "task": {"type": "worker", "index": 0}}"#;
    refused(
        &["--job", "ps"],
        Some(text),
        "--task is needed: which task of job 'ps' is this? (TF_CONFIG names task 0 of job 'worker')",
    );
}

#[test]
fn files_that_are_wrong() {
    let wrong = file("job = 'ps'\n[clutser]\nps = ['127.0.0.1:1']\n");
    let path = wrong.path().to_str().unwrap();
    refused(
        &["--config", path],
        None,
        &format!("--config {path}: unknown key 'clutser'; did you mean 'cluster'?"),
    );
    refused(
        &["--config", "/dev/zero"],
        None,
        "--config: '/dev/zero' is longer than 16 MiB, more than any settings need",
    );
    let twice = file("job = 'ps'\njob = 'ps'\n");
    let path = twice.path().to_str().unwrap();
    refused(
        &["--config", path],
        None,
        &format!("--config {path}: not valid TOML: duplicate key at line 2"),
    );
}

#[test]
fn a_file_of_settings_may_be_given_as_the_cluster() {
    let port = {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        taken.local_addr().unwrap().port()
    };
    let text = format!("job = 'ps'\ntask = 0\n[cluster]\nps = ['127.0.0.1:{port}']\n");
    let settings = file(&text);
    let path = settings.path().to_str().unwrap();
    let task = Task::start(&mut downpour(&["serve", "--cluster", path]));
    assert!(task.address().ends_with(&format!(":{port}")));
}

#[test]
fn misspelled_variables_of_the_environment_are_refused() {
    let mut command = downpour(&["serve", "--port", "0"]);
    let out = command.env("DOWNPOUR_THREAD", "2").output().unwrap();
    let error = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(2), "{error}");
    assert!(error.contains("did you mean DOWNPOUR_THREADS?"), "{error}");
}

#[test]
fn every_setting_that_the_environment_may_hold_is_taken() {
    let mut command = downpour(&["serve", "--port", "0"]);
    command
        .env("DOWNPOUR_MEMORY_LIMIT", "1G")
        .env("DOWNPOUR_SESSION_MEMORY_LIMIT", "1G")
        .env("DOWNPOUR_STEP_MEMORY_LIMIT", "512M")
        // A launcher says this to all tasks, servers among them.
        .env("DOWNPOUR_COORDINATOR", "file:///nowhere");
    Task::start(&mut command);
}

#[test]
fn a_log_in_json_is_json_and_nothing_else() {
    let args = [
        "serve",
        "--port",
        "0",
        "--log-format",
        "json",
        "--log",
        "info",
    ];
    let mut child = downpour(&args)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut first = String::new();
    std::io::BufRead::read_line(&mut out, &mut first).unwrap();
    assert!(first.contains(" listens on grpc://127.0.0.1:"), "{first}");
    let id = child.id().to_string();
    let sent = std::process::Command::new("kill")
        .args(["-s", "TERM", &id])
        .status();
    assert!(sent.unwrap().success());
    let mut text = first;
    std::io::Read::read_to_string(&mut out, &mut text).unwrap();
    let end = child.wait_with_output().unwrap();
    assert!(end.status.success());
    text += &String::from_utf8(end.stderr).unwrap();
    for line in text.lines() {
        let object: serde_json::Value =
            serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"));
        assert!(
            object["message"].is_string() && object["level"].is_string(),
            "{line}"
        );
    }
    assert!(text.contains("the task has started"), "{text}");
}

#[test]
fn a_taken_port_says_whom_to_ask() {
    let task = Task::start(&mut downpour(&["serve", "--port", "0"]));
    let address = task.address();
    let port = address.rsplit(':').next().unwrap();
    refused(
        &["--port", port],
        None,
        &format!(
            "cannot listen on {address}: the port is in use; `ss -ltnp 'sport = :{port}'` shows by whom"
        ),
    );
}

#[test]
fn the_start_tells_the_role_and_the_peers() {
    let own = crate::common::free_address();
    let config = file(&format!(
        "task = 3\n[cluster]\nps = ['127.0.0.1:9', '{own}']\nworker.7 = '[::1]:9'\n"
    ));
    let mut command = downpour(&["serve", "--task", "1", "--config"]);
    command.arg(config.path()).env(
        "TF_CONFIG",
        r#"{"task": {"type": "ps", "index": 0}, "environment": "cloud"}"#,
    );
    let mut task = Task::start(&mut command);
    let want = format!("/job:ps/replica:0/task:1 listens on grpc://{own}\n");
    assert_eq!(task.first_line, want);
    let from = format!("cluster, from --config {}:\n", config.path().display());
    assert_eq!(task.line(), from);
    assert_eq!(task.line(), "  /job:ps/task:0  127.0.0.1:9\n");
    assert_eq!(
        task.line(),
        format!("  /job:ps/task:1  {own}  (this task)\n")
    );
    assert_eq!(task.line(), "  /job:worker/task:7  [::1]:9\n");
}

#[test]
fn flags_go_before_tf_config_and_say_so() {
    let own = crate::common::free_address();
    let text = r#"{"cluster": {"ps": ["a:1"]}, "task": {"type": "ps", "index": 0}}"#;
    let mut command = downpour(&["serve", "--ps_hosts", &own, "--worker_hosts", "w:1"]);
    let mut task = Task::start(command.env("TF_CONFIG", text));
    assert_eq!(task.line(), "cluster, from the command line:\n");
    assert_eq!(
        task.line(),
        format!("  /job:ps/task:0  {own}  (this task)\n")
    );
    assert_eq!(task.line(), "  /job:worker/task:0  w:1\n");
    assert_eq!(
        task.line(),
        "note: the cluster of TF_CONFIG differs and is not used: the command line goes before it\n"
    );
}
