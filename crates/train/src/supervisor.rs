//! TensorFlow's `Supervisor`: a session whose chief saves and writes summaries on threads beside
//! training, instead of between its steps. It is the same session that [`Supervision`] makes, with
//! other hooks; nothing here recovers or restores.

use crate::coordinator::Coordinator;
use crate::election::{Appointed, Election};
use crate::events::Events;
use crate::global_step;
use crate::hooks::{Hook, integer};
use crate::monitored::{MonitoredSession, is_gone};
use crate::services::{ServicePlan, Services};
use crate::supervision::Supervision;
use downpour_build::{Graph, Output, Result, Status, Tensor, summary};
use downpour_client::{Session, SessionOptions, Target};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// Looks after training: sessions, checkpoints, summaries, threads. Clones are the same one.
///
/// ```
/// use downpour::train::{GradientDescent, Minimize, Supervisor, global_step};
/// use downpour::{Graph, Init, Server, ServerConfig, summary};
/// use std::time::Duration;
/// # let dir = tempfile::tempdir()?;
/// # let dir = dir.path().to_str().unwrap();
/// let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let w = g.variable("w").init(Init::value(4.0f32)).build();
/// let loss = w.square();
/// summary::scalar("loss", &loss);
/// let train = GradientDescent::new(0.1).minimize(&loss, Some(&global_step(&g)))?;
/// let supervisor = Supervisor::builder(&server, &g)
///     .logdir(dir)
///     .save_model_every(Some(Duration::from_secs(600)))
///     .build()?;
/// let mut session = supervisor.managed_session()?;
/// while !supervisor.should_stop() {
///     session.step().target(&train).run()?;
///     if session.global_step()? == 30 {
///         supervisor.request_stop();
///     }
/// }
/// session.close()?;
/// assert!(downpour::train::latest_checkpoint(dir)?.unwrap().ends_with("model.ckpt-30"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Supervisor {
    shared: Arc<Shared>,
}

struct Shared {
    coordinator: Coordinator,
    events: Option<Events>,
    step: Output,
    /// The session as it is now.
    current: Arc<Mutex<Option<Arc<Session>>>>,
    /// What the session will be made by.
    supervision: Mutex<Option<Supervision>>,
}

/// A supervisor about to be made.
///
/// [`Supervisor::builder`] begins it.
///
/// ```
/// use downpour::train::hooks::StopAtStep;
/// use downpour::train::{Supervisor, global_step, latest_checkpoint};
/// use downpour::{Graph, Server, ServerConfig};
/// # let dir = tempfile::tempdir()?;
/// # let dir = dir.path().to_str().unwrap();
/// let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let count = global_step(&g).assign_add(&g.constant(1i64));
/// let supervisor = Supervisor::builder(&server, &g)
///     .logdir(dir)
///     .save_model_every(None)
///     .hook(StopAtStep::new(3))
///     .build()?;
/// let mut session = supervisor.managed_session()?;
/// while !session.should_stop() {
///     session.step().target(&count).run()?;
/// }
/// assert_eq!(session.global_step()?, 3);
/// session.close()?;
/// assert_eq!(latest_checkpoint(dir)?, None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a supervisor is made by `build`"]
pub struct SupervisorBuilder {
    graph: Graph,
    target: Target,
    election: Box<dyn Election>,
    options: SessionOptions,
    logdir: Option<String>,
    save_model: Option<Duration>,
    save_summaries: Option<Duration>,
    own_summaries: bool,
    patience: Duration,
    grace: Duration,
    hooks: Vec<Box<dyn Hook>>,
}

impl Supervisor {
    /// Begins a supervisor of training of a graph by the chief, on this master.
    pub fn builder(target: impl Into<Target>, graph: &Graph) -> SupervisorBuilder {
        SupervisorBuilder {
            graph: graph.clone(),
            target: target.into(),
            election: Box::new(Appointed(true)),
            options: SessionOptions::new(),
            logdir: None,
            save_model: Some(Duration::from_secs(600)),
            save_summaries: Some(Duration::from_secs(120)),
            own_summaries: false,
            patience: Duration::from_secs(7200),
            grace: Duration::from_secs(120),
            hooks: Vec::new(),
        }
    }

