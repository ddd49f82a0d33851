//! Saves checkpoints every so often: between two steps of this worker, or beside them.

use super::timer::Timer;
use super::{Context, Hook, integer};
use crate::saver::{Saver, in_dir};
use crate::{Every, global_step};
use downpour_build::{Graph, Output, Result, Status};
use downpour_client::{Run, Session};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;
use tracing::warn;

/// Name of checkpoints in their directory.
const BASENAME: &str = "model.ckpt";

/// Saves checkpoints of all variables.
pub struct Checkpoints {
    saver: Arc<Saver>,
    prefix: String,
    timer: Timer,
    step: Option<Output>,
    position: usize,
    in_background: bool,
    writing: Option<JoinHandle<Result<String>>>,
    last: Option<i64>,
}

impl Checkpoints {
    /// Saves to a directory, first when a session is made, last when training ends.
    pub fn new(saver: Arc<Saver>, dir: &str, every: Every) -> Checkpoints {
        Checkpoints {
            saver,
            prefix: in_dir(dir, BASENAME),
            timer: Timer::new(every),
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

    /// The step as it is now: what a save will hold, or a little more.
    fn now(&self, session: &Session) -> Result<i64> {
        match &self.step {
            Some(step) => integer(&session.fetch(step)?),
            None => Ok(0),
        }
    }

    /// Waits for a save that is under way.
    fn settle(&mut self) -> Result<()> {
        match self.writing.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(outcome)) => outcome.map(|_| ()),
            Some(Err(_)) => Err(Status::internal(
                "the thread that saved a checkpoint panicked",
            )),
        }
    }
}

impl Hook for Checkpoints {
    fn begin(&mut self, graph: &Graph) -> Result<()> {
        self.step = Some(global_step(graph).value().clone());
        Ok(())
    }

    fn after_create(&mut self, session: &Arc<Session>) -> Result<()> {
        // What the lost session was saving is lost with it.
        if let Err(why) = self.settle() {
            warn!(%why, "a checkpoint was not finished");
        }
        let step = self.now(session)?;
        if self.last != Some(step) {
            self.saver.save(session, &self.prefix, Some(step))?;
        }
        self.timer.happened(step, Instant::now());
        self.last = Some(step);
        Ok(())
    }

    fn before_run(&mut self, run: &mut Run) {
        if let Some(step) = &self.step {
            self.position = run.fetch(step);
        }
    }

    fn after_run(&mut self, context: &mut Context<'_>) -> Result<()> {
        // The fetched count may be that of before the step.
        let step = integer(context.value(self.position)?)? + 1;
        if !self.timer.is_due(step, Instant::now()) {
            return Ok(());
        }
        if self.writing.as_ref().is_some_and(|w| !w.is_finished()) {
            return Ok(());
        }
        self.settle()?;
        let step = self.now(context.session)?;
        self.timer.happened(step, Instant::now());
        self.last = Some(step);
        if !self.in_background {
            return self
                .saver
                .save(context.session, &self.prefix, Some(step))
                .map(|_| ());
        }
        let (saver, prefix, session) = (
            self.saver.clone(),
            self.prefix.clone(),
            context.session.clone(),
        );
        let thread = std::thread::Builder::new().name("checkpoint".to_owned());
        let writing = thread.spawn(move || saver.save(&session, &prefix, Some(step)));
        self.writing = Some(writing.map_err(|e| Status::unavailable(e.to_string()))?);
        Ok(())
    }

    fn end(&mut self, session: &Arc<Session>) -> Result<()> {
        self.settle()?;
        let step = self.now(session)?;
        if self.last != Some(step) {
            self.saver.save(session, &self.prefix, Some(step))?;
        }
        Ok(())
    }
}
