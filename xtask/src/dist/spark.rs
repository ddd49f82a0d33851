//! The python package `downpour-spark` as a wheel that carries the static binary.

use super::{build, elf};
use crate::process::{output, root};
use anyhow::{Context as _, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds the binary and packs the wheel around it; its path.
pub(crate) fn wheel(profile: &str, out: &Path) -> Result<PathBuf> {
    let binary = build(profile)?;
    elf::check_static(&binary)?;
    pack(&binary, out)
}

/// The wheel around a binary that exists.
pub(crate) fn pack(binary: &Path, out: &Path) -> Result<PathBuf> {
    std::fs::create_dir_all(out).context("cannot make the folder")?;
    let packed = output(
        Command::new("python3")
            .arg(root().join("python").join("wheel.py"))
            .arg(binary)
            .arg(out),
    )
    .context("needed: `python3` (3.10 or newer)")?;
    Ok(PathBuf::from(String::from_utf8_lossy(&packed).trim()))
}
