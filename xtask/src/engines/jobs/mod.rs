//! The places where `downpour run --on` puts a job, each tried with the real thing: MNIST from Rust and from a
//! TensorFlow script by one command, tasks and hosts that are lost, a launcher that dies, wrong input.

mod docker;
mod job;
mod kubernetes;
mod slurm;
mod ssh;
mod yarn;

use crate::process::{build_server, root, server_binary, target_dir};
use crate::venv;
use anyhow::{Context as _, Result, bail, ensure};
use job::Job;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Test accuracy that softmax regression must reach, whatever was lost on the way.
const MIN_ACCURACY: f64 = 0.915;
/// Steps that reach it.
const STEPS: u32 = 8000;
/// Wrong input is refused by then. A machine that compiles beside is given some more.
const REFUSED_WITHIN: Duration = Duration::from_secs(10);

/// A place that runs.
trait Place {
    /// A command of the user's, where the user sits.
    fn user(&self, program: &Path) -> Command;
    /// What makes `downpour run` use it; with patience, hosts and launchers may be away for long.
    fn flags(&self, is_patient: bool) -> Vec<String>;
    /// Makes a host go, with all that runs on it; false if there is one host.
    fn lose_host(&mut self) -> Result<bool>;
    /// Called when its tasks are lost: whether what ran on it is as it must be.
    fn check_lost(&self, _run: &str) -> Result<()> {
        Ok(())
    }
    /// Brings it back.
    fn heal(&mut self) -> Result<()>;
    /// Whether tasks go on without their launcher, and one that is run again finds them.
    fn adopts(&self) -> bool;
    /// The process of a task, where the launcher does not tell it.
    fn process(&self, _run: &str, _task: &str) -> Option<u32> {
        None
    }

    /// How long to train in Rust: a killed worker must be back before the end, since each worker has its own part of the images.
    fn steps(&self) -> u32 {
        STEPS
    }

    /// Whether a job has a launcher of its own there, which the place starts again.
    fn has_master(&self) -> bool {
        false
    }
    /// What a job has left behind.
    fn left(&self) -> Result<String>;
    /// Wrong input, and what must be said of it.
    fn refusals(&self) -> Vec<(Vec<String>, &'static str)>;
}

/// How to have one.
struct Engine {
    name: &'static str,
    install: fn(&Path) -> Result<()>,
    start: fn(&Path, &Path) -> Result<Box<dyn Place>>,
}

const ENGINES: &[Engine] = &[
    ssh::ENGINE,
    docker::ENGINE,
    slurm::ENGINE,
    kubernetes::ENGINE,
    yarn::ENGINE,
];

/// Their names.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    ENGINES.iter().map(|engine| engine.name)
}

/// A row of the table.
struct Row {
    engine: &'static str,
    /// From the command to the first step, from Rust and from python.
    first_step: [f64; 2],
    accuracy: [f64; 2],
    survived: Vec<&'static str>,
    seconds: f64,
}

/// Tries the places of these names, prints the table, and returns a line of figures.
pub(crate) fn run(names: &[&str]) -> Result<String> {
    build_server()?;
    let (mut rows, mut failed) = (Vec::new(), Vec::new());
    for engine in ENGINES.iter().filter(|e| names.contains(&e.name)) {
        match engine.try_out() {
            Ok(row) => rows.push(row),
            // The others are tried all the same.
            Err(e) => failed.push(format!("engine {}: {e:#}", engine.name)),
        }
    }
    println!("engine      first step (Rust, python)  accuracy (Rust, python)  all   survived");
    for row in &rows {
        println!(
            "{:<11} {:>6.1} s {:>6.1} s          {:.1} %   {:.1} %         {:>3.0} s  {}",
            row.engine,
            row.first_step[0],
            row.first_step[1],
            row.accuracy[0] * 100.0,
            row.accuracy[1] * 100.0,
            row.seconds,
            row.survived.join(", ")
        );
    }
    if !failed.is_empty() {
        bail!("{}", failed.join("\n"));
    }
    let figures = rows.iter().map(|row| {
        let least = row.accuracy[0].min(row.accuracy[1]) * 100.0;
        format!("{} {least:.1} % in {:.0} s", row.engine, row.seconds)
    });
    Ok(figures.collect::<Vec<_>>().join(", "))
}

