//! The `downpour` command: the only place that reads arguments, prints and exits.

mod config;
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

    /// Stop a task: its steps under way end, then it exits
    Stop(stop::Stop),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = match cli.command {
        Command::Serve(serve) => serve.run(),
        Command::Stop(stop) => stop.run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e:#}");
            // What the user asked for cannot be done as asked: bad flags, a taken port.
            ExitCode::from(2)
        }
    }
}
