//! The `downpour` command: the only place that reads arguments, prints and exits.

mod config;
mod dashboard;
mod demo;
mod inspect;
mod refusal;
mod run;
mod serve;
mod stop;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

// Large tensors come and go with every step; the system's allocator maps and unmaps each.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Distributed TensorFlow, rebuilt in Rust.
#[derive(Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run one task of a cluster; TensorFlow clients connect to it with grpc://
    #[command(after_help = serve::SOURCES)]
    Serve(Box<serve::Serve>),

    /// Launch a program as a job: tasks, logs, restarts, the end
    #[command(after_help = run::EXAMPLES)]
    Run(Box<run::Run>),

    /// See a cluster train on this machine
    Demo(demo::Demo),

    /// One worker of the demo
    #[command(hide = true)]
    DemoWorker(demo::Worker),

    /// Ends the tasks of a launcher that was killed
    #[command(hide = true)]
    JobGuard(run::Guard),

    /// Stop a task: its steps under way end, then it exits
    Stop(stop::Stop),

    /// Look into checkpoints, event files, graphs, record files and clusters
    Inspect(Box<inspect::Inspect>),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = |()| ExitCode::SUCCESS;
    let outcome = match cli.command {
        Command::Serve(serve) => serve.run().map(done),
        Command::Stop(stop) => stop.run().map(done),
        Command::Run(run) => run.run(),
        Command::Demo(demo) => demo.run(),
        Command::DemoWorker(worker) => worker.run(),
        Command::JobGuard(guard) => {
            guard.run();
            Ok(ExitCode::SUCCESS)
        }
        Command::Inspect(inspect) => inspect.run(),
    };
    outcome.unwrap_or_else(|e| refusal::report(&e))
}