impl Engine {
    fn try_out(&self) -> Result<Row> {
        let home = target_dir().join("engines").join(self.name);
        std::fs::create_dir_all(&home).context("cannot make its folder")?;
        (self.install)(&home)?;
        let data = home.join("run");
        if data.exists() {
            std::fs::remove_dir_all(&data).context("cannot clear what the last run left")?;
        }
        std::fs::create_dir_all(&data).context("cannot make a folder for its data")?;
        let begin = Instant::now();
        let mut place = (self.start)(&home, &data)?;
        eprintln!(
            "{} serves after {:.1} s",
            self.name,
            begin.elapsed().as_secs_f64()
        );
        let mut row = Row {
            engine: self.name,
            first_step: [0.0; 2],
            accuracy: [0.0; 2],
            survived: Vec::new(),
            seconds: 0.0,
        };
        refuse(&*place)?;
        rust(&mut *place, &data, &mut row)?;
        python(&mut *place, &data, &mut row)?;
        drop(place);
        std::fs::remove_dir_all(&data).context("cannot clear its data")?;
        row.seconds = begin.elapsed().as_secs_f64();
        Ok(row)
    }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|w| (*w).to_owned()).collect()
}

/// A job of two ps and two workers. `name` names its directory, too.
fn start(place: &dyn Place, data: &Path, name: &str, command: &[String]) -> Result<Job> {
    let dir = data.join(name);
    let mut user = place.user(&server_binary());
    user.args([
        "run",
        "--name",
        name,
        "--ps=2",
        "--workers=2",
        "--restarts=5",
        "--drain=5s",
    ]);
    user.arg("--dir")
        .arg(&dir)
        .args(place.flags(name == "script"));
    user.args(command).current_dir(root());
    Job::start(user, dir)
}

/// MNIST in Rust; a ps and a worker are killed on the way, then a host goes.
fn rust(place: &mut dyn Place, data: &Path, row: &mut Row) -> Result<()> {
    let images = root().join("data/mnist").display().to_string();
    let command = |dir: &str, steps: u32| {
        let (steps, data) = (format!("--steps={steps}"), format!("--data={images}"));
        words(&[
            "--",
            "downpour",
            "demo-worker",
            "--model=softmax",
            &steps,
            &data,
            dir,
        ])
    };
    let kept = "--dir={dir}/train";
    let steps = place.steps();
    let mut job = start(place, data, "kills", &command(kept, steps))?;
    row.first_step[0] = job.await_step(1)?;
    for task in ["ps:1", "worker:1"] {
        match place.process("kills", task) {
            Some(process) => job.kill_process(process)?,
            None => job.kill(task)?,
        }
        job.await_line(&format!("{task} started again"))?;
        let seen = job.step;
        job.await_step(seen + 300)?;
    }
    row.accuracy[0] = job.finish(0)?;
    ensure!(row.accuracy[0] >= MIN_ACCURACY, "only {}", row.accuracy[0]);
    check_left(place, &job)?;
    row.survived.extend(["kill -9 of a ps", "of a worker"]);

    let mut job = start(place, data, "lost", &command(kept, steps))?;
    job.await_step(500)?;
    if place.lose_host()? {
        job.await_line("is lost with")?;
        place.check_lost("lost")?;
        let accuracy = job.finish(0)?;
        ensure!(
            accuracy >= MIN_ACCURACY,
            "after a lost host: only {accuracy}"
        );
        job.await_gone()?;
        place.heal()?;
        row.survived.push("a lost host");
    } else {
        // Where there is one host, Ctrl-C is tried instead.
        job.interrupt()?;
        job.finish(130)?;
    }
    check_left(place, &job)?;

    if place.has_master() {
        let mut job = start(place, data, "master", &command(kept, steps))?;
        job.await_step(1000)?;
        job.kill_inner_launcher()?;
        let accuracy = job.finish(0)?;
        ensure!(
            accuracy >= MIN_ACCURACY,
            "after a lost master: only {accuracy}"
        );
        check_left(place, &job)?;
        row.survived.push("its master's death");
    }
    Ok(())
}

