//! Constant folding: nodes whose inputs are all constants are run once, at compile time, and
//! become constants. A node that fails keeps its place: its error belongs to the step.

use crate::plan::{CompileEnv, build_kernel};
use downpour_graph::{AttrValue, Attrs, Edge, Graph, Node, NodeId, find_op};
use downpour_runtime::{Built, Cancellation, Inputs, NodeInfo, OpContext, StepEnv, Value};
use downpour_tensor::{DType, Tensor, account};
use std::collections::HashMap;
use std::sync::Arc;

/// Results larger than this stay computed: a folded constant lives as long as its plan.
const MAX_FOLDED_BYTES: usize = 10 << 20;

pub(crate) fn fold(graph: &Graph, env: &CompileEnv<'_>) -> Graph {
    let Some(const_op) = find_op("Const") else {
        return graph.clone();
    };
    let step = Arc::new(StepEnv::new(0, env.device.clone(), Cancellation::new()));
    let mut known: HashMap<Edge, Tensor> = HashMap::new();
    let mut folded: HashMap<NodeId, Vec<Tensor>> = HashMap::new();
    for id in graph.topological_order() {
        let node = graph.node(id);
        if node.op_name() == "Const" {
            if node.control_inputs.is_empty()
                && let Ok(value) = node.attrs.tensor("value")
            {
                known.insert(
                    Edge {
                        node: id,
                        output: 0,
                    },
                    value.clone(),
                );
            }
            continue;
        }
        if !foldable(node) {
            continue;
        }
        let inputs: Option<Vec<Tensor>> =
            node.inputs.iter().map(|e| known.get(e).cloned()).collect();
        let Some(inputs) = inputs else { continue };
        let Some(outputs) = evaluate(node, inputs, env, &step) else {
            continue;
        };
        for (i, value) in outputs.iter().enumerate() {
            known.insert(
                Edge {
                    node: id,
                    output: i as u32,
                },
                value.clone(),
            );
        }
        folded.insert(id, outputs);
    }
    if folded.is_empty() {
        return graph.clone();
    }
    rewrite(graph, &folded, &const_op)
}

fn foldable(node: &Node) -> bool {
    !node.op.stateful
        && !node.inputs.is_empty()
        && node.control_inputs.is_empty()
        && !node.output_types.is_empty()
        && node
            .input_types
            .iter()
            .chain(&node.output_types)
            .all(|(t, is_ref)| !is_ref && !matches!(t, DType::Resource | DType::Variant))
        && !matches!(
            node.op_name(),
            "Switch"
                | "Merge"
                | "Enter"
                | "Exit"
                | "NextIteration"
                | "LoopCond"
                | "PlaceholderWithDefault"
                | "StopGradient"
                | "PreventGradient"
        )
}

fn evaluate(
    node: &Arc<Node>,
    inputs: Vec<Tensor>,
    env: &CompileEnv<'_>,
    step: &Arc<StepEnv>,
) -> Option<Vec<Tensor>> {
    let (Built::Cheap(kernel) | Built::Costly(kernel)) = build_kernel(node, env).ok()? else {
        return None;
    };
    let info = NodeInfo::new(node, Vec::new());
    let mut inputs: Vec<_> = inputs.into_iter().map(|t| Some(Value::Tensor(t))).collect();
    // Estimated before it is computed: compiling a graph blocks its client and may block others.
    if let Some(growth) = env.registry.growth(node.op_name())
        && growth(node, Inputs::new(&inputs)) > MAX_FOLDED_BYTES
    {
        return None;
    }
    let mut outputs = vec![None; node.output_types.len()];
    let mut ctx = OpContext::new(step, &info, &mut inputs, &mut outputs, (0, 0));
    let _working = account::work_for(step.clone());
    let run = std::panic::AssertUnwindSafe(|| kernel.compute(&mut ctx));
    let ran = account::in_kernel(true, || std::panic::catch_unwind(run));
    ran.ok()?.ok()?;
    let mut out = Vec::with_capacity(outputs.len());
    for value in outputs {
        match value {
            Some(Value::Tensor(t)) if t.byte_len() <= MAX_FOLDED_BYTES => out.push(t),
            _ => return None,
        }
    }
    Some(out)
}

