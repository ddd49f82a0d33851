//! How the demo's training goes: workers say it in lines of their output, the demo hears them. A
//! line for the demo begins with a mark and is JSON; the launcher keeps those out of the logs, which
//! tell the same every few seconds in words.

use super::recovery::{Recovery, Told};
use super::sketch::thousands;
use super::slope::Slope;
use downpour::program::Report;
use downpour::train::global_step;
use downpour::train::hooks::{Context, Hook};
use downpour::{Graph, Output, Result, Run, Session};
use downpour_launch::{JobPhase, JobState, TaskName};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::io::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How lines for the demo begin.
pub(crate) const MARK: &str = "@";
const PROGRESS: &str = "@progress ";
const PORTIONS: &str = "@portions ";
const SESSION: &str = "@session ";
const REPORT: &str = "@report ";
/// How often a worker says so to the readers of its log.
const LOG_EVERY: Duration = Duration::from_secs(5);
/// How often a worker says how far it is.
pub(crate) const EVERY: Duration = Duration::from_millis(200);
/// Most losses of tasks that are told of.
const MAX_RECOVERIES: usize = 100;
/// Most losses that are kept, for the curve.
const MAX_LOSSES: usize = 4096;

/// How far a worker is.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Said {
    /// The count that all share.
    pub(crate) step: i64,
    /// Steps of this worker since it started.
    pub(crate) own: i64,
    /// Of the last batch.
    pub(crate) loss: f64,
    /// Of the last batch.
    pub(crate) accuracy: f64,
    /// Seconds since this worker's first step.
    pub(crate) seconds: f64,
    /// Whether the batch was all the data.
    #[serde(default)]
    pub(crate) whole: bool,
}

/// A session was opened, on a model at this step.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Opened {
    step: i64,
}

/// How many portions of the batch a replica has computed.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Computed {
    pub(crate) portions: u64,
    /// Seconds since its first.
    pub(crate) seconds: f64,
}

/// Says how far this worker is, every so often.
pub(crate) struct Reporter {
    outputs: [Output; 2],
    step: Option<Output>,
    positions: Option<[usize; 3]>,
    own: i64,
    begin: Instant,
    next: Instant,
    log: Log,
}

/// Tells readers of a log how the training goes, in words.
pub(crate) struct Log {
    unit: &'static str,
    next: Instant,
}

impl Log {
    pub(crate) fn new(unit: &'static str) -> Log {
        let next = Instant::now();
        Log { unit, next }
    }

    pub(crate) fn tell(&mut self, said: &Said) {
        let now = Instant::now();
        if now < self.next {
            return;
        }
        self.next = now + LOG_EVERY;
        let (unit, step) = (self.unit, thousands(said.step as f64));
        let (loss, accuracy) = (said.loss, said.accuracy * 100.0);
        let line = format!("{unit} {step}  loss {loss:.4}  accuracy {accuracy:.1} %");
        let _ = writeln!(std::io::stdout().lock(), "{line}");
    }
}

impl Reporter {
    pub(crate) fn new(loss: &Output, accuracy: &Output) -> Reporter {
        Reporter {
            outputs: [loss.clone(), accuracy.clone()],
            step: None,
            positions: None,
            own: 0,
            begin: Instant::now(),
            next: Instant::now(),
            log: Log::new("step"),
        }
    }
}

impl Hook for Reporter {
    fn begin(&mut self, graph: &Graph) -> Result<()> {
        self.step = Some(global_step(graph).value().clone());
        Ok(())
    }

    fn after_create(&mut self, session: &Arc<Session>) -> Result<()> {
        if let Some(step) = &self.step {
            let step = session.fetch(step)?.scalar_value::<i64>()?;
            say(SESSION, &Opened { step });
        }
        Ok(())
    }

    fn before_run(&mut self, run: &mut Run) {
        let now = Instant::now();
        if self.own == 0 {
            self.begin = now;
        }
        self.positions = None;
        if let Some(step) = self.step.as_ref().filter(|_| now >= self.next) {
            let [loss, accuracy] = &self.outputs;
            self.positions = Some([run.fetch(step), run.fetch(loss), run.fetch(accuracy)]);
            self.next = now + EVERY;
        }
    }

