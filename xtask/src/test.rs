//! `cargo xtask test`: what CI runs. Goes on after a failing step where that makes sense, so one
//! run shows everything that is wrong, and ends with the counts.

use crate::process::{build_server, cargo, run_watched};
use crate::{
    bench, check, cluster, conformance, dashboard, engines, example, examples, fuzz, graphs,
    inspect, launch, methods, patience, programs,
};
use anyhow::{Result, bail};
use std::time::{Duration, Instant};

/// Several times what the longest step takes, builds included: one that needs more hangs.
const PATIENCE: Duration = Duration::from_secs(30 * 60);

/// Runs every step and fails when any of them did. With `--all`, random comparisons draw many more samples.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let is_all = match args {
        [] => false,
        [flag] if flag == "--all" => true,
        other => bail!("test takes no argument but --all, not {}", other.join(" ")),
    };
    let sample = |few: &'static str, many: &'static str| if is_all { many } else { few };
    let mut report = Report::default();
    report.step("check", || check::run().map(|()| String::new()));
    if report.step("build", || build_server().map(|()| String::new())) {
        report.step("unit", || unit_tests(&["--workspace"], "auto"));
        report.step("unit over gRPC", || {
            unit_tests(&["--package", "downpour", "--test", "cluster"], "grpc")
        });
        report.step("example", example::run);
        report.step("examples", || examples::train(&[]));
        report.step("methods", || methods::compare(&["--smoke".to_owned()]));
        report.step("launch", launch::run);
        report.step("places", engines::places);
        report.step("dashboard", || dashboard::test(&[]));
        report.step("cluster", || cluster::run(&[]));
        report.step("cluster over gRPC", || {
            cluster::run(&["--transport", "grpc", "--only", "ours"].map(str::to_owned))
        });
        report.step("order", || {
            cluster::run(&["--order", "--count", sample("24", "300")].map(str::to_owned))
        });
        report.step("faults", || {
            cluster::run(&["--faults".to_owned(), "--short".to_owned()])
        });
        report.step("cuts", || {
            let short = ["--cuts", "--short"].map(str::to_owned);
            cluster::run(if is_all { &short[..1] } else { &short })
        });
        report.step("ending", || cluster::run(&["--ending".to_owned()]));
        report.step("programs", || programs::run(&["--short".to_owned()]));
        report.step("conformance", || conformance::run_counting(&[]));
        report.step("random ops", conformance::random_sample);
        report.step("graphs", || graphs::compare(&[]));
        report.step("inspect", || inspect::run(&[]));
        report.step("board", crate::trial::board);
        report.step("sandblaster", || crate::sandblaster::run(&[]));
        report.step("fuzz", fuzz_smoke);
        report.step("bench", bench_smoke);
        report.step("sweep", crate::sweep::sample);
    }
    report.finish()
}

/// Runs every row of the benchmark briefly: that it works, not how fast it is.
fn bench_smoke() -> Result<String> {
    bench::run(&["--smoke".to_owned()])?;
    Ok("every row ran".to_owned())
}

fn fuzz_smoke() -> Result<String> {
    let targets = fuzz::targets()?;
    if targets.is_empty() {
        return Ok("no targets yet".to_owned());
    }
    fuzz::run(&["--seconds".to_owned(), "10".to_owned()])?;
    Ok(format!("{} targets, 10 s each", targets.len()))
}

/// Runs tests with debug assertions, the tasks of clusters talking to each other over `transport`, and adds up cargo's
/// per-binary summaries.
fn unit_tests(which: &[&str], transport: &str) -> Result<String> {
    let (mut passed, mut failed) = (0_u64, 0_u64);
    // Tests that libtest has named as slow and that have not ended since.
    let mut slow: Vec<String> = Vec::new();
    let result = run_watched(
        cargo()
            .env("DOWNPOUR_TEST_TRANSPORT", transport)
            .args(["test", "--no-fail-fast"])
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

#[derive(Default)]
struct Report {
    lines: Vec<String>,
    failed: Vec<&'static str>,
}

impl Report {
    fn step(&mut self, name: &'static str, body: impl FnOnce() -> Result<String>) -> bool {
        eprintln!("== {name}");
        let start = Instant::now();
        let outcome = patience::within(PATIENCE, name, body);
        let seconds = start.elapsed().as_secs();
        let is_ok = outcome.is_ok();
        let note = match outcome {
            Ok(note) => note,
            Err(e) => {
                self.failed.push(name);
                eprintln!("{name} failed: {e:#}");
                format!("FAILED {e:#}")
            }
        };
        self.lines
            .push(format!("{name:<12} {seconds:>5} s  {note}"));
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
