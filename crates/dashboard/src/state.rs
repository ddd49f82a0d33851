//! What the JSON API says: plain values made from what the collector knows. The page shows nothing
//! that is not here.

use crate::Ending;
use crate::alerts::Alert;
use crate::files::Checkpoint;
use crate::steps::StepShown;
use crate::task::{Rates, TaskPhase, WatchedTask};
use crate::timeline::RecordingShown;
use downpour_wire::control::{StalenessReport, StepCounts, TaskReport, VariableTotals};
use downpour_wire::replicas::{self, trained};
use serde::Serialize;
use std::collections::BTreeMap;

/// Variables that are listed; the largest.
const MAX_VARIABLES: usize = 200;
/// Workers and replicas that are listed.
const MAX_WRITERS: usize = 200;
/// Links that are listed; the busiest.
const MAX_LINKS: usize = 400;

/// `/api/state`.
#[derive(Serialize)]
pub(crate) struct StateShown {
    pub(crate) version: &'static str,
    pub(crate) title: String,
    /// Seconds since 1970, when this was made.
    pub(crate) now: f64,
    pub(crate) began: f64,
    pub(crate) job: Option<JobShown>,
    pub(crate) tasks: Vec<TaskShown>,
    /// What the training is measured by.
    pub(crate) global_step: StepShown,
    pub(crate) links: Vec<LinkShown>,
    pub(crate) placement: Placement,
    pub(crate) variables: Vec<VariableShown>,
    pub(crate) staleness: Staleness,
    pub(crate) writers: Vec<WriterShown>,
    pub(crate) checkpoints: Vec<Checkpoint>,
    pub(crate) events: Vec<EventShown>,
    /// What somebody should look at now.
    pub(crate) alerts: Vec<Alert>,
    /// The last value of every curve.
    pub(crate) results: BTreeMap<String, f32>,
    /// The last step that was recorded.
    pub(crate) recording: RecordingShown,
    /// What the other parts of the API have by now.
    pub(crate) next_sample: u64,
    pub(crate) scalars_version: u64,
    pub(crate) next_log: u64,
}

#[derive(Serialize)]
pub(crate) struct JobShown {
    pub(crate) name: String,
    pub(crate) phase: String,
    /// How it ended.
    pub(crate) ended: Option<Ending>,
}

/// Something that happened.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct EventShown {
    pub(crate) time: f64,
    /// `start`, `restart`, `loss`, `end`, `checkpoint` or `note`.
    pub(crate) kind: String,
    pub(crate) task: Option<String>,
    pub(crate) text: String,
    /// The global step at that time, if it is known.
    pub(crate) step: Option<i64>,
}

#[derive(Serialize)]
pub(crate) struct TaskShown {
    pub(crate) name: String,
    /// As in `ps:0`.
    pub(crate) short: String,
    pub(crate) job: String,
    pub(crate) address: String,
    pub(crate) phase: TaskPhase,
    pub(crate) since: f64,
    pub(crate) reason: String,
    /// What the launcher says of the process.
    pub(crate) process: Option<String>,
    pub(crate) restarts: u64,
    pub(crate) version: String,
    pub(crate) incarnation: String,
    pub(crate) uptime: f64,
    pub(crate) memory: u64,
    pub(crate) is_draining: bool,
    pub(crate) devices: Vec<String>,
    /// Runs that clients asked of its master.
    pub(crate) session_runs: Counts,
    /// Graphs that it ran, for any master.
    pub(crate) graph_runs: Counts,
    pub(crate) cpu_seconds: f64,
    pub(crate) sessions: usize,
    pub(crate) guests: usize,
    pub(crate) waiting: u64,
    pub(crate) rates: Rates,
    pub(crate) variables: u64,
    pub(crate) variable_bytes: u64,
    /// Of those, without what optimizers keep beside them.
    pub(crate) parameters: u64,
    pub(crate) parameter_bytes: u64,
}

#[derive(Serialize, Default)]
pub(crate) struct Counts {
    pub(crate) started: u64,
    pub(crate) ended: u64,
    pub(crate) failed: u64,
}

/// What goes from one task to another.
#[derive(Serialize, Default, Clone)]
pub(crate) struct LinkShown {
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) bytes: u64,
    pub(crate) tensors: u64,
    pub(crate) bytes_per_second: f64,
}

/// How variables are spread over the tasks that hold some.
#[derive(Serialize, Default)]
pub(crate) struct Placement {
    pub(crate) bytes: u64,
    pub(crate) count: u64,
    /// Of those, without what optimizers keep beside them.
    pub(crate) parameters: u64,
    pub(crate) parameter_bytes: u64,
    /// The largest task's bytes beside the mean of all; 1 is even.
    pub(crate) imbalance: f64,
}

