//! The same figures for Prometheus, in its text format.

use crate::state::short;
use crate::steps::StepShown;
use crate::task::{TaskPhase, WatchedTask};
use downpour_wire::control::{ReplicaReport, StalenessReport, TaskReport, TrainingReport};
use downpour_wire::replicas::trained;
use std::fmt::Write;

/// One metric: name, kind, help and its value in a report.
type Metric = (
    &'static str,
    &'static str,
    &'static str,
    fn(&TaskReport) -> f64,
);

const METRICS: &[Metric] = &[
    (
        "downpour_uptime_seconds",
        "gauge",
        "Age of the task.",
        |r| r.uptime_millis as f64 / 1e3,
    ),
    (
        "downpour_resident_bytes",
        "gauge",
        "Memory of the task.",
        |r| r.resident_bytes as f64,
    ),
    (
        "downpour_cpu_seconds_total",
        "counter",
        "Time of processors that the task has used.",
        |r| r.cpu_millis as f64 / 1e3,
    ),
    (
        "downpour_session_runs_started_total",
        "counter",
        "Session runs that clients asked of the task.",
        |r| r.steps.as_ref().map_or(0, |s| s.started) as f64,
    ),
    (
        "downpour_session_runs_ended_total",
        "counter",
        "Session runs that ended, well or not.",
        |r| r.steps.as_ref().map_or(0, |s| s.ended) as f64,
    ),
    (
        "downpour_session_runs_failed_total",
        "counter",
        "Session runs that failed.",
        |r| r.steps.as_ref().map_or(0, |s| s.failed) as f64,
    ),
    (
        "downpour_graph_runs_started_total",
        "counter",
        "Graphs of session runs that the task began to run.",
        |r| r.runs.as_ref().map_or(0, |s| s.started) as f64,
    ),
    (
        "downpour_graph_runs_ended_total",
        "counter",
        "Of those, ended.",
        |r| r.runs.as_ref().map_or(0, |s| s.ended) as f64,
    ),
    (
        "downpour_graph_runs_failed_total",
        "counter",
        "Of those, failed.",
        |r| r.runs.as_ref().map_or(0, |s| s.failed) as f64,
    ),
    (
        "downpour_sessions",
        "gauge",
        "Open sessions of the task's master.",
        |r| r.sessions.len() as f64,
    ),
    (
        "downpour_guest_sessions",
        "gauge",
        "Open sessions of other masters on the task.",
        |r| r.guests.len() as f64,
    ),
    (
        "downpour_variables",
        "gauge",
        "Variables that the task holds.",
        |r| r.variable_totals.as_ref().map_or(0, |t| t.count) as f64,
    ),
    (
        "downpour_variable_bytes",
        "gauge",
        "Bytes of its variables.",
        |r| r.variable_totals.as_ref().map_or(0, |t| t.bytes) as f64,
    ),
    (
        "downpour_parameter_bytes",
        "gauge",
        "Bytes of its variables without what optimizers keep beside them.",
        |r| r.variable_totals.as_ref().map_or(0, |t| t.parameter_bytes) as f64,
    ),
    (
        "downpour_variable_updates_total",
        "counter",
        "Updates of its variables.",
        |r| r.variable_totals.as_ref().map_or(0, |t| t.updates) as f64,
    ),
];

/// What is known of the training as a whole.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct JobFigures {
    /// Seconds since 1970.
    pub(crate) now: f64,
    pub(crate) steps: StepShown,
    /// When the newest checkpoint was saved.
    pub(crate) saved: Option<f64>,
}

fn job_figures(out: &mut String, job: &JobFigures) {
    let figures = [
        (
            "downpour_global_step",
            "The count of steps that all workers share.",
            job.steps.value.map(|step| step as f64),
        ),
        (
            "downpour_global_steps_per_second",
            "Its slope over the last ten seconds.",
            job.steps.value.map(|_| job.steps.per_second),
        ),
        (
            "downpour_checkpoint_age_seconds",
            "Time since the newest checkpoint was saved.",
            job.saved.map(|saved| (job.now - saved).max(0.0)),
        ),
    ];
    for (name, help, value) in figures {
        if let Some(value) = value {
            head(out, name, "gauge", help);
            let _ = writeln!(out, "{name} {value}");
        }
    }
}

