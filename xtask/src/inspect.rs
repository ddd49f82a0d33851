//! `cargo xtask inspect`: what `downpour inspect` says of TensorFlow's files beside what TensorFlow
//! says of them, damaged ones included.

use crate::process::{build_server, root, run_watched, server_binary, target_dir};
use crate::venv;
use anyhow::{Result, bail};
use std::process::Command;

/// Runs the comparison with `args` (`--only NAME`).
pub(crate) fn run(args: &[String]) -> Result<String> {
    let python = venv::ensure()?;
    build_server()?;
    let mut summary = String::new();
    let result = run_watched(
        Command::new(python)
            .current_dir(root())
            .arg("conformance/inspect_files.py")
            .arg("--server")
            .arg(server_binary())
            .arg("--work")
            .arg(target_dir().join("inspect"))
            .args(args),
        |line| {
            if line.starts_with("inspect: ") {
                line.clone_into(&mut summary);
            }
        },
    );
    match result {
        Ok(()) => Ok(summary),
        Err(e) if summary.is_empty() => Err(e),
        Err(_) => bail!("{summary}"),
    }
}
