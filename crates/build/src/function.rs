//! Graphs as bodies of functions: branches, loops, calls. A body is a graph of its own. While it is
//! built, everything that the user makes lands in it, by whichever graph's handle; what it uses
//! from outside is captured and becomes an argument behind the ones it was given.
//!
//! Invariant: in a body, operations on the same resource run in the order in which they were made,
//! as in a program, and what has an effect happens although no result needs it.

use crate::graph::Inner;
use crate::{Graph, Operation, Output};
use downpour_graph::{AttrValue, Endpoint, Node, NodeDef, NodeId, OpDef, Result, Status, find_op};
use downpour_tensor::{DType, PartialShape};
use std::collections::HashMap;
use std::panic::Location;
use std::sync::Arc;

/// Larger constants are captured, smaller ones copied: shapes follow from them.
const MAX_COPIED_ELEMENTS: usize = 1024;

/// What makes a graph the body of a function.
pub(crate) struct Frame {
    outer: Graph,
    /// Outer tensors that the body uses, and their stand-ins.
    captures: Vec<(Output, Output)>,
    /// Outer constants, and their copies.
    copies: HashMap<Endpoint, Output>,
    /// Outer operations that the body's must wait for: its caller waits.
    waits: Vec<Operation>,
    /// Who used each resource last.
    accesses: HashMap<Endpoint, Access>,
    /// What must happen; worked out from the operations if not given.
    pub(crate) effects: Option<Vec<NodeId>>,
    /// The function that this body was first, and its arguments: what the body is read from again
    /// is the same, node by node.
    pub(crate) origin: Option<(String, Vec<NodeId>)>,
    finished: bool,
}

#[derive(Default)]
struct Access {
    change: Option<NodeId>,
    /// Reads since then.
    reads: Vec<NodeId>,
}

/// The type and shape of an argument, and what is behind it if it is a handle.
#[derive(Clone)]
pub(crate) struct ArgSpec {
    pub(crate) dtype: DType,
    pub(crate) shape: PartialShape,
    pub(crate) behind: Option<(DType, PartialShape)>,
}

impl ArgSpec {
    pub(crate) fn new(dtype: DType, shape: PartialShape) -> ArgSpec {
        ArgSpec {
            dtype,
            shape,
            behind: None,
        }
    }

    /// An argument for such tensors as this one.
    pub(crate) fn like(output: &Output) -> ArgSpec {
        ArgSpec {
            dtype: output.dtype(),
            shape: output.shape(),
            behind: output.behind(),
        }
    }
}

impl Frame {
    /// The graph that the body has become part of.
    pub(crate) fn finished_in(&self) -> Option<Graph> {
        self.finished.then(|| self.outer.clone())
    }
}

impl Graph {
    /// The graph in which operations are made now: this one, or a body under construction.
    pub(crate) fn innermost(&self) -> Graph {
        let next = self.inner.lock().current.clone();
        next.map_or_else(|| self.clone(), |next| next.innermost())
    }

    /// The graph that this one is, or is in the end a body of.
    pub(crate) fn outermost(&self) -> Graph {
        self.outer().map_or_else(|| self.clone(), |o| o.outermost())
    }

    /// The graph that this one is a body of.
    pub(crate) fn outer(&self) -> Option<Graph> {
        self.inner.lock().function.as_ref().map(|f| f.outer.clone())
    }

    /// Makes what `make` makes in `body`.
    pub(crate) fn building<R>(&self, body: &Graph, make: impl FnOnce() -> R) -> R {
        let before = self.inner.lock().current.replace(body.clone());
        let result = make();
        self.inner.lock().current = before;
        result
    }

    /// Makes what `make` makes in this graph itself, although a body is under construction.
    pub(crate) fn itself<R>(&self, make: impl FnOnce() -> R) -> R {
        let before = self.inner.lock().current.take();
        let result = make();
        self.inner.lock().current = before;
        result
    }

    /// An empty graph for the body of a function that this graph will call.
    pub(crate) fn body(&self) -> Graph {
        let body = Graph::new();
        {
            let outer = self.inner.lock();
            let mut inner = body.inner.lock();
            inner.settle_in(&outer);
            inner.function = Some(Frame {
                outer: self.clone(),
                captures: Vec::new(),
                copies: HashMap::new(),
                waits: Vec::new(),
                accesses: HashMap::new(),
                effects: None,
                origin: None,
                finished: false,
            });
        }
        body
    }