#[derive(Serialize)]
pub(crate) struct VariableShown {
    pub(crate) task: String,
    pub(crate) name: String,
    pub(crate) dtype: String,
    pub(crate) shape: Vec<i64>,
    pub(crate) bytes: u64,
    pub(crate) updates: u64,
    pub(crate) is_initialized: bool,
    pub(crate) stale: Stale,
}

/// How many updates late updates were.
#[derive(Serialize, Default)]
pub(crate) struct Stale {
    pub(crate) updates: u64,
    /// Nothing if nothing was measured.
    pub(crate) mean: Option<f64>,
    pub(crate) worst: u64,
}

impl From<&StalenessReport> for Stale {
    fn from(report: &StalenessReport) -> Stale {
        Stale {
            updates: report.updates,
            mean: report.mean(),
            worst: report.worst,
        }
    }
}

/// Whoever updates variables.
#[derive(Serialize)]
pub(crate) struct WriterShown {
    /// `worker:0`, or `replica 0` of a training with a table of its replicas.
    pub(crate) name: String,
    pub(crate) training: Option<String>,
    /// A replica's steps; nothing if it takes no part.
    pub(crate) clock: Option<u64>,
    pub(crate) stale: Stale,
}

/// How often updates were so many updates late.
#[derive(Serialize, Default)]
pub(crate) struct Staleness {
    pub(crate) from: Vec<u64>,
    pub(crate) counts: Vec<u64>,
}

impl Staleness {
    /// The mean, by the lower bounds of classes; nothing if nothing was measured.
    pub(crate) fn mean(&self) -> Option<f64> {
        let all: u64 = self.counts.iter().sum();
        let pairs = self.from.iter().zip(&self.counts);
        let total: f64 = pairs.map(|(from, n)| *from as f64 * *n as f64).sum();
        (all > 0).then(|| total / all as f64)
    }
}

/// `ps:0` of `/job:ps/replica:0/task:0`.
pub(crate) fn short(name: &str) -> String {
    let part = |key: &str| {
        let mut parts = name.split('/').filter_map(|p| p.split_once(':'));
        parts.find(|(k, _)| *k == key).map(|(_, v)| v)
    };
    match (part("job"), part("task")) {
        (Some(job), Some(task)) => format!("{job}:{task}"),
        _ => name.to_owned(),
    }
}

impl TaskShown {
    pub(crate) fn new(task: &WatchedTask, process: Option<String>, restarts: u64) -> TaskShown {
        let nothing = TaskReport::default();
        let report = task.report.as_ref().unwrap_or(&nothing);
        let short = short(&task.name);
        let totals = report.variable_totals.unwrap_or_default();
        TaskShown {
            job: short.split(':').next().unwrap_or_default().to_owned(),
            short,
            name: task.name.clone(),
            address: task.address.clone(),
            phase: task.phase,
            since: task.since,
            reason: task.reason.clone(),
            process,
            restarts: task.restarts.max(restarts),
            version: report.version.clone(),
            incarnation: format!("{:016x}", report.incarnation),
            uptime: report.uptime_millis as f64 / 1e3,
            memory: report.resident_bytes,
            is_draining: report.is_draining,
            devices: report.devices.iter().map(|d| d.name.clone()).collect(),
            session_runs: counts(report.steps.as_ref()),
            graph_runs: counts(report.runs.as_ref()),
            cpu_seconds: report.cpu_millis as f64 / 1e3,
            sessions: report.sessions.len(),
            guests: report.guests.len(),
            waiting: report.peers.iter().map(|p| p.waiting).sum(),
            rates: task.rates,
            variables: totals.count,
            variable_bytes: totals.bytes,
            parameters: totals.parameters,
            parameter_bytes: totals.parameter_bytes,
        }
    }
}

fn counts(counts: Option<&StepCounts>) -> Counts {
    counts.map_or_else(Counts::default, |c| Counts {
        started: c.started,
        ended: c.ended,
        failed: c.failed,
    })
}

/// Bytes and tensors from each task to each other. Both ends count, and not the same: what one has
/// sent in a call of its own the other does not see.
pub(crate) fn totals(tasks: &[WatchedTask]) -> BTreeMap<(String, String), (u64, u64)> {
    let mut links: BTreeMap<(String, String), (u64, u64)> = BTreeMap::new();
    for task in tasks {
        let Some(report) = &task.report else {
            continue;
        };
        for peer in &report.peers {
            let ends = [
                (
                    &peer.task,
                    &task.name,
                    peer.bytes_received,
                    peer.tensors_received,
                ),
                (&task.name, &peer.task, peer.bytes_sent, peer.tensors_sent),
            ];
            for (from, to, bytes, tensors) in ends {
                if bytes > 0 {
                    let link = links.entry((from.clone(), to.clone())).or_default();
                    *link = (link.0.max(bytes), link.1.max(tensors));
                }
            }
        }
    }
    links
}

