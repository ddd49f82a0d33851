//! `cargo xtask cluster`: our tasks and TensorFlow's in mixed clusters, and a ps that dies.

use crate::process::{build_server, root, run_watched, server_binary, target_dir};
use crate::venv;
use anyhow::{Result, bail};
use std::process::Command;

/// Builds the server and runs the python driver with `args` (`--only NAME`).
pub(crate) fn run(args: &[String]) -> Result<String> {
    let python = venv::ensure()?;
    build_server()?;
    let mut summary = String::new();
    let result = run_watched(
        Command::new(python)
            .current_dir(root())
            .arg("conformance/cluster.py")
            .arg("--server")
            .arg(server_binary())
            .arg("--work")
            .arg(target_dir().join("cluster"))
            .args(args),
        |line| {
            if line.starts_with("cluster: ") {
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
