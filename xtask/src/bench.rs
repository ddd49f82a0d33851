//! `cargo xtask bench`: our numbers and TensorFlow's from the same run.

use crate::process::{cargo, root, run as run_command, server_binary, target_dir};
use crate::venv;
use anyhow::Result;
use std::process::Command;

/// Builds server and workers and runs the python driver with `args` (`--row`, `--json`, `--rounds`, `--smoke`…).
pub(crate) fn run(args: &[String]) -> Result<()> {
    let python = venv::ensure()?;
    // In one go: built apart, features of shared dependencies could differ and be built twice.
    run_command(cargo().args([
        "build",
        "--release",
        "--package",
        "downpour-cli",
        "--package",
        "downpour-bench",
    ]))?;
    run_command(
        Command::new(python)
            .current_dir(root())
            .arg("conformance/bench/run.py")
            .arg("--server")
            .arg(server_binary())
            .arg("--native")
            .arg(server_binary().with_file_name("downpour-bench"))
            .arg("--work")
            .arg(target_dir().join("bench"))
            .args(args),
    )
}
