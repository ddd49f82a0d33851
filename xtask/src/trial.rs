//! `cargo xtask recovery` and `cargo xtask board`: a program of the Rust API (`downpour-trial`) as
//! processes of its own, whose tasks are killed beside TensorFlow's, and whose event files
//! TensorBoard reads.

use crate::process::{cargo, root, run, run_summed, target_dir};
use crate::venv;
use anyhow::Result;
use std::path::Path;
use std::process::Command;

/// How soon training goes on after a loss, ours and TensorFlow's; prints a table.
pub(crate) fn recovery(args: &[String]) -> Result<String> {
    script("recovery", &venv::ensure()?, args)
}

/// TensorBoard's reader and its server on what a program wrote.
pub(crate) fn board() -> Result<String> {
    script("board", &venv::ensure_tensorboard()?, &[])
}

/// Sandblaster's L-BFGS beside SciPy's, iterate by iterate.
pub(crate) fn sandblaster() -> Result<String> {
    script("sandblaster", &venv::ensure_scipy()?, &[])
}

/// Builds the program and runs a script of `conformance/` on it; its last line.
fn script(name: &str, python: &Path, args: &[String]) -> Result<String> {
    run(cargo().args(["build", "--package", "downpour-graph-tool"]))?;
    let mut command = Command::new(python);
    command
        .current_dir(root())
        .arg(format!("conformance/{name}.py"))
        .arg("--trial")
        .arg(target_dir().join("debug").join("downpour-trial"))
        .arg("--work")
        .arg(target_dir().join(name))
        .args(args);
    run_summed(&mut command, name)
}
