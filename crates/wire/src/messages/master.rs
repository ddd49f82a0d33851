//! What a client asks of a master, and the answers.

use super::cluster::{decode_devices, encode_devices};
use super::{
    CallableOptions, CostNode, DeviceAttributes, RunOptions, SessionConfig, StepStats, WireMessage,
    decode_error, decode_feed, decode_feeds, decode_named, encode_error, encode_named,
    plain_messages,
};
use crate::budget::{Budget, Meter};
use crate::tensor_proto::{decode_tensor, encode_tensor};
use crate::{decode_graph, encode_graph_def, proto, to_tonic};
use downpour_graph::{GraphDef, Result, Status};
use downpour_tensor::Tensor;

plain_messages! {
    /// The answer to [`CreateSessionRequest`].
    CreateSessionResponse {
        /// Names the session in every later call.
        session_handle: String,
        /// Version to extend from.
        graph_version: i64,
    }
    /// The answer to [`ExtendSessionRequest`].
    ExtendSessionResponse {
        /// Version to extend from next.
        new_graph_version: i64,
    }
    /// Prepares a run in several parts.
    PartialRunSetupRequest {
        /// Session.
        session_handle: String,
        /// Every tensor that any part will feed.
        feed: Vec<String>,
        /// Every tensor that any part will fetch.
        fetch: Vec<String>,
        /// Nodes to run.
        target: Vec<String>,
        /// Random, the same when the call is repeated; 0 is none.
        request_id: i64,
    }
    /// The answer to [`PartialRunSetupRequest`].
    PartialRunSetupResponse {
        /// Names the run in [`RunStepRequest`].
        partial_run_handle: String,
    }
    /// Ends a session.
    CloseSessionRequest {
        /// Session.
        session_handle: String,
    }
    /// The answer to [`CloseSessionRequest`].
    CloseSessionResponse {}
    /// Ends every session and clears containers.
    ResetRequest {
        /// Containers to clear; empty is the default one.
        container: Vec<String>,
        /// Only on devices matching one of these.
        device_filters: Vec<String>,
    }
    /// The answer to [`ResetRequest`].
    ResetResponse {}
    /// Asks for the devices.
    ListDevicesRequest {
        /// Session; empty is the whole cluster.
        session_handle: String,
    }
    /// The answer to [`MakeCallableRequest`].
    MakeCallableResponse {
        /// Names the callable.
        handle: i64,
    }
    /// Forgets a callable.
    ReleaseCallableRequest {
        /// Session.
        session_handle: String,
        /// Callable.
        handle: i64,
    }
    /// The answer to [`ReleaseCallableRequest`].
    ReleaseCallableResponse {}
}

/// Starts a session.
#[derive(Clone, Debug, Default)]
pub struct CreateSessionRequest {
    /// First part of its graph.
    pub graph: GraphDef,
    /// Settings.
    pub config: SessionConfig,
    /// How the client addressed the master.
    pub target: String,
}

impl CreateSessionRequest {
    /// Decodes with a meter that can go on to count what later extends the session.
    pub fn decode_metered(proto: proto::CreateSessionRequest, meter: &mut Meter) -> Result<Self> {
        Ok(CreateSessionRequest {
            graph: decode_graph(proto.graph_def.unwrap_or_default(), meter)?,
            config: SessionConfig::decode(proto.config.unwrap_or_default()),
            target: proto.target,
        })
    }
}

impl WireMessage for CreateSessionRequest {
    type Proto = proto::CreateSessionRequest;

    fn decode(proto: Self::Proto, budget: &Budget) -> Result<Self> {
        Self::decode_metered(proto, &mut Meter::from(budget))
    }

    fn encode(self) -> Result<Self::Proto> {
        Ok(proto::CreateSessionRequest {
            graph_def: Some(encode_graph_def(&self.graph)?),
            config: Some(self.config.encode()),
            target: self.target,
        })
    }
}

/// Adds nodes to a session's graph.
#[derive(Clone, Debug, Default)]
pub struct ExtendSessionRequest {
    /// Session.
    pub session_handle: String,
    /// The new nodes only, and the whole library.
    pub graph: GraphDef,
    /// Version the client believes the graph has.
    pub current_graph_version: i64,
}

impl ExtendSessionRequest {
    /// Decodes with the meter of the whole session.
    pub fn decode_metered(proto: proto::ExtendSessionRequest, meter: &mut Meter) -> Result<Self> {
        Ok(ExtendSessionRequest {
            session_handle: proto.session_handle,
            graph: decode_graph(proto.graph_def.unwrap_or_default(), meter)?,
            current_graph_version: proto.current_graph_version,
        })
    }
}

