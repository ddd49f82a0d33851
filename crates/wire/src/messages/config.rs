//! How a session, a run or a callable is configured: the fields that change what happens. The
//! others (GPU memory, XLA, graph rewriting by TensorFlow's own optimizer) are not carried.

use super::ClusterDef;
use crate::proto::{self, optimizer_options, run_options};
use std::collections::BTreeMap;
use std::time::Duration;

/// Settings of a session.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SessionConfig {
    /// Device type → most devices of that type to use.
    pub device_count: BTreeMap<String, i32>,
    /// Only devices matching one of these take part; empty means all.
    pub device_filters: Vec<String>,
    /// Threads inside one op; 0 leaves it to the server.
    pub intra_op_parallelism_threads: i32,
    /// Ops at a time; 0 leaves it to the server.
    pub inter_op_parallelism_threads: i32,
    /// Place a node elsewhere rather than fail.
    pub allow_soft_placement: bool,
    /// Log where each node was placed.
    pub log_device_placement: bool,
    /// Longest time a call may block; `None` is for ever.
    pub operation_timeout: Option<Duration>,
    /// Refused by distributed sessions.
    pub use_per_session_threads: bool,
    /// Whether the session has thread pools of its own; refused by distributed sessions.
    pub has_session_thread_pools: bool,
    /// A cluster to use instead of the master's own; without a job there is none.
    pub cluster: ClusterDef,
    /// Keep variables apart from other sessions.
    pub isolate_session_state: bool,
    /// Tell every task about the devices of all.
    pub share_cluster_devices_in_session: bool,
    /// With a cluster of its own: use the tasks' usual state nevertheless.
    pub share_session_state_in_clusterspec_propagation: bool,
    /// Do not return partition graphs although asked.
    pub disable_output_partition_graphs: bool,
    /// How graphs are treated.
    pub graph_options: GraphOptions,
    /// How calls between tasks are made.
    pub rpc_options: RpcOptions,
}

/// How graphs are treated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GraphOptions {
    /// Start receives late.
    pub enable_recv_scheduling: bool,
    /// How much to optimize.
    pub opt_level: OptLevel,
    /// Merge equal nodes even at `L0`.
    pub do_common_subexpression_elimination: bool,
    /// Fold constants even at `L0`.
    pub do_constant_folding: bool,
    /// Inline functions even at `L0`.
    pub do_function_inlining: bool,
    /// Largest constant to fold to, in bytes; 0 is the default.
    pub max_folded_constant_in_bytes: i64,
    /// Report what each node costs every so many steps; 0 is never.
    pub build_cost_model: i64,
    /// Steps before the first such report.
    pub build_cost_model_after: i64,
    /// Annotate nodes with shapes.
    pub infer_shapes: bool,
    /// Place only what a step needs; distributed sessions do not.
    pub place_pruned_graph: bool,
    /// Send floats with half the bits.
    pub enable_bfloat16_sendrecv: bool,
}

/// How much to optimize.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OptLevel {
    /// Usual optimizations.
    #[default]
    L1,
    /// None.
    L0,
}

/// How calls between tasks are made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RpcOptions {
    /// Go through the network even to a master in the same process.
    pub use_rpc_for_inprocess_master: bool,
    /// `deflate`, `gzip` or empty.
    pub compression_algorithm: String,
    /// 0 to 3.
    pub compression_level: i32,
    /// Remember answers until they are acknowledged.
    pub cache_rpc_response: bool,
    /// Do not share connections between sessions.
    pub disable_session_connection_sharing: bool,
    /// Connections to each task; 0 is one.
    pub num_channels_per_target: i32,
}

/// How one run is traced and bounded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunOptions {
    /// What to record.
    pub trace_level: TraceLevel,
    /// Longest time; `None` is for ever.
    pub timeout: Option<Duration>,
    /// Which thread pool to use.
    pub inter_op_thread_pool: i32,
    /// Return the graphs that ran.
    pub output_partition_graphs: bool,
    /// Whether a debugger wants to watch tensors, which is not supported.
    pub has_debug_watches: bool,
    /// Describe allocations when memory runs out.
    pub report_tensor_allocations_upon_oom: bool,
    /// Which collective graph this is; 0 is none.
    pub collective_graph_key: i64,
}

/// What to record of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "each variant is TensorFlow's of the same name")]
pub enum TraceLevel {
    #[default]
    NoTrace = 0,
    SoftwareTrace = 1,
    HardwareTrace = 2,
    FullTrace = 3,
}

