//! One task as the collector sees it: a machine that takes what the task said, or that it said
//! nothing, and the time, and gives what changed. No I/O, no clock.

use downpour_net::Refusal;
use downpour_wire::control::{StepCounts, TaskReport};
use serde::Serialize;

/// How a task is.
///
/// ```text
/// Waiting ─► Alive ◄─► Lost        Done: it was known to end: it said so, its launcher did, or it left its sessions
///    └─────► Mute ◄──────┘         Mute: it answers, but does not say what it does
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TaskPhase {
    /// Has not been there yet.
    Waiting,
    /// Answers.
    Alive,
    /// Is there, but does not say what it does.
    Mute,
    /// Was there and does not answer.
    Lost,
    /// Finished, or stopped as it should.
    Done,
}

/// What the collector remembers of a task.
pub(crate) struct WatchedTask {
    pub(crate) name: String,
    pub(crate) address: String,
    pub(crate) phase: TaskPhase,
    /// Since when, in seconds since 1970.
    pub(crate) since: f64,
    /// Why it is lost or mute.
    pub(crate) reason: String,
    /// What it last said, and when.
    pub(crate) report: Option<TaskReport>,
    pub(crate) reported: f64,
    /// How often another life of it was seen.
    pub(crate) restarts: u64,
    pub(crate) rates: Rates,
    /// Whether it is known that it has nothing left to do: silence is then its end.
    is_over: bool,
}

/// What a task does per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Rates {
    /// Session runs that clients asked for.
    pub(crate) session_runs: f64,
    /// Graphs that it ran.
    pub(crate) graph_runs: f64,
    /// Processors that it kept busy.
    pub(crate) cpu: f64,
    /// Updates of its variables.
    pub(crate) updates: f64,
    /// Bytes that it received from other tasks.
    pub(crate) received: f64,
    /// Bytes that it sent.
    pub(crate) sent: f64,
}

/// What changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) kind: &'static str,
    pub(crate) text: String,
}

impl WatchedTask {
    pub(crate) fn new(name: String, address: String, now: f64) -> WatchedTask {
        WatchedTask {
            name,
            address,
            phase: TaskPhase::Waiting,
            since: now,
            reason: String::new(),
            report: None,
            reported: now,
            restarts: 0,
            rates: Rates::default(),
            is_over: false,
        }
    }

    /// Takes what the task answered.
    pub(crate) fn heard(
        &mut self,
        answer: Result<TaskReport, Refusal>,
        now: f64,
    ) -> Option<Change> {
        match answer {
            Ok(report) => self.spoke(report, now),
            Err(Refusal::Unwilling(reason)) => {
                self.rates = Rates::default();
                let came = self.phase != TaskPhase::Mute;
                self.reason = reason;
                self.enter(TaskPhase::Mute, now);
                came.then(|| change("start", "is there, but does not say what it does"))
            }
            Err(Refusal::Silent(reason)) => {
                self.rates = Rates::default();
                self.reason = reason;
                let was_stopping = self.report.as_ref().is_some_and(|r| r.is_draining);
                match self.phase {
                    TaskPhase::Alive | TaskPhase::Mute if was_stopping || self.is_over => {
                        self.enter(TaskPhase::Done, now);
                        let text = if was_stopping { "stopped" } else { "is done" };
                        Some(change("end", text))
                    }
                    TaskPhase::Alive | TaskPhase::Mute => {
                        self.enter(TaskPhase::Lost, now);
                        Some(change("loss", "does not answer any more"))
                    }
                    TaskPhase::Waiting | TaskPhase::Lost | TaskPhase::Done => None,
                }
            }
        }
    }

    /// Takes word whether the task has nothing left to do: it finished, or will as soon as it is
    /// silent. One that never was there is not known to have been.
    pub(crate) fn over(&mut self, is_over: bool, now: f64) {
        self.is_over = is_over;
        if is_over && self.phase == TaskPhase::Lost {
            self.enter(TaskPhase::Done, now);
        }
    }

    /// Takes the launcher's word that the process has ended as it should.
    pub(crate) fn ended(&mut self, now: f64) {
        self.over(true, now);
        if self.phase == TaskPhase::Waiting {
            self.enter(TaskPhase::Done, now);
        }
    }

    fn spoke(&mut self, report: TaskReport, now: f64) -> Option<Change> {
        let same_life = self
            .report
            .as_ref()
            .filter(|before| before.incarnation == report.incarnation);
        self.rates = match same_life {
            Some(before) => rates(before, &report, now - self.reported),
            None => Rates::default(),
        };
        let is_new_life = self.report.is_some() && same_life.is_none();
        self.restarts += u64::from(is_new_life);
        let was = self.phase;
        self.reason.clear();
        let lost_for = now - self.since;
        self.enter(TaskPhase::Alive, now);
        self.report = Some(report);
        self.reported = now;
        match was {
            TaskPhase::Waiting | TaskPhase::Mute => Some(change("start", "is there")),
            TaskPhase::Lost | TaskPhase::Done if is_new_life => Some(change(
                "restart",
                &format!("is back after {lost_for:.1} s, with a new life"),
            )),
            TaskPhase::Lost | TaskPhase::Done => Some(change(
                "restart",
                &format!("answers again after {lost_for:.1} s"),
            )),
            TaskPhase::Alive if is_new_life => {
                self.since = now;
                Some(change("restart", "was restarted"))
            }
            TaskPhase::Alive => None,
        }
    }

