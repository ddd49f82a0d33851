//! A function's body between its two forms: a graph of its own, which can be built, differentiated
//! and grown, and TensorFlow's `FunctionDef` in the library of the graphs that call it.

use crate::definition::{Loader, Writer, effects, endpoint, free_among, needed, single};
use crate::function::ArgSpec;
use crate::{Graph, Operation, Output};
use downpour_graph::{
    AttrList, AttrValue, Attrs, Endpoint, FunctionDef, FunctionRef, GraphDef, NodeId, OpDef,
    Result, Status,
};
use downpour_tensor::DType;
use std::collections::HashMap;

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
        let origins = outer.outermost();
        let origin = origins
            .inner
            .lock()
            .function_origins
            .get(&function.name)
            .cloned();
        let origin = origin.unwrap_or_else(|| function.name.clone());
        refuse_recursion(outer, &origin)?;
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
                let ids = (0..args.len() as u32).map(NodeId).collect();
                frame.origin = Some((origin, ids));
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
        self.remember_origin(outer, &free);
        self.graph.finish();
        add_everywhere(outer, definition)?;
        Ok(FunctionRef {
            name: free,
            attrs: Attrs::default(),
        })
    }

    /// Notes which function this body became, or of which it is a grown copy.
    fn remember_origin(&self, outer: &Graph, name: &str) {
        let args: Vec<NodeId> = self.args.iter().map(|a| a.endpoint().node).collect();
        let mut inner = self.graph.inner.lock();
        let Some(frame) = &mut inner.function else {
            return;
        };
        let first = frame.origin.get_or_insert((name.to_owned(), args));
        let first = first.0.clone();
        drop(inner);
        if first != name {
            let root = outer.outermost();
            let mut root = root.inner.lock();
            root.function_origins.insert(name.to_owned(), first);
        }
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

/// Refuses to read a function inside of itself, without end.
fn refuse_recursion(outer: &Graph, origin: &str) -> Result<()> {
    let mut at = Some(outer.clone());
    while let Some(graph) = at {
        let inner = graph.inner.lock();
        let frame = inner.function.as_ref();
        if frame
            .and_then(|f| f.origin.as_ref())
            .is_some_and(|o| o.0 == origin)
        {
            return Err(Status::unimplemented(format!(
                "Function {origin} calls itself: its gradient has no end"
            )));
        }
        drop(inner);
        at = graph.outer();
    }
    Ok(())
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

/// The operation that calls bodies waits for what they could not wait for themselves.
pub(crate) fn waits_of(bodies: &[&Body]) -> Vec<Operation> {
    bodies.iter().flat_map(|b| b.graph.waits()).collect()
}
