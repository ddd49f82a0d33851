//! What each node of a step cost, put together from the graphs that ran and what they recorded.

use crate::plans::Registered;
use downpour_graph::Graph;
use downpour_net::StepEnd;
use downpour_tensor::PartialShape;
use downpour_wire::messages::{CostNode, CostOutput, GraphOptions, NodeExecStats};
use std::collections::HashMap;

/// Whether step number `count` (from 0) of a graph reports its costs.
pub(crate) fn are_wanted(options: &GraphOptions, count: u64) -> bool {
    let (every, after) = (options.build_cost_model, options.build_cost_model_after);
    every > 0 && (count as i64 + 1).wrapping_sub(after) % every == 0
}

/// The costs of a step that was traced.
pub(crate) fn cost_graph(plan: &Registered, end: &StepEnd) -> Vec<CostNode> {
    let mut seen: HashMap<(&str, &str), &NodeExecStats> = HashMap::new();
    for device in &end.stats {
        for node in &device.nodes {
            seen.insert((&device.device, &node.node_name), node);
        }
    }
    let parts = plan.parts.iter();
    parts.flat_map(|p| part_costs(&p.graph, &seen)).collect()
}

/// TensorFlow's graphs begin with a source and a sink; so do its cost models.
const ENDS: i32 = 2;

fn part_costs(graph: &Graph, seen: &HashMap<(&str, &str), &NodeExecStats>) -> Vec<CostNode> {
    let number = |index: usize| index as i32 + ENDS;
    let mut is_used = vec![false; graph.len()];
    for (_, node) in graph.nodes() {
        let data = node.inputs.iter().map(|e| e.node);
        for from in data.chain(node.control_inputs.iter().copied()) {
            is_used[from.index()] = true;
        }
    }
    let last = graph.nodes().filter(|(id, _)| !is_used[id.index()]);
    let end = |name: &str, id: i32, control_inputs: Vec<i32>| CostNode {
        name: name.to_owned(),
        id,
        control_inputs,
        ..Default::default()
    };
    let sink = last.map(|(id, _)| number(id.index())).collect();
    let mut nodes = vec![end("_SOURCE", 0, vec![]), end("_SINK", 1, sink)];
    for (id, node) in graph.nodes() {
        let stats = seen.get(&(&*node.device, &*node.name));
        let output = |(slot, (dtype, _)): (usize, &(_, bool))| {
            let made = stats.and_then(|s| s.outputs.iter().find(|o| o.slot as usize == slot));
            CostOutput {
                bytes: made.map_or(-1, |o| o.tensor.requested_bytes),
                dtype: Some(*dtype),
                shape: made.map_or_else(PartialShape::unknown, |o| o.tensor.shape.clone()),
            }
        };
        let mut control_inputs: Vec<i32> = (node.control_inputs.iter())
            .map(|c| number(c.index()))
            .collect();
        if node.inputs.is_empty() && control_inputs.is_empty() {
            control_inputs.push(0);
        }
        nodes.push(CostNode {
            name: node.name.to_string(),
            device: node.device.to_string(),
            id: number(id.index()),
            inputs: (node.inputs.iter())
                .map(|e| (number(e.node.index()), e.output as i32))
                .collect(),
            outputs: node.output_types.iter().enumerate().map(output).collect(),
            control_inputs,
            compute_micros: stats.map_or(0, |s| (s.op_end_rel_nanos / 1000).max(1)),
            is_final: !is_used[id.index()],
        });
    }
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_come_every_so_many_steps() {
        let wanted = |every, after| {
            let options = GraphOptions {
                build_cost_model: every,
                build_cost_model_after: after,
                ..Default::default()
            };
            (0..6)
                .filter(|n| are_wanted(&options, *n))
                .collect::<Vec<_>>()
        };
        assert!(wanted(0, 0).is_empty());
        assert_eq!(wanted(1, 0), [0, 1, 2, 3, 4, 5]);
        assert_eq!(wanted(3, 0), [2, 5]);
        assert_eq!(wanted(3, 1), [0, 3]);
    }
}
