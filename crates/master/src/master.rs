//! All sessions of a task's master, and the meaning of each of the service's calls.

use crate::costs::cost_graph;
use crate::leases::{Leases, Sight};
use crate::plans::Registered;
use crate::recorder::Recorder;
use crate::registry::Registry;
use crate::session::{Running, Session};
use crate::stalls::{Doing, Stalls};
use crate::tasks::Tasks;
use downpour_graph::{Code, DeviceName, Result, Status};
use downpour_net::{
    AwaitedTasks, Limits, LocalTask, Peers, Presence, RecentRequests, RemoteTask, StepCounter,
    StepEnd, Task,
};
use downpour_plan::{Endpoints, Request};
use downpour_tensor::Tensor;
use downpour_wire::control::{SessionReport, TaskReport};
use downpour_wire::messages::{
    CloseSessionRequest, CreateSessionRequest, CreateSessionResponse, ExtendSessionRequest,
    ExtendSessionResponse, ListDevicesRequest, ListDevicesResponse, MakeCallableRequest,
    MakeCallableResponse, PartialRunSetupRequest, PartialRunSetupResponse, ReleaseCallableRequest,
    ResetRequest, RunCallableRequest, RunCallableResponse, RunMetadata, RunOptions, RunStepRequest,
    RunStepResponse, StepStats, TraceLevel,
};
use downpour_wire::{Budget, Meter, to_graph_def};
use parking_lot::Mutex;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::oneshot;
use tracing::{info, warn};

/// What a master is made of.
pub struct MasterConfig {
    /// The task of this process.
    pub task: Arc<dyn LocalTask>,
    /// The other tasks of its cluster.
    pub peers: Arc<Peers>,
    /// Bounds.
    pub limits: Limits,
    /// What one session's graphs may weigh.
    pub budget: Budget,
    /// Random numbers, for handles and step ids.
    pub random: fn() -> u64,
}

/// The master of this process.
pub struct Master {
    config: MasterConfig,
    sessions: Mutex<Registry<Entry>>,
    requests: RecentRequests,
    leases: Mutex<Leases>,
    stalls: Stalls,
    steps: StepCounter,
    recorder: Recorder,
}

#[derive(Clone)]
struct Entry {
    session: Arc<Session>,
    /// What the session's graphs may still weigh.
    budget: Arc<Mutex<Budget>>,
    /// How often it was asked for.
    uses: Arc<AtomicU64>,
    /// The connection it came over; none for a client of the same process.
    client: Option<Presence>,
}

/// Step ids have their top seven bits clear, as TensorFlow's do.
const STEP_ID_MASK: u64 = (1 << 57) - 1;

impl Master {
    /// A master without sessions.
    pub fn new(config: MasterConfig) -> Master {
        let requests = RecentRequests::new(config.limits.remembered_requests);
        let stalls = Stalls::new(config.peers.clone(), config.limits.progress);
        Master {
            sessions: Mutex::new(Registry::new(config.limits.sessions)),
            config,
            requests,
            leases: Mutex::default(),
            stalls,
            steps: StepCounter::default(),
            recorder: Recorder::default(),
        }
    }

    /// Fills in the master's part of its task's report.
    pub fn report(&self, report: &mut TaskReport) {
        report.steps = Some(self.steps.counts());
        let sessions = self.sessions.lock();
        let sessions = sessions.iter().map(|(handle, entry)| SessionReport {
            handle: handle.clone(),
            master: String::new(),
            uses: entry.uses.load(Ordering::Relaxed),
            client_is_there: entry.client.as_ref().is_none_or(Presence::is_there),
        });
        report.sessions = sessions.collect();
        report.sessions.sort_by(|a, b| a.handle.cmp(&b.handle));
    }

    /// Traces the next session runs, for an observer of a running job; what the largest of them did. Resolves when
    /// they have ended, or `enough` does.
    pub async fn record(&self, enough: impl Future<Output = ()>) -> Result<Option<StepStats>> {
        self.recorder.record(enough).await
    }

    fn entry(&self, handle: &str) -> Result<Entry> {
        let found = self.sessions.lock().get(handle).cloned();
        let entry =
            found.ok_or_else(|| Status::aborted(format!("Session {handle} is not found.")))?;
        entry.uses.fetch_add(1, Ordering::Relaxed);
        Ok(entry)
    }

