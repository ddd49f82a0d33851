//! The launcher on a cluster that is told what to do: an API on a socket that keeps objects, makes pods for Jobs as their
//! controller does, and lets a test say what becomes of them. How a real cluster behaves is tried by `cargo xtask engines
//! kubernetes`; here it is the order of things that is tested, and what is asked for.

use super::api::Api;
use super::manifests::ROLE_LABEL;
use super::*;
use crate::launcher::{Launcher, Setup};
use crate::output::Listener;
use crate::remote::Remote;
use crate::{JobState, Outcome};
use parking_lot::Condvar;
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc;

/// What a step of these tests may take on a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Default)]
struct World {
    /// By path.
    objects: BTreeMap<String, Value>,
    pods: BTreeMap<String, Value>,
    events: Vec<Value>,
    /// What was asked for, without looks.
    asked: Vec<String>,
    made: u32,
    launchers: u32,
    /// Programs end with 0 as soon as they have started.
    is_quick: bool,
}

/// A cluster.
struct Fake {
    world: Mutex<World>,
    changed: Condvar,
    _folder: tempfile::TempDir,
    socket: std::path::PathBuf,
}

impl Fake {
    fn start() -> Arc<Fake> {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("api");
        let listener = UnixListener::bind(&socket).unwrap();
        let fake = Arc::new(Fake {
            world: Mutex::default(),
            changed: Condvar::new(),
            _folder: folder,
            socket,
        });
        let own = fake.clone();
        // Ends with the tests.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let own = own.clone();
                std::thread::spawn(move || own.answer(stream));
            }
        });
        fake
    }

    fn launcher(&self, spec: &JobSpec, dir: &Path) -> Result<Launcher, String> {
        // A socket of its own, as it is removed with its user.
        self.world.lock().launchers += 1;
        let number = self.world.lock().launchers;
        let own = self.socket.with_extension(number.to_string());
        std::os::unix::fs::symlink(&self.socket, &own).unwrap();
        let site = Cluster::on(Arc::new(Api::at(own)), "team".to_owned(), spec)?;
        let inbox = mpsc::channel();
        let remote = Remote::on(Arc::new(site), spec, &inbox.0)?;
        let mut spec = spec.clone();
        spec.dir = Some(dir.to_owned());
        Launcher::prepare_on(Some(remote), spec, Setup::default(), inbox).map_err(|e| e.to_string())
    }

    fn answer(&self, mut stream: UnixStream) {
        let mut from = BufReader::new(stream.try_clone().unwrap());
        let mut first = String::new();
        from.read_line(&mut first).unwrap();
        let mut length = 0;
        loop {
            let mut line = String::new();
            from.read_line(&mut line).unwrap();
            if let Some(text) = line.to_lowercase().strip_prefix("content-length:") {
                length = text.trim().parse().unwrap();
            }
            if line.trim().is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        from.read_exact(&mut body).unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let mut words = first.split(' ');
        let (method, path) = (words.next().unwrap(), words.next().unwrap_or_default());
        let (plain, query) = path.split_once('?').unwrap_or((path, ""));
        if query.contains("watch=1") {
            return self.tell(&mut stream, query);
        }
        if plain.ends_with("/log") {
            return self.print(&mut stream, plain);
        }
        let (status, answer) = self.change(method, plain, query, &body);
        let text = answer.to_string();
        // Who asked may be gone.
        let _ = write!(
            stream,
            "HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n{text}",
            text.len()
        );
    }

    fn change(&self, method: &str, plain: &str, query: &str, body: &Value) -> (u16, Value) {
        let missing = (
            404,
            json!({"kind": "Status", "message": format!("{plain} not found")}),
        );
        let mut world = self.world.lock();
        if method != "GET" && !query.contains("dryRun") {
            world.asked.push(format!("{method} {plain}"));
        }
        let answer = match (method, plain.rsplit_once('/').unwrap_or_default()) {
            ("GET", (_, "pods")) => {
                let items: Vec<&Value> = world.pods.values().collect();
                let version = world.events.len().to_string();
                (
                    200,
                    json!({"metadata": {"resourceVersion": version}, "items": items}),
                )
            }
            ("GET", (_, "team")) => (200, json!({})),
            ("GET", (_, "jobs" | "events")) => (200, json!({"items": []})),
            ("GET", _) => world
                .objects
                .get(plain)
                .map_or(missing, |o| (200, o.clone())),
            ("POST", _) if query.contains("dryRun") => (201, body.clone()),
            ("POST", (_, kind)) => {
                let name = body["metadata"]["name"].as_str().unwrap();
                if world.objects.contains_key(&format!("{plain}/{name}")) {
                    return (409, json!({"message": format!("{name} already exists")}));
                }
                world
                    .objects
                    .insert(format!("{plain}/{name}"), body.clone());
                if kind == "jobs" {
                    for index in 0..body["spec"]["completions"].as_u64().unwrap() {
                        world.make(body, index);
                    }
                }
                (201, body.clone())
            }
            ("PATCH", _) => match world.objects.get_mut(plain) {
                None => missing,
                Some(object) => {
                    manifests::merge(&mut object["spec"], &body["spec"]);
                    let notes = &body["metadata"]["annotations"];
                    manifests::merge(&mut object["metadata"]["annotations"], notes);
                    let job = object.clone();
                    if body["spec"]["suspend"] == true {
                        world.end_all(&job, 143);
                    }
                    (200, job)
                }
            },
            ("DELETE", (_, "jobs")) => {
                world.objects.retain(|path, _| !path.contains("/jobs/"));
                let names: Vec<String> = world.pods.keys().cloned().collect();
                names.iter().for_each(|name| world.remove(name));
                (200, json!({}))
            }
            ("DELETE", (_, name)) if world.pods.contains_key(name) => {
                let name = name.to_owned();
                world.lose(&name, 137);
                (200, json!({}))
            }
            ("DELETE", _) => world.objects.remove(plain).map_or(missing, |o| (200, o)),
            _ => missing,
        };
        self.changed.notify_all();
        answer
    }

    /// A watch: all that happened after a version.
    fn tell(&self, stream: &mut UnixStream, query: &str) {
        let version = query.split("resourceVersion=").nth(1).unwrap_or_default();
        let mut next: usize = version.parse().unwrap_or(0);
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        if stream.write_all(head.as_bytes()).is_err() {
            return;
        }
        let mut say = |text: &str| write!(stream, "{:x}\r\n{text}\r\n", text.len()).is_ok();
        loop {
            let mut world = self.world.lock();
            if world.events.len() == next {
                self.changed
                    .wait_for(&mut world, Duration::from_millis(100));
            }
            let fresh: Vec<Value> = world.events.get(next..).unwrap_or_default().to_vec();
            next += fresh.len();
            drop(world);
            for event in fresh {
                if !say(&format!("{event}\n")) {
                    return;
                }
            }
        }
    }

    /// A log: one line, then nothing until the container has ended.
    fn print(&self, stream: &mut UnixStream, plain: &str) {
        let name = plain.rsplit('/').nth(1).unwrap_or_default().to_owned();
        let text = format!("2026-01-01T00:00:00.000000001Z downpour listens on grpc://{name}\n");
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        let _ = write!(stream, "{head}{:x}\r\n{text}\r\n", text.len());
        let mut world = self.world.lock();
        let runs = |world: &World| {
            let pod = world.pods.get(&name);
            pod.is_some_and(|p| p["status"]["phase"] == "Running")
        };
        let begin = Instant::now();
        while runs(&world) && begin.elapsed() < PATIENCE {
            self.changed
                .wait_for(&mut world, Duration::from_millis(100));
        }
        let _ = write!(stream, "0\r\n\r\n");
    }

    /// Waits until a pod of a task runs that is not this one.
    fn await_pod(&self, role: &str, index: u32, before: &str) -> String {
        let (begin, wanted) = (Instant::now(), index.to_string());
        let mut world = self.world.lock();
        loop {
            let own = world.pods.iter().find(|(name, pod)| {
                pod["metadata"]["labels"][ROLE_LABEL] == role
                    && name.as_str() != before
                    && pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"]
                        == wanted.as_str()
            });
            if let Some((name, _)) = own {
                return name.clone();
            }
            assert!(begin.elapsed() < PATIENCE, "no pod of {role}:{index}");
            self.changed
                .wait_for(&mut world, Duration::from_millis(100));
        }
    }

    fn lose(&self, pod: &str, code: i32) {
        self.world.lock().lose(pod, code);
        self.changed.notify_all();
    }

    fn end(&self, pod: &str, code: i32) {
        self.world.lock().end(pod, code);
        self.changed.notify_all();
    }
}