/// The states of tasks, by the word that the page and `inspect cluster` have for them.
const STATES: [(&str, TaskPhase); 5] = [
    ("waiting", TaskPhase::Waiting),
    ("alive", TaskPhase::Alive),
    ("mute", TaskPhase::Mute),
    ("lost", TaskPhase::Lost),
    ("done", TaskPhase::Done),
];

fn states(out: &mut String, tasks: &[WatchedTask]) {
    const NAME: &str = "downpour_task_state";
    head(out, NAME, "gauge", "1 for the state in which the task is.");
    for task in tasks {
        for (word, phase) in STATES {
            let labels = format!("{},state=\"{word}\"", labels(task));
            line(out, NAME, &labels, f64::from(u8::from(task.phase == phase)));
        }
    }
}

/// The text.
pub(crate) fn text(tasks: &[WatchedTask], job: &JobFigures) -> String {
    let mut out = String::new();
    const BUILD: &str = "downpour_build_info";
    head(&mut out, BUILD, "gauge", "Always 1; what watches.");
    let version = format!("version=\"{}\"", env!("CARGO_PKG_VERSION"));
    line(&mut out, BUILD, &version, 1.0);
    job_figures(&mut out, job);
    states(&mut out, tasks);
    head(
        &mut out,
        "downpour_task_up",
        "gauge",
        "Whether the task answers.",
    );
    for task in tasks {
        let is_up = matches!(task.phase, TaskPhase::Alive | TaskPhase::Mute);
        line(
            &mut out,
            "downpour_task_up",
            &labels(task),
            f64::from(u8::from(is_up)),
        );
    }
    head(
        &mut out,
        "downpour_task_restarts_total",
        "counter",
        "How often another life of the task was seen.",
    );
    for task in tasks {
        line(
            &mut out,
            "downpour_task_restarts_total",
            &labels(task),
            task.restarts as f64,
        );
    }
    let alive: Vec<(&WatchedTask, &TaskReport)> = tasks
        .iter()
        .filter(|t| t.phase == TaskPhase::Alive)
        .filter_map(|t| Some((t, t.report.as_ref()?)))
        .collect();
    for (name, kind, help, value) in METRICS {
        head(&mut out, name, kind, help);
        for (task, report) in &alive {
            line(&mut out, name, &labels(task), value(report));
        }
    }
    peers(&mut out, &alive);
    staleness(&mut out, &alive);
    out
}

fn peers(out: &mut String, alive: &[(&WatchedTask, &TaskReport)]) {
    type Of = fn(&downpour_wire::control::PeerReport) -> u64;
    let kinds: [(&str, &str, &str, Of); 5] = [
        (
            "downpour_sent_bytes_total",
            "counter",
            "Bytes sent to a peer.",
            |p| p.bytes_sent,
        ),
        (
            "downpour_received_bytes_total",
            "counter",
            "Bytes received from a peer.",
            |p| p.bytes_received,
        ),
        (
            "downpour_sent_tensors_total",
            "counter",
            "Tensors sent to a peer.",
            |p| p.tensors_sent,
        ),
        (
            "downpour_received_tensors_total",
            "counter",
            "Tensors received from a peer.",
            |p| p.tensors_received,
        ),
        (
            "downpour_awaited_tensors",
            "gauge",
            "Values asked of a peer and not there yet.",
            |p| p.waiting,
        ),
    ];
    for (name, kind, help, value) in kinds {
        head(out, name, kind, help);
        for (task, report) in alive {
            for peer in &report.peers {
                let labels = format!("{},peer=\"{}\"", labels(task), escaped(&short(&peer.task)));
                line(out, name, &labels, value(peer) as f64);
            }
        }
    }
}

/// Variables, the largest, of which a task's staleness is told one by one.
const MAX_VARIABLES: usize = 200;

