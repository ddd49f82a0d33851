//! The ApplicationMaster's shell: heartbeats to the ResourceManager, starts containers, hears the agents in them, and is the
//! [`Site`](crate::remote::Site) in which the launcher's tasks run (`place`). All decisions about containers are [`Gang`]'s.

use super::gang::{Effect, Event, Gang};
use super::hello::{Peer, accept};
use super::log::Log;
use super::{MASTER_ENV, ORDER, ORDER_ENV, Order, PROGRAM, Placed};
use crate::TaskName;
use crate::launcher::Control;
use crate::spec::JobSpec;
use crate::state::Exit;
use downpour_yarn::{
    Allocated, Ask, Command, Completed, ContainerId, Credentials, FinalStatus, Launch, NodeId,
    NodeManager, Scheduler, Secret, Token, WebHdfs,
};
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::process::Signal;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, BufReader};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Between two heartbeats.
const BEAT: Duration = Duration::from_millis(300);
/// How long the ResourceManager may be away.
const AWAY: Duration = Duration::from_secs(600);
/// How long it may take to hear that the application is over.
const FAREWELL: Duration = Duration::from_secs(20);
/// For a launcher that is on its way, when the job has ended.
const FOLLOWED_WITHIN: Duration = Duration::from_secs(8);
/// First words must be said by then.
const HELLO_WITHIN: Duration = Duration::from_secs(10);
/// Most connections that have not said yet who they are.
const MAX_STRANGERS: usize = 256;

/// The ApplicationMaster of a job.
#[derive(Clone)]
pub struct YarnMaster(pub(super) Arc<Shared>);

impl std::fmt::Debug for YarnMaster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "YarnMaster({})", self.0.address)
    }
}

pub(super) struct Shared {
    pub(super) order: Order,
    secret: Secret,
    own_order: Placed,
    credentials: Credentials,
    address: String,
    log: Log,
    pub(super) state: Mutex<State>,
    pub(super) changed: Condvar,
    strangers: AtomicUsize,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) gang: Gang,
    pub(super) containers: BTreeMap<String, Container>,
    tokens: BTreeMap<NodeId, Token>,
    asks: BTreeMap<String, u32>,
    release: Vec<ContainerId>,
    /// Why the ResourceManager is not spoken to any more.
    over: Option<String>,
    /// Somebody wants the job to end that has not begun.
    unwanted: Option<String>,
    control: Option<Control>,
    finish: Option<(FinalStatus, String)>,
    is_finished: bool,
    progress: f32,
    links: u64,
}

/// A container that the job has, or had.
pub(super) struct Container {
    allocated: Allocated,
    /// Connections that wait for a request.
    idle: VecDeque<TcpStream>,
    /// Those that are used.
    active: Vec<(u64, TcpStream)>,
    /// What is said of its end.
    pub(super) gone: Option<(i32, String)>,
}

impl Container {
    pub(super) fn host(&self) -> &str {
        &self.allocated.node.host
    }

    pub(super) fn has_idle(&self) -> bool {
        !self.idle.is_empty()
    }

