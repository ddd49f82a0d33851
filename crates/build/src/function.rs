//! Functions under construction: the bodies of branches and loops. A body is a graph of its own;
//! what it uses from outside becomes an argument behind the ones it was given.

use crate::{Graph, Output};
use downpour_graph::{
    ArgDef, ArgKind, AttrValue, ElementType, FunctionDef, FunctionRef, NodeDef, NodeId, OpDef,
    Result, Status,
};
use downpour_tensor::{DType, PartialShape};
use std::collections::{BTreeMap, HashMap};
use std::panic::Location;
use std::sync::Arc;

/// What makes a graph the body of a function.
pub(crate) struct Frame {
    pub(crate) outer: Graph,
    /// Stand-ins for the arguments, captured ones last.
    args: Vec<NodeId>,
    /// Outer tensors that the body uses, and their stand-ins.
    captures: Vec<(Output, Output)>,
}

/// A function's body, ready to be called from the graph it was made in.
pub struct Body {
    pub(crate) graph: Graph,
    pub(crate) results: Vec<Output>,
}

impl Graph {
    /// An empty graph for the body of a function that this graph will call.
    pub(crate) fn body(&self) -> Graph {
        let body = Graph::new();
        {
            let outer = self.inner.lock();
            let mut inner = body.inner.lock();
            inner.seed = outer.seed;
            inner.function = Some(Frame {
                outer: self.clone(),
                args: Vec::new(),
                captures: Vec::new(),
            });
        }
        body
    }

    /// Adds an argument to a function's body.
    #[track_caller]
    pub(crate) fn argument(&self, name: &str, like: &Output, shape: PartialShape) -> Output {
        let arg = self.without_control(|| {
            self.op("Placeholder")
                .name(name)
                .attr("dtype", like.dtype())
                .attr("shape", AttrValue::Shape(shape))
                .output()
        });
        let behind = like
            .graph()
            .inner
            .lock()
            .handles
            .get(&like.endpoint())
            .cloned();
        let mut inner = self.inner.lock();
        if let Some(behind) = behind {
            inner.handles.insert(arg.endpoint(), behind);
        }
        if let Some(frame) = &mut inner.function {
            frame.args.push(arg.endpoint().node);
        }
        arg
    }

    /// Outer tensors that this body captured, in the order of the arguments they became.
    pub(crate) fn captures(&self) -> Vec<(Output, Output)> {
        let inner = self.inner.lock();
        let frame = inner.function.as_ref();
        frame.map(|f| f.captures.clone()).unwrap_or_default()
    }

    /// The stand-in in this body for an outer tensor.
    #[track_caller]
    fn capture(&self, output: &Output) -> Output {
        let outer = self.inner.lock().function.as_ref().map(|f| f.outer.clone());
        let Some(outer) = outer else {
            let error =
                Status::invalid_argument(format!("'{}' belongs to another graph", output.name()));
            self.fail(error, Location::caller());
            return self.invalid();
        };
        let output = output.inside(&outer);
        let known = self
            .captures()
            .into_iter()
            .find(|(from, _)| *from == output);
        if let Some((_, inside)) = known {
            return inside;
        }
        let inside = self.argument("captured", &output, output.shape());
        let mut inner = self.inner.lock();
        if let Some(frame) = &mut inner.function {
            frame.captures.push((output, inside.clone()));
        }
        inside
    }

    /// How many functions' bodies this graph is nested in.
    pub(crate) fn depth(&self) -> usize {
        let outer = self.inner.lock().function.as_ref().map(|f| f.outer.clone());
        outer.map_or(0, |outer| outer.depth() + 1)
    }

    /// The signature of a function of this graph's library.
    pub(crate) fn function_signature(&self, name: &str) -> Option<Arc<OpDef>> {
        let inner = self.inner.lock();
        let function = inner.graph.function(name)?;
        Some(Arc::new(function.signature.clone()))
    }
}

