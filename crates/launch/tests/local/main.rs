//! The launcher with real processes: shell scripts in place of servers and programs.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use downpour_launch::{
    JobSpec, JobState, LaunchError, Launcher, Listener, Monitor, Outcome, Printed, Setup, TaskName,
    TaskPhase,
};
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Nothing here takes longer, even on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
/// Stands in for `downpour`.
const SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/local/server.sh");

/// A place for a run's directory.
struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        Place {
            dir: tempfile::tempdir().unwrap(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn spec(&self, program: &str, counts: &[(&str, u32)]) -> JobSpec {
        let command = ["sh", "-c", program, "sh", "{job}:{task}"]
            .map(str::to_owned)
            .to_vec();
        let mut spec = JobSpec::new("test", command, counts);
        spec.dir = Some(self.path("run"));
        spec.restart.backoff = Duration::from_millis(10);
        spec.drain = Duration::from_secs(1);
        spec
    }

    fn prepare(&self, spec: JobSpec) -> Result<Launcher, LaunchError> {
        let setup = Setup {
            server: SERVER.to_owned(),
            path: "/usr/bin:/bin".into(),
            ..Setup::default()
        };
        Launcher::prepare(spec, setup)
    }

    fn run(&self, spec: JobSpec) -> (Outcome, JobState, Vec<String>) {
        let heard = Heard::default();
        let (outcome, state) = self.prepare(spec).unwrap().run(&heard.listener()).unwrap();
        let lines = heard.lines.lock().clone();
        (outcome, state, lines)
    }

    fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.path("run").join(name)).unwrap()
    }
}

#[derive(Clone, Default)]
struct Heard {
    lines: Arc<Mutex<Vec<String>>>,
}

impl Heard {
    fn listener(&self) -> Listener {
        let lines = self.lines.clone();
        Arc::new(move |task: &TaskName, printed: Printed, line: &str| {
            lines.lock().push(format!("{task} {printed:?} {line}"));
        })
    }
}

/// Waits until a job is as wanted.
fn wait_for(monitor: &Monitor, is_so: impl Fn(&JobState) -> bool) -> JobState {
    let start = Instant::now();
    let mut state = monitor.snapshot();
    while !is_so(&state) {
        assert!(start.elapsed() < LIMIT, "{state:?}");
        state = monitor.wait(state.version, LIMIT);
    }
    state
}

fn exists(process: u32) -> bool {
    // A zombie has no command line.
    std::fs::read(format!("/proc/{process}/cmdline")).is_ok_and(|line| !line.is_empty())
}

#[test]
fn a_job_runs_to_its_end_and_its_output_is_heard_and_kept() {
    let place = Place::new();
    let spec = place.spec(
        "echo \"out $1 $TF_CONFIG\"; echo err >&2",
        &[("ps", 1), ("worker", 2)],
    );
    let (outcome, state, lines) = place.run(spec);
    assert_eq!(outcome, Outcome::Done);
    let phases: Vec<_> = state.tasks.iter().map(|t| t.phase).collect();
    assert_eq!(
        phases,
        [TaskPhase::Stopped, TaskPhase::Done, TaskPhase::Done]
    );
    for (task, index) in [("worker:0", 0), ("worker:1", 1)] {
        let own = format!("\"task\":{{\"index\":{index},\"type\":\"worker\"}}");
        let heard =
            |l: &&String| l.starts_with(&format!("{task} Out out {task}")) && l.contains(&own);
        assert_eq!(lines.iter().filter(heard).count(), 1, "{lines:?}");
        assert!(lines.contains(&format!("{task} Err err")));
        let log = place.log(&format!("logs/worker-{index}.log"));
        assert!(
            log.contains(&format!("out {task}")) && log.contains("err\n"),
            "{log}"
        );
    }
    let log = place.log("job.log");
    assert!(
        log.contains("ps:0 started") && log.contains("worker:1 done"),
        "{log}"
    );
}

#[test]
fn a_lost_task_comes_back_and_the_job_ends_well() {
    let place = Place::new();
    let body = "[ $1 = worker:1 ] && [ $DOWNPOUR_START -lt 3 ] && kill -9 $$; exit 0";
    let (outcome, state, _) = place.run(place.spec(body, &[("ps", 1), ("worker", 2)]));
    assert_eq!(outcome, Outcome::Done);
    assert_eq!(state.tasks[2].restarts(), 2);
    let log = place.log("job.log");
    assert!(
        log.contains("worker:1 ended with signal 9 (SIGKILL); starts again"),
        "{log}"
    );
    assert!(place.log("logs/worker-1.log").contains("start 3"));
}

#[test]
fn a_task_that_keeps_failing_ends_the_job_with_its_code() {
    let place = Place::new();
    let body = "[ $1 = worker:1 ] && exit 9; exec sleep 1000";
    let mut spec = place.spec(body, &[("ps", 1), ("worker", 2)]);
    spec.restart.limit = 1;
    let (outcome, state, _) = place.run(spec);
    assert_eq!(outcome.code(), 9);
    assert_eq!(state.tasks[1].phase, TaskPhase::Stopped);
}