/// A run to prepare once and repeat.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallableOptions {
    /// Tensors to feed, in the order of the feeds of a run.
    pub feed: Vec<String>,
    /// Tensors to fetch.
    pub fetch: Vec<String>,
    /// Nodes to run.
    pub target: Vec<String>,
    /// Options of every run.
    pub run_options: RunOptions,
    /// `(from, to)`: the value of the first takes the place of the second.
    pub tensor_connections: Vec<(String, String)>,
    /// Devices the feeds are on.
    pub feed_devices: BTreeMap<String, String>,
    /// Devices the fetches shall be on.
    pub fetch_devices: BTreeMap<String, String>,
}

/// 0 and less are no bound.
fn decode_millis(millis: i64) -> Option<Duration> {
    u64::try_from(millis)
        .ok()
        .filter(|m| *m > 0)
        .map(Duration::from_millis)
}

fn encode_millis(duration: Option<Duration>) -> i64 {
    // Less than a millisecond must not become "no bound".
    duration.map_or(0, |d| {
        i64::try_from(d.as_millis()).unwrap_or(i64::MAX).max(1)
    })
}

impl SessionConfig {
    pub(super) fn decode(proto: proto::ConfigProto) -> SessionConfig {
        let experimental = proto.experimental.unwrap_or_default();
        let rpc = proto.rpc_options.unwrap_or_default();
        SessionConfig {
            device_count: proto.device_count,
            device_filters: proto.device_filters,
            intra_op_parallelism_threads: proto.intra_op_parallelism_threads,
            inter_op_parallelism_threads: proto.inter_op_parallelism_threads,
            allow_soft_placement: proto.allow_soft_placement,
            log_device_placement: proto.log_device_placement,
            operation_timeout: decode_millis(proto.operation_timeout_in_ms),
            use_per_session_threads: proto.use_per_session_threads,
            has_session_thread_pools: !proto.session_inter_op_thread_pool.is_empty(),
            cluster: proto.cluster_def.unwrap_or_default().into(),
            isolate_session_state: proto.isolate_session_state,
            share_cluster_devices_in_session: proto.share_cluster_devices_in_session
                || experimental.share_cluster_devices_in_session,
            share_session_state_in_clusterspec_propagation: experimental
                .share_session_state_in_clusterspec_propagation,
            disable_output_partition_graphs: experimental.disable_output_partition_graphs,
            graph_options: GraphOptions::decode(proto.graph_options.unwrap_or_default()),
            rpc_options: RpcOptions {
                use_rpc_for_inprocess_master: rpc.use_rpc_for_inprocess_master,
                compression_algorithm: rpc.compression_algorithm,
                compression_level: rpc.compression_level,
                cache_rpc_response: rpc.cache_rpc_response,
                disable_session_connection_sharing: rpc.disable_session_connection_sharing,
                num_channels_per_target: rpc.num_channels_per_target,
            },
        }
    }

    pub(super) fn encode(self) -> proto::ConfigProto {
        let pool = proto::ThreadPoolOptionProto::default();
        let rpc = self.rpc_options;
        proto::ConfigProto {
            device_count: self.device_count,
            device_filters: self.device_filters,
            intra_op_parallelism_threads: self.intra_op_parallelism_threads,
            inter_op_parallelism_threads: self.inter_op_parallelism_threads,
            allow_soft_placement: self.allow_soft_placement,
            log_device_placement: self.log_device_placement,
            operation_timeout_in_ms: encode_millis(self.operation_timeout),
            use_per_session_threads: self.use_per_session_threads,
            session_inter_op_thread_pool: vec![pool; usize::from(self.has_session_thread_pools)],
            cluster_def: (!self.cluster.jobs.is_empty()).then(|| self.cluster.into()),
            isolate_session_state: self.isolate_session_state,
            share_cluster_devices_in_session: self.share_cluster_devices_in_session,
            experimental: Some(proto::config_proto::Experimental {
                share_session_state_in_clusterspec_propagation: self
                    .share_session_state_in_clusterspec_propagation,
                disable_output_partition_graphs: self.disable_output_partition_graphs,
                ..Default::default()
            }),
            graph_options: Some(self.graph_options.encode()),
            rpc_options: Some(proto::RpcOptions {
                use_rpc_for_inprocess_master: rpc.use_rpc_for_inprocess_master,
                compression_algorithm: rpc.compression_algorithm,
                compression_level: rpc.compression_level,
                cache_rpc_response: rpc.cache_rpc_response,
                disable_session_connection_sharing: rpc.disable_session_connection_sharing,
                num_channels_per_target: rpc.num_channels_per_target,
            }),
            ..Default::default()
        }
    }

    /// These settings with a server's own laid over them: what the server sets wins, lists are
    /// appended. This is how TensorFlow merges the two messages.
    pub fn overlaid_with(&self, server: &SessionConfig) -> SessionConfig {
        use prost::Message as _;
        let mut merged = self.clone().encode();
        // Encoded messages are merged by reading one after the other; neither is hostile here.
        let bytes = server.clone().encode().encode_to_vec();
        merged
            .merge(bytes.as_slice())
            .expect("a message that was just encoded decodes");
        SessionConfig::decode(merged)
    }
}

