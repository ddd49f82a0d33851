//! A session that looks after itself: hooks run around every step, queues are filled beside them,
//! and when a task is lost, a new session is made and the step repeated.
//!
//! Invariant: a step that was done is never repeated, whatever is lost after it.

use crate::coordinator::Coordinator;
use crate::creator::Creator;
use crate::election::Election;
use crate::hooks::{Context, Hook};
use crate::runner::Registered;
use downpour_build::{Code, Output, Result, Status};
use downpour_client::{Outcome, Run, Runner, Session, Step};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tracing::{info, warn};

/// How long the threads of a lost session may take to notice.
const FAREWELL: Duration = Duration::from_secs(2);

/// After how much time or how many steps something happens again.
///
/// ```
/// use downpour::train::hooks::StopAtStep;
/// use downpour::train::{Every, Supervision, global_step};
/// use downpour::{Graph, Server, ServerConfig};
/// # let dir = tempfile::tempdir()?;
/// # let dir = dir.path().to_str().unwrap();
/// let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let count = global_step(&g).assign_add(&g.constant(1i64));
/// let session = Supervision::new(&server, &g)
///     .checkpoints(dir, Every::Steps(2))
///     .hook(StopAtStep::new(4))
///     .open()?;
/// session.train(|session| session.step().target(&count).run())?;
/// let is_saved = |step: i64| std::path::Path::new(dir).join(format!("model.ckpt-{step}.index")).exists();
/// assert_eq!([0, 1, 2, 3, 4].map(is_saved), [true, false, true, false, true]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Every {
    /// This time.
    Time(Duration),
    /// These steps of the global count.
    Steps(i64),
    /// Never.
    Never,
}

/// A hook, and whose it is.
pub(crate) struct Duty {
    pub(crate) hook: Box<dyn Hook>,
    chief_only: bool,
    /// Whether it knows the session as it is now.
    knows: bool,
}

impl Duty {
    /// A hook of every worker.
    pub(crate) fn all(hook: Box<dyn Hook>) -> Duty {
        Duty {
            hook,
            chief_only: false,
            knows: false,
        }
    }

    /// A hook of the chief.
    pub(crate) fn chiefs(hook: Box<dyn Hook>) -> Duty {
        Duty {
            chief_only: true,
            ..Duty::all(hook)
        }
    }
}

/// A session, and the threads that live as long as it does.
struct Live {
    session: Arc<Session>,
    threads: Coordinator,
    /// Nobody will use the session any more: it need not be left in order.
    lost: Arc<AtomicBool>,
}

impl Live {
    /// Starts what fills queues, and what wakes those who wait at them when it is time to stop.
    fn start(session: Arc<Session>, threads: Coordinator, runners: &[Registered]) -> Result<Live> {
        let live = Live {
            session,
            threads,
            lost: Arc::default(),
        };
        if runners.is_empty() {
            return Ok(live);
        }
        for runner in runners {
            runner.start(&live.session, &live.threads)?;
        }
        let (session, lost) = (live.session.clone(), live.lost.clone());
        let runners = runners.to_vec();
        live.threads.spawn("close queues", move |threads| {
            while !threads.wait_for_stop(Duration::from_secs(3600)) {}
            let is_lost = threads.error().is_some_and(|e| is_loss(&e));
            if is_lost || lost.load(Ordering::Acquire) {
                // Queues that outlive the session go on with the next one.
                session.abandon();
                return Ok(());
            }
            for runner in &runners {
                runner.cancel(&session);
            }
            Ok(())
        })?;
        Ok(live)
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.lost.store(true, Ordering::Release);
        self.threads.request_stop();
    }
}

