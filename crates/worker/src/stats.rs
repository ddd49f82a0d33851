//! Traces as `StepStats`, in the form that TensorFlow's `timeline` draws.

use downpour_runtime::NodeTrace;
use downpour_tensor::PartialShape;
use downpour_wire::messages::{
    AllocatorMemory, DeviceStepStats, NodeExecStats, NodeOutput, TensorDescription,
};

/// What `timeline` looks for among allocators.
const ALLOCATOR: &str = "cpu";

pub(crate) fn device_stats(device: &str, traces: Vec<NodeTrace>) -> DeviceStepStats {
    let nodes = traces.into_iter().map(node_stats).collect();
    DeviceStepStats {
        device: device.to_owned(),
        nodes,
        ..Default::default()
    }
}

fn node_stats(trace: NodeTrace) -> NodeExecStats {
    let bytes: usize = trace.outputs.iter().map(|o| o.3).sum();
    let outputs = trace
        .outputs
        .iter()
        .map(|(slot, dtype, shape, bytes)| NodeOutput {
            slot: *slot as i32,
            tensor: TensorDescription {
                dtype: Some(*dtype),
                shape: PartialShape::from(shape),
                requested_bytes: *bytes as i64,
                allocated_bytes: *bytes as i64,
                allocator_name: ALLOCATOR.to_owned(),
            },
        })
        .collect();
    NodeExecStats {
        timeline_label: format!("{} = {}({})", trace.name, trace.op, trace.inputs.join(", ")),
        node_name: trace.name.to_string(),
        scheduled_nanos: trace.scheduled_ns,
        all_start_nanos: trace.start_ns,
        op_start_rel_nanos: 0,
        op_end_rel_nanos: trace.end_ns - trace.start_ns,
        all_end_rel_nanos: trace.end_ns - trace.start_ns,
        thread_id: trace.thread,
        memory: vec![AllocatorMemory {
            allocator_name: ALLOCATOR.to_owned(),
            total_bytes: bytes as i64,
            peak_bytes: bytes as i64,
            live_bytes: bytes as i64,
        }],
        outputs,
    }
}
