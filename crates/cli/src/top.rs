//! `downpour top`: what the jobs of this machine do at the moment, drawn anew every second. Asks the tasks what the
//! dashboard asks them; a task of another machine that does not say is shown without figures.

use crate::inspect::output::{Align, Output, Table, bytes, thousands};
use crate::jobs::{Known, running, span};
use crate::serve::duration;
use anyhow::{Context as _, Result, bail};
use clap::Args;
use downpour::{TaskReport, inspect_task};
use std::collections::HashMap;
use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

/// How long a task may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Tasks that are asked, of all jobs together.
const MAX_TASKS: usize = 200;

/// Flags of `downpour top`.
#[derive(Args)]
pub(crate) struct Top {
    /// Only this job, by its name as in `downpour ps` or by its directory
    #[arg(value_name = "JOB")]
    job: Option<String>,

    /// Time between two looks
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "1s")]
    every: Duration,

    /// Look once, print, and exit, as when the output is no terminal
    #[arg(long)]
    once: bool,
}

/// What a task said, and when.
type Said = (Instant, TaskReport);

impl Top {
    /// Draws until Ctrl-C or until no job runs.
    pub(crate) fn run(self) -> Result<()> {
        if self.every < Duration::from_millis(100) {
            bail!("--every is {:?}; it must be at least 100ms", self.every);
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the network")?;
        let is_live = !self.once && std::io::stdout().is_terminal();
        runtime.block_on(async {
            let mut before = HashMap::new();
            // Rates need two looks.
            let mut now = self.look().await?;
            tokio::time::sleep(self.every).await;
            loop {
                std::mem::swap(&mut before, &mut now.reports);
                now = self.look().await?;
                if is_live {
                    let mut terminal = std::io::stdout().lock();
                    // To the first place, and what is below it goes.
                    terminal.write_all(b"\x1b[H\x1b[2J")?;
                    terminal.flush()?;
                }
                now.tell(&before)?;
                if !is_live || now.jobs.is_empty() {
                    return Ok(());
                }
                tokio::time::sleep(self.every).await;
            }
        })
    }

    /// Asks every task of every job that runs.
    async fn look(&self) -> Result<Look> {
        let mut jobs = running();
        if let Some(wanted) = &self.job {
            let dir = std::path::Path::new(wanted).canonicalize().ok();
            jobs.retain(|job| job.name() == *wanted || Some(&job.dir) == dir.as_ref());
            if jobs.is_empty() {
                bail!("no job '{wanted}' runs; downpour ps lists those that do");
            }
        }
        let mut asked = tokio::task::JoinSet::new();
        for address in jobs.iter().flat_map(addresses).take(MAX_TASKS) {
            asked.spawn(async move {
                let answer = inspect_task(&address.1, PATIENCE).await;
                (
                    address.1,
                    answer.ok().map(|report| (Instant::now(), report)),
                )
            });
        }
        let answers = asked.join_all().await.into_iter();
        let reports = answers.filter_map(|(address, said)| Some((address, said?)));
        Ok(Look {
            reports: reports.collect(),
            jobs,
        })
    }
}

/// What one look saw.
struct Look {
    jobs: Vec<Known>,
    /// By address.
    reports: HashMap<String, Said>,
}

/// Tasks of a job that listen: names and addresses, each once.
fn addresses(job: &Known) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    for task in job.tasks() {
        if let (Some(name), Some(address)) = (task["name"].as_str(), task["address"].as_str())
            && found.iter().all(|(_, known)| known != address)
        {
            let name = name.strip_suffix("/server").unwrap_or(name);
            found.push((name.to_owned(), address.to_owned()));
        }
    }
    found
}

impl Look {
    fn tell(&self, before: &HashMap<String, Said>) -> Result<()> {
        let mut out = Output::new();
        if self.jobs.is_empty() {
            out.line("no jobs run; downpour ps --all lists those that are over")?;
        }
        for (i, job) in self.jobs.iter().enumerate() {
            if i > 0 {
                out.line("")?;
            }
            self.tell_job(&mut out, job, before)?;
        }
        out.finish()
    }

