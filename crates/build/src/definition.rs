//! Between a function's definition and a body's nodes: what is read, what is written, and what of a
//! body a definition needs.

use crate::body::Body;
use crate::function::{ArgSpec, has_effect};
use crate::graph::Inner;
use downpour_graph::{
    ArgDef, ArgKind, AttrValue, ElementType, Endpoint, FunctionBody, Node, NodeDef, NodeId, Result,
    Status,
};
use downpour_tensor::DType;
use std::collections::{HashMap, HashSet};

/// The nodes that a body's results and effects depend on.
pub(crate) fn needed(inner: &Inner, body: &Body) -> HashSet<NodeId> {
    let mut needed = HashSet::new();
    let mut stack: Vec<NodeId> = body.results.iter().map(|r| r.endpoint().node).collect();
    stack.extend(effects(inner));
    while let Some(id) = stack.pop() {
        if id.index() >= inner.graph.len() || !needed.insert(id) {
            continue;
        }
        if let Some(other) = body.instead.get(&id) {
            stack.push(other.endpoint().node);
            continue;
        }
        let node = inner.graph.node(id);
        stack.extend(node.inputs.iter().map(|e| e.node));
        stack.extend(&node.control_inputs);
    }
    needed
}

/// Nodes of a body that must have run when it is done, although no result needs them: what has an
/// effect, and what reads a resource before the next iteration, or the caller, changes it again.
pub(crate) fn effects(inner: &Inner) -> Vec<NodeId> {
    if let Some(given) = inner.function.as_ref().and_then(|f| f.effects.clone()) {
        return given;
    }
    let resources = |node: &Node| -> Vec<Endpoint> {
        let inputs = node.inputs.iter().zip(&node.input_types);
        let resources = inputs.filter(|(_, t)| t.0 == DType::Resource);
        resources.map(|(edge, _)| *edge).collect()
    };
    let changing = inner.graph.nodes().filter(|(_, n)| has_effect(n));
    let changed: HashSet<Endpoint> = changing.flat_map(|(_, n)| resources(n)).collect();
    let counts = |node: &Node| {
        let touches = || resources(node).iter().any(|r| changed.contains(r));
        has_effect(node) || (node.op.stateful && touches())
    };
    let nodes = inner.graph.nodes().filter(|(_, n)| counts(n));
    nodes.map(|(id, _)| id).collect()
}

pub(crate) fn endpoint(node: u32, output: u32) -> Endpoint {
    Endpoint {
        node: NodeId(node),
        output,
    }
}

pub(crate) fn single(name: String, dtype: DType) -> ArgDef {
    ArgDef {
        name,
        kind: ArgKind::Single(ElementType::Fixed(dtype)),
        is_ref: false,
    }
}

/// `name`, with underscores behind it while a node is called so.
pub(crate) fn free_among(inner: &Inner, mut name: String) -> String {
    while inner.graph.find(&name).is_some() {
        name.push('_');
    }
    name
}

/// From an instantiated function to the nodes of a body: arguments first, results left out.
pub(crate) struct Loader<'a> {
    body: &'a FunctionBody,
    args: &'a [ArgSpec],
    /// Each node's new position.
    ids: HashMap<NodeId, NodeId>,
    names: Vec<String>,
}

