//! The demo's view: on a terminal a few lines that are drawn over themselves ten times a second,
//! elsewhere one line a second. A thread of its own draws; a slow or closed terminal stops nobody.

use super::DemoPlan;
use super::progress::{Heard, Progress};
use super::sketch::{bar, curve, rate, thousands};
use crate::refusal::has_colour;
use crate::run::console::paint;
use downpour_launch::{HappeningKind, JobPhase, JobState, Monitor, TaskPhase, TaskRole, TaskState};
use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const REDRAW: Duration = Duration::from_millis(100);
const PLAIN_EVERY: Duration = Duration::from_secs(1);
/// Most happenings that are shown.
const MAX_HAPPENINGS: usize = 8;
/// Most tasks that are shown.
const MAX_TASKS: usize = 12;
/// A narrower or lower terminal gets plain lines.
const LEAST: (u16, u16) = (40, 16);

/// A view that draws itself until the job has ended.
pub(crate) struct View {
    thread: Option<JoinHandle<()>>,
}

/// What is drawn.
struct Drawn {
    title: String,
    steps: i64,
    time: Option<Duration>,
    unit: &'static str,
    monitor: Monitor,
    progress: Arc<Progress>,
    colours: bool,
}

impl View {
    /// Draws nothing.
    pub(crate) fn silent() -> View {
        View { thread: None }
    }

    /// Draws until the job has ended.
    pub(crate) fn start(
        title: &str,
        plan: &DemoPlan,
        monitor: Monitor,
        progress: Arc<Progress>,
    ) -> View {
        let is_terminal = std::io::stdout().is_terminal();
        let drawn = Drawn {
            title: title.to_owned(),
            steps: plan.steps,
            time: plan.time,
            unit: plan.unit,
            monitor,
            progress,
            colours: has_colour(is_terminal),
        };
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let is_live = is_terminal && !is_dumb && size().is_some();
        View {
            thread: Some(std::thread::spawn(move || match is_live {
                true => drawn.live(),
                false => drawn.plain(),
            })),
        }
    }

    /// Waits for the last picture.
    pub(crate) fn finish(self) {
        if let Some(thread) = self.thread {
            let _ = thread.join();
        }
    }
}

/// Columns and rows, if there are enough.
fn size() -> Option<(usize, usize)> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    let is_enough = size.ws_col >= LEAST.0 && size.ws_row >= LEAST.1;
    is_enough.then(|| (size.ws_col.into(), size.ws_row.into()))
}

impl Drawn {
    /// Draws over the last picture.
    fn live(&self) {
        let mut height = 0;
        loop {
            let state = self.monitor.snapshot();
            let (columns, rows) = size().unwrap_or((LEAST.0.into(), LEAST.1.into()));
            let lines = self.picture(&state, &self.progress.now(), columns);
            let shown = lines.len().min(rows - 1);
            let mut out = String::new();
            if height > 0 {
                let _ = write!(out, "\x1b[{height}A");
            }
            for line in &lines[..shown] {
                let _ = writeln!(out, "\r{line}\x1b[K");
            }
            out.push_str("\x1b[J");
            height = shown;
            let mut terminal = std::io::stdout().lock();
            let _ = terminal.write_all(out.as_bytes());
            let _ = terminal.flush();
            drop(terminal);
            if state.phase == JobPhase::Ended {
                return;
            }
            let drawn = Instant::now();
            // Sooner only for the end.
            while drawn.elapsed() < REDRAW
                && self.monitor.wait(state.version, REDRAW).phase != JobPhase::Ended
            {
                std::thread::sleep(REDRAW.saturating_sub(drawn.elapsed()));
            }
        }
    }

    /// A line for each happening, and one a second.
    fn plain(&self) {
        let (mut told, mut next) = (0, Instant::now() + PLAIN_EVERY);
        let mut last = None;
        let mut state = self.monitor.snapshot();
        let say = |line: &str| {
            let _ = writeln!(std::io::stdout().lock(), "{line}");
        };
        say(&self.title);
        loop {
            let first = usize::try_from(told - state.forgotten.min(told)).unwrap_or(usize::MAX);
            for happening in state.happenings.iter().skip(first) {
                say(&happening.to_string());
            }
            told = state.forgotten + state.happenings.len() as u64;
            let ended = state.phase == JobPhase::Ended;
            if Instant::now() >= next || ended {
                next = Instant::now() + PLAIN_EVERY;
                let heard = self.progress.now();
                // At the end only what was not said yet.
                let step = heard.last.map(|said| said.step);
                if !(ended && step == last)
                    && let Some(line) = self.progress_line(&state, &heard)
                {
                    say(&line);
                }
                last = step;
            }
            if ended {
                return;
            }
            let wait = next.saturating_duration_since(Instant::now());
            state = self.monitor.wait(state.version, wait);
        }
    }

    fn progress_line(&self, state: &JobState, heard: &Heard) -> Option<String> {
        let (last, unit) = (heard.last?, self.unit);
        Some(format!(
            "{unit} {}  {} {unit}s/s  loss {:.4}  accuracy {:.1} %",
            thousands(last.step as f64),
            rate(heard.speed(state)),
            heard.loss,
            heard.accuracy * 100.0
        ))
    }

