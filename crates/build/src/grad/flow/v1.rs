//! v1 loops, as imported graphs have them: `Enter`, `Merge`, `Switch`, `NextIteration`, `Exit`.
//! A loop is found from one of its exits, its body read as a function's; what the way back needs
//! is pushed on lists in further variables of the loop, made of such nodes.

use super::super::Gradient;
use super::growth::Growth;
use super::repeat::Forward;
use crate::body::Body;
use crate::function::ArgSpec;
use crate::{Graph, Output};
use downpour_graph::{AttrValue, Edge, Endpoint, GraphDef, Node, NodeDef, NodeId, Result};
use std::collections::{HashMap, HashSet};

/// One loop of a graph.
#[derive(Clone, Debug)]
pub(in crate::grad) struct V1Loop {
    pub(super) frame: String,
    pub(super) vars: Vec<Var>,
    /// Enters of what every iteration sees the same.
    pub(super) constants: Vec<NodeId>,
    pub(super) condition: NodeId,
    /// What enters: first values of the variables, then the constants.
    pub(in crate::grad) inputs: Vec<Edge>,
    /// Exits that the graph has.
    pub(in crate::grad) exits: Vec<NodeId>,
}

#[derive(Clone, Debug)]
pub(super) struct Var {
    merge: NodeId,
    pub(super) switch: NodeId,
    next: Edge,
    exit: Option<NodeId>,
}

impl V1Loop {
    /// The loop that a node is an exit of.
    pub(in crate::grad) fn of(graph: &downpour_graph::Graph, exit: NodeId) -> Option<V1Loop> {
        let input = |id: NodeId, i: usize| Some(graph.node(graph.node(id).inputs.get(i)?.node));
        let is = |node: &Node, op: &str| node.op_name() == op;
        if !is(graph.node(exit), "Exit") || !is(input(exit, 0)?, "Switch") {
            return None;
        }
        let switch = graph.node(exit).inputs[0].node;
        let merge = graph.node(switch).inputs.first()?.node;
        let enter = input(merge, 0).filter(|n| is(n, "Enter"))?;
        let frame = enter.attrs.str("frame_name").ok()?.to_owned();
        let mut made = V1Loop {
            frame,
            vars: Vec::new(),
            constants: Vec::new(),
            condition: graph.node(switch).inputs.get(1)?.node,
            inputs: Vec::new(),
            exits: Vec::new(),
        };
        made.collect(graph)?;
        Some(made)
    }

    fn collect(&mut self, graph: &downpour_graph::Graph) -> Option<()> {
        let mut constants = Vec::new();
        let entered = |node: &Node| {
            node.op_name() == "Enter" && node.attrs.str("frame_name") == Ok(self.frame.as_str())
        };
        let mut switches: HashMap<NodeId, NodeId> = HashMap::new();
        let mut exits: HashMap<NodeId, NodeId> = HashMap::new();
        for (id, node) in graph.nodes() {
            match node.op_name() {
                "Switch" if node.inputs[1].node == self.condition => {
                    switches.insert(node.inputs[0].node, id);
                }
                "Exit" => {
                    exits.insert(node.inputs[0].node, id);
                }
                "Enter" if entered(node) && node.attrs.bool("is_constant") == Ok(true) => {
                    constants.push((id, node.inputs[0]));
                }
                _ => {}
            }
        }
        for (id, node) in graph.nodes().filter(|(_, n)| n.op_name() == "Merge") {
            let [first, next] = node.inputs.as_slice() else {
                continue;
            };
            let first = graph.node(first.node);
            if !entered(first) {
                continue;
            }
            let next = graph.node(next.node);
            let switch = *switches.get(&id)?;
            self.vars.push(Var {
                merge: id,
                switch,
                next: *next.inputs.first()?,
                exit: exits.get(&switch).copied(),
            });
            self.inputs.push(first.inputs[0]);
        }
        self.exits = self.vars.iter().filter_map(|v| v.exit).collect();
        self.constants = constants.iter().map(|c| c.0).collect();
        self.inputs.extend(constants.iter().map(|c| c.1));
        Some(())
    }
}

