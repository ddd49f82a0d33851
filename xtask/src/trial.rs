//! `cargo xtask recovery` and `cargo xtask tensorboard`: a program of the Rust API (`downpour-trial`) as
//! processes of its own, whose tasks are killed beside TensorFlow's, and whose event files
//! TensorBoard reads.

use crate::process::{cargo, root, run, run_summed, target_dir};
use crate::venv;
use anyhow::Result;
use std::path::{Path, PathBuf};
use std::process::Command;

/// How soon training goes on after a loss, ours and TensorFlow's; prints a table.
pub(crate) fn recovery(args: &[String]) -> Result<String> {
    script("recovery", &venv::ensure()?, args)
}

/// TensorBoard's reader and its server on what a program wrote.
pub(crate) fn tensorboard() -> Result<String> {
    script("tensorboard_reads", &venv::ensure_tensorboard()?, &[])
}

/// Builds the program and runs a script of `conformance/` on it; its last line.
pub(crate) fn script(name: &str, python: &Path, args: &[String]) -> Result<String> {
    let program = build("dev")?;
    let mut command = Command::new(python);
    command
        .current_dir(root())
        .arg(format!("conformance/{name}.py"))
        .arg("--trial")
        .arg(program)
        .arg("--work")
        .arg(target_dir().join(name))
        .args(args);
    run_summed(&mut command, name)
}

/// Builds the program in a profile; where it is.
pub(crate) fn build(profile: &str) -> Result<PathBuf> {
    let mut build = cargo();
    build.args(["build", "--package", "downpour-graph-tool", "--profile"]);
    run(build.arg(profile))?;
    let folder = match profile {
        "dev" => "debug",
        other => other,
    };
    Ok(target_dir().join(folder).join("downpour-trial"))
}