impl WireMessage for ExtendSessionRequest {
    type Proto = proto::ExtendSessionRequest;

    fn decode(proto: Self::Proto, budget: &Budget) -> Result<Self> {
        Self::decode_metered(proto, &mut Meter::from(budget))
    }

    fn encode(self) -> Result<Self::Proto> {
        Ok(proto::ExtendSessionRequest {
            session_handle: self.session_handle,
            graph_def: Some(encode_graph_def(&self.graph)?),
            current_graph_version: self.current_graph_version,
        })
    }
}

/// Runs a step, or a part of one.
#[derive(Clone, Debug, Default)]
pub struct RunStepRequest {
    /// Session.
    pub session_handle: String,
    /// `node:output` and value.
    pub feed: Vec<(String, Tensor)>,
    /// `node:output` of each tensor to return.
    pub fetch: Vec<String>,
    /// Nodes to run.
    pub target: Vec<String>,
    /// Tracing and bounds.
    pub options: RunOptions,
    /// Which partial run this is a part of; empty is none.
    pub partial_run_handle: String,
    /// Whether a failure is to be answered in the reply's body rather than as the call's status.
    pub store_errors_in_response_body: bool,
    /// Random, the same when the call is repeated; 0 is none.
    pub request_id: i64,
}

impl WireMessage for RunStepRequest {
    type Proto = proto::RunStepRequest;

    fn decode(proto: Self::Proto, budget: &Budget) -> Result<Self> {
        Ok(RunStepRequest {
            session_handle: proto.session_handle,
            feed: decode_feeds(proto.feed, &mut Meter::from(budget))?,
            fetch: proto.fetch,
            target: proto.target,
            options: RunOptions::decode(proto.options.unwrap_or_default()),
            partial_run_handle: proto.partial_run_handle,
            store_errors_in_response_body: proto.store_errors_in_response_body,
            request_id: proto.request_id,
        })
    }

    fn encode(self) -> Result<Self::Proto> {
        Ok(proto::RunStepRequest {
            session_handle: self.session_handle,
            feed: encode_named(self.feed)?,
            fetch: self.fetch,
            target: self.target,
            options: Some(self.options.encode()),
            partial_run_handle: self.partial_run_handle,
            store_errors_in_response_body: self.store_errors_in_response_body,
            request_id: self.request_id,
        })
    }
}

/// The answer to [`RunStepRequest`].
#[derive(Clone, Debug, Default)]
pub struct RunStepResponse {
    /// What was fetched, by name.
    pub tensors: Vec<(String, Tensor)>,
    /// What tracing found.
    pub metadata: RunMetadata,
    /// Why the step failed, if it did and the request wanted to be told here.
    pub error: Option<Status>,
}

impl WireMessage for RunStepResponse {
    type Proto = proto::RunStepResponse;

    fn decode(proto: Self::Proto, budget: &Budget) -> Result<Self> {
        let meter = &mut Meter::from(budget);
        Ok(RunStepResponse {
            tensors: decode_named(proto.tensor, meter)?,
            metadata: RunMetadata::decode(proto.metadata.unwrap_or_default(), meter)?,
            error: decode_error(proto.status_code, proto.status_error_message),
        })
    }

    fn encode(self) -> Result<Self::Proto> {
        let (status_code, status_error_message) = encode_error(self.error);
        Ok(proto::RunStepResponse {
            tensor: encode_named(self.tensors)?,
            // Present even when empty, as TensorFlow sends it.
            metadata: Some(self.metadata.encode()?),
            status_code,
            status_error_message,
        })
    }
}

impl RunStepResponse {
    /// What a service answers: a failure goes into the body if the request asked for that.
    pub fn reply(
        outcome: Result<RunStepResponse>,
        store_errors_in_response_body: bool,
    ) -> Result<proto::RunStepResponse, tonic::Status> {
        match outcome.and_then(WireMessage::encode) {
            Ok(reply) => Ok(reply),
            Err(error) if store_errors_in_response_body => {
                let failed = RunStepResponse {
                    error: Some(error),
                    ..Default::default()
                };
                failed.encode().map_err(to_tonic)
            }
            Err(error) => Err(to_tonic(error)),
        }
    }
}

/// What tracing found.
#[derive(Clone, Debug, Default)]
pub struct RunMetadata {
    /// When each node ran.
    pub step_stats: Option<StepStats>,
    /// The graphs that ran, one for each task.
    pub partition_graphs: Vec<GraphDef>,
    /// What each node cost, if the session asked for it.
    pub cost_graph: Vec<CostNode>,
}

