//! Common-subexpression elimination: nodes that compute the same from the same become one. Only
//! stateless nodes of plain values qualify, and `NoOp`s that wait for the same; whatever has a name in
//! the request (`_Arg`, `_Retval`, `_Send`, `_Recv`, targets) or steers control flow stays.

use downpour_graph::{AttrList, AttrValue, Edge, Graph, Node, NodeId};
use downpour_tensor::{DType, Tensor};
use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::sync::Arc;

/// Constants larger than this are not compared.
const MAX_COMPARED_BYTES: usize = 4096;

/// Merges nodes that compute the same value; `targets` stay.
pub fn merge_common(graph: &Graph, targets: &[String]) -> Graph {
    let targets: HashSet<&str> = targets.iter().map(String::as_str).collect();
    let mut canonical: Vec<NodeId> = graph.nodes().map(|(id, _)| id).collect();
    let mut seen: HashMap<String, NodeId> = HashMap::new();
    let mut merged = false;
    for id in graph.topological_order() {
        let node = graph.node(id);
        let Some(key) = key_of(node, &canonical) else {
            continue;
        };
        // Others may become a target, a target does not become another node.
        if targets.contains(&*node.name) {
            seen.entry(key).or_insert(id);
            continue;
        }
        match seen.get(&key) {
            Some(&first) => {
                canonical[id.index()] = first;
                merged = true;
            }
            None => {
                seen.insert(key, id);
            }
        }
    }
    if !merged {
        return graph.clone();
    }
    let mut new_id = vec![NodeId(0); graph.len()];
    let mut count = 0;
    for (id, _) in graph.nodes() {
        if canonical[id.index()] == id {
            new_id[id.index()] = NodeId(count);
            count += 1;
        }
    }
    let at = |id: NodeId| new_id[canonical[id.index()].index()];
    let nodes = graph
        .nodes()
        .filter(|(id, _)| canonical[id.index()] == *id)
        .map(|(_, node)| {
            let mut copy = Node::clone(node);
            for edge in &mut copy.inputs {
                edge.node = at(edge.node);
            }
            for control in &mut copy.control_inputs {
                *control = at(*control);
            }
            copy.control_inputs.sort();
            copy.control_inputs.dedup();
            Arc::new(copy)
        })
        .collect();
    Graph::from_checked(nodes, graph)
}

/// A text that is equal for nodes that compute the same, or `None` for nodes that must stay.
fn key_of(node: &Node, canonical: &[NodeId]) -> Option<String> {
    let plain =
        |&(t, is_ref): &(DType, bool)| !is_ref && !matches!(t, DType::Resource | DType::Variant);
    // `tf.gradients` lets the gradients of one op wait for each other behind a `NoOp`: unless two such `NoOp`s are seen to
    // be the same, nothing behind them is.
    let is_wait = node.op_name() == "NoOp" && !node.control_inputs.is_empty();
    if node.op.stateful
        || (node.output_types.is_empty() && !is_wait)
        || !node.input_types.iter().chain(&node.output_types).all(plain)
        || matches!(
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
        )
    {
        return None;
    }
    let mut key = format!("{}\u{1}{}", node.op_name(), node.device);
    let mut inputs: Vec<Edge> = node
        .inputs
        .iter()
        .map(|e| Edge {
            node: canonical[e.node.index()],
            output: e.output,
        })
        .collect();
    if node.op.commutative && inputs.len() == 2 {
        inputs.sort();
    }
    for e in inputs {
        let _ = write!(key, "\u{1}{}:{}", e.node.0, e.output);
    }
    let mut controls: Vec<u32> = node
        .control_inputs
        .iter()
        .map(|c| canonical[c.index()].0)
        .collect();
    controls.sort();
    controls.dedup();
    let _ = write!(key, "\u{1}{controls:?}");
    for (name, value) in &node.attrs.0 {
        // Attributes that start with an underscore are hints. `_class` too: what it asks for is already in `device`, and it
        // names another node wherever `tf.gradients` was called another time.
        if name.starts_with('_') {
            continue;
        }
        let _ = write!(key, "\u{1}{name}=");
        write_attr(&mut key, value)?;
    }
    Some(key)
}

fn write_attr(key: &mut String, value: &AttrValue) -> Option<()> {
    match value {
        AttrValue::Tensor(t) => write_tensor(key, t)?,
        AttrValue::Func(_) | AttrValue::List(AttrList::Func(_) | AttrList::Tensor(_)) => {
            return None;
        }
        AttrValue::Float(f) => {
            let _ = write!(key, "{:x}", f.to_bits());
        }
        other => key.push_str(&downpour_graph::attr_text(other)),
    }
    Some(())
}

