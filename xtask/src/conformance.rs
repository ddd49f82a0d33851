//! `cargo xtask conformance`: hands the release binary to the python harness, which compares it
//! with TensorFlow case by case.

use crate::process::{build_server, root, run_summed, server_binary, target_dir};
use crate::venv;
use anyhow::Result;
use std::process::Command;

/// Runs the harness with `args` of its own; builds the server first unless another is named.
pub(crate) fn run(args: &[String]) -> Result<()> {
    run_counting(args).map(|_| ())
}

/// Like [`run`], but returns the harness's last summary line.
pub(crate) fn run_counting(args: &[String]) -> Result<String> {
    let python = venv::ensure()?;
    let names_server = args
        .iter()
        .any(|a| a.starts_with("--server-cmd") || a.starts_with("--target") || a == "--list");
    let mut command = Command::new(python);
    command
        .current_dir(root())
        .arg("conformance/harness.py")
        .arg("--work")
        .arg(target_dir().join("conformance"));
    if !names_server {
        build_server()?;
        command.arg("--server-cmd").arg(format!(
            "{} serve --port {{port}}",
            server_binary().display()
        ));
    }
    command.args(args);
    run_summed(&mut command, "conformance")
}
