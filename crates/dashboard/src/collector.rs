//! Asks the tasks, reads the files, and keeps what they say. One loop, once a second; questions
//! go out together and each has its time limit, so a dead task delays nobody.

use crate::alerts::{self, Alert, Seen};
use crate::files::Files;
use crate::logs::Tail;
use crate::run_file::{MEMORY, RunFile, read_json};
use crate::samples::{Row, Samples};
use crate::scalars::Scalars;
use crate::state::{self, EventShown, JobShown, StateShown, TaskShown, short};
use crate::steps::{GlobalStep, StepShown};
use crate::task::{Change, TaskPhase, WatchedTask};
use crate::timeline::{self, MAX_RECORDED, Timeline};
use crate::{JobView, LogSink, Subject};
use downpour_formats::LocalStorage;
use downpour_net::inspect_task;
use downpour_wire::control::TaskReport;
use parking_lot::Mutex;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::Semaphore;

/// How often tasks are asked.
const EVERY: Duration = Duration::from_secs(1);
/// How long one may take to answer: a busy machine must not look dead.
const PATIENCE: Duration = Duration::from_secs(3);
/// Questions under way at once.
const AT_ONCE: usize = 64;
/// Tasks that are watched.
const MAX_TASKS: usize = 1000;
/// A page that has not asked for so long is gone without a word: it says so when it is closed or hidden. One on a busy
/// machine may be slow to ask.
const GONE: Duration = Duration::from_secs(12);
/// Pages that are waited for at the end.
const MAX_PAGES: usize = 100;
const MAX_PAGE_NAME: usize = 40;
/// Events that are kept.
const MAX_EVENTS: usize = 300;

type Totals = BTreeMap<(String, String), (u64, u64)>;

/// Knows what is to be shown.
pub(crate) struct Collector {
    subject: Subject,
    known: Mutex<Known>,
    scalars: Mutex<Scalars>,
    timeline: Mutex<Timeline>,
}

struct Known {
    began: f64,
    tasks: Vec<WatchedTask>,
    events: VecDeque<EventShown>,
    samples: Samples,
    steps: GlobalStep,
    /// Whether a task was seen to hold the global step.
    is_step_held: bool,
    /// What each link has carried, now and at the question before, and the time between.
    links: (Totals, Totals, f64),
    asked: Option<Instant>,
    checkpoints: Vec<crate::files::Checkpoint>,
    job: Option<JobView>,
    /// How many of the launcher's events were taken over.
    job_events: u64,
    alerts: Vec<Alert>,
    /// The pages that are open, by the names that they gave themselves: when each last asked, and whether it has said
    /// that it shows the end.
    pages: BTreeMap<String, (Instant, bool)>,
    /// The last state that a dashboard saw of a past run.
    past: Option<serde_json::Value>,
}

/// What only the loop touches.
struct Reading {
    files: Files,
    tails: Vec<Tail>,
    sink: LogSink,
}

fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0.0, |d| d.as_secs_f64())
}

impl Collector {
    pub(crate) fn new(subject: Subject) -> Collector {
        let tasks = subject.tasks.iter().take(MAX_TASKS);
        let began = now();
        let known = Known {
            began,
            tasks: tasks
                .map(|(name, at)| WatchedTask::new(name.clone(), at.clone(), began))
                .collect(),
            events: VecDeque::new(),
            samples: Samples::default(),
            steps: GlobalStep::default(),
            is_step_held: false,
            links: Default::default(),
            asked: None,
            checkpoints: Vec::new(),
            job: None,
            job_events: 0,
            alerts: Vec::new(),
            pages: BTreeMap::new(),
            past: None,
        };
        Collector {
            subject,
            known: Mutex::new(known),
            scalars: Mutex::default(),
            timeline: Mutex::default(),
        }
    }

