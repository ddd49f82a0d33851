//! Connections to the other tasks of a cluster: one for control and small tensors and one for large
//! ones to each, made when first needed and again whenever they break.

use crate::call::h2_client::H2Client;
use crate::call::pull::pull;
use crate::call::size_memory::SizeMemory;
use crate::call::watch::Watch;
use crate::lane::{Awaited, Lane, Lanes, lost};
use crate::task::Reply;
use crate::traffic::{Asked, Awaiting, Outgoing};
use crate::{Limits, Traffic};
use downpour_cluster::{ClusterError, ClusterSpec};
use downpour_graph::{Code, DeviceName, EdgeId, Result, Status};
use downpour_tensor::Tensor;
use downpour_wire::messages::{ClusterDef, RecvTensorRequest};
use downpour_wire::proto::worker_service_client::WorkerServiceClient;
use downpour_wire::{Budget, Pieces, WireMessage, from_tonic};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::error::Error as _;
use std::sync::Arc;
use tonic::codegen::http::HeaderMap;

/// Calls to one task.
pub(crate) type Client = WorkerServiceClient<H2Client>;

/// The connections to one task: a small call never waits behind a large tensor, and small tensors
/// travel with the calls of their step.
#[derive(Clone)]
struct Links {
    /// For all calls but those for tensors that may be large.
    control: H2Client,
    tensors: H2Client,
    /// Which tensors are small.
    edges: Arc<SizeMemory>,
}

/// The other tasks of a cluster.
pub struct Peers {
    own: String,
    /// `/job:J/replica:0/task:N` → `host:port`.
    addresses: BTreeMap<String, String>,
    links: Mutex<HashMap<String, Links>>,
    watches: Mutex<HashMap<String, Arc<Watch>>>,
    /// Last words to tasks, which a process that ends should let out.
    farewells: Mutex<Vec<tokio::task::AbortHandle>>,
    limits: Limits,
    runtime: tokio::runtime::Handle,
    traffic: Traffic,
    lanes: Option<Arc<Lanes>>,
}

impl Peers {
    /// The peers of `own` (`/job:J/replica:0/task:N`). Must be called inside a tokio runtime,
    /// which then carries the calls.
    pub fn new(spec: &ClusterSpec, own: &str, limits: Limits) -> Peers {
        let addresses = spec
            .jobs()
            .iter()
            .flat_map(|(job, tasks)| {
                tasks
                    .iter()
                    .map(move |(task, address)| (task_name(job, *task), address.clone()))
            })
            .collect();
        Peers {
            own: own.to_owned(),
            addresses,
            links: Mutex::default(),
            watches: Mutex::default(),
            farewells: Mutex::default(),
            limits,
            runtime: tokio::runtime::Handle::current(),
            traffic: Traffic::default(),
            lanes: None,
        }
    }

    /// The same, with lanes to those that have them too.
    pub fn with_lanes(mut self, lanes: Option<Arc<Lanes>>) -> Peers {
        self.lanes = lanes;
        self
    }

    /// The lanes to other tasks, if there are to be any.
    pub fn lanes(&self) -> Option<&Arc<Lanes>> {
        self.lanes.as_ref()
    }

    /// Makes sure that values can be sent to `task` unasked, in this life of it if that is known.
    pub async fn open_lane(&self, task: &str, incarnation: Option<u64>) -> Result<()> {
        let Some(lanes) = &self.lanes else {
            return Err(Status::failed_precondition(format!(
                "{} has no lanes",
                self.own
            )));
        };
        let address = self.address(task).unwrap_or("?");
        let own = self.address(&self.own).unwrap_or("?");
        lanes.connect(task, (address, own), incarnation).await?;
        Ok(())
    }

    /// Sends a value to the task that receives `key`.
    pub fn push(&self, step_id: u64, key: &str, tensor: Option<&Tensor>) -> Result<()> {
        let task = task_of(key.split(';').nth(2).unwrap_or_default());
        let Some(lanes) = &self.lanes else {
            return Err(lost(task));
        };
        lanes.push(task, step_id, key, tensor)?;
        let bytes = tensor.map_or(0, Tensor::byte_len);
        self.traffic.sent_tensor(task, bytes);
        Ok(())
    }

    /// The way to `task` for values of numbered edges: found once, used by all values of a step.
    pub fn sink(&self, task: &str) -> Result<EdgeSink> {
        let lanes = self.lanes.as_ref().ok_or_else(|| lost(task))?;
        Ok(EdgeSink {
            lane: lanes.to(task).ok_or_else(|| lost(task))?,
            traffic: self.traffic.to(task),
        })
    }

    /// Counts the waits of a step for values that `task` sends along numbered edges.
    pub fn wait_for(&self, step_id: u64, task: &str) -> Result<EdgeWait> {
        let lanes = self.lanes.as_ref().ok_or_else(|| lost(task))?;
        Ok(EdgeWait {
            _awaited: lanes.await_from(task, step_id)?,
            awaiting: self.traffic.awaits(task),
        })
    }

