//! `downpour inspect cluster`: who is alive, devices, sessions, variables and how they are spread.
//! Every task is asked at once; one that does not answer is a row of the table, not an error.

use super::output::{Align, Output, Table, bytes as size};
use crate::config::{cluster, environment};
use crate::refusal::Found;
use crate::serve::duration;
use anyhow::{Context as _, Result, bail};
use clap::Args;
use downpour::{ClusterSpec, Definition, Refusal, TaskReport, inspect_task};
use downpour_wire::control::StalenessReport;
use downpour_wire::replicas::{trained, writers};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::time::Duration;

/// Arguments of `downpour inspect cluster`.
#[derive(Args)]
pub(crate) struct Cluster {
    /// A task, which knows the others of its cluster
    #[arg(value_name = "HOST:PORT", conflicts_with = "cluster")]
    address: Option<String>,

    /// The cluster, as `downpour serve` takes it: JSON, or a file in JSON or TOML [default: TF_CONFIG's]
    #[arg(long)]
    cluster: Option<String>,

    /// How long a task may take to answer
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "5s")]
    timeout: Duration,

    /// Variables to list; the largest come first
    #[arg(long, value_name = "N", default_value_t = 20)]
    variables: usize,

    /// One JSON document with everything
    #[arg(long)]
    json: bool,
}

/// Shown below the flags.
pub(super) const EXAMPLES: &str = "\
The exit code is 1 if a task does not answer. Tasks answer their own machine; others only if they were started with
--allow-remote-inspect. Examples:
  downpour inspect cluster localhost:2222
  downpour inspect cluster --cluster '{\"ps\": [\"a:2222\"], \"worker\": [\"b:2222\", \"c:2222\"]}' --json";

/// A task, where it is, and what it said.
type Asked = (String, String, Result<TaskReport, Refusal>);

impl Cluster {
    /// Asks and tells.
    pub(crate) fn run(self) -> Result<ExitCode> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the network")?;
        let asked = runtime.block_on(self.ask())?;
        let mut out = Output::new();
        match self.json {
            true => out.json(&document(&asked))?,
            false => tell(&mut out, &asked, self.variables)?,
        }
        out.finish()?;
        let left = left(&asked);
        let lost: Vec<&str> = asked
            .iter()
            .filter(|(name, _, answer)| state(name, answer, &left) == "lost")
            .map(|(name, ..)| name.as_str())
            .collect();
        match lost.is_empty() {
            true => Ok(ExitCode::SUCCESS),
            false => Err(Found(format!("no answer from {}", lost.join(", "))).into()),
        }
    }

    async fn ask(&self) -> Result<Vec<Asked>> {
        let mut members: BTreeMap<(String, u32), String> = BTreeMap::new();
        let mut known = BTreeMap::new();
        match self.spec()? {
            Some(spec) => {
                for (job, task, address) in spec.tasks() {
                    members.insert((job.to_owned(), task), address.to_owned());
                }
            }
            None => {
                let Some(address) = &self.address else {
                    bail!("which cluster? give a task's HOST:PORT, --cluster or TF_CONFIG");
                };
                let address = address.strip_prefix("grpc://").unwrap_or(address);
                let report = match inspect_task(address, self.timeout).await {
                    Ok(report) => report,
                    Err(Refusal::Silent(reason) | Refusal::Unwilling(reason)) => bail!("{reason}"),
                };
                for member in &report.members {
                    members.insert(place(&member.task), member.address.clone());
                }
                // The way by which it was found is one that works.
                let own = place(&report.task);
                members.insert(own.clone(), address.to_owned());
                known.insert(own, report);
            }
        }
        let mut questions = Vec::new();
        for (key, address) in members {
            let (told, limit) = (known.remove(&key), self.timeout);
            let (name, at) = (format!("{}:{}", key.0, key.1), address.clone());
            let question = tokio::spawn(async move {
                match told {
                    Some(report) => Ok(report),
                    None => inspect_task(&address, limit).await,
                }
            });
            questions.push((name, at, question));
        }
        let mut asked = Vec::new();
        for (name, address, question) in questions {
            asked.push((name, address, question.await?));
        }
        Ok(asked)
    }

    /// The cluster that was given, if not by one of its tasks.
    fn spec(&self) -> Result<Option<ClusterSpec>> {
        match (&self.cluster, &self.address) {
            (Some(text), _) => cluster(text).context("--cluster").map(Some),
            (None, Some(_)) => Ok(None),
            (None, None) => match environment("TF_CONFIG")? {
                Some(text) => Ok(Definition::from_tf_config(&text)
                    .context("TF_CONFIG")?
                    .cluster),
                None => Ok(None),
            },
        }
    }
}

