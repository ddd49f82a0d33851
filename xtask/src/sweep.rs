//! `cargo xtask sweep`: every op and some sixty graphs on TensorFlow's server and on ours, in turn.

use crate::process::{root, run_on_server};
use anyhow::Result;

/// Runs the sweep with `args` of its own. A whole one, or its refinement, renews docs/sweep.md; a part of one (or
/// `--quick`) only prints.
pub(crate) fn run(args: &[String]) -> Result<String> {
    let mut args = args.to_vec();
    if args.is_empty() || args == ["--refine"] {
        args.push("--page".to_owned());
        args.push(root().join("docs/sweep.md").display().to_string());
    }
    run_on_server("sweep", "sweep", args)
}

/// A sample of it: that it runs, not how fast anything is.
pub(crate) fn sample() -> Result<String> {
    run(&["--quick".to_owned()])
}
