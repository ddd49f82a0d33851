//! The chief's part: a thread that gathers workers' gradients and updates the model. With an election every worker has
//! this thread, which looks on until the worker is elected; it does not wait for the worker's step, which waits for it.

use super::lead::{Claims, Lead, Next};
use super::members::Members;
use super::parts::Parts;
use super::wake_chief::ChiefWaker;
use super::{END, HEARTBEAT_EVERY, MissingWorkers, SyncReplicas, counts};
use crate::election::{Election, SharedElection};
use crate::hooks::integer;
use crate::monitored::is_gone;
use downpour_build::{Output, Result, Status};
use downpour_client::Session;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tracing::{error, info, warn};

/// How long the chief waits for a gradient before it looks who is still there.
const LOOK: Duration = Duration::from_millis(500);

/// A worker that was not heard of for so long may be gone.
const SILENT: Duration = HEARTBEAT_EVERY.saturating_mul(3);

/// How many silent workers are looked for at a time: a host that is off keeps the chief for a moment.
const MAX_ASKED: usize = 4;

/// How often a worker that is not the chief looks whether it is. Of a lease it is a small part.
const FOLLOW_EVERY: Duration = Duration::from_millis(50);

/// Who leads: this worker always, or while it is elected.
pub(super) enum Leader {
    Appointed,
    Elected(SharedElection),
}

impl Leader {
    /// The epoch in which this worker leads now.
    fn epoch(&mut self) -> Option<i64> {
        match self {
            Leader::Appointed => Some(0),
            Leader::Elected(election) => {
                let epoch = election.epoch()?;
                Some(i64::try_from(epoch).unwrap_or(i64::MAX))
            }
        }
    }
}

/// Gathers gradients, on a thread of its own for each session.
pub(crate) struct Chief {
    settings: SyncReplicas,
    parts: Arc<Parts>,
    /// The step after an update, or what comes of waiting for one.
    outcome: Output,
    global_step: Output,
    missing: MissingWorkers,
    election: Option<SharedElection>,
    /// Whether it gathers now.
    leads: Arc<AtomicBool>,
    running: Option<(Arc<ChiefWaker>, JoinHandle<()>)>,
}

impl Chief {
    /// Appointed, or elected.
    pub(crate) fn new(
        settings: SyncReplicas,
        parts: Arc<Parts>,
        outcome: Output,
        global_step: Output,
        missing: MissingWorkers,
        election: Option<SharedElection>,
    ) -> Chief {
        Chief {
            settings,
            parts,
            outcome,
            global_step,
            missing,
            election,
            leads: Arc::default(),
            running: None,
        }
    }

    /// Whether this worker gathers now, also as it changes.
    pub(super) fn leads(&self) -> &Arc<AtomicBool> {
        &self.leads
    }

    /// Begins on a new session.
    pub(crate) fn start(&mut self, session: &Arc<Session>) -> Result<()> {
        self.halt();
        let waker = ChiefWaker::start(session, &self.parts, self.settings.replicas, LOOK)?;
        let waker = Arc::new(waker);
        let mut gathering = Gathering {
            members: Members::new(&self.settings, Instant::now()),
            settings: self.settings.clone(),
            parts: self.parts.clone(),
            outcome: self.outcome.clone(),
            global_step: self.global_step.clone(),
            session: session.clone(),
            missing: self.missing.clone(),
            waker: waker.clone(),
            looked: Instant::now(),
            lead: Lead::default(),
            claimed: 0,
            leads: self.leads.clone(),
        };
        let mut leader = match &self.election {
            Some(election) => Leader::Elected(election.clone()),
            None => Leader::Appointed,
        };
        if let Leader::Appointed = leader {
            // Its own first step must not come before.
            gathering.take_over(0)?;
        }
        let thread = std::thread::Builder::new().name("sync-chief".to_owned());
        let thread = thread.spawn(move || match gathering.run(&mut leader) {
            Ok(()) => {}
            Err(why) if is_gone(&why) => info!(%why, "gathering gradients ended with its session"),
            Err(why) => error!(%why, "gathering gradients failed"),
        });
        let thread = thread.map_err(|e| Status::unavailable(e.to_string()))?;
        self.running = Some((waker, thread));
        Ok(())
    }