    fn close(&mut self) {
        let active = self.active.drain(..).map(|(_, stream)| stream);
        for stream in self.idle.drain(..).chain(active) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// What a container's environment says to an ApplicationMaster.
struct Here<'a> {
    host: &'a str,
    own_order: Placed,
    credentials: Credentials,
}

impl<'a> Here<'a> {
    fn read(env: &'a BTreeMap<String, String>) -> Result<Here<'a>, String> {
        let get = |name: &str| {
            env.get(name)
                .map(String::as_str)
                .ok_or_else(|| format!("{name} is not set"))
        };
        let file = get("HADOOP_TOKEN_FILE_LOCATION")?;
        let bytes =
            std::fs::read(file).map_err(|e| format!("cannot read the tokens in {file}: {e}"))?;
        let words: Vec<&str> = get(ORDER_ENV)?.split(' ').collect();
        let [url, length, modified] = words[..] else {
            return Err(format!("{ORDER_ENV} is malformed"));
        };
        let number = |text: &str| {
            text.parse::<i64>()
                .map_err(|_| format!("{ORDER_ENV} is malformed"))
        };
        Ok(Here {
            host: get("NM_HOST")?,
            own_order: Placed {
                url: url.to_owned(),
                length: number(length)?.cast_unsigned(),
                modified: number(modified)?,
                is_archive: false,
            },
            credentials: Credentials::read(&bytes).map_err(|e| e.to_string())?,
        })
    }
}

impl YarnMaster {
    /// Says to the ResourceManager that the ApplicationMaster is there. `env` is the container's environment, `log` the file that all which
    /// this program prints goes to.
    pub fn start(
        env: &BTreeMap<String, String>,
        log: &Path,
        tracking_url: &str,
    ) -> Result<YarnMaster, String> {
        let here = Here::read(env)?;
        let bytes = std::fs::read(ORDER).map_err(|e| format!("cannot read {ORDER}: {e}"))?;
        let (order, secret) = Order::read(&bytes)?;
        let token = here.credentials.am_rm().cloned();
        let token = token.ok_or("there is no token for the ResourceManager")?;
        let listener =
            TcpListener::bind("0.0.0.0:0").map_err(|e| format!("no port to listen on: {e}"))?;
        let port = listener.local_addr().map_err(|e| e.to_string())?.port();
        let mut scheduler = Scheduler::new(order.schedulers.clone(), token);
        scheduler
            .register(here.host, port, tracking_url)
            .map_err(|e| {
                format!("the ResourceManager does not take this ApplicationMaster: {e}")
            })?;
        let master = YarnMaster(Arc::new(Shared {
            secret,
            own_order: here.own_order,
            credentials: here.credentials.for_containers(),
            address: format!("{}:{port}", here.host),
            log: Log::new(log.to_owned()),
            state: Mutex::default(),
            changed: Condvar::new(),
            strangers: AtomicUsize::new(0),
            order,
        }));
        let beating = master.0.clone();
        std::thread::spawn(move || beating.beat(scheduler));
        let listening = master.0.clone();
        std::thread::spawn(move || listening.listen(&listener));
        Ok(master)
    }

    /// The job.
    pub fn spec(&self) -> &JobSpec {
        &self.0.order.spec
    }

    /// Which containers the job waits for, if it does.
    pub fn absent(&self) -> Option<String> {
        let absent = self.0.state.lock().gang.absent();
        (!absent.is_empty()).then_some(absent)
    }

    /// Tasks to be lost, so long after the programs have started.
    pub fn kills(&self) -> Vec<(TaskName, Duration)> {
        let kills = self.0.order.kills.iter();
        kills
            .filter_map(|(name, after)| {
                Some((TaskName::parse(name)?, Duration::from_millis(*after)))
            })
            .collect()
    }

    /// Through which launchers outside influence the job.
    pub fn attach(&self, control: Control) {
        let mut state = self.0.state.lock();
        if state.over.is_some() || state.unwanted.is_some() {
            control.interrupt(Signal::TERM.as_raw());
        }
        state.control = Some(control);
    }

