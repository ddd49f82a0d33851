//! How training is supervised: the settings of a [`MonitoredSession`].

use crate::coordinator::Coordinator;
use crate::creator::Creator;
use crate::election::{Appointed, Election};
use crate::hooks::{Checkpoints, Hook, SaveListener};
use crate::monitored::{Duty, Every, MonitoredSession};
use crate::ready::Ready;
use crate::saver::{Saver, SaverBuilder};
use downpour_build::{Graph, Operation, Result};
use downpour_client::{SessionOptions, Target};
use std::sync::Arc;
use std::time::Duration;

/// Makes a hook that saves to a directory.
type MakeHook = Box<dyn FnOnce(Arc<Saver>, &str) -> Box<dyn Hook> + Send>;

/// How training is supervised.
///
/// ```
/// use downpour::train::hooks::{NanGuard, StopAtStep};
/// use downpour::train::{Every, GradientDescent, Minimize, Supervision, global_step};
/// use downpour::{Graph, Init, Server, ServerConfig};
/// # let dir = tempfile::tempdir()?;
/// # let dir = dir.path().to_str().unwrap();
/// let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let w = g.variable("w").init(Init::value(4.0f32)).build();
/// let loss = w.square();
/// let train = GradientDescent::new(0.1).minimize(&loss, Some(&global_step(&g)))?;
/// let session = Supervision::new(&server, &g)
///     .checkpoints(dir, Every::Steps(10))
///     .hook(NanGuard::new(&loss))
///     .hook(StopAtStep::new(30))
///     .open()?;
/// session.train(|session| session.step().target(&train).run())?;
/// assert!(downpour::train::latest_checkpoint(dir)?.unwrap().ends_with("model.ckpt-30"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a session is made by `open`"]
pub struct Supervision {
    graph: Graph,
    target: Target,
    options: SessionOptions,
    election: Box<dyn Election>,
    dir: Option<String>,
    save_every: Every,
    saver: SaverBuilder,
    /// What saves instead of [`Checkpoints`].
    saved_by: Option<MakeHook>,
    patience: Duration,
    grace: Duration,
    hooks: Vec<Duty>,
    listeners: Vec<Box<dyn SaveListener>>,
    init: Option<Operation>,
    coordinator: Coordinator,
    start_runners: bool,
}

impl Supervision {
    /// Supervises training of a graph by the chief, on this master.
    pub fn new(target: impl Into<Target>, graph: &Graph) -> Supervision {
        Supervision {
            graph: graph.clone(),
            target: target.into(),
            options: SessionOptions::new(),
            election: Box::new(Appointed(true)),
            dir: None,
            save_every: Every::Time(Duration::from_secs(600)),
            saver: Saver::builder(graph),
            saved_by: None,
            patience: Duration::from_secs(7200),
            grace: Duration::from_secs(120),
            hooks: Vec::new(),
            listeners: Vec::new(),
            init: None,
            coordinator: Coordinator::new(),
            start_runners: true,
        }
    }

    /// Whether this worker initialises, restores and saves the model; the others wait for it.
    pub fn chief(self, is_chief: bool) -> Supervision {
        self.election(Appointed(is_chief))
    }

    /// Lets an election say who initialises, restores and saves the model, now and when the one
    /// who did is gone.
    pub fn election(self, election: impl Election + 'static) -> Supervision {
        self.boxed_election(Box::new(election))
    }

    pub(crate) fn boxed_election(mut self, election: Box<dyn Election>) -> Supervision {
        self.election = election;
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

    /// Restores from a directory, and lets a hook of the chief's save there.
    pub(crate) fn saved_by(
        mut self,
        dir: String,
        hook: impl FnOnce(Arc<Saver>, &str) -> Box<dyn Hook> + Send + 'static,
    ) -> Supervision {
        self.dir = Some(dir);
        self.saved_by = Some(Box::new(hook));
        self
    }

    /// How many checkpoints stay; 0 keeps all.
    pub fn keep(mut self, count: usize) -> Supervision {
        self.saver = self.saver.keep(count);
        self
    }

    /// How checkpoints are made, in all.
    pub fn saver(mut self, saver: SaverBuilder) -> Supervision {
        self.saver = saver;
        self
    }

    /// How long to wait for the cluster and the chief, at the beginning and after a loss.
    pub fn patience(mut self, patience: Duration) -> Supervision {
        self.patience = patience;
        self
    }

    /// How long threads beside training may take to end when it ends.
    pub fn grace(mut self, grace: Duration) -> Supervision {
        self.grace = grace;
        self
    }

    /// What happens around every step.
    pub fn hook(self, hook: impl Hook + 'static) -> Supervision {
        self.boxed_hook(Box::new(hook))
    }

    /// As [`Self::hook`], for one that is boxed already.
    pub fn boxed_hook(mut self, hook: Box<dyn Hook>) -> Supervision {
        self.hooks.push(Duty::all(hook));
        self
    }

    /// What happens around every step while this worker is the chief. When it becomes the chief
    /// later, the hook learns of the session then.
    pub fn chief_hook(mut self, hook: impl Hook + 'static) -> Supervision {
        self.hooks.push(Duty::chiefs(Box::new(hook)));
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

    /// Stops with these threads: when one of them fails, so does the next step; when training
    /// ends, they are asked to stop and waited for.
    pub fn coordinator(mut self, coordinator: &Coordinator) -> Supervision {
        self.coordinator = coordinator.clone();
        self
    }

    /// Whether the graph's [`QueueRunner`](crate::QueueRunner)s are started; they are unless told
    /// otherwise.
    pub fn start_runners(mut self, start: bool) -> Supervision {
        self.start_runners = start;
        self
    }

    /// Waits until the model is ready; a session on it.
    pub fn open(mut self) -> Result<MonitoredSession> {
        let step = crate::global_step(&self.graph);
        for duty in &mut self.hooks {
            duty.hook.begin(&self.graph)?;
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
        // Whoever may become the chief must be able to save.
        let may_save = self.election.may_change() || self.election.is_chief();
        let saver = match &self.dir {
            Some(_) if may_save => {
                let saver = self.saver.build()?;
                Some(Arc::new(saver.fenced(self.election.fence())))
            }
            _ => None,
        };
        if let (Some(dir), Some(saver)) = (&self.dir, &saver) {
            let mut hook: Box<dyn Hook> = match self.saved_by {
                Some(make) => make(saver.clone(), dir),
                None => {
                    let hook = Checkpoints::new(saver.clone(), dir, self.save_every);
                    Box::new(hook.listeners(self.listeners))
                }
            };
            hook.begin(&self.graph)?;
            self.hooks.insert(0, Duty::chiefs(hook));
        }
        self.graph.check()?;
        let creator = Creator {
            ready,
            graph: self.graph.clone(),
            target: self.target,
            options: self.options,
            dir: self.dir,
            patience: self.patience,
            saver,
            init,
            init_unsaved,
        };
        let session = MonitoredSession::new(creator, self.election, self.hooks, step.value());
        session
            .beside(self.coordinator, self.grace, self.start_runners)
            .begun()
    }
}
