//! Says how training goes: values of tensors, and steps per second.

use super::timer::Timer;
use super::{Context, Hook, integer};
use crate::{Events, Every, global_step};
use downpour_build::{Graph, Output, Result, Tensor};
use downpour_client::{Run, Session};
use std::sync::Arc;
use std::time::Instant;
use tracing::{info, warn};

/// Logs the values of tensors every so often, counted in steps of this worker.
///
/// ```
/// use downpour::train::hooks::LogTensors;
/// use downpour::train::{Every, Supervision};
/// use downpour::{DType, Graph, Server, ServerConfig};
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("log");
/// # let log = std::sync::Mutex::new(std::fs::File::create(&path)?);
/// # let log = tracing_subscriber::fmt().with_writer(log).with_ansi(false).finish();
/// # let _log = tracing::subscriber::set_default(log);
/// let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let x = g.placeholder("x", DType::Float, ());
/// let loss = x.square();
/// let hook = LogTensors::new([("loss", &loss)], Every::Steps(2));
/// let mut session = Supervision::new(&server, &g).hook(hook).open()?;
/// for value in [1.0f32, 2.0, 3.0] {
///     session.step().feed(&x, value).run()?;
/// }
/// let log = std::fs::read_to_string(&path)?;
/// assert!(log.contains("loss = 1") && !log.contains("loss = 4") && log.contains("loss = 9"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct LogTensors {
    tensors: Vec<(String, Output)>,
    timer: Timer,
    count: i64,
    due: bool,
    first: usize,
    at_end: bool,
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
            at_end: false,
        }
    }

    /// Logs once more when training ends; the tensors must then not need to be fed.
    ///
    /// ```
    /// use downpour_train::Every;
    /// use downpour_train::hooks::LogTensors;
    /// let g = downpour_build::Graph::new();
    /// let w = g.variable("w").init(downpour_build::Init::value(1.0f32)).build();
    /// let hook = LogTensors::new([("w", w.value())], Every::Never).at_end();
    /// # let _ = hook;
    /// ```
    pub fn at_end(mut self) -> LogTensors {
        self.at_end = true;
        self
    }

    fn log<'v>(&mut self, values: impl IntoIterator<Item = &'v Tensor>) {
        let named = self.tensors.iter().zip(values);
        let text = named.map(|((name, _), value)| format!("{name} = {}", value.summarize(10)));
        let text = text.collect::<Vec<_>>().join(", ");
        let took = self.timer.happened(self.count, Instant::now());
        let took = took.map_or(String::new(), |(_, s)| format!(" ({s:.3} sec)"));
        info!("{text}{took}");
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
            let own = self.first..self.first + self.tensors.len();
            self.log(context.values.get(own).unwrap_or_default());
        }
        self.count += 1;
        Ok(())
    }

    fn end(&mut self, session: &Arc<Session>) -> Result<()> {
        if self.at_end {
            let outputs: Vec<Output> = self.tensors.iter().map(|(_, o)| o.clone()).collect();
            let values = session.step().fetch_list(&outputs)?;
            self.log(&values);
        }
        Ok(())
    }
}

/// Measures steps of the shared count per second.
///
/// ```
/// use downpour::train::hooks::{StepCounter, StopAtStep};
/// use downpour::train::{Every, Supervision, global_step};
/// use downpour::{Graph, Server, ServerConfig};
/// let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let count = global_step(&g).assign_add(&g.constant(1i64));
/// let (tell, told) = std::sync::mpsc::channel();
/// let counter = StepCounter::reporting(Every::Steps(2), move |step, speed| {
///     let _ = tell.send((step, speed));
/// });
/// let session = Supervision::new(&server, &g).hook(counter).hook(StopAtStep::new(5)).open()?;
/// session.train(|session| session.step().target(&count).run())?;
/// let (step, speed) = told.recv()?;
/// assert!((2..=5).contains(&step) && speed > 0.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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

    /// Logs the speed every so often and writes it to an event file.
    ///
    /// ```
    /// use downpour_train::hooks::StepCounter;
    /// use downpour_train::{Events, Every};
    /// # let dir = tempfile::tempdir()?;
    /// # let dir = dir.path().to_str().unwrap();
    /// let hook = StepCounter::recording(Every::Steps(100), Events::create(dir)?);
    /// # let _ = hook;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn recording(every: Every, events: Events) -> StepCounter {
        StepCounter::reporting(every, move |step, speed| {
            info!("global_step/sec: {speed:.6}");
            if let Err(why) = events.scalar(step, "global_step/sec", speed as f32) {
                warn!(%why, "the speed could not be written down");
            }
        })
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
