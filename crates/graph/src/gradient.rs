//! Gradients of functions, worked out from their bodies: what `SymbolicGradient` computes.
//!
//! The result is the body, followed by one `SymbolicGradient` node for each of its nodes that lies
//! between an argument and a result, in reverse order. Those are calls in turn: of the gradient
//! that the library names for a function, of one worked out here, or of an op's rule.

use crate::function::{append, end_node, prune};
use crate::rules::{has_no_gradient, op_gradient};
use crate::{
    AttrValue, Attrs, Edge, FunctionBody, FunctionRef, Functions, Graph, GraphDef, Node, NodeDef,
    NodeId, Result, find_op,
};
use downpour_tensor::DType;
use std::collections::HashMap;
use std::sync::Arc;

/// The op, and the name under which gradients are instantiated.
pub(crate) const GRADIENT: &str = "SymbolicGradient";

impl Functions {
    /// Instantiates the gradient of `f`: of its arguments and of its results' gradients.
    pub(crate) fn instantiate_gradient(self: &Arc<Self>, f: &FunctionRef) -> Result<FunctionBody> {
        if let Some(name) = self.gradient_of(&f.name) {
            return self.instantiate(name, &f.attrs);
        }
        if self.find(&f.name).is_some() {
            let body = self.instantiate(&f.name, &f.attrs)?;
            return Backward::new(&body).build(self);
        }
        let op = find_op(&f.name).ok_or_else(|| crate::function::not_defined(&f.name))?;
        let mut def = NodeDef {
            name: f.name.clone(),
            op: f.name.clone(),
            ..Default::default()
        };
        for (name, value) in f.attrs.0.iter().filter(|(name, _)| op.attr(name).is_some()) {
            def.attrs.set(name.clone(), value.clone());
        }
        let attrs = crate::graph::complete_attrs(&def, &op)?;
        let rule = Arc::new(op_gradient(&op, &attrs)?);
        crate::function::instantiate_definition(self, &rule, &attrs)
    }
}

struct Backward<'a> {
    body: &'a FunctionBody,
    nodes: Vec<NodeDef>,
    /// Gradients so far of each output that matters.
    gradients: HashMap<Edge, Vec<String>>,
    made: usize,
}

