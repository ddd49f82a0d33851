//! A worker beats and looks at the heartbeats of the others. So one that waits for the chief in vain can say whom it waits for.

use super::members::Members;
use super::parts::Parts;
use super::{MissingWorkers, SyncReplicas, counts};
use crate::heartbeat::Heartbeat;
use downpour_build::Result;
use downpour_client::Session;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often a worker beats.
pub(super) const HEARTBEAT_EVERY: Duration = Duration::from_millis(500);

/// Begins on a session. `watch` is told of others that fall silent, except while this worker leads: then it knows better.
pub(super) fn start(
    session: &Arc<Session>,
    parts: &Arc<Parts>,
    settings: &SyncReplicas,
    watch: (MissingWorkers, Arc<AtomicBool>),
) -> Result<Heartbeat> {
    let mut worker = Worker {
        session: session.clone(),
        parts: parts.clone(),
        members: Members::new(settings, Instant::now()),
        settings: settings.clone(),
        watch,
    };
    let beat = move || worker.beat();
    Heartbeat::start("heartbeat", Duration::ZERO, HEARTBEAT_EVERY, beat)
}

struct Worker {
    session: Arc<Session>,
    parts: Arc<Parts>,
    settings: SyncReplicas,
    members: Members,
    watch: (MissingWorkers, Arc<AtomicBool>),
}

impl Worker {
    fn beat(&mut self) -> Result<()> {
        let (missing, leads) = &self.watch;
        if leads.load(Ordering::Relaxed) {
            return self.session.run(&self.parts.beat);
        }
        let start = Instant::now();
        let step = self.session.step().target(&self.parts.beat);
        let [beats, left] = step.fetch_all([&self.parts.beats, &self.parts.left])?;
        let now = Instant::now();
        self.members.heard(&counts(&beats)?, &counts(&left)?, now);
        if now.duration_since(start) > 2 * HEARTBEAT_EVERY {
            // Whatever kept this beat has kept the others' too.
            self.members.excuse();
        }
        let silent = self.members.silent(self.settings.patience);
        let silent = silent.into_iter().filter(|w| *w != self.settings.worker);
        let silent: Vec<(String, String)> = silent
            .map(|w| (self.settings.task(w), self.members.known_of(w, now)))
            .collect();
        if !leads.load(Ordering::Relaxed) {
            missing.tell(&silent);
        }
        Ok(())
    }
}
