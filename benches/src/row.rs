//! A row alone: starts parameter servers and workers, runs rounds, prints medians. For quick trials;
//! `cargo xtask bench` does the same beside TensorFlow.

use crate::models::Row;
use crate::processes::{Task, cpu_seconds, free_addresses};
use anyhow::{Context as _, Result};
use clap::Args;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// What to run, how long.
#[derive(Args)]
pub(crate) struct Options {
    /// NAME or NAME:SIZE
    row: String,
    /// The downpour binary, for the parameter servers
    #[arg(long)]
    server: PathBuf,
    /// Length of a round
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// How many rounds
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Parameter servers, if not as many as usual
    #[arg(long)]
    ps: Option<usize>,
    /// Workers, if not as many as usual
    #[arg(long)]
    workers: Option<usize>,
}

/// Runs the row and prints its figures.
pub(crate) fn run(options: &Options) -> Result<()> {
    let row = Row::parse(&options.row)?;
    let mut cluster = Cluster::start(options, row)?;
    cluster.round(options.seconds.min(1.0))?;
    let mut rounds = Vec::new();
    for _ in 0..options.rounds.max(1) {
        rounds.push(cluster.round(options.seconds)?);
    }
    let (worth, unit) = row.worth();
    let rates: Vec<f64> = rounds.iter().map(|r| r.rate).collect();
    let (low, high) = (
        least(&rates),
        -least(&rates.iter().map(|r| -r).collect::<Vec<_>>()),
    );
    let rate = median(rates);
    let us = 1e6 * cluster.workers.len() as f64 / rate;
    println!(
        "{}: {} {unit}, {us:.1} us/step, spread {} .. {}",
        options.row,
        figure(rate * worth),
        figure(low * worth),
        figure(high * worth)
    );
    for (i, task) in cluster.ps.iter().chain(&cluster.workers).enumerate() {
        let each = rounds.iter().map(|r| 1e3 * r.cpu[i] / r.steps).collect();
        println!("  {:<10} {:.4} CPU ms/step", task.name, median(each));
    }
    for worker in &mut cluster.workers {
        worker.tell("value")?;
        let values = worker.hear()?;
        println!("  {:<10} {values}", worker.name);
    }
    Ok(())
}

/// What a round gave.
struct Round {
    /// Steps a second, of all workers together.
    rate: f64,
    steps: f64,
    /// Processor seconds of each task.
    cpu: Vec<f64>,
}

struct Cluster {
    ps: Vec<Task>,
    workers: Vec<Task>,
    is_sync: bool,
}

impl Cluster {
    fn start(options: &Options, row: Row) -> Result<Cluster> {
        let (ps, workers) = row.tasks();
        let (ps, workers) = (options.ps.unwrap_or(ps), options.workers.unwrap_or(workers));
        let addresses = free_addresses(ps + workers)?;
        let (ps, workers) = addresses.split_at(ps);
        let spec = match ps {
            [] => json!({"worker": workers}),
            ps => json!({"ps": ps, "worker": workers}),
        };
        let spec = spec.to_string();
        let serve = |(task, address): (usize, &String)| {
            let mut command = Command::new(&options.server);
            command.args(["serve", "--job", "ps", "--task", &task.to_string()]);
            let mut started =
                Task::start(&format!("ps{task}"), command.args(["--cluster", &spec]))?;
            started.wait_listening(address)?;
            Ok(started)
        };
        let work = |task: usize| {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(["worker", "--row", &options.row, "--task", &task.to_string()]);
            Task::start(&format!("worker{task}"), command.args(["--cluster", &spec]))
        };
        let ps = ps.iter().enumerate().map(serve).collect::<Result<_>>()?;
        let workers = (0..workers.len()).map(work).collect::<Result<_>>()?;
        let mut cluster = Cluster {
            ps,
            workers,
            is_sync: row.kind == crate::models::Kind::MnistSync,
        };
        for worker in &mut cluster.workers {
            worker.hear().context("while it became ready")?;
        }
        Ok(cluster)
    }

    fn cpu(&self) -> Result<Vec<f64>> {
        let tasks = self.ps.iter().chain(&self.workers);
        tasks.map(|task| cpu_seconds(task.pid())).collect()
    }

    fn round(&mut self, seconds: f64) -> Result<Round> {
        let before = self.cpu()?;
        for worker in &mut self.workers {
            worker.tell(&format!("run {seconds}"))?;
        }
        let (mut rate, mut steps) = (0.0, 0.0);
        for worker in &mut self.workers {
            let answer: Value = serde_json::from_str(&worker.hear()?)?;
            let number = |name: &str| answer[name].as_f64().context("a figure is missing");
            rate += number("steps")? / number("seconds")?;
            steps += number("steps")?;
        }
        let cpu = self.cpu()?;
        let cpu = cpu.iter().zip(&before).map(|(a, b)| a - b).collect();
        if self.is_sync {
            self.stop()?;
        }
        Ok(Round { rate, steps, cpu })
    }

    /// Lets workers that train together come to rest: one that waits for another that has stopped
    /// is given the step it waits for.
    fn stop(&mut self) -> Result<()> {
        for worker in &mut self.workers {
            worker.tell("stop")?;
        }
        let mut moving: Vec<usize> = (0..self.workers.len()).collect();
        loop {
            let mut left = Vec::new();
            for i in moving {
                let answer = self.workers[i].hear_within(Duration::from_millis(100))?;
                if answer.is_none() {
                    left.push(i);
                }
            }
            let Some(helper) = (0..self.workers.len()).find(|i| !left.contains(i)) else {
                moving = left;
                continue;
            };
            if left.is_empty() {
                return Ok(());
            }
            self.workers[helper].tell("steps 1")?;
            moving = left;
            moving.push(helper);
        }
    }
}

/// Four digits of a number, or all those before the point.
fn figure(value: f64) -> String {
    let digits = (3.0 - value.abs().log10().floor()).clamp(0.0, 6.0);
    format!("{value:.*}", digits as usize)
}

fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() % 2 {
        0 => (values[middle - 1] + values[middle]) / 2.0,
        _ => values[middle],
    }
}

#[cfg(test)]
mod tests {
    use super::{figure, median};

    #[test]
    fn figures_are_short() {
        assert_eq!(
            [3290188.97, 3.66792, 0.0].map(figure),
            ["3290189", "3.668", "0.000000"]
        );
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