    fn session(&self, handle: &str) -> Result<Arc<Session>> {
        Ok(self.entry(handle)?.session)
    }

    /// The other tasks of the cluster.
    pub(crate) fn peers(&self) -> &Arc<Peers> {
        &self.config.peers
    }

    /// What a new session's graphs may weigh.
    pub(crate) fn budget(&self) -> Budget {
        self.config.budget
    }

    /// What the graphs of a session may still weigh.
    pub(crate) fn session_budget(&self, handle: &str) -> Result<Budget> {
        Ok(*self.entry(handle)?.budget.lock())
    }

    /// Opens a session. `meter` has counted its first graph.
    pub(crate) async fn create_session(
        &self,
        request: CreateSessionRequest,
        meter: Meter,
        client: Option<Presence>,
    ) -> Result<CreateSessionResponse> {
        if !self.sessions.lock().admit() {
            return Err(Status::resource_exhausted(format!(
                "{} has {} sessions, which is its limit; close some",
                self.config.task.name(),
                self.config.limits.sessions
            )));
        }
        let mut opening = Opening(Some(&self.sessions));
        let handle = format!("{:016x}", (self.config.random)());
        let tasks = Tasks::find(
            self.config.task.clone(),
            &self.config.peers,
            &request.config,
            &request.target,
            (self.config.limits, self.config.random),
        )
        .await?;
        let opening_is_watched = self.stalls.watch(Doing::Opening(handle.clone()));
        let session = Session::create(
            handle.clone(),
            tasks,
            request.graph,
            request.config,
            self.config.limits,
        )
        .await?;
        drop(opening_is_watched);
        let entry = Entry {
            session: Arc::new(session),
            budget: Arc::new(Mutex::new(meter.remaining())),
            uses: Arc::default(),
            client,
        };
        opening.0 = None;
        let refused = self.sessions.lock().opened(handle.clone(), entry);
        if let Err(entry) = refused {
            let reason = self.going();
            entry.session.close(reason.clone());
            return Err(reason);
        }
        info!(session = handle, "session opened");
        Ok(CreateSessionResponse {
            session_handle: handle,
            graph_version: 0,
        })
    }

    /// Adds to a session's graph. `meter` has counted what is added.
    pub(crate) fn extend_session(
        &self,
        request: ExtendSessionRequest,
        meter: &Meter,
    ) -> Result<ExtendSessionResponse> {
        let entry = self.entry(&request.session_handle)?;
        let new_graph_version = entry
            .session
            .extend(request.graph, request.current_graph_version)?;
        *entry.budget.lock() = meter.remaining();
        Ok(ExtendSessionResponse { new_graph_version })
    }

    /// Runs a step, or a part of one.
    pub(crate) async fn run_step(&self, request: RunStepRequest) -> Result<RunStepResponse> {
        let detail = || format!("session_handle: \"{}\"", request.session_handle);
        self.requests
            .admit(request.request_id, "RunStep (Master)", detail)?;
        let session = self.session(&request.session_handle)?;
        if !request.partial_run_handle.is_empty() {
            let _watched = self.stalls.watch(Doing::Fetching(session.clone()));
            return run_partial(&session, request).await;
        }
        let (names, feeds): (Vec<String>, Vec<Tensor>) = sorted_by_name(request.feed)?;
        let key = Request {
            feeds: names,
            fetches: sorted(request.fetch),
            targets: sorted(request.target),
        };
        let (in_use, found) = session.find(&key)?;
        let watched = self.stalls.watch(Doing::Preparing(session.clone()));
        let plan = match found {
            Some(plan) => plan,
            // Compiling may take long; a step of a known graph must not pay for the hand-over.
            None => session.register(key, &Endpoints::Positional).await?,
        };
        let costs = session.wants_costs(&plan);
        let recorded = self.recorder.run();
        let trace = costs || recorded.is_some() || traces(&request.options);
        let counted = self.steps.begin();
        let running = Session::start(in_use, &plan, self.step_id(), feeds, trace)?;
        watched.runs(&session, &plan);
        let end = finish(&session, running, request.options.timeout).await?;
        drop(watched);
        counted.succeeded();
        if let Some(recorded) = recorded {
            recorded.did(&end.stats);
        }
        let metadata = metadata(&end, &request.options, &plan, costs);
        let tensors = plan
            .request
            .fetches
            .iter()
            .cloned()
            .zip(end.fetches)
            .collect();
        Ok(RunStepResponse {
            tensors,
            metadata,
            error: None,
        })
    }