    /// Watches for ever.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut reading = self.reading();
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let this = self.clone();
            let files = tokio::task::spawn_blocking(move || {
                this.read(&mut reading);
                reading
            });
            self.ask().await;
            match files.await {
                Ok(back) => reading = back,
                // Only a panic gets here; the tasks can still be watched without files.
                Err(_) => loop {
                    ticks.tick().await;
                    self.ask().await;
                },
            }
        }
    }

    fn reading(&self) -> Reading {
        let dirs = self.subject.dirs.iter();
        let tails =
            self.subject.logs.iter().map(|(source, path)| {
                Tail::new(source.clone(), path.to_string_lossy().into_owned())
            });
        Reading {
            files: Files::new(dirs.map(|d| d.to_string_lossy().into_owned()).collect()),
            tails: tails.collect(),
            sink: self.subject.sink.clone(),
        }
    }

    /// Reads what is new in files.
    fn read(&self, reading: &mut Reading) {
        let storage = LocalStorage::new();
        for tail in &mut reading.tails {
            tail.read(&storage, &reading.sink);
        }
        // Files may be slow; nothing is locked while they are read.
        let take = |run: &str, event: &_| self.scalars.lock().add(run, event);
        let checkpoints = reading.files.look(take);
        let mut known = self.known.lock();
        known.checkpoints = reading.files.checkpoints.clone();
        for checkpoint in checkpoints.into_iter().rev() {
            let time = checkpoint.time.unwrap_or_else(now);
            let text = format!("checkpoint {} saved", checkpoint.name);
            known.happened(time, "checkpoint", None, text, checkpoint.step);
        }
    }

    /// Asks every task, and the launcher.
    async fn ask(&self) {
        let addresses: Vec<String> = {
            let known = self.known.lock();
            known.tasks.iter().map(|t| t.address.clone()).collect()
        };
        let room = Arc::new(Semaphore::new(AT_ONCE));
        let questions: Vec<_> = addresses
            .into_iter()
            .map(|address| {
                let room = room.clone();
                tokio::spawn(async move {
                    let _permit = room.acquire().await;
                    let answer = inspect_task(&address, PATIENCE).await;
                    // Others may take longer to answer.
                    (answer, now())
                })
            })
            .collect();
        let mut answers = Vec::with_capacity(questions.len());
        for question in questions {
            answers.push(question.await);
        }
        let view = self.subject.job.as_ref().map(|job| job());
        let time = now();
        let mut known = self.known.lock();
        known.take_job(view);
        known.take_departures(
            answers
                .iter()
                .flatten()
                .filter_map(|(a, _)| a.as_ref().ok()),
            time,
        );
        let mut step: Option<(i64, f64)> = None;
        for (i, answer) in answers.into_iter().enumerate() {
            if let (Ok((answer, at)), Some(task)) = (answer, known.tasks.get_mut(i)) {
                let held = answer.as_ref().ok().and_then(|r| r.global_step);
                if held > step.map(|(step, _)| step) {
                    step = held.map(|step| (step, at));
                }
                let change = task.heard(answer, at);
                let name = task.name.clone();
                known.task_changed(&name, change, at);
            }
        }
        // A training may count its steps elsewhere, and tell of them only in its event files.
        let told = self.scalars.lock().step();
        match (step, told) {
            (Some((step, at)), _) if step > 0 => {
                known.is_step_held = true;
                known.steps.add(at, step);
            }
            // An event file may tell of other counts; whose step a task holds is not counted by those.
            (_, Some(step)) if !known.is_step_held => known.steps.add(time, step),
            (Some((step, at)), None) => known.steps.add(at, step),
            (_, Some(_)) | (None, None) => {}
        }
        known.sample(time);
        let broken = self.scalars.lock().broken().join(", ");
        let raised = known.raise_alerts(broken, time);
        drop(known);
        for alert in raised {
            if let Some(tell) = &self.subject.on_alert {
                let said = json!({"job": self.subject.title, "kind": alert.kind, "text": alert.text, "since": alert.since});
                tell(&said.to_string());
            }
        }
    }

    /// A collector for a run on the disk.
    pub(crate) fn of_run(file: &RunFile) -> Collector {
        let mut subject = file.subject();
        if file.status() == "running" {
            let dir = file.dir.clone();
            let last = Mutex::new(file.view());
            subject.job = Some(Arc::new(move || {
                let mut last = last.lock();
                if let Some(file) = RunFile::read(&dir) {
                    *last = file.view();
                }
                last.clone()
            }));
            return Collector::new(subject);
        }
        let collector = Collector::new(subject);
        {
            let mut known = collector.known.lock();
            known.began = file.started().unwrap_or(known.began);
            known.take_job(Some(file.view()));
            known.close();
            let memory = read_json(&file.dir.join(MEMORY)).unwrap_or_default();
            if memory["state"].is_object() {
                known.past = Some(memory["state"].clone());
            }
            *collector.timeline.lock() = Timeline::of_kept(&memory["timeline"]);
            let rows = memory["rows"].as_array().into_iter().flatten();
            for row in rows {
                // A row of another version is left out.
                if let Ok(row) = serde_json::from_value(row.clone()) {
                    known.samples.add(row);
                }
            }
        }
        collector
    }

    /// Reads the files of a past run to their ends.
    pub(crate) fn read_past(&self) {
        /// Looks at files; each takes a bounded number of events.
        const LOOKS: usize = 40;
        let mut reading = self.reading();
        for _ in 0..LOOKS {
            let before = self.scalars.lock().version();
            self.read(&mut reading);
            if self.scalars.lock().version() == before {
                break;
            }
        }
        let step = self.scalars.lock().step();
        let mut known = self.known.lock();
        let saved = known.checkpoints.iter().filter_map(|c| c.step).max();
        if let Some(step) = step.max(saved) {
            let time = known.began;
            known.steps.add(time, step);
        }
    }

    /// The step that was last heard of.
    pub(crate) fn step(&self) -> Option<i64> {
        let known = self.known.lock();
        let past = known.past.as_ref();
        let past = past.and_then(|p| p["global_step"]["value"].as_i64());
        past.max(known.last_step(now()).value)
    }

    /// The last value of every curve.
    pub(crate) fn results(&self) -> BTreeMap<String, f32> {
        self.scalars.lock().results()
    }

    /// What is kept of a job that has ended: the last state and the samples.
    pub(crate) fn memory(&self) -> String {
        let state = self.state();
        let timeline = self.timeline.lock().kept();
        let known = self.known.lock();
        json!({"format": 1, "state": state, "rows": known.samples.since(0), "timeline": timeline})
            .to_string()
    }

    /// Has the tasks that have sessions record their next steps. Inside a tokio runtime; does not wait.
    pub(crate) fn record(self: &Arc<Self>) {
        if !self.timeline.lock().begin(now()) {
            return;
        }
        let tasks = {
            let known = self.known.lock();
            let mut able: Vec<&WatchedTask> = known.tasks.iter().collect();
            able.retain(|t| {
                let report = t.report.as_ref().filter(|_| t.phase == TaskPhase::Alive);
                report.is_some_and(|r| !r.sessions.is_empty())
            });
            let named = able.into_iter().take(MAX_RECORDED);
            named
                .map(|t| (short(&t.name), t.address.clone()))
                .collect::<Vec<_>>()
        };
        let this = self.clone();
        tokio::spawn(async move {
            let answers = match tasks.is_empty() {
                true => vec![("nobody".to_owned(), Err("no task has a session".to_owned()))],
                false => timeline::record(tasks).await,
            };
            this.timeline.lock().end(answers);
        });
    }

    /// `/api/timeline`: the last recording.
    pub(crate) fn timeline(&self) -> String {
        self.timeline.lock().trace().to_owned()
    }

    /// Whether every page that is open has said that it shows the end. That it was answered is not enough: the answer
    /// may still be under way when this process exits.
    pub(crate) fn is_settled(&self) -> bool {
        let known = self.known.lock();
        let mut pages = known.pages.values();
        pages.all(|(asked, shows_end)| *shows_end || asked.elapsed() > GONE)
    }

    /// `/api/state`, for a page that may have a name, and may show the end already.
    pub(crate) fn state_for_page(&self, page: Option<&str>, shows_end: bool) -> String {
        if let Some(page) = page.filter(|name| name.len() <= MAX_PAGE_NAME) {
            let mut known = self.known.lock();
            known.pages.retain(|_, (asked, _)| asked.elapsed() <= GONE);
            if known.pages.len() < MAX_PAGES || known.pages.contains_key(page) {
                let now = (Instant::now(), shows_end);
                known.pages.insert(page.to_owned(), now);
            }
        }
        let state = self.state();
        let past = self.known.lock().past.clone();
        let Ok(fresh) = serde_json::to_value(&state) else {
            return String::new();
        };
        let Some(serde_json::Value::Object(mut past)) = past else {
            return fresh.to_string();
        };
        // What the record and the files say goes before what a dashboard saw last.
        let own = [
            "now",
            "job",
            "checkpoints",
            "results",
            "recording",
            "alerts",
            "next_sample",
            "scalars_version",
            "next_log",
            "began",
        ];
        for key in own {
            past.insert(key.to_owned(), fresh[key].clone());
        }
        if let Some(step) = past.get_mut("global_step").filter(|s| s.is_object()) {
            step["value"] = json!(self.step());
        }
        serde_json::Value::Object(past).to_string()
    }

    /// `/api/state`.
    pub(crate) fn state(&self) -> StateShown {
        let known = self.known.lock();
        // Locked once and let go: a guard in the struct below would live to its end.
        let (results, scalars_version) = {
            let scalars = self.scalars.lock();
            (scalars.results(), scalars.version())
        };
        let recording = self.timeline.lock().shown.clone();
        let tasks = known.tasks.iter().map(|task| {
            let process = known.process(&task.name);
            let restarts = process.map_or(0, |p| u64::from(p.restarts));
            let said = process.map(|p| match &p.exit {
                Some(exit) if p.phase != "running" => format!("{} ({exit})", p.phase),
                _ => p.phase.clone(),
            });
            TaskShown::new(task, said, restarts)
        });
        StateShown {
            version: env!("CARGO_PKG_VERSION"),
            title: self.subject.title.clone(),
            now: now(),
            began: known.began,
            job: known.job.as_ref().map(|job| JobShown {
                name: job.name.clone(),
                phase: job.phase.clone(),
                ended: job.ended.clone(),
            }),
            tasks: tasks.collect(),
            global_step: known.last_step(now()),
            links: state::links(&known.links.0, &known.links.1, known.links.2),
            placement: state::placement(&known.tasks),
            variables: state::variables(&known.tasks),
            staleness: state::staleness(&known.tasks),
            writers: state::writers(&known.tasks),
            checkpoints: known.checkpoints.clone(),
            events: known.events.iter().cloned().collect(),
            alerts: known.alerts.clone(),
            results,
            recording,
            next_sample: known.samples.next(),
            scalars_version,
            next_log: self.subject.sink.next(),
        }
    }

    /// `/api/samples`: rows from an id on.
    pub(crate) fn samples(&self, since: u64) -> String {
        let known = self.known.lock();
        let tasks: Vec<String> = known.tasks.iter().map(|t| short(&t.name)).collect();
        let rows = known.samples.since(since);
        json!({"tasks": tasks, "rows": rows, "next": known.samples.next()}).to_string()
    }

    /// `/api/scalars`: all curves, or nothing if there is nothing new.
    pub(crate) fn scalars(&self, seen: Option<u64>) -> String {
        let scalars = self.scalars.lock();
        let version = scalars.version();
        match seen == Some(version) {
            true => json!({"version": version}).to_string(),
            false => json!({"version": version, "curves": scalars.shown()}).to_string(),
        }
    }

    /// `/api/logs`: lines from an id on.
    pub(crate) fn logs(&self, since: u64) -> String {
        let sink = &self.subject.sink;
        json!({"lines": sink.since(since), "next": sink.next()}).to_string()
    }

    /// `/metrics`.
    pub(crate) fn metrics(&self) -> String {
        let known = self.known.lock();
        let saved = known.checkpoints.iter().filter_map(|c| c.time);
        let job = crate::metrics::JobFigures {
            now: now(),
            steps: known.steps.shown(now()),
            saved: saved.max_by(f64::total_cmp),
        };
        crate::metrics::text(&known.tasks, &job)
    }
}

