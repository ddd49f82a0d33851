//! One step across tasks, recorded on demand: each task that has sessions records its next steps at the same time, and
//! what they say is one trace, in the form that Chrome's viewer and Perfetto open.
//!
//! The clocks of the tasks' machines are taken as they are. Everything is bounded: tasks that are asked, time, bytes.

use downpour_net::record_steps;
use serde::Serialize;
use serde_json::{Value, json};
use std::time::Duration;

/// Tasks whose steps are recorded at once.
pub(crate) const MAX_RECORDED: usize = 16;
/// How long a task may take to answer: it waits for steps for some seconds itself.
const PATIENCE: Duration = Duration::from_secs(15);
/// Bytes of the largest trace that is kept.
const MAX_TRACE: usize = 16 << 20;

/// What `/api/state` says of the last recording.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct RecordingShown {
    /// How many were made.
    pub(crate) count: u64,
    /// Whether one is under way.
    pub(crate) is_running: bool,
    /// When the last began, in seconds since 1970.
    pub(crate) began: Option<f64>,
    /// What a task did not record, and why.
    pub(crate) failed: Vec<String>,
}

/// The last recording.
#[derive(Default)]
pub(crate) struct Timeline {
    pub(crate) shown: RecordingShown,
    /// `{"traceEvents": […]}`, or nothing yet.
    trace: Option<String>,
}

impl Timeline {
    /// Begins, unless one is under way.
    pub(crate) fn begin(&mut self, now: f64) -> bool {
        let begins = !self.shown.is_running;
        if begins {
            self.shown.is_running = true;
            self.shown.began = Some(now);
        }
        begins
    }

    /// Takes what the tasks answered, by their names. A recording in which none did leaves the one before.
    pub(crate) fn end(&mut self, answers: Vec<(String, Result<String, String>)>) {
        self.shown.is_running = false;
        self.shown.failed.clear();
        let mut traces = Vec::new();
        for (task, answer) in answers {
            let trace = answer.and_then(|text| {
                serde_json::from_str(&text).map_err(|e| format!("its recording is no JSON: {e}"))
            });
            match trace {
                Ok(trace) => traces.push((task, trace)),
                Err(why) => self.shown.failed.push(format!("{task}: {why}")),
            }
        }
        if traces.is_empty() {
            return;
        }
        let whole = merged(traces).to_string();
        match whole.len() > MAX_TRACE {
            true => self
                .shown
                .failed
                .push(format!("the trace has {} bytes, too many", whole.len())),
            false => {
                self.trace = Some(whole);
                self.shown.count += 1;
            }
        }
    }

    /// The trace, as it is downloaded and drawn.
    pub(crate) fn trace(&self) -> &str {
        self.trace.as_deref().unwrap_or("{\"traceEvents\":[]}")
    }

    /// What is kept when the job is over.
    pub(crate) fn kept(&self) -> Value {
        match &self.trace {
            Some(trace) => json!({"shown": self.shown, "trace": trace}),
            None => Value::Null,
        }
    }

    /// What was kept.
    pub(crate) fn of_kept(kept: &Value) -> Timeline {
        let trace = kept["trace"].as_str().map(str::to_owned);
        let shown = RecordingShown {
            count: u64::from(trace.is_some()),
            began: kept["shown"]["began"].as_f64(),
            ..RecordingShown::default()
        };
        Timeline { shown, trace }
    }
}

/// Asks these tasks, names and addresses, at the same time.
pub(crate) async fn record(tasks: Vec<(String, String)>) -> Vec<(String, Result<String, String>)> {
    let mut asked = tokio::task::JoinSet::new();
    for (i, (task, address)) in tasks.into_iter().enumerate() {
        asked.spawn(async move {
            let answer = record_steps(&address, PATIENCE).await;
            (i, task, answer.map_err(|refusal| refusal.to_string()))
        });
    }
    let mut answers = asked.join_all().await;
    answers.sort_by_key(|(i, ..)| *i);
    let answers = answers.into_iter();
    answers.map(|(_, task, answer)| (task, answer)).collect()
}

/// Traces of several tasks as one: devices and arrows are numbered anew, and each device says whose step it is.
fn merged(traces: Vec<(String, Value)>) -> Value {
    let mut events = Vec::new();
    let mut first = 0;
    for (task, mut trace) in traces {
        let mut last = first;
        let taken = trace["traceEvents"].as_array_mut().map(std::mem::take);
        for mut event in taken.unwrap_or_default() {
            let pid = first + event["pid"].as_u64().unwrap_or(0).min(1 << 20);
            last = last.max(pid + 1);
            event["pid"] = json!(pid);
            if event["name"] == "process_name" && event["args"].is_object() {
                event["args"]["step_of"] = json!(task);
            }
            if !event["id"].is_null() {
                event["id"] = json!(format!("{task} {}", event["id"]));
            }
            events.push(event);
        }
        first = last;
    }
    json!({ "traceEvents": events })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(device: &str) -> String {
        json!({"traceEvents": [
            {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": device}},
            {"ph": "X", "name": "Add", "pid": 0, "tid": 1, "ts": 5.0, "dur": 2.0},
            {"ph": "s", "id": 0, "pid": 0},
            {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "other"}},
        ]})
        .to_string()
    }

    #[test]
    fn traces_of_several_tasks_are_one_and_whose_step_it_is_is_known() {
        let mut timeline = Timeline::default();
        assert!(timeline.begin(7.0) && !timeline.begin(8.0), "one at a time");
        timeline.end(vec![
            ("worker:0".to_owned(), Ok(trace("a"))),
            ("worker:1".to_owned(), Err("no step ended".to_owned())),
            ("worker:2".to_owned(), Ok("nonsense".to_owned())),
            ("worker:3".to_owned(), Ok(trace("b"))),
        ]);
        let whole: Value = serde_json::from_str(timeline.trace()).unwrap();
        let events = whole["traceEvents"].as_array().unwrap();
        let pids: Vec<u64> = events.iter().map(|e| e["pid"].as_u64().unwrap()).collect();
        assert_eq!(pids, [0, 0, 0, 1, 2, 2, 2, 3]);
        assert_eq!(events[4]["args"]["step_of"], "worker:3");
        assert_ne!(events[2]["id"], events[6]["id"]);
        let shown = &timeline.shown;
        assert_eq!(
            (shown.count, shown.is_running, shown.failed.len()),
            (1, false, 2)
        );
        assert_eq!(shown.failed[0], "worker:1: no step ended");
    }

    #[test]
    fn a_recording_without_steps_leaves_the_one_before_and_the_last_is_kept() {
        let mut timeline = Timeline::default();
        assert!(timeline.kept().is_null());
        timeline.begin(7.0);
        timeline.end(vec![("worker:0".to_owned(), Ok(trace("a")))]);
        let before = timeline.trace().to_owned();
        timeline.begin(9.0);
        timeline.end(vec![("worker:0".to_owned(), Err("gone".to_owned()))]);
        assert_eq!(
            (timeline.trace(), timeline.shown.count),
            (before.as_str(), 1)
        );
        let again = Timeline::of_kept(&timeline.kept());
        assert_eq!(
            (again.trace(), again.shown.began),
            (before.as_str(), Some(9.0))
        );
    }
}
