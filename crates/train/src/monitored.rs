//! A session that looks after itself: the chief initialises or restores, others wait for it;
//! hooks run around every step; when a task is lost, a new session is made and the step repeated.

use crate::hooks::{Checkpoints, Context, Hook, SaveListener};
use crate::ready::Ready;
use crate::saver::Saver;
use downpour_build::{Code, Graph, Operation, Output, Result, Status};
use downpour_client::{Outcome, Run, Runner, Session, SessionOptions, Step, Target};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// First and longest pause between attempts to reach a cluster.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// How training is supervised.
#[must_use = "a session is made by `open`"]
pub struct Supervision {
    graph: Graph,
    target: Target,
    options: SessionOptions,
    is_chief: bool,
    dir: Option<String>,
    save_every: Every,
    keep: usize,
    patience: Duration,
    hooks: Vec<Box<dyn Hook>>,
    listeners: Vec<Box<dyn SaveListener>>,
    init: Option<Operation>,
}

/// After how much time or how many steps something happens again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Every {
    /// This time.
    Time(Duration),
    /// These steps of the global count.
    Steps(i64),
    /// Never.
    Never,
}

impl Supervision {
    /// Supervises training of a graph by the chief, on this master.
    pub fn new(target: impl Into<Target>, graph: &Graph) -> Supervision {
        Supervision {
            graph: graph.clone(),
            target: target.into(),
            options: SessionOptions::new(),
            is_chief: true,
            dir: None,
            save_every: Every::Time(Duration::from_secs(600)),
            keep: 5,
            patience: Duration::from_secs(7200),
            hooks: Vec::new(),
            listeners: Vec::new(),
            init: None,
        }
    }

    /// Whether this worker initialises, restores and saves the model; the others wait for it.
    pub fn chief(mut self, is_chief: bool) -> Supervision {
        self.is_chief = is_chief;
        self
    }

    /// How sessions are opened.
    pub fn options(mut self, options: SessionOptions) -> Supervision {
        self.options = options;
        self
    }

    /// Where checkpoints are restored from and saved to.
    pub fn checkpoints(mut self, dir: impl Into<String>, every: Every) -> Supervision {
        self.dir = Some(dir.into());
        self.save_every = every;
        self
    }

    /// How many checkpoints stay; 0 keeps all.
    pub fn keep(mut self, count: usize) -> Supervision {
        self.keep = count;
        self
    }

    /// How long to wait for the cluster and the chief, at the beginning and after a loss.
    pub fn patience(mut self, patience: Duration) -> Supervision {
        self.patience = patience;
        self
    }

    /// What happens around every step.
    pub fn hook(self, hook: impl Hook + 'static) -> Supervision {
        self.boxed_hook(Box::new(hook))
    }

    /// As [`Self::hook`], for one that is boxed already.
    pub fn boxed_hook(mut self, hook: Box<dyn Hook>) -> Supervision {
        self.hooks.push(hook);
        self
    }

    /// Tells someone of every checkpoint that this session saves.
    pub fn listener(mut self, listener: impl SaveListener + 'static) -> Supervision {
        self.listeners.push(Box::new(listener));
        self
    }

    /// Runs this instead of the variables' own initializers.
    pub fn init(mut self, init: &Operation) -> Supervision {
        self.init = Some(init.clone());
        self
    }

    /// Waits until the model is ready; a session on it.
    pub fn open(mut self) -> Result<MonitoredSession> {
        let step = crate::global_step(&self.graph);
        for hook in &mut self.hooks {
            hook.begin(&self.graph)?;
        }
        let ready = Ready::new(&self.graph);
        let init = match self.init {
            Some(init) => init,
            None => self.graph.initialize_variables(),
        };
        let unsaved: Vec<Operation> = {
            let all = self.graph.variables().into_iter();
            let unsaved = all.filter(|v| !v.is_saved());
            unsaved.map(|v| v.initializer().clone()).collect()
        };
        let init_unsaved = self.graph.group("init_unsaved", &unsaved);
        let saver = match (&self.dir, self.is_chief) {
            (Some(_), true) => {
                let saver = Saver::builder(&self.graph).keep(self.keep);
                Some(Arc::new(saver.build()?))
            }
            _ => None,
        };
        if let (Some(dir), Some(saver)) = (&self.dir, &saver) {
            let hook = Checkpoints::new(saver.clone(), dir, self.save_every);
            let mut hook = hook.listeners(self.listeners);
            hook.begin(&self.graph)?;
            self.hooks.insert(0, Box::new(hook));
        }
        let mut session = MonitoredSession {
            creator: Creator {
                ready,
                graph: self.graph.clone(),
                target: self.target,
                options: self.options,
                is_chief: self.is_chief,
                dir: self.dir,
                patience: self.patience,
                saver,
                init,
                init_unsaved,
            },
            hooks: self.hooks,
            step: step.value().clone(),
            session: None,
            stop: false,
            losses: 0,
        };
        self.graph.check()?;
        session.recovering(|_, _| Ok(()))?;
        Ok(session)
    }
}