impl Known {
    /// The global step. What a job saved at its end is later than what a task said last.
    fn last_step(&self, time: f64) -> StepShown {
        let mut shown = self.steps.shown(time);
        if self.job.as_ref().is_some_and(|job| job.ended.is_some()) {
            let saved = self.checkpoints.iter().filter_map(|c| c.step).max();
            shown.value = shown.value.max(saved);
        }
        shown
    }

    fn process(&self, task: &str) -> Option<&crate::JobTask> {
        let job = self.job.as_ref()?;
        job.tasks.iter().find(|t| t.name == task)
    }

    /// Takes over what the launcher says.
    fn take_job(&mut self, view: Option<JobView>) {
        let Some(view) = view else {
            return;
        };
        let seen = self.job_events.saturating_sub(view.forgotten) as usize;
        for event in view.events.iter().skip(seen) {
            let task = event.task.as_deref();
            self.happened(event.time, &event.kind, task, event.text.clone(), None);
        }
        self.job_events = view.forgotten + view.events.len() as u64;
        let over: Vec<String> = view
            .tasks
            .iter()
            .filter(|t| t.is_over)
            .map(|t| t.name.clone())
            .collect();
        self.job = Some(view);
        let time = now();
        for task in self.tasks.iter_mut().filter(|t| over.contains(&t.name)) {
            task.ended(time);
        }
    }