impl RunMetadata {
    fn decode(proto: proto::RunMetadata, meter: &mut Meter) -> Result<RunMetadata> {
        Ok(RunMetadata {
            step_stats: proto.step_stats.map(Into::into),
            partition_graphs: proto
                .partition_graphs
                .into_iter()
                .map(|g| decode_graph(g, meter))
                .collect::<Result<_>>()?,
            cost_graph: proto.cost_graph.map_or_else(Vec::new, |costs| {
                costs.node.into_iter().map(Into::into).collect()
            }),
        })
    }

    /// In protobuf's form, as event files keep it too.
    pub fn encode(self) -> Result<proto::RunMetadata> {
        Ok(proto::RunMetadata {
            step_stats: self.step_stats.map(Into::into),
            partition_graphs: self
                .partition_graphs
                .iter()
                .map(encode_graph_def)
                .collect::<Result<_>>()?,
            cost_graph: (!self.cost_graph.is_empty()).then(|| proto::CostGraphDef {
                node: self.cost_graph.into_iter().map(Into::into).collect(),
                ..Default::default()
            }),
            ..Default::default()
        })
    }
}

/// The answer to [`ListDevicesRequest`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListDevicesResponse {
    /// Devices of the master's own task, or all of a session's.
    pub local_device: Vec<DeviceAttributes>,
    /// Devices of other tasks.
    pub remote_device: Vec<DeviceAttributes>,
}

impl WireMessage for ListDevicesResponse {
    type Proto = proto::ListDevicesResponse;

    fn decode(proto: Self::Proto, _: &Budget) -> Result<Self> {
        Ok(ListDevicesResponse {
            local_device: decode_devices(proto.local_device),
            remote_device: decode_devices(proto.remote_device),
        })
    }

    fn encode(self) -> Result<Self::Proto> {
        Ok(proto::ListDevicesResponse {
            local_device: encode_devices(self.local_device),
            remote_device: encode_devices(self.remote_device),
        })
    }
}

/// Prepares a run that will be repeated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MakeCallableRequest {
    /// Session.
    pub session_handle: String,
    /// What to run.
    pub options: CallableOptions,
    /// Random, the same when the call is repeated; 0 is none.
    pub request_id: i64,
}

impl WireMessage for MakeCallableRequest {
    type Proto = proto::MakeCallableRequest;

    fn decode(proto: Self::Proto, _: &Budget) -> Result<Self> {
        Ok(MakeCallableRequest {
            session_handle: proto.session_handle,
            options: CallableOptions::decode(proto.options.unwrap_or_default()),
            request_id: proto.request_id,
        })
    }

    fn encode(self) -> Result<Self::Proto> {
        Ok(proto::MakeCallableRequest {
            session_handle: self.session_handle,
            options: Some(self.options.encode()),
            request_id: self.request_id,
        })
    }
}

/// Runs a callable.
#[derive(Clone, Debug, Default)]
pub struct RunCallableRequest {
    /// Session.
    pub session_handle: String,
    /// Callable.
    pub handle: i64,
    /// Values in the order of the callable's feeds.
    pub feed: Vec<Tensor>,
    /// Random, the same when the call is repeated; 0 is none.
    pub request_id: i64,
}

impl WireMessage for RunCallableRequest {
    type Proto = proto::RunCallableRequest;

    fn decode(proto: Self::Proto, budget: &Budget) -> Result<Self> {
        let meter = &mut Meter::from(budget);
        Ok(RunCallableRequest {
            session_handle: proto.session_handle,
            handle: proto.handle,
            feed: proto
                .feed
                .into_iter()
                .enumerate()
                .map(|(i, t)| decode_feed(i, Some(t), meter))
                .collect::<Result<_>>()?,
            request_id: proto.request_id,
        })
    }

    fn encode(self) -> Result<Self::Proto> {
        Ok(proto::RunCallableRequest {
            session_handle: self.session_handle,
            handle: self.handle,
            feed: self.feed.iter().map(encode_tensor).collect::<Result<_>>()?,
            request_id: self.request_id,
        })
    }
}

/// The answer to [`RunCallableRequest`].
#[derive(Clone, Debug, Default)]
pub struct RunCallableResponse {
    /// What was fetched, in the order of the callable's fetches.
    pub fetch: Vec<Tensor>,
    /// What tracing found.
    pub metadata: RunMetadata,
}

