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
/// What replicas lose on average, in the comparison of bounds: the last one at each step, or
/// each in its turn, ten times as much at a tenth of its steps.
const STRAGGLERS: &[Straggler] = &[
    Straggler {
        title: "each slow in turn",
        flags: &["--hiccup-ms", "50"],
        colour: "#1f77b4",
    },
    Straggler {
        title: "one always slow",
        flags: &["--straggle-ms", "5"],
        colour: "#d62728",
    },
];
const BOUNDS: &[&str] = &["0", "1", "2", "4", "8", "16", "32", "unlimited"];

/// Who is slow, and how.
struct Straggler {
    title: &'static str,
    flags: &'static [&'static str],
    colour: &'static str,
}

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
        true => throughput(&STRAGGLERS[1], &["0", "4"], 1).map(|_| ())?,
        false => {
            let all = STRAGGLERS.iter().map(|s| throughput(s, BOUNDS, 3));
            write_bounds(&all.collect::<Result<Vec<_>>>()?)?;
        }
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
fn throughput(straggler: &Straggler, bounds: &[&str], rounds: usize) -> Result<Vec<f64>> {
    let mut best = vec![0.0f64; bounds.len()];
    for _ in 0..rounds {
        for (bound, best) in bounds.iter().zip(&mut best) {
            let flags = ["--method", "downpour-adagrad", "--every", "1"];
            let more = ["--bound", bound];
            let flags = flags.iter().chain(straggler.flags).chain(&more);
            let flags: Vec<&str> = flags.copied().collect();
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
         Written by `cargo xtask methods` from real runs, one of each; the numbers are of the machine that ran them \
         (2 cores). When to use which: [Which way to train](choosing.md).\n\n\
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
fn write_bounds(speeds: &[Vec<f64>]) -> Result<()> {
    let docs = root().join("docs");
    let top = speeds.iter().flatten().copied().fold(0.0, f64::max);
    let series = STRAGGLERS
        .iter()
        .zip(speeds)
        .map(|(straggler, speeds)| Series {
            name: straggler.title.to_owned(),
            colour: straggler.colour,
            points: (0u32..)
                .map(f64::from)
                .zip(speeds.iter().copied())
                .collect(),
        });
    let throughput = Chart {
        title: "Downpour with Adagrad, 4 replicas, some of them slow".to_owned(),
        x: "bound on staleness, steps".to_owned(),
        y: "updates a second".to_owned(),
        // Five lines at whole hundreds.
        range: (0.0, (top / 500.0).ceil() * 500.0),
        places: BOUNDS.iter().map(|b| b.replace("unlimited", "∞")).collect(),
        series: series.collect(),
    };
    std::fs::write(docs.join("images/staleness.svg"), throughput.svg())?;
    let titles: Vec<&str> = STRAGGLERS.iter().map(|s| s.title).collect();
    let mut rows = format!("| bound | {} |\n|---|", titles.join(" | "));
    rows += &"--:|".repeat(titles.len());
    for (i, bound) in BOUNDS.iter().enumerate() {
        let cells = speeds.iter().filter_map(|s| s.get(i));
        let cells: Vec<String> = cells.map(|speed| format!("{speed:.0}")).collect();
        rows += &format!("\n| {bound} | {} |", cells.join(" | "));
    }
    let page = format!(
        "# Throughput against the bound\n\n\
         Written by `cargo xtask methods --bounds` from real runs, the best of three for each bound, on \
         the machine that ran them (2 cores). What the bound is: [Downpour SGD](downpour_sgd.md).\n\n\
         Softmax regression on MNIST, 4 replicas that fetch and push at every step. \
         Either each of them stands still for 50 ms at a tenth of its steps, by chance (\"in turn\"), or one \
         loses 5 ms at each step (\"always\"). Updates a second by all:\n\n\
         {rows}\n\n\
         ![Updates a second against the bound](images/staleness.svg)\n\n\
         Where any replica may be slow for a moment, the waiting shrinks as the bound grows: who was late \
         catches up before others must wait for it. One that is always slower holds all others \
         to its own speed sooner or later, whatever the bound; only without one do they leave it behind.\n"
    );
    std::fs::write(docs.join("staleness.md"), page)?;
    Ok(())
}