impl World {
    fn make(&mut self, job: &Value, index: u64) {
        self.made += 1;
        let labels = &job["metadata"]["labels"];
        let name = format!(
            "{}-{index}-{}",
            job["metadata"]["name"].as_str().unwrap(),
            self.made
        );
        let pod = json!({
            "metadata": {
                "name": name, "uid": format!("uid-{}", self.made), "labels": labels,
                "creationTimestamp": format!("2026-01-01T00:00:{:02}Z", self.made),
                "annotations": {"batch.kubernetes.io/job-completion-index": index.to_string()},
            },
            "spec": {"nodeName": "node0"},
            "status": {"phase": "Running", "containerStatuses": [
                {"name": "task", "restartCount": 0, "state": {"running": {}}},
            ]},
        });
        self.pods.insert(name.clone(), pod.clone());
        self.events.push(json!({"type": "ADDED", "object": pod}));
        if self.is_quick && labels[ROLE_LABEL] != "ps" {
            self.end(&name, 0);
        }
    }

    fn end(&mut self, name: &str, code: i32) {
        let Some(pod) = self.pods.get_mut(name) else {
            return;
        };
        if pod["status"]["phase"] != "Running" {
            return;
        }
        pod["status"]["phase"] = json!(if code == 0 { "Succeeded" } else { "Failed" });
        pod["status"]["containerStatuses"][0]["state"] =
            json!({"terminated": {"exitCode": code, "reason": "Error"}});
        let pod = pod.clone();
        self.events.push(json!({"type": "MODIFIED", "object": pod}));
    }

