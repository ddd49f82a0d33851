//! `cargo xtask test`: what CI runs. Cheap steps come first; steps that measure nothing in time run two at a time; a
//! failing step stops no other unless they need it, so that one run shows everything that is wrong.

use crate::process::{build_server, cargo, run_watched, target_dir};
use crate::{
    bench, check, cluster, conformance, dashboard, dist, docs, engines, example, examples, fuzz,
    graphs, inspect, launch, methods, patience, programs, sandblaster, sweep, trial,
};
use anyhow::{Context as _, Result, bail};
use std::fs::{self, File};
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Several times what the longest step takes, builds included: one that needs more hangs.
const PATIENCE: Duration = Duration::from_secs(20 * 60);

/// What all steps may take together, well above what they need on two busy cores: the command itself
/// says what is broken before a caller's time limit ends it.
const LIMIT: Duration = Duration::from_secs(80 * 60);

/// The variable that names the file for a step's outcome.
const OUTCOME: &str = "DOWNPOUR_TEST_OUTCOME";

/// How many steps of [`BESIDE`] run at a time: their clients and servers keep about one core busy each.
const AT_A_TIME: usize = 2;

/// A step: its name, and what it does, with `true` for everything and `false` for a seeded sample.
type Step = (&'static str, fn(bool) -> Result<String>);

/// What can be said without running anything.
const CHECK: Step = ("check", |_| check::run().map(|()| String::new()));

/// Without it nothing else can run.
const BUILD: Step = ("build", |_| build_server().map(|()| String::new()));

/// What is quickly said, before TensorFlow, browsers and benchmarks.
const UNIT: &[Step] = &[
    ("unit", |_| unit_tests(&[], "auto")),
    ("unit over gRPC", |_| {
        unit_tests(&["--test", "cluster"], "grpc")
    }),
    ("python", |_| engines::python_tests()),
];

/// Comparisons of values, the longest first. Their output is in `target/test/NAME.log`, too.
const BESIDE: &[Step] = &[
    ("conformance", |_| conformance::run_counting(&[])),
    ("examples", |_| examples::train(&[])),
    ("fuzz", |_| fuzz_smoke()),
    ("graphs", |_| graphs::compare(&[])),
    ("random ops", |_| conformance::random_sample()),
    ("example", |_| example::run()),
    ("programs", |_| programs::run(&words(&["--short"]))),
    ("order", |is_all| {
        let count = if is_all { "300" } else { "24" };
        cluster::run(&words(&["--order", "--count", count]))
    }),
    ("sandblaster", |_| sandblaster::run(&[])),
    ("tensorboard", |_| trial::tensorboard()),
    ("methods", |_| methods::compare(&words(&["--smoke"]))),
    ("inspect", |_| inspect::run(&[])),
];

/// What kills, cuts, watches or measures: alone on the machine.
const ALONE: &[Step] = &[
    ("launch", |_| launch::run()),
    ("engines", |_| engines::stores_and_coordination()),
    ("places", |_| engines::places()),
    ("dashboard", |_| dashboard::test(&[])),
    ("cluster", |_| cluster::run(&[])),
    ("cluster over gRPC", |_| {
        cluster::run(&words(&["--transport", "grpc", "--only", "ours"]))
    }),
    ("faults", |_| cluster::run(&words(&["--faults", "--short"]))),
    ("cuts", |is_all| {
        let short = words(&["--cuts", "--short"]);
        cluster::run(if is_all { &short[..1] } else { &short })
    }),
    ("ending", |_| cluster::run(&words(&["--ending"]))),
    ("bench", |_| bench_smoke()),
    ("sweep", |_| sweep::sample()),
];

/// What runs with `--all` only.
const LONG: &[Step] = &[
    ("docs", |_| docs::test(&words(&["--all"]))),
    ("dist", |_| {
        dist::run_command(&words(&["--allow-dirty", "--check"]))
    }),
    ("spark", |_| engines::spark()),
];

/// Runs every step and fails when any of them did. With `--all`, random comparisons draw many more samples; with
/// `--only STEP` one step runs in this process.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let (mut is_all, mut only) = (false, None);
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--all" => is_all = true,
            "--only" => only = Some(args.next().context("--only needs the name of a step")?),
            other => bail!("test knows --all and --only STEP, not {other}"),
        }
    }
    if let Some(name) = only {
        return one(name, is_all);
    }
    let mut report = Report {
        begun: Instant::now(),
        lines: Vec::new(),
        failed: Vec::new(),
    };
    report.step(&CHECK, is_all);
    if report.step(&BUILD, is_all) {
        for step in UNIT {
            report.step(step, is_all);
        }
        report.beside(BESIDE, is_all);
        for step in ALONE.iter().chain(if is_all { LONG } else { &[] }) {
            report.step(step, is_all);
        }
    }
    report.finish()
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