    /// Nothing more will be heard: what did not end well is lost.
    fn close(&mut self) {
        let view = self.job.clone().unwrap_or_default();
        for task in &mut self.tasks {
            let process = view.tasks.iter().find(|p| p.name == task.name);
            if let Some(process) = process.filter(|p| !p.is_over) {
                task.phase = TaskPhase::Lost;
                task.reason = process.exit.clone().unwrap_or_default();
            }
        }
    }

    fn raise_alerts(&mut self, broken: String, time: f64) -> Vec<Alert> {
        let has_ended = self.job.as_ref().is_some_and(|job| job.ended.is_some());
        let steps = self.steps.shown(time);
        let lost = self.tasks.iter().filter(|t| t.phase == TaskPhase::Lost);
        let lost: Vec<String> = lost.map(|t| short(&t.name)).collect();
        let stale = state::staleness(&self.tasks);
        let workers = self.tasks.iter().filter(|t| !t.name.contains("/job:ps/"));
        let seen = Seen {
            time,
            has_ended,
            broken,
            lost: lost.join(", "),
            moved: steps.moved,
            mean_staleness: stale.mean(),
            workers: workers.count(),
        };
        alerts::update(&mut self.alerts, &seen)
    }

    /// Takes over which tasks have left their sessions in order, as those say who had them.
    fn take_departures<'a>(&mut self, reports: impl Iterator<Item = &'a TaskReport>, time: f64) {
        let (mut left, mut open) = (BTreeSet::new(), BTreeSet::new());
        for report in reports {
            let gone = report.members.iter().filter(|m| m.has_left);
            left.extend(gone.map(|m| m.task.as_str()));
            open.extend(report.guests.iter().map(|guest| guest.master.as_str()));
        }
        let job = self.job.as_ref();
        for task in &mut self.tasks {
            // A launcher knows better.
            if !job.is_some_and(|job| job.tasks.iter().any(|t| t.name == task.name)) {
                let name = task.name.as_str();
                task.over(left.contains(name) && !open.contains(name), time);
            }
        }
    }

    /// Notes what changed with a task, unless its launcher has told it already.
    fn task_changed(&mut self, task: &str, change: Option<Change>, time: f64) {
        let Some(change) = change else {
            return;
        };
        let process = self.process(task).map(|p| p.phase.as_str());
        let is_known = match change.kind {
            "restart" => false,
            // A process that runs and does not answer is news to the launcher too.
            "loss" => process.is_some_and(|phase| phase != "running"),
            _ => process.is_some(),
        };
        if !is_known {
            self.happened(time, change.kind, Some(task), change.text, None);
        }
    }

    fn happened(
        &mut self,
        time: f64,
        kind: &str,
        task: Option<&str>,
        text: String,
        step: Option<i64>,
    ) {
        let event = EventShown {
            step: step.or_else(|| self.steps.at(time)),
            time,
            kind: kind.to_owned(),
            task: task.map(short),
            text,
        };
        // Nearly always the newest.
        let place = self.events.partition_point(|e| e.time <= time);
        self.events.insert(place, event);
        if self.events.len() > MAX_EVENTS {
            self.events.pop_front();
        }
    }

    fn sample(&mut self, time: f64) {
        let alive = |value: fn(&WatchedTask) -> f64| {
            let values = self.tasks.iter().map(|t| {
                let is_alive = t.phase == TaskPhase::Alive;
                is_alive.then(|| value(t) as f32)
            });
            values.collect()
        };
        let memory = self.tasks.iter().map(|t| {
            let report = t.report.as_ref().filter(|_| t.phase == TaskPhase::Alive);
            report.map(|r| r.resident_bytes)
        });
        let step = self.steps.shown(time);
        let row = Row {
            id: 0,
            time,
            step: step.value,
            steps_per_second: step.per_second,
            runs: alive(|t| t.rates.session_runs),
            cpu: alive(|t| t.rates.cpu),
            updates: alive(|t| t.rates.updates),
            received: alive(|t| t.rates.received),
            memory: memory.collect(),
        };
        self.samples.add(row);
        let asked = Instant::now();
        let seconds = self.asked.map_or(0.0, |at| (asked - at).as_secs_f64());
        self.asked = Some(asked);
        let before = std::mem::replace(&mut self.links.0, state::totals(&self.tasks));
        (self.links.1, self.links.2) = (before, seconds);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_settled_when_every_open_page_says_that_it_shows_it() {
        let collector = Collector::new(Subject::default());
        assert!(collector.is_settled(), "nobody looks");
        // Whoever has no name is a program, not a page.
        collector.state_for_page(None, false);
        assert!(collector.is_settled());
        collector.state_for_page(Some("a"), false);
        collector.state_for_page(Some("b"), false);
        collector.state_for_page(Some("a"), true);
        assert!(
            !collector.is_settled(),
            "b was answered, which is not enough"
        );
        collector.state_for_page(Some("b"), true);
        assert!(collector.is_settled());
        for i in 0..2 * MAX_PAGES {
            collector.state_for_page(Some(&i.to_string()), true);
        }
        assert_eq!(collector.known.lock().pages.len(), MAX_PAGES);
    }
}