    fn tell_job(
        &self,
        out: &mut Output,
        job: &Known,
        before: &HashMap<String, Said>,
    ) -> Result<()> {
        use Align::{Left, Right};
        let tasks = addresses(job);
        let rows: Vec<(&str, Option<&Said>, Option<Rates>)> = tasks
            .iter()
            .map(|(name, address)| {
                let now = self.reports.get(address);
                let rates = now.and_then(|now| rates(before.get(address)?, now));
                (name.as_str(), now, rates)
            })
            .collect();
        let alive = rows.iter().filter(|(_, said, _)| said.is_some()).count();
        let steps = rows.iter().filter_map(|(_, said, rates)| {
            let step = said.as_ref()?.1.global_step?;
            Some((step, rates.as_ref().map_or(0.0, |r| r.steps)))
        });
        let step = steps.max_by_key(|(step, _)| *step);
        let step = step.map_or(String::new(), |(step, rate)| {
            let step = thousands(step.unsigned_abs());
            format!("  global step {step}, {rate:.1} steps/s")
        });
        out.line(&format!(
            "{}  up {}  {alive} of {} tasks answer{step}",
            job.name(),
            span(job.age()),
            tasks.len()
        ))?;
        let mut table = Table::new(&[
            ("TASK", Left),
            ("CPU", Right),
            ("MEMORY", Right),
            ("RUNS/S", Right),
            ("UPDATES/S", Right),
            ("IN/S", Right),
            ("OUT/S", Right),
            ("FAILED", Right),
        ]);
        for (name, said, rates) in rows {
            let mut row = vec![name.to_owned()];
            let none = || "-".to_owned();
            let report = said.map(|(_, report)| report);
            let rate = |of: fn(&Rates) -> String| rates.as_ref().map_or_else(none, of);
            row.push(rate(|r| format!("{:.2}", r.cpu)));
            row.push(report.map_or_else(none, |r| bytes(r.resident_bytes)));
            row.push(rate(|r| format!("{:.1}", r.runs)));
            row.push(rate(|r| format!("{:.1}", r.updates)));
            row.push(rate(|r| bytes(r.received as u64)));
            row.push(rate(|r| bytes(r.sent as u64)));
            let failed = report.and_then(|r| r.steps.as_ref()).map(|s| s.failed);
            row.push(failed.map_or_else(none, thousands));
            table.row(row);
        }
        out.table(&table)
    }
}

/// What a task does per second.
struct Rates {
    cpu: f64,
    steps: f64,
    runs: f64,
    updates: f64,
    received: f64,
    sent: f64,
}

/// Between two reports of one life of a task.
fn rates((then, before): &Said, (now, report): &Said) -> Option<Rates> {
    let seconds = now.duration_since(*then).as_secs_f64();
    if report.incarnation != before.incarnation || seconds <= 0.0 {
        return None;
    }
    let rate = |of: fn(&TaskReport) -> u64| of(report).saturating_sub(of(before)) as f64 / seconds;
    Some(Rates {
        cpu: rate(|r| r.cpu_millis) / 1e3,
        steps: rate(|r| r.global_step.map_or(0, |step| step.max(0).unsigned_abs())),
        runs: rate(|r| r.steps.as_ref().map_or(0, |s| s.ended)),
        updates: rate(|r| r.variable_totals.as_ref().map_or(0, |t| t.updates)),
        received: rate(|r| r.peers.iter().map(|p| p.bytes_received).sum()),
        sent: rate(|r| r.peers.iter().map(|p| p.bytes_sent).sum()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_one_life() {
        let then = Instant::now();
        let report = |incarnation, cpu_millis, step| TaskReport {
            incarnation,
            cpu_millis,
            global_step: Some(step),
            ..Default::default()
        };
        let before = (then, report(1, 500, 10));
        let now = (then + Duration::from_secs(2), report(1, 1500, 30));
        let found = rates(&before, &now).unwrap();
        assert_eq!((found.cpu, found.steps), (0.5, 10.0));
        let other = (then + Duration::from_secs(2), report(2, 10, 1));
        assert!(rates(&before, &other).is_none());
        assert!(rates(&now, &before).is_none(), "no time between them");
    }
}
