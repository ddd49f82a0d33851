//! The coordinator: carries out what [`super::machine`] asks for by small commands to the shards,
//! hands portions of the batch to replicas, and remembers everything in the cluster itself.
//!
//! Invariant: it holds no vector of the model's size, and nothing that a new one could not read from
//! the record. Between two commands the record says which comes next; a command whose outcome is not
//! written down is given again.

use super::exchange::{END, Merged};
use super::machine::{Answer, Command, End, Machine};
use super::portions::Portions;
use super::{Outcome, Plan, Progress};
use crate::monitored::is_gone;
use crate::saver::Saver;
use downpour_build::{Code, Operation, Result, Status};
use downpour_client::{Session, SessionOptions, Target};
use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tracing::{info, warn};

/// How soon the tickets are looked at when nothing comes, at first; each time it is twice as long.
const LOOK: Duration = Duration::from_millis(20);
/// Pauses between attempts to reach a cluster, shortest and longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// Called after each iteration; an error ends the run.
type Observer<'a> = Box<dyn FnMut(&Progress, &Session) -> Result<()> + 'a>;

/// Where checkpoints go and how many iterations lie between two.
struct Saving {
    prefix: String,
    dir: String,
    every: u64,
    saver: Saver,
}

/// The coordinator of a minimization.
///
/// [`Plan::coordinator`] makes it.
#[must_use = "a coordinator works by `run`"]
pub struct Coordinator<'a> {
    plan: &'a Plan,
    options: SessionOptions,
    patience: Duration,
    saving: Option<Saving>,
    observer: Option<Observer<'a>>,
    init: Operation,
    init_unsaved: Operation,
    /// The last evaluation's number.
    evaluation: i64,
    replicas: BTreeSet<i64>,
    handed: u64,
    added: u64,
    losses: u64,
}

