//! `cargo xtask conformance`: hands the release binary to the python harness, which compares it
//! with TensorFlow case by case, or call by random call with `--random`.

use crate::process::{build_server, root, run_summed, server_binary, target_dir};
use crate::venv;
use anyhow::Result;
use std::process::Command;

/// Random calls of single ops instead of the cases.
const RANDOM: &str = "--random";

/// The first of a fixed run of random calls, as many as a minute has room for.
pub(crate) fn random_sample() -> Result<String> {
    let sample = ["--seed", "1", "--count", "400", "--seconds", "50"];
    let args: Vec<String> = std::iter::once(RANDOM)
        .chain(sample)
        .map(str::to_owned)
        .collect();
    run_counting(&args)
}

/// Runs the harness with `args` of its own; builds the server first unless another is named.
pub(crate) fn run(args: &[String]) -> Result<()> {
    run_counting(args).map(|_| ())
}

/// Like [`run`], but returns the harness's last summary line.
pub(crate) fn run_counting(args: &[String]) -> Result<String> {
    let (script, name) = match args.iter().any(|a| a == RANDOM) {
        true => ("conformance/random_ops.py", "random ops"),
        false => ("conformance/harness.py", "conformance"),
    };
    let python = venv::ensure()?;
    let names_server = args
        .iter()
        .any(|a| a.starts_with("--server-cmd") || a.starts_with("--target") || a == "--list");
    let mut command = Command::new(python);
    command
        .current_dir(root())
        .arg(script)
        .arg("--work")
        .arg(target_dir().join("conformance"));
    if !names_server {
        build_server()?;
        command.arg("--server-cmd").arg(format!(
            "{} serve --port {{port}}",
            server_binary().display()
        ));
    }
    command.args(args.iter().filter(|a| *a != RANDOM));
    run_summed(&mut command, name)
}
