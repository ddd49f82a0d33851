//! A replica: takes portions of the batch, computes their gradients, brings them to the parameters.
//! Any number of them may come, go and die; the coordinator knows none by name.
//!
//! Invariant: a replica holds nothing that is needed: whatever it took and did not bring is computed
//! by another.

use super::Plan;
use super::exchange::END;
use crate::monitored::is_gone;
use downpour_build::{Code, Result};
use downpour_client::{Run, Session, SessionOptions, Target};
use std::time::{Duration, Instant};
use tracing::info;

/// Pauses between attempts to reach a cluster, shortest and longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// One replica of the model.
///
/// [`Plan::replica`] makes it.
#[must_use = "a replica works by `work`"]
pub struct Replica<'a> {
    pub(super) plan: &'a Plan,
    pub(super) index: i64,
    pub(super) options: SessionOptions,
    pub(super) patience: Duration,
}

/// What a replica has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Worked {
    /// Portions that it computed.
    pub portions: u64,
    /// Portions that others had brought, or that nobody wanted any more, when it took them.
    pub skipped: u64,
    /// How often its session was lost.
    pub losses: u64,
}

impl Replica<'_> {
    /// How its sessions are opened.
    pub fn options(mut self, options: SessionOptions) -> Self {
        self.options = options;
        self
    }

    /// How long to wait for the model to be ready, and for a portion: ten minutes unless told
    /// otherwise.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Works until the coordinator has ended. `feed` gives a step what portion `i` of the batch
    /// feeds.
    pub fn work(
        self,
        target: impl Into<Target>,
        mut feed: impl FnMut(usize, &mut Run) -> Result<()>,
    ) -> Result<Worked> {
        let target = target.into();
        let mut worked = Worked::default();
        loop {
            let session = self.open(&target)?;
            match self.serve(&session, &mut feed, &mut worked) {
                Ok(()) => return Ok(worked),
                Err(why) if is_gone(&why) => {
                    info!(%why, replica = self.index, "a task was lost: making a new session");
                    worked.losses += 1;
                }
                Err(why) => return Err(why),
            }
        }
    }

    /// A session on a model that is ready.
    fn open(&self, target: &Target) -> Result<Session> {
        let begin = Instant::now();
        let mut pause = PAUSES.0;
        loop {
            let session = self.options.clone().open(target, &self.plan.graph);
            let outcome = session.and_then(|session| {
                let missing = self.plan.ready.missing(&session)?;
                Ok((session, missing))
            });
            let why = match outcome {
                Ok((session, missing)) if missing.is_empty() => return Ok(session),
                Ok((_, missing)) => format!("without a value: {}", missing.join(", ")),
                Err(e) if is_gone(&e) => e.message,
                Err(e) => return Err(e),
            };
            if begin.elapsed() + pause > self.patience {
                return Err(super::not_ready(self.patience, &why));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    fn serve(
        &self,
        session: &Session,
        feed: &mut impl FnMut(usize, &mut Run) -> Result<()>,
        worked: &mut Worked,
    ) -> Result<()> {
        let exchange = &self.plan.exchange;
        loop {
            let ticket = exchange.take(session, self.patience)?;
            if ticket.portion == END {
                if ticket.is_current {
                    // The others shall know, too.
                    return exchange.issue(session, ticket.evaluation, &[END]);
                }
                continue;
            }
            if !ticket.is_current || ticket.is_done {
                worked.skipped += 1;
                continue;
            }
            let mut run = exchange.push(&ticket, self.index);
            let Ok(portion) = usize::try_from(ticket.portion) else {
                continue;
            };
            match feed(portion, &mut run) {
                // It leaves; its portion goes to another.
                Err(e) if e.code == Code::OutOfRange => return Ok(()),
                outcome => outcome?,
            }
            session.execute(&run)?;
            worked.portions += 1;
        }
    }
}
