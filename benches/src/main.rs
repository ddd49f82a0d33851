//! `downpour-bench`: our side of the benchmark's cluster rows.
//!
//! `worker` is one worker process as a user of the crate writes it: a `Server` and a session on it in
//! the same process. `conformance/bench/run.py` drives it beside TensorFlow's; `row` drives a cluster of
//! them alone, for quick trials.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool talks to its user"
)]

mod data;
mod models;
mod processes;
mod row;
mod worker;

use clap::{Parser, Subcommand};
use downpour_tensor::TensorMemory;
use mimalloc::MiMalloc;
use std::process::ExitCode;

// As in the program itself.
#[global_allocator]
static ALLOCATOR: TensorMemory<MiMalloc> = TensorMemory(MiMalloc);

/// Our side of the benchmark's cluster rows.
#[derive(Parser)]
#[command(name = "downpour-bench")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// One worker of a row, told what to do line by line on stdin
    Worker(worker::Options),
    /// A whole row alone: parameter servers, workers, rounds, figures
    Row(row::Options),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Worker(options) => worker::run(&options),
        Command::Row(options) => row::run(&options),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("downpour-bench: {e:#}");
            ExitCode::FAILURE
        }
    }
}