/// A loop under differentiation.
pub(super) struct Frame<'a> {
    pub(super) graph: Graph,
    pub(super) found: &'a V1Loop,
    /// Names of the body's nodes that are copies, and so names of the graph's.
    pub(super) copied: HashSet<String>,
    /// The argument that stands for each variable and constant.
    pub(super) args: Vec<NodeId>,
    /// The last value of each variable.
    last: Vec<Option<Output>>,
}

impl<'a> Frame<'a> {
    /// Reads a loop's body.
    pub(super) fn read(graph: &Graph, found: &'a V1Loop) -> Result<(Frame<'a>, Body)> {
        let body = graph.body();
        let specs = specs(graph, found);
        let (nodes, results) = copy(graph, found, &specs)?;
        let count = specs.len();
        let copied = nodes[count..].iter().map(|n| n.name.clone()).collect();
        {
            let mut inner = body.inner.lock();
            inner.take_names(&nodes);
            inner.graph.extend(GraphDef {
                nodes,
                ..Default::default()
            })?;
            for (i, spec) in specs.iter().enumerate() {
                if let Some(behind) = &spec.behind {
                    inner.handles.insert(endpoint(i as u32, 0), behind.clone());
                }
            }
            inner.infer_from(0);
            if let Some(frame) = &mut inner.function {
                frame.effects = Some(Vec::new());
            }
        }
        let find = |name: &str| -> Result<Output> { body.output(name) };
        let mut out = Vec::with_capacity(count);
        for name in &results {
            out.push(find(name)?);
        }
        let args: Vec<Output> = (0..count)
            .map(|i| Output::new(body.clone(), endpoint(i as u32, 0)))
            .collect();
        let exit = |v: &Var| {
            v.exit
                .map(|id| Output::new(graph.clone(), endpoint(id.0, 0)))
        };
        let frame = Frame {
            graph: graph.clone(),
            found,
            copied,
            args: args.iter().map(|a| a.endpoint().node).collect(),
            last: found.vars.iter().map(exit).collect(),
        };
        Ok((
            frame,
            Body {
                graph: body,
                args,
                results: out,
                instead: HashMap::new(),
            },
        ))
    }
}

fn endpoint(node: u32, output: u32) -> Endpoint {
    Endpoint {
        node: NodeId(node),
        output,
    }
}

/// What is known of the variables and constants.
fn specs(graph: &Graph, found: &V1Loop) -> Vec<ArgSpec> {
    let at = |at: Edge| Output::new(graph.clone(), at);
    let vars = found.vars.iter().zip(&found.inputs).map(|(var, first)| {
        let merged = at(Endpoint {
            node: var.merge,
            output: 0,
        });
        ArgSpec {
            shape: merged.shape(),
            ..ArgSpec::like(&at(*first))
        }
    });
    let constants = found.inputs[found.vars.len()..].iter();
    vars.chain(constants.map(|c| ArgSpec::like(&at(*c))))
        .collect()
}