    /// Counts a wait for a value that the sender of `key` sends unasked.
    pub fn await_pushed(&self, step_id: u64, key: &str) -> Result<Expected> {
        let task = task_of(key);
        let lanes = self.lanes.as_ref().ok_or_else(|| lost(task))?;
        let awaited = lanes.await_from(task, step_id)?;
        let asked = self.traffic.asks(task);
        Ok(Expected { awaited, asked })
    }

    /// The same, but what is exchanged is added to the counts of others.
    pub fn counted_by(mut self, traffic: Traffic) -> Peers {
        self.traffic = traffic;
        self
    }

    /// How much is exchanged with each.
    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// Name of the task whose peers these are.
    pub fn own(&self) -> &str {
        &self.own
    }

    /// All tasks but the own one.
    pub fn others(&self) -> impl Iterator<Item = &str> {
        self.addresses
            .keys()
            .map(String::as_str)
            .filter(|name| *name != self.own)
    }

    /// All tasks and where they listen, the own one among them.
    pub fn tasks(&self) -> impl Iterator<Item = (&str, &str)> {
        let tasks = self.addresses.iter();
        tasks.map(|(task, address)| (task.as_str(), address.as_str()))
    }

    /// Where a task listens.
    pub fn address(&self, task: &str) -> Option<&str> {
        self.addresses.get(task).map(String::as_str)
    }

