//! Writes summaries every so often.

use super::timer::Timer;
use super::{Context, Hook, integer};
use crate::events::Events;
use crate::{Every, global_step};
use downpour_build::{Graph, Output, Result, summary};
use downpour_client::{Run, Session};
use std::sync::Arc;
use std::time::Instant;

/// Writes a graph's summaries, the graph itself and the speed of training.
///
/// ```
/// use downpour::train::hooks::{StopAtStep, Summaries};
/// use downpour::train::{Events, Every, GradientDescent, Minimize, Supervision, global_step};
/// use downpour::{Graph, Init, Server, ServerConfig, summary};
/// # let dir = tempfile::tempdir()?;
/// # let dir = dir.path().to_str().unwrap();
/// let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let loss = g.variable("w").init(Init::value(4.0f32)).build().square();
/// summary::scalar("loss", &loss);
/// let train = GradientDescent::new(0.25).minimize(&loss, Some(&global_step(&g)))?;
/// let events = Events::create(dir)?;
/// let session = Supervision::new(&server, &g)
///     .chief_hook(Summaries::new(events.clone(), Every::Steps(2)))
///     .hook(StopAtStep::new(4))
///     .open()?;
/// session.train(|session| session.step().target(&train).run())?;
/// let written = std::fs::read(events.path())?;
/// assert!(written.windows(15).any(|bytes| bytes == b"global_step/sec"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Summaries {
    events: Events,
    timer: Timer,
    speed: Timer,
    all: Option<Output>,
    step: Option<Output>,
    positions: (usize, Option<usize>),
    last: i64,
    has_begun: bool,
}

impl Summaries {
    /// Writes all summaries of the graph to a file.
    pub fn new(events: Events, every: Every) -> Summaries {
        Summaries {
            events,
            timer: Timer::new(every),
            speed: Timer::new(every),
            all: None,
            step: None,
            positions: (0, None),
            last: 0,
            has_begun: false,
        }
    }
}

impl Hook for Summaries {
    fn begin(&mut self, graph: &Graph) -> Result<()> {
        self.step = Some(global_step(graph).value().clone());
        self.all = summary::merge_all(graph);
        Ok(())
    }

    fn after_create(&mut self, session: &Arc<Session>) -> Result<()> {
        if let Some(step) = &self.step {
            self.last = integer(&session.fetch(step)?)?;
        }
        if !self.has_begun {
            self.has_begun = true;
            self.events.graph(session.graph())?;
        }
        self.events.started(self.last)
    }

    fn before_run(&mut self, run: &mut Run) {
        let Some(step) = &self.step else {
            return;
        };
        let is_due = self.timer.is_due(self.last + 1, Instant::now());
        let all = self.all.as_ref().filter(|_| is_due);
        self.positions = (run.fetch(step), all.map(|all| run.fetch(all)));
    }

    fn after_run(&mut self, context: &mut Context<'_>) -> Result<()> {
        self.last = integer(context.value(self.positions.0)?)?;
        let now = Instant::now();
        if let Some(position) = self.positions.1 {
            // What was fetched may be the count of before the step.
            if let Some(step) = &self.step {
                self.last = integer(&context.session.fetch(step)?)?;
            }
            self.events.summary(self.last, context.value(position)?)?;
            self.timer.happened(self.last, now);
        }
        if self.speed.is_due(self.last, now)
            && let Some((steps, seconds)) = self.speed.happened(self.last, now)
        {
            let speed = steps as f64 / seconds.max(1e-9);
            self.events
                .scalar(self.last, "global_step/sec", speed as f32)?;
            self.events.flush()?;
        }
        Ok(())
    }

    fn end(&mut self, _: &Arc<Session>) -> Result<()> {
        self.events.flush()
    }
}
