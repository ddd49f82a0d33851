//! Makes sessions on a model that is ready to train: the chief initialises or restores it, others
//! wait until it has. Called at the beginning and after each loss.

use crate::election::Election;
use crate::monitored::is_loss;
use crate::ready::Ready;
use crate::saver::Saver;
use downpour_build::{Graph, Operation, Result, Status};
use downpour_client::{Session, SessionOptions, Target};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// First and longest pause between attempts to reach a cluster.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// What makes a session ready to train, again after each loss.
pub(crate) struct Creator {
    pub(crate) graph: Graph,
    pub(crate) target: Target,
    pub(crate) options: SessionOptions,
    pub(crate) dir: Option<String>,
    pub(crate) patience: Duration,
    pub(crate) saver: Option<Arc<Saver>>,
    pub(crate) ready: Ready,
    pub(crate) init: Operation,
    /// Gives first values to what checkpoints do not keep.
    pub(crate) init_unsaved: Operation,
}

impl Creator {
    /// Tries until the model is ready or patience ends; `stop` tells when it is no longer wanted.
    pub(crate) fn create(
        &self,
        election: &mut dyn Election,
        stop: &crate::Coordinator,
    ) -> Result<Session> {
        let start = Instant::now();
        let mut pause = PAUSES.0;
        let mut told = false;
        loop {
            let problem = match self.attempt(election.is_chief()) {
                Ok(Ok(session)) => return Ok(session),
                Ok(Err(missing)) => Status::unavailable(format!(
                    "the chief has not initialised the model yet; without a value: {}",
                    missing.join(", ")
                )),
                Err(e) if is_loss(&e) => e,
                Err(e) => return Err(e),
            };
            if start.elapsed() + pause > self.patience {
                return Err(Status::deadline_exceeded(format!(
                    "the model was not ready after {:?}: {}",
                    self.patience, problem.message
                )));
            }
            if !told && start.elapsed() > Duration::from_secs(2) {
                info!(%problem, "waiting");
                told = true;
            }
            if stop.wait_for_stop(pause) {
                let stopped = || Status::cancelled("training was stopped before it could begin");
                return Err(stop.error().unwrap_or_else(stopped));
            }
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// A session on a ready model, or which variables have no value.
    fn attempt(&self, is_chief: bool) -> Result<Result<Session, Vec<String>>> {
        let session = self.options.clone().open(&self.target, &self.graph)?;
        let missing = self.ready.missing(&session)?;
        if missing.is_empty() {
            return Ok(Ok(session));
        }
        if !is_chief {
            return Ok(Err(missing));
        }
        self.ready.take_word_back(&session)?;
        // A task that lost its variables makes all go back to the same checkpoint: parts of
        // different ages would be no model.
        let restored = match (&self.saver, &self.dir) {
            (Some(saver), Some(dir)) => saver.restore_latest(&session, dir)?,
            _ => None,
        };
        if restored.is_some() {
            session.run(&self.init_unsaved)?;
        } else {
            let shared = self.graph.saved_variables().len();
            let lost = self.ready.without_value(&session)?.len();
            if (1..shared).contains(&lost) {
                warn!("variables were lost and there is no checkpoint: training begins anew");
            }
            session.run(&self.init)?;
        }
        match self.ready.without_value(&session)? {
            none if none.is_empty() => {
                self.ready.give_word(&session)?;
                Ok(Ok(session))
            }
            missing => Err(Status::failed_precondition(format!(
                "initialising did not give values to {}",
                missing.join(", ")
            ))),
        }
    }
}
