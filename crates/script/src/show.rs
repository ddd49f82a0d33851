//! Graphs as [`parse`](crate::parse) reads them: a line a node, without what follows from the rest.

use crate::value::show_tensor;
use downpour_graph::{ArgKind, AttrList, AttrValue, ElementType, Graph, Node, OpDef};
use std::fmt::Write as _;

/// A graph's nodes, one a line, in their order.
pub fn show(graph: &Graph) -> String {
    let lines = graph.nodes().map(|(_, node)| show_node(graph, node) + "\n");
    lines.collect()
}

/// One node: `name = Op(inputs) attributes @device`.
pub fn show_node(graph: &Graph, node: &Node) -> String {
    let mut inputs: Vec<String> = Vec::new();
    for edge in &node.inputs {
        let name = &graph.node(edge.node).name;
        inputs.push(match edge.output {
            0 => name.to_string(),
            output => format!("{name}:{output}"),
        });
    }
    for control in &node.control_inputs {
        inputs.push(format!("^{}", graph.node(*control).name));
    }
    let mut out = format!("{} = {}({})", node.name, node.op_name(), inputs.join(", "));
    for (name, value) in &node.attrs.0 {
        if !follows(&node.op, name, value) {
            let _ = write!(out, " {name}={}", show_attr(value));
        }
    }
    if !node.device.is_empty() {
        let _ = write!(out, " @{}", short_device(&node.device));
    }
    out
}

/// Whether an attribute follows from the inputs, or is what it is by default.
fn follows(op: &OpDef, name: &str, value: &AttrValue) -> bool {
    let of_input = |kind: &ArgKind| match kind {
        ArgKind::Single(ElementType::Attr(t)) => t == name,
        ArgKind::Repeated(n, t) => n == name || matches!(t, ElementType::Attr(t) if t == name),
        ArgKind::List(list) => list == name,
        ArgKind::Single(ElementType::Fixed(_)) => false,
    };
    let default = op.attr(name).and_then(|a| a.default.as_ref());
    op.inputs.iter().any(|arg| of_input(&arg.kind))
        || default.is_some_and(|d| show_attr(d) == show_attr(value))
        // Says again what `value` says.
        || op.name == "Const" && name == "dtype"
}

fn show_attr(value: &AttrValue) -> String {
    fn list<T>(values: &[T], one: impl Fn(&T) -> String) -> String {
        let texts: Vec<String> = values.iter().map(one).collect();
        format!("[{}]", texts.join(","))
    }
    match value {
        AttrValue::Tensor(t) => show_tensor(t).replace(", ", ","),
        AttrValue::Type(t) => t.name().to_owned(),
        AttrValue::Func(f) => f.name.clone(),
        AttrValue::List(AttrList::Type(v)) => list(v, |t| t.name().to_owned()),
        AttrValue::List(AttrList::Int(v)) => list(v, i64::to_string),
        AttrValue::List(AttrList::Func(v)) => list(v, |f| f.name.clone()),
        other => downpour_graph::attr_text(other).replace(", ", ","),
    }
}

/// `/job:ps/replica:0/task:1/device:CPU:0` as `ps:1`, without the number for task 0; other names as they are.
fn short_device(device: &str) -> String {
    let parts = device.strip_prefix("/job:").and_then(|d| {
        let (job, rest) = d.split_once("/replica:0/task:")?;
        Some((job, rest.strip_suffix("/device:CPU:0")?))
    });
    match parts {
        Some((job, "0")) => job.to_owned(),
        Some((job, task)) => format!("{job}:{task}"),
        None => device.to_owned(),
    }
}
