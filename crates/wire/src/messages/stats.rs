//! What a traced step reports: when each node ran, and what it produced.

use crate::{decode_partial_shape, encode_partial_shape, proto};
use downpour_tensor::{DType, PartialShape};
use std::collections::BTreeMap;

/// What a step did on each device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepStats {
    /// By device.
    pub devices: Vec<DeviceStepStats>,
}

/// What a step did on one device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceStepStats {
    /// Device name.
    pub device: String,
    /// Its nodes, in the order they ran.
    pub nodes: Vec<NodeExecStats>,
    /// Thread id → name.
    pub thread_names: BTreeMap<u32, String>,
}

/// When one node ran, and what it produced. Times are nanoseconds; the microseconds of the wire
/// are derived from them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeExecStats {
    /// Node name.
    pub node_name: String,
    /// When work on the node began, since 1970.
    pub all_start_nanos: i64,
    /// When its op began, after `all_start_nanos`.
    pub op_start_rel_nanos: i64,
    /// When its op ended.
    pub op_end_rel_nanos: i64,
    /// When work on the node ended.
    pub all_end_rel_nanos: i64,
    /// When the node became ready, since 1970.
    pub scheduled_nanos: i64,
    /// Text of the node in timelines, as in `b = MatMul(a, c)`.
    pub timeline_label: String,
    /// Thread that ran it.
    pub thread_id: u32,
    /// Memory it took from each allocator.
    pub memory: Vec<AllocatorMemory>,
    /// What it produced.
    pub outputs: Vec<NodeOutput>,
}

/// Memory taken from an allocator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllocatorMemory {
    /// Allocator.
    pub allocator_name: String,
    /// All that was taken.
    pub total_bytes: i64,
    /// Most at a time.
    pub peak_bytes: i64,
    /// Still held at the end.
    pub live_bytes: i64,
}

/// One output of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeOutput {
    /// Which.
    pub slot: i32,
    /// What it is.
    pub tensor: TensorDescription,
}

/// A tensor without its elements.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TensorDescription {
    /// Element type, if known.
    pub dtype: Option<DType>,
    /// Shape.
    pub shape: PartialShape,
    /// Bytes asked for.
    pub requested_bytes: i64,
    /// Bytes taken.
    pub allocated_bytes: i64,
    /// Allocator.
    pub allocator_name: String,
}

impl From<proto::StepStats> for StepStats {
    fn from(proto: proto::StepStats) -> StepStats {
        let device = |d: proto::DeviceStepStats| DeviceStepStats {
            device: d.device,
            nodes: d.node_stats.into_iter().map(decode_node).collect(),
            thread_names: d.thread_names,
        };
        StepStats {
            devices: proto.dev_stats.into_iter().map(device).collect(),
        }
    }
}

impl From<StepStats> for proto::StepStats {
    fn from(stats: StepStats) -> proto::StepStats {
        let device = |d: DeviceStepStats| proto::DeviceStepStats {
            device: d.device,
            node_stats: d.nodes.into_iter().map(encode_node).collect(),
            thread_names: d.thread_names,
        };
        proto::StepStats {
            dev_stats: stats.devices.into_iter().map(device).collect(),
        }
    }
}

/// Nanoseconds, or microseconds from a peer that sends no nanoseconds.
fn nanos(nanos: i64, micros: i64) -> i64 {
    if nanos != 0 {
        nanos
    } else {
        micros.saturating_mul(1000)
    }
}

fn decode_node(proto: proto::NodeExecStats) -> NodeExecStats {
    let memory = |m: proto::AllocatorMemoryUsed| AllocatorMemory {
        allocator_name: m.allocator_name,
        total_bytes: m.total_bytes,
        peak_bytes: m.peak_bytes,
        live_bytes: m.live_bytes,
    };
    let output = |o: proto::NodeOutput| NodeOutput {
        slot: o.slot,
        tensor: o
            .tensor_description
            .map(decode_description)
            .unwrap_or_default(),
    };
    NodeExecStats {
        all_start_nanos: nanos(proto.all_start_nanos, proto.all_start_micros),
        op_start_rel_nanos: nanos(proto.op_start_rel_nanos, proto.op_start_rel_micros),
        op_end_rel_nanos: nanos(proto.op_end_rel_nanos, proto.op_end_rel_micros),
        all_end_rel_nanos: nanos(proto.all_end_rel_nanos, proto.all_end_rel_micros),
        scheduled_nanos: nanos(proto.scheduled_nanos, proto.scheduled_micros),
        node_name: proto.node_name,
        timeline_label: proto.timeline_label,
        thread_id: proto.thread_id,
        memory: proto.memory.into_iter().map(memory).collect(),
        outputs: proto.output.into_iter().map(output).collect(),
    }
}