/// A session for training.
///
/// [`Supervision::open`](crate::Supervision::open) makes it.
///
/// ```
/// use downpour::train::hooks::StopAtStep;
/// use downpour::train::{GradientDescent, Minimize, MonitoredSession, Supervision, global_step};
/// use downpour::{Graph, Init, Server, ServerConfig};
/// let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let w = g.variable("w").init(Init::value(8.0f32)).build();
/// let train = GradientDescent::new(0.25).minimize(&w.square(), Some(&global_step(&g)))?;
/// let mut session: MonitoredSession =
///     Supervision::new(&server, &g).hook(StopAtStep::new(3)).open()?;
/// while !session.should_stop() {
///     session.step().target(&train).run()?;
/// }
/// // Each step halves it.
/// assert_eq!(session.raw()?.fetch(&w)?.scalar_value::<f32>()?, 1.0);
/// assert_eq!((session.global_step()?, session.losses()), (3, 0));
/// session.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct MonitoredSession {
    creator: Creator,
    election: Box<dyn Election>,
    hooks: Vec<Duty>,
    step: Output,
    live: Option<Live>,
    is_chief: bool,
    stop: bool,
    losses: usize,
    coordinator: Coordinator,
    grace: Duration,
    start_runners: bool,
}

impl MonitoredSession {
    pub(crate) fn new(
        creator: Creator,
        election: Box<dyn Election>,
        hooks: Vec<Duty>,
        step: &Output,
    ) -> MonitoredSession {
        MonitoredSession {
            creator,
            election,
            hooks,
            step: step.clone(),
            live: None,
            is_chief: false,
            stop: false,
            losses: 0,
            coordinator: Coordinator::new(),
            grace: Duration::ZERO,
            start_runners: true,
        }
    }

    /// Beside these threads.
    pub(crate) fn beside(
        mut self,
        coordinator: Coordinator,
        grace: Duration,
        start_runners: bool,
    ) -> MonitoredSession {
        self.coordinator = coordinator;
        self.grace = grace;
        self.start_runners = start_runners;
        self
    }

    /// With its first session made.
    pub(crate) fn begun(mut self) -> Result<MonitoredSession> {
        self.recovering(|_, _| Ok(()))?;
        Ok(self)
    }

    /// Whether a hook or a thread beside training has asked to stop. When that was because of an
    /// error, the next step returns it instead.
    pub fn should_stop(&self) -> bool {
        let stopped = |threads: &Coordinator| threads.should_stop() && threads.error().is_none();
        let live = self.live.as_ref().map(|live| &live.threads);
        self.stop || stopped(&self.coordinator) || live.is_some_and(stopped)
    }

    /// Asks to stop.
    pub fn request_stop(&mut self) {
        self.stop = true;
    }

    /// How often the session was lost and made again.
    pub fn losses(&self) -> usize {
        self.losses
    }

    /// Whether this worker was the chief when it last looked.
    pub fn is_chief(&self) -> bool {
        self.is_chief
    }

    /// The threads that stop with this session.
    pub fn coordinator(&self) -> &Coordinator {
        &self.coordinator
    }