impl GraphOptions {
    pub(super) fn decode(proto: proto::GraphOptions) -> GraphOptions {
        let optimizer = proto.optimizer_options.unwrap_or_default();
        GraphOptions {
            enable_recv_scheduling: proto.enable_recv_scheduling,
            opt_level: match optimizer.opt_level {
                l if l == optimizer_options::Level::L0 as i32 => OptLevel::L0,
                _ => OptLevel::L1,
            },
            do_common_subexpression_elimination: optimizer.do_common_subexpression_elimination,
            do_constant_folding: optimizer.do_constant_folding,
            do_function_inlining: optimizer.do_function_inlining,
            max_folded_constant_in_bytes: optimizer.max_folded_constant_in_bytes,
            build_cost_model: proto.build_cost_model,
            build_cost_model_after: proto.build_cost_model_after,
            infer_shapes: proto.infer_shapes,
            place_pruned_graph: proto.place_pruned_graph,
            enable_bfloat16_sendrecv: proto.enable_bfloat16_sendrecv,
        }
    }

    pub(super) fn encode(self) -> proto::GraphOptions {
        proto::GraphOptions {
            enable_recv_scheduling: self.enable_recv_scheduling,
            optimizer_options: Some(proto::OptimizerOptions {
                opt_level: match self.opt_level {
                    OptLevel::L0 => optimizer_options::Level::L0 as i32,
                    OptLevel::L1 => optimizer_options::Level::L1 as i32,
                },
                do_common_subexpression_elimination: self.do_common_subexpression_elimination,
                do_constant_folding: self.do_constant_folding,
                do_function_inlining: self.do_function_inlining,
                max_folded_constant_in_bytes: self.max_folded_constant_in_bytes,
                ..Default::default()
            }),
            build_cost_model: self.build_cost_model,
            build_cost_model_after: self.build_cost_model_after,
            infer_shapes: self.infer_shapes,
            place_pruned_graph: self.place_pruned_graph,
            enable_bfloat16_sendrecv: self.enable_bfloat16_sendrecv,
            ..Default::default()
        }
    }
}

impl RunOptions {
    pub(super) fn decode(proto: proto::RunOptions) -> RunOptions {
        RunOptions {
            trace_level: match run_options::TraceLevel::try_from(proto.trace_level) {
                Ok(run_options::TraceLevel::SoftwareTrace) => TraceLevel::SoftwareTrace,
                Ok(run_options::TraceLevel::HardwareTrace) => TraceLevel::HardwareTrace,
                Ok(run_options::TraceLevel::FullTrace) => TraceLevel::FullTrace,
                Ok(run_options::TraceLevel::NoTrace) | Err(_) => TraceLevel::NoTrace,
            },
            timeout: decode_millis(proto.timeout_in_ms),
            inter_op_thread_pool: proto.inter_op_thread_pool,
            output_partition_graphs: proto.output_partition_graphs,
            has_debug_watches: proto
                .debug_options
                .is_some_and(|d| !d.debug_tensor_watch_opts.is_empty()),
            report_tensor_allocations_upon_oom: proto.report_tensor_allocations_upon_oom,
            collective_graph_key: proto.experimental.unwrap_or_default().collective_graph_key,
        }
    }

    pub(super) fn encode(self) -> proto::RunOptions {
        let watch = proto::DebugTensorWatch::default();
        proto::RunOptions {
            trace_level: self.trace_level as i32,
            timeout_in_ms: encode_millis(self.timeout),
            inter_op_thread_pool: self.inter_op_thread_pool,
            output_partition_graphs: self.output_partition_graphs,
            debug_options: self.has_debug_watches.then(|| proto::DebugOptions {
                debug_tensor_watch_opts: vec![watch],
                ..Default::default()
            }),
            report_tensor_allocations_upon_oom: self.report_tensor_allocations_upon_oom,
            experimental: (self.collective_graph_key != 0).then(|| run_options::Experimental {
                collective_graph_key: self.collective_graph_key,
                ..Default::default()
            }),
        }
    }
}

impl CallableOptions {
    pub(super) fn decode(proto: proto::CallableOptions) -> CallableOptions {
        CallableOptions {
            feed: proto.feed,
            fetch: proto.fetch,
            target: proto.target,
            run_options: RunOptions::decode(proto.run_options.unwrap_or_default()),
            tensor_connections: proto
                .tensor_connection
                .into_iter()
                .map(|c| (c.from_tensor, c.to_tensor))
                .collect(),
            feed_devices: proto.feed_devices,
            fetch_devices: proto.fetch_devices,
        }
    }

