//! The gRPC shell: decodes, calls the worker, encodes. What other masters and peers ask of this
//! task.

use crate::Worker;
use crate::lifecycle::{Event, RunId, Start};
use crate::worker::{Machine, key_incarnation};
use bytes::Bytes;
use downpour_graph::{Graph, GraphDef, NodeDef, Result};
use downpour_net::{Answer, GraphOptions, HAS_LANES, Methods, NewSession, Task};
use downpour_runtime::{Delivery, Rendezvous};
use downpour_tensor::{DType, Shape, Tensor};
use downpour_wire::codec::ServiceMessage as _;
use downpour_wire::messages::{
    CleanupAllRequest, CleanupGraphRequest, CreateWorkerSessionRequest, DeregisterGraphRequest,
    GetStatusResponse, OptLevel, RecvTensorRequest, RecvTensorResponse, RegisterGraphRequest,
    RunGraphRequest, RunGraphResponse, StepStats,
};
use downpour_wire::proto::worker_service_server::{WorkerService, WorkerServiceServer};
use downpour_wire::{Budget, InPieces, WireMessage, proto, to_tonic};
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::oneshot;
use tonic::{Request, Response, Status};

/// Serves a [`Worker`] over gRPC.
pub struct WorkerShell {
    worker: Arc<Worker>,
}

impl WorkerShell {
    /// The shell of a worker.
    pub fn new(worker: Arc<Worker>) -> Arc<WorkerShell> {
        Arc::new(WorkerShell { worker })
    }

    /// The calls of which a step is made, without the generated service around them.
    pub fn add_methods(self: &Arc<Self>, methods: &mut Methods) {
        let shell = self.clone();
        methods.add("/tensorflow.WorkerService/RecvTensor", move |message| {
            let shell = shell.clone();
            async move {
                let request = RecvTensorRequest::from_bytes(message, &Budget::default());
                let reply = shell.recv(request.map_err(to_tonic)?).await;
                let reply = reply.and_then(WireMessage::encode).map_err(to_tonic)?;
                Ok(reply.into_pieces().into())
            }
        });
        let shell = self.clone();
        methods.add("/tensorflow.WorkerService/RunGraph", move |message| {
            let shell = shell.clone();
            async move { shell.answer_run(message).await }
        });
        let shell = self.clone();
        methods.add("/tensorflow.WorkerService/CleanupGraph", move |message| {
            let request = CleanupGraphRequest::from_bytes(message, &Budget::default());
            if let Ok(request) = &request {
                shell.worker.cleanup_step(request.step_id as u64);
            }
            let done = proto::CleanupGraphResponse {};
            std::future::ready(match request {
                Ok(_) => Ok(done.into_pieces().into()),
                Err(e) => Err(to_tonic(e)),
            })
        });
    }

    async fn answer_run(&self, message: Bytes) -> Result<Answer, Status> {
        let budget = Budget::default();
        let request = proto::RunGraphRequest::from_wire(message, &budget).map_err(to_tonic)?;
        let (step_id, in_body) = (request.step_id, request.store_errors_in_response_body);
        let outcome = match RunGraphRequest::decode(request, &budget) {
            Ok(request) => self.run(request).await,
            Err(e) => Err(e),
        };
        let (reply, is_idle) = match outcome {
            Ok((reply, rendezvous)) => (
                Ok(reply),
                rendezvous.is_some_and(|rendezvous| rendezvous.is_idle()),
            ),
            Err(e) => (Err(e), false),
        };
        if is_idle {
            // Every value was taken and nobody waits for one: what its master would ask for now
            // is done at once, and the answer says so.
            self.worker.cleanup_step(step_id as u64);
        }
        let message = RunGraphResponse::reply(reply, in_body)?.into_pieces();
        let is_over = is_idle;
        Ok(Answer { message, is_over })
    }

    /// The service, with the worker's limits.
    pub fn service(self: Arc<Self>) -> WorkerServiceServer<WorkerShell> {
        let limits = self.worker.config.limits;
        WorkerServiceServer::from_arc(self)
            .max_decoding_message_size(limits.message_bytes)
            .max_encoding_message_size(limits.message_bytes)
            .accept_compressed(tonic::codec::CompressionEncoding::Gzip)
            .accept_compressed(tonic::codec::CompressionEncoding::Deflate)
    }