    /// Waits until the model is ready; the session to train by. There is one for each supervisor.
    /// Closing it ends training: the services do their last work and all threads end.
    pub fn managed_session(&self) -> Result<MonitoredSession> {
        let supervision = self.shared.supervision.lock().take();
        let taken = || {
            Status::failed_precondition("this supervisor's session was made already: make another")
        };
        supervision.ok_or_else(taken)?.open()
    }

    /// Whether training should stop: someone asked for it, or a thread has failed.
    pub fn should_stop(&self) -> bool {
        self.shared.coordinator.should_stop()
    }

    /// Asks training to stop.
    pub fn request_stop(&self) {
        self.shared.coordinator.request_stop();
    }

    /// The threads that stop with training.
    pub fn coordinator(&self) -> &Coordinator {
        &self.shared.coordinator
    }

    /// The event file, if there is one.
    pub fn events(&self) -> Option<&Events> {
        self.shared.events.as_ref()
    }

    /// Calls a function again and again beside training, each time with the session as it is then;
    /// there may be none at the time, or one that is lost, and then it is called the next time. Its
    /// other errors end training.
    ///
    /// ```
    /// use downpour::train::{Supervisor, global_step};
    /// use downpour::{Graph, Server, ServerConfig};
    /// use std::time::Duration;
    /// let server = Server::start(ServerConfig::local())?;
    /// let g = Graph::new();
    /// let step = global_step(&g);
    /// let count = step.assign_add(&g.constant(1i64));
    /// let supervisor = Supervisor::builder(&server, &g).build()?;
    /// let watcher = supervisor.clone();
    /// supervisor.loop_every(Duration::from_millis(1), move |session| {
    ///     if session.fetch(&step)?.as_slice::<i64>().is_ok_and(|step| step[0] >= 5) {
    ///         watcher.request_stop();
    ///     }
    ///     Ok(())
    /// })?;
    /// let session = supervisor.managed_session()?;
    /// session.train(|session| session.step().target(&count).run())?;
    /// assert!(supervisor.should_stop());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn loop_every(
        &self,
        interval: Duration,
        mut body: impl FnMut(&Arc<Session>) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let current = self.shared.current.clone();
        let coordinator = &self.shared.coordinator;
        coordinator.spawn_every("supervisor's loop", interval, move || {
            let session = current.lock().clone();
            match session.map_or(Ok(()), |session| body(&session)) {
                Err(e) if is_gone(&e) => Ok(()),
                outcome => outcome,
            }
        })
    }

    /// Writes a summary that was computed by a step of one's own, at this step or, without one, at
    /// the step as it is now.
    ///
    /// # Errors
    /// `FAILED_PRECONDITION` if there is no event file, as on workers that are not the chief.
    pub fn summary_computed(&self, summary: &Tensor, step: Option<i64>) -> Result<()> {
        let none = || Status::failed_precondition("Writing a summary requires a summary writer.");
        let events = self.shared.events.as_ref().ok_or_else(none)?;
        let step = match (step, &*self.shared.current.lock()) {
            (Some(step), _) => step,
            (None, Some(session)) => integer(&session.fetch(&self.shared.step)?)?,
            (None, None) => 0,
        };
        events.summary(step, summary)
    }
}

impl SupervisorBuilder {
    /// Whether this worker initialises, restores, saves and writes summaries; others wait for it.
    pub fn chief(self, is_chief: bool) -> SupervisorBuilder {
        self.election(Appointed(is_chief))
    }

    /// Lets an election say who is the chief.
    pub fn election(mut self, election: impl Election + 'static) -> SupervisorBuilder {
        self.election = Box::new(election);
        self
    }

    /// How sessions are opened.
    pub fn options(mut self, options: SessionOptions) -> SupervisorBuilder {
        self.options = options;
        self
    }

