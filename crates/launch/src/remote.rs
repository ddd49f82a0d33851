//! Tasks elsewhere. A [`Site`] knows one kind of place: how a task is started there and followed to its end. This
//! engine gives every start a thread, keeps signals for tasks that are on their way, and knows which hosts are lost.

use crate::docker::Docker;
use crate::engine::{Engine, Message, Outlet, Placed, Start, last_word};
use crate::job::{Event, TaskId};
use crate::kubernetes::Cluster;
use crate::launcher::{LaunchError, Setup};
use crate::output::Listener;
use crate::plan::{self, Planned};
use crate::site::On;
use crate::slurm::Allocation;
use crate::spec::JobSpec;
use crate::ssh::Ssh;
use crate::state::Exit;
use crate::{TaskName, dir};
use downpour_cluster::ClusterSpec;
use parking_lot::Mutex;
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

/// How long threads that follow tasks may take to end after the job.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// A kind of place where tasks run.
pub(crate) trait Site: Send + Sync {
    /// The program of this name, as it is called there.
    fn server(&self) -> String;

    /// Addresses and hosts for all tasks.
    fn place(&self, spec: &JobSpec, lost: &BTreeSet<String>) -> Result<Placed, String>;

    /// Starts a task, or finds the one that a launcher before this one has started, and follows it to its end.
    fn conduct(&self, task: &Task, reins: &Reins, outlet: &Outlet) -> Ending;

    /// The run of this job whose tasks are there.
    fn find(&self, _job: &str, _hosts: &[Option<String>]) -> Result<Option<String>, String> {
        Ok(None)
    }

    /// Prepares for the tasks of this run.
    fn begin(&self, _spec: &JobSpec, _dir: &Path) -> Result<(), String> {
        Ok(())
    }

    /// Removes what this run left.
    fn clean_up(&self, job: &str, run: &str);
}

/// A task to conduct.
pub(crate) struct Task {
    pub(crate) planned: Planned,
    pub(crate) host: String,
    pub(crate) job: String,
    /// The run's directory on the launcher's host; it names the run.
    pub(crate) dir: PathBuf,
    pub(crate) start: u32,
    /// Whether one that a launcher before this one has started is taken for it.
    pub(crate) adopts: bool,
    pub(crate) drain: Duration,
}

impl Task {
    pub(crate) fn run(&self) -> String {
        self.dir.display().to_string()
    }

    /// As in `worker-0`, or `worker-0-server` beside it.
    pub(crate) fn file_name(&self) -> String {
        let log = self.planned.name.log_file();
        log.trim_end_matches(".log").to_owned()
    }

    /// The task's environment.
    pub(crate) fn env(&self) -> std::collections::BTreeMap<String, String> {
        let mut env = self.planned.env.clone();
        env.insert("DOWNPOUR_DIR".to_owned(), self.run());
        env.insert("DOWNPOUR_START".to_owned(), self.start.to_string());
        env
    }
}

/// How a start ended.
#[derive(Debug)]
pub(crate) enum Ending {
    /// The task ended.
    Exited(Exit),
    /// It could not be started.
    NotStarted(String),
    /// Its host is gone, and the task with it.
    HostLost(String),
}

/// Passes signals to a task, once it runs.
pub(crate) struct Reins {
    id: TaskId,
    /// Whether the task says when it listens; otherwise it does as soon as it runs.
    announces: bool,
    inbox: Sender<Message>,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    pending: Option<Signal>,
    deliver: Option<Deliver>,
    is_told: bool,
}

/// Whether a signal could be sent.
type Deliver = Box<dyn FnMut(Signal) -> bool + Send>;

impl Reins {
    /// The task runs; so it is signalled. Called again after contact was lost.
    pub(crate) fn take(&self, pid: Option<u32>, mut deliver: Deliver) {
        let mut held = self.held.lock();
        if !std::mem::replace(&mut held.is_told, true) {
            // The job may be over.
            let _ = self
                .inbox
                .send(Message::Event(Event::Started(self.id, pid)));
            if !self.announces {
                let _ = self.inbox.send(Message::Event(Event::Ready(self.id)));
            }
        }
        if let Some(signal) = held.pending
            && deliver(signal)
        {
            held.pending = None;
        }
        held.deliver = Some(deliver);
    }

    /// There is no contact.
    pub(crate) fn drop_contact(&self) {
        self.held.lock().deliver = None;
    }

    /// Says something of the task.
    pub(crate) fn note(&self, text: String) {
        let _ = self.inbox.send(Message::Event(Event::Noted(self.id, text)));
    }

    /// A signal that waits for the task to run.
    pub(crate) fn pending(&self) -> Option<Signal> {
        self.held.lock().pending
    }

    fn signal(&self, signal: Signal) {
        let mut held = self.held.lock();
        let is_delivered = held.deliver.as_mut().is_some_and(|deliver| deliver(signal));
        if !is_delivered {
            held.pending = Some(signal);
        }
    }
}