    /// Runs a graph; with the answer comes where the step's values met, if it is over here.
    async fn run(
        &self,
        request: RunGraphRequest,
    ) -> Result<(RunGraphResponse, Option<Arc<Rendezvous>>)> {
        let step_id = request.step_id as u64;
        let start = Start {
            session: &request.session_handle,
            graph: parse_handle(&request.graph_handle)?,
            step_id,
            shared: true,
            partial: request.is_partial,
            request_id: request.request_id,
        };
        if request.is_partial {
            return Ok((self.run_partial(&start, &request).await?, None));
        }
        let started = self.worker.begin(&start)?;
        let (run, rendezvous) = (started.run, started.rendezvous.clone().unwrap_or_default());
        feed(&rendezvous, &request);
        let trace = request.exec_opts.record_timeline || request.exec_opts.record_costs;
        let (done, outcome) = oneshot::channel();
        let done = Box::new(move |end| {
            let _ = done.send(end);
        });
        // A caller that hangs up cancels the step.
        let guard = Hangup(Some((self.worker.machine.clone(), run)));
        self.worker
            .execute(started, step_id, Vec::new(), trace, done);
        let end = outcome.await.unwrap_or_else(|_| {
            Err(downpour_graph::Status::internal(
                "the step ended without an outcome",
            ))
        });
        guard.disarm();
        let end = end?;
        let reply = RunGraphResponse {
            recv: fetch(&rendezvous, &request.recv_key).await?,
            step_stats: (!end.stats.is_empty()).then_some(StepStats { devices: end.stats }),
            ..Default::default()
        };
        Ok((reply, Some(rendezvous)))
    }

    /// One call of a step that is fed and fetched over several. The first starts the execution, the
    /// last waits for its end.
    async fn run_partial(
        &self,
        start: &Start<'_>,
        request: &RunGraphRequest,
    ) -> Result<RunGraphResponse> {
        let machine = &self.worker.machine;
        let (run, rendezvous, started) = match self.worker.begin_or_continue(start)? {
            Ok(started) => (started.run, started.rendezvous.clone(), Some(started)),
            Err((run, rendezvous)) => (run, Some(rendezvous), None),
        };
        let rendezvous = rendezvous.unwrap_or_default();
        feed(&rendezvous, request);
        let guard = Hangup(Some((machine.clone(), run)));
        if let Some(started) = started {
            let nobody = Box::new(|_| ());
            self.worker
                .execute(started, start.step_id, Vec::new(), false, nobody);
        }
        let mut outcome = fetch(&rendezvous, &request.recv_key).await;
        if request.is_last_partial_run {
            let (done, end) = oneshot::channel();
            machine.tell(Event::Last {
                run,
                error: outcome.as_ref().err().cloned(),
                answer: Box::new(move |end| {
                    let _ = done.send(end);
                }),
            });
            let end = end
                .await
                .unwrap_or_else(|_| Err(downpour_graph::Status::internal("a step was lost")));
            if let Err(e) = end {
                outcome = Err(e);
            }
        }
        guard.disarm();
        Ok(RunGraphResponse {
            recv: outcome?,
            ..Default::default()
        })
    }

    async fn recv(&self, request: RecvTensorRequest) -> Result<RecvTensorResponse> {
        self.worker
            .check_incarnation(key_incarnation(&request.rendezvous_key)?)?;
        let rendezvous = self
            .worker
            .want(request.step_id as u64, request.request_id)?;
        // A value that does not come is the consequence of a failure that the step's part here, or
        // its master, reports itself.
        let value = take(&rendezvous, &request.rendezvous_key).await;
        let value = value.map_err(downpour_graph::Status::as_derived)?;
        let is_dead = value.tensor.is_none();
        let tensor = match value.tensor {
            Some(tensor) => tensor,
            None => Tensor::zeros(DType::Float, Shape::from(vec![0]))?,
        };
        let receiver = request.rendezvous_key.split(';').nth(2).unwrap_or_default();
        let traffic = self.worker.config.peers.traffic();
        traffic.sent_tensor(receiver, tensor.byte_len());
        Ok(RecvTensorResponse {
            tensor,
            is_dead,
            send_start_micros: (self.worker.config.clock)() / 1000,
            require_ack: false,
        })
    }

    fn register(&self, request: RegisterGraphRequest) -> Result<String> {
        let missing = request.graph.nodes.iter().find(|n| n.device.is_empty());
        if let Some(node) = missing {
            return Err(downpour_graph::Status::invalid_argument(format!(
                "Missing device name in: {}",
                node.name
            )));
        }
        let options = GraphOptions {
            fold_constants: request.graph_options.opt_level != OptLevel::L0,
        };
        let graph = Graph::new(request.graph)?;
        let handle = self
            .worker
            .compile(&request.session_handle, &graph, options)?;
        Ok(format!("{handle:016x}"))
    }
}