fn staleness(out: &mut String, alive: &[(&WatchedTask, &TaskReport)]) {
    const TASK: &str = "downpour_update_staleness";
    const WORKER: &str = "downpour_worker_update_staleness";
    const REPLICA: &str = "downpour_replica_update_staleness";
    head(
        out,
        TASK,
        "histogram",
        "Updates of others between a step's read of a variable and its own update.",
    );
    for (task, report) in alive {
        let (from, counts) = (&report.staleness_from, &report.staleness);
        histogram(out, TASK, &labels(task), from, counts, None);
    }
    head(
        out,
        WORKER,
        "histogram",
        "The same by the task whose steps they were.",
    );
    for (task, report) in alive {
        for writer in &report.writers {
            let worker = escaped(&short(&writer.task));
            let labels = format!("{},worker=\"{worker}\"", labels(task));
            if let Some(s) = &writer.staleness {
                let from = &report.staleness_from;
                histogram(out, WORKER, &labels, from, &s.classes, Some(s.total));
            }
        }
    }
    head(
        out,
        REPLICA,
        "histogram",
        "Updates of others between a replica's fetch and its push.",
    );
    replicas(alive, |labels, training, replica| {
        if let Some(s) = &replica.staleness {
            let from = &training.classes_from;
            histogram(out, REPLICA, labels, from, &s.classes, Some(s.total));
        }
    });
    const CLOCK: &str = "downpour_replica_steps";
    head(
        out,
        CLOCK,
        "gauge",
        "Steps of a replica that takes part and that the parameter servers have.",
    );
    replicas(alive, |labels, _, replica| {
        if replica.takes_part {
            line(out, CLOCK, labels, replica.clock as f64);
        }
    });
    variables(out, alive);
}

/// Mean and worst by variable: what replicas say of those that they train, what the task measured of others.
fn variables(out: &mut String, alive: &[(&WatchedTask, &TaskReport)]) {
    type Of = fn(&StalenessReport) -> u64;
    let trained = trained(alive.iter().map(|(_, report)| *report));
    let kinds: [(&str, &str, &str, Of); 3] = [
        (
            "downpour_variable_measured_updates_total",
            "counter",
            "Updates of a variable whose staleness is known.",
            |s| s.updates,
        ),
        (
            "downpour_variable_staleness_total",
            "counter",
            "Their staleness, added up.",
            |s| s.total,
        ),
        (
            "downpour_variable_worst_staleness",
            "gauge",
            "The largest.",
            |s| s.worst,
        ),
    ];
    for (name, kind, help, value) in kinds {
        head(out, name, kind, help);
        for (task, report) in alive {
            for v in report.variables.iter().take(MAX_VARIABLES) {
                let own = v.staleness.as_ref();
                let known = trained.get(v.name.as_str()).or(own);
                let Some(known) = known.filter(|s| s.updates > 0) else {
                    continue;
                };
                let labels = format!("{},variable=\"{}\"", labels(task), escaped(&v.name));
                line(out, name, &labels, value(known) as f64);
            }
        }
    }
}

/// Goes through all replicas, with their labels.
fn replicas(
    alive: &[(&WatchedTask, &TaskReport)],
    mut each: impl FnMut(&str, &TrainingReport, &ReplicaReport),
) {
    for (task, report) in alive {
        for training in &report.trainings {
            for (number, replica) in training.replicas.iter().enumerate() {
                let name = escaped(&training.name);
                let own = labels(task);
                let labels = format!("{own},training=\"{name}\",replica=\"{number}\"");
                each(&labels, training, replica);
            }
        }
    }
}

/// One histogram; `sum` if it is known better than by the classes.
fn histogram(
    out: &mut String,
    name: &str,
    labels: &str,
    from: &[u64],
    counts: &[u64],
    sum: Option<u64>,
) {
    let mut least = 0.0;
    let mut total = 0u64;
    for (i, count) in counts.iter().enumerate() {
        total = total.saturating_add(*count);
        // Of a wide class the least is known.
        least += from.get(i).copied().unwrap_or(0) as f64 * *count as f64;
        let bound = match from.get(i + 1) {
            Some(next) => next.saturating_sub(1).to_string(),
            None => "+Inf".to_owned(),
        };
        let labels = format!("{labels},le=\"{bound}\"");
        line(out, &format!("{name}_bucket"), &labels, total as f64);
    }
    if !counts.is_empty() {
        let sum = sum.map_or(least, |sum| sum as f64);
        line(out, &format!("{name}_sum"), labels, sum);
        line(out, &format!("{name}_count"), labels, total as f64);
    }
}

