//! Saves checkpoints every so often: between two steps of this worker, or beside them.

use super::timer::Timer;
use super::{Context, Hook, integer};
use crate::saver::{Saver, in_dir};
use crate::{Events, Every, global_step};
use downpour_build::{Code, Graph, Output, Result, Status};
use downpour_client::{Run, Session};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;
use tracing::warn;

/// Name of checkpoints in their directory.
const BASENAME: &str = "model.ckpt";

/// Work around the saving of checkpoints. Every method does nothing unless given.
///
/// ```
/// use downpour::train::hooks::{SaveListener, StopAtStep};
/// use downpour::train::{Every, Supervision, global_step};
/// use downpour::{Graph, Result, Server, ServerConfig, Session};
/// use std::sync::Arc;
///
/// /// Stops training with the first checkpoint of step 4 or a later one.
/// struct Enough;
///
/// impl SaveListener for Enough {
///     fn after_save(&mut self, _: &Arc<Session>, step: i64, path: &str) -> Result<bool> {
///         assert!(path.ends_with(&format!("model.ckpt-{step}")));
///         Ok(step >= 4)
///     }
/// }
///
/// # let dir = tempfile::tempdir()?;
/// # let dir = dir.path().to_str().unwrap();
/// let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let count = global_step(&g).assign_add(&g.constant(1i64));
/// let mut session = Supervision::new(&server, &g)
///     .checkpoints(dir, Every::Steps(2))
///     .listener(Enough)
///     .open()?;
/// while !session.should_stop() {
///     session.step().target(&count).run()?;
/// }
/// assert_eq!(session.global_step()?, 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait SaveListener: Send {
    /// Adds operations to the graph, before any session exists.
    fn begin(&mut self, _graph: &Graph) -> Result<()> {
        Ok(())
    }

    /// A checkpoint of this step is about to be written.
    fn before_save(&mut self, _session: &Arc<Session>, _step: i64) -> Result<()> {
        Ok(())
    }

    /// A checkpoint is written, to this path. Answers whether training shall stop.
    fn after_save(&mut self, _session: &Arc<Session>, _step: i64, _path: &str) -> Result<bool> {
        Ok(false)
    }

    /// Training ends well, at this step, and its last checkpoint is written.
    fn end(&mut self, _session: &Arc<Session>, _step: i64) -> Result<()> {
        Ok(())
    }
}

/// Saves checkpoints of all variables.
///
/// ```
/// use downpour::train::hooks::{Checkpoints, StopAtStep};
/// use downpour::train::{Every, Saver, Supervision, global_step, latest_checkpoint, read_checkpoint};
/// use downpour::{Graph, Server, ServerConfig};
/// use std::sync::Arc;
/// # let dir = tempfile::tempdir()?;
/// # let dir = dir.path().to_str().unwrap();
/// let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let count = global_step(&g).assign_add(&g.constant(1i64));
/// let saver = Arc::new(Saver::new(&g)?);
/// let session = Supervision::new(&server, &g)
///     .chief_hook(Checkpoints::new(saver, dir, Every::Steps(2)).in_background())
///     .hook(StopAtStep::new(5))
///     .open()?;
/// session.train(|session| session.step().target(&count).run())?;
/// let latest = latest_checkpoint(dir)?.unwrap();
/// assert!(latest.ends_with("model.ckpt-5"));
/// assert_eq!(read_checkpoint(&latest, "global_step")?.scalar_value::<i64>()?, 5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Checkpoints {
    saver: Arc<Saver>,
    prefix: String,
    timer: Timer,
    listeners: Vec<Box<dyn SaveListener>>,
    events: Option<Events>,
    step: Option<Output>,
    position: usize,
    in_background: bool,
    writing: Option<(i64, JoinHandle<Result<Option<String>>>)>,
    last: Option<i64>,
}

impl Checkpoints {
    /// Saves to a directory, first when a session is made, last when training ends.
    pub fn new(saver: Arc<Saver>, dir: &str, every: Every) -> Checkpoints {
        Checkpoints {
            saver,
            prefix: in_dir(dir, BASENAME),
            timer: Timer::new(every),
            listeners: Vec::new(),
            events: None,
            step: None,
            position: 0,
            in_background: false,
            writing: None,
            last: None,
        }
    }

    /// Lets this worker's steps go on while a checkpoint is written. Variables of different tasks
    /// may then be of different steps in it, as they may be anyway when other workers train.
    pub fn in_background(mut self) -> Checkpoints {
        self.in_background = true;
        self
    }

    /// Tells someone of every checkpoint, before and after it is written.
    pub fn listener(mut self, listener: impl SaveListener + 'static) -> Checkpoints {
        self.listeners.push(Box::new(listener));
        self
    }

    pub(crate) fn listeners(mut self, listeners: Vec<Box<dyn SaveListener>>) -> Checkpoints {
        self.listeners.extend(listeners);
        self
    }