    pub(super) fn encode(self) -> proto::CallableOptions {
        let connection = |(from_tensor, to_tensor)| proto::TensorConnection {
            from_tensor,
            to_tensor,
        };
        proto::CallableOptions {
            feed: self.feed,
            fetch: self.fetch,
            target: self.target,
            run_options: Some(self.run_options.encode()),
            tensor_connection: self
                .tensor_connections
                .into_iter()
                .map(connection)
                .collect(),
            feed_devices: self.feed_devices,
            fetch_devices: self.fetch_devices,
            ..Default::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::JobDef;

    fn unusual() -> SessionConfig {
        SessionConfig {
            device_count: [("CPU".to_owned(), 1)].into(),
            device_filters: vec!["/job:ps".into()],
            intra_op_parallelism_threads: 2,
            inter_op_parallelism_threads: 3,
            allow_soft_placement: true,
            log_device_placement: true,
            operation_timeout: Some(Duration::from_millis(1500)),
            use_per_session_threads: true,
            has_session_thread_pools: true,
            cluster: ClusterDef {
                jobs: vec![JobDef {
                    name: "w".into(),
                    tasks: [(3, "h:1".to_owned())].into(),
                }],
            },
            isolate_session_state: true,
            share_cluster_devices_in_session: true,
            share_session_state_in_clusterspec_propagation: true,
            disable_output_partition_graphs: true,
            graph_options: GraphOptions {
                enable_recv_scheduling: true,
                opt_level: OptLevel::L0,
                do_common_subexpression_elimination: true,
                do_constant_folding: true,
                do_function_inlining: true,
                max_folded_constant_in_bytes: 9,
                build_cost_model: 3,
                build_cost_model_after: 4,
                infer_shapes: true,
                place_pruned_graph: true,
                enable_bfloat16_sendrecv: true,
            },
            rpc_options: RpcOptions {
                use_rpc_for_inprocess_master: true,
                compression_algorithm: "gzip".into(),
                compression_level: 2,
                cache_rpc_response: true,
                disable_session_connection_sharing: true,
                num_channels_per_target: 4,
            },
        }
    }

    #[test]
    fn settings_survive_the_round_trip() {
        for config in [SessionConfig::default(), unusual()] {
            assert_eq!(SessionConfig::decode(config.clone().encode()), config);
        }
        let options = RunOptions {
            trace_level: TraceLevel::FullTrace,
            timeout: Some(Duration::from_secs(1)),
            inter_op_thread_pool: 1,
            output_partition_graphs: true,
            has_debug_watches: true,
            report_tensor_allocations_upon_oom: true,
            collective_graph_key: 5,
        };
        for options in [RunOptions::default(), options.clone()] {
            assert_eq!(RunOptions::decode(options.clone().encode()), options);
        }
        let callable = CallableOptions {
            feed: vec!["a:0".into()],
            fetch: vec!["b:0".into()],
            target: vec!["c".into()],
            run_options: options,
            tensor_connections: vec![("x:0".into(), "y:0".into())],
            feed_devices: [("a:0".to_owned(), "/cpu:0".to_owned())].into(),
            fetch_devices: [("b:0".to_owned(), "/cpu:0".to_owned())].into(),
        };
        assert_eq!(CallableOptions::decode(callable.clone().encode()), callable);
    }

    #[test]
    fn a_server_wins_where_it_says_something() {
        let client = SessionConfig {
            operation_timeout: Some(Duration::from_secs(9)),
            device_filters: vec!["/job:worker".into()],
            isolate_session_state: true,
            ..Default::default()
        };
        let server = SessionConfig {
            operation_timeout: Some(Duration::from_secs(1)),
            device_filters: vec!["/job:ps".into()],
            allow_soft_placement: true,
            ..Default::default()
        };
        let merged = client.overlaid_with(&server);
        assert_eq!(merged.operation_timeout, Some(Duration::from_secs(1)));
        assert_eq!(merged.device_filters, ["/job:worker", "/job:ps"]);
        assert!(merged.allow_soft_placement && merged.isolate_session_state);
        assert_eq!(client.overlaid_with(&SessionConfig::default()), client);
    }

    #[test]
    fn odd_timeouts_and_levels_are_harmless() {
        assert_eq!(decode_millis(-5), None);
        assert_eq!(decode_millis(0), None);
        assert_eq!(encode_millis(Some(Duration::from_micros(1))), 1);
        assert_eq!(encode_millis(Some(Duration::MAX)), i64::MAX);
        let odd = proto::RunOptions {
            trace_level: 77,
            ..Default::default()
        };
        assert_eq!(RunOptions::decode(odd).trace_level, TraceLevel::NoTrace);
    }
}
