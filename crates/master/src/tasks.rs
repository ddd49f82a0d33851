//! The tasks of a session: its own and those of the cluster that its graph may use.

use downpour_cluster::ClusterSpec;
use downpour_graph::{DeviceName, Result, Status};
use downpour_net::{
    AwaitedTasks, Limits, LocalTask, NewSession, Peers, RemoteTask, Task, cluster_from_def,
    task_name,
};
use downpour_plan::DeviceRef;
use downpour_wire::messages::{DeviceAttributes, ServerDef, SessionConfig};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tracing::warn;

/// Where a session's graph may run.
pub(crate) struct Tasks {
    /// The task of this process, number 0.
    pub(crate) local: Arc<dyn LocalTask>,
    /// Numbers 1 and up.
    others: Vec<Arc<dyn Task>>,
    /// All devices, the client's own first.
    pub(crate) devices: Vec<DeviceRef>,
    attributes: Vec<DeviceAttributes>,
    /// The cluster that the client brought along.
    cluster: Option<Propagated>,
}

struct Propagated {
    def: downpour_wire::messages::ClusterDef,
    job: String,
    task: u32,
}

impl Tasks {
    /// Finds the tasks that a session's settings name, waiting for those that do not answer yet.
    pub(crate) async fn find(
        local: Arc<dyn LocalTask>,
        peers: &Arc<Peers>,
        config: &SessionConfig,
        target: &str,
        (limits, random): (Limits, fn() -> u64),
    ) -> Result<Tasks> {
        let propagated = propagated(config, target, peers.own())?;
        let (own, peers) = match &propagated {
            Some((cluster, spec)) => {
                let own = task_name(&cluster.job, cluster.task);
                let peers = Peers::new(spec, &own, limits);
                (own, Arc::new(peers))
            }
            None => (local.name().to_owned(), peers.clone()),
        };
        let filters = config
            .device_filters
            .iter()
            .map(|f| {
                DeviceName::parse(f).map_err(|_| {
                    Status::invalid_argument(format!(
                        "Could not parse device_filters '{f}' of the session's config"
                    ))
                })
            })
            .collect::<Result<Vec<_>>>()?;
        let wanted = |name: &str| {
            filters.is_empty()
                || DeviceName::parse(name).is_ok_and(|n| filters.iter().any(|f| f.intersects(&n)))
        };
        let names: Vec<String> = peers
            .others()
            .filter(|n| wanted(n))
            .map(str::to_owned)
            .collect();
        let limit = patience(config.operation_timeout, limits.find);
        let search = Search::start(&peers, names, random);
        let others = search.wait(limit, limits.progress).await?;
        let mut tasks = Tasks {
            local,
            others,
            devices: Vec::new(),
            attributes: Vec::new(),
            cluster: propagated.map(|(cluster, _)| cluster),
        };
        tasks.list_devices(&own)?;
        Ok(tasks)
    }

    fn list_devices(&mut self, own: &str) -> Result<()> {
        let mut all = Vec::new();
        for (i, task) in self.all().enumerate() {
            let name = if i == 0 { own } else { task.name() };
            for mut device in task.devices() {
                // In a cluster of the client's own, a task goes by the name it has there.
                if let Some((_, kind)) = device.name.split_once("/device:") {
                    device.name = format!("{name}/device:{kind}");
                }
                all.push((i, device, task.pushes() && self.cluster.is_none()));
            }
        }
        for (task, device, pushes) in all {
            self.devices.push(DeviceRef {
                name: device.name.as_str().into(),
                incarnation: device.incarnation,
                task,
                pushes,
            });
            self.attributes.push(device);
        }
        if self.devices.is_empty() {
            return Err(Status::internal("the cluster has no device"));
        }
        Ok(())
    }

    /// All tasks, the own one first.
    pub(crate) fn all(&self) -> impl Iterator<Item = &dyn Task> {
        let local: &dyn Task = &*self.local;
        std::iter::once(local).chain(self.others.iter().map(|t| &**t))
    }

    /// Task number `i`.
    pub(crate) fn get(&self, i: usize) -> &dyn Task {
        match i.checked_sub(1).and_then(|i| self.others.get(i)) {
            Some(task) => &**task,
            None => &*self.local,
        }
    }

    /// `/job:J/replica:0/task:N` of task number `i` in this session.
    pub(crate) fn name(&self, i: usize) -> &str {
        let device = self.devices.iter().find(|d| d.task == i);
        let full = device.map_or(self.get(i).name(), |d| &d.name);
        full.split("/device:").next().unwrap_or(full)
    }

    /// The same of all.
    pub(crate) fn names(&self) -> Vec<String> {
        (0..=self.others.len())
            .map(|i| self.name(i).to_owned())
            .collect()
    }

    /// Names the task an error came from, as TensorFlow's master does.
    pub(crate) fn blame(&self, i: usize, e: Status) -> Status {
        Status {
            message: format!("From {}:\n{}", self.name(i), e.message),
            ..e
        }
    }

    /// Every device's description.
    pub(crate) fn attributes(&self) -> &[DeviceAttributes] {
        &self.attributes
    }

    /// The device that clients' values come to and go from.
    pub(crate) fn client_device(&self) -> &DeviceRef {
        &self.devices[0]
    }