    /// Ends this worker's part, and training for all if it leads.
    pub(crate) fn stop(&mut self, session: &Arc<Session>) -> Result<()> {
        let mut leads = true;
        if let Some(election) = &mut self.election {
            // What was known when it was halted may be over.
            leads = election.is_chief();
            // Another that is elected now does not wait for this one.
            session.run(&self.parts.leave)?;
        }
        self.halt();
        if !leads {
            return Ok(());
        }
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
            thread.thread().unpark();
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
        self.leads.store(false, Ordering::Relaxed);
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
    outcome: Output,
    global_step: Output,
    session: Arc<Session>,
    missing: MissingWorkers,
    waker: Arc<ChiefWaker>,
    members: Members,
    looked: Instant,
    lead: Lead,
    /// The epoch in which updates are made.
    claimed: i64,
    leads: Arc<AtomicBool>,
}

impl Gathering {
    /// Leads whenever it is this worker's turn, until it is to end.
    fn run(&mut self, leader: &mut Leader) -> Result<()> {
        let is_elected = matches!(leader, Leader::Elected(_));
        while !self.waker.is_hurried() {
            let next = self.lead.next(leader.epoch());
            let leads = next == Next::Gather;
            self.leads.store(leads, Ordering::Relaxed);
            let done = match next {
                Next::Watch => {
                    std::thread::park_timeout(FOLLOW_EVERY);
                    Ok(())
                }
                Next::TakeOver(epoch) => self.take_over(epoch),
                Next::Gather => self.gather(),
            };
            match done {
                // A new session halts this thread if that is what is needed. If not, another attempt may help, here or
                // by the next chief.
                Err(why) if is_elected && is_gone(&why) => {
                    info!(%why, "leading synchronous training pauses");
                    self.lead.begin_anew();
                    std::thread::park_timeout(LOOK);
                }
                done => done?,
            }
        }
        Ok(())
    }

    /// Begins to lead in an epoch: finds out where training stands, and lets all go on from there. The values of the
    /// model stay as they are.
    fn take_over(&mut self, epoch: i64) -> Result<()> {
        let claims = counts(&self.session.fetch(&self.parts.epochs)?)?;
        let claims = Claims::of(&claims, self.settings.worker);
        let Some(claimed) = claims.to_claim(epoch) else {
            self.refused(epoch);
            return Ok(());
        };
        self.claimed = claimed;
        if epoch > 0 {
            let claim = self.session.step().feed(&self.parts.claimed, [epoch]);
            claim.target(&self.parts.claim).run()?;
        }
        if claims.had_chief {
            // A step of the last chief's that still waits on the servers ends without an update, instead of taking the
            // words that are for this one.
            let words = vec![-1i64; self.settings.replicas];
            let wake = self.session.step().feed(&self.parts.gate.wake_words, words);
            wake.target(&self.parts.gate.wake).run()?;
        }
        let step = integer(&self.session.fetch(&self.global_step)?)?;
        let reset = self.session.step().feed(&self.parts.step_to_reset, step);
        reset.target(&self.parts.reset).run()?;
        let now = Instant::now();
        self.members = Members::new(&self.settings, now);
        self.members.begin(step, now);
        self.lead.took_over(epoch);
        // A worker that waits for a token of the last chief's gets one of this step. Before the first step
        // nobody does: a token would only let a quick worker push its gradients twice.
        if step > 0 || claims.had_chief {
            self.give_all(step)?;
        }
        if epoch > 0 {
            info!(epoch, step, "this worker leads synchronous training");
            self.look()?;
        }
        if let Some(former) = claims.former {
            self.drop_if_gone(former);
        }
        Ok(())
    }

    fn refused(&mut self, epoch: i64) {
        warn!(
            epoch,
            "the parameter servers know of a later chief: this one makes no update"
        );
        self.lead.refused(epoch);
    }

