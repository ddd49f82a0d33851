//! Spark of PyPI's: a standalone master with two workers, and a server of Spark Connect on them. The python package
//! `downpour-spark` is installed beside it as the wheel that is shipped, and tried by `python/tests/on_spark.py`.
//!
//! By name only: it takes minutes, and 2 GB on the disk.

use super::daemon::{Daemon, free_ports, get};
use super::install;
use crate::dist::spark::pack;
use crate::process::{build_server, root, run, run_watched, server_binary, target_dir};
use anyhow::{Context as _, Result, ensure};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

pub(super) const NAME: &str = "spark";

const PACKAGES: &[&str] = &[
    "pyspark[connect]==4.3.0",
    "pandas<3",
    "tensorflow-cpu==2.21.0",
    "tensorboard==2.20.0",
    // The opponent, whose queues are measured beside our feed, and what it needs.
    "tensorflowonspark==2.2.5",
    "setuptools<81",
    "packaging",
    "six",
];

/// Programs on it that need longer hang.
const PATIENCE: &str = "2400";

/// A running master with two workers.
struct Spark {
    bin: PathBuf,
    home: String,
    data: PathBuf,
    master: String,
    _daemons: Vec<Daemon>,
}

/// Tries the package; a line of figures.
pub(super) fn try_out() -> Result<String> {
    build_server()?;
    let begin = Instant::now();
    let folder = target_dir().join("engines").join(NAME);
    std::fs::create_dir_all(&folder).context("cannot make its folder")?;
    let bin = install::python(PACKAGES, &folder)?;
    let wheel = pack(&server_binary(), &folder.join("wheel"))?;
    run(Command::new(bin.join("python"))
        .args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--force-reinstall",
        ])
        .arg(&wheel))?;
    let data = folder.join("run");
    if data.exists() {
        std::fs::remove_dir_all(&data).context("cannot clear what the last run left")?;
    }
    std::fs::create_dir_all(&data).context("cannot make a folder for its data")?;
    let spark = Spark::start(bin.clone(), &data)?;
    eprintln!("spark serves after {:.0} s", begin.elapsed().as_secs_f64());
    // Once more where pyspark and pyarrow are.
    unit_tests(&bin.join("python"))?;
    let tests = root().join("python/tests/on_spark.py");
    let mut submit = spark.submit();
    let mut passed = count(submit.arg(&tests))?;
    run(spark
        .command("timeout")
        .arg(PATIENCE)
        .arg(spark.bin.join("python"))
        .args(["-m", "tests.spark_ends", &spark.master])
        .env("DOWNPOUR_TEST_CONF", spark.settings().join(" "))
        .current_dir(root().join("python")))?;
    passed += spark.connect(&tests)?;
    let mut speeds = Vec::new();
    let mut speed = spark.command("timeout");
    speed
        .arg(PATIENCE)
        .arg(spark.bin.join("python"))
        .args(["-m", "tests.feed_speed", "--tfos"]);
    run_watched(speed.current_dir(root().join("python")), |line| {
        speeds.extend(line.strip_prefix("feed: ").map(str::to_owned));
    })?;
    drop(spark);
    std::fs::remove_dir_all(&data).context("cannot clear its data")?;
    let seconds = begin.elapsed().as_secs_f64();
    Ok(format!(
        "spark {passed} tests passed in {seconds:.0} s; feed: {}",
        speeds.join("; ")
    ))
}

/// The tests that need no Spark: rows in frames, the feed, nodes that start, fail and end.
pub(super) fn unit_tests(python: &Path) -> Result<String> {
    let modules = [
        "tests.test_frames",
        "tests.test_feed",
        "tests.test_nodes",
        "tests.test_records",
    ];
    run(Command::new("timeout")
        .args(["600"])
        .arg(python)
        .args([
            "-W",
            "ignore::ResourceWarning",
            "-m",
            "unittest",
            "--failfast",
        ])
        .args(modules)
        .env("DOWNPOUR_BINARY", server_binary())
        .current_dir(root().join("python")))?;
    Ok(format!("{} modules of tests in python", modules.len()))
}

/// Runs a program of python's unit tests; how many passed.
fn count(command: &mut Command) -> Result<u64> {
    let log = tempfile_of(command);
    let outcome = run(command);
    let said = std::fs::read_to_string(&log).unwrap_or_default();
    let ran = said.lines().filter_map(|line| {
        let rest = line.strip_prefix("Ran ")?;
        rest.split(' ').next()?.parse::<u64>().ok()
    });
    let ran: u64 = ran.sum();
    outcome?;
    ensure!(ran > 0, "no test ran");
    Ok(ran)
}

/// The file to which the tests of a command write how they went.
fn tempfile_of(command: &mut Command) -> PathBuf {
    let path = target_dir().join("engines").join(NAME).join("outcome");
    let _ = std::fs::remove_file(&path);
    command.env("DOWNPOUR_TEST_OUTCOME", &path);
    path
}

