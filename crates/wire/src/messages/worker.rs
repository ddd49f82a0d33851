//! What a master or a peer asks of a worker, and the answers.

use super::cluster::{decode_devices, encode_devices};
use super::{
    DeviceAttributes, GraphOptions, ServerDef, SessionConfig, StepStats, WireMessage, decode_error,
    decode_feeds, decode_named, encode_error, encode_named, plain_messages,
};
use crate::budget::{Budget, Meter};
use crate::tensor_proto::{decode_tensor, encode_tensor};
use crate::{decode_graph, encode_graph_def, proto, to_tonic};
use downpour_graph::{GraphDef, Result, Status};
use downpour_tensor::Tensor;

plain_messages! {
    /// Asks for a task's devices.
    GetStatusRequest {}
    /// The answer to [`CreateWorkerSessionRequest`].
    CreateWorkerSessionResponse {}
    /// Ends a master's session on a worker.
    DeleteWorkerSessionRequest {
        /// Session.
        session_handle: String,
    }
    /// The answer to [`DeleteWorkerSessionRequest`].
    DeleteWorkerSessionResponse {}
    /// The answer to [`RegisterGraphRequest`].
    RegisterGraphResponse {
        /// Names the graph in [`RunGraphRequest`].
        graph_handle: String,
    }
    /// Forgets a graph.
    DeregisterGraphRequest {
        /// Graph.
        graph_handle: String,
        /// Session.
        session_handle: String,
        /// Whether the session was created on this worker; else the default one is meant.
        create_worker_session_called: bool,
    }
    /// The answer to [`DeregisterGraphRequest`].
    DeregisterGraphResponse {}
    /// Ends a step: whatever still waits for its tensors is told so.
    CleanupGraphRequest {
        /// Step.
        step_id: i64,
    }
    /// The answer to [`CleanupGraphRequest`].
    CleanupGraphResponse {}
    /// Clears containers.
    CleanupAllRequest {
        /// Containers; empty is the default one.
        container: Vec<String>,
    }
    /// The answer to [`CleanupAllRequest`].
    CleanupAllResponse {}
    /// Acknowledges a tensor.
    MarkRecvFinishedRequest {
        /// Of the request that asked for it.
        request_id: i64,
    }
    /// The answer to [`MarkRecvFinishedRequest`].
    MarkRecvFinishedResponse {}
    /// Turns the logging of calls on or off, or asks for what was logged.
    LoggingRequest {
        /// Turn it on.
        enable_rpc_logging: bool,
        /// Forget everything.
        clear: bool,
        /// Return what was logged of these steps.
        fetch_step_id: Vec<i64>,
        /// Turn it off.
        disable_rpc_logging: bool,
    }
    /// The answer to [`TracingRequest`].
    TracingResponse {}
}

/// The answer to [`GetStatusRequest`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GetStatusResponse {
    /// Devices of the task.
    pub devices: Vec<DeviceAttributes>,
}

impl WireMessage for GetStatusResponse {
    type Proto = proto::GetStatusResponse;

    fn decode(proto: Self::Proto, _: &Budget) -> Result<Self> {
        Ok(GetStatusResponse {
            devices: decode_devices(proto.device_attributes),
        })
    }

    fn encode(self) -> Result<Self::Proto> {
        Ok(proto::GetStatusResponse {
            device_attributes: encode_devices(self.devices),
        })
    }
}

/// Starts a master's session on a worker.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CreateWorkerSessionRequest {
    /// Session.
    pub session_handle: String,
    /// The worker's place in the session's cluster.
    pub server_def: ServerDef,
    /// Keep variables apart from other sessions.
    pub isolate_session_state: bool,
    /// Devices of every task, where the session shares them.
    pub cluster_device_attributes: Vec<DeviceAttributes>,
    /// The master's task.
    pub master_task: String,
    /// The incarnation of its device: sessions of its earlier lives can be dropped.
    pub master_incarnation: u64,
}

impl WireMessage for CreateWorkerSessionRequest {
    type Proto = proto::CreateWorkerSessionRequest;

    fn decode(proto: Self::Proto, _: &Budget) -> Result<Self> {
        Ok(CreateWorkerSessionRequest {
            session_handle: proto.session_handle,
            server_def: ServerDef::decode(proto.server_def.unwrap_or_default()),
            isolate_session_state: proto.isolate_session_state,
            cluster_device_attributes: decode_devices(proto.cluster_device_attributes),
            master_task: proto.master_task,
            master_incarnation: proto.master_incarnation.cast_unsigned(),
        })
    }