    /// Where checkpoints and events go; without this there are none.
    pub fn logdir(mut self, dir: impl Into<String>) -> SupervisorBuilder {
        self.logdir = Some(dir.into());
        self
    }

    /// How often a checkpoint is saved; not at all if not given, and 600 s unless told otherwise.
    pub fn save_model_every(mut self, time: Option<Duration>) -> SupervisorBuilder {
        self.save_model = time;
        self
    }

    /// How often the graph's summaries are computed and the speed is told; not at all if not given,
    /// and 120 s unless told otherwise.
    pub fn save_summaries_every(mut self, time: Option<Duration>) -> SupervisorBuilder {
        self.save_summaries = time;
        self
    }

    /// Computes no summaries: they need to be fed, and [`Supervisor::summary_computed`] is told.
    pub fn own_summaries(mut self) -> SupervisorBuilder {
        self.own_summaries = true;
        self
    }

    /// How long to wait for the cluster and the chief, at the beginning and after a loss.
    pub fn patience(mut self, patience: Duration) -> SupervisorBuilder {
        self.patience = patience;
        self
    }

    /// How long threads may take to end when training ends.
    pub fn grace(mut self, grace: Duration) -> SupervisorBuilder {
        self.grace = grace;
        self
    }

    /// What else happens around every step.
    pub fn hook(mut self, hook: impl Hook + 'static) -> SupervisorBuilder {
        self.hooks.push(Box::new(hook));
        self
    }

    /// Adds what it needs to the graph.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if this is one of several workers and a variable is on no device: each
    /// worker would have its own.
    pub fn build(mut self) -> Result<Supervisor> {
        let (graph, step) = (&self.graph, global_step(&self.graph));
        let may_be_chief = self.election.may_change() || self.election.is_chief();
        if !may_be_chief {
            check_devices(graph)?;
        }
        let coordinator = Coordinator::new();
        let events = match &self.logdir {
            Some(dir) if may_be_chief => Some(Events::create(dir)?),
            _ => None,
        };
        let summaries = match self.own_summaries {
            true => None,
            false => summary::merge_all(graph),
        };
        let current: Arc<Mutex<Option<Arc<Session>>>> = Arc::default();
        let mut supervision = Supervision::new(&self.target, graph)
            .boxed_election(self.election)
            .options(self.options)
            .patience(self.patience)
            .grace(self.grace)
            .coordinator(&coordinator)
            .hook(Current(current.clone()));
        if let (Some(dir), Some(events)) = (self.logdir, &events) {
            let plan = ServicePlan {
                events: events.clone(),
                summaries,
                step: step.value().clone(),
                save_model: self.save_model,
                save_summaries: self.save_summaries,
                grace: self.grace,
                threads: coordinator.clone(),
            };
            supervision = supervision.saved_by(dir, move |saver, dir| {
                Box::new(Services::new(plan, saver, dir))
            });
        }
        for hook in self.hooks {
            supervision = supervision.boxed_hook(hook);
        }
        Ok(Supervisor {
            shared: Arc::new(Shared {
                coordinator,
                events,
                step: step.value().clone(),
                current,
                supervision: Mutex::new(Some(supervision)),
            }),
        })
    }
}

/// Tells the supervisor's threads which session there is.
struct Current(Arc<Mutex<Option<Arc<Session>>>>);

impl Hook for Current {
    fn after_create(&mut self, session: &Arc<Session>) -> Result<()> {
        *self.0.lock() = Some(session.clone());
        Ok(())
    }
}

/// A session that is closed must not be kept by those who look for it.
impl Drop for Current {
    fn drop(&mut self) {
        *self.0.lock() = None;
    }
}

/// Refuses variables that would be another for every worker.
fn check_devices(graph: &Graph) -> Result<()> {
    let variables = graph.variables();
    let homeless = variables
        .iter()
        .find(|v| v.handle().operation().device().is_empty() && v.is_saved());
    match homeless {
        None => Ok(()),
        Some(v) => Err(Status::invalid_argument(format!(
            "When using replicas, all Variables must have their device set: {}",
            v.name()
        ))),
    }
}
