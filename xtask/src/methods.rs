//! `cargo xtask methods`: ways of training the same model, on the same data, with the same replicas,
//! beside each other, as in figures 4 and 5 of the paper on DistBelief: time, updates and bytes
//! until a test accuracy is reached; and throughput against the bound on staleness with a slow
//! replica. Writes `docs/methods.md` and its pictures from what was measured.

use crate::chart::{Chart, Series};
use crate::process::{cargo, root, run, run_watched, target_dir};
use anyhow::{Context as _, Result, bail};
use serde::Deserialize;
use std::process::Command;

/// The test accuracy that every method must reach.
const TARGET: f64 = 0.915;
/// How slow the slow replica is at each step, in the comparison of bounds.
const STRAGGLE_MS: &str = "5";
const BOUNDS: &[&str] = &["0", "1", "2", "4", "8", "16", "32", "unlimited"];

/// One way of training: an example that ends with the line of JSON that [`Line`] reads. One with
/// another program, such as Sandblaster's, is a row more.
struct Method {
    title: &'static str,
    example: &'static str,
    flags: &'static [&'static str],
    colour: &'static str,
}

const METHODS: &[Method] = &[
    Method {
        title: "Downpour SGD",
        example: "methods",
        flags: &["--method", "downpour-sgd"],
        colour: "#1f77b4",
    },
    Method {
        title: "Downpour with Adagrad",
        example: "methods",
        flags: &["--method", "downpour-adagrad"],
        colour: "#d62728",
    },
    Method {
        title: "synchronous SGD",
        example: "methods",
        flags: &["--method", "sync-sgd"],
        colour: "#2ca02c",
    },
    Method {
        title: "Sandblaster L-BFGS",
        example: "methods",
        flags: &["--method", "sandblaster"],
        colour: "#9467bd",
    },
];

/// What an example ends with: seconds, updates, bytes and test accuracy, again and again.
#[derive(Deserialize)]
struct Line {
    curve: Vec<(f64, f64, f64, f64)>,
}

impl Line {
    /// Updates a second, from the first look to the last.
    fn speed(&self) -> f64 {
        match (self.curve.first(), self.curve.last()) {
            (Some(first), Some(last)) if last.0 > first.0 => {
                (last.1 - first.1) / (last.0 - first.0)
            }
            _ => 0.0,
        }
    }
}

/// Measures; in the smoke form briefly, and writes nothing.
pub(crate) fn compare(args: &[String]) -> Result<String> {
    let (smoke, only_bounds) = match args {
        [] => (false, false),
        [flag] if flag == "--smoke" => (true, false),
        [flag] if flag == "--bounds" => (false, true),
        _ => bail!("cargo xtask methods takes only --smoke or --bounds"),
    };
    let mut build = cargo();
    build.args(["build", "--release", "--package", "downpour"]);
    run(build.args(["--example", "methods"]))?;
    if !only_bounds {
        let (target, seconds) = match smoke {
            true => (0.88, 9.0),
            false => (TARGET, 60.0),
        };
        let curves = to_target(target, seconds)?;
        if !smoke {
            write_methods(&curves)?;
        }
    }
    match smoke {
        true => throughput(&["0", "4"], 1).map(|_| ())?,
        false => write_bounds(&throughput(BOUNDS, 3)?)?,
    }
    Ok(format!("methods: {} compared", METHODS.len()))
}

/// Trains by every method until the target is reached.
fn to_target(target: f64, seconds: f64) -> Result<Vec<Line>> {
    let mut curves = Vec::new();
    for method in METHODS {
        let line = measure(method.example, method.flags, target, seconds)?;
        let last = line.curve.last().context("nothing was measured")?;
        println!(
            "{:<24} {:>6.2} s {:>8} updates {:>9.1} MB  accuracy {:.4}",
            method.title,
            last.0,
            last.1,
            last.2 / 1e6,
            last.3
        );
        if last.3 < target {
            bail!(
                "{} reached {} of {target} in {seconds} s",
                method.title,
                last.3
            );
        }
        curves.push(line);
    }
    Ok(curves)
}

/// Updates a second with each bound: the best of several rounds, in turn, so that what else the
/// machine does meanwhile falls on all alike.
fn throughput(bounds: &[&str], rounds: usize) -> Result<Vec<f64>> {
    let mut best = vec![0.0f64; bounds.len()];
    for _ in 0..rounds {
        for (bound, best) in bounds.iter().zip(&mut best) {
            let flags = ["--method", "downpour-adagrad", "--straggle-ms", STRAGGLE_MS];
            let more = ["--every", "1", "--bound", bound];
            let flags: Vec<&str> = flags.into_iter().chain(more).collect();
            *best = best.max(measure("methods", &flags, 2.0, 1.5)?.speed());
            println!("bound {bound:<10} {best:>8.0} updates/s");
        }
    }
    match best.iter().all(|speed| *speed > 0.0) {
        true => Ok(best),
        false => bail!("with one of the bounds {bounds:?} nothing was trained: {best:?}"),
    }
}

