//! A task's figures for Prometheus, in its text format: on the task's own port, and for all tasks of a
//! job on the dashboard's.

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

fn peers(out: &mut String, alive: &[(&str, &TaskReport)]) {
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

fn staleness(out: &mut String, alive: &[(&str, &TaskReport)]) {
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
fn variables(out: &mut String, alive: &[(&str, &TaskReport)]) {
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
    alive: &[(&str, &TaskReport)],
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

/// The figures of these tasks, by names like `ps:0`.
pub fn metrics_of(alive: &[(&str, &TaskReport)]) -> String {
    let mut out = String::new();
    for (name, kind, help, value) in METRICS {
        head(&mut out, name, kind, help);
        for (task, report) in alive {
            line(&mut out, name, &labels(task), value(report));
        }
    }
    peers(&mut out, alive);
    staleness(&mut out, alive);
    out
}

/// What a task says of itself alone.
pub(crate) fn page(report: &TaskReport) -> String {
    let name = short(&report.task);
    let mut out = String::new();
    const BUILD: &str = "downpour_build_info";
    head(&mut out, BUILD, "gauge", "Always 1; what runs.");
    let version = format!("{},version=\"{}\"", labels(&name), escaped(&report.version));
    line(&mut out, BUILD, &version, 1.0);
    if let Some(step) = report.global_step {
        const STEP: &str = "downpour_global_step";
        head(
            &mut out,
            STEP,
            "gauge",
            "The count of steps that all workers share.",
        );
        line(&mut out, STEP, &labels(&name), step as f64);
    }
    out + &metrics_of(&[(name.as_str(), report)])
}

/// `ps:0` of `/job:ps/replica:0/task:0`.
fn short(name: &str) -> String {
    let part = |key: &str| {
        let mut parts = name.split('/').filter_map(|p| p.split_once(':'));
        parts.find(|(k, _)| *k == key).map(|(_, v)| v)
    };
    match (part("job"), part("task")) {
        (Some(job), Some(task)) => format!("{job}:{task}"),
        _ => name.to_owned(),
    }
}

fn labels(task: &str) -> String {
    format!("task=\"{}\"", escaped(task))
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

    #[test]
    fn a_task_tells_its_own_figures() {
        let report = TaskReport {
            task: "/job:ps/replica:0/task:1".into(),
            version: "1.\"0\n".into(),
            global_step: Some(77),
            cpu_millis: 2500,
            ..Default::default()
        };
        let text = page(&report);
        for wanted in [
            "downpour_build_info{task=\"ps:1\",version=\"1.\\\"0\\n\"} 1",
            "downpour_global_step{task=\"ps:1\"} 77",
            "downpour_cpu_seconds_total{task=\"ps:1\"} 2.5",
        ] {
            assert!(text.lines().any(|l| l == wanted), "no {wanted} in\n{text}");
        }
    }
}