/// What makes a session ready to train, again after each loss.
struct Creator {
    graph: Graph,
    target: Target,
    options: SessionOptions,
    is_chief: bool,
    dir: Option<String>,
    patience: Duration,
    saver: Option<Arc<Saver>>,
    ready: Ready,
    init: Operation,
    /// Gives first values to what checkpoints do not keep.
    init_unsaved: Operation,
}

impl Creator {
    /// Tries until the model is ready or patience ends.
    fn create(&self) -> Result<Session> {
        let start = Instant::now();
        let mut pause = PAUSES.0;
        let mut told = false;
        loop {
            let problem = match self.attempt() {
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
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// A session on a ready model, or which variables have no value.
    fn attempt(&self) -> Result<Result<Session, Vec<String>>> {
        let session = self.options.clone().open(&self.target, &self.graph)?;
        let missing = self.ready.missing(&session)?;
        if missing.is_empty() {
            return Ok(Ok(session));
        }
        if !self.is_chief {
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

/// A session for training.
pub struct MonitoredSession {
    creator: Creator,
    hooks: Vec<Box<dyn Hook>>,
    step: Output,
    session: Option<Arc<Session>>,
    stop: bool,
    losses: usize,
}

impl MonitoredSession {
    /// Whether a hook, or the end of data, has asked to stop.
    pub fn should_stop(&self) -> bool {
        self.stop
    }

    /// Asks to stop.
    pub fn request_stop(&mut self) {
        self.stop = true;
    }

    /// How often the session was lost and made again.
    pub fn losses(&self) -> usize {
        self.losses
    }

    /// The session as it is now, for steps that no hook shall see.
    pub fn raw(&mut self) -> Result<Arc<Session>> {
        match &self.session {
            Some(session) => Ok(session.clone()),
            None => self.reopen(),
        }
    }

    /// Begins a step.
    pub fn step(&mut self) -> MonitoredStep<'_> {
        Step::on(self)
    }

    /// The count of steps that all workers share.
    pub fn global_step(&mut self) -> Result<i64> {
        let step = self.step.clone();
        let value = self.recovering(|session, _| session.fetch(&step))?;
        crate::hooks::integer(&value)
    }

    /// Ends training: hooks do their last work and the session is closed.
    pub fn close(mut self) -> Result<()> {
        let session = self.raw()?;
        let mut outcome = Ok(());
        for hook in &mut self.hooks {
            outcome = outcome.and(hook.end(&session));
        }
        outcome
    }

    fn reopen(&mut self) -> Result<Arc<Session>> {
        let session = Arc::new(self.creator.create()?);
        for hook in &mut self.hooks {
            hook.after_create(&session)?;
        }
        self.session = Some(session.clone());
        Ok(session)
    }

    /// Repeats `body` on new sessions until no task is lost meanwhile.
    fn recovering<T>(
        &mut self,
        mut body: impl FnMut(&Arc<Session>, &mut [Box<dyn Hook>]) -> Result<T>,
    ) -> Result<T> {
        loop {
            let session = self.raw();
            let outcome = session.and_then(|session| body(&session, &mut self.hooks));
            match outcome {
                Err(e) if is_loss(&e) => {
                    warn!(%e, "a task was lost: making a new session");
                    self.losses += 1;
                    self.session = None;
                }
                outcome => return outcome,
            }
        }
    }

    fn execute(&mut self, run: &Run) -> Result<Outcome> {
        loop {
            let session = self.recovering(|session, hooks| {
                let mut hooks = hooks.iter_mut();
                hooks.try_for_each(|hook| hook.prepare(session))?;
                Ok(session.clone())
            })?;
            let mut run = run.clone();
            for hook in &mut self.hooks {
                hook.before_run(&mut run);
            }
            match session.perform(&run) {
                Err(e) if is_loss(&e) => {
                    warn!(%e, "a task was lost: making a new session");
                    self.losses += 1;
                    self.session = None;
                }
                Err(e) => return Err(e),
                Ok(done) => match self.after(&session, &done) {
                    Err(e) if is_loss(&e) => {
                        // The step itself is done: it must not be repeated.
                        warn!(%e, "a task was lost after a step: making a new session");
                        self.losses += 1;
                        self.session = None;
                        return Ok(done);
                    }
                    Err(e) => return Err(e),
                    Ok(()) => return Ok(done),
                },
            }
        }
    }

    fn after(&mut self, session: &Arc<Session>, done: &Outcome) -> Result<()> {
        let mut context = Context {
            session,
            values: &done.values,
            metadata: done.metadata.as_ref(),
            stop: &mut self.stop,
        };
        for hook in &mut self.hooks {
            hook.after_run(&mut context)?;
        }
        Ok(())
    }
}

/// Whether an error means that a task was lost and the step may be tried on a new session.
pub(crate) fn is_loss(error: &Status) -> bool {
    matches!(error.code, Code::Aborted | Code::Unavailable)
}

/// A step about to run, with hooks around it.
pub type MonitoredStep<'a> = Step<&'a mut MonitoredSession>;

impl Runner for &mut MonitoredSession {
    fn perform(self, run: &Run) -> Result<Outcome> {
        let mut done = self.execute(run)?;
        // The rest is what hooks fetched.
        done.values.truncate(run.fetched());
        Ok(done)
    }
}
