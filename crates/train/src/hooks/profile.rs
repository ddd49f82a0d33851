//! Traces a step every so often and writes down what it did.

use super::timer::Timer;
use super::{Context, Hook, integer};
use crate::events::Events;
use crate::timeline::chrome_trace;
use crate::{Every, global_step};
use downpour_build::{Graph, Output, Result};
use downpour_client::Run;
use downpour_formats::storage::join;
use downpour_formats::{Files, Storage};
use std::time::Instant;
use tracing::info;

/// Traces a step every so often: a file `timeline-N.json` for Chrome's trace viewer, and the
/// step's statistics for TensorBoard if there is an event file.
///
/// ```
/// use downpour::train::hooks::{Profiler, StopAtStep};
/// use downpour::train::{Every, Supervision, global_step};
/// use downpour::{Graph, Server, ServerConfig};
/// # let dir = tempfile::tempdir()?;
/// # let dir = dir.path().to_str().unwrap();
/// let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let count = global_step(&g).assign_add(&g.constant(1i64));
/// let mut session = Supervision::new(&server, &g)
///     .hook(Profiler::new(dir, Every::Steps(2)))
///     .hook(StopAtStep::new(5))
///     .open()?;
/// while !session.should_stop() {
///     session.step().target(&count).run()?;
/// }
/// let is_timeline = |name: &str| name.starts_with("timeline-") && name.ends_with(".json");
/// let mut files = std::fs::read_dir(dir)?;
/// assert!(files.any(|file| is_timeline(file.unwrap().file_name().to_str().unwrap())));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Profiler {
    dir: String,
    events: Option<Events>,
    timer: Timer,
    step: Option<Output>,
    position: usize,
    /// The step that comes next; unknown before the first, which is never traced.
    next: Option<i64>,
    due: bool,
}

impl Profiler {
    /// Writes timelines to a directory, which is made if it is not there.
    pub fn new(dir: &str, every: Every) -> Profiler {
        Profiler {
            dir: dir.to_owned(),
            events: None,
            timer: Timer::new(every),
            step: None,
            position: 0,
            next: None,
            due: false,
        }
    }

    /// Writes the statistics of traced steps to an event file too.
    pub fn events(mut self, events: Events) -> Profiler {
        self.events = Some(events);
        self
    }

    fn save(&self, step: i64, context: &Context<'_>) -> Result<()> {
        let Some(metadata) = context.metadata else {
            return Ok(());
        };
        let storage = Files::new();
        crate::saver::make_dirs(&storage, &self.dir)?;
        let path = join(&self.dir, &format!("timeline-{step}.json"));
        info!(path, "writing what step {step} did");
        let mut file = storage.create(&path)?;
        let stats = metadata.step_stats.clone().unwrap_or_default();
        file.write(chrome_trace(&stats).as_bytes())?;
        file.publish()?;
        match &self.events {
            Some(events) => events.run(step, &format!("step_{step}"), metadata),
            None => Ok(()),
        }
    }
}

impl Hook for Profiler {
    fn begin(&mut self, graph: &Graph) -> Result<()> {
        self.step = Some(global_step(graph).value().clone());
        Ok(())
    }

    fn before_run(&mut self, run: &mut Run) {
        let Some(step) = &self.step else {
            return;
        };
        self.position = run.fetch(step);
        let next = self.next;
        self.due = next.is_some_and(|next| self.timer.is_due(next, Instant::now()));
        if self.due {
            run.trace();
        }
    }

    fn after_run(&mut self, context: &mut Context<'_>) -> Result<()> {
        // What was fetched may be the count of before the step.
        let mut now = integer(context.value(self.position)?)? + 1;
        if self.next.is_none() {
            self.timer.happened(now - 1, Instant::now());
        }
        if self.due
            && let Some(step) = &self.step
        {
            now = integer(&context.session.fetch(step)?)?;
            self.timer.happened(now, Instant::now());
            self.save(now, context)?;
        }
        self.next = Some(now + 1);
        Ok(())
    }
}
