//! `cargo xtask programs`: training programs on two ps and two workers, of ours or of TensorFlow.

use crate::process::{build_server, root, run_watched, server_binary, target_dir};
use crate::venv;
use anyhow::{Result, bail};
use std::process::Command;

/// Builds the server and runs the python driver with `args` (`NAME --sync --tf`, …); returns its
/// last line, if it compared.
pub(crate) fn run(args: &[String]) -> Result<String> {
    let python = venv::ensure()?;
    build_server()?;
    let mut summary = String::new();
    let result = run_watched(
        Command::new(python)
            .current_dir(root())
            .arg("conformance/run_programs.py")
            .arg("--server")
            .arg(server_binary())
            .arg("--work")
            .arg(target_dir().join("programs"))
            .args(args),
        |line| {
            if line.starts_with("programs: ") {
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