/// MNIST by TensorFlow's client; its launcher is killed on the way.
fn python(place: &mut dyn Place, data: &Path, row: &mut Row) -> Result<()> {
    let python = venv::ensure()?.display().to_string();
    let script = root()
        .join("examples/mnist_workers.py")
        .display()
        .to_string();
    let images = root().join("data/mnist").display().to_string();
    let steps = STEPS.to_string();
    let command = words(&[
        "--serve=all",
        "--",
        &python,
        &script,
        "--steps",
        &steps,
        "--data",
        &images,
        "--dir",
        "{dir}/train",
    ]);
    let mut job = start(place, data, "script", &command)?;
    row.first_step[1] = job.await_step(1)?;
    job.await_step(1000)?;
    let before = job.processes.clone();
    if place.adopts() {
        job.kill_launcher()?;
        let mut again = start(place, data, "script", &command)?;
        row.accuracy[1] = again.finish(0)?;
        ensure!(
            !before.is_empty()
                && before
                    .iter()
                    .all(|process| again.processes.contains(process)),
            "tasks were started twice: {before:?}, then {:?}",
            again.processes
        );
        check_left(place, &again)?;
    } else {
        job.kill_inner_launcher()?;
        row.accuracy[1] = job.finish(0)?;
        check_left(place, &job)?;
    }
    ensure!(row.accuracy[1] >= MIN_ACCURACY, "only {}", row.accuracy[1]);
    row.survived.push("the launcher's death");
    Ok(())
}

fn check_left(place: &dyn Place, job: &Job) -> Result<()> {
    job.await_gone()?;
    let left = place.left()?;
    ensure!(left.trim().is_empty(), "a job left behind: {left}");
    Ok(())
}

/// Wrong input ends soon, with a line that says what is wrong, and a code that is not 0.
fn refuse(place: &dyn Place) -> Result<()> {
    for (args, want) in place.refusals() {
        let begin = Instant::now();
        let mut user = place.user(&server_binary());
        let out = user
            .arg("run")
            .args(&args)
            .current_dir(target_dir())
            .stdin(Stdio::null())
            .output()
            .context("cannot start `downpour run`")?;
        let said = String::from_utf8_lossy(&out.stderr);
        let shown = args.join(" ");
        if out.status.success() || !said.contains(want) {
            bail!("`downpour run {shown}` ended with {}: {said}", out.status);
        }
        ensure!(
            begin.elapsed() < REFUSED_WITHIN,
            "`{shown}` took {:?}",
            begin.elapsed()
        );
        eprintln!(
            "refused after {:.1} s: {}",
            begin.elapsed().as_secs_f64(),
            said.trim()
        );
    }
    Ok(())
}

/// A command in a mount namespace in which packages that were unpacked in `home` lie over the machine's own files.
/// `more` are further shell commands before it.
fn over(home: &Path, network: Option<&str>, more: &str, program: &Path) -> Command {
    let mut words: Vec<String> = Vec::new();
    if let Some(network) = network {
        words.extend(["nsenter".to_owned(), format!("--net=/run/netns/{network}")]);
    }
    let home = home.display();
    let mount = |folder: &str| {
        format!("mount -t overlay overlay -o lowerdir={home}/{folder}:/{folder} /{folder}\n")
    };
    let script = format!(
        "set -e\nmount --make-rprivate /\n{}{}{more}\nexec \"$@\"",
        mount("usr"),
        mount("etc")
    );
    words.extend(["unshare", "--mount", "--", "sh", "-c"].map(str::to_owned));
    words.extend([script, "sh".to_owned(), program.display().to_string()]);
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    command
}

/// Where the packages of a place are.
fn packages(home: &Path) -> PathBuf {
    home.join("root")
}
