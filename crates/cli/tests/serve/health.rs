//! What a task says to those who watch over it, and how it logs.

use crate::common::{connect, create};
use crate::ending::{begin, waiting_graph};
use crate::process::{Task, downpour, run};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

/// What is answered to a request of HTTP/1, sent in these pieces.
fn ask(address: &str, pieces: &[&str]) -> String {
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_nodelay(true).unwrap();
    for piece in pieces {
        socket.write_all(piece.as_bytes()).unwrap();
        std::thread::yield_now();
    }
    let mut said = String::new();
    socket.read_to_string(&mut said).unwrap();
    said
}

async fn health_of(address: &str) -> HealthClient<Channel> {
    let endpoint = Channel::from_shared(format!("http://{address}")).unwrap();
    HealthClient::new(endpoint.connect().await.unwrap())
}

fn about(service: &str) -> HealthCheckRequest {
    HealthCheckRequest {
        service: service.to_owned(),
    }
}

#[test]
fn http_is_answered_on_the_same_port() {
    let task = Task::start(&mut downpour(&["serve", "--port", "0"]));
    let address = task.address();
    for (pieces, want) in [
        (
            &["GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"][..],
            "HTTP/1.1 200 OK",
        ),
        (&["GET /readyz HTTP/1.1\r\n\r\n"], "HTTP/1.1 200 OK"),
        (
            &["G", "E", "T /livez HTTP/1.0\r\n", "\r\n"],
            "HTTP/1.1 200 OK",
        ),
        (&["HEAD /healthz HTTP/1.1\r\n\r\n"], "HTTP/1.1 200 OK"),
        (&["GET / HTTP/1.1\r\n\r\n"], "HTTP/1.1 404 Not Found"),
        (&["GET /metrics HTTP/1.1\r\n\r\n"], "HTTP/1.1 200 OK"),
    ] {
        let said = ask(&address, pieces);
        assert!(said.starts_with(want), "{pieces:?}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_drains_lives_and_is_not_ready() {
    let mut task = Task::start(&mut downpour(&["serve", "--port", "0", "--drain", "10m"]));
    let address = task.address();
    let mut health = health_of(&address).await;
    let mut watched = health.watch(about("")).await.unwrap().into_inner();
    let first = watched.message().await.unwrap().unwrap();
    assert_eq!(first.status(), ServingStatus::Serving);
    let unknown = health.check(about("nothing")).await.unwrap_err();
    assert_eq!(unknown.code(), tonic::Code::NotFound);
    // A step keeps the task from ending.
    let mut client = connect(&address).await;
    let session = create(&mut client, waiting_graph("", "")).await.unwrap();
    let _step = begin(&client, &session);
    assert_eq!(task.line(), "begun\n");
    task.signal("TERM");
    let then = watched.message().await.unwrap().unwrap();
    assert_eq!(then.status(), ServingStatus::NotServing);
    for (service, want) in [
        ("readiness", ServingStatus::NotServing),
        ("tensorflow.MasterService", ServingStatus::NotServing),
        ("liveness", ServingStatus::Serving),
    ] {
        let said = health.check(about(service)).await.unwrap().into_inner();
        assert_eq!(said.status(), want, "{service}");
    }
    let (ready, alive) = tokio::task::spawn_blocking(move || {
        let ask = |path| ask(&address, &[&format!("GET {path} HTTP/1.1\r\n\r\n")]);
        (ask("/readyz"), ask("/healthz"))
    })
    .await
    .unwrap();
    assert!(ready.starts_with("HTTP/1.1 503 "), "{ready}");
    assert!(alive.starts_with("HTTP/1.1 200 "), "{alive}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watching_keeps_no_task() {
    let mut task = Task::start(&mut downpour(&["serve", "--port", "0"]));
    let mut health = health_of(&task.address()).await;
    let mut watched = health.watch(about("liveness")).await.unwrap().into_inner();
    watched.message().await.unwrap().unwrap();
    task.signal("TERM");
    // The watch ends, by an end or an error, and the task with it.
    while let Ok(Some(_)) = watched.message().await {}
    let ended = tokio::task::spawn_blocking(move || task.wait())
        .await
        .unwrap();
    assert_eq!(ended, (Some(0), "stopped\n".to_owned()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_are_json_if_asked_for() {
    let mut command = downpour(&["serve", "--port", "0", "--log-format", "json"]);
    let mut task = Task::start(command.env("DOWNPOUR_LOG", "trace").stderr(Stdio::piped()));
    let stderr = task.child.stderr.take().unwrap();
    let _health = health_of(&task.address()).await;
    let line = tokio::task::spawn_blocking(move || {
        let mut line = String::new();
        BufReader::new(stderr).read_line(&mut line).unwrap();
        line
    });
    let said: serde_json::Value = serde_json::from_str(&line.await.unwrap()).unwrap();
    assert!(
        said["level"].is_string() && said["timestamp"].is_string(),
        "{said}"
    );
}

#[test]
fn levels_and_variables_that_are_wrong() {
    for (args, name, value, want) in [
        (
            &["--log", "loud"][..],
            "X",
            "",
            "--log is 'loud'; it must be one of off, error, ",
        ),
        (
            &[],
            "DOWNPOUR_LOG",
            "loud",
            "--log is 'loud'; it must be one of off, error, ",
        ),
        (
            &["--log-format", "xml"],
            "X",
            "",
            "--log-format is 'xml'; it must be text or json",
        ),
        (
            &[],
            "DOWNPOUR_THREADS",
            "0",
            "--threads is 0; it must be at least 1",
        ),
        (
            &[],
            "DOWNPOUR_CONFIG",
            "/nowhere",
            "--config: cannot read '/nowhere'",
        ),
    ] {
        let mut command = downpour(&["serve", "--port", "0"]);
        let output = run(command.args(args).env(name, value));
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.starts_with(&format!("error: {want}")), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
fn shells_get_completions_and_manuals() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = run(&mut downpour(&["completions", shell]));
        let script = String::from_utf8(output.stdout).unwrap();
        assert!(
            script.contains("inspect") && script.contains("exit-when-done"),
            "{shell}"
        );
        // What the program starts by itself is nobody else's.
        for internal in ["demo-worker", "demo-sandblaster", "job-guard"] {
            assert!(!script.contains(internal), "{shell} offers {internal}");
        }
        assert!(output.status.success());
    }
    let page = run(&mut downpour(&["man"])).stdout;
    assert!(String::from_utf8(page).unwrap().contains(".TH downpour 1"));
    let dir = tempfile::tempdir().unwrap();
    let output = run(&mut downpour(&[
        "man",
        "--out",
        dir.path().to_str().unwrap(),
    ]));
    assert!(output.status.success());
    assert!(dir.path().join("downpour-inspect-checkpoint.1").exists());
    assert_eq!(
        run(&mut downpour(&["completions", "csh"])).status.code(),
        Some(2)
    );
}

#[test]
fn a_misspelled_command_is_not_led_to_one_that_is_not_for_people() {
    let output = run(&mut downpour(&["demoo"]));
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains("'demo'") && !said.contains("demo-worker"),
        "{said}"
    );
}

#[test]
fn examples_in_the_help_are_indented_alike() {
    for command in [
        &["serve"][..],
        &["run"],
        &["dashboard"],
        &["inspect", "record"],
        &["inspect", "cluster"],
        &["completions"],
        &["man"],
    ] {
        let output = run(&mut downpour(&[command, &["--help"]].concat()));
        let help = String::from_utf8(output.stdout).unwrap();
        let after = help.lines().skip_while(|line| !line.contains("Examples"));
        let examples: Vec<&str> = after.skip(1).take_while(|line| !line.is_empty()).collect();
        assert!(examples.len() > 1, "{command:?}: {help}");
        for line in examples {
            let is_indented = line.starts_with("  ") && !line.starts_with("   ");
            assert!(is_indented, "{command:?}: {line:?}");
        }
    }
}