    /// The whole picture, each line within the columns.
    fn picture(&self, state: &JobState, heard: &Heard, columns: usize) -> Vec<String> {
        let mut lines = vec![
            paint(self.colours, 1, &cut(&self.title, columns)),
            String::new(),
        ];
        lines.extend(self.training(state, heard, columns));
        lines.push(String::new());
        let speeds = |task: &TaskState| {
            // What a worker counts for itself are runs; only together they make steps.
            let own = if self.unit == "step" {
                "run"
            } else {
                self.unit
            };
            let steps = heard.workers.get(&task.name).map(|w| (w.1, own));
            let portions = heard.replicas.get(&task.name).map(|r| (r.1, "portion"));
            steps.or(portions)
        };
        for task in state.tasks.iter().take(MAX_TASKS) {
            lines.push(self.task(task, speeds(task), columns));
        }
        if state.tasks.len() > MAX_TASKS {
            lines.push(format!("  … {} more", state.tasks.len() - MAX_TASKS));
        }
        lines.push(String::new());
        // Starts at the beginning are no news.
        let news = state
            .happenings
            .iter()
            .filter(|h| h.kind != HappeningKind::Start);
        let news: Vec<_> = news.collect();
        for happening in news.iter().skip(news.len().saturating_sub(MAX_HAPPENINGS)) {
            let colour = match happening.kind {
                HappeningKind::Loss => 31,
                HappeningKind::Restart => 33,
                HappeningKind::End => 32,
                _ => 2,
            };
            lines.push(paint(
                self.colours,
                colour,
                &cut(&happening.to_string(), columns),
            ));
        }
        lines
    }

    fn training(&self, state: &JobState, heard: &Heard, columns: usize) -> Vec<String> {
        let Some(last) = heard.last else {
            let text = match state.phase {
                JobPhase::Starting => "  tasks are starting",
                _ => "  workers read the images and build the graph",
            };
            return vec![text.to_owned()];
        };
        let at = state.started.elapsed().unwrap_or_default();
        let (share, of) = match self.time {
            Some(time) => (
                at.as_secs_f64() / time.as_secs_f64().max(1e-9),
                String::new(),
            ),
            None => (
                last.step as f64 / self.steps as f64,
                format!(" of {}", thousands(self.steps as f64)),
            ),
        };
        let trainers = state.tasks.iter().filter(|t| t.role == TaskRole::Trainer);
        let share = filled(share, trainers.map(|t| t.phase));
        let (width, unit) = ((columns - 10).min(60), self.unit);
        let head = format!(
            "  {unit} {}{of}   {} {unit}s/s   loss {:.4}   accuracy {:.1} %",
            thousands(last.step as f64),
            rate(heard.speed(state)),
            heard.loss,
            heard.accuracy * 100.0
        );
        vec![
            cut(&head, columns),
            format!("  {}", paint(self.colours, 36, &bar(share, width))),
            format!(
                "  {} loss",
                paint(self.colours, 35, &curve(&heard.losses, width))
            ),
        ]
    }

    fn task(&self, task: &TaskState, speed: Option<(f64, &str)>, columns: usize) -> String {
        let name = task.name.to_string();
        let mut text = format!("{:<22}", task.address.as_deref().unwrap_or("–"));
        match (task.role, speed) {
            (TaskRole::Trainer, Some((speed, unit))) if task.phase == TaskPhase::Running => {
                let _ = write!(text, "{:>7} {:<8}", rate(speed), format!("{unit}s/s"));
                text.push_str("  ");
            }
            (TaskRole::Trainer, _) => text.push_str(&" ".repeat(17)),
            _ => {}
        }
        match task.restarts() {
            0 => {}
            1 => text.push_str("1 restart"),
            n => _ = write!(text, "{n} restarts"),
        }
        let colour = match task.phase {
            TaskPhase::Running => 32,
            TaskPhase::BackOff | TaskPhase::Failed => 31,
            TaskPhase::Done => 36,
            TaskPhase::Stopped => 2,
            _ => 33,
        };
        let phase = paint(self.colours, colour, &format!("● {:<9}", task.phase));
        format!(
            "  {name:<9} {phase} {}",
            cut(&text, columns.saturating_sub(25))
        )
    }
}

/// How full the bar is. Time or steps may be up a little before or after the end; whatever was stopped is not full.
fn filled(share: f64, mut trainers: impl Iterator<Item = TaskPhase>) -> f64 {
    match trainers.all(|phase| phase == TaskPhase::Done) {
        true => 1.0,
        false => share,
    }
}

/// At most so many characters.
fn cut(text: &str, columns: usize) -> String {
    match text.chars().count() > columns {
        true => text
            .chars()
            .take(columns.saturating_sub(1))
            .chain(['…'])
            .collect(),
        false => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use TaskPhase::{Done, Running, Stopped};

    #[test]
    fn a_bar_is_full_when_all_are_done_and_not_when_they_were_stopped() {
        for (phases, full) in [
            ([Running, Running], 0.3),
            ([Done, Running], 0.3),
            ([Done, Done], 1.0),
            ([Stopped, Stopped], 0.3),
        ] {
            assert_eq!(filled(0.3, phases.into_iter()), full, "{phases:?}");
        }
    }
}
