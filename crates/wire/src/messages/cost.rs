//! What each node of a step cost, in the form of TensorFlow's cost models.

use crate::{decode_partial_shape, encode_partial_shape, proto};
use downpour_tensor::{DType, PartialShape};

/// A node and what it cost. Ids count within the graph of one task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CostNode {
    /// Name.
    pub name: String,
    /// Device it ran on.
    pub device: String,
    /// Its number.
    pub id: i32,
    /// Number and output of each node whose value it takes.
    pub inputs: Vec<(i32, i32)>,
    /// What it gives.
    pub outputs: Vec<CostOutput>,
    /// Nodes it waits for.
    pub control_inputs: Vec<i32>,
    /// Time it took, in microseconds.
    pub compute_micros: i64,
    /// Whether nothing takes its values.
    pub is_final: bool,
}

/// One output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CostOutput {
    /// Bytes; -1 if not known.
    pub bytes: i64,
    /// Type, if known.
    pub dtype: Option<DType>,
    /// Shape.
    pub shape: PartialShape,
}

impl From<CostNode> for proto::cost_graph_def::Node {
    fn from(node: CostNode) -> Self {
        use proto::cost_graph_def::node::{InputInfo, OutputInfo};
        let input = |(preceding_node, preceding_port)| InputInfo {
            preceding_node,
            preceding_port,
        };
        let output = |o: CostOutput| OutputInfo {
            size: o.bytes,
            // No output is known to be an input in another place.
            alias_input_port: -1,
            shape: Some(encode_partial_shape(&o.shape)),
            dtype: o.dtype.map_or(0, DType::number),
        };
        proto::cost_graph_def::Node {
            name: node.name,
            device: node.device,
            id: node.id,
            input_info: node.inputs.into_iter().map(input).collect(),
            output_info: node.outputs.into_iter().map(output).collect(),
            control_input: node.control_inputs,
            compute_cost: node.compute_micros,
            is_final: node.is_final,
            ..Default::default()
        }
    }
}

impl From<proto::cost_graph_def::Node> for CostNode {
    fn from(node: proto::cost_graph_def::Node) -> Self {
        let inputs = node.input_info.into_iter();
        let outputs = node.output_info.into_iter().map(|o| CostOutput {
            bytes: o.size,
            dtype: DType::from_number(o.dtype).ok(),
            shape: o
                .shape
                .and_then(|s| decode_partial_shape(&s).ok())
                .unwrap_or_default(),
        });
        CostNode {
            name: node.name,
            device: node.device,
            id: node.id,
            inputs: inputs
                .map(|i| (i.preceding_node, i.preceding_port))
                .collect(),
            outputs: outputs.collect(),
            control_inputs: node.control_input,
            compute_micros: node.compute_cost,
            is_final: node.is_final,
        }
    }
}