    fn step_id(&self) -> u64 {
        (self.config.random)() & STEP_ID_MASK
    }

    /// Prepares a run in several parts.
    pub(crate) async fn partial_run_setup(
        &self,
        request: PartialRunSetupRequest,
    ) -> Result<PartialRunSetupResponse> {
        let detail = || format!("session_handle: \"{}\"", request.session_handle);
        self.requests
            .admit(request.request_id, "PartialRunSetup (Master)", detail)?;
        let session = self.session(&request.session_handle)?;
        let key = Request {
            feeds: sorted(request.feed),
            fetches: sorted(request.fetch),
            targets: sorted(request.target),
        };
        let in_use = session.begin()?;
        let watched = self.stalls.watch(Doing::Preparing(session.clone()));
        let plan = session.register(key, &session.rendezvous_ends()).await?;
        drop(watched);
        let step = session.start_partial(in_use, plan.clone(), self.step_id())?;
        Ok(PartialRunSetupResponse {
            partial_run_handle: session.partial.add(step, &plan),
        })
    }

    /// Prepares a request to be run often.
    pub(crate) async fn make_callable(
        &self,
        request: MakeCallableRequest,
    ) -> Result<MakeCallableResponse> {
        let detail = || format!("session_handle: \"{}\"", request.session_handle);
        self.requests
            .admit(request.request_id, "MakeCallable (Master)", detail)?;
        let session = self.session(&request.session_handle)?;
        let options = request.options;
        if !options.tensor_connections.is_empty() {
            return Err(Status::unimplemented(
                "callables with tensor_connection are not supported; feed and fetch instead",
            ));
        }
        // Positions are the caller's own, so these are not sorted and not shared with RunStep.
        let key = Request {
            feeds: options.feed,
            fetches: options.fetch,
            targets: options.target,
        };
        let _in_use = session.begin()?;
        let _watched = self.stalls.watch(Doing::Preparing(session.clone()));
        let plan = session.register(key, &Endpoints::Positional).await?;
        let handle = session.add_callable(plan, options.run_options);
        Ok(MakeCallableResponse { handle })
    }

    /// Runs a callable.
    pub(crate) async fn run_callable(
        &self,
        request: RunCallableRequest,
    ) -> Result<RunCallableResponse> {
        let detail = || format!("session_handle: \"{}\"", request.session_handle);
        self.requests
            .admit(request.request_id, "RunCallable (Master)", detail)?;
        let session = self.session(&request.session_handle)?;
        let (plan, options) = session.callable(request.handle)?;
        if request.feed.len() != plan.request.feeds.len() {
            return Err(Status::invalid_argument(format!(
                "Expected {} feed tensors, but got {}",
                plan.request.feeds.len(),
                request.feed.len()
            )));
        }
        let costs = session.wants_costs(&plan);
        let recorded = self.recorder.run();
        let trace = costs || recorded.is_some() || traces(&options);
        let counted = self.steps.begin();
        let running = Session::start(session.begin()?, &plan, self.step_id(), request.feed, trace)?;
        let watched = self
            .stalls
            .watch(Doing::Running(session.clone(), plan.clone()));
        let end = finish(&session, running, options.timeout).await?;
        drop(watched);
        counted.succeeded();
        if let Some(recorded) = recorded {
            recorded.did(&end.stats);
        }
        let metadata = metadata(&end, &options, &plan, costs);
        Ok(RunCallableResponse {
            fetch: end.fetches,
            metadata,
        })
    }

    /// Forgets a callable.
    pub(crate) fn release_callable(&self, request: ReleaseCallableRequest) -> Result<()> {
        self.session(&request.session_handle)?
            .release_callable(request.handle);
        Ok(())
    }