impl<'a> Backward<'a> {
    fn new(body: &'a FunctionBody) -> Backward<'a> {
        let graph = &body.graph;
        let nodes = graph.nodes().filter(|(_, n)| n.op_name() != "_Retval");
        Backward {
            body,
            nodes: nodes.map(|(_, n)| written(graph, n)).collect(),
            gradients: HashMap::new(),
            made: 0,
        }
    }

    fn build(mut self, library: &Arc<Functions>) -> Result<FunctionBody> {
        let graph = &self.body.graph;
        let num_args = self.body.arg_types.len();
        let mut arg_types = self.body.arg_types.clone();
        arg_types.extend(&self.body.ret_types);
        for (_, node) in graph.nodes().filter(|(_, n)| n.op_name() == "_Retval") {
            let i = node.attrs.size("index")?;
            let name = format!("_dy_{i}");
            let dtype = self.body.ret_types.get(i).copied().unwrap_or(DType::Float);
            self.nodes
                .push(end_node(&name, "_Arg", dtype, num_args + i));
            if let Some(edge) = node.inputs.first() {
                self.gradients.entry(*edge).or_default().push(name);
            }
        }
        let matters = self.on_the_way();
        for id in graph.topological_order().into_iter().rev() {
            let node = graph.node(id);
            if matters[id.index()] && !matches!(node.op_name(), "_Arg" | "_Retval") {
                self.go_back(id, node)?;
            }
        }
        let mut ret_types = Vec::with_capacity(num_args);
        for (i, dtype) in self.body.arg_types.iter().enumerate() {
            let (gradient, dtype) = self.argument_gradient(i, *dtype)?;
            let mut ret = end_node(&format!("_dx_{i}"), "_Retval", dtype, i);
            ret.inputs.push(gradient);
            self.nodes.push(ret);
            ret_types.push(dtype);
        }
        let def = GraphDef {
            nodes: self.nodes,
            ..Default::default()
        };
        let graph = Graph::with_functions(def, library.clone())
            .map_err(|e| append(e, "In a function's gradient"))?;
        Ok(FunctionBody {
            graph: prune(&graph, &[]),
            arg_types,
            ret_types,
            control_rets: Vec::new(),
        })
    }

    /// Which nodes lie between an argument and a result.
    fn on_the_way(&self) -> Vec<bool> {
        let graph = &self.body.graph;
        let mut forward = vec![false; graph.len()];
        for id in graph.topological_order() {
            let node = graph.node(id);
            let from_inputs = node.inputs.iter().any(|e| forward[e.node.index()]);
            forward[id.index()] =
                node.op_name() == "_Arg" || (from_inputs && !has_no_gradient(node.op_name()));
        }
        let mut backward = vec![false; graph.len()];
        let mut stack: Vec<NodeId> = self.gradients.keys().map(|e| e.node).collect();
        while let Some(id) = stack.pop() {
            if forward[id.index()] && !std::mem::replace(&mut backward[id.index()], true) {
                stack.extend(graph.node(id).inputs.iter().map(|e| e.node));
            }
        }
        backward
    }

    /// Adds the gradient of one node.
    fn go_back(&mut self, id: NodeId, node: &Arc<Node>) -> Result<()> {
        let outputs: Vec<Edge> = (0..node.output_types.len() as u32)
            .map(|output| Edge { node: id, output })
            .collect();
        if !outputs.iter().any(|e| self.gradients.contains_key(e)) {
            return Ok(());
        }
        let plain = |types: &[(DType, bool)]| -> Vec<DType> { types.iter().map(|t| t.0).collect() };
        let (inputs, results) = (plain(&node.input_types), plain(&node.output_types));
        let mut names = written(&self.body.graph, node).inputs;
        names.retain(|name| !name.starts_with('^'));
        for (edge, dtype) in outputs.into_iter().zip(&results) {
            let gradient = self.total(edge, *dtype);
            names.push(gradient);
        }
        let function = FunctionRef {
            name: node.op_name().to_owned(),
            attrs: call_attrs(node),
        };
        let mut def = self.node(GRADIENT, names);
        def.attrs.set("f", AttrValue::Func(function));
        def.attrs.set("Tin", [inputs.clone(), results].concat());
        // What has a handle for an input has a gradient for what is behind it.
        let outputs: Vec<DType> = inputs.iter().map(|t| behind(*t)).collect();
        def.attrs.set("Tout", outputs);
        for (i, edge) in node.inputs.iter().enumerate() {
            let name = format!("{}:{i}", def.name);
            self.gradients.entry(*edge).or_default().push(name);
        }
        self.nodes.push(def);
        Ok(())
    }

    /// The sum of an output's gradients; zeros if it has none.
    fn total(&mut self, edge: Edge, dtype: DType) -> String {
        let mut parts = self.gradients.remove(&edge).unwrap_or_default();
        if parts.len() == 1 {
            return parts.remove(0);
        }
        let mut def = match parts.len() {
            0 => {
                let from = &self.body.graph.node(edge.node).name;
                let output = format!("{from}:{}", edge.output);
                self.node("ZerosLike", vec![output])
            }
            n => {
                let mut def = self.node("AddN", parts);
                def.attrs.set("N", n as i64);
                def
            }
        };
        def.attrs.set("T", dtype);
        let name = def.name.clone();
        self.nodes.push(def);
        name
    }

    /// The gradient of argument `i`, and its type.
    fn argument_gradient(&mut self, i: usize, dtype: DType) -> Result<(String, DType)> {
        let graph = &self.body.graph;
        let given = behind(dtype);
        let found = graph.nodes().find(|(_, n)| {
            n.op_name() == "_Arg" && n.attrs.size("index").is_ok_and(|index| index == i)
        });
        if let Some((id, _)) = found {
            let edge = Edge {
                node: id,
                output: 0,
            };
            if self.gradients.contains_key(&edge) {
                return Ok((self.total(edge, given), given));
            }
        }
        // An argument that no result depends on, perhaps pruned.
        let mut input = match found {
            Some((_, node)) => node.name.to_string(),
            None => {
                let name = format!("_x_{i}");
                self.nodes.push(end_node(&name, "_Arg", dtype, i));
                name
            }
        };
        if dtype == DType::Resource {
            let mut read = self.node("ReadVariableOp", vec![input]);
            read.attrs.set("dtype", given);
            input = read.name.clone();
            self.nodes.push(read);
        }
        let mut zeros = self.node("ZerosLike", vec![input]);
        zeros.attrs.set("T", given);
        let name = zeros.name.clone();
        self.nodes.push(zeros);
        Ok((name, given))
    }

    fn node(&mut self, op: &str, inputs: Vec<String>) -> NodeDef {
        self.made += 1;
        NodeDef {
            name: format!("_gradient_{}_{op}", self.made),
            op: op.to_owned(),
            inputs,
            ..Default::default()
        }
    }
}

/// The type of gradients for a value of this type.
fn behind(dtype: DType) -> DType {
    match dtype {
        DType::Resource => DType::Float,
        other => other,
    }
}

/// Attributes of a node that its op declares.
fn call_attrs(node: &Node) -> Attrs {
    let mut attrs = Attrs::default();
    for declared in &node.op.attrs {
        if let Some(value) = node.attrs.find(&declared.name) {
            attrs.set(declared.name.clone(), value.clone());
        }
    }
    attrs
}

/// A checked node as it would be written.
fn written(graph: &Graph, node: &Node) -> NodeDef {
    let data = node.inputs.iter().map(|e| {
        let from = &graph.node(e.node).name;
        format!("{from}:{}", e.output)
    });
    let control = node.control_inputs.iter();
    let control = control.map(|id| format!("^{}", graph.node(*id).name));
    NodeDef {
        name: node.name.to_string(),
        op: node.op_name().to_owned(),
        inputs: data.chain(control).collect(),
        device: node.device.to_string(),
        attrs: node.attrs.clone(),
    }
}
