//! `cargo xtask graphs`: the conformance cases' graphs, built by TensorFlow, given to our builder. It
//! must infer TensorFlow's shapes, refuse what TensorFlow refuses, and give its gradients; layers, and
//! models with optimizers, built by both, must compute and train alike; and graphs with control flow
//! that our builder made must be worth what formulas say.

use crate::process::{build_server, cargo, root, run, run_watched, server_binary, target_dir};
use crate::venv;
use anyhow::{Result, bail};
use std::path::Path;
use std::process::Command;

/// What `graphs.py` compares, with as many of an op's cases as keep the whole within a minute and a
/// half on a quiet machine; without `--sample` it is all of them.
const COMPARISONS: [&[&str]; 6] = [
    &["shapes", "--sample", "5"],
    &["variants", "--sample", "20", "--each", "1"],
    &["gradients", "--sample", "40"],
    &["flow"],
    &["layers"],
    &["optimizers"],
];

/// The comparisons that have scripts of their own, and need a server.
const SERVED: [&str; 2] = ["layers", "optimizers"];

/// Runs all comparisons, or the one that `args` begin with, with arguments of its own.
pub(crate) fn compare(args: &[String]) -> Result<String> {
    let python = venv::ensure()?;
    run(cargo().args(["build", "--package", "downpour-graph-tool"]))?;
    let tool = target_dir().join("debug").join("downpour-graph-tool");
    let given: Vec<&str> = args.iter().map(String::as_str).collect();
    let chosen: Vec<&[&str]> = match given.is_empty() {
        true => COMPARISONS.to_vec(),
        false => vec![given.as_slice()],
    };
    // Gradients take as long as all the others: two processes at a time.
    let (long, short): (Vec<_>, Vec<_>) = chosen
        .into_iter()
        .partition(|c| c.first() == Some(&"gradients"));
    let lane = |comparisons: Vec<&[&str]>| -> Vec<Result<String>> {
        let each = comparisons.into_iter();
        each.map(|c| one(&python, &tool, c)).collect()
    };
    let outcomes: Vec<Result<String>> = std::thread::scope(|scope| {
        let beside = scope.spawn(|| lane(long));
        let mut outcomes = lane(short);
        outcomes.extend(beside.join().unwrap_or_default());
        outcomes
    });
    let failed = outcomes.iter().any(Result::is_err);
    let texts = outcomes.into_iter().map(|outcome| match outcome {
        Ok(summary) => summary,
        Err(e) => format!("{e:#}"),
    });
    let summary = texts.collect::<Vec<_>>().join("; ");
    match failed {
        true => bail!("{summary}"),
        false => Ok(summary),
    }
}

/// Runs one comparison; its summary.
fn one(python: &Path, tool: &Path, comparison: &[&str]) -> Result<String> {
    let mut command = Command::new(python);
    command.current_dir(root());
    let name = comparison.first().copied().unwrap_or_default();
    if SERVED.contains(&name) {
        build_server()?;
        command.arg(format!("conformance/{name}.py"));
        command.args(comparison.iter().skip(1));
        command.arg("--server").arg(server_binary());
    } else {
        command.arg("conformance/graphs.py").args(comparison);
    }
    command.arg("--tool").arg(tool);
    let mut summary = format!("{name}: no summary");
    let outcome = run_watched(&mut command, |line| {
        if line.starts_with(name) && line.contains(" passed, ") {
            line.clone_into(&mut summary);
        }
    });
    match outcome {
        Ok(()) => Ok(summary),
        Err(_) => bail!("{summary}"),
    }
}
