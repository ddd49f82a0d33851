//! `cargo xtask bench`: our numbers and TensorFlow's from the same client in the same run.

use crate::process::{build_server, root, run as run_command, server_binary, target_dir};
use crate::venv;
use anyhow::Result;
use std::process::Command;

/// Builds the server and runs the python driver with `args` (`--row`, `--json`, `--rounds`, `--smoke`).
pub(crate) fn run(args: &[String]) -> Result<()> {
    let python = venv::ensure()?;
    build_server()?;
    run_command(
        Command::new(python)
            .current_dir(root())
            .arg("conformance/bench/run.py")
            .arg("--server")
            .arg(server_binary())
            .arg("--work")
            .arg(target_dir().join("bench"))
            .args(args),
    )
}