    /// Says that the job is over, in YARN and to launchers that follow it, and removes what it left on HDFS.
    pub fn finish(&self, exit: Exit, text: &str) {
        let shared = &self.0;
        let status = match exit {
            Exit::Code(0) => FinalStatus::Succeeded,
            Exit::Code(130 | 143) => FinalStatus::Killed,
            _ => FinalStatus::Failed,
        };
        shared.log.end(exit, FOLLOWED_WITHIN);
        let order = &shared.order;
        let files = WebHdfs::new(order.name_nodes.clone(), &order.file_system, &order.user);
        // It is this user's and stays, if the name node is away.
        let _ = files.remove(&order.staging);
        let mut state = shared.state.lock();
        for container in state.containers.values_mut() {
            container.close();
        }
        state.finish = Some((status, format!("exit code {}\n{text}", exit.code())));
        let begin = Instant::now();
        while !state.is_finished && state.over.is_none() && begin.elapsed() < FAREWELL {
            shared.changed.wait_for(&mut state, BEAT);
        }
    }
}

impl Shared {
    /// Heartbeats until the job is over.
    fn beat(self: &Arc<Shared>, mut scheduler: Scheduler) {
        let mut heard = Instant::now();
        loop {
            let (asks, release, finish, progress) = {
                let mut state = self.state.lock();
                let asks = std::mem::take(&mut state.asks);
                (
                    asks,
                    std::mem::take(&mut state.release),
                    state.finish.clone(),
                    state.progress,
                )
            };
            if let Some((status, text)) = finish {
                let done = scheduler.finish(status, &text, "");
                if matches!(done, Ok(true)) || heard.elapsed() > AWAY {
                    self.state.lock().is_finished = true;
                    self.changed.notify_all();
                    return;
                }
                std::thread::sleep(BEAT);
                continue;
            }
            let wishes: Vec<Ask> = asks
                .iter()
                .map(|(role, count)| self.ask(role, *count))
                .collect();
            match scheduler.allocate(&wishes, &release, progress) {
                Ok(allocation) => {
                    heard = Instant::now();
                    let mut state = self.state.lock();
                    state.tokens.extend(allocation.node_tokens);
                    for completed in allocation.completed {
                        self.completed(&mut state, completed);
                    }
                    for allocated in allocation.allocated {
                        self.allocated(&mut state, allocated);
                    }
                    match allocation.command {
                        Some(Command::Resync) => {
                            let effects = state.gang.step(Event::Resync);
                            self.carry_out(&mut state, effects);
                        }
                        Some(Command::Shutdown) => {
                            self.end(&mut state, "the ResourceManager wants this attempt to end")
                        }
                        None => {}
                    }
                }
                Err(e) => {
                    let mut state = self.state.lock();
                    // What could not be said is said again, unless it is out of date.
                    for (role, count) in asks {
                        state.asks.entry(role).or_insert(count);
                    }
                    state.release.extend(release);
                    let is_unknown =
                        e.is("ApplicationAttemptNotFoundException") || e.is("InvalidToken");
                    if is_unknown || heard.elapsed() > AWAY {
                        self.end(&mut state, &e.to_string());
                    }
                }
            }
            self.changed.notify_all();
            if self.state.lock().over.is_some() {
                return;
            }
            std::thread::sleep(BEAT);
        }
    }

    fn end(&self, state: &mut State, reason: &str) {
        state.over = Some(reason.to_owned());
        if let Some(control) = &state.control {
            control.interrupt(Signal::TERM.as_raw());
        }
    }

    fn roles(&self) -> Vec<&str> {
        let roles = crate::spec::JOBS.iter().copied();
        roles
            .filter(|role| self.order.spec.tasks.contains_key(*role))
            .collect()
    }

    fn ask(&self, role: &str, count: u32) -> Ask {
        let place = self.roles().iter().position(|r| *r == role).unwrap_or(0);
        let spec = &self.order.spec;
        Ask {
            // 0 is the ApplicationMaster's.
            priority: u32::try_from(place + 1).unwrap_or(1),
            count,
            resource: spec.yarn.container(spec, role),
            label: spec.yarn.labels.get(role).cloned(),
        }
    }

    pub(super) fn step(self: &Arc<Shared>, state: &mut MutexGuard<'_, State>, event: Event) {
        let effects = state.gang.step(event);
        self.carry_out(state, effects);
        self.changed.notify_all();
    }

    fn carry_out(self: &Arc<Shared>, state: &mut MutexGuard<'_, State>, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Ask(role, count) => _ = state.asks.insert(role, count),
                Effect::Release(id) => {
                    if let Some(container) = state.containers.remove(&id) {
                        state.release.push(container.allocated.id);
                    }
                }
                Effect::Launch(id) => self.launch(state, &id),
            }
        }
    }