    /// A pod ends, and its Job makes another.
    fn lose(&mut self, name: &str, code: i32) {
        self.end(name, code);
        let Some(pod) = self.pods.get(name).cloned() else {
            return;
        };
        let index =
            pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"].clone();
        let jobs: Vec<Value> = self
            .objects
            .values()
            .filter(|o| o["kind"] == "Job")
            .cloned()
            .collect();
        let own = jobs
            .iter()
            .find(|job| job["metadata"]["labels"] == pod["metadata"]["labels"]);
        if let Some(job) = own.filter(|job| job["spec"]["suspend"] != true) {
            self.make(job, index.as_str().unwrap().parse().unwrap());
        }
    }

    fn end_all(&mut self, job: &Value, code: i32) {
        let labels = &job["metadata"]["labels"];
        let own = self
            .pods
            .iter()
            .filter(|(_, pod)| pod["metadata"]["labels"] == *labels);
        let names: Vec<String> = own.map(|(name, _)| name.clone()).collect();
        names.iter().for_each(|name| self.end(name, code));
    }

    fn remove(&mut self, name: &str) {
        if let Some(pod) = self.pods.remove(name) {
            self.events.push(json!({"type": "DELETED", "object": pod}));
        }
    }
}

fn spec(ps: u32, workers: u32) -> JobSpec {
    let mut spec = JobSpec::new(
        "t",
        vec!["/train".to_owned()],
        &[("ps", ps), ("worker", workers)],
    );
    spec.on = crate::site::On::Kubernetes;
    spec.kubernetes.image = Some("i".to_owned());
    spec.kubernetes.lease = Duration::ZERO;
    spec.env.insert("TOKEN".to_owned(), "x".to_owned());
    spec.restart.backoff = Duration::from_millis(1);
    spec
}

fn run(launcher: Launcher) -> std::thread::JoinHandle<(Outcome, JobState)> {
    let listener: Listener = Arc::new(|_, _, _| {});
    std::thread::spawn(move || launcher.run(&listener).unwrap())
}

fn await_state(monitor: &crate::Monitor, is_meant: impl Fn(&JobState) -> bool) {
    let begin = Instant::now();
    let mut state = monitor.snapshot();
    while !is_meant(&state) {
        assert!(begin.elapsed() < PATIENCE, "{}", happened(&state));
        state = monitor.wait(state.version, Duration::from_secs(1));
    }
}

fn happened(state: &JobState) -> String {
    let lines: Vec<String> = state.happenings.iter().map(ToString::to_string).collect();
    lines.join("\n")
}