    /// Waits for gradients, and updates the model when all are there.
    fn gather(&mut self) -> Result<()> {
        let made = match (self.members.complete(), self.members.awaited()) {
            (Some(count), _) => self.apply(count)?,
            (None, Some(workers)) => self.wait_and_apply(&workers)?,
            (None, None) => {
                self.wait()?;
                None
            }
        };
        if let Some(step) = made {
            self.members.begin(step, Instant::now());
        }
        if self.looked.elapsed() >= LOOK {
            self.look()?;
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
        let step = step.feed(&gate.least, least);
        let mut step = step.feed(&gate.epoch, self.claimed);
        for &worker in workers {
            step = step.target(&self.parts.give_applied[worker]);
        }
        let outcome = self.waker.during(|| step.fetch(&self.outcome))?;
        let outcome = counts(&outcome)?;
        if let [made] = outcome[..] {
            let now = Instant::now();
            for &worker in workers {
                self.members.arrived(worker, made, now);
            }
            return Ok(Some(made));
        }
        let (workers, steps) = outcome.split_at(outcome.len() / 2);
        self.arrived(workers, steps)?;
        Ok(None)
    }

    /// Waits for one worker's gradients, and takes word of all that have come. It ends when it is woken: given up, it might
    /// lose what it has taken, and on a busy machine did.
    fn wait(&mut self) -> Result<()> {
        let [worker, step] = &self.parts.arrived;
        let words = self.session.step();
        let [workers, steps] = self.waker.during(|| words.fetch_all([worker, step]))?;
        self.arrived(&counts(&workers)?, &counts(&steps)?)
    }

    /// Notes whose gradients have come. A wake-up is nobody's.
    fn arrived(&mut self, workers: &[i64], steps: &[i64]) -> Result<()> {
        let (before, now) = (self.members.present(), Instant::now());
        for (worker, step) in workers.iter().zip(steps) {
            if let Ok(worker) = usize::try_from(*worker) {
                self.members.arrived(worker, *step, now);
            }
        }
        self.welcome(&before)
    }

    /// Gives tokens to those who take part and did not before. Their gradients may be of a step that was made without
    /// them: they would wait for a token in vain, and all others for them.
    fn welcome(&self, before: &[usize]) -> Result<()> {
        let mut joined = self.members.present();
        joined.retain(|worker| !before.contains(worker));
        self.give(self.members.step(), &joined)
    }

    /// Looks who beats, and says who is waited for.
    fn look(&mut self) -> Result<()> {
        self.looked = Instant::now();
        let (beats, left) = (&self.parts.beats, &self.parts.left);
        let [beats, left] = self.session.step().fetch_all([beats, left])?;
        let (before, now) = (self.members.present(), Instant::now());
        self.members.heard(&counts(&beats)?, &counts(&left)?, now);
        self.welcome(&before)?;
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
            self.drop_if_gone(worker);
        }
    }

    fn drop_if_gone(&mut self, worker: usize) {
        let task = self.settings.task(worker);
        if matches!(self.session.listens(&task), Ok(Some(false))) {
            warn!("synchronous training goes on without {task}: its process is gone");
            self.members.gone(worker);
        }
    }

    /// Updates the model by the mean of `count` gradients that have come, and gives tokens of the new step to all who
    /// take part.
    fn apply(&mut self, count: usize) -> Result<Option<i64>> {
        let gate = &self.parts.gate;
        let [who, of] = &gate.words;
        let step = self.session.step().feed(who, vec![0i64; count]);
        let step = step.feed(of, vec![0i64; count]);
        let step = step.feed(&gate.least, vec![i64::MIN; self.settings.replicas]);
        let mut step = step.feed(&gate.epoch, self.claimed);
        for worker in self.members.present() {
            step = step.target(&self.parts.give_applied[worker]);
        }
        let outcome = counts(&step.fetch(&self.outcome)?)?;
        if let [made] = outcome[..] {
            return Ok(Some(made));
        }
        // All were there, and still it was not made.
        self.refused(self.lead.term().unwrap_or(0));
        Ok(None)
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
