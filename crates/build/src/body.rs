//! A function's body between its two forms: a graph of its own, which can be built, differentiated
//! and grown, and TensorFlow's `FunctionDef` in the library of the graphs that call it.

use crate::function::{ArgSpec, has_effect};
use crate::graph::Inner;
use crate::{Graph, Operation, Output};
use downpour_graph::{
    ArgDef, ArgKind, AttrList, AttrValue, Attrs, ElementType, Endpoint, FunctionBody, FunctionDef,
    FunctionRef, GraphDef, Node, NodeDef, NodeId, OpDef, Result, Status,
};
use downpour_tensor::DType;
use std::collections::{HashMap, HashSet};

/// A function's body.
pub(crate) struct Body {
    pub(crate) graph: Graph,
    /// Stand-ins for the arguments.
    pub(crate) args: Vec<Output>,
    pub(crate) results: Vec<Output>,
    /// Stand-ins that are no arguments: what takes the place of each.
    pub(crate) instead: HashMap<NodeId, Output>,
}

impl Body {
    /// Lets `make` build a body that `outer` will call.
    pub(crate) fn build(
        outer: &Graph,
        args: &[(&str, ArgSpec)],
        make: impl FnOnce(&Graph, &[Output]) -> Vec<Output>,
    ) -> Body {
        let graph = outer.body();
        let args: Vec<Output> = args
            .iter()
            .map(|(name, spec)| graph.argument(name, spec))
            .collect();
        let results = outer.building(&graph, || make(&graph, &args));
        Body {
            graph,
            args,
            results,
            instead: HashMap::new(),
        }
    }

    /// Settles what the body returns; a mistake made inside is the caller's as well.
    #[track_caller]
    pub(crate) fn settle(&mut self, outer: &Graph) -> Result<()> {
        let at = std::panic::Location::caller();
        for result in &mut self.results {
            *result = result.inside(&self.graph, at);
        }
        if let Err(e) = self.graph.check() {
            outer.adopt(e);
        }
        outer.check()?;
        match self.results.iter().any(Output::is_invalid) {
            true => Err(Status::internal(
                "a result of a function's body could not be made",
            )),
            false => Ok(()),
        }
    }

    /// The outer tensors that what the body returns or does depends on, and their stand-ins.
    pub(crate) fn captures(&self) -> Vec<(Output, Output)> {
        let needed = needed(&self.graph.inner.lock(), self);
        let mut captures = self.graph.captures();
        captures.retain(|(_, inside)| needed.contains(&inside.endpoint().node));
        captures
    }

    /// Makes outer tensors the next arguments: those that the body captured, and others that only
    /// the caller's other bodies need.
    pub(crate) fn close_over(&mut self, outers: &[Output]) {
        let captures = self.graph.captures();
        for outer in outers {
            let known = captures.iter().find(|(from, _)| from == outer);
            self.args.push(match known {
                Some((_, inside)) => inside.clone(),
                None => self.graph.argument("unused", &ArgSpec::like(outer)),
            });
        }
    }

    /// Whether the body uses or changes state.
    pub(crate) fn is_stateful(&self) -> bool {
        let inner = self.graph.inner.lock();
        let stateful = |id: &NodeId| inner.graph.node(*id).op.stateful;
        needed(&inner, self).iter().any(stateful)
    }

    /// Reads a function of `outer`'s library; its arguments are such as `args`, its results of
    /// these types.
    pub(crate) fn load(
        outer: &Graph,
        function: &FunctionRef,
        args: &[ArgSpec],
        results: &[DType],
    ) -> Result<Body> {
        let library = outer.inner.lock().graph.library().clone();
        let body = library.instantiate(&function.name, &function.attrs)?;
        let types: Vec<DType> = args.iter().map(|a| a.dtype).collect();
        if body.arg_types != types || body.ret_types != results {
            return Err(Status::invalid_argument(format!(
                "Function {} takes or returns other tensors than its caller says",
                function.name
            )));
        }
        let graph = outer.body();
        let mut loader = Loader::new(&body, args);
        let nodes = loader.nodes();
        {
            let mut inner = graph.inner.lock();
            inner.take_names(&nodes);
            let nodes = GraphDef {
                nodes,
                ..Default::default()
            };
            inner.graph.extend(nodes)?;
            for (i, arg) in args.iter().enumerate() {
                if let Some(behind) = &arg.behind {
                    inner.handles.insert(endpoint(i as u32, 0), behind.clone());
                }
            }
            inner.infer_from(0);
            let find = |name: &str| inner.graph.find(name);
            let effects = body.control_rets.iter().filter_map(|n| find(n)).collect();
            if let Some(frame) = &mut inner.function {
                frame.effects = Some(effects);
            }
        }
        let at = |at: Endpoint| Output::new(graph.clone(), at);
        Ok(Body {
            args: (0..args.len()).map(|i| at(endpoint(i as u32, 0))).collect(),
            results: loader.results().into_iter().map(at).collect(),
            instead: HashMap::new(),
            graph,
        })
    }

    /// Adds the function to the library of the graph that calls it and of all around that one,
    /// under a name that is free.
    pub(crate) fn register(&self, outer: &Graph, name: &str) -> Result<FunctionRef> {
        self.graph.check()?;
        let free = free_name(outer, name);
        let definition = self.definition(&free)?;
        self.graph.finish();
        add_everywhere(outer, definition)?;
        Ok(FunctionRef {
            name: free,
            attrs: Attrs::default(),
        })
    }