#[test]
fn a_job_begins_with_its_servers_and_leaves_nothing() {
    let (fake, dir) = (Fake::start(), tempfile::tempdir().unwrap());
    fake.world.lock().is_quick = true;
    let launcher = fake.launcher(&spec(2, 2), dir.path()).unwrap();
    let (outcome, state) = run(launcher).join().unwrap();
    assert_eq!(outcome, Outcome::Done, "{}", happened(&state));
    let world = fake.world.lock();
    assert!(
        world.objects.is_empty() && world.pods.is_empty(),
        "{:?}",
        world.objects.keys()
    );
    let base = "/api/v1/namespaces/team";
    let jobs = "/apis/batch/v1/namespaces/team/jobs";
    let asked = world.asked.iter().map(String::as_str);
    let mut asked: Vec<&str> = asked.filter(|a| !a.contains("DELETE")).collect();
    // Each server is asked to end by its Job.
    asked.dedup();
    assert_eq!(
        asked,
        [
            format!("POST {base}/secrets"),
            format!("POST {base}/services"),
            format!("POST {jobs}"),
            format!("PATCH {jobs}/t-ps"),
            format!("PATCH {base}/services/t"),
        ]
    );
    let log = std::fs::read_to_string(state.dir.join("logs/ps-1.log")).unwrap();
    assert!(log.contains("downpour listens on grpc://t-ps-1"), "{log}");
}

#[test]
fn what_fails_is_started_again_by_the_cluster_and_counted_here() {
    let (fake, dir) = (Fake::start(), tempfile::tempdir().unwrap());
    let launcher = fake.launcher(&spec(1, 2), dir.path()).unwrap();
    let monitor = launcher.monitor();
    let job = run(launcher);
    let worker = fake.await_pod("worker", 1, "");
    await_state(&monitor, |state| {
        state.tasks.iter().all(|task| task.starts == 1)
    });
    fake.lose(&worker, 137);
    let again = fake.await_pod("worker", 1, &worker);
    let server = fake.await_pod("ps", 0, "");
    fake.lose(&server, 137);
    await_state(&monitor, |state| {
        state.tasks[0].starts == 2 && state.tasks[2].starts == 2
    });
    fake.end(&again, 0);
    fake.end(&fake.await_pod("worker", 0, ""), 0);
    let (outcome, state) = job.join().unwrap();
    assert_eq!(outcome, Outcome::Done, "{}", happened(&state));
    let starts: Vec<u32> = state.tasks.iter().map(|task| task.starts).collect();
    assert_eq!(starts, [2, 1, 2], "{}", happened(&state));
}

#[test]
fn a_program_that_fails_for_good_ends_the_job_with_its_code() {
    let (fake, dir) = (Fake::start(), tempfile::tempdir().unwrap());
    let mut spec = spec(1, 1);
    spec.restart.limit = 0;
    let launcher = fake.launcher(&spec, dir.path()).unwrap();
    let job = run(launcher);
    fake.end(&fake.await_pod("worker", 0, ""), 3);
    let (outcome, state) = job.join().unwrap();
    assert_eq!(outcome.code(), 3, "{}", happened(&state));
    assert!(fake.world.lock().objects.is_empty());
}

#[test]
fn a_launcher_that_comes_later_takes_the_run_over_and_starts_nothing() {
    let (fake, dir) = (Fake::start(), tempfile::tempdir().unwrap());
    let spec = spec(1, 1);
    // The first reaches nobody any more, as if it had been killed.
    let first = fake.launcher(&spec, dir.path()).unwrap();
    run(first);
    let worker = fake.await_pod("worker", 0, "");
    std::fs::remove_file(fake.socket.with_extension("1")).unwrap();
    let second = fake.launcher(&spec, dir.path()).unwrap();
    let other = JobSpec {
        command: vec!["/other".to_owned()],
        ..spec.clone()
    };
    let error = fake.launcher(&other, dir.path()).err().unwrap();
    assert!(
        error.contains("runs already with another description"),
        "{error}"
    );
    let job = run(second);
    fake.end(&worker, 0);
    let (outcome, state) = job.join().unwrap();
    assert_eq!(outcome, Outcome::Done, "{}", happened(&state));
    assert_eq!(fake.world.lock().made, 2, "one pod for each task");
}

#[test]
fn ctrl_c_asks_programs_before_servers() {
    let (fake, dir) = (Fake::start(), tempfile::tempdir().unwrap());
    let launcher = fake.launcher(&spec(1, 1), dir.path()).unwrap();
    let control = launcher.control();
    let job = run(launcher);
    fake.await_pod("worker", 0, "");
    control.interrupt(2);
    let (outcome, state) = job.join().unwrap();
    assert_eq!(outcome, Outcome::Interrupted(2), "{}", happened(&state));
    let world = fake.world.lock();
    let suspended: Vec<&String> = world
        .asked
        .iter()
        .filter(|a| a.starts_with("PATCH /apis"))
        .collect();
    assert!(
        suspended[0].ends_with("t-worker") && suspended[1].ends_with("t-ps"),
        "{suspended:?}"
    );
    assert!(world.objects.is_empty() && world.pods.is_empty());
}
