//! `cargo xtask dashboard`: the dashboard of a job that trains, in a real browser. Chromium comes from
//! the system's packages and is driven by playwright-core; both are installed if they are missing.

use crate::process::{build_server, root, run, run_watched, server_binary, target_dir};
use anyhow::{Context as _, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The version that the script was written for.
const PLAYWRIGHT: &str = "playwright-core@1.56.1";

/// Runs the browser test; `--debug` takes the debug build, `--shots DIR` says where pictures go.
pub(crate) fn test(args: &[String]) -> Result<String> {
    let mut binary = server_binary();
    let mut shots = target_dir().join("dashboard");
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--debug" => binary = target_dir().join("debug").join("downpour"),
            "--shots" => shots = args.next().context("--shots needs a directory")?.into(),
            other => bail!("dashboard: unknown argument '{other}'"),
        }
    }
    if binary == server_binary() {
        build_server()?;
    }
    let chromium = chromium()?;
    let modules = playwright()?;
    std::fs::create_dir_all(&shots)?;
    let mut checks = 0;
    run_watched(
        Command::new("node")
            .arg(root().join("crates/dashboard/browser/test.mjs"))
            .args([&binary, &chromium, &modules, &shots])
            .arg(root().join("data/mnist")),
        |line| checks += u32::from(line.starts_with("ok ")),
    )?;
    Ok(format!("{checks} checks in a browser"))
}

fn found(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut places = std::env::split_paths(&path).map(|dir| dir.join(name));
    places.find(|file| file.is_file())
}

/// Chromium, from the system's packages if it is not there.
fn chromium() -> Result<PathBuf> {
    if let Some(there) = found("chromium") {
        return Ok(there);
    }
    let install = || -> Result<()> {
        run(Command::new("apt-get").args(["update", "--quiet"]))?;
        run(Command::new("apt-get")
            .args(["install", "--yes", "--no-install-recommends"])
            .args(["chromium", "fonts-dejavu-core"])
            .env("DEBIAN_FRONTEND", "noninteractive"))
    };
    install().context("there is no chromium, and its package cannot be installed")?;
    found("chromium").context("the package has no program `chromium`")
}

/// The folder with playwright-core, from npm if it is not there.
fn playwright() -> Result<PathBuf> {
    let place = target_dir().join("browser");
    let modules = place.join("node_modules");
    let is_there = |modules: &Path| modules.join("playwright-core/package.json").is_file();
    if !is_there(&modules) {
        std::fs::create_dir_all(&place)?;
        std::fs::write(place.join("package.json"), "{\"private\": true}\n")?;
        run(Command::new("npm")
            .args(["install", "--no-audit", "--no-fund", PLAYWRIGHT])
            .current_dir(&place))
        .context("playwright-core cannot be installed; needed: node, npm and a package index")?;
    }
    Ok(modules)
}