    fn after_run(&mut self, context: &mut Context<'_>) -> Result<()> {
        self.own += 1;
        if let Some([step, loss, accuracy]) = self.positions {
            let number = |at| {
                Ok::<_, downpour::Status>(f64::from(context.value(at)?.scalar_value::<f32>()?))
            };
            let said = Said {
                step: context.value(step)?.scalar_value::<i64>()?,
                own: self.own,
                loss: number(loss)?,
                accuracy: number(accuracy)?,
                seconds: self.begin.elapsed().as_secs_f64(),
                whole: false,
            };
            say_progress(&said);
            self.log.tell(&said);
        }
        Ok(())
    }
}

/// Says how far this worker is.
pub(crate) fn say_progress(said: &Said) {
    say(PROGRESS, said);
}

/// Says how many portions this replica has computed.
pub(crate) fn say_computed(computed: &Computed) {
    say(PORTIONS, computed);
}

/// Says what the training came to.
pub(crate) fn say_report(report: &Report) {
    if !report.is_empty() {
        say(REPORT, report);
    }
}

fn say(mark: &str, what: &impl Serialize) {
    if let Ok(text) = serde_json::to_string(what) {
        let _ = writeln!(std::io::stdout().lock(), "{mark}{text}");
    }
}

/// What was heard.
#[derive(Default)]
pub(crate) struct Progress {
    heard: Mutex<Heard>,
}

/// All that a view shows of the training.
#[derive(Clone, Default)]
pub(crate) struct Heard {
    /// Each worker's last word, and its own session runs a second.
    pub(crate) workers: BTreeMap<TaskName, (Said, f64)>,
    /// Each replica's last word, and portions a second.
    pub(crate) replicas: BTreeMap<TaskName, (Computed, f64)>,
    /// The furthest, of those since the training was last set back.
    pub(crate) last: Option<Said>,
    /// How fast the step that all share grows.
    slope: Slope,
    recoveries: Vec<Recovery>,
    /// Losses over the steps.
    pub(crate) losses: VecDeque<(i64, f64)>,
    /// Averages over the last batches: one batch alone says little.
    pub(crate) loss: f64,
    pub(crate) accuracy: f64,
    report: Report,
}

impl Progress {
    /// Hears a line of a task.
    pub(crate) fn hear(&self, task: &TaskName, line: &str) {
        if let Some(text) = line.strip_prefix(PROGRESS) {
            if let Ok(said) = serde_json::from_str::<Said>(text) {
                self.heard.lock().said(task, said, Instant::now());
            }
        } else if let Some(text) = line.strip_prefix(PORTIONS) {
            if let Ok(computed) = serde_json::from_str::<Computed>(text) {
                self.heard.lock().computed(task, computed);
            }
        } else if let Some(text) = line.strip_prefix(SESSION) {
            if let Ok(opened) = serde_json::from_str::<Opened>(text) {
                self.heard.lock().opened(task, opened.step);
            }
        } else if let Some(text) = line.strip_prefix(REPORT)
            && let Ok(report) = serde_json::from_str::<Report>(text)
        {
            self.heard.lock().report.extend(report);
        }
    }

    /// Hears that a task was lost.
    pub(crate) fn lost(&self, task: &TaskName) {
        let mut heard = self.heard.lock();
        let step = heard.last.map_or(0, |last| last.step);
        let lost = Recovery::new(task.clone(), step, Instant::now());
        if heard.recoveries.len() < MAX_RECOVERIES {
            heard.recoveries.push(lost);
        }
    }

    /// What losses cost, for machines.
    pub(crate) fn recoveries(&self) -> Vec<Told> {
        let heard = self.heard.lock();
        heard.recoveries.iter().map(Recovery::told).collect()
    }

    /// All that was heard.
    pub(crate) fn now(&self) -> Heard {
        self.heard.lock().clone()
    }

    /// What the training came to.
    pub(crate) fn report(&self) -> impl Iterator<Item = (String, f64)> {
        self.heard.lock().report.clone().into_iter()
    }

    /// A number of it.
    pub(crate) fn reported(&self, name: &str) -> Option<f64> {
        self.heard.lock().report.get(name).copied()
    }
}