    /// Writes to an event file when a checkpoint was saved, and where.
    pub fn events(mut self, events: Events) -> Checkpoints {
        self.events = Some(events);
        self
    }

    /// The step as it is now: what a save will hold, or a little more.
    fn now(&self, session: &Session) -> Result<i64> {
        match &self.step {
            Some(step) => integer(&session.fetch(step)?),
            None => Ok(0),
        }
    }

    /// Saves now; whether a listener asks to stop.
    fn save(&mut self, session: &Arc<Session>, step: i64) -> Result<bool> {
        self.announce(session, step)?;
        let path = self
            .saver
            .save_as_chief(session, &self.prefix, Some(step))?;
        self.saved(session, step, path)
    }

    /// What a save between two steps came to. A storage that did not answer in time is tried again with the next
    /// checkpoint: training need not end for it. The first and the last checkpoint are not forgiven.
    fn forgive(&mut self, saved: Result<bool>) -> Result<bool> {
        match saved {
            Err(why) if why.code == Code::DeadlineExceeded => {
                warn!(%why, "no checkpoint was written; the next one is tried in its time");
                self.last = None;
                Ok(false)
            }
            saved => saved,
        }
    }

    fn announce(&mut self, session: &Arc<Session>, step: i64) -> Result<()> {
        let mut all = self.listeners.iter_mut();
        all.try_for_each(|l| l.before_save(session, step))
    }

    /// A checkpoint is written, unless another is the chief now; whether a listener asks to stop.
    fn saved(&mut self, session: &Arc<Session>, step: i64, path: Option<String>) -> Result<bool> {
        // What was not committed is to be saved again should this worker be elected again.
        self.last = path.is_some().then_some(step);
        let Some(path) = path.as_deref() else {
            return Ok(false);
        };
        if let Some(events) = &self.events {
            events.checkpoint(step, path)?;
        }
        let mut stop = false;
        for listener in &mut self.listeners {
            stop |= listener.after_save(session, step, path)?;
        }
        Ok(stop)
    }

    /// Waits for a save that is under way; whether a listener asks to stop.
    fn settle(&mut self, session: &Arc<Session>) -> Result<bool> {
        let Some((step, writing)) = self.writing.take() else {
            return Ok(false);
        };
        let panicked = || Status::internal("the thread that saved a checkpoint panicked");
        let path = writing.join().map_err(|_| panicked())??;
        self.saved(session, step, path)
    }
}

impl Hook for Checkpoints {
    fn begin(&mut self, graph: &Graph) -> Result<()> {
        self.step = Some(global_step(graph).value().clone());
        self.listeners.iter_mut().try_for_each(|l| l.begin(graph))
    }

    fn after_create(&mut self, session: &Arc<Session>) -> Result<()> {
        // What the lost session was saving is lost with it.
        if let Some(Ok(Err(why))) = self.writing.take().map(|(_, writing)| writing.join()) {
            warn!(%why, "a checkpoint was not finished");
        }
        self.saver.take_over(&self.prefix);
        let step = self.now(session)?;
        if self.last != Some(step) {
            self.save(session, step)?;
        }
        self.timer.happened(step, Instant::now());
        Ok(())
    }

    fn before_run(&mut self, run: &mut Run) {
        if let Some(step) = &self.step {
            self.position = run.fetch(step);
        }
    }

    fn after_run(&mut self, context: &mut Context<'_>) -> Result<()> {
        if self.writing.as_ref().is_some_and(|(_, w)| w.is_finished()) {
            let settled = self.settle(context.session);
            if self.forgive(settled)? {
                context.request_stop();
            }
        }
        // The fetched count may be that of before the step.
        let step = integer(context.value(self.position)?)? + 1;
        if self.writing.is_some() || !self.timer.is_due(step, Instant::now()) {
            return Ok(());
        }
        let step = self.now(context.session)?;
        if !self.timer.is_due(step, Instant::now()) {
            return Ok(());
        }
        self.timer.happened(step, Instant::now());
        self.last = Some(step);
        if !self.in_background {
            let saved = self.save(context.session, step);
            if self.forgive(saved)? {
                context.request_stop();
            }
            return Ok(());
        }
        self.announce(context.session, step)?;
        let (saver, prefix, session) = (
            self.saver.clone(),
            self.prefix.clone(),
            context.session.clone(),
        );
        let thread = std::thread::Builder::new().name("checkpoint".to_owned());
        let writing = thread.spawn(move || saver.save_as_chief(&session, &prefix, Some(step)));
        let writing = writing.map_err(|e| Status::unavailable(e.to_string()))?;
        self.writing = Some((step, writing));
        Ok(())
    }

    fn end(&mut self, session: &Arc<Session>) -> Result<()> {
        let settled = self.settle(session);
        self.forgive(settled)?;
        let step = self.now(session)?;
        if self.last != Some(step) {
            self.save(session, step)?;
        }
        let mut all = self.listeners.iter_mut();
        all.try_for_each(|l| l.end(session, step))
    }
}