    fn encode(self) -> Result<Self::Proto> {
        Ok(proto::CreateWorkerSessionRequest {
            session_handle: self.session_handle,
            server_def: Some(self.server_def.encode()),
            isolate_session_state: self.isolate_session_state,
            cluster_device_attributes: encode_devices(self.cluster_device_attributes),
            master_task: self.master_task,
            master_incarnation: self.master_incarnation.cast_signed(),
        })
    }
}

/// Registers the part of a graph that is a worker's.
#[derive(Clone, Debug, Default)]
pub struct RegisterGraphRequest {
    /// Session.
    pub session_handle: String,
    /// Whether the session was created on this worker; else the default one is meant.
    pub create_worker_session_called: bool,
    /// The nodes, each with its full device name.
    pub graph: GraphDef,
    /// How to treat it.
    pub graph_options: GraphOptions,
    /// Which collective graph it is a part of; 0 is none.
    pub collective_graph_key: i64,
    /// Settings of the session; TensorFlow before 2.0 sends none.
    pub config: SessionConfig,
}

impl WireMessage for RegisterGraphRequest {
    type Proto = proto::RegisterGraphRequest;

    fn decode(proto: Self::Proto, budget: &Budget) -> Result<Self> {
        Ok(RegisterGraphRequest {
            session_handle: proto.session_handle,
            create_worker_session_called: proto.create_worker_session_called,
            graph: decode_graph(
                proto.graph_def.unwrap_or_default(),
                &mut Meter::from(budget),
            )?,
            graph_options: GraphOptions::decode(proto.graph_options.unwrap_or_default()),
            collective_graph_key: proto.collective_graph_key,
            config: SessionConfig::decode(proto.config_proto.unwrap_or_default()),
        })
    }

    fn encode(self) -> Result<Self::Proto> {
        Ok(proto::RegisterGraphRequest {
            session_handle: self.session_handle,
            create_worker_session_called: self.create_worker_session_called,
            graph_def: Some(encode_graph_def(&self.graph)?),
            graph_options: Some(self.graph_options.encode()),
            collective_graph_key: self.collective_graph_key,
            config_proto: Some(self.config.encode()),
            ..Default::default()
        })
    }
}

/// What a worker records of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExecutorOptions {
    /// Costs of nodes.
    pub record_costs: bool,
    /// When nodes ran.
    pub record_timeline: bool,
    /// The graph that ran.
    pub record_partition_graphs: bool,
    /// Describe allocations when memory runs out.
    pub report_tensor_allocations_upon_oom: bool,
}

/// Runs a registered graph for one step.
#[derive(Clone, Debug, Default)]
pub struct RunGraphRequest {
    /// Session.
    pub session_handle: String,
    /// Whether the session was created on this worker; else the default one is meant.
    pub create_worker_session_called: bool,
    /// Graph.
    pub graph_handle: String,
    /// Step, the same on every worker.
    pub step_id: i64,
    /// What to record.
    pub exec_opts: ExecutorOptions,
    /// Rendezvous key and value of each feed.
    pub send: Vec<(String, Tensor)>,
    /// Rendezvous keys of the fetches.
    pub recv_key: Vec<String>,
    /// Whether this is one of several calls for the step.
    pub is_partial: bool,
    /// Whether it is the last of them.
    pub is_last_partial_run: bool,
    /// Whether a failure is to be answered in the reply's body rather than as the call's status.
    pub store_errors_in_response_body: bool,
    /// Random, the same when the call is repeated; 0 is none.
    pub request_id: i64,
}

impl WireMessage for RunGraphRequest {
    type Proto = proto::RunGraphRequest;

    fn decode(proto: Self::Proto, budget: &Budget) -> Result<Self> {
        let opts = proto.exec_opts.unwrap_or_default();
        Ok(RunGraphRequest {
            session_handle: proto.session_handle,
            create_worker_session_called: proto.create_worker_session_called,
            graph_handle: proto.graph_handle,
            step_id: proto.step_id,
            exec_opts: ExecutorOptions {
                record_costs: opts.record_costs,
                record_timeline: opts.record_timeline,
                record_partition_graphs: opts.record_partition_graphs,
                report_tensor_allocations_upon_oom: opts.report_tensor_allocations_upon_oom,
            },
            send: decode_feeds(proto.send, &mut Meter::from(budget))?,
            recv_key: proto.recv_key,
            is_partial: proto.is_partial,
            is_last_partial_run: proto.is_last_partial_run,
            store_errors_in_response_body: proto.store_errors_in_response_body,
            request_id: proto.request_id,
        })
    }