    fn allocated(self: &Arc<Shared>, state: &mut MutexGuard<'_, State>, allocated: Allocated) {
        let (id, node) = (allocated.id.to_string(), allocated.node.to_string());
        let place = allocated
            .priority
            .checked_sub(1)
            .and_then(|at| usize::try_from(at).ok());
        let role = place.and_then(|at| self.roles().get(at).copied().map(str::to_owned));
        let container = Container {
            allocated,
            idle: VecDeque::new(),
            active: Vec::new(),
            gone: None,
        };
        state.containers.insert(id.clone(), container);
        let role = role.unwrap_or_default();
        self.step(state, Event::Allocated { id, node, role });
    }

    fn completed(self: &Arc<Shared>, state: &mut MutexGuard<'_, State>, completed: Completed) {
        let id = completed.id.to_string();
        let said = crate::output::cleaned(completed.diagnostics.trim());
        let text = format!("YARN says {}: {said}", completed.status);
        if let Some(container) = state.containers.get_mut(&id) {
            container.close();
            container.gone = Some((completed.status, text.clone()));
        }
        self.step(state, Event::Gone(id, text));
    }

    /// Starts what runs in a container, aside: a node may be slow to answer.
    fn launch(self: &Arc<Shared>, state: &State, id: &str) {
        let Some(container) = state.containers.get(id) else {
            return;
        };
        let allocated = container.allocated.clone();
        let Some(token) = state.tokens.get(&allocated.node).cloned() else {
            // It is told of as any other that could not be started.
            let (shared, id) = (self.clone(), id.to_owned());
            std::thread::spawn(move || shared.not_started(&id, "YARN gave no token for its node"));
            return;
        };
        let (shared, id) = (self.clone(), id.to_owned());
        let launch = self.what_runs();
        std::thread::spawn(move || {
            let mut node = NodeManager::new(allocated.node.clone(), token);
            if let Err(e) = node.start(&allocated, &launch) {
                shared.not_started(&id, &e.to_string());
            }
        });
    }

    fn not_started(self: &Arc<Shared>, id: &str, reason: &str) {
        let mut state = self.state.lock();
        if let Some(container) = state.containers.remove(id) {
            state.release.push(container.allocated.id);
        }
        self.step(&mut state, Event::Gone(id.to_owned(), reason.to_owned()));
    }

    fn what_runs(&self) -> Launch {
        let order = &self.order;
        let mut files: BTreeMap<_, _> = order
            .files
            .iter()
            .map(|(name, file)| (name.clone(), file.status()))
            .collect();
        files.insert(ORDER.to_owned(), self.own_order.status());
        let mut env = order.spec.yarn.runtime();
        env.insert(MASTER_ENV.to_owned(), self.address.clone());
        Launch {
            command: format!(
                "exec ./{PROGRAM} yarn-agent --logs <LOG_DIR> 1><LOG_DIR>/agent.log 2>&1"
            ),
            env,
            files,
            credentials: self.credentials.clone(),
        }
    }

    /// Gives up a container that cannot be heard.
    pub(super) fn give_up(self: &Arc<Shared>, id: &str, reason: &str) {
        let mut state = self.state.lock();
        let token = state
            .containers
            .get(id)
            .and_then(|c| state.tokens.get(&c.allocated.node).cloned());
        if let Some(mut container) = state.containers.remove(id) {
            container.close();
            let allocated = container.allocated;
            state.release.push(allocated.id.clone());
            if let Some(token) = token {
                // If its node is there, this is sooner than by way of the ResourceManager.
                std::thread::spawn(move || {
                    NodeManager::new(allocated.node, token).stop(&allocated.id)
                });
            }
        }
        self.step(&mut state, Event::Gone(id.to_owned(), reason.to_owned()));
    }