/// One step by its name, in this process; its outcome goes into the file that [`OUTCOME`] names.
fn one(name: &str, is_all: bool) -> Result<()> {
    let all = || {
        let lists = [&[CHECK, BUILD], UNIT, BESIDE, ALONE, LONG];
        lists.into_iter().flatten()
    };
    let Some((_, body)) = all().find(|(known, _)| *known == name) else {
        let names: Vec<&str> = all().map(|(name, _)| *name).collect();
        bail!(
            "no step is called '{name}'; there are: {}",
            names.join(", ")
        );
    };
    let outcome = body(is_all);
    if let Some(file) = std::env::var_os(OUTCOME) {
        let text = match &outcome {
            Ok(note) => note.clone(),
            Err(e) => format!("{e:#}"),
        };
        fs::write(file, text).context("cannot tell the step's outcome")?;
    }
    println!("{}", outcome?);
    Ok(())
}

/// Runs every row of the benchmark briefly: that it works, not how fast it is.
fn bench_smoke() -> Result<String> {
    bench::run(&words(&["--smoke"]))?;
    Ok("every row ran".to_owned())
}

fn fuzz_smoke() -> Result<String> {
    let targets = fuzz::targets()?;
    if targets.is_empty() {
        bail!("there is no fuzz target");
    }
    fuzz::run(&words(&["--seconds", "5"]))?;
    Ok(format!("{} targets, 5 s each", targets.len()))
}

/// Runs tests of the whole workspace (with the same features, so that nothing is compiled twice) with debug assertions,
/// the tasks of clusters talking to each other over `transport`, and adds up cargo's per-binary summaries.
fn unit_tests(which: &[&str], transport: &str) -> Result<String> {
    let (mut passed, mut failed) = (0_u64, 0_u64);
    // Tests that libtest has named as slow and that have not ended since.
    let mut slow: Vec<String> = Vec::new();
    let result = run_watched(
        cargo()
            .env("DOWNPOUR_TEST_TRANSPORT", transport)
            .args(["test", "--workspace", "--no-fail-fast"])
            .args(which),
        |line| {
            if let Some((p, f)) = counts(line) {
                passed += p;
                failed += f;
            }
            if let Some(rest) = line.strip_prefix("test ") {
                let (name, rest) = rest.split_once(' ').unwrap_or((rest, ""));
                slow.retain(|other| other != name);
                if rest.starts_with("has been running") {
                    slow.push(name.to_owned());
                }
            }
        },
    );
    let mut summary = format!("tests: {passed} passed, {failed} failed");
    if !slow.is_empty() {
        summary += &format!(", still running: {}", slow.join(", "));
    }
    match result {
        Ok(()) => Ok(summary),
        Err(_) if failed > 0 => bail!("{summary}"),
        Err(e) => Err(e.context(summary)),
    }
}

/// Reads `test result: ok. 3 passed; 0 failed; …`.
pub(crate) fn counts(line: &str) -> Option<(u64, u64)> {
    let rest = line.strip_prefix("test result: ")?;
    let mut numbers = rest
        .split([' ', ';'])
        .filter_map(|word| word.parse::<u64>().ok());
    Some((numbers.next()?, numbers.next()?))
}