/// The nodes of a loop's body, arguments first, and the names of the variables' next values.
fn copy(graph: &Graph, found: &V1Loop, specs: &[ArgSpec]) -> Result<(Vec<NodeDef>, Vec<String>)> {
    let inner = graph.inner.lock();
    let mut args: HashMap<NodeId, String> = HashMap::new();
    let mut nodes = Vec::new();
    for (i, spec) in specs.iter().enumerate() {
        let mut name = format!("arg_{i}");
        while inner.graph.find(&name).is_some() {
            name.push('_');
        }
        match found.vars.get(i) {
            Some(var) => {
                args.insert(var.merge, name.clone());
                args.insert(var.switch, name.clone());
            }
            None => {
                args.insert(found.constants[i - found.vars.len()], name.clone());
            }
        }
        let mut def = NodeDef {
            name,
            op: "Placeholder".to_owned(),
            ..Default::default()
        };
        def.attrs.set("dtype", spec.dtype);
        def.attrs.set("shape", AttrValue::Shape(spec.shape.clone()));
        nodes.push(def);
    }
    let mut needed: HashSet<NodeId> = HashSet::new();
    let mut stack: Vec<NodeId> = found.vars.iter().map(|v| v.next.node).collect();
    while let Some(id) = stack.pop() {
        if args.contains_key(&id) || !needed.insert(id) {
            continue;
        }
        let node = inner.graph.node(id);
        stack.extend(node.inputs.iter().map(|e| e.node));
        stack.extend(&node.control_inputs);
    }
    let name = |edge: &Edge| match args.get(&edge.node) {
        Some(name) => name.clone(),
        None => format!("{}:{}", inner.graph.node(edge.node).name, edge.output),
    };
    for (_, node) in inner.graph.nodes().filter(|(id, _)| needed.contains(id)) {
        let mut inputs: Vec<String> = node.inputs.iter().map(name).collect();
        for control in node.control_inputs.iter().filter(|c| !args.contains_key(c)) {
            inputs.push(format!("^{}", inner.graph.node(*control).name));
        }
        nodes.push(NodeDef {
            name: node.name.to_string(),
            op: node.op.name.clone(),
            inputs,
            device: node.device.to_string(),
            attrs: node.attrs.clone(),
        });
    }
    let mut results: Vec<String> = found.vars.iter().map(|v| name(&v.next)).collect();
    results.extend(
        nodes[found.vars.len()..specs.len()]
            .iter()
            .map(|n| n.name.clone()),
    );
    for result in results.iter_mut().filter(|r| !r.contains(':')) {
        result.push_str(":0");
    }
    Ok((nodes, results))
}

impl Forward for Frame<'_> {
    fn graph(&self) -> &Graph {
        &self.graph
    }

    fn name(&self) -> String {
        let frame = self.found.frame.trim_end_matches("/while_context");
        frame.rsplit('/').next().unwrap_or("while").to_owned()
    }

    fn input(&self, i: usize) -> Output {
        Output::new(self.graph.clone(), self.found.inputs[i])
    }

    fn inputs(&self) -> usize {
        self.found.inputs.len()
    }

    fn last(&self, i: usize) -> Option<Output> {
        self.last.get(i).cloned().flatten()
    }

    fn counts(&self, _: &Body) -> bool {
        false
    }

    fn parallel_iterations(&self) -> i64 {
        10
    }

    fn grow(&mut self, forward: &Body, new: &[Output]) -> Result<()> {
        let mut growth = Growth::new(self, forward);
        let before = self.found.inputs.len();
        let mut exits = vec![None; before];
        for (i, var) in self.found.vars.iter().enumerate() {
            if var.exit.is_none() {
                exits[i] = Some(growth.exit(forward.args[i].dtype(), var.switch));
            }
        }
        for k in 0..new.len() {
            growth.declare(before + k);
        }
        for (k, first) in new.iter().enumerate() {
            exits.push(Some(growth.variable(before + k, first)?));
        }
        let nodes = growth.nodes;
        let mut inner = self.graph.inner.lock();
        let first = inner.graph.len();
        inner.graph.extend(GraphDef {
            nodes,
            ..Default::default()
        })?;
        inner.infer_from(first);
        drop(inner);
        self.last.resize(exits.len(), None);
        for (i, name) in exits.into_iter().enumerate() {
            if let Some(name) = name {
                let exit = self.graph.output(&format!("{name}:0"))?;
                let spec = ArgSpec::like(&forward.args[i]);
                exit.set_shape(&spec.shape);
                if let Some((dtype, shape)) = spec.behind {
                    exit.set_behind(dtype, shape);
                }
                self.last[i] = Some(exit);
            }
        }
        Ok(())
    }
}

/// What arrived at a loop's exits, one for each variable.
pub(in crate::grad) fn at_exits(
    found: &V1Loop,
    mut sum: impl FnMut(Endpoint) -> Option<Gradient>,
) -> Vec<Option<Gradient>> {
    let mut of = |var: &Var| sum(endpoint(var.exit?.0, 0));
    let mut grads: Vec<Option<Gradient>> = found.vars.iter().map(&mut of).collect();
    grads.resize(found.inputs.len(), None);
    grads
}
