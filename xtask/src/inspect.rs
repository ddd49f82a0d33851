//! `cargo xtask inspect`: what `downpour inspect` says of TensorFlow's files beside what TensorFlow
//! says of them, damaged ones included.

use crate::process::run_on_server;
use anyhow::Result;

/// Runs the comparison with `args` (`--only NAME`).
pub(crate) fn run(args: &[String]) -> Result<String> {
    // Not inspect.py: python's own module of that name would be hidden from every script there.
    run_on_server("inspect_files", "inspect", args)
}
