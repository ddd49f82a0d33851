//! Training by real processes, some of which are killed: it resumes unattended, reaches its end,
//! and counts no step twice.
//!
//! Every process is this test's own executable: told by the environment which task to be, the
//! "test" [`be_a_task`] trains instead of testing.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use downpour::program::{self, Args, Program, Report, Worker};
use downpour::train::{GradientDescent, MonitoredSession};
use downpour::{DType, Init, Operation, Output, Result};
use std::io::Read as _;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Arguments of a task's program, separated by spaces.
const TASK: &str = "DOWNPOUR_TEST_TASK";
/// Steps of all workers together.
const STEPS: &str = "400";
/// Nothing here takes longer, even on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// A line, and a witness on the other ps that counts steps beside the shared count.
struct Line;

struct Model {
    x: Output,
    y: Output,
    train: Operation,
    slope: Output,
    witness: Output,
}

impl Program for Line {
    type Model = Model;

    fn build(&self, worker: &Worker) -> Result<Model> {
        let g = worker.graph();
        let x = g.placeholder("x", DType::Float, [None]);
        let y = g.placeholder("y", DType::Float, [None]);
        let witness = g.variable("witness").init(Init::value(0i64));
        let witness = witness.trainable(false).build();
        let slope = g.variable("slope").init(Init::value(0.0f32)).build();
        let loss = (&*slope * &x - &y).square().mean(());
        let counted = worker.minimize(&GradientDescent::new(0.05), &loss)?;
        let seen = witness.assign_add(&g.constant(1i64));
        Ok(Model {
            x,
            y,
            train: g.group("both", &[counted, seen]),
            slope: slope.value().clone(),
            witness: witness.value().clone(),
        })
    }

    fn step(&self, m: &mut Model, session: &mut MonitoredSession) -> Result<()> {
        // Slow enough to be killed on the way.
        std::thread::sleep(Duration::from_millis(10));
        let step = session
            .step()
            .feed(&m.x, [1.0f32, 2.0])
            .feed(&m.y, [3.0f32, 6.0]);
        step.target(&m.train).run()
    }

    fn finish(&self, m: &mut Model, session: &mut MonitoredSession) -> Result<Report> {
        let [slope, witness] = session.raw()?.step().fetch_all([&m.slope, &m.witness])?;
        Ok(Report::from([
            ("slope".to_owned(), slope.scalar_value::<f32>()?.into()),
            ("witness".to_owned(), witness.scalar_value::<i64>()? as f64),
        ]))
    }
}

/// Trains as one task, when the environment says which; otherwise there is nothing to test.
#[test]
fn be_a_task() {
    let Ok(task) = std::env::var(TASK) else {
        return;
    };
    let args = Args::parse(task.split(' ').map(str::to_owned), None).unwrap();
    let report = program::run(&Line, &args.options).unwrap();
    println!("report {report:?}");
}

/// Two parameter servers and two workers, each a process.
struct Tasks {
    flags: String,
    running: Vec<(&'static str, usize, Child)>,
}

impl Tasks {
    fn start(dir: &Path) -> Tasks {
        let held: Vec<TcpListener> = (0..4)
            .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
            .collect();
        let at: Vec<String> = held
            .iter()
            .map(|l| l.local_addr().unwrap().to_string())
            .collect();
        drop(held);
        let flags = format!(
            "--ps_hosts={},{} --worker_hosts={},{} --steps={STEPS} --save-seconds=1 --dir={}",
            at[0],
            at[1],
            at[2],
            at[3],
            dir.display()
        );
        let mut tasks = Tasks {
            flags,
            running: Vec::new(),
        };
        for (job, task) in [("ps", 0), ("ps", 1), ("worker", 0), ("worker", 1)] {
            tasks.spawn(job, task);
        }
        tasks
    }

    fn spawn(&mut self, job: &'static str, task: usize) {
        let flags = format!("{} --job_name={job} --task_index={task}", self.flags);
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "be_a_task", "--nocapture"])
            .env(TASK, flags)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.running.push((job, task, child));
    }

    fn kill(&mut self, job: &str, task: usize) {
        let at = self
            .running
            .iter()
            .position(|(j, t, _)| (*j, *t) == (job, task));
        let (_, _, mut child) = self.running.remove(at.unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Waits until a checkpoint of a step at least this high exists.
    fn reach(&self, dir: &Path, step: i64) {
        let start = Instant::now();
        loop {
            let latest = downpour::train::latest_checkpoint(dir.to_str().unwrap()).unwrap();
            let reached = latest.and_then(|p| p.rsplit('-').next()?.parse::<i64>().ok());
            if reached.is_some_and(|r| r >= step) {
                return;
            }
            assert!(
                start.elapsed() < LIMIT,
                "no checkpoint of step {step}: {reached:?}"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// What the chief reports when training has ended.
    fn report(&mut self) -> String {
        let start = Instant::now();
        let chief = self
            .running
            .iter_mut()
            .find(|(j, t, _)| (*j, *t) == ("worker", 0));
        let (_, _, chief) = chief.unwrap();
        while chief.try_wait().unwrap().is_none() {
            assert!(start.elapsed() < LIMIT, "training does not end");
            std::thread::sleep(Duration::from_millis(50));
        }
        let mut text = String::new();
        chief
            .stdout
            .take()
            .unwrap()
            .read_to_string(&mut text)
            .unwrap();
        text
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        for (_, _, child) in &mut self.running {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn number(report: &str, name: &str) -> f64 {
    let rest = report.split(&format!("\"{name}\": ")).nth(1);
    let rest = rest.unwrap_or_else(|| panic!("no {name} in {report}"));
    rest.split([',', '}']).next().unwrap().parse().unwrap()
}

/// Trains while `fault` does its worst half-way, and looks at the result.
fn survives(fault: impl FnOnce(&mut Tasks)) -> String {
    let dir = tempfile::tempdir().unwrap();
    let mut tasks = Tasks::start(dir.path());
    tasks.reach(dir.path(), 50);
    fault(&mut tasks);
    let report = tasks.report();
    let steps = number(&report, "steps");
    assert!(steps >= 400.0, "{report}");
    assert!((number(&report, "slope") - 3.0).abs() < 0.01, "{report}");
    let witness = number(&report, "witness");
    assert!(
        (witness - steps).abs() <= 1.0,
        "a step counted twice or not at all: {report}"
    );
    report
}

#[test]
fn a_worker_is_lost_and_the_others_never_stop() {
    let report = survives(|tasks| tasks.kill("worker", 1));
    assert_eq!(number(&report, "recoveries"), 0.0, "{report}");
}

#[test]
fn a_ps_is_lost_and_comes_back() {
    let report = survives(|tasks| {
        tasks.kill("ps", 1);
        tasks.spawn("ps", 1);
    });
    assert!(number(&report, "recoveries") > 0.0, "{report}");
}

#[test]
fn the_chief_is_lost_and_comes_back() {
    survives(|tasks| {
        tasks.kill("worker", 0);
        tasks.spawn("worker", 0);
    });
}

#[test]
fn all_are_lost_at_once_and_come_back() {
    survives(|tasks| {
        let all = [("ps", 0), ("ps", 1), ("worker", 0), ("worker", 1)];
        for (job, task) in all {
            tasks.kill(job, task);
        }
        for (job, task) in all {
            tasks.spawn(job, task);
        }
    });
}