fn write_tensor(key: &mut String, t: &Tensor) -> Option<()> {
    if t.byte_len() > MAX_COMPARED_BYTES {
        return None;
    }
    let _ = write!(key, "{}{}", t.dtype(), t.shape());
    match (t.buffer(), t.as_strings()) {
        (Some(buffer), _) => {
            let _ = write!(key, "{:02x?}", buffer.as_bytes());
        }
        (None, Ok(strings)) => {
            let _ = write!(key, "{strings:?}");
        }
        _ => return None,
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use downpour_graph::{GraphDef, NodeDef};

    fn node(name: &str, op: &str, inputs: &[&str]) -> NodeDef {
        let mut def = NodeDef {
            name: name.into(),
            op: op.into(),
            ..Default::default()
        };
        def.inputs = inputs.iter().map(|s| s.to_string()).collect();
        def.attrs.set(
            if op == "_Arg" || op != "RandomUniform" {
                "T"
            } else {
                "dtype"
            },
            DType::Float,
        );
        def
    }

    #[test]
    fn equal_stateless_nodes_merge_and_stateful_ones_do_not() {
        let mut arg = node("x", "_Arg", &[]);
        arg.attrs.set("index", 0i64);
        let mut arg2 = node("y", "_Arg", &[]);
        arg2.attrs.set("index", 1i64);
        let g = Graph::new(GraphDef {
            nodes: vec![
                arg,
                arg2,
                node("a", "AddV2", &["x", "y"]),
                node("b", "AddV2", &["y", "x"]),
                node("c", "Sub", &["x", "y"]),
                node("d", "Sub", &["y", "x"]),
                node("e", "Mul", &["a", "b"]),
            ],
            ..Default::default()
        })
        .unwrap();
        let m = merge_common(&g, &[]);
        let names: Vec<&str> = m.nodes().map(|(_, n)| &*n.name).collect();
        // Addition is declared commutative, subtraction is not; `_Arg`s are stateful.
        assert_eq!(names, ["x", "y", "a", "c", "d", "e"]);
        let e = m.node(m.find("e").unwrap());
        assert_eq!(e.inputs[0], e.inputs[1]);
    }

    /// What two calls of `tf.gradients` on one loss leave behind, an update of its own on each.
    fn twice_differentiated() -> Graph {
        let class = |name: &str| {
            AttrValue::List(AttrList::Str(vec![
                format!("loc:@{name}").into_bytes().into(),
            ]))
        };
        let mut x = node("x", "_Arg", &[]);
        x.attrs.set("index", 0i64);
        let mut nodes = vec![x];
        for (scope, update) in [("g", "u"), ("g_1", "u_1")] {
            let named = |part: &str| format!("{scope}/{part}");
            let (left, right) = (named("left"), named("right"));
            let mut wait = node(
                &named("group_deps"),
                "NoOp",
                &[&format!("^{left}"), &format!("^{right}")],
            );
            wait.attrs = Default::default();
            let mut out = node(
                &named("out"),
                "Identity",
                &[&left, &format!("^{}", named("group_deps"))],
            );
            out.attrs.set("_class", class(&left));
            let mut print = node(update, "_Retval", &[&named("out")]);
            print.attrs.set("index", i64::from(update == "u_1"));
            nodes.extend([
                node(&left, "Neg", &["x"]),
                node(&right, "Exp", &["x"]),
                wait,
                out,
                print,
            ]);
        }
        Graph::new(GraphDef {
            nodes,
            ..Default::default()
        })
        .unwrap()
    }

    #[test]
    fn equal_gradients_merge_through_the_nodes_that_tie_them_together() {
        let m = merge_common(&twice_differentiated(), &[]);
        let names: Vec<&str> = m.nodes().map(|(_, n)| &*n.name).collect();
        let want = [
            "x",
            "g/left",
            "g/right",
            "g/group_deps",
            "g/out",
            "u",
            "u_1",
        ];
        assert_eq!(names, want);
        let read = |name: &str| m.node(m.find(name).unwrap()).inputs[0];
        assert_eq!(read("u"), read("u_1"));
    }

    #[test]
    fn what_a_request_names_stays() {
        let targets = ["g_1/group_deps".to_owned(), "g_1/left".to_owned()];
        let m = merge_common(&twice_differentiated(), &targets);
        assert!(targets.iter().all(|t| m.find(t).is_some()));
        // Behind a target that stayed, waiting for it is not waiting for the other.
        assert!(m.find("g_1/right").is_none());
    }
}
