//! Running other programs: echo the command, stream its output, name it when it fails.

use crate::venv;
use anyhow::{Context as _, Result, bail};
use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The repository's root folder.
pub(crate) fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_path_buf()
}

/// The build folder: `CARGO_TARGET_DIR` when set, else `target/` of this repository.
pub(crate) fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// The cargo that started us, so that nested calls use the same toolchain.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    // What cargo says about us to ourselves: some build scripts look at it, and would run again, and all that is
    // built on them be compiled again, whenever a call of ours follows one from a shell.
    for (name, _) in std::env::vars_os() {
        let is_ours = |name: &str| {
            ["CARGO_PKG_", "CARGO_MANIFEST_"]
                .iter()
                .any(|begin| name.starts_with(begin))
        };
        if name.to_str().is_some_and(is_ours) {
            command.env_remove(name);
        }
    }
    command
}

/// The release binary of `downpour`.
pub(crate) fn server_binary() -> PathBuf {
    target_dir().join("release").join("downpour")
}

/// Builds the release binary of `downpour` (a no-op when it is fresh).
pub(crate) fn build_server() -> Result<()> {
    run(cargo().args(["build", "--release", "--package", "downpour-cli"]))
}

/// Runs a command to its end with our own stdout and stderr.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    eprintln!("$ {}", show(command));
    let status = command
        .status()
        .with_context(|| format!("cannot start `{}`", show(command)))?;
    if !status.success() {
        bail!("`{}` ended with {status}", show(command));
    }
    Ok(())
}

/// Runs a command, echoes its stdout line by line and hands each line to `see`.
pub(crate) fn run_watched(command: &mut Command, mut see: impl FnMut(&str)) -> Result<()> {
    eprintln!("$ {}", show(command));
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start `{}`", show(command)))?;
    let stdout = child.stdout.take().context("child has no stdout")?;
    for line in BufReader::new(stdout).split(b'\n') {
        let line = line.context("cannot read the child's output")?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        see(&line);
    }
    let status = child.wait().context("cannot wait for the child")?;
    if !status.success() {
        bail!("`{}` ended with {status}", show(command));
    }
    Ok(())
}

/// Runs a comparison and returns the line with which it ends, `NAME: … passed, … failed`; the error
/// of one that failed is that line too, if it came so far.
pub(crate) fn run_summed(command: &mut Command, name: &str) -> Result<String> {
    let mut summary = String::new();
    let is_summary = |line: &str| line.strip_prefix(name).is_some_and(|l| l.starts_with(": "));
    let outcome = run_watched(command, |line| {
        if is_summary(line) {
            line.clone_into(&mut summary);
        }
    });
    match outcome {
        Ok(()) => Ok(summary),
        Err(e) if summary.is_empty() => Err(e),
        Err(_) => bail!("{summary}"),
    }
}

/// Builds the server and runs `conformance/SCRIPT.py` on it.
pub(crate) fn run_on_server<A: AsRef<OsStr>>(
    script: &str,
    name: &str,
    args: impl IntoIterator<Item = A>,
) -> Result<String> {
    let python = venv::ensure()?;
    build_server()?;
    let mut command = Command::new(python);
    command
        .current_dir(root())
        .arg(format!("conformance/{script}.py"))
        .arg("--server")
        .arg(server_binary())
        .arg("--work")
        .arg(target_dir().join(name))
        .args(args);
    run_summed(&mut command, name)
}

/// Runs a command and returns its stdout.
pub(crate) fn output(command: &mut Command) -> Result<Vec<u8>> {
    let out = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start `{}`", show(command)))?;
    if !out.status.success() {
        bail!("`{}` ended with {}", show(command), out.status);
    }
    Ok(out.stdout)
}

fn show(command: &Command) -> String {
    let mut text = command.get_program().to_string_lossy().into_owned();
    for arg in command.get_args() {
        text.push(' ');
        text.push_str(&arg.to_string_lossy());
    }
    text
}