/// The tasks of a job elsewhere.
pub(crate) struct Remote {
    site: Arc<dyn Site>,
    spec: JobSpec,
    inbox: Sender<Message>,
    reins: Vec<Option<Arc<Reins>>>,
    lost: Arc<Mutex<BTreeSet<String>>>,
    /// Tasks that were placed by a launcher before this one, and where.
    adopted: Option<Kept>,
    dir: PathBuf,
    unlogged: Option<String>,
    following: Arc<AtomicUsize>,
    /// Which tasks this launcher has started or found.
    known: BTreeSet<TaskId>,
}

impl Remote {
    /// Finds out whether the place can be used; none if the job runs on this machine.
    pub(crate) fn prepare(
        spec: &JobSpec,
        setup: &Setup,
        inbox: &Sender<Message>,
    ) -> Result<Option<Remote>, String> {
        let site: Arc<dyn Site> = match spec.on {
            On::Local => return Ok(None),
            On::Ssh => Arc::new(Ssh::prepare(spec, setup)?),
            On::Docker => Arc::new(Docker::prepare(spec, setup)?),
            On::Slurm => Arc::new(Allocation::prepare(spec, setup)?),
            On::Kubernetes => Arc::new(Cluster::prepare(spec)?),
            On::Yarn => {
                let master = setup.yarn.clone();
                Arc::new(master.ok_or("this is no ApplicationMaster of YARN")?)
            }
        };
        Remote::on(site, spec, inbox).map(Some)
    }

    /// The same for a place that can be used.
    pub(crate) fn on(
        site: Arc<dyn Site>,
        spec: &JobSpec,
        inbox: &Sender<Message>,
    ) -> Result<Remote, String> {
        let mut remote = Remote {
            site,
            spec: spec.clone(),
            inbox: inbox.clone(),
            reins: Vec::new(),
            lost: Arc::default(),
            adopted: None,
            dir: PathBuf::new(),
            unlogged: None,
            following: Arc::default(),
            known: BTreeSet::new(),
        };
        remote.adopted = remote.find_run()?;
        Ok(remote)
    }

    /// A run of the same job whose tasks are there and whose launcher is not.
    fn find_run(&self) -> Result<Option<Kept>, String> {
        let Some(run) = self.site.find(&self.spec.name, &[])? else {
            return Ok(None);
        };
        let name = &self.spec.name;
        let shown = run.escape_debug();
        if let Some(launcher) = crate::record::launcher(Path::new(&run)) {
            return Err(format!(
                "job '{name}' runs already: its launcher is process {launcher}, its directory {shown}; take another --name"
            ));
        }
        let Some(kept) = Kept::read(Path::new(&run)) else {
            return Err(format!(
                "tasks of a job '{name}' run there already, started from {shown}, which this machine does not have; take another --name"
            ));
        };
        let same = JobSpec {
            dir: None,
            ..kept.spec.clone()
        } == JobSpec {
            dir: None,
            ..self.spec.clone()
        };
        match same {
            true => Ok(Some(kept)),
            false => Err(format!(
                "job '{name}' runs already with another description (directory {shown}); run it as it was to take it over, or take another --name"
            )),
        }
    }

    /// How `downpour` is called there.
    pub(crate) fn server(&self) -> String {
        self.site.server()
    }

    /// The directory of the run that is taken over.
    pub(crate) fn adopted(&self) -> Option<&Path> {
        self.adopted.as_ref().map(|kept| kept.dir.as_path())
    }

    /// The run has its directory.
    pub(crate) fn begin(
        &mut self,
        dir: &Path,
        spec: &JobSpec,
        placed: &Placed,
        unlogged: Option<String>,
    ) -> Result<(), LaunchError> {
        self.dir = dir.to_owned();
        self.unlogged = unlogged;
        keep_plan(dir, spec, placed).map_err(|source| LaunchError::Dir {
            path: dir.to_owned(),
            source,
        })?;
        self.site.begin(spec, dir).map_err(LaunchError::Place)
    }
}

impl Engine for Remote {
    fn start(&mut self, start: &Start<'_>, listener: &Listener) -> Vec<Event> {
        let outlet = Outlet::new(start, listener, self.unlogged.as_ref(), &self.inbox);
        let task = Task {
            planned: start.planned.clone(),
            host: start.host.unwrap_or_default().to_owned(),
            job: self.spec.name.clone(),
            dir: start.dir.to_owned(),
            start: start.start,
            adopts: self.adopted.is_some() && self.known.insert(start.id),
            drain: self.spec.drain,
        };
        let id = start.id;
        let reins = Arc::new(Reins {
            id,
            announces: start.planned.announces,
            inbox: self.inbox.clone(),
            held: Mutex::default(),
        });
        if self.reins.len() <= id {
            self.reins.resize_with(id + 1, || None);
        }
        self.reins[id] = Some(reins.clone());
        let (site, inbox) = (self.site.clone(), self.inbox.clone());
        let (lost, following) = (self.lost.clone(), self.following.clone());
        following.fetch_add(1, Ordering::AcqRel);
        std::thread::spawn(move || {
            let ending = site.conduct(&task, &reins, &outlet);
            let event = match ending {
                Ending::Exited(exit) => Event::Exited(id, exit, last_word(&outlet.log, exit)),
                Ending::NotStarted(reason) => Event::NotStarted(id, reason),
                Ending::HostLost(reason) => {
                    lost.lock().insert(task.host.clone());
                    Event::HostLost(id, reason)
                }
            };
            following.fetch_sub(1, Ordering::AcqRel);
            // The job may be over.
            let _ = inbox.send(Message::Event(event));
        });
        Vec::new()
    }

