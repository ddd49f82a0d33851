//! `cargo xtask cluster`: our tasks and TensorFlow's in mixed clusters; with `--faults`, tasks that
//! are lost and come back; with `--ending`, tasks that end.

use crate::process::{build_server, root, run_watched, server_binary, target_dir};
use crate::venv;
use anyhow::{Result, bail};
use std::process::Command;

/// The python drivers in `conformance/`, by the flag that asks for each. The last takes no flag.
const DRIVERS: [(&str, &str); 3] = [
    ("--ending", "ending"),
    ("--faults", "faults"),
    ("", "cluster"),
];

/// Builds the server and runs a driver with the rest of `args` (`--only NAME` and what else it takes).
pub(crate) fn run(args: &[String]) -> Result<String> {
    let python = venv::ensure()?;
    build_server()?;
    let asked = |flag: &str| flag.is_empty() || args.iter().any(|a| a == flag);
    let Some((flag, driver)) = DRIVERS.into_iter().find(|(flag, _)| asked(flag)) else {
        bail!("no such driver");
    };
    let prefix = format!("{driver}: ");
    let mut summary = String::new();
    let result = run_watched(
        Command::new(python)
            .current_dir(root())
            .arg(format!("conformance/{driver}.py"))
            .arg("--server")
            .arg(server_binary())
            .arg("--work")
            .arg(target_dir().join(driver))
            .args(args.iter().filter(|a| *a != flag)),
        |line| {
            if line.starts_with(&prefix) {
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
