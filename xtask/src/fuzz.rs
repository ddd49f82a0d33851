//! `cargo xtask fuzz`: runs each fuzz target of `fuzz/` for a bounded time.

use crate::process::{cargo, root, run as run_command};
use anyhow::{Context as _, Result, bail};
use std::fs;

/// Runs every target (or `--target NAME`) for `--seconds N` each.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let mut seconds = 10_u64;
    let mut only = None;
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        let value = rest
            .next()
            .with_context(|| format!("{arg} needs a value"))?;
        match arg.as_str() {
            "--seconds" => seconds = value.parse().context("--seconds takes a number")?,
            "--target" => only = Some(value.as_str()),
            other => bail!("fuzz knows --seconds and --target, not {other}"),
        }
    }
    let targets = targets()?;
    let chosen: Vec<&String> = targets
        .iter()
        .filter(|name| only.is_none_or(|o| o == name.as_str()))
        .collect();
    if chosen.is_empty() {
        bail!(
            "no fuzz target{}",
            only.map_or(String::new(), |o| format!(" named {o}"))
        );
    }
    for target in chosen {
        run_command(
            cargo()
                .args([
                    "run",
                    "--release",
                    "--quiet",
                    "--manifest-path",
                    "fuzz/Cargo.toml",
                    "--bin",
                ])
                .arg(target)
                .arg("--")
                .args(["--seconds", &seconds.to_string()]),
        )?;
    }
    Ok(())
}

/// One target per file of `fuzz/src/bin/`.
pub(crate) fn targets() -> Result<Vec<String>> {
    let folder = root().join("fuzz/src/bin");
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let mut names = Vec::new();
    for entry in fs::read_dir(&folder).context("cannot list fuzz/src/bin")? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "rs")
            && let Some(stem) = path.file_stem().and_then(|s| s.to_str())
        {
            names.push(stem.to_owned());
        }
    }
    names.sort();
    Ok(names)
}