impl<'a> Coordinator<'a> {
    pub(super) fn new(plan: &'a Plan) -> Coordinator<'a> {
        let graph = &plan.graph;
        let unsaved: Vec<_> = graph
            .variables()
            .into_iter()
            .filter(|v| !v.is_saved())
            .collect();
        let unsaved: Vec<Operation> = unsaved.iter().map(|v| v.initializer().clone()).collect();
        Coordinator {
            plan,
            options: SessionOptions::new(),
            patience: super::PATIENCE,
            saving: None,
            observer: None,
            init: graph.initialize_variables(),
            init_unsaved: graph.group("sandblaster_unsaved", &unsaved),
            evaluation: 0,
            replicas: BTreeSet::new(),
            handed: 0,
            added: 0,
            losses: 0,
        }
    }

    /// How its sessions are opened.
    pub fn options(mut self, options: SessionOptions) -> Self {
        self.options = options;
        self
    }

    /// How long to wait for the cluster, and for a replica to bring something: ten minutes unless
    /// told otherwise.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Writes checkpoints to a directory, one every so many iterations and one at the end, and goes
    /// on from the newest when the cluster has forgotten.
    pub fn checkpoints(mut self, dir: &str, every: u64) -> Result<Self> {
        self.saving = Some(Saving {
            prefix: format!("{}/model.ckpt", dir.trim_end_matches('/')),
            dir: dir.to_owned(),
            every: every.max(1),
            saver: Saver::new(&self.plan.graph)?,
        });
        Ok(self)
    }

    /// Is told after the first evaluation and after each iteration. With `OUT_OF_RANGE` it ends the
    /// minimization as if it were done ([`End::Stopped`]): the replicas leave. Any other error ends
    /// only this run, and the replicas wait for another coordinator. Either way another run goes on
    /// from there.
    pub fn observe(mut self, observer: impl FnMut(&Progress, &Session) -> Result<()> + 'a) -> Self {
        self.observer = Some(Box::new(observer));
        self
    }

    /// Minimizes: from the beginning, from where another coordinator of the same cluster was, or from
    /// the newest checkpoint. Tasks that are lost and come back are survived.
    pub fn run(mut self, target: impl Into<Target>) -> Result<Outcome> {
        let target = target.into();
        loop {
            let (session, machine) = self.open(&target)?;
            match self.minimize(&session, machine) {
                Err(why) if is_gone(&why) => {
                    warn!(%why, "a task was lost: making a new session");
                    self.losses += 1;
                    session.abandon();
                }
                outcome => return outcome,
            }
        }
    }

    /// A session on a model that is ready, and the state it is in.
    fn open(&mut self, target: &Target) -> Result<(Session, Machine)> {
        let begin = Instant::now();
        let mut pause = PAUSES.0;
        loop {
            let session = self.options.clone().open(target, &self.plan.graph);
            match session.and_then(|session| self.prepare(session)) {
                Ok(ready) => return Ok(ready),
                Err(e) if !is_gone(&e) => return Err(e),
                Err(e) if begin.elapsed() + pause > self.patience => {
                    return Err(super::not_ready(self.patience, &e.message));
                }
                Err(_) => {}
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    fn prepare(&mut self, session: Session) -> Result<(Session, Machine)> {
        let ready = &self.plan.ready;
        let lives = ready.missing(&session)?.is_empty();
        if !lives {
            // A value may have survived that does not belong to the others.
            if ready.without_value(&session)?.is_empty() {
                ready.take_word_back(&session)?;
            }
            let restored = match &self.saving {
                Some(saving) => saving.saver.restore_latest(&session, &saving.dir)?,
                None => None,
            };
            session.run(match restored {
                Some(_) => &self.init_unsaved,
                None => &self.init,
            })?;
        }
        let settings = self.plan.settings;
        let record = self.plan.vectors.read(&session)?;
        let mut machine = match record.iter().all(|number| *number == 0.0) {
            true => Machine::new(settings),
            false => Machine::from_numbers(settings, &record).ok_or_else(|| {
                Status::failed_precondition(
                    "the cluster holds the state of another method or of another length of history",
                )
            })?,
        };
        machine.continue_with(settings);
        // No number of an evaluation may come twice, also when checkpoints know only older ones.
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let now = i64::try_from(now.as_micros()).unwrap_or(i64::MAX / 2);
        self.evaluation = now.max(self.evaluation + 1);
        self.plan.exchange.set_current(&session, self.evaluation)?;
        if !lives {
            ready.give_word(&session)?;
        }
        info!(
            iteration = machine.iteration(),
            lives, "the minimization goes on"
        );
        Ok((session, machine))
    }

    fn minimize(&mut self, session: &Session, mut machine: Machine) -> Result<Outcome> {
        while let Some(command) = machine.command() {
            let before = (machine.iteration(), machine.evaluations());
            let answer = self.carry_out(session, &command)?;
            machine.tell(answer);
            self.plan.vectors.write(session, machine.numbers())?;
            let iterated = machine.is_between() && machine.iteration() > 0;
            let told = if iterated && matches!(command, Command::Pair(_)) {
                self.save(session, &machine, false)?;
                self.tell(session, &machine)
            } else if before.1 == 0 {
                self.tell(session, &machine)
            } else {
                Ok(())
            };
            match told {
                Err(e) if e.code == Code::OutOfRange => break,
                outcome => outcome?,
            }
        }
        self.save(session, &machine, true)?;
        self.plan.exchange.issue(session, self.evaluation, &[END])?;
        Ok(Outcome {
            end: machine.end().unwrap_or(End::Stopped),
            progress: self.progress(&machine),
            losses: self.losses,
        })
    }

    fn progress(&self, machine: &Machine) -> Progress {
        Progress {
            iteration: machine.iteration(),
            evaluations: machine.evaluations(),
            value: machine.value(),
            largest: machine.largest(),
            handed: self.handed,
            added: self.added,
            replicas: self.replicas.len(),
        }
    }

    fn tell(&mut self, session: &Session, machine: &Machine) -> Result<()> {
        let progress = self.progress(machine);
        match &mut self.observer {
            Some(observer) => observer(&progress, session),
            None => Ok(()),
        }
    }

    fn save(&self, session: &Session, machine: &Machine, last: bool) -> Result<()> {
        let Some(saving) = &self.saving else {
            return Ok(());
        };
        let iteration = machine.iteration();
        if last || iteration.is_multiple_of(saving.every) {
            let step = i64::try_from(iteration).unwrap_or(i64::MAX);
            saving.saver.save(session, &saving.prefix, Some(step))?;
        }
        Ok(())
    }

    fn carry_out(&mut self, session: &Session, command: &Command) -> Result<Answer> {
        let vectors = &self.plan.vectors;
        match command {
            Command::Value => self.evaluate(session),
            Command::Try(step) => {
                vectors.go(session, *step)?;
                self.evaluate(session)
            }
            Command::Pair(slot) => {
                let rows = vectors.products(session)?;
                if let Some(slot) = slot {
                    vectors.store(session, *slot)?;
                }
                let row = |i: usize| rows.row(i, *slot);
                Ok(Answer::Products {
                    pair: slot.map(|_| [row(0), row(1)]),
                    gradient: row(2),
                })
            }
            Command::Direct(coefficients) => {
                let (slope, square) = vectors.direct(session, coefficients)?;
                Ok(Answer::Direction { slope, square })
            }
            Command::Return => {
                vectors.back(session)?;
                Ok(Answer::Done)
            }
        }
    }

    /// The objective and its gradient at `x`, from the whole batch.
    fn evaluate(&mut self, session: &Session) -> Result<Answer> {
        self.evaluation += 1;
        // First the number, so that nothing older is added any more, then the sum.
        self.plan.exchange.set_current(session, self.evaluation)?;
        self.plan.vectors.clear(session)?;
        let value = self.gather(session)?;
        let measured = self.plan.vectors.measure(session)?;
        Ok(Answer::Value {
            value: value + measured.penalty,
            slope: measured.slope,
            largest: measured.largest,
        })
    }

    /// Lets replicas compute all portions; the sum of their values.
    fn gather(&mut self, session: &Session) -> Result<f64> {
        let plan = self.plan;
        let shards = plan.vectors.shards.len();
        let mut portions = Portions::new(plan.rules, plan.portions, shards);
        portions.expect(std::mem::take(&mut self.replicas));
        let (evaluation, patience) = (self.evaluation, self.patience);
        let outcome = std::thread::scope(|scope| {
            let (told, heard) = channel();
            for shard in 0..shards {
                let told = told.clone();
                scope.spawn(move || merge_all(plan, session, shard, evaluation, &told));
            }
            drop(told);
            let outcome = hand_out(plan, session, evaluation, patience, &mut portions, &heard);
            if outcome.is_err() {
                // Those who wait for gradients wait no longer.
                session.abandon();
            }
            outcome
        });
        self.handed += portions.handed();
        self.added += portions.additions();
        self.replicas = portions.replicas().clone();
        outcome.map(|()| portions.sum())
    }
}

/// Lets a shard add gradients until it has all portions.
fn merge_all(
    plan: &Plan,
    session: &Session,
    shard: usize,
    evaluation: i64,
    told: &Sender<(usize, Result<Merged>)>,
) {
    let mut has = vec![false; plan.portions];
    let mut left = plan.portions;
    while left > 0 {
        let merged = plan.exchange.merge(session, shard);
        let failed = merged.is_err();
        if let Ok(merged) = &merged {
            let portion = usize::try_from(merged.portion).unwrap_or(usize::MAX);
            let counts = merged.evaluation == evaluation && merged.counts;
            if let Some(has) = has.get_mut(portion).filter(|has| counts && !**has) {
                *has = true;
                left -= 1;
            }
        }
        if told.send((shard, merged)).is_err() || failed {
            return;
        }
    }
}

/// Hands portions out until all shards have all of them.
fn hand_out(
    plan: &Plan,
    session: &Session,
    evaluation: i64,
    patience: Duration,
    portions: &mut Portions,
    heard: &Receiver<(usize, Result<Merged>)>,
) -> Result<()> {
    let begin = Instant::now();
    let (mut untaken, mut look, mut heard_last) = (0, LOOK, Instant::now());
    while !portions.are_complete() {
        let given = portions.hand_out(begin.elapsed(), untaken);
        if !given.is_empty() {
            let given: Vec<i64> = given.iter().map(|i| *i as i64).collect();
            plan.exchange.issue(session, evaluation, &given)?;
            untaken += given.len();
        }
        match heard.recv_timeout(look) {
            Ok((shard, merged)) => {
                let merged = merged?;
                if shard == 0 {
                    untaken = merged.untaken;
                }
                if merged.evaluation == evaluation && merged.counts {
                    let portion = usize::try_from(merged.portion).unwrap_or(usize::MAX);
                    portions.counted(shard, portion, merged.replica, merged.value);
                    if merged.added {
                        portions.added();
                    }
                }
                (look, heard_last) = (LOOK, Instant::now());
            }
            Err(RecvTimeoutError::Timeout) => {
                if heard_last.elapsed() > patience {
                    return Err(Status::deadline_exceeded(format!(
                        "no replica has brought a gradient for {patience:?}: {} of {} portions are there",
                        portions.counts().first().unwrap_or(&0),
                        plan.portions
                    )));
                }
                untaken = plan.exchange.untaken(session)?;
                look = (look * 2).min(plan.rules.lease);
            }
            Err(RecvTimeoutError::Disconnected) if portions.are_complete() => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Status::internal(
                    "a shard stopped adding before it had all portions",
                ));
            }
        }
    }
    Ok(())
}