impl Spark {
    fn start(bin: PathBuf, data: &Path) -> Result<Spark> {
        let python = bin.join("python");
        let find = "import pyspark, os; print(os.path.dirname(pyspark.__file__))";
        let home = crate::process::output(Command::new(&python).args(["-c", find]))?;
        let home = String::from_utf8_lossy(&home).trim().to_owned();
        let [port, web, first, second, first_web, second_web] = free_ports()?;
        let mut spark = Spark {
            bin,
            home,
            data: data.to_owned(),
            master: format!("spark://127.0.0.1:{port}"),
            _daemons: Vec::new(),
        };
        let class = |name: &str, words: &[&str]| {
            let mut command = spark.command(&format!("{}/bin/spark-class", spark.home));
            command
                .arg(format!("org.apache.spark.deploy.{name}"))
                .args(["--host", "127.0.0.1"])
                .args(words);
            command
        };
        let (port, web_port) = (port.to_string(), web.to_string());
        let words = ["--port", &port, "--webui-port", &web_port];
        let mut master = Daemon::start("master", &class("master.Master", &words), data)?;
        let is_up = |alive: &str| get(web, "/json/").is_some_and(|answer| answer.contains(alive));
        master.wait_until(|| is_up("\"status\" : \"ALIVE\""))?;
        let mut daemons = Vec::new();
        for (name, port, web) in [
            ("worker-1", first, first_web),
            ("worker-2", second, second_web),
        ] {
            let (port, web) = (port.to_string(), web.to_string());
            let work = data.join(name).display().to_string();
            let words = [
                "--port",
                &port,
                "--webui-port",
                &web,
                "-c",
                "4",
                "-m",
                "1500M",
                "-d",
                &work,
                &spark.master,
            ];
            daemons.push(Daemon::start(name, &class("worker.Worker", &words), data)?);
        }
        master.wait_until(|| is_up("\"aliveworkers\" : 2"))?;
        // The master ends last.
        daemons.push(master);
        spark._daemons = daemons;
        Ok(spark)
    }

    /// A program with what Spark's own and the tests look for.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .env("SPARK_HOME", &self.home)
            .env("SPARK_LOCAL_IP", "127.0.0.1")
            .env("SPARK_DAEMON_MEMORY", "256m")
            .env("SPARK_NO_DAEMONIZE", "1")
            .env("PYSPARK_PYTHON", self.bin.join("python"))
            .env("TF_CPP_MIN_LOG_LEVEL", "3")
            .env("DOWNPOUR_TEST_DIR", self.data.join("tests"))
            .env("DOWNPOUR_TEST_MNIST", root().join("data/mnist"));
        command
    }

    fn settings(&self) -> Vec<String> {
        let tests = root().join("python").display().to_string();
        let examples = root().join("examples").display().to_string();
        let directory = self.data.join("tests").display().to_string();
        [
            "spark.driver.bindAddress=127.0.0.1",
            "spark.driver.host=127.0.0.1",
            "spark.driver.memory=800m",
            "spark.executor.memory=700m",
            "spark.ui.enabled=false",
            "spark.log.level=WARN",
            // Executors may come after the first job.
            "spark.scheduler.barrier.maxConcurrentTasksCheck.interval=1s",
            "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures=300",
            &format!("spark.executorEnv.PYTHONPATH={tests}:{examples}"),
            // By which the tests know their processes.
            &format!("spark.executorEnv.DOWNPOUR_TEST_DIR={directory}"),
        ]
        .map(str::to_owned)
        .to_vec()
    }

    fn submit(&self) -> Command {
        let mut command = self.command("timeout");
        command
            .arg(PATIENCE)
            .arg(format!("{}/bin/spark-submit", self.home))
            .args(["--master", &self.master]);
        for setting in self.settings() {
            command.args(["--conf", &setting]);
        }
        command
    }

    /// The tests over Spark Connect, by a client without a JVM.
    fn connect(&self, tests: &Path) -> Result<u64> {
        let [port] = free_ports()?;
        let mut server = self.submit();
        server
            .args([
                "--class",
                "org.apache.spark.sql.connect.service.SparkConnectServer",
            ])
            .args(["--conf", "spark.connect.grpc.binding.address=127.0.0.1"])
            .args([
                "--conf",
                &format!("spark.connect.grpc.binding.port={port}"),
                "spark-internal",
            ]);
        let mut server = Daemon::start("connect", &server, &self.data)?;
        server.wait_until(|| TcpStream::connect(("127.0.0.1", port)).is_ok())?;
        let mut client = self.command("timeout");
        client
            .arg(PATIENCE)
            .arg(self.bin.join("python"))
            .arg(tests)
            .args(["Connect", "--connect", &format!("sc://127.0.0.1:{port}")]);
        count(&mut client)
    }
}