    fn encode(self) -> Result<Self::Proto> {
        let opts = self.exec_opts;
        Ok(proto::RunGraphRequest {
            session_handle: self.session_handle,
            create_worker_session_called: self.create_worker_session_called,
            graph_handle: self.graph_handle,
            step_id: self.step_id,
            exec_opts: Some(proto::ExecutorOpts {
                record_costs: opts.record_costs,
                record_timeline: opts.record_timeline,
                record_partition_graphs: opts.record_partition_graphs,
                report_tensor_allocations_upon_oom: opts.report_tensor_allocations_upon_oom,
            }),
            send: encode_named(self.send)?,
            recv_key: self.recv_key,
            is_partial: self.is_partial,
            is_last_partial_run: self.is_last_partial_run,
            store_errors_in_response_body: self.store_errors_in_response_body,
            request_id: self.request_id,
        })
    }
}

/// The answer to [`RunGraphRequest`].
#[derive(Clone, Debug, Default)]
pub struct RunGraphResponse {
    /// Rendezvous key and value of each fetch.
    pub recv: Vec<(String, Tensor)>,
    /// When each node ran, if asked.
    pub step_stats: Option<StepStats>,
    /// The graphs that ran, if asked.
    pub partition_graphs: Vec<GraphDef>,
    /// Why the step failed, if it did and the request wanted to be told here.
    pub error: Option<Status>,
}

impl WireMessage for RunGraphResponse {
    type Proto = proto::RunGraphResponse;

    fn decode(proto: Self::Proto, budget: &Budget) -> Result<Self> {
        let meter = &mut Meter::from(budget);
        Ok(RunGraphResponse {
            recv: decode_named(proto.recv, meter)?,
            step_stats: proto.step_stats.map(Into::into),
            partition_graphs: proto
                .partition_graph
                .into_iter()
                .map(|g| decode_graph(g, meter))
                .collect::<Result<_>>()?,
            error: decode_error(proto.status_code, proto.status_error_message),
        })
    }

    fn encode(self) -> Result<Self::Proto> {
        let (status_code, status_error_message) = encode_error(self.error);
        Ok(proto::RunGraphResponse {
            recv: encode_named(self.recv)?,
            step_stats: self.step_stats.map(Into::into),
            // Present even when empty, as TensorFlow sends it.
            cost_graph: Some(proto::CostGraphDef::default()),
            partition_graph: self
                .partition_graphs
                .iter()
                .map(encode_graph_def)
                .collect::<Result<_>>()?,
            status_code,
            status_error_message,
        })
    }
}

impl RunGraphResponse {
    /// What a service answers: a failure goes into the body if the request asked for that. The
    /// body cannot say that a failure is derived, so such a one is always the call's status.
    pub fn reply(
        outcome: Result<RunGraphResponse>,
        store_errors_in_response_body: bool,
    ) -> Result<proto::RunGraphResponse, tonic::Status> {
        match outcome.and_then(WireMessage::encode) {
            Ok(reply) => Ok(reply),
            Err(error) if store_errors_in_response_body && !error.derived => {
                let failed = RunGraphResponse {
                    error: Some(error),
                    ..Default::default()
                };
                failed.encode().map_err(to_tonic)
            }
            Err(error) => Err(to_tonic(error)),
        }
    }
}

/// Asks the sender of a tensor for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecvTensorRequest {
    /// Step.
    pub step_id: i64,
    /// What is wanted.
    pub rendezvous_key: String,
    /// Random, the same when the call is repeated; 0 is none.
    pub request_id: i64,
}

impl WireMessage for RecvTensorRequest {
    type Proto = proto::RecvTensorRequest;

    fn decode(proto: Self::Proto, _: &Budget) -> Result<Self> {
        Ok(RecvTensorRequest {
            step_id: proto.step_id,
            rendezvous_key: proto.rendezvous_key,
            request_id: proto.request_id,
        })
    }