/// Job and index of `/job:J/replica:0/task:N`; of anything else, itself.
fn place(name: &str) -> (String, u32) {
    let part = |key: &str| {
        let mut parts = name.split('/').filter_map(|p| p.split_once(':'));
        parts.find(|(k, _)| *k == key).map(|(_, value)| value)
    };
    match (part("job"), part("task").and_then(|t| t.parse().ok())) {
        (Some(job), Some(task)) => (job.to_owned(), task),
        _ => (name.to_owned(), 0),
    }
}

fn tell(out: &mut Output, asked: &[Asked], most: usize) -> Result<()> {
    use Align::{Left, Right};
    let mut tasks = Table::new(&[
        ("TASK", Left),
        ("STATE", Left),
        ("ADDRESS", Left),
        ("UP", Right),
        ("MEMORY", Right),
        ("DEVICES", Right),
        ("SESSIONS", Right),
        ("RUNS", Right),
        ("FAILED", Right),
        ("RUNNING", Right),
        ("VARIABLES", Right),
        ("BYTES", Right),
    ]);
    let left = left(asked);
    for (name, address, answer) in asked {
        let state = state(name, answer, &left).to_owned();
        let mut row = vec![name.clone(), state, address.clone()];
        match answer {
            Ok(r) => row.extend(figures(r)),
            Err(_) => row.extend(std::iter::repeat_n("-".to_owned(), 9)),
        }
        tasks.row(row);
    }
    out.table(&tasks)?;
    for (name, _, answer) in asked {
        if let Err(reason) = answer
            && state(name, answer, &left) != "done"
        {
            out.line(&format!("{name}: {reason}"))?;
        }
    }
    if let Some(step) = global_step(asked) {
        out.line("")?;
        out.line(&format!("global step {step}"))?;
    }
    let balance = balance(asked);
    if balance.bytes > 0 {
        out.line("")?;
        out.line(&format!(
            "{} of parameters; with what is kept beside them, {} in {} variables on {} tasks; the largest holds {:.2} times the mean",
            size(balance.parameter_bytes),
            size(balance.bytes),
            balance.count,
            balance.holders,
            balance.imbalance
        ))?;
        tell_variables(out, asked, most)?;
    }
    tell_writers(out, asked)
}

fn figures(r: &TaskReport) -> Vec<String> {
    let steps = r.steps.unwrap_or_default();
    let runs = r.runs.unwrap_or_default();
    let totals = r.variable_totals.unwrap_or_default();
    let seconds = r.uptime_millis / 1000;
    let up = match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h{:02}m", seconds / 3600, seconds % 3600 / 60),
    };
    vec![
        up,
        size(r.resident_bytes),
        r.devices.len().to_string(),
        (r.sessions.len() + r.guests.len()).to_string(),
        steps.ended.to_string(),
        steps.failed.to_string(),
        runs.started.saturating_sub(runs.ended).to_string(),
        totals.count.to_string(),
        size(totals.bytes),
    ]
}