    fn enter(&mut self, phase: TaskPhase, now: f64) {
        if self.phase != phase {
            self.phase = phase;
            self.since = now;
        }
    }
}

fn change(kind: &'static str, text: &str) -> Change {
    let text = text.to_owned();
    Change { kind, text }
}

fn rates(before: &TaskReport, now: &TaskReport, seconds: f64) -> Rates {
    // The clock of a machine may be set back.
    if seconds.is_nan() || seconds <= 0.0 {
        return Rates::default();
    }
    let per_second = |a: u64, b: u64| b.saturating_sub(a) as f64 / seconds;
    let ended = |counts: &Option<StepCounts>| counts.as_ref().map_or(0, |c| c.ended);
    let updates = |r: &TaskReport| r.variable_totals.as_ref().map_or(0, |t| t.updates);
    let received = |r: &TaskReport| r.peers.iter().map(|p| p.bytes_received).sum();
    let sent = |r: &TaskReport| r.peers.iter().map(|p| p.bytes_sent).sum();
    Rates {
        session_runs: per_second(ended(&before.steps), ended(&now.steps)),
        graph_runs: per_second(ended(&before.runs), ended(&now.runs)),
        cpu: per_second(before.cpu_millis, now.cpu_millis) / 1e3,
        updates: per_second(updates(before), updates(now)),
        received: per_second(received(before), received(now)),
        sent: per_second(sent(before), sent(now)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(incarnation: u64, steps: u64) -> Result<TaskReport, Refusal> {
        Ok(TaskReport {
            incarnation,
            steps: Some(StepCounts {
                started: steps,
                ended: steps,
                failed: 0,
            }),
            ..Default::default()
        })
    }

    fn silent() -> Result<TaskReport, Refusal> {
        Err(Refusal::Silent("nobody".into()))
    }

    fn task() -> WatchedTask {
        WatchedTask::new("/job:ps/replica:0/task:0".into(), "h:1".into(), 0.0)
    }

    #[test]
    fn a_task_comes_goes_and_comes_back() {
        let mut task = task();
        let mut kinds = Vec::new();
        for (time, answer) in [
            (1.0, silent()),
            (2.0, report(1, 0)),
            (4.0, report(1, 10)),
            (5.0, silent()),
            (6.0, silent()),
            (8.0, report(2, 3)),
        ] {
            if let Some(change) = task.heard(answer, time) {
                kinds.push((time, change.kind));
            }
            if time == 4.0 {
                assert_eq!(task.rates.session_runs, 5.0);
            }
            if time == 6.0 {
                assert_eq!((task.phase, task.since), (TaskPhase::Lost, 5.0));
                assert_eq!(task.rates, Rates::default());
            }
        }
        assert_eq!(kinds, [(2.0, "start"), (5.0, "loss"), (8.0, "restart")]);
        assert_eq!((task.phase, task.restarts), (TaskPhase::Alive, 1));
        // Counts of another life are not compared.
        assert_eq!(task.rates.session_runs, 0.0);
    }

    #[test]
    fn one_that_said_that_it_stops_is_not_lost() {
        let mut task = task();
        let mut last = report(1, 0).unwrap();
        last.is_draining = true;
        task.heard(Ok(last), 1.0);
        assert_eq!(task.heard(silent(), 2.0).unwrap().kind, "end");
        assert_eq!(task.phase, TaskPhase::Done);
    }

    #[test]
    fn one_that_has_finished_is_done_and_was_never_lost() {
        let mut told_before = task();
        told_before.heard(report(1, 9), 1.0);
        told_before.over(true, 2.0);
        assert_eq!(told_before.heard(silent(), 2.0).unwrap().kind, "end");
        assert_eq!(told_before.phase, TaskPhase::Done);
        // Those who tell may be late.
        let mut told_after = task();
        told_after.heard(report(1, 9), 1.0);
        told_after.heard(silent(), 2.0);
        told_after.over(true, 3.0);
        assert_eq!(told_after.phase, TaskPhase::Done);
        // One that is gone in the middle of its work is lost.
        let mut lost = task();
        lost.heard(report(1, 9), 1.0);
        lost.over(false, 2.0);
        assert_eq!(lost.heard(silent(), 2.0).unwrap().kind, "loss");
        // One that was not there yet is waited for, unless its launcher saw it end.
        let mut early = task();
        early.over(true, 1.0);
        assert_eq!(early.phase, TaskPhase::Waiting);
        early.ended(2.0);
        assert_eq!(early.phase, TaskPhase::Done);
    }

    #[test]
    fn a_restart_between_two_questions_is_seen() {
        let mut task = task();
        task.heard(report(1, 9), 1.0);
        assert_eq!(task.heard(report(2, 1), 2.0).unwrap().kind, "restart");
    }

    #[test]
    fn others_are_there_without_saying_more() {
        let mut task = task();
        let unwilling = || Err(Refusal::Unwilling("not Downpour's".into()));
        assert!(task.heard(unwilling(), 1.0).is_some());
        assert!(task.heard(unwilling(), 2.0).is_none());
        assert_eq!(task.phase, TaskPhase::Mute);
    }

    #[test]
    fn a_clock_that_is_set_back_gives_no_rates() {
        let mut task = task();
        task.heard(report(1, 0), 5.0);
        task.heard(report(1, 9), 4.0);
        assert_eq!(task.rates, Rates::default());
    }
}
