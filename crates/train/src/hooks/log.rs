//! Says how training goes: values of tensors, and steps per second.

use super::timer::Timer;
use super::{Context, Hook, integer};
use crate::{Every, global_step};
use downpour_build::{Graph, Output, Result};
use downpour_client::Run;
use std::time::Instant;
use tracing::info;

/// Logs the values of tensors every so often, counted in steps of this worker.
pub struct LogTensors {
    tensors: Vec<(String, Output)>,
    timer: Timer,
    count: i64,
    due: bool,
    first: usize,
}

impl LogTensors {
    /// Logs these, by what they are to be called.
    pub fn new<'a>(
        tensors: impl IntoIterator<Item = (&'a str, &'a Output)>,
        every: Every,
    ) -> LogTensors {
        let own = |(name, output): (&str, &Output)| (name.to_owned(), output.clone());
        LogTensors {
            tensors: tensors.into_iter().map(own).collect(),
            timer: Timer::new(every),
            count: 0,
            due: false,
            first: 0,
        }
    }
}

impl Hook for LogTensors {
    fn before_run(&mut self, run: &mut Run) {
        self.due = self.timer.is_due(self.count, Instant::now());
        if self.due {
            let positions = self.tensors.iter().map(|(_, output)| run.fetch(output));
            self.first = positions.min().unwrap_or(0);
        }
    }

    fn after_run(&mut self, context: &mut Context<'_>) -> Result<()> {
        if self.due {
            let mut text = Vec::new();
            for (i, (name, _)) in self.tensors.iter().enumerate() {
                let value = context.value(self.first + i)?;
                text.push(format!("{name} = {}", value.summarize(10)));
            }
            let took = self.timer.happened(self.count, Instant::now());
            let took = took.map_or(String::new(), |(_, s)| format!(" ({s:.3} sec)"));
            info!("{}{took}", text.join(", "));
        }
        self.count += 1;
        Ok(())
    }
}

/// Measures steps of the shared count per second.
pub struct StepCounter {
    timer: Timer,
    step: Option<Output>,
    position: usize,
    report: Box<dyn FnMut(i64, f64) + Send>,
}

impl StepCounter {
    /// Logs the speed every so often.
    pub fn new(every: Every) -> StepCounter {
        StepCounter::reporting(every, |_, speed| info!("global_step/sec: {speed:.6}"))
    }

    /// Tells the step and the speed to a function every so often.
    pub fn reporting(every: Every, report: impl FnMut(i64, f64) + Send + 'static) -> StepCounter {
        StepCounter {
            timer: Timer::new(every),
            step: None,
            position: 0,
            report: Box::new(report),
        }
    }
}

impl Hook for StepCounter {
    fn begin(&mut self, graph: &Graph) -> Result<()> {
        self.step = Some(global_step(graph).value().clone());
        Ok(())
    }

    fn before_run(&mut self, run: &mut Run) {
        if let Some(step) = &self.step {
            self.position = run.fetch(step);
        }
    }

    fn after_run(&mut self, context: &mut Context<'_>) -> Result<()> {
        let step = integer(context.value(self.position)?)?;
        let now = Instant::now();
        if self.timer.is_due(step, now)
            && let Some((steps, seconds)) = self.timer.happened(step, now)
        {
            (self.report)(step, steps as f64 / seconds.max(1e-9));
        }
        Ok(())
    }
}