fn labels(task: &WatchedTask) -> String {
    format!("task=\"{}\"", escaped(&short(&task.name)))
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn line(out: &mut String, name: &str, labels: &str, value: f64) {
    let _ = writeln!(out, "{name}{{{labels}}} {value}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use downpour_wire::control::{StepCounts, VariableReport, WriterReport};

    #[test]
    fn figures_are_in_the_text_format_and_names_cannot_break_it() {
        let staleness = || {
            Some(StalenessReport {
                updates: 5,
                total: 14,
                worst: 8,
                classes: vec![3, 2],
            })
        };
        let mut task = WatchedTask::new("a\"b\\c\nd".into(), "h:1".into(), 0.0);
        task.heard(
            Ok(TaskReport {
                steps: Some(StepCounts {
                    started: 5,
                    ended: 4,
                    failed: 1,
                }),
                staleness: vec![3, 2],
                staleness_from: vec![0, 1],
                writers: vec![WriterReport {
                    task: "/job:worker/replica:0/task:7".into(),
                    staleness: staleness(),
                }],
                trainings: vec![TrainingReport {
                    name: "down\"pour".into(),
                    variables: vec!["w".into()],
                    replicas: vec![
                        ReplicaReport {
                            takes_part: true,
                            clock: 9,
                            staleness: staleness(),
                        },
                        ReplicaReport::default(),
                    ],
                    classes_from: vec![0, 1],
                }],
                variables: vec![VariableReport {
                    name: "w".into(),
                    ..Default::default()
                }],
                ..Default::default()
            }),
            1.0,
        );
        let gone = WatchedTask::new("/job:ps/task:1".into(), "h:2".into(), 0.0);
        let mut done = WatchedTask::new("/job:worker/task:0".into(), "h:3".into(), 0.0);
        done.ended(1.0);
        let steps = StepShown {
            value: Some(1240),
            per_second: 52.5,
            ..StepShown::default()
        };
        let job = JobFigures {
            now: 107.0,
            steps,
            saved: Some(100.0),
        };
        let text = text(&[task, gone, done], &job);
        for wanted in [
            "# TYPE downpour_task_up gauge",
            "downpour_task_up{task=\"a\\\"b\\\\c\\nd\"} 1",
            "downpour_task_up{task=\"ps:1\"} 0",
            "downpour_global_step 1240",
            "downpour_global_steps_per_second 52.5",
            "downpour_checkpoint_age_seconds 7",
            "downpour_task_state{task=\"worker:0\",state=\"done\"} 1",
            "downpour_task_state{task=\"worker:0\",state=\"lost\"} 0",
            "downpour_session_runs_ended_total{task=\"a\\\"b\\\\c\\nd\"} 4",
            "downpour_update_staleness_bucket{task=\"a\\\"b\\\\c\\nd\",le=\"0\"} 3",
            "downpour_update_staleness_bucket{task=\"a\\\"b\\\\c\\nd\",le=\"+Inf\"} 5",
            "downpour_update_staleness_count{task=\"a\\\"b\\\\c\\nd\"} 5",
            "downpour_worker_update_staleness_bucket{task=\"a\\\"b\\\\c\\nd\",worker=\"worker:7\",le=\"0\"} 3",
            "downpour_worker_update_staleness_sum{task=\"a\\\"b\\\\c\\nd\",worker=\"worker:7\"} 14",
            "downpour_replica_update_staleness_count{task=\"a\\\"b\\\\c\\nd\",training=\"down\\\"pour\",replica=\"0\"} 5",
            "downpour_replica_steps{task=\"a\\\"b\\\\c\\nd\",training=\"down\\\"pour\",replica=\"0\"} 9",
            "downpour_variable_worst_staleness{task=\"a\\\"b\\\\c\\nd\",variable=\"w\"} 8",
        ] {
            assert!(text.lines().any(|l| l == wanted), "no {wanted} in\n{text}");
        }
        assert!(!text.contains("session_runs_ended_total{task=\"ps:1\"}"));
        for line in text.lines().filter(|l| !l.starts_with('#')) {
            let (_, value) = line.rsplit_once(' ').unwrap();
            value.parse::<f64>().unwrap();
        }
    }
}