/// The busiest links, with what each carries now.
pub(crate) fn links(
    now: &BTreeMap<(String, String), (u64, u64)>,
    before: &BTreeMap<(String, String), (u64, u64)>,
    seconds: f64,
) -> Vec<LinkShown> {
    let mut links: Vec<LinkShown> = now
        .iter()
        .map(|((from, to), (bytes, tensors))| {
            let old = before
                .get(&(from.clone(), to.clone()))
                .map_or(*bytes, |b| b.0);
            let grown = bytes.saturating_sub(old) as f64;
            LinkShown {
                from: short(from),
                to: short(to),
                bytes: *bytes,
                tensors: *tensors,
                bytes_per_second: if seconds > 0.0 { grown / seconds } else { 0.0 },
            }
        })
        .collect();
    links.sort_by(|a, b| b.bytes_per_second.total_cmp(&a.bytes_per_second));
    links.truncate(MAX_LINKS);
    links.sort_by(|a, b| (&a.from, &a.to).cmp(&(&b.from, &b.to)));
    links
}

/// How variables are spread.
pub(crate) fn placement(tasks: &[WatchedTask]) -> Placement {
    let held: Vec<&VariableTotals> = holders(tasks)
        .filter_map(|(_, r)| r.variable_totals.as_ref())
        .collect();
    let sum = |of: fn(&VariableTotals) -> u64| held.iter().map(|t| of(t)).sum();
    let bytes: u64 = sum(|t| t.bytes);
    let largest = held.iter().map(|t| t.bytes).max().unwrap_or(0);
    let mean = bytes as f64 / held.len().max(1) as f64;
    Placement {
        bytes,
        count: sum(|t| t.count),
        parameters: sum(|t| t.parameters),
        parameter_bytes: sum(|t| t.parameter_bytes),
        imbalance: if mean > 0.0 {
            largest as f64 / mean
        } else {
            1.0
        },
    }
}

/// Tasks that should hold variables: parameter servers, or whoever does.
fn holders(tasks: &[WatchedTask]) -> impl Iterator<Item = (&WatchedTask, &TaskReport)> {
    let reports = tasks.iter().filter_map(|t| Some((t, t.report.as_ref()?)));
    reports.filter(|(task, report)| {
        short(&task.name).starts_with("ps:")
            || report.variable_totals.as_ref().is_some_and(|t| t.count > 0)
    })
}

/// The largest variables.
pub(crate) fn variables(tasks: &[WatchedTask]) -> Vec<VariableShown> {
    let mut all = Vec::new();
    let trained = trained(reports(tasks));
    for (task, report) in holders(tasks) {
        let name = short(&task.name);
        all.extend(
            report
                .variables
                .iter()
                .take(MAX_VARIABLES)
                .map(|v| VariableShown {
                    task: name.clone(),
                    name: v.name.clone(),
                    dtype: v.dtype.clone(),
                    shape: v.shape.clone(),
                    bytes: v.bytes,
                    updates: v.updates,
                    is_initialized: v.is_initialized,
                    stale: match (trained.get(v.name.as_str()), &v.staleness) {
                        (Some(known), _) | (None, Some(known)) => known.into(),
                        (None, None) => Stale::default(),
                    },
                }),
        );
    }
    all.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    all.truncate(MAX_VARIABLES);
    all
}

/// Whoever updates variables, and how stale that is.
pub(crate) fn writers(tasks: &[WatchedTask]) -> Vec<WriterShown> {
    let all = replicas::writers(reports(tasks)).into_iter();
    let shown = all.take(MAX_WRITERS).map(|w| WriterShown {
        stale: (&w.staleness).into(),
        clock: w.clock,
        name: match &w.replica {
            Some((_, number)) => format!("replica {number}"),
            None => short(&w.task),
        },
        training: w.replica.map(|(training, _)| training),
    });
    shown.collect()
}

fn reports(tasks: &[WatchedTask]) -> impl Iterator<Item = &TaskReport> {
    tasks.iter().filter_map(|t| t.report.as_ref())
}

/// The staleness of all tasks together.
pub(crate) fn staleness(tasks: &[WatchedTask]) -> Staleness {
    let mut sum = Staleness::default();
    for report in reports(tasks) {
        // Tasks of another version may have other classes; those cannot be added.
        if sum.from.is_empty() {
            sum.from = report.staleness_from.clone();
            sum.counts = vec![0; sum.from.len()];
        }
        if sum.from == report.staleness_from {
            add(&mut sum.counts, &report.staleness);
        }
        // Replicas that read and update in different steps measure it themselves.
        for training in &report.trainings {
            for replica in training
                .replicas
                .iter()
                .filter_map(|r| r.staleness.as_ref())
            {
                if sum.from == training.classes_from {
                    add(&mut sum.counts, &replica.classes);
                }
            }
        }
    }
    sum
}

