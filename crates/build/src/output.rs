//! Handles on what a graph holds: an operation, and one of its outputs.

use crate::Graph;
use crate::graph::INVALID;
use downpour_graph::{Attrs, Endpoint, NodeId};
use downpour_tensor::{DType, PartialShape};
use std::fmt;

/// An operation of a graph.
///
/// ```
/// use downpour_build::{DType, Graph};
/// let g = Graph::new();
/// let a = g.placeholder("a", DType::Float, [2, 3]);
/// let b = g.placeholder("b", DType::Float, [3, 1]);
/// let op = g.with_device("/job:worker/task:1", || a.matmul(&b)).operation();
/// assert_eq!((op.op().as_str(), op.device().as_str()), ("MatMul", "/job:worker/task:1"));
/// assert_eq!(op.inputs(), [a, b]);
/// assert_eq!(op.output(0).shape().to_string(), "[2,1]");
/// ```
#[derive(Clone)]
pub struct Operation {
    graph: Graph,
    node: NodeId,
}

/// One output of an operation: the symbol for a tensor that a step will compute.
///
/// Arithmetic operators work on outputs and numbers, and broadcast as TensorFlow's do.
///
/// ```
/// use downpour_build::{DType, Graph};
/// let g = Graph::new();
/// let x = g.placeholder("x", DType::Float, [None, Some(3)]);
/// let y = 2.0 * &x + 1.0;
/// assert_eq!((y.dtype(), y.shape().to_string()), (DType::Float, "[?,3]".to_owned()));
/// ```
#[derive(Clone)]
pub struct Output {
    graph: Graph,
    at: Endpoint,
}

impl Operation {
    pub(crate) fn new(graph: Graph, node: NodeId) -> Operation {
        Operation { graph, node }
    }

    /// The graph it belongs to.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Its name.
    pub fn name(&self) -> String {
        match self.valid_node() {
            Some(node) => self.graph.node(node).name.to_string(),
            None => "<invalid>".to_owned(),
        }
    }

    /// Its op's type.
    pub fn op(&self) -> String {
        match self.valid_node() {
            Some(node) => self.graph.node(node).op.name.clone(),
            None => "<invalid>".to_owned(),
        }
    }

    /// The device asked for.
    pub fn device(&self) -> String {
        match self.valid_node() {
            Some(node) => self.graph.node(node).device.to_string(),
            None => String::new(),
        }
    }

    /// Its attributes, defaults included.
    pub fn attrs(&self) -> Attrs {
        match self.valid_node() {
            Some(node) => self.graph.node(node).attrs.clone(),
            None => Attrs::default(),
        }
    }

    /// Number of outputs.
    pub fn num_outputs(&self) -> usize {
        match self.valid_node() {
            Some(node) => self.graph.node(node).output_types.len(),
            None => 0,
        }
    }

    /// Number of data inputs.
    pub fn num_inputs(&self) -> usize {
        match self.valid_node() {
            Some(node) => self.graph.node(node).inputs.len(),
            None => 0,
        }
    }

    /// Output `index`.
    pub fn output(&self, index: usize) -> Output {
        let at = Endpoint {
            node: self.node,
            output: index as u32,
        };
        Output::new(self.graph.clone(), at)
    }

    /// All outputs.
    pub fn outputs(&self) -> Vec<Output> {
        (0..self.num_outputs()).map(|i| self.output(i)).collect()
    }

    /// Data input `index`.
    pub fn input(&self, index: usize) -> Output {
        let edge = self
            .valid_node()
            .and_then(|node| self.graph.node(node).inputs.get(index).copied());
        Output::new(self.graph.clone(), edge.unwrap_or(INVALID))
    }

    /// All data inputs.
    pub fn inputs(&self) -> Vec<Output> {
        (0..self.num_inputs()).map(|i| self.input(i)).collect()
    }

    /// Where it stands in its graph; nothing if it could not be made.
    pub(crate) fn valid_node(&self) -> Option<NodeId> {
        (self.node != INVALID.node).then_some(self.node)
    }
}

impl Output {
    pub(crate) fn new(graph: Graph, at: Endpoint) -> Output {
        Output { graph, at }
    }

    /// The graph it belongs to.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The operation that computes it.
    pub fn operation(&self) -> Operation {
        Operation::new(self.graph.clone(), self.at.node)
    }

    /// Which of its operation's outputs it is.
    pub fn index(&self) -> usize {
        self.at.output as usize
    }

    /// Its name, as fetches and feeds use it: `dense/MatMul:0`.
    pub fn name(&self) -> String {
        format!("{}:{}", self.operation().name(), self.at.output)
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        if self.is_invalid() {
            return DType::Float;
        }
        let types = &self.graph.node(self.at.node).output_types;
        types.get(self.index()).map_or(DType::Float, |t| t.0)
    }

    /// What is known of its shape.
    pub fn shape(&self) -> PartialShape {
        let inner = self.graph.inner.lock();
        let shapes = inner.shapes.get(self.at.node.index());
        let shape = shapes.and_then(|s| s.get(self.at.output as usize));
        shape.cloned().unwrap_or_default()
    }

    /// Number of dimensions, if known.
    pub fn rank(&self) -> Option<usize> {
        self.shape().rank()
    }

    /// Whether it stands for something that could not be made.
    pub(crate) fn is_invalid(&self) -> bool {
        self.at.node == INVALID.node
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        self.at
    }
}

impl PartialEq for Output {
    fn eq(&self, other: &Output) -> bool {
        self.graph.is(&other.graph) && self.at == other.at
    }
}

impl Eq for Output {}

impl From<&Output> for Output {
    fn from(output: &Output) -> Output {
        output.clone()
    }
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, shape, dtype) = (self.name(), self.shape(), self.dtype());
        write!(f, "<{name} shape={shape} dtype={}>", dtype.name())
    }
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{} op={}>", self.name(), self.op())
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<graph of {} operations>", self.len())
    }
}
