//! What somebody should look at: a loss that is no number, a step that stands, lost tasks, stale updates.
//! A pure machine: the same alerts and the same observation give the same alerts.

use serde::Serialize;

/// How long the global step may stand before that is an alert, in seconds.
const STALL: f64 = 60.0;
/// Mean staleness beside the number of workers from which it is an alert: asynchronous training is around
/// one below that number.
const STALE: f64 = 4.0;

/// One alert.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Alert {
    /// `nan`, `stall`, `lost` or `stale`.
    pub(crate) kind: &'static str,
    pub(crate) text: String,
    /// Since when, in seconds since 1970.
    pub(crate) since: f64,
}

/// What was seen of a training.
pub(crate) struct Seen {
    pub(crate) time: f64,
    pub(crate) has_ended: bool,
    /// Curves whose newest value is no number.
    pub(crate) broken: String,
    /// Lost tasks.
    pub(crate) lost: String,
    /// When the global step last moved.
    pub(crate) moved: Option<f64>,
    pub(crate) mean_staleness: Option<f64>,
    pub(crate) workers: usize,
}

/// Raises what is new and drops what is over.
pub(crate) fn update(alerts: &mut Vec<Alert>, seen: &Seen) {
    let mut now: Vec<(&'static str, String)> = Vec::new();
    if !seen.broken.is_empty() {
        now.push(("nan", format!("{} is not a number", seen.broken)));
    }
    // A job that has ended neither stalls nor loses tasks.
    if !seen.has_ended {
        if !seen.lost.is_empty() {
            now.push(("lost", format!("{} does not answer", seen.lost)));
        }
        if seen.moved.is_some_and(|moved| seen.time - moved > STALL) {
            let text = format!("the global step stands for more than {STALL} s");
            now.push(("stall", text));
        }
        let limit = STALE * seen.workers.max(1) as f64;
        if let Some(mean) = seen.mean_staleness.filter(|mean| *mean > limit) {
            now.push((
                "stale",
                format!("updates are {mean:.1} updates late on average"),
            ));
        }
    }
    alerts.retain(|alert| now.iter().any(|(kind, _)| *kind == alert.kind));
    for (kind, text) in now {
        match alerts.iter_mut().find(|alert| alert.kind == kind) {
            Some(alert) => alert.text = text,
            None => alerts.push(Alert {
                kind,
                text,
                since: seen.time,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(time: f64) -> Seen {
        Seen {
            time,
            has_ended: false,
            broken: String::new(),
            lost: String::new(),
            moved: Some(time),
            mean_staleness: Some(1.0),
            workers: 2,
        }
    }

    fn kinds(alerts: &[Alert]) -> Vec<&str> {
        alerts.iter().map(|a| a.kind).collect()
    }

    #[test]
    fn alerts_come_with_their_reason_and_go_with_it() {
        let mut alerts = Vec::new();
        update(&mut alerts, &seen(0.0));
        assert!(alerts.is_empty());
        let bad = Seen {
            broken: "loss".into(),
            lost: "ps:1".into(),
            moved: Some(0.0),
            mean_staleness: Some(8.1),
            ..seen(61.0)
        };
        update(&mut alerts, &bad);
        assert_eq!(kinds(&alerts), ["nan", "lost", "stall", "stale"]);
        update(&mut alerts, &Seen { time: 70.0, ..bad });
        assert!(alerts.iter().all(|a| a.since == 61.0));
        update(&mut alerts, &seen(80.0));
        assert!(alerts.is_empty());
    }

    #[test]
    fn a_job_that_has_ended_neither_stalls_nor_loses_tasks() {
        let mut alerts = Vec::new();
        let over = Seen {
            has_ended: true,
            lost: "ps:1".into(),
            moved: Some(0.0),
            ..seen(100.0)
        };
        update(&mut alerts, &over);
        assert!(alerts.is_empty());
    }
}