/// Runs a step as a process of its own, which can be ended with all that it started. Its output is ours, or with a
/// `screen` to share is shown in one piece when it has ended.
fn in_own_process(
    name: &str,
    is_all: bool,
    screen: Option<&Mutex<()>>,
    begun: Instant,
) -> Result<String> {
    // With --all, fuzzing, sweeps and engines take hours on purpose.
    let patience = match is_all {
        true => PATIENCE,
        false => PATIENCE.min(LIMIT.saturating_sub(begun.elapsed())),
    };
    if patience.is_zero() {
        bail!("not begun: {} s are over", LIMIT.as_secs());
    }
    let folder = target_dir().join("test");
    fs::create_dir_all(&folder)?;
    let file = |kind: &str| folder.join(format!("{}.{kind}", name.replace(' ', "-")));
    let (log, outcome) = (file("log"), file("outcome"));
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["test", "--only", name])
        .args(is_all.then_some("--all"))
        .env(OUTCOME, &outcome)
        .stdin(Stdio::null());
    if screen.is_some() {
        let log = File::create(&log).with_context(|| format!("cannot make {}", log.display()))?;
        command.stdout(log.try_clone()?).stderr(log);
    }
    fs::write(&outcome, "its process told no outcome")?;
    let ended = patience::run(&mut command, patience, name);
    if let Some(screen) = screen {
        let _guard = screen.lock();
        println!("== {name}");
        std::io::stdout().write_all(&fs::read(&log)?)?;
    }
    let told = fs::read_to_string(&outcome)?;
    match ended {
        Ok(true) => Ok(told),
        Ok(false) => bail!("{told}"),
        Err(e) => Err(e.context(told)),
    }
}

struct Report {
    begun: Instant,
    lines: Vec<String>,
    failed: Vec<&'static str>,
}

impl Report {
    fn step(&mut self, (name, _): &Step, is_all: bool) -> bool {
        eprintln!("== {name}");
        let start = Instant::now();
        let outcome = in_own_process(name, is_all, None, self.begun);
        self.note(name, start.elapsed(), outcome)
    }

    /// Runs steps [`AT_A_TIME`], in their order.
    fn beside(&mut self, steps: &[Step], is_all: bool) {
        let (next, screen, begun) = (Mutex::new(steps.iter()), Mutex::new(()), self.begun);
        let report = Mutex::new(self);
        let take = || next.lock().ok().and_then(|mut steps| steps.next());
        std::thread::scope(|scope| {
            for _ in 0..AT_A_TIME {
                scope.spawn(|| {
                    while let Some((name, _)) = take() {
                        let start = Instant::now();
                        let outcome = in_own_process(name, is_all, Some(&screen), begun);
                        if let Ok(mut report) = report.lock() {
                            report.note(name, start.elapsed(), outcome);
                        }
                    }
                });
            }
        });
    }

    fn note(&mut self, name: &'static str, took: Duration, outcome: Result<String>) -> bool {
        let is_ok = outcome.is_ok();
        let note = match outcome {
            Ok(note) => note,
            Err(e) => {
                self.failed.push(name);
                eprintln!("{name} failed: {e:#}");
                format!("FAILED {e:#}")
            }
        };
        let seconds = took.as_secs();
        self.lines
            .push(format!("{name:<17} {seconds:>5} s  {note}"));
        is_ok
    }

    fn finish(self) -> Result<()> {
        println!();
        for line in &self.lines {
            println!("{line}");
        }
        if self.failed.is_empty() {
            println!("xtask test: ok");
            return Ok(());
        }
        bail!("failed: {}", self.failed.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::counts;

    #[test]
    fn reads_cargo_summary() {
        let line =
            "test result: FAILED. 12 passed; 3 failed; 0 ignored; 0 measured; 0 filtered out";
        assert_eq!(counts(line), Some((12, 3)));
        assert_eq!(counts("running 3 tests"), None);
    }
}