    /// A tensor that stands for an argument of this body.
    #[track_caller]
    pub(crate) fn argument(&self, name: &str, spec: &ArgSpec) -> Output {
        let arg = self.itself(|| {
            self.without_control(|| {
                let op = self.op("Placeholder").name(name).attr("dtype", spec.dtype);
                op.attr("shape", AttrValue::Shape(spec.shape.clone()))
                    .output()
            })
        });
        if let Some(behind) = &spec.behind {
            let mut inner = self.inner.lock();
            inner.handles.insert(arg.endpoint(), behind.clone());
        }
        arg
    }

    /// Outer tensors that this body captured, and what stands for each.
    pub(crate) fn captures(&self) -> Vec<(Output, Output)> {
        let inner = self.inner.lock();
        let frame = inner.function.as_ref();
        frame.map(|f| f.captures.clone()).unwrap_or_default()
    }

    /// Outer operations that whoever calls this body must wait for.
    pub(crate) fn waits(&self) -> Vec<Operation> {
        let inner = self.inner.lock();
        let frame = inner.function.as_ref();
        frame.map(|f| f.waits.clone()).unwrap_or_default()
    }

    /// The stand-in in this body for an outer tensor.
    pub(crate) fn capture(&self, output: &Output, at: &'static Location<'static>) -> Output {
        if let Some(twin) = self.twin(output) {
            return twin;
        }
        let Some(outer) = self.outer() else {
            let error =
                Status::invalid_argument(format!("'{}' belongs to another graph", output.name()));
            self.fail(error, at);
            return self.invalid();
        };
        let output = output.inside(&outer, at);
        if output.is_invalid() {
            return self.invalid();
        }
        if let Some(known) = self.known(&output) {
            return known;
        }
        if let Some(copy) = self.copied(&output) {
            return copy;
        }
        let inside = self.argument("captured", &ArgSpec::like(&output));
        let mut inner = self.inner.lock();
        if let Some(frame) = &mut inner.function {
            frame.captures.push((output, inside.clone()));
        }
        inside
    }

    /// What a tensor of the body that this one was read from is here: gradients that the user gave
    /// hold on to such.
    fn twin(&self, output: &Output) -> Option<Output> {
        let there = output.graph().inner.lock();
        let (name, args) = there.function.as_ref()?.origin.clone()?;
        let at = output.endpoint();
        let node = there.graph.node(at.node).name.clone();
        drop(there);
        let inner = self.inner.lock();
        let (own, own_args) = inner.function.as_ref()?.origin.as_ref()?;
        if *own != name {
            return None;
        }
        let arg = args.iter().position(|arg| *arg == at.node);
        let node = match arg {
            Some(i) => *own_args.get(i)?,
            None => inner.graph.find(&node)?,
        };
        let output = at.output;
        Some(Output::new(self.clone(), Endpoint { node, output }))
    }

    fn known(&self, output: &Output) -> Option<Output> {
        let inner = self.inner.lock();
        let frame = inner.function.as_ref()?;
        let copy = frame.copies.get(&output.endpoint()).cloned();
        copy.or_else(|| {
            let known = frame.captures.iter().find(|(from, _)| from == output);
            known.map(|(_, inside)| inside.clone())
        })
    }

    /// A copy of a small constant of the graph outside.
    fn copied(&self, output: &Output) -> Option<Output> {
        let attrs = output.operation().attrs();
        if output.operation().op() != "Const" {
            return None;
        }
        let value = attrs.tensor("value").ok()?.clone();
        if value.num_elements() > MAX_COPIED_ELEMENTS {
            return None;
        }
        let copy = self.itself(|| self.without_control(|| self.constant(value)));
        let mut inner = self.inner.lock();
        let frame = inner.function.as_mut()?;
        frame.copies.insert(output.endpoint(), copy.clone());
        Some(copy)
    }