fn tell_variables(out: &mut Output, asked: &[Asked], most: usize) -> Result<()> {
    use Align::{Left, Right};
    let mut all = Vec::new();
    for (name, _, answer) in asked {
        if let Ok(report) = answer {
            all.extend(report.variables.iter().map(|v| (name, v)));
        }
    }
    all.sort_by(|a, b| {
        b.1.bytes
            .cmp(&a.1.bytes)
            .then_with(|| a.1.name.cmp(&b.1.name))
    });
    let mut table = Table::new(&[
        ("VARIABLE", Left),
        ("TASK", Left),
        ("TYPE", Left),
        ("SHAPE", Left),
        ("BYTES", Right),
        ("UPDATES", Right),
        ("STALE", Right),
        ("WORST", Right),
    ]);
    let trained = trained(reports(asked));
    for (task, v) in all.iter().take(most) {
        let own = v.staleness.clone().unwrap_or_default();
        let stale = trained.get(v.name.as_str()).unwrap_or(&own);
        table.row(vec![
            v.name.clone(),
            (*task).clone(),
            v.dtype.clone(),
            format!("{:?}", v.shape),
            match v.is_initialized {
                true => size(v.bytes),
                false => "no value".to_owned(),
            },
            v.updates.to_string(),
            mean(stale),
            worst(stale),
        ]);
    }
    out.line("")?;
    out.table(&table)?;
    match all.len().saturating_sub(most) {
        0 => Ok(()),
        more => out.line(&format!(
            "… {more} more; --variables {} lists them",
            all.len()
        )),
    }
}

/// Whose updates came how late.
fn tell_writers(out: &mut Output, asked: &[Asked]) -> Result<()> {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("UPDATED BY", Left),
        ("IN", Left),
        ("STEPS", Right),
        ("UPDATES", Right),
        ("STALE", Right),
        ("WORST", Right),
    ]);
    for writer in writers(reports(asked)) {
        let (who, training, steps) = match &writer.replica {
            Some((training, number)) => {
                let clock = writer.clock.map(|c| c.to_string());
                let clock = clock.unwrap_or_else(|| "away".to_owned());
                (format!("replica {number}"), training.clone(), clock)
            }
            None => (short(&writer.task), "-".to_owned(), "-".to_owned()),
        };
        table.row(vec![
            who,
            training,
            steps,
            writer.staleness.updates.to_string(),
            mean(&writer.staleness),
            worst(&writer.staleness),
        ]);
    }
    if table.is_empty() {
        return Ok(());
    }
    out.line("")?;
    out.table(&table)?;
    out.line("STALE: updates of others between a read and the update computed from it, on average")
}

fn reports(asked: &[Asked]) -> impl Iterator<Item = &TaskReport> {
    asked
        .iter()
        .filter_map(|(_, _, answer)| answer.as_ref().ok())
}

fn mean(staleness: &StalenessReport) -> String {
    let mean = staleness.mean().map(|mean| format!("{mean:.2}"));
    mean.unwrap_or_else(|| "-".to_owned())
}

fn worst(staleness: &StalenessReport) -> String {
    match staleness.updates {
        0 => "-".to_owned(),
        _ => staleness.worst.to_string(),
    }
}

/// `ps:0` of `/job:ps/replica:0/task:0`.
fn short(task: &str) -> String {
    let (job, number) = place(task);
    format!("{job}:{number}")
}

/// The tasks that have left all their sessions in order, as those say who had them.
fn left(asked: &[Asked]) -> BTreeSet<String> {
    let mut left = BTreeSet::new();
    for report in reports(asked) {
        let gone = report.members.iter().filter(|m| m.has_left);
        left.extend(gone.map(|m| short(&m.task)));
    }
    for guest in reports(asked).flat_map(|r| &r.guests) {
        left.remove(&short(&guest.master));
    }
    left
}

/// The count of steps that all workers share.
fn global_step(asked: &[Asked]) -> Option<i64> {
    reports(asked).filter_map(|r| r.global_step).max()
}

fn state(
    name: &str,
    answer: &Result<TaskReport, Refusal>,
    left: &BTreeSet<String>,
) -> &'static str {
    match answer {
        Ok(report) if report.is_draining => "stopping",
        Ok(_) => "alive",
        Err(Refusal::Unwilling(_)) => "mute",
        Err(Refusal::Silent(_)) if left.contains(name) => "done",
        Err(Refusal::Silent(_)) => "lost",
    }
}

struct Balance {
    holders: usize,
    count: u64,
    bytes: u64,
    parameter_bytes: u64,
    imbalance: f64,
}

