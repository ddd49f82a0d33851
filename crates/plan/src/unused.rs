//! Values nobody uses: a stateless node that others only wait for becomes a `NoOp` which waits for
//! the same nodes. The gradients of a model's fed input are the usual case: `tf.gradients` ties
//! them to those of the weights. TensorFlow's optimiser does the same, so a graph's errors and
//! side effects stay what a client is used to.

use downpour_graph::{AttrList, AttrValue, Attrs, Graph, Node, NodeId, find_op};
use downpour_tensor::DType;
use std::collections::HashSet;
use std::sync::Arc;

/// Turns nodes whose values are not used into `NoOp`s, except `targets`.
pub fn skip_unused(graph: &Graph, targets: &[String]) -> Graph {
    let Some(no_op) = find_op("NoOp") else {
        return graph.clone();
    };
    let targets: HashSet<&str> = targets.iter().map(String::as_str).collect();
    let mut uses = vec![0usize; graph.len()];
    for (_, node) in graph.nodes() {
        for edge in &node.inputs {
            uses[edge.node.index()] += 1;
        }
    }
    let mut skipped = vec![false; graph.len()];
    for id in graph.topological_order().into_iter().rev() {
        let node = graph.node(id);
        // Waiting for a switch is not waiting for one of its sides.
        let chooses = |id: NodeId| matches!(graph.node(id).op_name(), "Switch" | "RefSwitch");
        if uses[id.index()] == 0
            && is_pure(node)
            && !targets.contains(&*node.name)
            && !node.inputs.iter().any(|e| chooses(e.node))
        {
            skipped[id.index()] = true;
            for edge in &node.inputs {
                uses[edge.node.index()] -= 1;
            }
        }
    }
    if !skipped.contains(&true) {
        return graph.clone();
    }
    let nodes = graph
        .nodes()
        .map(|(id, node)| match skipped[id.index()] {
            false => node.clone(),
            true => {
                let mut waits: Vec<NodeId> = node.control_inputs.clone();
                waits.extend(node.inputs.iter().map(|e| e.node));
                waits.sort();
                waits.dedup();
                Arc::new(Node {
                    name: node.name.clone(),
                    op: no_op.clone(),
                    inputs: Vec::new(),
                    control_inputs: waits,
                    device: node.device.clone(),
                    attrs: Attrs::default(),
                    input_types: Vec::new(),
                    output_types: Vec::new(),
                })
            }
        })
        .collect();
    Graph::from_checked(nodes, graph)
}

/// Whether a node does nothing but compute values.
fn is_pure(node: &Node) -> bool {
    let plain =
        |&(t, is_ref): &(DType, bool)| !is_ref && !matches!(t, DType::Resource | DType::Variant);
    let calls =
        |v: &AttrValue| matches!(v, AttrValue::Func(_) | AttrValue::List(AttrList::Func(_)));
    !node.op.stateful
        && !node.output_types.is_empty()
        && node.input_types.iter().chain(&node.output_types).all(plain)
        && !node.attrs.0.iter().any(|(_, v)| calls(v))
        && find_op(node.op_name()).is_some()
        && !matches!(
            node.op_name(),
            "Placeholder"
                | "PlaceholderV2"
                | "PlaceholderWithDefault"
                | "Switch"
                | "Merge"
                | "Enter"
                | "Exit"
                | "NextIteration"
                | "LoopCond"
                | "ControlTrigger"
                | "CheckNumerics"
                | "CheckNumericsV2"
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use downpour_graph::{GraphDef, NodeDef};

    fn graph(text: &str) -> Graph {
        let nodes = text.lines().map(|line| {
            let mut words = line.split(' ').map(str::to_owned);
            let mut def = NodeDef {
                name: words.next().unwrap(),
                op: words.next().unwrap(),
                inputs: words.collect(),
                ..Default::default()
            };
            match def.op.as_str() {
                "NoOp" => {}
                "Placeholder" if def.name == "p" => def.attrs.set("dtype", DType::Bool),
                "Placeholder" | "VariableV2" => {
                    def.attrs.set("dtype", DType::Float);
                    def.attrs
                        .set("shape", downpour_tensor::PartialShape::unknown());
                }
                _ => def.attrs.set("T", DType::Float),
            }
            def
        });
        Graph::new(GraphDef {
            nodes: nodes.collect(),
            ..Default::default()
        })
        .unwrap()
    }

    #[test]
    fn what_is_only_waited_for_is_not_computed() {
        let g = graph(
            "x Placeholder\na Neg x\nb Abs a\nd NoOp ^b\nc Neg x ^d\nv VariableV2\ne Assign v c\nf NoOp ^e",
        );
        let ops = |g: &Graph| -> Vec<String> {
            g.nodes()
                .map(|(_, n)| format!("{} {}", n.name, n.op_name()))
                .collect()
        };
        let skipped = skip_unused(&g, &["f".into()]);
        assert_eq!(
            ops(&skipped),
            [
                "x Placeholder",
                "a NoOp",
                "b NoOp",
                "d NoOp",
                "c Neg",
                "v VariableV2",
                "e Assign",
                "f NoOp"
            ]
        );
        let b = skipped.node(skipped.find("b").unwrap());
        assert_eq!(b.control_inputs, [skipped.find("a").unwrap()]);
        // The side of a switch that is not taken must stay dead for those who wait for it.
        let g = graph("x Placeholder\np Placeholder\ns Switch x p\ni Identity s:1\nc Neg x ^i");
        assert_eq!(ops(&skip_unused(&g, &["c".into()]))[3], "i Identity");
        let g = graph(
            "x Placeholder\na Neg x\nb Abs a\nd NoOp ^b\nc Neg x ^d\nv VariableV2\ne Assign v c\nf NoOp ^e",
        );
        // A target is run whether or not anyone uses its value.
        assert_eq!(ops(&skip_unused(&g, &["b".into(), "f".into()]))[2], "b Abs");
    }
}