    /// The session as it is now, for steps that no hook shall see.
    pub fn raw(&mut self) -> Result<Arc<Session>> {
        match &self.live {
            Some(live) => Ok(live.session.clone()),
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

    /// Repeats `body`, which runs a step or several, until it is time to stop or the data has
    /// ended (`OUT_OF_RANGE`); then ends training.
    pub fn train(
        mut self,
        mut body: impl FnMut(&mut MonitoredSession) -> Result<()>,
    ) -> Result<()> {
        while !self.should_stop() {
            match body(&mut self) {
                Err(e) if e.code == Code::OutOfRange => break,
                outcome => outcome?,
            }
        }
        self.close()
    }

    /// Ends training: hooks do their last work, threads beside it end, and the session is closed.
    pub fn close(mut self) -> Result<()> {
        let session = self.raw()?;
        let mut outcome = match self.failure() {
            Some(Failure::Fatal(error)) => Err(error),
            _ => Ok(()),
        };
        if outcome.is_ok() {
            self.follow_election(&session)?;
            for duty in self.hooks.iter_mut().filter(|duty| duty.knows) {
                outcome = outcome.and(duty.hook.end(&session));
            }
        }
        self.election.resign();
        for threads in [
            self.live.as_ref().map(|live| &live.threads),
            Some(&self.coordinator),
        ] {
            let Some(threads) = threads else { continue };
            threads.request_stop();
            match threads.join(self.grace) {
                // What the threads of a session met is told by its steps.
                Err(why) if why.code == Code::DeadlineExceeded => warn!(%why, "training ends"),
                ended => outcome = outcome.and(ended.or_else(unless_loss)),
            }
        }
        outcome
    }

    /// What a thread beside training has met.
    fn failure(&self) -> Option<Failure> {
        if let Some(error) = self.coordinator.error() {
            return Some(Failure::Fatal(error));
        }
        let error = self.live.as_ref()?.threads.error()?;
        Some(Failure::from(error))
    }

    fn reopen(&mut self) -> Result<Arc<Session>> {
        let session = self
            .creator
            .create(&mut *self.election, &self.coordinator)?;
        let session = Arc::new(session);
        for duty in &mut self.hooks {
            duty.knows = false;
        }
        self.follow_election(&session)?;
        let runners = match self.start_runners {
            true => Registered::of(session.graph()),
            false => Vec::new(),
        };
        let threads = self.coordinator.child();
        self.live = Some(Live::start(session.clone(), threads, &runners)?);
        Ok(session)
    }

    /// Looks who is chief, and lets hooks begin and end accordingly.
    fn follow_election(&mut self, session: &Arc<Session>) -> Result<()> {
        let is_chief = self.election.is_chief();
        if is_chief != self.is_chief {
            let word = if is_chief { "is" } else { "is no longer" };
            info!("this worker {word} the chief");
            self.is_chief = is_chief;
        }
        for duty in &mut self.hooks {
            let wanted = is_chief || !duty.chief_only;
            match (wanted, duty.knows) {
                (true, false) => duty.hook.after_create(session)?,
                (false, true) => duty.hook.retire(),
                _ => {}
            }
            duty.knows = wanted;
        }
        Ok(())
    }

    /// Gets over a loss; returns anything else.
    fn survive(&mut self, failure: Failure) -> Result<()> {
        match failure {
            Failure::Loss(why) => {
                self.lose(&why);
                Ok(())
            }
            Failure::Fatal(why) => Err(why),
        }
    }

    /// Lets the session go, so that a new one is made.
    fn lose(&mut self, why: &Status) {
        warn!(%why, "a task was lost: making a new session");
        self.losses += 1;
        if let Some(live) = self.live.take() {
            let threads = live.threads.clone();
            // Steps that threads still run on it end; nothing of it is wanted any more.
            live.session.abandon();
            drop(live);
            if let Err(why) = threads.join(FAREWELL).or_else(unless_loss) {
                info!(%why, "threads of the lost session");
            }
        }
    }

    /// Repeats `body` on new sessions until no task is lost meanwhile.
    fn recovering<T>(
        &mut self,
        mut body: impl FnMut(&Arc<Session>, &mut [Duty]) -> Result<T>,
    ) -> Result<T> {
        loop {
            let failure = match self.failure() {
                Some(failure) => failure,
                None => {
                    let outcome = self.raw().and_then(|session| {
                        self.follow_election(&session)?;
                        body(&session, &mut self.hooks)
                    });
                    match outcome {
                        Err(e) => Failure::from(e),
                        outcome => return outcome,
                    }
                }
            };
            self.survive(failure)?;
        }
    }

    /// Runs `body` on the session as it is now, and again on a new one when a task is lost meanwhile:
    /// for what is more than a step and may be begun anew.
    pub(crate) fn on_session<T>(
        &mut self,
        mut body: impl FnMut(&Arc<Session>) -> Result<T>,
    ) -> Result<T> {
        self.recovering(|session, _| body(session))
    }

    fn execute(&mut self, run: &Run) -> Result<Outcome> {
        loop {
            let session = self.recovering(|session, hooks| {
                let mut known = hooks.iter_mut().filter(|duty| duty.knows);
                known.try_for_each(|duty| duty.hook.prepare(session))?;
                Ok(session.clone())
            })?;
            let mut run = run.clone();
            for duty in self.hooks.iter_mut().filter(|duty| duty.knows) {
                duty.hook.before_run(&mut run);
            }
            match session.perform(&run) {
                // A thread that failed may have been why.
                Err(e) => {
                    let failure = self.failure().unwrap_or(Failure::from(e));
                    self.survive(failure)?;
                }
                Ok(done) => match self.after(&session, &done) {
                    Err(e) if is_loss(&e) => {
                        // The step itself is done: it must not be repeated.
                        self.lose(&e);
                        return Ok(done);
                    }
                    Err(e) => return Err(e),
                    Ok(()) => return Ok(done),
                },
            }
        }
    }

    fn after(&mut self, session: &Arc<Session>, done: &Outcome) -> Result<()> {
        // A step may have outlasted a term of office: who is no longer chief must not save.
        let is_chief = self.election.is_chief();
        let mut context = Context {
            session,
            values: &done.values,
            metadata: done.metadata.as_ref(),
            stop: &mut self.stop,
        };
        let serves = |duty: &&mut Duty| duty.knows && (is_chief || !duty.chief_only);
        for duty in self.hooks.iter_mut().filter(serves) {
            duty.hook.after_run(&mut context)?;
        }
        Ok(())
    }
}

/// Training that ends, however it does, takes the threads beside it along.
impl Drop for MonitoredSession {
    fn drop(&mut self) {
        self.coordinator.request_stop();
    }
}

/// Why a step did not run.
enum Failure {
    /// A task was lost: a new session may do it.
    Loss(Status),
    /// No other session would do better.
    Fatal(Status),
}

impl From<Status> for Failure {
    fn from(error: Status) -> Failure {
        match is_loss(&error) {
            true => Failure::Loss(error),
            false => Failure::Fatal(error),
        }
    }
}

/// Whether an error means that a task was lost and the step may be tried on a new session.
pub(crate) fn is_loss(error: &Status) -> bool {
    matches!(error.code, Code::Aborted | Code::Unavailable)
}

/// Whether an error of a thread beside training means that its session is no more: a task was lost,
/// or the session was closed because of that while the thread's step was under way.
pub(crate) fn is_gone(error: &Status) -> bool {
    is_loss(error) || error.code == Code::Cancelled
}

fn unless_loss(error: Status) -> Result<()> {
    match is_loss(&error) {
        true => Ok(()),
        false => Err(error),
    }
}

/// A step about to run, with hooks around it.
///
/// [`MonitoredSession::step`] begins it.
///
/// ```
/// use downpour::train::{MonitoredStep, Supervision};
/// use downpour::{DType, Graph, Server, ServerConfig};
/// let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let x = g.placeholder("x", DType::Float, ());
/// let (double, square) = (&x * 2.0, x.square());
/// let mut session = Supervision::new(&server, &g).open()?;
/// let step: MonitoredStep<'_> = session.step().feed(&x, 3.0f32);
/// let [double, square] = step.fetch_all([&double, &square])?;
/// assert_eq!(double.scalar_value::<f32>()?, 6.0);
/// assert_eq!(square.scalar_value::<f32>()?, 9.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type MonitoredStep<'a> = Step<&'a mut MonitoredSession>;

impl Runner for &mut MonitoredSession {
    fn perform(self, run: &Run) -> Result<Outcome> {
        let mut done = self.execute(run)?;
        // The rest is what hooks fetched.
        done.values.truncate(run.fetched());
        Ok(done)
    }
}
