//! `cargo xtask examples`: every example of `crates/downpour`, in release, trained for a bounded
//! number of steps on two parameter servers and two workers, must reach the quality that it
//! states. The first words of an example's documentation and this table say the same numbers.

use crate::process::{cargo, run, run_watched, target_dir};
use anyhow::{Context as _, Result, bail};
use std::collections::HashMap;
use std::process::Command;
use std::time::Instant;

/// One run of an example and what it must end with.
struct Run {
    example: &'static str,
    flags: &'static [&'static str],
    bounds: &'static [Bound],
}

/// Where a number of the report must lie.
struct Bound {
    number: &'static str,
    least: f64,
    most: f64,
}

const fn at_least(number: &'static str, least: f64) -> Bound {
    Bound {
        number,
        least,
        most: f64::MAX,
    }
}

const fn between(number: &'static str, least: f64, most: f64) -> Bound {
    Bound {
        number,
        least,
        most,
    }
}

/// A synchronous step takes a batch of each worker: half the steps see as many examples.
const RUNS: &[Run] = &[
    Run {
        example: "linear_regression",
        flags: &[],
        bounds: &[between("slope", 2.99, 3.01), between("offset", 1.99, 2.01)],
    },
    Run {
        example: "mnist_softmax",
        flags: &[],
        bounds: &[at_least("test_accuracy", 0.915)],
    },
    Run {
        example: "mnist_softmax",
        flags: &["--sync", "--steps", "1500"],
        bounds: &[at_least("test_accuracy", 0.915)],
    },
    Run {
        example: "mnist_downpour",
        flags: &["--workers", "4"],
        bounds: &[at_least("test_accuracy", 0.915)],
    },
    Run {
        example: "mnist_sandblaster",
        flags: &["--workers", "4"],
        bounds: &[at_least("test_accuracy", 0.92)],
    },
    Run {
        example: "towers",
        flags: &[],
        bounds: &[at_least("test_accuracy", 0.91)],
    },
    Run {
        example: "mnist_cnn",
        flags: &[],
        bounds: &[at_least("test_accuracy", 0.985)],
    },
    Run {
        example: "mnist_cnn",
        flags: &["--sync", "--steps", "900"],
        bounds: &[at_least("test_accuracy", 0.985)],
    },
    Run {
        example: "model_parallel",
        flags: &["--workers", "4", "--partitions", "2"],
        bounds: MODEL_PARALLEL,
    },
    Run {
        example: "model_parallel",
        flags: &[
            "--workers",
            "4",
            "--partitions",
            "2",
            "--sync",
            "--steps",
            "1000",
        ],
        bounds: MODEL_PARALLEL,
    },
    Run {
        example: "wide_layer",
        flags: &["--steps", "3"],
        bounds: WIDE_LAYER,
    },
    Run {
        example: "wide_deep",
        flags: &[],
        bounds: WIDE_DEEP,
    },
    Run {
        example: "wide_deep",
        flags: &["--sync", "--steps", "1250"],
        bounds: WIDE_DEEP,
    },
    Run {
        example: "word2vec",
        flags: &[],
        bounds: &[at_least("same_class", 0.9)],
    },
    Run {
        example: "char_lstm",
        flags: &[],
        bounds: &[
            between("bits_per_character", 0.40, 0.44),
            at_least("grammatical", 0.8),
        ],
    },
];

const MODEL_PARALLEL: &[Bound] = &[
    at_least("test_accuracy", 0.94),
    between("partitions", 2.0, 2.0),
];

/// What travels is the batch out, sums back, and their gradients: 0.5 MB each for every task beyond
/// the first, whatever the width.
const WIDE_LAYER: &[Bound] = &[
    between("kb_1", 0.0, 0.0),
    between("kb_2", 1000.0, 3000.0),
    between("kb_4", 3000.0, 9000.0),
    between("loss_apart", 0.0, 1e-4),
];

