//! The launcher and the README's first command, as a test with the release program: the demo on
//! real MNIST, with and without a task killed on the way, and a TensorFlow script under `run`.

use crate::process::{self, cargo, root, server_binary, target_dir};
use crate::venv;
use anyhow::{Context as _, Result, bail};
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

/// Test accuracy that softmax regression must reach.
const MIN_ACCURACY: f64 = 0.915;
/// The same after a recovery, or after few steps.
const MIN_RECOVERED: f64 = 0.90;
/// Seconds that the README's first command may take after the build.
const MAX_SECONDS: f64 = 60.0;

/// Runs everything; a line of figures.
pub(crate) fn run() -> Result<String> {
    let dir = target_dir().join("launch");
    if dir.exists() {
        std::fs::remove_dir_all(&dir).context("cannot remove the last run")?;
    }
    std::fs::create_dir_all(&dir).context("cannot make a directory for the runs")?;
    let mut figures = Vec::new();
    for (name, args, least) in [
        ("demo", vec![], MIN_ACCURACY),
        (
            "demo --sync",
            vec!["--sync", "--steps", "400"],
            MIN_RECOVERED,
        ),
        ("demo --kill ps:0", vec!["--kill", "ps:0@2s"], MIN_RECOVERED),
    ] {
        let end = demo(&args, &dir)?;
        let number = |key: &str| end.get(key).and_then(serde_json::Value::as_f64);
        let accuracy = number("test_accuracy").context("the demo reports no test accuracy")?;
        let seconds = number("seconds").context("the demo reports no time")?;
        let restarts = number("restarts").unwrap_or(0.0);
        if accuracy < least {
            bail!("{name}: only {accuracy} test accuracy");
        }
        if name == "demo" && seconds > MAX_SECONDS {
            bail!("{name}: took {seconds} s");
        }
        if args.contains(&"--kill") && restarts < 1.0 {
            bail!("{name}: nothing was restarted: {end}");
        }
        figures.push(format!(
            "{name} {:.1} % in {seconds:.0} s",
            accuracy * 100.0
        ));
    }
    figures.push(script(&dir)?);
    figures.push(partitions(&dir)?);
    Ok(figures.join(", "))
}

/// A program of ours whose replicas are two workers each, as processes under `run`.
fn partitions(dir: &std::path::Path) -> Result<String> {
    let mut build = cargo();
    build.args(["build", "--release", "--package", "downpour"]);
    process::run(build.args(["--example", "model_parallel"]))?;
    let flags = ["--partitions", "2", "--steps", "600"];
    eprintln!(
        "$ downpour run --ps 2 --workers 4 -- model_parallel {}",
        flags.join(" ")
    );
    let out = Command::new(server_binary())
        .current_dir(dir)
        .args(["run", "--ps", "2", "--workers", "4", "--"])
        .arg(target_dir().join("release/examples/model_parallel"))
        .args(flags)
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start `downpour run`")?;
    let text = String::from_utf8_lossy(&out.stdout);
    if !out.status.success() {
        bail!("`downpour run` ended with {}: {text}", out.status);
    }
    // The chief's figures, each on a line behind its name.
    let number = |key: &str| {
        let mut lines = text
            .lines()
            .filter_map(|l| l.split_once(&format!("{key}: ")));
        lines.find_map(|(_, number)| number.trim().parse::<f64>().ok())
    };
    let accuracy = number("test_accuracy").with_context(|| format!("no test accuracy: {text}"))?;
    if accuracy < MIN_RECOVERED || number("partitions") != Some(2.0) {
        bail!("2 replicas of 2 workers: {text}");
    }
    Ok(format!("2 replicas of 2 workers {:.1} %", accuracy * 100.0))
}

/// The demo's last line.
fn demo(args: &[&str], dir: &std::path::Path) -> Result<serde_json::Value> {
    eprintln!("$ downpour demo mnist --json {}", args.join(" "));
    let out = Command::new(server_binary())
        .current_dir(dir)
        .args(["demo", "mnist", "--json"])
        .args(args)
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start the demo")?;
    let text = String::from_utf8_lossy(&out.stdout);
    if !out.status.success() {
        bail!("the demo ended with {}: {text}", out.status);
    }
    serde_json::from_str(text.trim()).with_context(|| format!("the demo printed {text:?}"))
}

/// TensorFlow's client as the workers; a ps is killed once they train.
fn script(dir: &std::path::Path) -> Result<String> {
    let python = venv::ensure()?;
    let start = Instant::now();
    let mut job = Command::new(server_binary())
        .current_dir(dir)
        .args(["run", "--ps", "2", "--workers", "2", "--serve", "all", "--"])
        .arg(python)
        .arg(root().join("examples/mnist_workers.py"))
        .args(["--steps", "1500"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start `downpour run`")?;
    let said = job.stderr.take().context("the job has no stderr")?;
    let said = std::thread::spawn(move || {
        let lines = BufReader::new(said).lines().map_while(Result::ok);
        lines
            .inspect(|line| eprintln!("{line}"))
            .collect::<Vec<_>>()
    });
    let lines = job.stdout.take().context("the job has no stdout")?;
    let mut victim = Some(dir.join("downpour-runs/mnist_workers-1/job.log"));
    let mut accuracy = None;
    for line in BufReader::new(lines).lines().map_while(Result::ok) {
        let step = line
            .split_once("| step ")
            .and_then(|(_, rest)| rest.split(' ').next()?.parse::<u32>().ok());
        if step.is_some_and(|step| step >= 200)
            && let Some(log) = victim.take()
        {
            kill_first(&log, "ps:1 started (process ")?;
        }
        if let Some((_, rest)) = line.split_once("test accuracy ") {
            accuracy = rest.split(' ').next().and_then(|n| n.parse::<f64>().ok());
        }
    }
    let status = job.wait().context("cannot wait for the job")?;
    let said = said.join().unwrap_or_default().join("\n");
    if !status.success() || !said.contains("ps:1             stopped, 1 restart") {
        bail!("`downpour run` ended with {status}");
    }
    let accuracy = accuracy.context("the script printed no test accuracy")?;
    if accuracy < MIN_RECOVERED {
        bail!("the script reached only {accuracy}");
    }
    let seconds = start.elapsed().as_secs();
    Ok(format!(
        "TensorFlow's script with a ps lost {:.1} % in {seconds} s",
        accuracy * 100.0
    ))
}

/// Kills the process whose number stands in a log behind these words.
fn kill_first(log: &std::path::Path, words: &str) -> Result<()> {
    let text = std::fs::read_to_string(log).context("the job has no log")?;
    let found = text
        .split_once(words)
        .and_then(|(_, rest)| rest.split(')').next());
    let process = found.with_context(|| format!("no '{words}' in {text}"))?;
    let killed = Command::new("kill").args(["-9", process]).status();
    match killed.context("cannot kill")?.success() {
        true => Ok(()),
        false => bail!("process {process} could not be killed"),
    }
}
