//! The same figures for Prometheus, in its text format.

use crate::state::short;
use crate::task::{TaskPhase, WatchedTask};
use downpour_wire::control::TaskReport;
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
        "downpour_steps_started_total",
        "counter",
        "Steps that clients asked of the task.",
        |r| r.steps.as_ref().map_or(0, |s| s.started) as f64,
    ),
    (
        "downpour_steps_ended_total",
        "counter",
        "Steps that ended, well or not.",
        |r| r.steps.as_ref().map_or(0, |s| s.ended) as f64,
    ),
    (
        "downpour_steps_failed_total",
        "counter",
        "Steps that failed.",
        |r| r.steps.as_ref().map_or(0, |s| s.failed) as f64,
    ),
    (
        "downpour_runs_started_total",
        "counter",
        "Graphs of steps that the task began to run.",
        |r| r.runs.as_ref().map_or(0, |s| s.started) as f64,
    ),
    (
        "downpour_runs_ended_total",
        "counter",
        "Of those, ended.",
        |r| r.runs.as_ref().map_or(0, |s| s.ended) as f64,
    ),
    (
        "downpour_runs_failed_total",
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
        "downpour_variable_updates_total",
        "counter",
        "Updates of its variables.",
        |r| r.variable_totals.as_ref().map_or(0, |t| t.updates) as f64,
    ),
];

/// The text.
pub(crate) fn text(tasks: &[WatchedTask]) -> String {
    let mut out = String::new();
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

fn staleness(out: &mut String, alive: &[(&WatchedTask, &TaskReport)]) {
    const NAME: &str = "downpour_update_staleness";
    head(
        out,
        NAME,
        "histogram",
        "Updates of others between a step's read of a variable and its own update.",
    );
    for (task, report) in alive {
        let mut sum = 0.0;
        let mut total = 0;
        for (i, count) in report.staleness.iter().enumerate() {
            total += count;
            let from = report.staleness_from.get(i).copied().unwrap_or(0);
            // Of a wide class the least is known.
            sum += from as f64 * *count as f64;
            let bound = match report.staleness_from.get(i + 1) {
                Some(next) => (next.saturating_sub(1)).to_string(),
                None => "+Inf".to_owned(),
            };
            let labels = format!("{},le=\"{bound}\"", labels(task));
            line(out, &format!("{NAME}_bucket"), &labels, total as f64);
        }
        if !report.staleness.is_empty() {
            line(out, &format!("{NAME}_sum"), &labels(task), sum);
            line(out, &format!("{NAME}_count"), &labels(task), total as f64);
        }
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
    use downpour_wire::control::StepCounts;

    #[test]
    fn figures_are_in_the_text_format_and_names_cannot_break_it() {
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
                ..Default::default()
            }),
            1.0,
        );
        let gone = WatchedTask::new("/job:ps/task:1".into(), "h:2".into(), 0.0);
        let text = text(&[task, gone]);
        for wanted in [
            "# TYPE downpour_task_up gauge",
            "downpour_task_up{task=\"a\\\"b\\\\c\\nd\"} 1",
            "downpour_task_up{task=\"ps:1\"} 0",
            "downpour_steps_ended_total{task=\"a\\\"b\\\\c\\nd\"} 4",
            "downpour_update_staleness_bucket{task=\"a\\\"b\\\\c\\nd\",le=\"0\"} 3",
            "downpour_update_staleness_bucket{task=\"a\\\"b\\\\c\\nd\",le=\"+Inf\"} 5",
            "downpour_update_staleness_count{task=\"a\\\"b\\\\c\\nd\"} 5",
        ] {
            assert!(text.lines().any(|l| l == wanted), "no {wanted} in\n{text}");
        }
        assert!(!text.contains("steps_ended_total{task=\"ps:1\"}"));
        for line in text.lines().filter(|l| !l.starts_with('#')) {
            let (_, value) = line.rsplit_once(' ').unwrap();
            value.parse::<f64>().unwrap();
        }
    }
}
