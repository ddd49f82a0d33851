//! `cargo xtask check`: everything that can be said about the code without running it,
//! cheapest first so that a local run fails quickly.

use crate::process::{cargo, run as run_command};
use crate::{proto, tidy};
use anyhow::Result;

/// Runs every static check; the first failure ends it.
pub(crate) fn run() -> Result<()> {
    run_command(cargo().args(["fmt", "--all", "--check"]))?;
    tidy::run(&[])?;
    proto::check()?;
    run_command(cargo().args([
        "clippy",
        "--workspace",
        "--all-targets",
        "--",
        "--deny",
        "warnings",
    ]))?;
    run_command(
        cargo()
            .args(["doc", "--workspace", "--no-deps", "--quiet"])
            .env("RUSTDOCFLAGS", "--deny warnings"),
    )
}