impl Output {
    /// This tensor as seen inside `graph`: itself, or the argument of a function's body that
    /// stands for it.
    #[track_caller]
    pub(crate) fn inside(&self, graph: &Graph) -> Output {
        match self.graph().is(graph) || self.is_invalid() {
            true => self.clone(),
            false => graph.capture(self),
        }
    }
}

impl Body {
    /// Adds the function to the library of the graph that calls it, under a name that is free.
    pub(crate) fn register(&self, outer: &Graph, name: &str) -> Result<FunctionRef> {
        self.graph.check()?;
        let mut free = format!("__{name}");
        let mut number = 0;
        while outer.function_signature(&free).is_some() {
            number += 1;
            free = format!("__{name}_{number}");
        }
        let inner = self.graph.inner.lock();
        for function in inner.graph.functions().values() {
            outer.add_function((**function).clone())?;
        }
        drop(inner);
        outer.add_function(self.definition(&free)?)?;
        Ok(FunctionRef {
            name: free,
            ..Default::default()
        })
    }

    /// The function in TensorFlow's form: arguments by name, outputs as `node:result:index`.
    fn definition(&self, name: &str) -> Result<FunctionDef> {
        let inner = self.graph.inner.lock();
        let args = inner.function.as_ref().map(|f| f.args.as_slice());
        let args = args.unwrap_or_default();
        let single = |name: String, dtype: DType| ArgDef {
            name,
            kind: ArgKind::Single(ElementType::Fixed(dtype)),
            is_ref: false,
        };
        let mut signature = OpDef {
            name: name.to_owned(),
            ..Default::default()
        };
        let mut names: HashMap<NodeId, String> = HashMap::new();
        for (i, &arg) in args.iter().enumerate() {
            let node = inner.graph.node(arg);
            let arg_name = format!("arg_{i}");
            signature
                .inputs
                .push(single(arg_name.clone(), node.output_types[0].0));
            names.insert(arg, arg_name);
        }
        let reference = |node: NodeId, output: u32| -> Result<String> {
            if let Some(name) = names.get(&node) {
                return Ok(name.clone());
            }
            let node = inner.graph.node(node);
            let ranges = node.op.output_ranges(&node.attrs)?;
            let found = ranges.iter().find(|(_, r)| r.contains(&(output as usize)));
            let (result, range) = found.ok_or_else(|| {
                Status::internal(format!("'{}' has no output {output}", node.name))
            })?;
            Ok(format!(
                "{}:{result}:{}",
                node.name.to_string(),
                output as usize - range.start
            ))
        };
        let mut nodes = Vec::new();
        for (_, node) in inner
            .graph
            .nodes()
            .filter(|(id, _)| !names.contains_key(id))
        {
            let mut inputs = Vec::new();
            for edge in &node.inputs {
                inputs.push(reference(edge.node, edge.output)?);
            }
            for control in &node.control_inputs {
                if !names.contains_key(control) {
                    inputs.push(format!("^{}", inner.graph.node(*control).name.to_string()));
                }
            }
            nodes.push(NodeDef {
                name: node.name.to_string(),
                op: node.op.name.clone(),
                inputs,
                device: node.device.to_string(),
                attrs: node.attrs.clone(),
            });
        }
        let (mut ret, mut control_ret) = (BTreeMap::new(), BTreeMap::new());
        for (i, result) in self.results.iter().enumerate() {
            let result_name = format!("result_{i}");
            let at = result.endpoint();
            let types = &inner.graph.node(at.node).output_types;
            signature
                .outputs
                .push(single(result_name.clone(), types[at.output as usize].0));
            ret.insert(result_name, reference(at.node, at.output)?);
        }
        // Side effects happen although no result needs them.
        for (_, node) in inner.graph.nodes().filter(|(_, n)| n.op.stateful) {
            if node.op.name != "Placeholder" {
                control_ret.insert(node.name.to_string(), node.name.to_string());
                signature.control_outputs.push(node.name.to_string());
                signature.stateful = true;
            }
        }
        Ok(FunctionDef {
            signature,
            nodes,
            ret,
            control_ret,
            ..Default::default()
        })
    }
}