    fn encode(self) -> Result<Self::Proto> {
        Ok(proto::RecvTensorRequest {
            step_id: self.step_id,
            rendezvous_key: self.rendezvous_key,
            request_id: self.request_id,
            ..Default::default()
        })
    }
}

/// The answer to [`RecvTensorRequest`].
#[derive(Clone, Debug)]
pub struct RecvTensorResponse {
    /// The tensor; of a dead one, a placeholder without elements.
    pub tensor: Tensor,
    /// Whether it comes from a branch not taken.
    pub is_dead: bool,
    /// When it was sent, in microseconds since 1970.
    pub send_start_micros: i64,
    /// Whether the sender keeps it until it is acknowledged.
    pub require_ack: bool,
}

impl WireMessage for RecvTensorResponse {
    type Proto = proto::RecvTensorResponse;

    fn decode(proto: Self::Proto, budget: &Budget) -> Result<Self> {
        let tensor = proto.tensor.unwrap_or_default();
        Ok(RecvTensorResponse {
            tensor: decode_tensor(tensor, &mut Meter::from(budget))?,
            is_dead: proto.is_dead,
            send_start_micros: proto.send_start_micros,
            require_ack: proto.require_ack,
        })
    }

    fn encode(self) -> Result<Self::Proto> {
        Ok(proto::RecvTensorResponse {
            tensor: Some(encode_tensor(&self.tensor)?),
            is_dead: self.is_dead,
            send_start_micros: self.send_start_micros,
            require_ack: self.require_ack,
            ..Default::default()
        })
    }
}

/// The answer to [`LoggingRequest`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoggingResponse {
    /// Step and what was logged of it.
    pub steps: Vec<(i64, StepStats)>,
}

impl WireMessage for LoggingResponse {
    type Proto = proto::LoggingResponse;

    fn decode(proto: Self::Proto, _: &Budget) -> Result<Self> {
        let step =
            |s: proto::LabeledStepStats| (s.step_id, s.step_stats.unwrap_or_default().into());
        Ok(LoggingResponse {
            steps: proto.step.into_iter().map(step).collect(),
        })
    }

    fn encode(self) -> Result<Self::Proto> {
        let step = |(step_id, stats): (i64, StepStats)| proto::LabeledStepStats {
            step_id,
            step_stats: Some(stats.into()),
        };
        Ok(proto::LoggingResponse {
            step: self.steps.into_iter().map(step).collect(),
        })
    }
}

/// Asks for a profile; no worker gives one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TracingRequest {
    /// Seconds.
    pub duration: f64,
}

impl WireMessage for TracingRequest {
    type Proto = proto::TracingRequest;

    fn decode(proto: Self::Proto, _: &Budget) -> Result<Self> {
        Ok(TracingRequest {
            duration: proto.options.unwrap_or_default().duration,
        })
    }

