//! A task of another process, driven over its WorkerService.

use crate::Peers;
use crate::call::awaited_tasks::{AwaitedTasks, reason};
use crate::lane::Lane;
use crate::serve::h2_server::{HAS_LANES, STEP_IS_OVER};
use crate::task::{Canceller, Done, GraphOptions, NewSession, Reply, StepEnd, StepStart, Task};
use downpour_graph::{Code, Graph, Result, Status};
use downpour_tensor::Tensor;
use downpour_wire::lane::{HEADER, Run};
use downpour_wire::messages::{
    CleanupAllRequest, CleanupGraphRequest, CreateWorkerSessionRequest, DeleteWorkerSessionRequest,
    DeregisterGraphRequest, DeviceAttributes, ExecutorOptions, GetStatusResponse,
    RegisterGraphRequest, RunGraphRequest, RunGraphResponse,
};
use downpour_wire::{Budget, WireMessage, proto, to_graph_def};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// How long to wait before asking a task again that is not there: at first, and at most. A cluster
/// that starts up comes together quickly, one that waits for hours is not busy with it.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(250));

/// How long a task may take over what nobody waits for, such as forgetting a session.
const FAREWELL: Duration = Duration::from_secs(10);

/// How long a part that is cancelled may take to say what went wrong with it.
const LAST_WORDS: Duration = Duration::from_millis(20);

const RUN_GRAPH: &str = "/tensorflow.WorkerService/RunGraph";

/// The stub of a task.
pub struct RemoteTask {
    name: String,
    devices: Vec<DeviceAttributes>,
    /// Whether it has lanes, and so have we.
    has_lanes: bool,
    peers: Arc<Peers>,
    /// Graph handles of the task, by ours.
    graphs: Arc<Mutex<(u64, HashMap<u64, String>)>>,
    random: fn() -> u64,
}

