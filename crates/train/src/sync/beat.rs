//! Every worker's sign of life: a thread that counts beside the model, and looks at the counts of
//! the others. So a worker that waits for the chief in vain can say whom it waits for.

use super::members::Members;
use super::parts::Parts;
use super::{MissingWorkers, SyncReplicas, counts};
use downpour_build::{Result, Status};
use downpour_client::Session;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often a worker beats.
pub(super) const BEAT: Duration = Duration::from_millis(500);

/// A worker that beats until this is dropped, or its session is lost.
pub(super) struct Beating(Arc<AtomicBool>);

impl Drop for Beating {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl Beating {
    /// Begins on a session. `watch` is told of others that fall silent; the chief knows better.
    pub(super) fn start(
        session: &Arc<Session>,
        parts: &Arc<Parts>,
        settings: &SyncReplicas,
        watch: Option<MissingWorkers>,
    ) -> Result<Beating> {
        let go_on = Arc::new(AtomicBool::new(true));
        let beating = Beating(go_on.clone());
        let mut worker = Worker {
            session: session.clone(),
            parts: parts.clone(),
            members: Members::new(settings, Instant::now()),
            settings: settings.clone(),
            watch,
        };
        let thread = std::thread::Builder::new().name("heartbeat".to_owned());
        let thread = thread.spawn(move || {
            // A beat that fails means that the session is lost: the next one beats anew.
            while go_on.load(Ordering::Relaxed) && worker.beat().is_ok() {
                std::thread::sleep(BEAT);
            }
        });
        thread.map_err(|e| Status::unavailable(e.to_string()))?;
        Ok(beating)
    }
}

struct Worker {
    session: Arc<Session>,
    parts: Arc<Parts>,
    settings: SyncReplicas,
    members: Members,
    watch: Option<MissingWorkers>,
}

impl Worker {
    fn beat(&mut self) -> Result<()> {
        let Some(watch) = &self.watch else {
            return self.session.run(&self.parts.beat);
        };
        let start = Instant::now();
        let step = self.session.step().target(&self.parts.beat);
        let [beats, left] = step.fetch_all([&self.parts.beats, &self.parts.left])?;
        let now = Instant::now();
        self.members.heard(&counts(&beats)?, &counts(&left)?, now);
        if now.duration_since(start) > 2 * BEAT {
            // Whatever kept this beat has kept the others' too.
            self.members.excuse();
        }
        let silent = self.members.silent(self.settings.patience);
        let silent = silent.into_iter().filter(|w| *w != self.settings.worker);
        let missing: Vec<(String, String)> = silent
            .map(|w| (self.settings.task(w), self.members.known_of(w, now)))
            .collect();
        watch.tell(&missing);
        Ok(())
    }
}