    /// Where an operation stands that one of this graph shall wait for. For one outside, whoever
    /// calls this body waits instead.
    #[track_caller]
    pub(crate) fn waitable(&self, operation: &Operation) -> Option<NodeId> {
        let node = operation.valid_node()?;
        if operation.graph().is(self) {
            return Some(node);
        }
        let mut inner = self.inner.lock();
        if let Some(frame) = &mut inner.function {
            frame.waits.push(operation.clone());
            return None;
        }
        drop(inner);
        let error =
            Status::invalid_argument(format!("'{}' belongs to another graph", operation.name()));
        self.fail(error, Location::caller());
        None
    }

    /// Refuses to add to a body that others call already.
    pub(crate) fn check_unfinished(&self) -> Result<()> {
        match &self.inner.lock().function {
            Some(frame) if frame.finished => Err(Status::invalid_argument(
                "a tensor of a function's body is used outside of it: let the body return it",
            )),
            _ => Ok(()),
        }
    }

    /// Ends the construction of a body.
    pub(crate) fn finish(&self) {
        let (outer, last_seed) = {
            let mut inner = self.inner.lock();
            let last_seed = inner.last_seed;
            let Some(frame) = &mut inner.function else {
                return;
            };
            frame.finished = true;
            (frame.outer.clone(), last_seed)
        };
        let mut outer = outer.inner.lock();
        outer.last_seed = outer.last_seed.max(last_seed);
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
    pub(crate) fn inside(&self, graph: &Graph, at: &'static Location<'static>) -> Output {
        match self.graph().is(graph) || self.is_invalid() {
            true => self.clone(),
            false => graph.capture(self, at),
        }
    }

    /// What is behind a handle: the type and shape of a variable, or of a list's elements.
    pub(crate) fn behind(&self) -> Option<(DType, PartialShape)> {
        let inner = self.graph().inner.lock();
        inner.handles.get(&self.endpoint()).cloned()
    }
}

/// Whether an op counts as stateful only because it reads a resource or draws random numbers.
fn only_reads(op: &str) -> bool {
    matches!(
        op,
        "ReadVariableOp"
            | "ResourceGather"
            | "ResourceGatherNd"
            | "VariableShape"
            | "VarIsInitializedOp"
            | "VarHandleOp"
            | "RandomUniform"
            | "RandomUniformInt"
            | "RandomStandardNormal"
            | "TruncatedNormal"
            | "ParameterizedTruncatedNormal"
            | "RandomShuffle"
            | "RandomGamma"
            | "RandomPoissonV2"
            | "Multinomial"
            | "Placeholder"
    )
}

/// Whether a node must run although no result needs it.
pub(crate) fn has_effect(node: &Node) -> bool {
    node.op.stateful && !only_reads(node.op_name())
}

/// What an operation about to be added to a body must wait for so that resources are used in the
/// order of the program.
pub(crate) fn program_order(inner: &Inner, def: &NodeDef) -> Vec<NodeId> {
    let Some(frame) = &inner.function else {
        return Vec::new();
    };
    if !find_op(&def.op).is_some_and(|op| op.stateful) {
        return Vec::new();
    }
    let mut waits = Vec::new();
    let inputs = def.inputs.iter().filter_map(|input| {
        let (name, output) = downpour_graph::parse_endpoint(input)?;
        let node = inner.graph.find(name)?;
        Some(Endpoint { node, output })
    });
    for access in inputs.filter_map(|at| frame.accesses.get(&at)) {
        waits.extend(access.change);
        if !only_reads(&def.op) {
            waits.extend(&access.reads);
        }
    }
    waits
}

/// Remembers which resources a new node of a body uses.
pub(crate) fn note_effect(inner: &mut Inner, id: NodeId) {
    let Some(frame) = &mut inner.function else {
        return;
    };
    let node = inner.graph.node(id);
    if !node.op.stateful {
        return;
    }
    for (edge, dtype) in node.inputs.iter().zip(&node.input_types) {
        if dtype.0 != DType::Resource {
            continue;
        }
        let access = frame.accesses.entry(*edge).or_default();
        match only_reads(node.op_name()) {
            true => access.reads.push(id),
            false => {
                access.change = Some(id);
                access.reads.clear();
            }
        }
    }
}