impl Heard {
    fn said(&mut self, task: &TaskName, said: Said, now: Instant) {
        // A worker that is behind itself goes on from a checkpoint; one that is behind another is
        // only heard late.
        let before = self.workers.get(task).map(|(before, _)| before.step);
        if before.is_some_and(|before| said.step < before) {
            self.slope.restart();
            self.last = None;
        }
        self.slope.add(now, said.step);
        for recovery in &mut self.recoveries {
            recovery.trains(task, said.step, now);
        }
        let speed = match self.workers.get(task) {
            // The worker may be another process by now.
            Some((before, _)) if said.seconds > before.seconds && said.own > before.own => {
                (said.own - before.own) as f64 / (said.seconds - before.seconds)
            }
            _ => said.own as f64 / said.seconds.max(0.2),
        };
        self.workers.insert(task.clone(), (said, speed));
        let weight = match self.losses.len() {
            _ if said.whole => 1.0,
            n @ 0..10 => 1.0 / (n + 1) as f64,
            _ => 0.1,
        };
        self.loss += (said.loss - self.loss) * weight;
        self.accuracy += (said.accuracy - self.accuracy) * weight;
        if self.last.is_none_or(|last| last.step <= said.step) {
            self.last = Some(said);
        }
        if self.losses.len() == MAX_LOSSES {
            self.losses.pop_front();
        }
        self.losses.push_back((said.step, said.loss));
    }

    fn opened(&mut self, task: &TaskName, step: i64) {
        for recovery in &mut self.recoveries {
            recovery.session(task, step);
        }
    }

    fn computed(&mut self, task: &TaskName, computed: Computed) {
        let speed = match self.replicas.get(task) {
            Some((before, _)) if computed.seconds > before.seconds => {
                let more = computed.portions.saturating_sub(before.portions);
                more as f64 / (computed.seconds - before.seconds)
            }
            _ => computed.portions as f64 / computed.seconds.max(0.2),
        };
        self.replicas.insert(task.clone(), (computed, speed));
    }

    /// How fast the step that all share grows: now, or on the whole when the job has ended.
    pub(crate) fn speed(&self, state: &JobState) -> f64 {
        match state.phase {
            JobPhase::Ended | JobPhase::Ending => self.slope.mean(),
            _ => self.slope.per_second(Instant::now()),
        }
    }

    /// What losses cost, for people.
    pub(crate) fn recoveries(&self, unit: &str) -> Vec<String> {
        self.recoveries.iter().map(|r| r.text(unit)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_workers_say_is_heard() {
        let progress = Progress::default();
        let worker = TaskName::new("worker", 0);
        for (own, seconds) in [(10, 1.0), (30, 2.0)] {
            let said = Said {
                step: 2 * own,
                own,
                loss: 0.5,
                accuracy: 0.9,
                seconds,
                whole: false,
            };
            let text = serde_json::to_string(&said).unwrap();
            progress.hear(&worker, &format!("{PROGRESS}{text}"));
        }
        progress.hear(&worker, "@progress {\"nonsense\": 1}");
        progress.hear(&worker, "something else");
        progress.hear(&worker, "@report {\"test_accuracy\":0.92,\"steps\":60.0}");
        let now = progress.now();
        assert_eq!((now.last.unwrap().step, now.workers[&worker].1), (60, 20.0));
        assert_eq!(progress.reported("test_accuracy"), Some(0.92));
    }

    #[test]
    fn what_coordinators_and_replicas_say_is_heard() {
        let progress = Progress::default();
        let replica = TaskName::new("worker", 2);
        for text in [
            "{\"portions\":4,\"seconds\":2.0}",
            "{\"portions\":16,\"seconds\":4.0}",
            "{\"portions\":-1}",
        ] {
            progress.hear(&replica, &format!("{PORTIONS}{text}"));
        }
        let coordinator = TaskName::new("chief", 0);
        for loss in [2.0, 1.0] {
            let text = format!(
                "{{\"step\":3,\"own\":3,\"loss\":{loss},\"accuracy\":0.5,\"seconds\":1.0,\"whole\":true}}"
            );
            progress.hear(&coordinator, &format!("{PROGRESS}{text}"));
        }
        let now = progress.now();
        assert_eq!(now.replicas[&replica].1, 6.0);
        // Of all the data there is nothing to average.
        assert_eq!((now.loss, now.last.unwrap().step), (1.0, 3));
    }
}
