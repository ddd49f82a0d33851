//! `cargo xtask cluster`: our tasks and TensorFlow's in mixed clusters; with `--faults`, tasks that
//! are lost and come back; with `--cuts`, networks that are cut; with `--ending`, tasks that end; with `--order`, random
//! programs whose reads and updates are spread over tasks; with `--fairness`, clients beside one that runs long kernels.

use crate::process::run_on_server;
use anyhow::{Result, bail};

/// The python drivers in `conformance/`, by the flag that asks for each. The last takes no flag.
const DRIVERS: [(&str, &str); 6] = [
    ("--order", "order"),
    ("--ending", "ending"),
    ("--fairness", "fairness"),
    ("--faults", "faults"),
    ("--cuts", "cuts"),
    ("", "cluster"),
];

/// Builds the server and runs a driver with the rest of `args` (`--only NAME` and what else it takes).
pub(crate) fn run(args: &[String]) -> Result<String> {
    let asked = |flag: &str| flag.is_empty() || args.iter().any(|a| a == flag);
    let Some((flag, driver)) = DRIVERS.into_iter().find(|(flag, _)| asked(flag)) else {
        bail!("no such driver");
    };
    run_on_server(driver, driver, args.iter().filter(|a| *a != flag))
}
