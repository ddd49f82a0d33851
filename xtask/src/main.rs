//! `cargo xtask`: every check, test and measurement of this repository behind one door.
//!
//! Owns what CI runs; no product crate may depend on it. A command either succeeds or returns an
//! error that names the step that failed; nothing here is skipped silently.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool talks to its user"
)]

mod bench;
mod build_time;
mod chart;
mod check;
mod cluster;
mod conformance;
mod dashboard;
mod dist;
mod docs;
mod engines;
mod example;
mod examples;
mod features;
mod fuzz;
mod graphs;
mod inspect;
mod launch;
mod manifests;
mod methods;
mod patience;
mod process;
mod programs;
mod proto;
mod rooms;
mod sandblaster;
mod sweep;
mod test;
mod tidy;
mod trial;
mod venv;

use anyhow::{Result, bail};
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask <command>

  check                 fmt, clippy, tidy (crate arrows, file openings), generated code, docs
  test [--all] [--only STEP]
                        everything CI runs: check, release build, unit tests, the examples,
                        clusters, conformance, graphs, SciPy, fuzz smoke, bench smoke; with --all
                        random comparisons draw many more samples; with --only one step of it
  conformance [args]    real TensorFlow against `downpour serve` (see conformance/README.md)
  conformance --random [--count N] [--seed S] [--op GLOB] [--cases]
                        random calls of single ops, answered by both
  graphs [shapes|variants|gradients|flow|layers|optimizers [args]]
                        our builder's shapes, refusals, gradients and loops beside TensorFlow's
  cluster [--only NAME] clusters that mix our tasks with TensorFlow's
  cluster --faults [--tf] [--short] [--only SCENE]
                        tasks that are killed, stopped or cut off, and come back; TensorFlow's figures
  cluster --cuts [--short] [--only SCENE]
                        networks that are cut, slow and lossy: hosts in network namespaces
  cluster --ending [--only NAME]
                        tasks that exit when the training is done, or when told
  cluster --order [--seed S] [--count N] [--only MIXTURE]
                        random programs whose reads and updates are spread over tasks, on both sides
  cluster --fairness [--only OP] [--seconds N] [--ours]
                        how long clients wait while another runs a kernel of a gigabyte, beside TensorFlow's
  recovery [--only NAME] [--rounds N]
                        how soon a Rust program trains after a loss, beside TensorFlow's: a table
  sandblaster           Sandblaster's L-BFGS beside SciPy's L-BFGS-B, iterate by iterate
  sandblaster --traffic what its coordinator sends by the model's size, to docs/sandblaster.md
  tensorboard           TensorBoard reads what a Rust program writes: its reader and its server
  programs [NAME [--sync] [--free] [--resource] [--tf] [--data DIR]]
                        one training program on 2 ps and 2 workers; all on both sides, compared
  examples [NAME…]      the examples of crates/downpour train to the quality they state
  methods [--smoke|--bounds]
                        Downpour SGD, Adagrad, synchronous SGD and L-BFGS to the same accuracy: docs/methods.md
  launch                the demo, and a TensorFlow script under `downpour run`, with tasks killed
  inspect [--only NAME] `downpour inspect` on TensorFlow's files beside TensorFlow
  dashboard [--debug] [--shots DIR]
                        the dashboard of a job that trains, in headless Chromium
  dist [--profile NAME] [--out DIR] [--allow-dirty] [--check]
                        what is shipped, to target/dist: a static binary, tarball, .deb, container image, SBOM,
                        licences, checksums, installer; --check runs them on Debian 12 and on the oldest glibc,
                        --check-quick here; with --made only that, on what lies there
  dist --publish-dry-run [--verify] [--allow-dirty]
                        packs all crates as a registry would get them
  dist --spark [--profile NAME] [--out DIR]
                        the python package downpour-spark with the static binary in it, as a wheel
  docs [--all] [PAGE…]  every command of the README and the book, in a fresh home, page by page; with --all also what
                        takes long or needs TensorFlow, and all a second time
  docs --newcomer       clone, build, first command, each timed
  engines [NAME…]       the services that the project works with, started for their tests and stopped:
                        etcd, zookeeper, s3, hdfs; the places where jobs run: ssh, docker, slurm, kubernetes, yarn, with a
                        table; and spark, a master with two workers on which the python package is tried
  bench [--row PATTERN] [--json] [--rounds N] [--seconds S] [--no-save] [--smoke]
                        our numbers beside TensorFlow's, in the same run; appended to benches/results.jsonl
  bench --profile ROW   a flame graph of all tasks and one step's timeline, to target/bench
  bench --counts ROW    what a step asks of the system: calls, wake-ups, packets, bytes (all: of each row)
  bench --page          renews the tables of docs/performance.md from what was measured last
  bench --scaling [PART]
                        cost as workers, variables and tables grow, to docs/scaling.md
  build-time [--here]   what README's first build costs from nothing: seconds, crates, size; --here: in target/
  sweep [--op GLOB] [--graphs] [--refine] [--quick]
                        every op and sixty graphs beside TensorFlow's server; a whole one renews docs/sweep.md
  fuzz [--seconds N] [--target NAME]
                        every decoder's fuzz target, for a bounded time each
  proto                 regenerates the committed protobuf code of crates/wire
  tidy [--write]        only the crate arrows, what crates may not do (clippy.toml), dependencies, licences, file rules
  venv                  the python with TensorFlow that conformance and bench use";

fn main() -> ExitCode {
    if let Some(code) = build_time::as_rustc_wrapper() {
        return code;
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("xtask: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[String]) -> Result<()> {
    let Some((command, rest)) = args.split_first() else {
        bail!("no command\n{USAGE}");
    };
    match command.as_str() {
        "check" => check::run(),
        "test" => test::run(rest),
        "conformance" => conformance::run(rest),
        "cluster" => cluster::run(rest).map(|_| ()),
        "programs" => programs::run(rest).map(|_| ()),
        "examples" => examples::train(rest).map(|summary| println!("{summary}")),
        "methods" => methods::compare(rest).map(|summary| println!("{summary}")),
        "recovery" => trial::recovery(rest).map(|_| ()),
        "tensorboard" => trial::tensorboard().map(|_| ()),
        "sandblaster" => sandblaster::run(rest).map(|_| ()),
        "dashboard" => dashboard::test(rest).map(|_| ()),
        "dist" => dist::run_command(rest).map(|summary| println!("{summary}")),
        "docs" => docs::test(rest).map(|summary| println!("{summary}")),
        "engines" => engines::run(rest).map(|summary| println!("{summary}")),
        "bench" => bench::run(rest),
        "build-time" => build_time::measure(rest),
        "sweep" => sweep::run(rest).map(|_| ()),
        "fuzz" => fuzz::run(rest),
        "inspect" => inspect::run(rest).map(|_| ()),
        "graphs" => graphs::compare(rest).map(|_| ()),
        "launch" => {
            process::build_server()?;
            println!("{}", launch::run()?);
            Ok(())
        }
        "proto" => proto::run(),
        "tidy" => tidy::run(rest),
        "venv" => {
            let python = venv::ensure()?;
            println!("{}", python.display());
            Ok(())
        }
        "help" | "--help" | "-h" => {
            println!("{USAGE}");
            Ok(())
        }
        other => bail!("unknown command '{other}'\n{USAGE}"),
    }
}