fn add(sum: &mut [u64], more: &[u64]) {
    for (total, n) in sum.iter_mut().zip(more) {
        *total = total.saturating_add(*n);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use downpour_wire::control::{
        PeerReport, ReplicaReport, TrainingReport, VariableReport, VariableTotals,
    };

    fn task(name: &str, report: TaskReport) -> WatchedTask {
        let mut task = WatchedTask::new(name.into(), "h:1".into(), 0.0);
        task.report = Some(report);
        task
    }

    #[test]
    fn names_are_short() {
        assert_eq!(short("/job:ps/replica:0/task:7"), "ps:7");
        assert_eq!(short("<b>"), "<b>");
    }

    #[test]
    fn a_link_is_what_either_end_has_counted() {
        let peer = |task: &str, sent, received| PeerReport {
            task: task.into(),
            bytes_sent: sent,
            bytes_received: received,
            ..Default::default()
        };
        let (ps, worker) = ("/job:ps/task:0", "/job:worker/task:0");
        let tasks = |scale: u64| {
            let at_ps = vec![peer(worker, 100 * scale, 0)];
            let at_worker = vec![peer(ps, 30 * scale, 90 * scale)];
            [(ps, at_ps), (worker, at_worker)].map(|(name, peers)| {
                let report = TaskReport {
                    peers,
                    ..Default::default()
                };
                task(name, report)
            })
        };
        let (before, now) = (totals(&tasks(1)), totals(&tasks(3)));
        let shown = links(&now, &before, 2.0);
        let shown: Vec<_> = shown
            .iter()
            .map(|l| (l.from.as_str(), l.bytes, l.bytes_per_second))
            .collect();
        assert_eq!(shown, [("ps:0", 300, 100.0), ("worker:0", 90, 30.0)]);
    }

    #[test]
    fn an_empty_parameter_server_counts_in_the_balance() {
        let holding = |bytes| TaskReport {
            variable_totals: Some(VariableTotals {
                count: 1,
                bytes,
                parameter_bytes: bytes / 2,
                ..Default::default()
            }),
            ..Default::default()
        };
        let tasks = [
            task("/job:ps/task:0", holding(80)),
            task("/job:ps/task:1", holding(0)),
            task("/job:worker/task:0", TaskReport::default()),
        ];
        let placement = placement(&tasks);
        assert_eq!((placement.bytes, placement.imbalance), (80, 2.0));
        assert_eq!(placement.parameter_bytes, 40);
    }

    #[test]
    fn replicas_and_what_they_train_show_what_the_replicas_measured() {
        let staleness = |updates, total, worst| StalenessReport {
            updates,
            total,
            worst,
            classes: vec![updates - 1, 1],
        };
        let training = TrainingReport {
            name: "downpour".into(),
            variables: vec!["w".into()],
            replicas: vec![ReplicaReport {
                takes_part: true,
                clock: 40,
                staleness: Some(staleness(8, 4, 3)),
            }],
            classes_from: vec![0, 1],
        };
        let first = TaskReport {
            trainings: vec![training],
            staleness: vec![10, 0],
            staleness_from: vec![0, 1],
            ..Default::default()
        };
        let variable = |name: &str| VariableReport {
            name: name.into(),
            staleness: Some(staleness(2, 1, 1)),
            ..Default::default()
        };
        let second = TaskReport {
            variables: vec![variable("other"), variable("w")],
            variable_totals: Some(VariableTotals::default()),
            ..Default::default()
        };
        let tasks = [
            task("/job:ps/task:0", first),
            task("/job:ps/task:1", second),
        ];
        let shown = variables(&tasks);
        let shown = shown
            .iter()
            .map(|v| (v.name.as_str(), v.stale.mean, v.stale.worst));
        let wanted = [("other", Some(0.5), 1), ("w", Some(0.5), 3)];
        assert_eq!(shown.collect::<Vec<_>>(), wanted);
        assert_eq!(staleness_counts(&tasks), [17, 1]);
        let writers = writers(&tasks);
        assert_eq!(
            (writers[0].name.as_str(), writers[0].clock),
            ("replica 0", Some(40))
        );
        assert_eq!(writers[0].stale.updates, 8);
    }

    fn staleness_counts(tasks: &[WatchedTask]) -> Vec<u64> {
        staleness(tasks).counts
    }
}