    /// Lists the devices: of a session, or of all tasks that answer.
    pub(crate) async fn list_devices(
        &self,
        request: ListDevicesRequest,
    ) -> Result<ListDevicesResponse> {
        let handle = request.session_handle.as_str();
        if !handle.is_empty() {
            let gone = || {
                Status::invalid_argument(format!(
                    "Session {handle} is not found. Possibly, this master has restarted."
                ))
            };
            // A question, no use: other tasks ask it of sessions that nobody uses any more.
            let found = self.sessions.lock().get(handle).cloned();
            let session = found.ok_or_else(gone)?.session;
            return Ok(ListDevicesResponse {
                local_device: session.tasks.attributes().to_vec(),
                remote_device: Vec::new(),
            });
        }
        let mut remote_device = Vec::new();
        for name in self.config.peers.others() {
            let missing = AwaitedTasks::default();
            let search = RemoteTask::find(&self.config.peers, name, self.config.random, &missing);
            if let Ok(Ok(task)) = tokio::time::timeout(LOOK_AROUND, search).await {
                remote_device.extend(task.devices());
            }
        }
        Ok(ListDevicesResponse {
            local_device: self.config.task.devices(),
            remote_device,
        })
    }

    /// Ends a session.
    pub(crate) fn close_session(&self, request: CloseSessionRequest) -> Result<()> {
        let handle = request.session_handle;
        let closed = self.sessions.lock().close(&handle);
        let Some(entry) = closed else {
            return Err(Status::aborted(format!(
                "Session {handle} is not found. Possibly, this master has restarted."
            )));
        };
        entry.session.close(Status::cancelled(
            "Step was cancelled by an explicit call to `Session::Close()`.",
        ));
        info!(session = handle, "session closed");
        Ok(())
    }

    /// Ends every session and clears containers.
    pub(crate) async fn reset(&self, request: ResetRequest) -> Result<()> {
        let sessions = self.sessions.lock().close_all();
        let mut calls = Vec::new();
        for name in self.config.peers.others() {
            let wanted = request.device_filters.is_empty()
                || request.device_filters.iter().any(|f| {
                    matches!((DeviceName::parse(f), DeviceName::parse(name)), (Ok(f), Ok(n)) if f.intersects(&n))
                });
            if wanted {
                let task = RemoteTask::unseen(&self.config.peers, name, self.config.random)?;
                let call = task.cleanup_all(&request.container);
                calls.push((name, tokio::spawn(call)));
            }
        }
        let mut outcome = self.config.task.cleanup_all(&request.container).await;
        for (name, call) in calls {
            match call.await {
                Ok(Ok(())) => {}
                // What was there is gone with it. TensorFlow ignores any error.
                Ok(Err(e)) if e.code == Code::Unavailable => {
                    warn!("{name} is not there to be reset: {}", e.message);
                }
                Ok(Err(e)) => outcome = outcome.and(Err(e)),
                Err(e) => outcome = outcome.and(Err(Status::internal(e.to_string()))),
            }
        }
        for entry in sessions {
            entry.session.close(Status::cancelled(
                "Step was cancelled by an explicit call to `Session::Close()`.",
            ));
        }
        outcome
    }

    /// Closes sessions whose client has been gone for `lease`, at time `now` since any fixed moment.
    pub fn end_leases(&self, now: Duration, lease: Duration) {
        let sight = |(handle, entry): (&String, &Entry)| Sight {
            handle: handle.clone(),
            uses: entry.uses.load(Ordering::Relaxed),
            // Whoever works on a session holds it too.
            is_held: entry.client.as_ref().is_none_or(Presence::is_there)
                || Arc::strong_count(&entry.session) > 1,
            has_left: entry.client.as_ref().is_some_and(Presence::has_left),
        };
        let seen: Vec<Sight> = self.sessions.lock().iter().map(sight).collect();
        for handle in self.leases.lock().look(now, lease, &seen) {
            let closed = self.sessions.lock().close(&handle);
            if let Some(entry) = closed {
                warn!("session {handle} is closed: its client left without closing it");
                entry.session.close(Status::aborted(format!(
                    "Session {handle} was closed: its client was gone."
                )));
            }
        }
    }

    /// Ends every session because the task stops.
    pub fn shut_down(&self) {
        let sessions = self.sessions.lock().shut_down();
        for entry in sessions {
            entry.session.close(self.going());
        }
    }