    /// Opens the session everywhere; a failure leaves it nowhere.
    pub(crate) async fn create_session(&self, handle: &str, config: &SessionConfig) -> Result<()> {
        let client = self.client_device();
        let master_task = client.name.split("/device:").next().unwrap_or_default();
        let shared = config.share_session_state_in_clusterspec_propagation;
        let session = |name: &str| NewSession {
            handle: handle.to_owned(),
            isolate: config.isolate_session_state || (self.cluster.is_some() && !shared),
            master_task: master_task.to_owned(),
            master_incarnation: client.incarnation,
            server_def: self.cluster.as_ref().map(|c| server_def(c, name)),
        };
        let mut calls = Vec::new();
        for (i, task) in self.all().enumerate() {
            let name = if i == 0 { master_task } else { task.name() };
            calls.push(task.create_session(&session(name)));
        }
        let mut outcome = Ok(());
        for call in calls {
            outcome = outcome.and(call.await);
        }
        if outcome.is_err() {
            self.delete_session(handle);
        }
        outcome
    }

    /// Drops the session everywhere.
    pub(crate) fn delete_session(&self, handle: &str) {
        for task in self.all() {
            task.delete_session(handle);
        }
    }
}

/// Looks for tasks, all at once: a cluster that starts up comes together in any order. Ends with
/// whoever asked for it.
struct Search {
    tasks: tokio::task::JoinSet<Result<RemoteTask>>,
    missing: Arc<AwaitedTasks>,
}

impl Search {
    fn start(peers: &Arc<Peers>, names: Vec<String>, random: fn() -> u64) -> Search {
        let missing: Arc<AwaitedTasks> = Arc::default();
        let mut tasks = tokio::task::JoinSet::new();
        for name in names {
            let (peers, missing) = (peers.clone(), missing.clone());
            tasks.spawn(async move { RemoteTask::find(&peers, &name, random, &missing).await });
        }
        Search { tasks, missing }
    }

    /// The tasks in the order of their names. Says now and then whom it waits for.
    async fn wait(
        mut self,
        limit: Option<Duration>,
        progress: Duration,
    ) -> Result<Vec<Arc<dyn Task>>> {
        let mut found: Vec<Arc<dyn Task>> = Vec::with_capacity(self.tasks.len());
        let mut late = pin!(tokio::time::sleep(limit.unwrap_or(FOR_EVER)));
        let mut ticks = tokio::time::interval(progress.max(Duration::from_millis(1)));
        ticks.tick().await;
        let mut waited = Duration::ZERO;
        loop {
            tokio::select! {
                biased;
                next = self.tasks.join_next() => match next {
                    None => break,
                    Some(Ok(task)) => found.push(Arc::new(task?)),
                    Some(Err(e)) => {
                        return Err(Status::internal(format!("the search for a task ended: {e}")));
                    }
                },
                () = &mut late => {
                    let (missing, limit) = (&self.missing, limit.unwrap_or(FOR_EVER));
                    let e = format!("CreateSession was not answered within {limit:?} by {missing}. {ADVICE}");
                    warn!("{e}");
                    return Err(Status::deadline_exceeded(e));
                }
                _ = ticks.tick() => {
                    waited += progress;
                    let missing = &self.missing;
                    warn!("CreateSession has been waiting for {waited:?} for response from worker: {missing}. {ADVICE}");
                }
            }
        }
        found.sort_by(|a, b| a.name().cmp(b.name()));
        Ok(found)
    }
}

/// Longer than anyone waits.
const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// What to do about a task that is missing.
const ADVICE: &str = "Is it running, and is the address right? A session that does not need it can leave it out with device_filters.";

/// How long to search: a little less than the client waits, so that it hears who is missing.
fn patience(client: Option<Duration>, own: Option<Duration>) -> Option<Duration> {
    let client = client.map(|t| t.saturating_sub((t / 10).min(Duration::from_millis(200))));
    match (client, own) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// The cluster that the client brought along and which of its tasks this one is.
fn propagated(
    config: &SessionConfig,
    target: &str,
    booted_as: &str,
) -> Result<Option<(Propagated, ClusterSpec)>> {
    if config.cluster.jobs.is_empty() {
        return Ok(None);
    }
    let spec =
        cluster_from_def(&config.cluster).map_err(|e| Status::invalid_argument(e.to_string()))?;
    let address = target.strip_prefix("grpc://").unwrap_or(target);
    let mut own = None;
    for (job, tasks) in spec.jobs() {
        for (task, at) in tasks {
            if at != address {
                continue;
            }
            if own.replace((job.clone(), *task)).is_some() {
                return Err(Status::invalid_argument(format!(
                    "Found multiple matching tasks that correspond to to the master. Master target: '{target}'. ClusterDef: {:?}",
                    config.cluster
                )));
            }
        }
    }
    let Some((job, task)) = own else {
        return Err(Status::invalid_argument(format!(
            "no task of the session's cluster has the address of its master, {target}"
        )));
    };
    if task_name(&job, task) == booted_as {
        return Err(Status::invalid_argument(format!(
            "The ClusterSpec names the job and task index to be the same names that were provided when the server booted. This is currently not allowed. Job: {job}, task index: {task}"
        )));
    }
    let def = config.cluster.clone();
    Ok(Some((Propagated { def, job, task }, spec)))
}

fn server_def(cluster: &Propagated, name: &str) -> ServerDef {
    let name = DeviceName::parse(name).unwrap_or_default();
    ServerDef {
        cluster: cluster.def.clone(),
        job_name: name.job.unwrap_or_default(),
        task_index: name.task.unwrap_or(0) as i32,
        protocol: "grpc".into(),
        ..Default::default()
    }
}