impl RemoteTask {
    /// Waits until the task answers, however long that takes: whoever asks sets the deadline.
    /// Meanwhile `missing` says what is known of it.
    pub async fn find(
        peers: &Arc<Peers>,
        name: &str,
        random: fn() -> u64,
        missing: &AwaitedTasks,
    ) -> Result<RemoteTask> {
        let address = peers.address(name).unwrap_or("?").to_owned();
        let mut pause = RETRY.0;
        missing.note(name, &address, "no answer yet");
        let (devices, has_lanes) = loop {
            let mut client = peers.client(name)?;
            let asked = client.get_status(proto::GetStatusRequest {});
            let silence = peers.limits().silence;
            match tokio::time::timeout(silence, asked).await {
                Ok(Ok(reply)) => {
                    let theirs = reply.metadata().contains_key(HAS_LANES);
                    let status = GetStatusResponse::decode(reply.into_inner(), &Budget::default())?;
                    break (status.devices, theirs && peers.lanes().is_some());
                }
                Ok(Err(e)) => {
                    let e = peers.failed(name, &e);
                    // Anything else will not change by asking again.
                    if e.code != Code::Unavailable {
                        return Err(e);
                    }
                    missing.note(name, &address, reason(&e.message));
                }
                Err(_) => {
                    missing.note(name, &address, "it accepts connections but does not answer");
                    peers.forget(name);
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(RETRY.1);
        };
        missing.found(name);
        Ok(RemoteTask {
            devices,
            has_lanes,
            ..RemoteTask::unseen(peers, name, random)?
        })
    }

    /// A task that may not be there, and whose devices are not known.
    pub fn unseen(peers: &Arc<Peers>, name: &str, random: fn() -> u64) -> Result<RemoteTask> {
        Ok(RemoteTask {
            name: name.to_owned(),
            devices: Vec::new(),
            has_lanes: false,
            peers: peers.clone(),
            graphs: Arc::default(),
            random,
        })
    }

    /// Runs a registered graph that is fed and fetched by rendezvous keys, and cleans up after it:
    /// nobody else knows the step. Dropping the future ends the step.
    pub fn call_graph(
        &self,
        session: &str,
        graph: u64,
        send: Vec<(String, Tensor)>,
        recv_key: Vec<String>,
    ) -> Reply<Vec<Tensor>> {
        let step_id = (self.random)() >> 1;
        let request = self.handle(graph).map(|graph_handle| RunGraphRequest {
            session_handle: session.to_owned(),
            create_worker_session_called: true,
            graph_handle,
            step_id: step_id as i64,
            send,
            recv_key: recv_key.clone(),
            store_errors_in_response_body: true,
            request_id: (self.random)() as i64,
            ..Default::default()
        });
        let (peers, name) = (self.peers.clone(), self.name.clone());
        let over = CleanUp {
            peers: peers.clone(),
            name: name.clone(),
            step_id,
        };
        Box::pin(async move {
            let _over = over;
            let (mut client, request) = (peers.client(&name)?, request?.encode()?);
            let call = async {
                let reply = client.run_graph(request).await;
                reply.map_err(|e| peers.failed(&name, &e))
            };
            let reply = peers.watched(&name, call).await?;
            let reply = RunGraphResponse::decode(reply.into_inner(), &Budget::default())?;
            if let Some(error) = reply.error {
                return Err(error);
            }
            let mut given: HashMap<String, Tensor> = reply.recv.into_iter().collect();
            let value = |key: &String| {
                given
                    .remove(key)
                    .ok_or_else(|| Status::internal(format!("Could not find key: {key}")))
            };
            recv_key.iter().map(value).collect()
        })
    }

    /// Runs a graph over a lane. Its canceller does what dropping a call does elsewhere.
    fn run_on_lane(&self, lane: Arc<Lane>, run: &Run, done: Done) -> Canceller {
        let (traffic, name) = (self.peers.traffic().clone(), self.name.clone());
        let sent = HEADER + 16 + run.session.len();
        let done = Box::new(move |outcome: Result<bool>| {
            traffic.exchanged(&name, sent, HEADER);
            done(outcome.map(|is_over| StepEnd {
                is_over,
                ..Default::default()
            }));
        });
        let call = lane.run(run, done);
        let peers = self.peers.clone();
        Arc::new(move |reason: Status| {
            lane.stop(call);
            let derived = Status {
                derived: true,
                ..reason.clone()
            };
            if !reason.derived {
                return lane.give_up(call, derived);
            }
            let lane = lane.clone();
            peers.spawn(async move {
                tokio::time::sleep(LAST_WORDS).await;
                lane.give_up(call, derived);
            });
        })
    }

    fn handle(&self, graph: u64) -> Result<String> {
        self.graphs
            .lock()
            .1
            .get(&graph)
            .cloned()
            .ok_or_else(|| Status::aborted(format!("Graph handle is not found: {graph:016x}")))
    }
}

/// Cleans a step up on a task when it is dropped.
struct CleanUp {
    peers: Arc<Peers>,
    name: String,
    step_id: u64,
}

impl Drop for CleanUp {
    fn drop(&mut self) {
        cleanup(&self.peers, &self.name, self.step_id);
    }
}

fn cleanup(peers: &Peers, name: &str, step_id: u64) {
    let request = CleanupGraphRequest {
        step_id: step_id as i64,
    };
    let client = peers.client(name);
    peers.spawn(async move {
        if let (Ok(mut client), Ok(request)) = (client, request.encode()) {
            let farewell = client.cleanup_graph(request);
            let _ = tokio::time::timeout(FAREWELL, farewell).await;
        }
    });
}

impl Task for RemoteTask {
    fn name(&self) -> &str {
        &self.name
    }

    fn devices(&self) -> Vec<DeviceAttributes> {
        self.devices.clone()
    }

    fn pushes(&self) -> bool {
        self.has_lanes
    }

    fn create_session(&self, session: &NewSession) -> Reply<()> {
        let request = CreateWorkerSessionRequest {
            session_handle: session.handle.clone(),
            server_def: session.server_def.clone().unwrap_or_default(),
            isolate_session_state: session.isolate,
            master_task: session.master_task.clone(),
            master_incarnation: session.master_incarnation,
            ..Default::default()
        };
        let (peers, name) = (self.peers.clone(), self.name.clone());
        Box::pin(async move {
            let (mut client, request) = (peers.client(&name)?, request.encode()?);
            let call = async {
                let reply = client.create_worker_session(request).await;
                reply.map_err(|e| peers.failed(&name, &e))
            };
            peers.watched(&name, call).await?;
            Ok(())
        })
    }

    fn delete_session(&self, session: &str) {
        let request = DeleteWorkerSessionRequest {
            session_handle: session.to_owned(),
        };
        let client = self.peers.client(&self.name);
        self.peers.say_farewell(async move {
            if let (Ok(mut client), Ok(request)) = (client, request.encode()) {
                let farewell = client.delete_worker_session(request);
                // A task that is gone has forgotten already.
                let _ = tokio::time::timeout(FAREWELL, farewell).await;
            }
        });
    }

    fn register_graph(&self, session: &str, graph: Graph, options: GraphOptions) -> Reply<u64> {
        let mut config = downpour_wire::messages::GraphOptions::default();
        if !options.fold_constants {
            config.opt_level = downpour_wire::messages::OptLevel::L0;
        }
        let request = RegisterGraphRequest {
            session_handle: session.to_owned(),
            create_worker_session_called: true,
            graph: to_graph_def(&graph),
            graph_options: config,
            ..Default::default()
        };
        let (peers, name) = (self.peers.clone(), self.name.clone());
        let number = {
            let mut graphs = self.graphs.lock();
            graphs.0 += 1;
            graphs.0
        };
        let graphs = self.graphs.clone();
        let (has_lanes, life) = (self.has_lanes, self.devices.first().map(|d| d.incarnation));
        Box::pin(async move {
            if has_lanes {
                peers.open_lane(&name, life).await?;
            }
            let (mut client, request) = (peers.client(&name)?, request.encode()?);
            let call = async {
                let reply = client.register_graph(request).await;
                reply.map_err(|e| peers.failed(&name, &e))
            };
            let reply = peers.watched(&name, call).await?;
            let handle = reply.into_inner().graph_handle;
            graphs.lock().1.insert(number, handle);
            Ok(number)
        })
    }

    fn deregister_graph(&self, session: &str, graph: u64) {
        let Some(graph_handle) = self.graphs.lock().1.remove(&graph) else {
            return;
        };
        let request = DeregisterGraphRequest {
            session_handle: session.to_owned(),
            create_worker_session_called: true,
            graph_handle,
        };
        let client = self.peers.client(&self.name);
        self.peers.spawn(async move {
            if let (Ok(mut client), Ok(request)) = (client, request.encode()) {
                let farewell = client.deregister_graph(request);
                let _ = tokio::time::timeout(FAREWELL, farewell).await;
            }
        });
    }

    fn run_graph(&self, session: &str, graph: u64, step: StepStart, done: Done) -> Canceller {
        let graph_handle = match self.handle(graph) {
            Ok(handle) => handle,
            Err(e) => {
                done(Err(e));
                return Arc::new(|_| {});
            }
        };
        // What each op did comes in a message of TensorFlow's.
        if self.has_lanes
            && !step.trace
            && let Some(lane) = self.peers.lanes().and_then(|lanes| lanes.to(&self.name))
            && let Ok(graph) = u64::from_str_radix(&graph_handle, 16)
        {
            let run = Run {
                step_id: step.step_id,
                graph,
                session: session.to_owned(),
            };
            return self.run_on_lane(lane, &run, done);
        }
        let request = RunGraphRequest {
            session_handle: session.to_owned(),
            create_worker_session_called: true,
            graph_handle,
            step_id: step.step_id as i64,
            exec_opts: ExecutorOptions {
                record_timeline: step.trace,
                ..Default::default()
            },
            store_errors_in_response_body: true,
            request_id: (self.random)() as i64,
            ..Default::default()
        };
        let (peers, name) = (self.peers.clone(), self.name.clone());
        let (cancel, mut cancelled) = oneshot::channel::<Status>();
        self.peers.spawn(async move {
            let call = async {
                let (headers, reply) = peers
                    .call::<RunGraphResponse>(&name, RUN_GRAPH, request)
                    .await?;
                match reply.error {
                    Some(error) => Err(error),
                    None => Ok(StepEnd {
                        fetches: Vec::new(),
                        stats: reply.step_stats.map_or_else(Vec::new, |s| s.devices),
                        is_over: headers.contains_key(STEP_IS_OVER),
                    }),
                }
            };
            let mut call = Box::pin(call);
            // Dropping the call is how the task learns that the step is cancelled. When another
            // part has failed for want of a value from this one, this one's own error is on its
            // way, and is the one to report. A step that its caller gave up must take nothing more.
            let outcome = tokio::select! {
                outcome = &mut call => outcome,
                Ok(reason) = &mut cancelled => {
                    let patience = if reason.derived { LAST_WORDS } else { Duration::ZERO };
                    match tokio::time::timeout(patience, &mut call).await {
                        Ok(outcome) => outcome,
                        Err(_) => Err(Status { derived: true, ..reason }),
                    }
                }
            };
            drop(call);
            done(outcome);
        });
        let cancel = Mutex::new(Some(cancel));
        Arc::new(move |reason| {
            if let Some(cancel) = cancel.lock().take() {
                // Too late is fine.
                let _ = cancel.send(reason);
            }
        })
    }

    fn cleanup_step(&self, step_id: u64) {
        cleanup(&self.peers, &self.name, step_id);
    }

    fn cleanup_all(&self, containers: &[String]) -> Reply<()> {
        let request = CleanupAllRequest {
            container: containers.to_vec(),
        };
        let (peers, name) = (self.peers.clone(), self.name.clone());
        Box::pin(async move {
            let (mut client, request) = (peers.client(&name)?, request.encode()?);
            let call = async {
                let reply = client.cleanup_all(request).await;
                reply.map_err(|e| peers.failed(&name, &e))
            };
            peers.watched(&name, call).await?;
            Ok(())
        })
    }
}