/// Replaces folded nodes by constants and leaves out those that nothing needs any more.
fn rewrite(
    graph: &Graph,
    folded: &HashMap<NodeId, Vec<Tensor>>,
    const_op: &Arc<downpour_graph::OpDef>,
) -> Graph {
    let mut nodes: Vec<Option<Arc<Node>>> = Vec::with_capacity(graph.len());
    // Extra constants for the second and later outputs of a folded node, after all old ids.
    let mut extra: Vec<Arc<Node>> = Vec::new();
    let mut moved: HashMap<Edge, Edge> = HashMap::new();
    for (id, node) in graph.nodes() {
        let Some(values) = folded.get(&id) else {
            nodes.push(Some(node.clone()));
            continue;
        };
        for (i, value) in values.iter().enumerate().skip(1) {
            let name = format!("{}/_folded_{i}", node.name);
            extra.push(Arc::new(constant(name, value.clone(), node, const_op)));
            let to = NodeId((graph.len() + extra.len() - 1) as u32);
            moved.insert(
                Edge {
                    node: id,
                    output: i as u32,
                },
                Edge {
                    node: to,
                    output: 0,
                },
            );
        }
        let first = constant(node.name.to_string(), values[0].clone(), node, const_op);
        nodes.push(Some(Arc::new(first)));
    }
    nodes.extend(extra.into_iter().map(Some));
    if !moved.is_empty() {
        for node in nodes.iter_mut().flatten() {
            if node.inputs.iter().any(|e| moved.contains_key(e)) {
                let node = Arc::make_mut(node);
                for edge in &mut node.inputs {
                    *edge = moved.get(edge).copied().unwrap_or(*edge);
                }
            }
        }
    }
    drop_unused(nodes, graph)
}

fn constant(name: String, value: Tensor, like: &Node, op: &Arc<downpour_graph::OpDef>) -> Node {
    let dtype = value.dtype();
    let mut attrs = Attrs::default();
    attrs.set("dtype", dtype);
    attrs.set("value", AttrValue::Tensor(value));
    Node {
        name: name.into(),
        op: op.clone(),
        inputs: Vec::new(),
        control_inputs: Vec::new(),
        device: like.device.clone(),
        attrs,
        input_types: Vec::new(),
        output_types: vec![(dtype, false)],
    }
}

/// Removes constants without consumers and renumbers.
fn drop_unused(nodes: Vec<Option<Arc<Node>>>, graph: &Graph) -> Graph {
    let mut used = vec![false; nodes.len()];
    for node in nodes.iter().flatten() {
        for edge in &node.inputs {
            used[edge.node.index()] = true;
        }
        for control in &node.control_inputs {
            used[control.index()] = true;
        }
    }
    let mut new_id = vec![NodeId(0); nodes.len()];
    let mut kept = Vec::with_capacity(nodes.len());
    for (i, node) in nodes.into_iter().enumerate() {
        let Some(node) = node else { continue };
        if node.op_name() == "Const" && !used[i] && node.control_inputs.is_empty() {
            continue;
        }
        new_id[i] = NodeId(kept.len() as u32);
        kept.push(node);
    }
    renumbered(kept, &new_id, graph)
}

/// A graph of the nodes of `graph` that were kept, which name others by their old numbers still.
pub(crate) fn renumbered(mut kept: Vec<Arc<Node>>, new_id: &[NodeId], graph: &Graph) -> Graph {
    for node in &mut kept {
        let node = Arc::make_mut(node);
        for edge in &mut node.inputs {
            edge.node = new_id[edge.node.index()];
        }
        for control in &mut node.control_inputs {
            *control = new_id[control.index()];
        }
    }
    Graph::from_checked(kept, graph)
}
