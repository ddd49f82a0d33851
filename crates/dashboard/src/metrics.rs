//! The same figures for Prometheus, in its text format.

use crate::state::short;
use crate::steps::StepShown;
use crate::task::{TaskPhase, WatchedTask};
use downpour_net::metrics_of;
use downpour_wire::control::TaskReport;
use std::fmt::Write;

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
    let alive: Vec<(String, &TaskReport)> = tasks
        .iter()
        .filter(|t| t.phase == TaskPhase::Alive)
        .filter_map(|t| Some((short(&t.name), t.report.as_ref()?)))
        .collect();
    let alive: Vec<(&str, &TaskReport)> = alive.iter().map(|(n, r)| (n.as_str(), *r)).collect();
    out + &metrics_of(&alive)
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
    use downpour_wire::control::{
        ReplicaReport, StalenessReport, StepCounts, TrainingReport, VariableReport, WriterReport,
    };

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

    /// Names of metrics in a text, as Prometheus has them: a histogram's series by its own name.
    fn names(text: &str) -> std::collections::BTreeSet<String> {
        let is_name = |c: char| c.is_ascii_lowercase() || c == '_';
        let words = text.split(|c| !is_name(c));
        let names = words.filter(|word| word.starts_with("downpour_"));
        names
            .map(|name| {
                let series = ["_bucket", "_sum", "_count"];
                let whole = series.iter().find_map(|end| name.strip_suffix(end));
                whole.unwrap_or(name).to_owned()
            })
            .collect()
    }

    #[test]
    fn the_board_and_the_alert_rules_ask_for_what_is_exported() {
        let task = WatchedTask::new("/job:ps/task:0".into(), "h:1".into(), 0.0);
        let job = JobFigures {
            now: 2.0,
            steps: StepShown {
                value: Some(1),
                ..StepShown::default()
            },
            saved: Some(1.0),
        };
        let exported = names(&text(&[task], &job));
        for (file, text) in [
            ("grafana.json", include_str!("../../../deploy/grafana.json")),
            ("alerts.yml", include_str!("../../../deploy/alerts.yml")),
        ] {
            let asked = names(text);
            assert!(asked.len() > 5, "{file}: {asked:?}");
            let missing: Vec<_> = asked.difference(&exported).collect();
            assert!(missing.is_empty(), "{file} asks for {missing:?}");
        }
        let board = include_str!("../../../deploy/grafana.json");
        let board: serde_json::Value = serde_json::from_str(board).unwrap();
        assert_eq!(board["panels"].as_array().unwrap().len(), 12);
    }
}