/// How variables are spread over parameter servers, and over whoever else has some.
fn balance(asked: &[Asked]) -> Balance {
    let held: Vec<[u64; 3]> = asked
        .iter()
        .filter_map(|(name, _, answer)| {
            let totals = answer.as_ref().ok()?.variable_totals.unwrap_or_default();
            let counts = name.starts_with("ps:") || totals.count > 0;
            counts.then_some([totals.count, totals.bytes, totals.parameter_bytes])
        })
        .collect();
    let bytes: u64 = held.iter().map(|h| h[1]).sum();
    let most = held.iter().map(|h| h[1]).max().unwrap_or(0);
    let mean = bytes as f64 / held.len().max(1) as f64;
    Balance {
        holders: held.len(),
        count: held.iter().map(|h| h[0]).sum(),
        bytes,
        parameter_bytes: held.iter().map(|h| h[2]).sum(),
        imbalance: if mean > 0.0 { most as f64 / mean } else { 1.0 },
    }
}

/// Everything, for machines.
fn document(asked: &[Asked]) -> Value {
    let balance = balance(asked);
    let trained = trained(reports(asked));
    let trained: BTreeMap<&str, Value> = trained.iter().map(|(v, s)| (*v, stale(s))).collect();
    let writers: Vec<Value> = writers(reports(asked))
        .iter()
        .map(|w| {
            let mut writer = json!({"task": w.task, "staleness": stale(&w.staleness)});
            if let Some((training, number)) = &w.replica {
                writer["training"] = json!(training);
                writer["replica"] = json!(number);
                writer["clock"] = json!(w.clock);
            }
            writer
        })
        .collect();
    let left = left(asked);
    let tasks: Vec<Value> = asked
        .iter()
        .map(|(name, address, answer)| {
            let state = state(name, answer, &left);
            let mut task = json!({"task": name, "address": address, "state": state});
            match answer {
                Ok(report) => task["report"] = of_report(report),
                Err(reason) => task["reason"] = json!(reason.to_string()),
            }
            task
        })
        .collect();
    json!({
        "tasks": tasks,
        "global_step": global_step(asked),
        "variables": {"parameter_bytes": balance.parameter_bytes, "tasks": balance.holders, "count": balance.count, "bytes": balance.bytes, "imbalance": balance.imbalance},
        "writers": writers,
        "trained": trained,
    })
}

fn stale(s: &StalenessReport) -> Value {
    json!({"updates": s.updates, "mean": s.mean(), "worst": s.worst})
}

fn of_report(r: &TaskReport) -> Value {
    let counts = |c: Option<downpour::StepCounts>| {
        let c = c.unwrap_or_default();
        json!({"started": c.started, "ended": c.ended, "failed": c.failed})
    };
    let sessions = |list: &[downpour::SessionReport]| -> Vec<Value> {
        list.iter()
            .map(|s| json!({"handle": s.handle, "master": s.master, "uses": s.uses, "client_is_there": s.client_is_there}))
            .collect()
    };
    let totals = r.variable_totals.unwrap_or_default();
    json!({
        "version": r.version,
        "incarnation": format!("{:016x}", r.incarnation),
        "uptime_seconds": r.uptime_millis as f64 / 1e3,
        "resident_bytes": r.resident_bytes,
        "is_draining": r.is_draining,
        "devices": r.devices.iter().map(|d| json!({"name": d.name, "type": d.device_type})).collect::<Vec<_>>(),
        "session_runs": counts(r.steps),
        "graph_runs": counts(r.runs),
        "global_step": r.global_step,
        "cpu_seconds": r.cpu_millis as f64 / 1e3,
        "sessions": sessions(&r.sessions),
        "guests": sessions(&r.guests),
        "peers": r.peers.iter().map(|p| json!({
            "task": p.task, "bytes_sent": p.bytes_sent, "bytes_received": p.bytes_received,
            "tensors_sent": p.tensors_sent, "tensors_received": p.tensors_received, "waiting": p.waiting,
        })).collect::<Vec<_>>(),
        "variable_totals": {"count": totals.count, "bytes": totals.bytes, "updates": totals.updates},
        "variables": r.variables.iter().map(|v| json!({
            "container": v.container, "name": v.name, "dtype": v.dtype, "shape": v.shape,
            "bytes": v.bytes, "updates": v.updates, "is_initialized": v.is_initialized,
            "staleness": v.staleness.as_ref().map(stale),
        })).collect::<Vec<_>>(),
        "staleness": r.staleness_from.iter().zip(&r.staleness).map(|(from, n)| json!({"from": from, "count": n})).collect::<Vec<_>>(),
    })
}