    fn listen(self: &Arc<Shared>, listener: &TcpListener) {
        for stream in listener.incoming().flatten() {
            if self.strangers.fetch_add(1, Ordering::AcqRel) >= MAX_STRANGERS {
                self.strangers.fetch_sub(1, Ordering::AcqRel);
                continue;
            }
            let shared = self.clone();
            std::thread::spawn(move || {
                let greeted = shared.greet(&stream);
                shared.strangers.fetch_sub(1, Ordering::AcqRel);
                match greeted {
                    Ok(Peer::Agent(id)) => shared.register(&id, stream),
                    Ok(Peer::Launcher(from)) => {
                        let master = shared.clone();
                        shared
                            .log
                            .serve(stream, from, move |signal| master.interrupt(signal));
                    }
                    // A stranger is told nothing.
                    Err(_) => {}
                }
            });
        }
    }

    fn greet(&self, stream: &TcpStream) -> io::Result<Peer> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(HELLO_WITHIN))?;
        stream.set_write_timeout(Some(HELLO_WITHIN))?;
        let mut to = stream;
        accept(&self.secret, &mut BufReader::new(stream), &mut to)
    }

    fn register(self: &Arc<Shared>, id: &str, stream: TcpStream) {
        let mut state = self.state.lock();
        let Some(container) = state.containers.get_mut(id).filter(|c| c.gone.is_none()) else {
            let _ = stream.shutdown(Shutdown::Both);
            return;
        };
        container.idle.push_back(stream);
        self.step(&mut state, Event::Registered(id.to_owned()));
    }

    fn interrupt(&self, signal: i32) {
        let mut state = self.state.lock();
        match &state.control {
            Some(control) => control.interrupt(signal),
            // It has not begun.
            None => state.unwanted = Some(format!("interrupted by {}", Exit::Signal(signal))),
        }
        self.changed.notify_all();
    }

    /// A connection to what runs in a container, and its number among those that are used; waits for one until this time.
    pub(super) fn take(&self, id: &str, until: Instant) -> io::Result<(u64, TcpStream)> {
        let gone = |text: &str| io::Error::new(io::ErrorKind::NotConnected, text.to_owned());
        let mut state = self.state.lock();
        loop {
            state.links += 1;
            let number = state.links;
            let container = state
                .containers
                .get_mut(id)
                .ok_or_else(|| gone("its container is gone"))?;
            if let Some((_, reason)) = &container.gone {
                return Err(gone(reason));
            }
            if let Some(stream) = container.idle.pop_front() {
                container.active.push((number, stream.try_clone()?));
                return Ok((number, stream));
            }
            if Instant::now() >= until {
                return Err(gone("what runs in its container cannot be heard"));
            }
            self.changed.wait_until(&mut state, until);
        }
    }

    /// A connection is not used any more.
    pub(super) fn put_away(&self, id: &str, number: u64) {
        let mut state = self.state.lock();
        let Some(container) = state.containers.get_mut(id) else {
            return;
        };
        container.active.retain(|(other, stream)| {
            if *other == number {
                let _ = stream.shutdown(Shutdown::Both);
            }
            *other != number
        });
    }

    /// The containers that are wanted, once all are there.
    pub(super) fn gather(
        self: &Arc<Shared>,
        wanted: BTreeMap<String, u32>,
    ) -> Result<BTreeMap<String, Vec<String>>, String> {
        let patience = self.order.spec.yarn.wait;
        let until = Instant::now() + patience;
        let mut state = self.state.lock();
        // What is lost and was told of is forgotten.
        let lost: BTreeSet<String> = state
            .containers
            .iter()
            .filter(|(_, c)| c.gone.is_some())
            .map(|(id, _)| id.clone())
            .collect();
        state.containers.retain(|id, _| !lost.contains(id));
        self.step(&mut state, Event::Want(wanted));
        loop {
            if let Some(reason) = state.over.as_ref().or(state.unwanted.as_ref()) {
                return Err(reason.clone());
            }
            if let Some(reason) = state.gang.failure() {
                return Err(reason);
            }
            if let Some(complete) = state.gang.complete() {
                return Ok(complete);
            }
            if Instant::now() >= until {
                let absent = state.gang.absent();
                return Err(format!(
                    "not all containers were there within {} s: {absent}",
                    patience.as_secs()
                ));
            }
            self.changed.wait_until(&mut state, until);
        }
    }
}
