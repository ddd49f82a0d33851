//! Processes that may be killed: a replica that dies by itself, now and then, in the middle of its
//! work, and a coordinator that says how far it is.

use crate::problem::Model;
use downpour::{Definition, Draws, Role, Server, ServerConfig, SessionOptions, Target};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// What to be: `replica SEED` or `coordinator`.
const WHAT: &str = "DOWNPOUR_TEST_SANDBLASTER";

/// A task that is a process of its own. It does not outlive who holds it, also when a test fails.
pub(crate) struct Task(pub(crate) Child);

impl Drop for Task {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a task of a cluster as a process.
pub(crate) fn spawn(what: &str, hosts: &Hosts, worker: usize) -> Task {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "be_a_task", "--nocapture"])
        .env(WHAT, what)
        .env("TF_CONFIG", hosts.config("worker", worker))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    Task(child)
}

/// Addresses of a cluster.
pub(crate) struct Hosts {
    ps: Vec<String>,
    workers: Vec<String>,
}

impl Hosts {
    /// Ports that nobody listens on, and that the system gives to nobody.
    pub(crate) fn new(ps: usize, workers: usize) -> Hosts {
        use std::hash::{BuildHasher as _, RandomState};
        let free = || loop {
            let port = 10_000 + RandomState::new().hash_one(0) % 20_000;
            let address = format!("127.0.0.1:{port}");
            if std::net::TcpListener::bind(&address).is_ok() {
                return address;
            }
        };
        Hosts {
            ps: (0..ps).map(|_| free()).collect(),
            workers: (0..workers).map(|_| free()).collect(),
        }
    }

    fn config(&self, job: &str, task: usize) -> String {
        let list = |hosts: &[String]| format!("[\"{}\"]", hosts.join("\",\""));
        format!(
            "{{\"cluster\":{{\"ps\":{},\"worker\":{}}},\"task\":{{\"type\":\"{job}\",\"index\":{task}}}}}",
            list(&self.ps),
            list(&self.workers)
        )
    }

    /// Starts a task in this process.
    pub(crate) fn start(&self, job: &str, task: usize) -> downpour::RunningServer {
        start(&self.config(job, task))
    }
}

fn start(config: &str) -> downpour::RunningServer {
    let definition = Definition::from_tf_config(config).unwrap();
    let role = Role::resolve(&[("TF_CONFIG".to_owned(), definition)]).unwrap();
    Server::start(ServerConfig {
        cluster: role.cluster.clone(),
        job: role.job.clone(),
        task: role.task,
        bind: Some(role.listen.clone()),
        ..ServerConfig::local()
    })
    .unwrap()
}

/// Only the servers and itself: others may be dead.
pub(crate) fn alone(worker: usize) -> SessionOptions {
    SessionOptions::new()
        .device_filters(["/job:ps".to_owned(), format!("/job:worker/task:{worker}")])
}

/// Works as the task that the environment names.
pub(crate) fn be() {
    let Ok(what) = std::env::var(WHAT) else {
        return;
    };
    let config = std::env::var("TF_CONFIG").unwrap();
    let definition = Definition::from_tf_config(&config).unwrap();
    let worker = definition.task.unwrap() as usize;
    let server = start(&config);
    let words: Vec<&str> = what.split(' ').collect();
    match words[..] {
        ["replica", seed] => replica(worker, Target::from(&server), seed.parse().unwrap()),
        ["coordinator"] => coordinator(worker, Target::from(&server)),
        _ => panic!("{what}"),
    }
}

/// A replica that dies about every twenty-fifth portion, at any moment of its work.
fn replica(worker: usize, target: Target, seed: u64) {
    let model = Model::new(worker);
    let mut draws = Draws::new(seed);
    let work = model.plan.replica(worker).options(alone(worker));
    let worked = work.work(target, |portion, run| {
        let pause = Duration::from_micros(draws.below(6000) as u64);
        std::thread::sleep(pause);
        if draws.below(25) == 0 {
            // While it computes, while it pushes, or just after.
            let soon = Duration::from_micros(draws.below(4000) as u64);
            std::thread::spawn(move || {
                std::thread::sleep(soon);
                std::process::abort();
            });
        }
        model.feed(portion, run)
    });
    worked.unwrap();
}

fn coordinator(worker: usize, target: Target) {
    let model = Model::new(worker);
    let coordinator = model.plan.coordinator().options(alone(worker));
    let coordinator = coordinator.observe(|progress, session| {
        let parameters = model.parameters(session)?;
        println!(
            "at {} {} {:e} {parameters:?}",
            progress.iteration, progress.evaluations, progress.largest
        );
        Ok(())
    });
    let outcome = coordinator.run(target).unwrap();
    println!("end {:?}", outcome.end);
}