impl WireMessage for RunCallableResponse {
    type Proto = proto::RunCallableResponse;

    fn decode(proto: Self::Proto, budget: &Budget) -> Result<Self> {
        let meter = &mut Meter::from(budget);
        Ok(RunCallableResponse {
            fetch: proto
                .fetch
                .into_iter()
                .map(|t| Ok(decode_tensor(t, meter)?))
                .collect::<Result<_>>()?,
            metadata: RunMetadata::decode(proto.metadata.unwrap_or_default(), meter)?,
        })
    }

    fn encode(self) -> Result<Self::Proto> {
        Ok(proto::RunCallableResponse {
            fetch: self
                .fetch
                .iter()
                .map(encode_tensor)
                .collect::<Result<_>>()?,
            metadata: Some(self.metadata.encode()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::CostOutput;
    use bytes::Bytes;
    use downpour_graph::{Code, NodeDef};
    use downpour_tensor::DType;

    fn round_trip<M: WireMessage>(message: M) -> M {
        M::from_bytes(message.to_bytes().unwrap(), &Budget::default()).unwrap()
    }

    #[test]
    fn steps_survive_the_round_trip() {
        let back = round_trip(RunStepRequest {
            session_handle: "s".into(),
            feed: vec![("x:0".into(), Tensor::vector(vec![1.0f32]))],
            fetch: vec!["y:0".into()],
            target: vec!["t".into()],
            options: RunOptions {
                output_partition_graphs: true,
                ..Default::default()
            },
            partial_run_handle: "0".into(),
            store_errors_in_response_body: true,
            request_id: -3,
        });
        let (name, value) = &back.feed[0];
        assert_eq!(
            (name.as_str(), value.as_slice::<f32>().unwrap()),
            ("x:0", &[1.0f32][..])
        );
        assert_eq!(back.fetch, ["y:0"]);
        assert_eq!(back.target, ["t"]);
        assert!(back.options.output_partition_graphs && back.store_errors_in_response_body);
        assert_eq!(
            (back.partial_run_handle.as_str(), back.request_id),
            ("0", -3)
        );

        let cost = CostNode {
            name: "a".into(),
            id: 2,
            inputs: vec![(1, 3)],
            outputs: vec![CostOutput {
                bytes: 4,
                dtype: Some(DType::Float),
                ..Default::default()
            }],
            control_inputs: vec![0],
            compute_micros: 7,
            is_final: true,
            ..Default::default()
        };
        let back = round_trip(RunStepResponse {
            tensors: vec![("y:0".into(), Tensor::string("a"))],
            metadata: RunMetadata {
                step_stats: Some(StepStats::default()),
                partition_graphs: vec![GraphDef {
                    nodes: vec![NodeDef::default()],
                    ..Default::default()
                }],
                cost_graph: vec![cost.clone()],
            },
            error: Some(Status::aborted("why")),
        });
        assert_eq!(back.tensors[0].1.as_strings().unwrap(), ["a"]);
        assert_eq!(back.metadata.partition_graphs[0].nodes.len(), 1);
        assert!(back.metadata.step_stats.is_some());
        assert_eq!(back.metadata.cost_graph, [cost]);
        assert_eq!(back.error, Some(Status::aborted("why")));
    }

    #[test]
    fn a_bad_feed_is_counted_as_tensorflow_counts_it() {
        let bad = proto::TensorProto {
            dtype: 1,
            tensor_content: Bytes::from_static(b"123"),
            ..Default::default()
        };
        let good = proto::TensorProto {
            dtype: 1,
            ..Default::default()
        };
        let named = |tensor: &proto::TensorProto| proto::NamedTensorProto {
            name: "x:0".into(),
            tensor: Some(tensor.clone()),
        };
        let expected = Status::invalid_argument("Invalid TensorProto for feed value 1");
        let step = proto::RunStepRequest {
            feed: vec![named(&good), named(&bad)],
            ..Default::default()
        };
        let e = RunStepRequest::decode(step, &Budget::default()).unwrap_err();
        assert_eq!(e, expected);
        let run = proto::RunCallableRequest {
            feed: vec![good, bad],
            ..Default::default()
        };
        let e = RunCallableRequest::decode(run, &Budget::default()).unwrap_err();
        assert_eq!(e, expected);
        // A feed without a tensor has no type.
        let none = proto::RunStepRequest {
            feed: vec![proto::NamedTensorProto::default()],
            ..Default::default()
        };
        let e = RunStepRequest::decode(none, &Budget::default()).unwrap_err();
        assert_eq!(e.message, "Invalid TensorProto for feed value 0");
    }

    #[test]
    fn a_feed_that_is_too_large_says_so() {
        let bomb = proto::RunStepRequest {
            feed: vec![proto::NamedTensorProto {
                name: "x:0".into(),
                tensor: Some(proto::TensorProto {
                    dtype: 1,
                    tensor_shape: Some(crate::encode_dims(&[1 << 40])),
                    float_val: vec![1.0],
                    ..Default::default()
                }),
            }],
            ..Default::default()
        };
        let e = RunStepRequest::decode(bomb, &Budget::default()).unwrap_err();
        assert_eq!(e.code, Code::ResourceExhausted);
    }

    #[test]
    fn failures_go_where_the_request_wants_them() {
        let fail = || Err(Status::not_found("it"));
        let body = RunStepResponse::reply(fail(), true).unwrap();
        assert_eq!(
            (body.status_code, body.status_error_message.as_str()),
            (5, "it")
        );
        let status = RunStepResponse::reply(fail(), false).unwrap_err();
        assert_eq!(
            (status.code(), status.message()),
            (tonic::Code::NotFound, "it")
        );
    }

    #[test]
    fn one_meter_counts_a_whole_session() {
        let graph = |nodes: usize| {
            Some(proto::GraphDef {
                node: vec![Default::default(); nodes],
                ..Default::default()
            })
        };
        let mut meter = Meter::from(&Budget {
            nodes: 5,
            ..Budget::default()
        });
        let create = proto::CreateSessionRequest {
            graph_def: graph(3),
            ..Default::default()
        };
        CreateSessionRequest::decode_metered(create, &mut meter).unwrap();
        let extend = |nodes| proto::ExtendSessionRequest {
            graph_def: graph(nodes),
            ..Default::default()
        };
        ExtendSessionRequest::decode_metered(extend(2), &mut meter).unwrap();
        assert!(ExtendSessionRequest::decode_metered(extend(1), &mut meter).is_err());
    }

    #[test]
    fn the_other_messages_survive_the_round_trip() {
        let create = round_trip(CreateSessionRequest {
            graph: GraphDef {
                nodes: vec![NodeDef::default()],
                ..Default::default()
            },
            config: SessionConfig {
                allow_soft_placement: true,
                ..Default::default()
            },
            target: "grpc://h:1".into(),
        });
        assert_eq!(create.graph.nodes.len(), 1);
        assert!(create.config.allow_soft_placement);
        assert_eq!(create.target, "grpc://h:1");

        let extend = round_trip(ExtendSessionRequest {
            session_handle: "s".into(),
            graph: GraphDef::default(),
            current_graph_version: 7,
        });
        assert_eq!(
            (extend.session_handle.as_str(), extend.current_graph_version),
            ("s", 7)
        );

        let setup = PartialRunSetupRequest {
            session_handle: "s".into(),
            feed: vec!["a".into()],
            fetch: vec!["b".into()],
            target: vec!["c".into()],
            request_id: 1,
        };
        assert_eq!(round_trip(setup.clone()), setup);

        let devices = ListDevicesResponse {
            local_device: vec![DeviceAttributes {
                name: "/job:w/replica:0/task:0/device:CPU:0".into(),
                device_type: "CPU".into(),
                memory_limit: 1 << 28,
                locality: crate::messages::DeviceLocality {
                    bus_id: 1,
                    numa_node: 2,
                    links: vec![crate::messages::DeviceLink {
                        device_id: 3,
                        kind: "k".into(),
                        strength: 4,
                    }],
                },
                incarnation: u64::MAX,
                physical_device_desc: "d".into(),
                xla_global_id: -1,
            }],
            remote_device: vec![DeviceAttributes::default()],
        };
        assert_eq!(round_trip(devices.clone()), devices);

        let make = MakeCallableRequest {
            session_handle: "s".into(),
            options: CallableOptions {
                feed: vec!["f".into()],
                ..Default::default()
            },
            request_id: 2,
        };
        assert_eq!(round_trip(make.clone()), make);

        let run = round_trip(RunCallableRequest {
            session_handle: "s".into(),
            handle: 3,
            feed: vec![Tensor::scalar(1i64)],
            request_id: 4,
        });
        assert_eq!((run.handle, run.feed.len(), run.request_id), (3, 1, 4));
        let reply = round_trip(RunCallableResponse {
            fetch: vec![Tensor::scalar(2i64)],
            metadata: RunMetadata::default(),
        });
        assert_eq!(reply.fetch[0].scalar_value::<i64>().unwrap(), 2);
    }
}