fn measure(example: &str, flags: &[&str], target: f64, seconds: f64) -> Result<Line> {
    let mut last = String::new();
    let binary = target_dir().join("release/examples").join(example);
    run_watched(
        Command::new(binary)
            .current_dir(root())
            .args(flags)
            .args(["--target", &target.to_string()])
            .args(["--seconds", &seconds.to_string()]),
        |line| line.clone_into(&mut last),
    )?;
    serde_json::from_str(&last).with_context(|| format!("the last line is no curve: {last}"))
}

/// Writes the page of the methods and its picture.
fn write_methods(curves: &[Line]) -> Result<()> {
    let mut rows = String::new();
    let mut series = Vec::new();
    for (method, line) in METHODS.iter().zip(curves) {
        let last = line.curve.last().context("nothing was measured")?;
        let (seconds, updates, bytes, accuracy) = *last;
        rows += &format!(
            "| {} | {seconds:.2} | {updates} | {:.1} | {:.2} % |\n",
            method.title,
            bytes / 1e6,
            accuracy * 100.0
        );
        series.push(Series {
            name: method.title.to_owned(),
            colour: method.colour,
            points: line.curve.iter().map(|p| (p.0, p.3 * 100.0)).collect(),
        });
    }
    let docs = root().join("docs");
    let accuracy = Chart {
        title: "Softmax regression on MNIST, 2 parameter servers, 4 replicas".to_owned(),
        x: "seconds".to_owned(),
        y: "test accuracy, %".to_owned(),
        range: (80.0, 93.0),
        places: Vec::new(),
        series,
    };
    std::fs::write(docs.join("images/methods.svg"), accuracy.svg())?;
    let page = format!(
        "# Methods compared\n\n\
         Written by `cargo xtask methods` from real runs; the numbers are of the machine that ran them \
         (2 cores). What the methods are, and when to use which: [Downpour SGD](downpour_sgd.md).\n\n\
         Softmax regression on MNIST, 2 parameter servers and 4 replicas in one process, batches of 100, \
         until {:.1} % of the test images are told right. Bytes are tensors and messages between \
         workers and parameter servers; what evaluation reads on the way is among them.\n\n\
         | method | seconds | updates | MB moved | test accuracy |\n|---|---|---|---|---|\n{rows}\n\
         ![Test accuracy against time](images/methods.svg)\n",
        TARGET * 100.0
    );
    std::fs::write(docs.join("methods.md"), page)?;
    Ok(())
}

/// Writes the page of the bounds and its picture.
fn write_bounds(speeds: &[f64]) -> Result<()> {
    let docs = root().join("docs");
    let top = speeds.iter().copied().fold(0.0, f64::max);
    let throughput = Chart {
        title: format!("4 replicas, one slow by {STRAGGLE_MS} ms a step"),
        x: "bound on staleness, steps".to_owned(),
        y: "updates a second".to_owned(),
        range: (0.0, top * 1.1),
        places: BOUNDS.iter().map(|b| (*b).to_owned()).collect(),
        series: vec![Series {
            name: "Downpour with Adagrad".to_owned(),
            colour: "#d62728",
            points: (0u32..)
                .map(f64::from)
                .zip(speeds.iter().copied())
                .collect(),
        }],
    };
    std::fs::write(docs.join("images/staleness.svg"), throughput.svg())?;
    let mut rows = String::new();
    for (bound, speed) in BOUNDS.iter().zip(speeds) {
        rows += &format!("| {bound} | {speed:.0} |\n");
    }
    let page = format!(
        "# Throughput against the bound\n\n\
         Written by `cargo xtask methods --bounds` from real runs, the best of three for each bound, on \
         the machine that ran them (2 cores, shared). What the bound is: [Downpour SGD](downpour_sgd.md).\n\n\
         Softmax regression on MNIST, 4 replicas, one of them slow by {STRAGGLE_MS} ms a step; every step \
         fetches and pushes.\n\n\
         | bound | updates/s |\n|---|---|\n{rows}\n\
         ![Updates a second against the bound](images/staleness.svg)\n"
    );
    std::fs::write(docs.join("staleness.md"), page)?;
    Ok(())
}