impl<'a> Loader<'a> {
    pub(crate) fn new(body: &'a FunctionBody, args: &'a [ArgSpec]) -> Loader<'a> {
        let mut names: Vec<Option<String>> = vec![None; args.len()];
        let mut ids = HashMap::new();
        let mut next = args.len() as u32;
        for (id, node) in body.graph.nodes() {
            match (node.op_name(), node.attrs.size("index")) {
                ("_Arg", Ok(i)) if i < names.len() => {
                    names[i] = Some(node.name.to_string());
                    ids.insert(id, NodeId(i as u32));
                }
                ("_Retval", _) => {}
                _ => {
                    ids.insert(id, NodeId(next));
                    next += 1;
                }
            }
        }
        let names = names.into_iter().enumerate();
        let names = names.map(|(i, name)| name.unwrap_or_else(|| unused(body, i)));
        Loader {
            body,
            args,
            ids,
            names: names.collect(),
        }
    }

    pub(crate) fn nodes(&mut self) -> Vec<NodeDef> {
        let mut out = Vec::with_capacity(self.body.graph.len());
        for (arg, name) in self.args.iter().zip(&self.names) {
            let mut def = NodeDef {
                name: name.clone(),
                op: "Placeholder".to_owned(),
                ..Default::default()
            };
            def.attrs.set("dtype", arg.dtype);
            def.attrs.set("shape", AttrValue::Shape(arg.shape.clone()));
            out.push(def);
        }
        for (_, node) in self.body.graph.nodes() {
            if !matches!(node.op_name(), "_Arg" | "_Retval") {
                out.push(crate::graph::node_def(&self.body.graph, node));
            }
        }
        out
    }

    /// What the function returns, in order.
    pub(crate) fn results(&self) -> Vec<Endpoint> {
        let mut results = vec![endpoint(0, 0); self.body.ret_types.len()];
        for (_, node) in self.body.graph.nodes() {
            if let ("_Retval", Ok(i), Some(edge)) = (
                node.op_name(),
                node.attrs.size("index"),
                node.inputs.first(),
            ) && let (Some(result), Some(&node)) = (results.get_mut(i), self.ids.get(&edge.node))
            {
                *result = Endpoint {
                    node,
                    output: edge.output,
                };
            }
        }
        results
    }
}

/// A name for an argument that the body does not use.
fn unused(body: &FunctionBody, i: usize) -> String {
    let mut name = format!("unused_{i}");
    while body.graph.find(&name).is_some() {
        name.push('_');
    }
    name
}

/// From a body's nodes to a function's.
pub(crate) struct Writer<'a> {
    inner: &'a Inner,
    pub(crate) needed: HashSet<NodeId>,
    pub(crate) args: HashMap<NodeId, String>,
    instead: HashMap<NodeId, Endpoint>,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(inner: &'a Inner, body: &Body) -> Writer<'a> {
        let mut args = HashMap::new();
        for (i, arg) in body.args.iter().enumerate() {
            let name = free_among(inner, format!("arg_{i}"));
            args.insert(arg.endpoint().node, name);
        }
        let instead = body.instead.iter().map(|(&id, o)| (id, o.endpoint()));
        Writer {
            inner,
            needed: needed(inner, body),
            args,
            instead: instead.collect(),
        }
    }

    /// How a body's node names one of its inputs.
    pub(crate) fn reference(&self, at: Endpoint) -> Result<String> {
        if let Some(&other) = self.instead.get(&at.node) {
            return self.reference(other);
        }
        if let Some(name) = self.args.get(&at.node) {
            return Ok(name.clone());
        }
        let node = self.inner.graph.node(at.node);
        let ranges = node.op.output_ranges(&node.attrs)?;
        let output = at.output as usize;
        let found = ranges.iter().find(|(_, r)| r.contains(&output));
        let (result, range) = found
            .ok_or_else(|| Status::internal(format!("'{}' has no output {output}", node.name)))?;
        Ok(format!("{}:{result}:{}", node.name, output - range.start))
    }

    pub(crate) fn nodes(&self) -> Result<Vec<NodeDef>> {
        let mut out = Vec::new();
        for (id, node) in self.inner.graph.nodes() {
            if !self.needed.contains(&id) || self.is_stand_in(id) {
                continue;
            }
            if node.op_name() == "Placeholder" {
                return Err(Status::invalid_argument(format!(
                    "'{}' is a placeholder inside a function's body, which nobody can feed",
                    node.name
                )));
            }
            let mut inputs = Vec::with_capacity(node.inputs.len());
            for edge in &node.inputs {
                inputs.push(self.reference(*edge)?);
            }
            for control in &node.control_inputs {
                if !self.is_stand_in(*control) {
                    inputs.push(format!("^{}", self.inner.graph.node(*control).name));
                }
            }
            out.push(NodeDef {
                name: node.name.to_string(),
                op: node.op.name.clone(),
                inputs,
                device: node.device.to_string(),
                attrs: node.attrs.clone(),
            });
        }
        Ok(out)
    }

    fn is_stand_in(&self, id: NodeId) -> bool {
        self.args.contains_key(&id) || self.instead.contains_key(&id)
    }
}
