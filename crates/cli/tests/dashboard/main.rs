//! `--dashboard` and `inspect cluster` on real tasks: what they say of tasks that live, die and
//! come back, and what they do not say to those who should not hear it.

#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

#[path = "../serve/process.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod process;

use ::downpour::train::{DownpourSgd, GradientDescent, Minimize as _, Supervision, global_step};
use ::downpour::{Graph, Init};
use process::{Task, downpour, run};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long something may take that takes about a second.
const LONG: Duration = Duration::from_secs(60);

/// A parameter server and a worker; the worker has a dashboard.
struct Pair {
    cluster: String,
    ps: Task,
    _worker: Task,
    /// Where the dashboard listens.
    page: String,
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

fn serve(cluster: &str, job: &str, more: &[&str]) -> Task {
    let args = ["serve", "--cluster", cluster, "--job", job, "--task", "0"];
    Task::start(&mut downpour(&[&args[..], more].concat()))
}

impl Pair {
    fn start(more: &[&str]) -> Pair {
        let (a, b) = (free_port(), free_port());
        let cluster = format!(r#"{{"ps": ["127.0.0.1:{a}"], "worker": ["127.0.0.1:{b}"]}}"#);
        let ps = serve(&cluster, "ps", &[]);
        let mut worker = serve(&cluster, "worker", &[&["--dashboard", "0"], more].concat());
        let page = loop {
            let line = worker.line();
            assert!(!line.is_empty(), "no dashboard was announced");
            if let Some(url) = line.strip_prefix("dashboard at http://") {
                break url.trim().trim_end_matches('/').to_owned();
            }
        };
        Pair {
            cluster,
            ps,
            _worker: worker,
            page,
        }
    }

    fn get(&self, target: &str, host: &str) -> (String, String) {
        let mut socket = TcpStream::connect(&self.page).unwrap();
        // A dashboard that answers no more fails the test instead of holding it.
        socket.set_read_timeout(Some(LONG)).unwrap();
        let request = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        socket.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    }

    fn state(&self) -> Value {
        let (head, body) = self.get("/api/state", &self.page);
        assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
        serde_json::from_str(&body).unwrap()
    }

    /// Waits until the parameter server is in a phase.
    fn wait_for(&self, phase: &str) -> Value {
        let begin = Instant::now();
        loop {
            let state = self.state();
            if state["tasks"][0]["phase"] == phase {
                return state;
            }
            assert!(begin.elapsed() < LONG, "not {phase}: {state}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

#[test]
fn a_task_that_dies_is_shown_and_so_is_its_return() {
    let mut pair = Pair::start(&[]);
    let state = pair.wait_for("alive");
    assert_eq!(state["tasks"][0]["short"], "ps:0");
    assert!(state["tasks"][0]["memory"].as_u64().unwrap() > 0);
    pair.ps.child.kill().unwrap();
    pair.ps.child.wait().unwrap();
    let state = pair.wait_for("lost");
    let kinds = |state: &Value| -> Vec<String> {
        let events = state["events"].as_array().unwrap().iter();
        let of_ps = events.filter(|e| e["task"] == "ps:0");
        of_ps
            .map(|e| e["kind"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(kinds(&state), ["start", "loss"]);
    let (_, metrics) = pair.get("/metrics", &pair.page);
    assert!(
        metrics.contains("downpour_task_up{task=\"ps:0\"} 0\n"),
        "{metrics}"
    );
    pair.ps = serve(&pair.cluster, "ps", &[]);
    let state = pair.wait_for("alive");
    assert_eq!(kinds(&state), ["start", "loss", "restart"]);
    assert_eq!(state["tasks"][0]["restarts"], 1);
    let (_, metrics) = pair.get("/metrics", &pair.page);
    assert!(
        metrics.contains("downpour_task_up{task=\"ps:0\"} 1\n"),
        "{metrics}"
    );
    let (_, samples) = pair.get("/api/samples?since=0", &pair.page);
    let samples: Value = serde_json::from_str(&samples).unwrap();
    assert!(samples["rows"].as_array().unwrap().len() >= 2);
}

#[test]
fn only_pages_of_this_machine_may_read_it() {
    let pair = Pair::start(&[]);
    let (head, page) = pair.get("/", &pair.page);
    assert!(
        head.contains("Content-Security-Policy: default-src 'none'"),
        "{head}"
    );
    assert!(page.contains("<title>Downpour</title>"));
    for host in ["evil.example", "127.0.0.1:1", ""] {
        let (head, _) = pair.get("/api/state", host);
        assert!(head.starts_with("HTTP/1.1 403"), "{host}: {head}");
    }
    for target in ["/../../etc/passwd", "/%2e%2e/x", "/api/", "/assets"] {
        let (head, _) = pair.get(target, &pair.page);
        assert!(head.starts_with("HTTP/1.1 404"), "{target}: {head}");
    }
}

#[test]
fn what_cannot_be_shown_is_refused_in_one_line() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    for (args, wanted) in [
        (&["--dashboard", &port][..], "the port is in use"),
        (&["--dashboard", "many"], "it must be a port, or HOST:PORT"),
        (&["--dashboard", "99999"], "it must be a port, or HOST:PORT"),
        (&["--dashboard", "-1"], "--dashboard"),
        (&["--dashboard-dir", "/tmp"], "--dashboard"),
    ] {
        let out = run(&mut downpour(&[&["serve", "--port", "0"], args].concat()));
        let error = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(2), "{args:?}: {error}");
        assert!(error.contains(wanted), "{args:?}: {error}");
    }
}

#[test]
fn other_machines_need_the_token_that_was_printed() {
    let mut task = Task::start(&mut downpour(&[
        "serve",
        "--port",
        "0",
        "--dashboard",
        "0.0.0.0:0",
    ]));
    let line = loop {
        let line = task.line();
        assert!(!line.is_empty());
        if line.starts_with("dashboard at ") {
            break line;
        }
    };
    let (address, token) = line.trim().split_once("/?token=").unwrap();
    let port = address.rsplit(':').next().unwrap();
    assert_eq!(token.len(), 32);
    let ask = |more: &str| {
        let mut socket = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
        let request = format!("GET /metrics HTTP/1.0\r\nHost: x\r\n{more}\r\n");
        socket.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        answer
    };
    assert!(ask("").starts_with("HTTP/1.1 401"));
    assert!(ask(&format!("Authorization: Bearer {token}\r\n")).starts_with("HTTP/1.1 200"));
}

#[test]
fn a_cluster_is_inspected_through_any_of_its_tasks() {
    let mut pair = Pair::start(&[]);
    let out = run(&mut downpour(&["inspect", "cluster", &pair.ps.address()]));
    let text = String::from_utf8(out.stdout).unwrap();
    assert_eq!(out.status.code(), Some(0), "{text}");
    let rows: Vec<Vec<&str>> = text
        .lines()
        .map(|l| l.split_whitespace().collect())
        .collect();
    assert_eq!(rows[0][..3], ["TASK", "STATE", "ADDRESS"]);
    assert_eq!(rows[1][..2], ["ps:0", "alive"]);
    assert_eq!(rows[2][..2], ["worker:0", "alive"]);

    pair.ps.child.kill().unwrap();
    pair.ps.child.wait().unwrap();
    let args = ["inspect", "cluster", "--json", "--cluster", &pair.cluster];
    let out = run(&mut downpour(&args));
    let text = String::from_utf8(out.stdout).unwrap();
    assert_eq!(out.status.code(), Some(1), "{text}");
    let document: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(document["tasks"][0]["state"], "lost");
    assert_eq!(document["tasks"][1]["state"], "alive");
    let devices = document["tasks"][1]["report"]["devices"]
        .as_array()
        .unwrap();
    assert_eq!(devices.len(), 1);
    let error = String::from_utf8(out.stderr).unwrap();
    assert!(error.contains("no answer from ps:0"), "{error}");
}

/// Two replicas, of which the first holds its gradient back while the other pushes three.
fn pour(worker: &str) {
    let replica = |number: usize, push_every: u64| {
        let g = Graph::new();
        let (step, w) = g.with_device("/job:ps/task:0", || {
            let w = g.variable("w").init(Init::value(1.0f32)).build();
            (global_step(&g), w)
        });
        let settings = DownpourSgd::new(3, number).in_turn();
        let settings = settings.fetch_every(push_every).push_every(push_every);
        let training = settings.minimize(&GradientDescent::new(0.1), &w.square(), &step);
        let training = training.unwrap();
        let session = Supervision::new(format!("grpc://{worker}"), &g);
        let session = session.chief(number == 0).open().unwrap();
        (training.replica(), session)
    };
    let (mut slow, mut slows) = replica(0, 2);
    let (mut quick, mut quicks) = replica(1, 1);
    slow.step(&mut slows, &[]).unwrap();
    for _ in 0..3 {
        quick.step(&mut quicks, &[]).unwrap();
    }
    slow.step(&mut slows, &[]).unwrap();
}

#[test]
fn how_stale_updates_are_is_shown_by_replica_and_by_variable() {
    let pair = Pair::start(&[]);
    pour(&pair._worker.address());
    let out = run(&mut downpour(&["inspect", "cluster", &pair.ps.address()]));
    let text = String::from_utf8(out.stdout).unwrap();
    let rows: Vec<Vec<&str>> = text
        .lines()
        .map(|l| l.split_whitespace().collect())
        .collect();
    let has = |row: &[&str]| rows.iter().any(|r| r == row);
    let head = ["UPDATED", "BY", "IN", "STEPS", "UPDATES", "STALE", "WORST"];
    assert!(has(&head), "{text}");
    assert!(
        has(&["replica", "0", "downpour", "2", "1", "3.00", "3"]),
        "{text}"
    );
    assert!(
        has(&["replica", "1", "downpour", "3", "3", "0.00", "0"]),
        "{text}"
    );
    assert!(
        has(&["replica", "2", "downpour", "away", "0", "-", "-"]),
        "{text}"
    );
    // The first value, and four updates of which one was late by three.
    let w = rows.iter().find(|r| r.first() == Some(&"w")).unwrap();
    assert_eq!(w[w.len() - 3..], ["5", "0.75", "3"], "{text}");

    let args = ["inspect", "cluster", "--json", &pair.ps.address()];
    let out = run(&mut downpour(&args));
    let document: Value = serde_json::from_slice(&out.stdout).unwrap();
    let first = &document["writers"][0];
    assert_eq!((&first["replica"], &first["clock"]), (&json!(0), &json!(2)));
    assert_eq!(document["trained"]["w"]["worst"], 3, "{document}");

    let begin = Instant::now();
    let state = loop {
        let state = pair.state();
        if state["writers"][0]["stale"]["worst"] == 3 {
            break state;
        }
        assert!(begin.elapsed() < LONG, "{state}");
        std::thread::sleep(Duration::from_millis(100));
    };
    assert_eq!(state["writers"][0]["name"], "replica 0");
    assert_eq!(state["writers"][2]["clock"], Value::Null);
    let counts = state["staleness"]["counts"].as_array().unwrap();
    assert_eq!((&counts[0], &counts[3]), (&json!(3), &json!(1)));
    let (_, metrics) = pair.get("/metrics", &pair.page);
    for wanted in [
        "downpour_replica_update_staleness_sum{task=\"ps:0\",training=\"downpour\",replica=\"0\"} 3",
        "downpour_variable_worst_staleness{task=\"ps:0\",variable=\"w\"} 3",
    ] {
        assert!(
            metrics.lines().any(|l| l == wanted),
            "no {wanted} in {metrics}"
        );
    }
}

/// Makes three steps through a worker, and leaves as it should.
fn train(worker: &str) {
    let g = Graph::new();
    let count = g.with_device("/job:ps/task:0", || {
        global_step(&g).assign_add(&g.constant(1i64))
    });
    let session = Supervision::new(format!("grpc://{worker}"), &g);
    let mut session = session.open().unwrap();
    for _ in 0..3 {
        session.step().target(&count).run().unwrap();
    }
    session.close().unwrap();
}

#[test]
fn a_worker_that_has_finished_is_done_and_not_lost() {
    let mut pair = Pair::start(&[]);
    train(&pair._worker.address());
    let args = ["inspect", "cluster", "--json", &pair.ps.address()];
    let ask = || {
        let out = run(&mut downpour(&args));
        let document: Value = serde_json::from_slice(&out.stdout).unwrap();
        (out.status.code(), document)
    };
    let begin = Instant::now();
    loop {
        let (_, document) = ask();
        assert_eq!(document["global_step"], 3, "{document}");
        if document["tasks"][0]["report"]["guests"] == json!([]) {
            break;
        }
        assert!(begin.elapsed() < LONG, "{document}");
        std::thread::sleep(Duration::from_millis(100));
    }
    pair._worker.child.kill().unwrap();
    pair._worker.child.wait().unwrap();
    let (code, document) = ask();
    assert_eq!(document["tasks"][1]["state"], "done", "{document}");
    assert_eq!(code, Some(0));
}

#[test]
fn wrong_questions_about_clusters_end_with_2() {
    for (args, wanted) in [
        (&[][..], "which cluster?"),
        (&["127.0.0.1:1"], "127.0.0.1:1"),
        (&["nonsense"], "nonsense"),
        (&["--cluster", "{"], "--cluster"),
        (&["--cluster", "/no/such/file"], "--cluster"),
        (&["--timeout", "soon", "a:1"], "--timeout"),
    ] {
        let out = run(&mut downpour(&[&["inspect", "cluster"], args].concat()));
        let error = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(2), "{args:?}: {error}");
        assert!(error.contains(wanted), "{args:?}: {error}");
    }
}

#[test]
fn an_alert_is_told_to_a_command_once() {
    let dir = tempfile::tempdir().unwrap();
    let heard = dir.path().join("heard");
    let command = format!("cat >> {0}.new; mv {0}.new {0}", heard.display());
    let mut pair = Pair::start(&["--on-alert", &command]);
    pair.wait_for("alive");
    pair.ps.child.kill().unwrap();
    pair.ps.child.wait().unwrap();
    let state = pair.wait_for("lost");
    assert!(state["alerts"].is_array());
    let begin = Instant::now();
    let said = loop {
        match std::fs::read_to_string(&heard) {
            Ok(said) => break said,
            Err(_) => assert!(begin.elapsed() < LONG, "no alert: {}", pair.state()),
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let alert: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(alert["kind"], "lost");
    assert_eq!(alert["text"], "ps:0 does not answer");
    assert_eq!(alert["job"], "worker:0");
    assert_eq!(pair.state()["alerts"][0]["kind"], "lost");
}

/// Takes one request of HTTP/1 with its content, answers it, and gives it back.
fn take_post(listener: &TcpListener) -> (String, String) {
    let (mut socket, _) = listener.accept().unwrap();
    socket.set_read_timeout(Some(LONG)).unwrap();
    let mut taken = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&taken).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let lines = head.lines().map(str::to_ascii_lowercase);
            let mut lengths =
                lines.filter_map(|l| l.strip_prefix("content-length: ")?.parse().ok());
            let length: usize = lengths.next().unwrap();
            if body.len() >= length {
                socket
                    .write_all(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
                    .unwrap();
                return (head.to_owned(), body.to_owned());
            }
        }
        let mut piece = [0; 4096];
        let n = socket.read(&mut piece).unwrap();
        assert!(n > 0, "the sender left in the middle of {text}");
        taken.extend_from_slice(&piece[..n]);
    }
}

#[test]
fn an_alert_is_posted_to_an_address() {
    let hook = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/hook", hook.local_addr().unwrap());
    let mut pair = Pair::start(&["--on-alert", &address]);
    pair.wait_for("alive");
    pair.ps.child.kill().unwrap();
    pair.ps.child.wait().unwrap();
    // The alert is raised before anybody is told.
    pair.wait_for("lost");
    let (send, received) = std::sync::mpsc::channel();
    std::thread::spawn(move || send.send(take_post(&hook)));
    let (head, body) = received.recv_timeout(LONG).unwrap();
    assert!(head.starts_with("POST /hook HTTP/1.1"), "{head}");
    let head = head.to_ascii_lowercase();
    assert!(head.contains("content-type: application/json"), "{head}");
    let alert: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        (&alert["kind"], &alert["text"]),
        (&json!("lost"), &json!("ps:0 does not answer"))
    );
}

/// Trains until it is told to stop: a variable of the parameter server, a gradient of the worker.
fn train_on(worker: &str, stop: &AtomicBool) {
    let g = Graph::new();
    let (step, w) = g.with_device("/job:ps/task:0", || {
        let w = g.variable("w").init(Init::value(1.0f32)).build();
        (global_step(&g), w)
    });
    let train = g.with_device("/job:worker/task:0", || {
        let loss = w.square();
        let optimizer = GradientDescent::new(0.1);
        optimizer.minimize(&loss, Some(&step)).unwrap()
    });
    let session = Supervision::new(format!("grpc://{worker}"), &g);
    let mut session = session.open().unwrap();
    while !stop.load(Ordering::Relaxed) {
        session.step().target(&train).run().unwrap();
    }
    session.close().unwrap();
}

#[test]
fn a_step_is_recorded_on_demand_with_what_each_task_computed_and_waited_for() {
    let pair = Pair::start(&[]);
    let state = pair.wait_for("alive");
    assert_eq!(state["recording"]["count"], 0);
    let (worker, stop) = (pair._worker.address(), AtomicBool::new(false));
    let trace: Value = std::thread::scope(|threads| {
        threads.spawn(|| train_on(&worker, &stop));
        let _stops = Stops(&stop);
        let begin = Instant::now();
        // Before its first step a session does other things, which may be larger.
        let is_under_way = |state: &Value| state["global_step"]["value"].as_i64() > Some(0);
        loop {
            let state = pair.state();
            if state["recording"]["count"].as_u64() > Some(0) {
                break;
            }
            if is_under_way(&state) && state["recording"]["is_running"] == false {
                let (head, _) = pair.get("/api/record", &pair.page);
                assert!(head.starts_with("HTTP/1.1 200"), "{head}");
            }
            assert!(begin.elapsed() < LONG, "{state}");
            std::thread::sleep(Duration::from_millis(100));
        }
        let (_, body) = pair.get("/api/timeline", &pair.page);
        serde_json::from_str(&body).unwrap()
    });
    let events = trace["traceEvents"].as_array().unwrap();
    let device = |pid: &Value| {
        let mut names = events.iter().filter(|e| e["ph"] == "M" && e["pid"] == *pid);
        let found = names.find(|e| e["name"] == "process_name").unwrap();
        assert_eq!(found["args"]["step_of"], "worker:0");
        found["args"]["name"].as_str().unwrap().to_owned()
    };
    let (mut computed, mut waits) = (BTreeSet::new(), Vec::new());
    for event in events.iter().filter(|e| e["ph"] == "X") {
        match event["name"] == "RecvTensor" {
            true => waits.push(event["args"]["label"].as_str().unwrap()),
            false => _ = computed.insert(device(&event["pid"])),
        }
    }
    for task in ["ps", "worker"] {
        let is_there = |d: &String| d.contains(&format!("/job:{task}/replica:0/task:0/"));
        assert!(computed.iter().any(is_there), "{task} in {computed:?}");
    }
    let wait = |from: &str, to: &str| {
        let (from, to) = (format!(" from /job:{from}/"), format!(" to /job:{to}/"));
        let is_it = |label: &&str| label.contains(&from) && label.contains(&to);
        assert!(waits.iter().any(is_it), "{from}{to}: {waits:?}");
    };
    wait("ps", "worker");
    wait("worker", "ps");
}

/// Sets a flag when dropped: a test that fails must not leave a thread that goes on.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