fn decode_description(proto: proto::TensorDescription) -> TensorDescription {
    let allocation = proto.allocation_description.unwrap_or_default();
    TensorDescription {
        dtype: DType::from_number(proto.dtype).ok(),
        // Only described, never used: what is no shape is an unknown one.
        shape: proto
            .shape
            .and_then(|s| decode_partial_shape(&s).ok())
            .unwrap_or_default(),
        requested_bytes: allocation.requested_bytes,
        allocated_bytes: allocation.allocated_bytes,
        allocator_name: allocation.allocator_name,
    }
}

fn encode_node(node: NodeExecStats) -> proto::NodeExecStats {
    let memory = |m: AllocatorMemory| proto::AllocatorMemoryUsed {
        allocator_name: m.allocator_name,
        total_bytes: m.total_bytes,
        peak_bytes: m.peak_bytes,
        live_bytes: m.live_bytes,
        ..Default::default()
    };
    let output = |o: NodeOutput| proto::NodeOutput {
        slot: o.slot,
        tensor_description: Some(encode_description(o.tensor)),
    };
    proto::NodeExecStats {
        node_name: node.node_name,
        all_start_micros: node.all_start_nanos / 1000,
        op_start_rel_micros: node.op_start_rel_nanos / 1000,
        op_end_rel_micros: node.op_end_rel_nanos / 1000,
        all_end_rel_micros: node.all_end_rel_nanos / 1000,
        memory: node.memory.into_iter().map(memory).collect(),
        output: node.outputs.into_iter().map(output).collect(),
        timeline_label: node.timeline_label,
        scheduled_micros: node.scheduled_nanos / 1000,
        thread_id: node.thread_id,
        memory_stats: Some(proto::MemoryStats::default()),
        all_start_nanos: node.all_start_nanos,
        op_start_rel_nanos: node.op_start_rel_nanos,
        op_end_rel_nanos: node.op_end_rel_nanos,
        all_end_rel_nanos: node.all_end_rel_nanos,
        scheduled_nanos: node.scheduled_nanos,
        ..Default::default()
    }
}

fn encode_description(tensor: TensorDescription) -> proto::TensorDescription {
    proto::TensorDescription {
        dtype: tensor.dtype.map_or(0, DType::number),
        shape: Some(encode_partial_shape(&tensor.shape)),
        allocation_description: Some(proto::AllocationDescription {
            requested_bytes: tensor.requested_bytes,
            allocated_bytes: tensor.allocated_bytes,
            allocator_name: tensor.allocator_name,
            ..Default::default()
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_survive_the_round_trip() {
        let stats = StepStats {
            devices: vec![DeviceStepStats {
                device: "/cpu:0".into(),
                nodes: vec![NodeExecStats {
                    node_name: "a".into(),
                    all_start_nanos: 1_700_000_000_123_456_789,
                    op_start_rel_nanos: 100,
                    op_end_rel_nanos: 2_500,
                    all_end_rel_nanos: 3_000,
                    scheduled_nanos: 1_700_000_000_123_000_000,
                    timeline_label: "a = NoOp()".into(),
                    thread_id: 4,
                    memory: vec![AllocatorMemory {
                        allocator_name: "cpu".into(),
                        total_bytes: 3,
                        peak_bytes: 2,
                        live_bytes: 1,
                    }],
                    outputs: vec![NodeOutput {
                        slot: 1,
                        tensor: TensorDescription {
                            dtype: Some(DType::Float),
                            shape: PartialShape::from_dims([Some(2)]),
                            requested_bytes: 8,
                            allocated_bytes: 64,
                            allocator_name: "cpu".into(),
                        },
                    }],
                }],
                thread_names: [(4, "compute".to_owned())].into(),
            }],
        };
        let proto = proto::StepStats::from(stats.clone());
        let node = &proto.dev_stats[0].node_stats[0];
        assert_eq!(node.all_start_micros, 1_700_000_000_123_456);
        assert_eq!(node.op_end_rel_micros, 2);
        assert_eq!(StepStats::from(proto), stats);
    }

    #[test]
    fn microseconds_alone_are_enough() {
        let node = decode_node(proto::NodeExecStats {
            all_start_micros: 5,
            scheduled_micros: i64::MAX,
            ..Default::default()
        });
        assert_eq!(node.all_start_nanos, 5000);
        assert_eq!(node.scheduled_nanos, i64::MAX);
    }
}