#[test]
fn an_interrupt_ends_all_and_a_second_ends_even_the_stubborn() {
    let place = Place::new();
    // What a task started ends with it.
    let body = "trap '' TERM; sleep 1000 & echo child $!; while :; do sleep 1000; done";
    let mut spec = place.spec(body, &[("ps", 1), ("worker", 1)]);
    spec.drain = Duration::from_secs(1000);
    let local = place.prepare(spec).unwrap();
    let (monitor, control, heard) = (local.monitor(), local.control(), Heard::default());
    let listener = heard.listener();
    let job = std::thread::spawn(move || local.run(&listener).unwrap());
    let child = || {
        let lines = heard.lines.lock();
        let mut found = lines
            .iter()
            .filter_map(|l| l.strip_prefix("worker:0 Out child "));
        found.next().map(|n| n.parse::<u32>().unwrap())
    };
    let start = Instant::now();
    while child().is_none() {
        assert!(start.elapsed() < LIMIT);
        std::thread::yield_now();
    }
    let state = monitor.snapshot();
    let process = state.tasks[1].pid.unwrap();
    control.interrupt(2);
    wait_for(&monitor, |s| s.tasks[1].phase == TaskPhase::Stopping);
    assert!(exists(process), "it does not end when asked");
    // It may want to save, and that goes through the server.
    assert_eq!(monitor.snapshot().tasks[0].phase, TaskPhase::Running);
    // One that follows at once would be taken for the same request.
    std::thread::sleep(Duration::from_millis(400));
    control.interrupt(2);
    let (outcome, _) = job.join().unwrap();
    assert_eq!(outcome.code(), 130);
    assert!(!exists(process) && !exists(child().unwrap()));
}

#[test]
fn a_task_is_lost_on_demand() {
    let place = Place::new();
    let spec = place.spec(
        "[ $DOWNPOUR_START -gt 1 ] || exec sleep 1000",
        &[("ps", 1), ("worker", 1)],
    );
    let local = place.prepare(spec).unwrap();
    let (monitor, control) = (local.monitor(), local.control());
    assert!(!control.kill(&TaskName::new("worker", 7)));
    let job = std::thread::spawn(move || local.run(&Heard::default().listener()).unwrap());
    wait_for(&monitor, |s| s.tasks[1].phase == TaskPhase::Running);
    assert!(control.kill(&TaskName::new("worker", 0)));
    let (outcome, state) = job.join().unwrap();
    assert_eq!((outcome, state.tasks[1].restarts()), (Outcome::Done, 1));
}

#[test]
fn what_cannot_be_started_is_refused_before_anything_runs() {
    let place = Place::new();
    let refused = |change: &dyn Fn(&mut JobSpec)| {
        let mut spec = place.spec("exit 0", &[("ps", 1), ("worker", 1)]);
        change(&mut spec);
        place.prepare(spec).err().unwrap().to_string()
    };
    let error = refused(&|spec| spec.command = vec!["no-such-program".to_owned()]);
    assert_eq!(
        error,
        "worker:0: there is no program 'no-such-program' on the PATH"
    );
    assert!(!place.path("run").exists());
    let held = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = held.local_addr().unwrap().to_string();
    let error = refused(&|spec| {
        spec.tasks.get_mut("ps").unwrap().hosts = Some(vec![address.clone()]);
    });
    assert!(
        error.starts_with(&format!(
            "ps:0 cannot listen on {address}: Address already in use"
        )),
        "{error}"
    );
    let error = refused(&|spec| spec.dir = Some(PathBuf::from("/")));
    assert!(
        error.contains("the directory '/' cannot be used: a job needs a directory of its own"),
        "{error}"
    );
    let spec = place.spec("exit 0", &[("worker", 1)]);
    let kills = vec![(TaskName::new("ps", 3), Duration::ZERO)];
    let setup = Setup {
        kills,
        path: "/bin".into(),
        ..Setup::default()
    };
    let error = Launcher::prepare(spec, setup).err().unwrap().to_string();
    assert_eq!(error, "the job has no task ps:3; it has worker:0");
}

#[test]
fn a_summary_is_left_beside_the_logs() {
    let place = Place::new();
    let (outcome, state, _) = place.run(place.spec("exit 0", &[("ps", 1), ("worker", 1)]));
    let text = downpour_launch::summary(&outcome, &state);
    assert!(text.starts_with("job 'test' done after "), "{text}");
    assert!(text.contains("  worker:0  done\n"), "{text}");
    for _ in 0..2 {
        downpour_launch::write_summary(&outcome, &state).unwrap();
    }
    let json: serde_json::Value = serde_json::from_str(&place.log("summary.json")).unwrap();
    assert_eq!(
        (json["exit_code"].as_i64(), json["outcome"].as_str()),
        (Some(0), Some("done"))
    );
    assert_eq!(json["job"]["tasks"][1]["name"], "worker:0");
    assert!(Path::new(json["job"]["tasks"][0]["log"].as_str().unwrap()).exists());
}