/// The tasks to which a graph sends values unasked.
fn pushed_to(graph: &GraphDef) -> BTreeSet<String> {
    let is_push = |n: &&NodeDef| n.op == "_Send" && matches!(n.attrs.bool("_pushed"), Ok(true));
    let sends = graph.nodes.iter().filter(is_push);
    let receivers = sends.filter_map(|n| n.attrs.str("recv_device").ok());
    let tasks = receivers.filter_map(|d| d.split_once("/device:").map(|(task, _)| task.to_owned()));
    tasks.collect()
}

/// Cancels a run when it is dropped.
struct Hangup(Option<(Machine, RunId)>);

impl Hangup {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for Hangup {
    fn drop(&mut self) {
        if let Some((machine, run)) = self.0.take() {
            let reason = downpour_graph::Status::cancelled("RunGraph was cancelled by the master");
            machine.stop(run, reason);
        }
    }
}

fn feed(rendezvous: &Rendezvous, request: &RunGraphRequest) {
    for (key, tensor) in &request.send {
        let tensor = Some(tensor.clone());
        // Refused only when the step has been ended, which the execution hears for itself.
        let _ = rendezvous.send(key, Delivery { tensor });
    }
}

async fn fetch(rendezvous: &Rendezvous, keys: &[String]) -> Result<Vec<(String, Tensor)>> {
    let mut values = Vec::with_capacity(keys.len());
    for key in keys {
        let value = take(rendezvous, key).await?;
        let name = key.split(';').nth(3).unwrap_or(key);
        let tensor = value.tensor.ok_or_else(|| {
            downpour_graph::Status::invalid_argument(format!(
                "The tensor returned for {name} was not valid."
            ))
        })?;
        values.push((key.clone(), tensor));
    }
    Ok(values)
}

async fn take(rendezvous: &Rendezvous, key: &str) -> Result<Delivery> {
    let (done, value) = oneshot::channel();
    rendezvous.recv(key, move |delivery| {
        let _ = done.send(delivery);
    });
    value
        .await
        .unwrap_or_else(|_| Err(downpour_graph::Status::internal("a value was lost")))
}

fn parse_handle(handle: &str) -> Result<u64> {
    u64::from_str_radix(handle, 16).map_err(|_| {
        downpour_graph::Status::aborted(format!("Graph handle is not found: {handle}"))
    })
}

fn decode<M: WireMessage>(request: Request<M::Proto>) -> Result<M, Status> {
    M::decode(request.into_inner(), &Budget::default()).map_err(to_tonic)
}

fn reply<M: WireMessage>(outcome: Result<M>) -> Result<Response<M::Proto>, Status> {
    outcome
        .and_then(WireMessage::encode)
        .map(Response::new)
        .map_err(to_tonic)
}

fn done<P: Default>(outcome: Result<()>) -> Result<Response<P>, Status> {
    outcome
        .map(|()| Response::new(P::default()))
        .map_err(to_tonic)
}

fn no_collectives<T>() -> Result<T, Status> {
    Err(Status::unimplemented(
        "collective operations are not supported",
    ))
}

#[tonic::async_trait]
impl WorkerService for WorkerShell {
    async fn get_status(
        &self,
        _: Request<proto::GetStatusRequest>,
    ) -> Result<Response<proto::GetStatusResponse>, Status> {
        let mut status = reply(Ok(GetStatusResponse {
            devices: self.worker.devices(),
        }))?;
        if self.worker.pushes() {
            let yes = tonic::metadata::MetadataValue::from_static("1");
            status.metadata_mut().insert(HAS_LANES, yes);
        }
        Ok(status)
    }

    async fn create_worker_session(
        &self,
        request: Request<proto::CreateWorkerSessionRequest>,
    ) -> Result<Response<proto::CreateWorkerSessionResponse>, Status> {
        let request: CreateWorkerSessionRequest = decode(request)?;
        let session = NewSession {
            handle: request.session_handle,
            isolate: request.isolate_session_state,
            master_task: request.master_task,
            master_incarnation: request.master_incarnation,
            server_def: Some(request.server_def),
        };
        done(self.worker.create_session(&session).await)
    }

    async fn delete_worker_session(
        &self,
        request: Request<proto::DeleteWorkerSessionRequest>,
    ) -> Result<Response<proto::DeleteWorkerSessionResponse>, Status> {
        self.worker
            .delete_session(&request.into_inner().session_handle);
        done(Ok(()))
    }