/// Four tables, of which each of the two parameter servers has a part, change only by rows.
const WIDE_DEEP: &[Bound] = &[
    at_least("share_of_best", 0.96),
    at_least("zero_weights", 0.5),
    between("sparse_updates", 8.0, 8.0),
];

/// Builds the examples and runs those whose name is in `names`, or all; a table, and the count.
pub(crate) fn train(names: &[String]) -> Result<String> {
    let chosen = |run: &&Run| names.is_empty() || names.iter().any(|n| n == run.example);
    let runs: Vec<&Run> = RUNS.iter().filter(chosen).collect();
    if runs.is_empty() {
        bail!("no example is called {}", names.join(" or "));
    }
    run(cargo().args(["build", "--release", "--package", "downpour", "--examples"]))?;
    let (mut table, mut wrong) = (Vec::new(), Vec::new());
    for each in &runs {
        let start = Instant::now();
        let outcome = measure(each).and_then(|report| check(each, &report));
        let text = match outcome {
            Ok(numbers) => numbers,
            Err(e) => {
                wrong.push(format!("{}: {e:#}", each.title()));
                format!("FAILED {e:#}")
            }
        };
        let seconds = start.elapsed().as_secs_f64();
        table.push(format!("{:<40} {seconds:>6.1} s  {text}", each.title()));
    }
    println!("\n{}", table.join("\n"));
    match wrong.as_slice() {
        [] => Ok(format!(
            "examples: {} runs reached their quality",
            runs.len()
        )),
        _ => bail!("{}", wrong.join("; ")),
    }
}

impl Run {
    fn title(&self) -> String {
        let words = std::iter::once(self.example).chain(self.flags.iter().copied());
        words.collect::<Vec<_>>().join(" ")
    }
}

/// Trains; the last line that it printed.
fn measure(run: &Run) -> Result<String> {
    let mut last = String::new();
    let binary = target_dir().join("release/examples").join(run.example);
    run_watched(
        Command::new(binary)
            .current_dir(crate::process::root())
            .args(["--ps", "2", "--workers", "2", "--json"])
            .args(run.flags),
        |line| line.clone_into(&mut last),
    )?;
    Ok(last)
}

/// Compares a report with the bounds; the numbers that were compared.
fn check(run: &Run, report: &str) -> Result<String> {
    let mut shown = Vec::new();
    let numbers: HashMap<String, f64> = serde_json::from_str(report)
        .with_context(|| format!("the last line is no report: {report}"))?;
    for bound in run.bounds {
        let name = bound.number;
        let value = *numbers
            .get(name)
            .with_context(|| format!("the report has no number {name}: {report}"))?;
        if !(bound.least..=bound.most).contains(&value) {
            let wanted = match bound.most {
                f64::MAX => format!("at least {}", bound.least),
                most => format!("between {} and {most}", bound.least),
            };
            bail!("{name} is {value}, must be {wanted}");
        }
        shown.push(format!("{name} {value:.4}"));
    }
    Ok(shown.join(", "))
}

#[cfg(test)]
mod tests {
    use super::{Run, between, check};

    #[test]
    fn a_number_out_of_its_bounds_or_missing_is_a_failure() {
        let run = Run {
            example: "line",
            flags: &["--sync"],
            bounds: &[const { between("slope", 2.0, 3.0) }],
        };
        assert_eq!(run.title(), "line --sync");
        let check = |report: &str| check(&run, report).map_err(|e| e.to_string());
        assert_eq!(
            check("{\"offset\":9,\"slope\":2.5}").unwrap(),
            "slope 2.5000"
        );
        let wrong = |report: &str, text: &str| {
            let error = check(report).unwrap_err();
            assert!(error.contains(text), "{error}");
        };
        wrong("{\"slope\":3.5}", "must be between 2 and 3");
        wrong("{\"offset\":2.5}", "no number slope");
        wrong("{\"slope\":NaN}", "no report");
        wrong("training begins", "no report");
    }
}
