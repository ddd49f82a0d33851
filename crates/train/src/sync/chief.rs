//! The chief's part: a thread that gathers workers' gradients and updates the model.

use super::members::Members;
use super::parts::Parts;
use super::wake_chief::ChiefWaker;
use super::{END, HEARTBEAT_EVERY, MissingWorkers, SyncReplicas, counts};
use crate::hooks::integer;
use crate::monitored::is_loss;
use downpour_build::{Code, Output, Result, Status};
use downpour_client::Session;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tracing::{error, info, warn};

/// How long the chief waits for a gradient before it looks who is still there.
const LOOK: Duration = Duration::from_millis(500);

/// A worker that was not heard of for so long may be gone.
const SILENT: Duration = HEARTBEAT_EVERY.saturating_mul(3);

/// How many silent workers are looked for at a time: a host that is off keeps the chief for a moment.
const MAX_ASKED: usize = 4;

/// Gathers gradients, on a thread of its own for each session.
pub(crate) struct Chief {
    settings: SyncReplicas,
    parts: Arc<Parts>,
    /// The step after an update, and what comes of waiting for one.
    outcomes: [Output; 2],
    global_step: Output,
    missing: MissingWorkers,
    running: Option<(Arc<ChiefWaker>, JoinHandle<()>)>,
}

impl Chief {
    pub(crate) fn new(
        settings: SyncReplicas,
        parts: Arc<Parts>,
        outcomes: [Output; 2],
        global_step: Output,
        missing: MissingWorkers,
    ) -> Chief {
        Chief {
            settings,
            parts,
            outcomes,
            global_step,
            missing,
            running: None,
        }
    }

    /// Begins on a new session.
    pub(crate) fn start(&mut self, session: &Arc<Session>) -> Result<()> {
        self.halt();
        let step = integer(&session.fetch(&self.global_step)?)?;
        let reset = session.step().feed(&self.parts.step_to_reset, step);
        reset.target(&self.parts.reset).run()?;
        let waker = ChiefWaker::start(session, &self.parts, self.settings.replicas, LOOK)?;
        let waker = Arc::new(waker);
        let mut gathering = Gathering {
            members: Members::new(&self.settings, Instant::now()),
            settings: self.settings.clone(),
            parts: self.parts.clone(),
            outcomes: self.outcomes.clone(),
            session: session.clone(),
            missing: self.missing.clone(),
            waker: waker.clone(),
            looked: Instant::now(),
        };
        // Whoever waits for a token of the last chief's gets one of this step. Before the first step
        // nobody does: a token would only let a quick worker push its gradients twice.
        if step > 0 {
            gathering.give_all(step)?;
        }
        let thread = std::thread::Builder::new().name("sync-chief".to_owned());
        let thread = thread.spawn(move || match gathering.run(step) {
            Ok(()) => {}
            Err(why) if is_loss(&why) || why.code == Code::Cancelled => {
                info!(%why, "gathering gradients ended with its session");
            }
            Err(why) => error!(%why, "gathering gradients failed"),
        });
        let thread = thread.map_err(|e| Status::unavailable(e.to_string()))?;
        self.running = Some((waker, thread));
        Ok(())
    }

    /// Ends training for all.
    pub(crate) fn stop(&mut self, session: &Arc<Session>) -> Result<()> {
        self.halt();
        let mut step = session.step().feed(&self.parts.token_to_give, END);
        for give in &self.parts.give {
            step = step.target(give);
        }
        step.run()
    }

