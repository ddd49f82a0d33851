//! The `downpour` command: the only place that reads arguments, prints and exits.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::exit,
    reason = "the program talks to its user, and ends"
)]

mod config;
mod coordinator;
mod dashboard;
mod demo;
mod inspect;
mod jobs;
mod log;
mod refusal;
mod run;
mod serve;
mod shell;
mod stop;
mod storage;
mod top;
mod version;

use clap::{CommandFactory, Parser, Subcommand};
use downpour_tensor::TensorMemory;
use mimalloc::MiMalloc;
use std::process::ExitCode;

// Large tensors come and go with every step; the system's allocator maps and unmaps each.
#[global_allocator]
static ALLOCATOR: TensorMemory<MiMalloc> = TensorMemory(MiMalloc);

/// Distributed TensorFlow, rebuilt in Rust.
#[derive(Parser)]
#[command(
    name = "downpour",
    version = version::SHORT,
    long_version = version::LONG,
    about = "Distributed TensorFlow, rebuilt in Rust",
    after_help = FIRST_STEPS
)]
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

    /// Show runs on a web page: those that run, those that are over, and how they compare
    #[command(after_help = dashboard::SHOW_EXAMPLES)]
    Dashboard(dashboard::Show),

    /// List the jobs of this machine
    Ps(jobs::Ps),

    /// Watch what the jobs of this machine do
    Top(top::Top),

    /// Print what the tasks of a job printed
    Logs(jobs::Logs),

    /// Remove the directories of old runs
    Clean(jobs::Clean),

    /// Stop a task: its steps under way end, then it exits
    Stop(stop::Stop),

    /// Look into checkpoints, event files, graphs, record files and clusters
    Inspect(Box<inspect::Inspect>),

    /// Print a completion script for a shell
    #[command(after_help = shell::COMPLETIONS)]
    Completions(shell::Completions),

    /// Print the manual page, or write one for every command
    #[command(after_help = shell::MAN)]
    Man(shell::Man),
}

/// What this program is started as by itself. Apart from what people are offered, so that no help,
/// completion or suggestion leads there.
#[derive(Parser)]
#[command(name = "downpour")]
enum Internal {
    /// One worker of the demo
    DemoWorker(demo::Worker),
    /// The coordinator or a replica of the demo of Sandblaster
    DemoSandblaster(demo::Task),
    /// Ends the tasks of a launcher that was killed
    JobGuard(run::Guard),
    /// The launcher's half on another host
    Supervise(run::Supervise),
    /// The ApplicationMaster of a job in YARN
    YarnMaster(run::YarnMaster),
    /// What runs tasks in a container of YARN
    YarnAgent(run::YarnAgent),
}

/// Their names.
const INTERNAL: [&str; 6] = [
    "demo-worker",
    "demo-sandblaster",
    "job-guard",
    "supervise",
    "yarn-master",
    "yarn-agent",
];

impl Internal {
    fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Internal::DemoWorker(worker) => worker.run(),
            Internal::DemoSandblaster(task) => task.run(),
            Internal::JobGuard(guard) => {
                guard.run();
                Ok(ExitCode::SUCCESS)
            }
            Internal::Supervise(supervise) => supervise.run().map(|()| ExitCode::SUCCESS),
            Internal::YarnMaster(master) => master.run(),
            Internal::YarnAgent(agent) => agent.run().map(|()| ExitCode::SUCCESS),
        }
    }
}

/// Shown below the commands.
const FIRST_STEPS: &str = "\
First steps:
  downpour demo mnist                    see a cluster train on this machine
  downpour serve --port 2222             a task for TensorFlow's client: tf.compat.v1.Session('grpc://127.0.0.1:2222')
  downpour run --ps 2 --workers 2 -- ./my-trainer
  downpour inspect checkpoint logs       what training left behind";

fn main() -> ExitCode {
    downpour::install_storages();
    let first = std::env::args_os().nth(1);
    if first.is_some_and(|first| INTERNAL.iter().any(|name| first == *name)) {
        let outcome = Internal::parse().run();
        return outcome.unwrap_or_else(|e| refusal::report(&e));
    }
    let cli = Cli::parse();
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    if let Err(e) = config::check_environment(&Cli::command(), names) {
        return refusal::report(&e);
    }
    let done = |()| ExitCode::SUCCESS;
    let outcome = match cli.command {
        Command::Serve(serve) => serve.run().map(done),
        Command::Stop(stop) => stop.run().map(done),
        Command::Dashboard(show) => show.run().map(done),
        Command::Ps(ps) => ps.run().map(done),
        Command::Top(top) => top.run().map(done),
        Command::Logs(logs) => logs.run().map(done),
        Command::Clean(clean) => clean.run().map(done),
        Command::Run(run) => run.run(),
        Command::Demo(demo) => demo.run(),
        Command::Inspect(inspect) => inspect.run(),
        Command::Completions(completions) => completions.run(Cli::command()).map(done),
        Command::Man(man) => man.run(Cli::command()).map(done),
    };
    outcome.unwrap_or_else(|e| refusal::report(&e))
}
