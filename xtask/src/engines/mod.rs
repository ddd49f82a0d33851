//! `cargo xtask engines [NAME…]`: real services that the project works with, started for a test and
//! stopped after it: etcd, ZooKeeper, an S3 server, HDFS; and the places where jobs run (`jobs`).
//!
//! What is missing is installed under `target/engines` and stays there; nothing outside it changes.
//! Every service listens on free ports of 127.0.0.1, is ended by its process id, and ends with this
//! program however that ends. A new engine is one [`Engine`] here and its recipe in a file.

mod daemon;
mod etcd;
mod hdfs;
mod install;
mod jobs;
mod s3;
mod spark;
mod zookeeper;

use crate::process::{cargo, run_watched, target_dir};
use anyhow::{Context as _, Result, bail};
use daemon::Daemon;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// A service that runs: its processes, and what tests need to know of it.
struct Service {
    daemons: Vec<Daemon>,
    /// Environment of the tests.
    environment: Vec<(&'static str, String)>,
}

/// How to have a service, and what is tested on it.
struct Engine {
    name: &'static str,
    /// Installs what is missing into a folder that is kept.
    install: fn(&Path) -> Result<()>,
    /// Starts it, with its data in an empty folder, and waits until it serves.
    start: fn(&Path, &Path) -> Result<Service>,
    /// Its tests: the name of a test program, and what it is told.
    tests: &'static [&'static [&'static str]],
}

const ENGINES: &[Engine] = &[etcd::ENGINE, zookeeper::ENGINE, s3::ENGINE, hdfs::ENGINE];

/// What tests of services need of the crates.
const FEATURES: &str = "downpour-stores/engine-tests,downpour-cli/stores,downpour-cli/coordination,\
    downpour-cli/engine-tests,downpour-coordination/etcd,downpour-coordination/zookeeper,\
    downpour-coordination/engine-tests";

/// What the test command tries of them.
pub(crate) fn stores_and_coordination() -> Result<String> {
    let names = ENGINES.iter().map(|engine| engine.name.to_owned());
    run(&names.collect::<Vec<_>>())
}

/// Installs, starts, tests and stops the engines of these names, or all; a line of figures.
pub(crate) fn run(names: &[String]) -> Result<String> {
    let known = || {
        let services = ENGINES.iter().map(|e| e.name);
        services.chain(jobs::names()).chain([spark::NAME])
    };
    for name in names {
        if !known().any(|k| k == name) {
            let known: Vec<&str> = known().collect();
            bail!("no engine is called '{name}', only {}", known.join(", "));
        }
    }
    let chosen = |e: &&Engine| names.is_empty() || names.iter().any(|n| n == e.name);
    let mut figures = Vec::new();
    for engine in ENGINES.iter().filter(chosen) {
        let figure = engine.try_out();
        figures.push(figure.with_context(|| format!("engine {}", engine.name))?);
    }
    let places: Vec<&str> = jobs::names()
        .filter(|name| names.is_empty() || names.iter().any(|n| n == name))
        .collect();
    if !places.is_empty() {
        figures.push(jobs::run(&places)?);
    }
    if names.is_empty() || names.iter().any(|name| name == spark::NAME) {
        figures.push(spark::try_out().context("engine spark")?);
    }
    Ok(format!("engines: {}", figures.join(", ")))
}

/// The python package on a real Spark, which `test --all` tries.
pub(crate) fn spark() -> Result<String> {
    spark::try_out()
}

/// What the python package does without Spark.
pub(crate) fn python_tests() -> Result<String> {
    spark::unit_tests(&crate::venv::ensure()?)
}

/// Jobs on the places that the test command tries. Slurm is tried by name: it
/// waits long until Slurm tells of a lost node.
pub(crate) fn places() -> Result<String> {
    jobs::run(&["ssh", "docker"])
}

impl Engine {
    fn home(&self) -> PathBuf {
        target_dir().join("engines").join(self.name)
    }

    fn try_out(&self) -> Result<String> {
        let home = self.home();
        std::fs::create_dir_all(&home).context("cannot make its folder")?;
        (self.install)(&home)?;
        let data = home.join("run");
        if data.exists() {
            std::fs::remove_dir_all(&data).context("cannot clear what the last run left")?;
        }
        std::fs::create_dir_all(&data).context("cannot make a folder for its data")?;
        let begin = Instant::now();
        let service = (self.start)(&home, &data)?;
        let ready = begin.elapsed().as_secs_f64();
        eprintln!("{} serves after {ready:.1} s", self.name);
        let mut passed = 0;
        for test in self.tests {
            passed += self.test(&service, test)?;
        }
        drop(service);
        // Kept after a failure, with the logs.
        std::fs::remove_dir_all(&data).context("cannot clear its data")?;
        let seconds = begin.elapsed().as_secs_f64();
        Ok(format!(
            "{} {passed} tests passed in {seconds:.0} s",
            self.name
        ))
    }

    /// Runs one test program on a service; how many of its tests passed.
    fn test(&self, service: &Service, test: &[&str]) -> Result<u64> {
        let mut passed = 0;
        let mut command = cargo();
        // All of the workspace with one set of features, so that nothing is compiled twice.
        command
            .args(["test", "--workspace", "--features", FEATURES, "--test"])
            .args(test);
        command.envs(service.environment.iter().map(|(k, v)| (k, v)));
        let outcome = run_watched(&mut command, |line| {
            passed += crate::test::counts(line).map_or(0, |(passed, _)| passed);
        });
        if outcome.is_err() {
            for daemon in &service.daemons {
                eprintln!("the log of {}: {}", daemon.name(), daemon.log().display());
            }
        }
        outcome?;
        if passed == 0 {
            bail!("`cargo test {}` ran no test", test.join(" "));
        }
        Ok(passed)
    }
}