    /// The function in TensorFlow's form: arguments by name, outputs as `node:result:index`.
    fn definition(&self, name: &str) -> Result<FunctionDef> {
        let inner = self.graph.inner.lock();
        let writer = Writer::new(&inner, self);
        let mut function = FunctionDef {
            signature: OpDef {
                name: name.to_owned(),
                ..Default::default()
            },
            nodes: writer.nodes()?,
            ..Default::default()
        };
        for (i, arg) in self.args.iter().enumerate() {
            let node = inner.graph.node(arg.endpoint().node);
            let arg_name = writer.args[&arg.endpoint().node].clone();
            let dtype = node.output_types[0].0;
            function.signature.inputs.push(single(arg_name, dtype));
            let mut attrs = Attrs::default();
            let shapes = inner.shapes[arg.endpoint().node.index()].to_vec();
            attrs.set("_output_shapes", AttrValue::List(AttrList::Shape(shapes)));
            function.arg_attrs.insert(i as u32, attrs);
        }
        for (i, result) in self.results.iter().enumerate() {
            let at = result.endpoint();
            let dtype = inner.graph.node(at.node).output_types[at.output as usize].0;
            let result_name = free_among(&inner, format!("result_{i}"));
            let outputs = &mut function.signature.outputs;
            outputs.push(single(result_name.clone(), dtype));
            function.ret.insert(result_name, writer.reference(at)?);
        }
        for id in effects(&inner) {
            let name = inner.graph.node(id).name.to_string();
            function.control_ret.insert(name.clone(), name);
        }
        function.signature.control_outputs = function.control_ret.keys().cloned().collect();
        let stateful = |id: &NodeId| inner.graph.node(*id).op.stateful;
        function.signature.stateful = writer.needed.iter().any(stateful);
        Ok(function)
    }
}

/// The nodes that a body's results and effects depend on.
fn needed(inner: &Inner, body: &Body) -> HashSet<NodeId> {
    let mut needed = HashSet::new();
    let mut stack: Vec<NodeId> = body.results.iter().map(|r| r.endpoint().node).collect();
    stack.extend(effects(inner));
    while let Some(id) = stack.pop() {
        if id.index() >= inner.graph.len() || !needed.insert(id) {
            continue;
        }
        let node = inner.graph.node(id);
        stack.extend(node.inputs.iter().map(|e| e.node));
        stack.extend(&node.control_inputs);
        stack.extend(body.instead.get(&id).map(|o| o.endpoint().node));
    }
    needed
}

/// Nodes of a body that must have run when it is done, although no result needs them: what has an
/// effect, and what reads a resource before the next iteration, or the caller, changes it again.
fn effects(inner: &Inner) -> Vec<NodeId> {
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

/// Adds a function to the library of a graph and of all around it.
pub(crate) fn add_everywhere(graph: &Graph, definition: FunctionDef) -> Result<()> {
    let mut at = Some(graph.clone());
    while let Some(graph) = at {
        graph.add_function(definition.clone())?;
        at = graph.outer();
    }
    Ok(())
}

/// A name that no function has in any of the graphs around.
pub(crate) fn free_name(graph: &Graph, name: &str) -> String {
    let root = graph.outermost();
    let mut inner = root.inner.lock();
    loop {
        let count = inner.function_names.entry(name.to_owned()).or_insert(0);
        let free = match *count {
            0 => name.to_owned(),
            n => format!("{name}_{n}"),
        };
        *count += 1;
        if inner.graph.function(&free).is_none() {
            return free;
        }
    }
}

fn endpoint(node: u32, output: u32) -> Endpoint {
    Endpoint {
        node: NodeId(node),
        output,
    }
}

fn single(name: String, dtype: DType) -> ArgDef {
    ArgDef {
        name,
        kind: ArgKind::Single(ElementType::Fixed(dtype)),
        is_ref: false,
    }
}

/// `name`, with underscores behind it while a node is called so.
fn free_among(inner: &Inner, mut name: String) -> String {
    while inner.graph.find(&name).is_some() {
        name.push('_');
    }
    name
}

/// From an instantiated function to the nodes of a body: arguments first, results left out.
struct Loader<'a> {
    body: &'a FunctionBody,
    args: &'a [ArgSpec],
    /// Each node's new position.
    ids: HashMap<NodeId, NodeId>,
    names: Vec<String>,
}

impl<'a> Loader<'a> {
    fn new(body: &'a FunctionBody, args: &'a [ArgSpec]) -> Loader<'a> {
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

    fn nodes(&mut self) -> Vec<NodeDef> {
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
    fn results(&self) -> Vec<Endpoint> {
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
struct Writer<'a> {
    inner: &'a Inner,
    needed: HashSet<NodeId>,
    args: HashMap<NodeId, String>,
    instead: HashMap<NodeId, Endpoint>,
}

impl<'a> Writer<'a> {
    fn new(inner: &'a Inner, body: &Body) -> Writer<'a> {
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
    fn reference(&self, at: Endpoint) -> Result<String> {
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

    fn nodes(&self) -> Result<Vec<NodeDef>> {
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

/// The operation that calls bodies waits for what they could not wait for themselves.
pub(crate) fn waits_of(bodies: &[&Body]) -> Vec<Operation> {
    bodies.iter().flat_map(|b| b.graph.waits()).collect()
}