    /// Ends the thread.
    fn halt(&mut self) {
        if let Some((waker, thread)) = self.running.take() {
            waker.hurry();
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

impl Drop for Chief {
    fn drop(&mut self) {
        self.halt();
    }
}

/// The loop of one session.
struct Gathering {
    settings: SyncReplicas,
    parts: Arc<Parts>,
    outcomes: [Output; 2],
    session: Arc<Session>,
    missing: MissingWorkers,
    waker: Arc<ChiefWaker>,
    members: Members,
    looked: Instant,
}

impl Gathering {
    fn run(&mut self, mut step: i64) -> Result<()> {
        self.members.begin(step, Instant::now());
        while !self.waker.is_hurried() {
            let made = match (self.members.complete(), self.members.awaited()) {
                (Some(count), _) => Some(self.apply(count)?),
                (None, Some(workers)) => self.wait_and_apply(&workers)?,
                (None, None) => {
                    self.wait()?;
                    None
                }
            };
            if let Some(made) = made {
                step = made;
                self.members.begin(step, Instant::now());
            }
            if self.looked.elapsed() >= LOOK {
                self.look()?;
            }
        }
        Ok(())
    }

    /// Waits for the gradients of these workers and updates the model, all in one step. If one of them keeps it waiting,
    /// or is not among those that come, it is only learned who has come. It ends when it is woken, or fails with its
    /// session: given up half made, an update would be in some variables and not in others.
    fn wait_and_apply(&mut self, workers: &[usize]) -> Result<Option<i64>> {
        let gate = &self.parts.gate;
        let mut least = vec![i64::MIN; self.settings.replicas];
        for &worker in workers {
            least[worker] = self.members.step();
        }
        let expected = i32::try_from(workers.len()).unwrap_or(i32::MAX);
        let step = self.session.step().feed(&gate.expected, expected);
        let mut step = step.feed(&gate.least, least);
        for &worker in workers {
            step = step.target(&self.parts.give_applied[worker]);
        }
        let outcome = self.waker.during(|| step.fetch(&self.outcomes[1]))?;
        let outcome = counts(&outcome)?;
        let now = Instant::now();
        if let [made] = outcome[..] {
            for &worker in workers {
                self.members.arrived(worker, made, now);
            }
            return Ok(Some(made));
        }
        let (workers, steps) = outcome.split_at(outcome.len() / 2);
        self.arrived(workers, steps, now);
        Ok(None)
    }

    /// Waits a while for one worker's gradients, and takes those of all that have come.
    fn wait(&mut self) -> Result<()> {
        let [worker, step] = &self.parts.arrived;
        let arrived = self.session.step().timeout(LOOK).fetch_all([worker, step]);
        let [workers, steps] = match arrived {
            Ok(arrived) => arrived,
            Err(e) if e.code == Code::DeadlineExceeded => return Ok(()),
            Err(e) => return Err(e),
        };
        self.arrived(&counts(&workers)?, &counts(&steps)?, Instant::now());
        Ok(())
    }

    /// Notes whose gradients have come. A wake-up is nobody's.
    fn arrived(&mut self, workers: &[i64], steps: &[i64], now: Instant) {
        for (worker, step) in workers.iter().zip(steps) {
            if let Ok(worker) = usize::try_from(*worker) {
                self.members.arrived(worker, *step, now);
            }
        }
    }

    /// Looks who beats, and says who is waited for.
    fn look(&mut self) -> Result<()> {
        self.looked = Instant::now();
        let (beats, left) = (&self.parts.beats, &self.parts.left);
        let [beats, left] = self.session.step().fetch_all([beats, left])?;
        let now = Instant::now();
        self.members.heard(&counts(&beats)?, &counts(&left)?, now);
        self.drop_who_is_gone();
        let missing = self.members.missing(now);
        // If it was only word of their gradients that was lost, they wait for this in vain.
        self.give(self.members.step(), &missing)?;
        let known: Vec<(String, String)> = missing
            .iter()
            .map(|w| (self.settings.task(*w), self.members.known_of(*w, now)))
            .collect();
        self.missing.tell(&known);
        Ok(())
    }

    /// Waits no longer for workers whose processes were killed. Only asked while a step waits.
    fn drop_who_is_gone(&mut self) {
        if self.members.complete().is_some() {
            return;
        }
        for worker in self.members.silent(SILENT).into_iter().take(MAX_ASKED) {
            let task = self.settings.task(worker);
            if matches!(self.session.listens(&task), Ok(Some(false))) {
                warn!("synchronous training goes on without {task}: its process is gone");
                self.members.gone(worker);
            }
        }
    }

    /// Updates the model by the mean of `count` gradients and gives tokens of the new step to all who take part.
    fn apply(&mut self, count: usize) -> Result<i64> {
        let required = i32::try_from(count).unwrap_or(i32::MAX);
        let mut step = self.session.step().feed(&self.parts.gate.count, required);
        for worker in self.members.present() {
            step = step.target(&self.parts.give_applied[worker]);
        }
        integer(&step.fetch(&self.outcomes[0])?)
    }

    /// Gives a token to all who take part.
    fn give_all(&self, token: i64) -> Result<()> {
        self.give(token, &self.members.present())
    }

    fn give(&self, token: i64, workers: &[usize]) -> Result<()> {
        if workers.is_empty() {
            return Ok(());
        }
        let mut step = self.session.step().feed(&self.parts.token_to_give, token);
        for &worker in workers {
            step = step.target(&self.parts.give[worker]);
        }
        step.run()
    }
}