    fn going(&self) -> Status {
        Status::unavailable(format!("{} is shutting down", self.config.task.name()))
    }
}

/// A session that is being opened; whoever waits for it may leave.
struct Opening<'a>(Option<&'a Mutex<Registry<Entry>>>);

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        if let Some(sessions) = self.0 {
            sessions.lock().given_up();
        }
    }
}

async fn run_partial(session: &Arc<Session>, request: RunStepRequest) -> Result<RunStepResponse> {
    let handle = request.partial_run_handle;
    let names: Vec<String> = request.feed.iter().map(|(n, _)| n.clone()).collect();
    let call = session.partial.call(&handle, &names, &request.fetch)?;
    let outcome = async {
        for (name, value) in request.feed {
            call.step.feed(&session.client_key(&name), value)?;
        }
        let mut tensors = Vec::with_capacity(request.fetch.len());
        for name in request.fetch {
            let (tx, rx) = oneshot::channel();
            let done = Box::new(move |value| {
                let _ = tx.send(value);
            });
            call.step.fetch(&session.client_key(&name), done);
            let value = rx
                .await
                .unwrap_or_else(|_| Err(Status::internal("a fetch was lost")))?;
            tensors.push((name, value));
        }
        if call.last {
            let (tx, rx) = oneshot::channel();
            call.step.on_end(Box::new(move |outcome| {
                let _ = tx.send(outcome);
            }));
            rx.await
                .unwrap_or_else(|_| Err(Status::internal("a partial run was lost")))?;
        }
        Ok::<_, Status>(tensors)
    };
    match outcome.await {
        Ok(tensors) => Ok(RunStepResponse {
            tensors,
            ..Default::default()
        }),
        Err(e) => {
            session.partial.remove(&handle);
            call.step.cancel(e.clone());
            let e = Status {
                derived: false,
                ..e
            };
            Err(session.blame_task(0, e))
        }
    }
}

/// How long a task may take to list its devices before it is left out.
const LOOK_AROUND: Duration = Duration::from_secs(2);

/// How much later than its client a master gives up on a step.
const GRACE: Duration = Duration::from_millis(200);

/// Waits for a step, and ends it when its time is over.
async fn finish(
    session: &Session,
    mut running: Running,
    timeout: Option<Duration>,
) -> Result<StepEnd> {
    let limit = match (timeout, session.operation_timeout()) {
        // A client that set a deadline reports it itself; this one is for those that did not.
        (Some(t), _) | (None, Some(t)) => t + GRACE,
        (None, None) => return running.wait().await,
    };
    if let Ok(outcome) = tokio::time::timeout(limit, running.wait()).await {
        return outcome;
    }
    running.late(Status::deadline_exceeded("Operation timed out."));
    running.wait().await
}

fn traces(options: &RunOptions) -> bool {
    matches!(
        options.trace_level,
        TraceLevel::FullTrace | TraceLevel::SoftwareTrace
    )
}

fn metadata(end: &StepEnd, options: &RunOptions, plan: &Registered, costs: bool) -> RunMetadata {
    RunMetadata {
        cost_graph: match costs {
            true => cost_graph(plan, end),
            false => Vec::new(),
        },
        step_stats: (!end.stats.is_empty() && traces(options)).then(|| StepStats {
            devices: end.stats.clone(),
        }),
        partition_graphs: match options.output_partition_graphs {
            true => plan.parts.iter().map(|p| to_graph_def(&p.graph)).collect(),
            false => Vec::new(),
        },
    }
}

fn sorted(mut names: Vec<String>) -> Vec<String> {
    names.sort();
    names.dedup();
    names
}

fn sorted_by_name(mut feeds: Vec<(String, Tensor)>) -> Result<(Vec<String>, Vec<Tensor>)> {
    feeds.sort_by(|a, b| a.0.cmp(&b.0));
    if let Some(pair) = feeds.windows(2).find(|w| w[0].0 == w[1].0) {
        return Err(Status::invalid_argument(format!(
            "Endpoint \"{}\" fed more than once.",
            pair[0].0
        )));
    }
    Ok(feeds.into_iter().unzip())
}
