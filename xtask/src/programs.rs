//! `cargo xtask programs`: training programs on two ps and two workers, of ours or of TensorFlow.

use crate::process::run_on_server;
use anyhow::Result;

/// Builds the server and runs the python driver with `args` (`NAME --sync --tf`, …); returns its
/// last line, if it compared.
pub(crate) fn run(args: &[String]) -> Result<String> {
    run_on_server("run_programs", "programs", args)
}
