//! `cargo xtask cluster`: our tasks and TensorFlow's in mixed clusters; with `--faults`, tasks that
//! are lost and come back.

use crate::process::{build_server, root, run_watched, server_binary, target_dir};
use crate::venv;
use anyhow::{Result, bail};
use std::process::Command;

/// Builds the server and runs the python driver with `args`: `--only NAME`, or `--faults` and what
/// `conformance/faults.py` takes.
pub(crate) fn run(args: &[String]) -> Result<String> {
    let python = venv::ensure()?;
    build_server()?;
    let faults = args.iter().any(|a| a == "--faults");
    let (script, work) = match faults {
        true => ("conformance/faults.py", "faults"),
        false => ("conformance/cluster.py", "cluster"),
    };
    let mut summary = String::new();
    let result = run_watched(
        Command::new(python)
            .current_dir(root())
            .arg(script)
            .arg("--server")
            .arg(server_binary())
            .arg("--work")
            .arg(target_dir().join(work))
            .args(args.iter().filter(|a| *a != "--faults")),
        |line| {
            if line.starts_with("cluster: ") || line.starts_with("faults: ") {
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