    async fn register_graph(
        &self,
        request: Request<proto::RegisterGraphRequest>,
    ) -> Result<Response<proto::RegisterGraphResponse>, Status> {
        let request: RegisterGraphRequest = decode(request)?;
        for receiver in pushed_to(&request.graph) {
            let peers = &self.worker.config.peers;
            peers.open_lane(&receiver, None).await.map_err(to_tonic)?;
        }
        let graph_handle =
            tokio::task::block_in_place(|| self.register(request)).map_err(to_tonic)?;
        Ok(Response::new(proto::RegisterGraphResponse { graph_handle }))
    }

    async fn deregister_graph(
        &self,
        request: Request<proto::DeregisterGraphRequest>,
    ) -> Result<Response<proto::DeregisterGraphResponse>, Status> {
        let request: DeregisterGraphRequest = decode(request)?;
        let graph = parse_handle(&request.graph_handle).map_err(to_tonic)?;
        self.worker.deregister_graph(&request.session_handle, graph);
        done(Ok(()))
    }

    async fn run_graph(
        &self,
        request: Request<proto::RunGraphRequest>,
    ) -> Result<Response<proto::RunGraphResponse>, Status> {
        let in_body = request.get_ref().store_errors_in_response_body;
        let outcome = match RunGraphRequest::decode(request.into_inner(), &Budget::default()) {
            Ok(request) => self.run(request).await.map(|(reply, _)| reply),
            Err(e) => Err(e),
        };
        RunGraphResponse::reply(outcome, in_body).map(Response::new)
    }

    async fn cleanup_graph(
        &self,
        request: Request<proto::CleanupGraphRequest>,
    ) -> Result<Response<proto::CleanupGraphResponse>, Status> {
        let request: CleanupGraphRequest = decode(request)?;
        self.worker.cleanup_step(request.step_id as u64);
        done(Ok(()))
    }

    async fn cleanup_all(
        &self,
        request: Request<proto::CleanupAllRequest>,
    ) -> Result<Response<proto::CleanupAllResponse>, Status> {
        let request: CleanupAllRequest = decode(request)?;
        done(self.worker.cleanup_all(&request.container).await)
    }

    async fn recv_tensor(
        &self,
        request: Request<proto::RecvTensorRequest>,
    ) -> Result<Response<proto::RecvTensorResponse>, Status> {
        let request: RecvTensorRequest = decode(request)?;
        reply(self.recv(request).await)
    }

    async fn mark_recv_finished(
        &self,
        _: Request<proto::MarkRecvFinishedRequest>,
    ) -> Result<Response<proto::MarkRecvFinishedResponse>, Status> {
        // Nothing is kept for a repeated request, so there is nothing to let go.
        done(Ok(()))
    }

    async fn logging(
        &self,
        request: Request<proto::LoggingRequest>,
    ) -> Result<Response<proto::LoggingResponse>, Status> {
        let request = request.into_inner();
        let log = &self.worker.log;
        if request.enable_rpc_logging {
            log.want(true);
        }
        // Old masters turn it off by asking for nothing.
        let nothing = !request.enable_rpc_logging && request.fetch_step_id.is_empty();
        if request.disable_rpc_logging || nothing {
            log.want(false);
        }
        let labeled = |step_id: i64| {
            let devices = log.take(step_id as u64)?;
            Some(proto::LabeledStepStats {
                step_id,
                step_stats: Some(StepStats { devices }.into()),
            })
        };
        let step = request.fetch_step_id.into_iter().filter_map(labeled);
        let step = step.collect();
        if request.clear {
            log.clear();
        }
        Ok(Response::new(proto::LoggingResponse { step }))
    }

    async fn tracing(
        &self,
        _: Request<proto::TracingRequest>,
    ) -> Result<Response<proto::TracingResponse>, Status> {
        Err(Status::unimplemented("Tracing"))
    }

    async fn recv_buf(
        &self,
        _: Request<proto::RecvBufRequest>,
    ) -> Result<Response<proto::RecvBufResponse>, Status> {
        no_collectives()
    }

    async fn get_step_sequence(
        &self,
        _: Request<proto::GetStepSequenceRequest>,
    ) -> Result<Response<proto::GetStepSequenceResponse>, Status> {
        no_collectives()
    }

    async fn complete_group(
        &self,
        _: Request<proto::CompleteGroupRequest>,
    ) -> Result<Response<proto::CompleteGroupResponse>, Status> {
        no_collectives()
    }

    async fn complete_instance(
        &self,
        _: Request<proto::CompleteInstanceRequest>,
    ) -> Result<Response<proto::CompleteInstanceResponse>, Status> {
        no_collectives()
    }
}
