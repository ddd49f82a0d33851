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
mod chart;
mod check;
mod cluster;
mod conformance;
mod dashboard;
mod engines;
mod example;
mod examples;
mod features;
mod fuzz;
mod graphs;
mod inspect;
mod launch;
mod methods;
mod patience;
mod process;
mod programs;
mod proto;
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
  test [--all]          everything CI runs: check, release build, unit tests, the examples,
                        clusters, conformance, graphs, SciPy, fuzz smoke, bench smoke; with --all
                        random comparisons draw many more samples
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
  board                 TensorBoard reads what a Rust program writes: its reader and its server
  programs [NAME [--sync] [--free] [--resource] [--tf] [--data DIR]]
                        one training program on 2 ps and 2 workers; all on both sides, compared
  examples [NAME…]      the examples of crates/downpour train to the quality they state
  methods [--smoke|--bounds]
                        Downpour SGD, Adagrad, synchronous SGD and L-BFGS to the same accuracy: docs/methods.md
  launch                the demo, and a TensorFlow script under `downpour run`, with tasks killed
  inspect [--only NAME] `downpour inspect` on TensorFlow's files beside TensorFlow
  dashboard [--debug] [--shots DIR]
                        the dashboard of a job that trains, in headless Chromium
  engines [NAME…]       the services that the project works with, started for their tests and stopped:
                        etcd, zookeeper, s3, hdfs; and the places where jobs run: ssh, docker, slurm, with a table
  bench [--row PATTERN] [--json] [--rounds N] [--seconds S] [--no-save] [--smoke]
                        our numbers beside TensorFlow's, in the same run; appended to benches/results.jsonl
  bench --profile ROW   a flame graph of all tasks and one step's timeline, to target/bench
  bench --counts ROW    what a step asks of the system: calls, wake-ups, packets, bytes (all: of each row)
  bench --page          renews the tables of docs/performance.md from what was measured last
  bench --scaling [PART]
                        cost as workers, variables and tables grow, to docs/scaling.md
  sweep [--op GLOB] [--graphs] [--refine] [--quick]
                        every op and sixty graphs beside TensorFlow's server; a whole one renews docs/sweep.md
  fuzz [--seconds N] [--target NAME]
                        every decoder's fuzz target, for a bounded time each
  proto                 regenerates the committed protobuf code of crates/wire
  tidy                  only the crate arrows and file rules
  venv                  the python with TensorFlow that conformance and bench use";

fn main() -> ExitCode {
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
        "board" => trial::board().map(|_| ()),
        "sandblaster" => sandblaster::run(rest).map(|_| ()),
        "dashboard" => dashboard::test(rest).map(|_| ()),
        "engines" => engines::run(rest).map(|summary| println!("{summary}")),
        "bench" => bench::run(rest),
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
        "tidy" => tidy::run(),
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
