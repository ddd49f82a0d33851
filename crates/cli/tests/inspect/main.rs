//! `downpour inspect` on files that TensorFlow wrote, on damaged ones, and on things that are no such
//! files at all. Everything here runs the built binary.

#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

mod checkpoint;
mod graph;
mod refusals;
mod streams;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The program, with an environment that says nothing.
fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_downpour"));
    command.arg("inspect").args(args).env_remove("NO_COLOR");
    command.stdin(Stdio::null());
    command
}

/// Runs to the end; it must exit with this code.
#[track_caller]
fn run(args: &[&str], code: i32) -> Output {
    let output = command(args).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
    assert!(!said.contains("panicked"), "{said}");
    output
}

/// What it prints.
#[track_caller]
fn text(args: &[&str], code: i32) -> String {
    String::from_utf8(run(args, code).stdout).unwrap()
}

/// What it prints with `--json`.
#[track_caller]
fn json(args: &[&str], code: i32) -> serde_json::Value {
    let args = [args, &["--json"]].concat();
    serde_json::from_slice(&run(&args, code).stdout).unwrap()
}

/// The one line that it refuses with.
#[track_caller]
fn refused(args: &[&str], code: i32) -> String {
    let output = run(args, code);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said.lines().count(), 1, "{said}");
    said.strip_prefix("error: ").unwrap().trim_end().to_owned()
}

/// A file that TensorFlow wrote.
fn fixture(name: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../formats/tests/fixtures");
    root.join(name).to_str().unwrap().to_owned()
}

/// A copy of the files of a bundle, to damage them.
fn copied(name: &str, dir: &Path) -> PathBuf {
    let from = PathBuf::from(fixture(name));
    let stem = from.file_name().unwrap().to_str().unwrap();
    for entry in std::fs::read_dir(from.parent().unwrap()).unwrap() {
        let path = entry.unwrap().path();
        let file = path.file_name().unwrap().to_str().unwrap();
        if file.starts_with(&format!("{stem}.")) {
            std::fs::copy(&path, dir.join(file)).unwrap();
        }
    }
    dir.join(stem)
}