    /// Gives up a connection that is of no use; the next call makes another.
    pub(crate) fn forget(&self, task: &str) {
        self.links.lock().remove(task);
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(crate) fn client(&self, task: &str) -> Result<Client> {
        let client = WorkerServiceClient::new(self.links(task)?.control);
        Ok(client
            .max_decoding_message_size(self.limits.message_bytes)
            .max_encoding_message_size(self.limits.message_bytes))
    }

    fn links(&self, task: &str) -> Result<Links> {
        if let Some(links) = self.links.lock().get(task) {
            return Ok(links.clone());
        }
        let address = self.addresses.get(task).ok_or_else(|| {
            let known: Vec<&str> = self.addresses.keys().map(String::as_str).collect();
            Status::invalid_argument(format!(
                "{task} is not in the cluster, which has {}",
                known.join(", ")
            ))
        })?;
        let link = || {
            H2Client::new(address, self.limits, self.runtime.clone())
                .map_err(|e| Status::invalid_argument(format!("address {address} of {task}: {e}")))
        };
        let links = Links {
            control: link()?,
            tensors: link()?,
            edges: Arc::default(),
        };
        self.links.lock().insert(task.to_owned(), links.clone());
        Ok(links)
    }

    /// Calls a method of `task`'s WorkerService with one message.
    pub(crate) async fn call<M: WireMessage>(
        self: &Arc<Self>,
        task: &str,
        path: &'static str,
        request: impl WireMessage,
    ) -> Result<(HeaderMap, M)> {
        let link = self.links(task)?.control;
        let request = Pieces::of(&request.encode()?);
        let sent = request.len();
        let call = async {
            let reply = link.unary(path, request).await;
            reply.map_err(|e| self.failed(task, &e))
        };
        let (headers, message) = self.watched(task, call).await?;
        self.traffic.exchanged(task, sent, message.len());
        Ok((headers, M::from_bytes(message, &Budget::default())?))
    }

    /// Waits for a call to `task`, and for its loss.
    pub(crate) async fn watched<T>(
        self: &Arc<Self>,
        task: &str,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let watch = self
            .watches
            .lock()
            .entry(task.to_owned())
            .or_default()
            .clone();
        let lost = watch.lost(watch.losses());
        tokio::pin!(lost);
        let (_open, first) = watch.enter();
        if first {
            let (peers, watch, task) = (self.clone(), watch.clone(), task.to_owned());
            let client = self.client(&task)?;
            self.spawn(async move {
                let peer = format!("{task} at {}", peers.address(&task).unwrap_or("?"));
                if !watch.keep(client, &peer, peers.limits.silence).await {
                    peers.forget(&task);
                }
            });
        }
        tokio::select! {
            biased;
            outcome = call => outcome,
            reason = &mut lost => Err(reason),
        }
    }

    /// What a failed call to `task` says, in the words TensorFlow's recovery expects.
    pub(crate) fn failed(&self, task: &str, error: &tonic::Status) -> Status {
        let status = from_tonic(error);
        // A status with a source was made here, not by the task: the connection broke, whatever
        // the transport calls that. A call that had not gone out yet is "canceled" there, one
        // under way "internal".
        let broken = error.source().is_some()
            && matches!(
                status.code,
                Code::Unavailable | Code::Cancelled | Code::Internal | Code::Unknown
            );
        if !broken {
            return status;
        }
        let address = self.address(task).unwrap_or("?");
        let mut cause: Option<&(dyn std::error::Error + 'static)> = error.source();
        while let Some(e) = cause {
            if let Some(io) = e.downcast_ref::<std::io::Error>()
                && io.kind() == std::io::ErrorKind::ConnectionRefused
            {
                return Status::unavailable(format!(
                    "failed to connect to all addresses; last error: UNKNOWN: {address}: Failed to connect to remote host: Connection refused ({task})"
                ));
            }
            cause = e.source();
        }
        Status::unavailable(format!("Socket closed ({task} at {address})"))
    }

    /// Asks the task that sends `key` for its value; `None` is a dead one.
    pub fn recv_tensor(
        self: &Arc<Self>,
        step_id: u64,
        key: &str,
        request_id: i64,
    ) -> Reply<Option<Tensor>> {
        let peers = self.clone();
        let key = key.to_owned();
        Box::pin(async move {
            let sender = key.split(';').next().unwrap_or_default();
            let task = DeviceName::parse(sender)
                .map_err(|_| Status::invalid_argument(format!("Invalid  rendezvous key: {key}")))?
                .task_name()
                .to_string();
            let Links {
                control,
                tensors,
                edges,
            } = peers.links(&task)?;
            let edge = edges.edge(&key);
            let link = match edges.is_small(edge) {
                true => control,
                false => tensors,
            };
            let request = RecvTensorRequest {
                step_id: step_id as i64,
                rendezvous_key: key,
                request_id,
            };
            let call = async {
                let pulled = pull(&link, request, &peers.limits).await;
                let (tensor, bytes) = pulled.map_err(|e| peers.failed(&task, &e))?;
                edges.note(edge, bytes);
                Ok(tensor)
            };
            let asked = peers.traffic.asks(&task);
            let tensor = peers.watched(&task, call).await?;
            asked.came(tensor.as_ref().map_or(0, Tensor::byte_len));
            Ok(tensor)
        })
    }

    /// Says something that nobody waits for, except a process that ends.
    pub(crate) fn say_farewell(&self, future: impl Future<Output = ()> + Send + 'static) {
        let handle = self.spawn(future);
        let mut farewells = self.farewells.lock();
        farewells.retain(|f| !f.is_finished());
        farewells.push(handle);
    }

    /// Waits until the farewells so far are out, but not longer than `limit`.
    pub async fn farewells(&self, limit: std::time::Duration) {
        let said = async {
            while self.farewells.lock().iter().any(|f| !f.is_finished()) {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        };
        // Whoever does not listen will notice by itself.
        let _ = tokio::time::timeout(limit, said).await;
    }

    /// Runs `future` beside whatever else is going on.
    pub fn spawn(
        &self,
        future: impl Future<Output = ()> + Send + 'static,
    ) -> tokio::task::AbortHandle {
        self.runtime.spawn(future).abort_handle()
    }
}

/// The way to a task for values of numbered edges.
pub struct EdgeSink {
    lane: Arc<Lane>,
    traffic: Outgoing,
}

impl EdgeSink {
    /// Sends values of a step.
    pub fn push(&self, step_id: u64, values: &[(EdgeId, Option<Tensor>)]) -> Result<()> {
        self.lane.push_edges(step_id, values)?;
        let bytes =
            |(_, tensor): &(EdgeId, Option<Tensor>)| tensor.as_ref().map_or(0, Tensor::byte_len);
        self.traffic
            .sent(values.len(), values.iter().map(bytes).sum());
        Ok(())
    }
}

/// Values of a step that a peer will send along numbered edges, until none is waited for.
pub struct EdgeWait {
    _awaited: Awaited,
    awaiting: Awaiting,
}

impl EdgeWait {
    /// So many more are waited for.
    pub fn begin(&self, count: usize) {
        self.awaiting.begin(count);
    }

    /// So many less.
    pub fn end(&self, count: usize) {
        self.awaiting.end(count);
    }
}

/// A value that a peer will send, until it comes or is given up.
pub struct Expected {
    awaited: Awaited,
    asked: Asked,
}

impl Expected {
    /// It came.
    pub fn came(&self, tensor: Option<&Tensor>) {
        self.asked.came(tensor.map_or(0, Tensor::byte_len));
    }

    /// Why the value of `key` will not come, and who was to send it, if so.
    pub fn lost<'a>(&self, key: &'a str) -> Option<(&'a str, Status)> {
        let task = task_of(key);
        Some((task, self.awaited.lost(task)?))
    }
}

/// The task of a device, with which a text begins.
fn task_of(device: &str) -> &str {
    device
        .split_once("/device:")
        .map_or(device, |(task, _)| task)
}

/// The cluster that a client or a master described.
pub fn cluster_from_def(def: &ClusterDef) -> std::result::Result<ClusterSpec, ClusterError> {
    let jobs = def.jobs.iter();
    ClusterSpec::from_tasks(jobs.flat_map(|job| {
        let tasks = job.tasks.iter();
        tasks.map(|(task, address)| (job.name.as_str(), *task, address.as_str()))
    }))
}

/// `/job:J/replica:0/task:N`.
pub fn task_name(job: &str, task: u32) -> String {
    format!("/job:{job}/replica:0/task:{task}")
}