    fn encode(self) -> Result<Self::Proto> {
        Ok(proto::TracingRequest {
            options: Some(proto::TraceOpts {
                duration: self.duration,
                ..Default::default()
            }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::{ClusterDef, JobDef};
    use downpour_graph::NodeDef;

    fn round_trip<M: WireMessage>(message: M) -> M {
        M::from_bytes(message.to_bytes().unwrap(), &Budget::default()).unwrap()
    }

    #[test]
    fn sessions_survive_the_round_trip() {
        let create = CreateWorkerSessionRequest {
            session_handle: "s".into(),
            server_def: ServerDef {
                cluster: ClusterDef {
                    jobs: vec![JobDef {
                        name: "ps".into(),
                        tasks: [(0, "h:1".to_owned()), (7, "h:2".to_owned())].into(),
                    }],
                },
                job_name: "ps".into(),
                task_index: 7,
                default_session_config: SessionConfig::default(),
                protocol: "grpc".into(),
                port: 1,
                replica: 2,
            },
            isolate_session_state: true,
            cluster_device_attributes: vec![DeviceAttributes::default()],
            master_task: "/job:w/replica:0/task:0".into(),
            master_incarnation: u64::MAX - 1,
        };
        assert_eq!(round_trip(create.clone()), create);
        let status = GetStatusResponse {
            devices: vec![DeviceAttributes {
                incarnation: 5,
                ..Default::default()
            }],
        };
        assert_eq!(round_trip(status.clone()), status);
    }

    #[test]
    fn graphs_and_steps_survive_the_round_trip() {
        let graph = GraphDef {
            nodes: vec![NodeDef::default()],
            ..Default::default()
        };
        let register = round_trip(RegisterGraphRequest {
            session_handle: "s".into(),
            create_worker_session_called: true,
            graph: graph.clone(),
            graph_options: GraphOptions {
                infer_shapes: true,
                ..Default::default()
            },
            collective_graph_key: 3,
            config: SessionConfig {
                log_device_placement: true,
                ..Default::default()
            },
        });
        assert_eq!(register.graph.nodes.len(), 1);
        assert!(register.create_worker_session_called && register.graph_options.infer_shapes);
        assert!(register.config.log_device_placement);
        assert_eq!(register.collective_graph_key, 3);

        let exec_opts = ExecutorOptions {
            record_costs: true,
            record_timeline: true,
            record_partition_graphs: true,
            report_tensor_allocations_upon_oom: true,
        };
        let run = round_trip(RunGraphRequest {
            session_handle: "s".into(),
            create_worker_session_called: true,
            graph_handle: "g".into(),
            step_id: 1 << 56,
            exec_opts,
            send: vec![("k".into(), Tensor::scalar(1u8))],
            recv_key: vec!["r".into()],
            is_partial: true,
            is_last_partial_run: true,
            store_errors_in_response_body: true,
            request_id: 4,
        });
        assert_eq!(run.exec_opts, exec_opts);
        assert_eq!((run.graph_handle.as_str(), run.step_id), ("g", 1 << 56));
        assert_eq!(run.send[0].1.scalar_value::<u8>().unwrap(), 1);
        assert_eq!((run.recv_key, run.request_id), (vec!["r".to_owned()], 4));
        assert!(run.is_partial && run.is_last_partial_run && run.store_errors_in_response_body);

        let reply = round_trip(RunGraphResponse {
            recv: vec![("r".into(), Tensor::scalar(2u8))],
            step_stats: Some(StepStats::default()),
            partition_graphs: vec![graph],
            error: Some(Status::internal("why")),
        });
        assert_eq!(reply.recv[0].1.scalar_value::<u8>().unwrap(), 2);
        assert_eq!(reply.partition_graphs.len(), 1);
        assert_eq!(reply.error, Some(Status::internal("why")));
        assert!(reply.step_stats.is_some());
    }

    #[test]
    fn an_empty_reply_is_as_short_as_that_of_tensorflow() {
        let bytes = RunGraphResponse::default().to_bytes().unwrap();
        assert_eq!(bytes.as_ref(), [0x1a, 0]);
    }

    #[test]
    fn a_derived_failure_is_the_status_of_the_call() {
        let fail = || Status::aborted("peer");
        let body = RunGraphResponse::reply(Err(fail()), true).unwrap();
        assert_eq!(
            (body.status_code, body.status_error_message.as_str()),
            (10, "peer")
        );
        let status = RunGraphResponse::reply(Err(fail().as_derived()), true).unwrap_err();
        assert!(crate::from_tonic(&status).derived);
        assert!(RunGraphResponse::reply(Err(fail()), false).is_err());
    }

    #[test]
    fn tensors_between_tasks_survive_the_round_trip() {
        let request = RecvTensorRequest {
            step_id: 1,
            rendezvous_key: "k".into(),
            request_id: 2,
        };
        assert_eq!(round_trip(request.clone()), request);
        let reply = round_trip(RecvTensorResponse {
            tensor: Tensor::vector(vec![1.0f64]),
            is_dead: true,
            send_start_micros: 3,
            require_ack: true,
        });
        assert_eq!(reply.tensor.as_slice::<f64>().unwrap(), [1.0]);
        assert!(reply.is_dead && reply.require_ack);
        assert_eq!(reply.send_start_micros, 3);
        let nothing = proto::RecvTensorResponse::default();
        assert!(RecvTensorResponse::decode(nothing, &Budget::default()).is_err());
    }

    #[test]
    fn logging_survives_the_round_trip() {
        let request = LoggingRequest {
            enable_rpc_logging: true,
            clear: true,
            fetch_step_id: vec![1, 2],
            disable_rpc_logging: true,
        };
        assert_eq!(round_trip(request.clone()), request);
        let reply = LoggingResponse {
            steps: vec![(7, StepStats::default())],
        };
        assert_eq!(round_trip(reply.clone()), reply);
        assert_eq!(round_trip(TracingRequest { duration: 1.5 }).duration, 1.5);
    }
}