    fn signal(&mut self, id: TaskId, signal: Signal) {
        if let Some(Some(reins)) = self.reins.get(id) {
            reins.signal(signal);
        }
    }

    fn place(&mut self) -> Result<Placed, String> {
        if let Some(kept) = &self.adopted
            && self.known.is_empty()
        {
            return Ok(Placed {
                cluster: kept.cluster.clone(),
                hosts: kept.hosts.clone(),
            });
        }
        let lost = self.lost.lock().clone();
        self.site.place(&self.spec, &lost)
    }

    fn clean_up(&mut self) {
        let begin = Instant::now();
        while self.following.load(Ordering::Acquire) > 0 && begin.elapsed() < LAST_WORDS {
            std::thread::sleep(Duration::from_millis(10));
        }
        self.site
            .clean_up(&self.spec.name, &self.dir.display().to_string());
    }
}

/// What a launcher leaves for the one after it, beside the logs.
struct Kept {
    dir: PathBuf,
    spec: JobSpec,
    cluster: ClusterSpec,
    hosts: Vec<Option<String>>,
}

/// Its name in the run's directory.
const PLAN: &str = "plan.json";

impl Kept {
    fn read(dir: &Path) -> Option<Kept> {
        let text = std::fs::read_to_string(dir.join(PLAN)).ok()?;
        let mut plan: serde_json::Value = serde_json::from_str(&text).ok()?;
        Some(Kept {
            dir: dir.to_owned(),
            cluster: ClusterSpec::from_json(&plan["cluster"].to_string()).ok()?,
            hosts: serde_json::from_value(plan["hosts"].take()).ok()?,
            spec: serde_json::from_value(plan["spec"].take()).ok()?,
        })
    }
}

/// Keeps where tasks are for a launcher that comes after this one.
pub(crate) fn keep_plan(dir: &Path, spec: &JobSpec, placed: &Placed) -> io::Result<()> {
    let cluster: serde_json::Value = serde_json::from_str(&plan::cluster_json(&placed.cluster))?;
    let plan = serde_json::json!({"cluster": cluster, "hosts": placed.hosts, "spec": spec});
    let new = dir.join(format!("{PLAN}.new"));
    let _ = std::fs::remove_file(&new);
    writeln!(dir::append(&new)?, "{plan:#}")?;
    std::fs::rename(new, dir.join(PLAN))
}

/// Gives every process of a job a host, in turn, and every task of its cluster an address there. `ports` finds free
/// ports on a host.
pub(crate) fn spread(
    spec: &JobSpec,
    hosts: &[String],
    address: impl Fn(&str) -> String,
    ports: impl Fn(&str, u32) -> Result<Vec<u16>, String>,
) -> Result<Placed, String> {
    if hosts.is_empty() {
        return Err("no host is left".to_owned());
    }
    let mut next = 0;
    let mut turns = std::collections::BTreeMap::new();
    for job in crate::spec::JOBS {
        let Some(group) = spec.tasks.get(job) else {
            continue;
        };
        for index in 0..group.count {
            turns.insert((job.to_owned(), index), next % hosts.len());
            next += 1;
        }
    }
    let mut free = Vec::new();
    for (at, host) in hosts.iter().enumerate() {
        let count = turns
            .iter()
            .filter(|((job, _), turn)| job != "evaluator" && **turn == at)
            .count();
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let found = match count {
            0 => Vec::new(),
            count => ports(host, count)?,
        };
        free.push(found.into_iter());
    }
    let mut addresses = Vec::new();
    // In the order in which a cluster takes addresses: by name of the job.
    for (job, group) in spec.tasks.iter().filter(|(job, _)| *job != "evaluator") {
        for index in 0..group.count {
            let at = turns.get(&(job.clone(), index)).copied().unwrap_or(0);
            let port = free[at].next().ok_or("there are not enough free ports")?;
            addresses.push(format!("{}:{port}", address(&hosts[at])));
        }
    }
    let cluster = plan::cluster(spec, addresses.into_iter()).map_err(|e| e.to_string())?;
    let planned = plan::processes(spec, &cluster, "downpour").map_err(|e| e.to_string())?;
    let host = |name: &TaskName| {
        let at = turns.get(&(name.job.clone(), name.index)).copied();
        at.and_then(|at| hosts.get(at).cloned())
    };
    Ok(Placed {
        hosts: planned.iter().map(|p| host(&p.name)).collect(),
        cluster,
    })
}
