//! Shape inference: what is known of an operation's outputs before anything runs, and the error
//! when its inputs cannot fit. Rules are one function per kind of op, by family; an op without a
//! rule has outputs of unknown shape.

mod array;
mod common;
mod flow;
mod math;
mod nn;
mod state;
mod value;

use crate::graph::Inner;
use downpour_graph::{Attrs, Endpoint, Node, NodeId, Result, Status};
use downpour_tensor::{DType, PartialShape};
use smallvec::{SmallVec, smallvec};

pub(crate) use common::{broadcast, merge};
pub(crate) use value::ints;

/// Shapes of a node's outputs.
pub(crate) type Shapes = SmallVec<[PartialShape; 1]>;

/// Computes the shapes of one op's outputs.
pub(crate) type Rule = fn(&mut Context<'_>) -> Result<Shapes>;

/// What a rule sees of the node whose shapes it computes.
pub(crate) struct Context<'a> {
    inner: &'a Inner,
    node: &'a Node,
    /// What is behind the node's resource or variant outputs.
    handles: Vec<(u32, (DType, PartialShape))>,
}

/// The shapes of a node of the graph, and what is behind its handles.
pub(crate) fn infer(inner: &mut Inner, id: NodeId) -> Result<Shapes> {
    let node = inner.graph.node(id).clone();
    let unknown = || SmallVec::from_elem(PartialShape::unknown(), node.output_types.len());
    let mut context = Context {
        inner,
        node: &node,
        handles: Vec::new(),
    };
    let shapes = match rule(node.op_name()) {
        None => unknown(),
        Some(rule) => rule(&mut context).map_err(|e| {
            let inputs: Vec<String> = (0..node.inputs.len())
                .map(|i| context.input(i).to_string())
                .collect();
            Status::new(
                e.code,
                format!(
                    "{} '{}': {} (input shapes: {})",
                    node.op_name(),
                    node.name,
                    e.message,
                    inputs.join(", ")
                ),
            )
        })?,
    };
    debug_assert_eq!(shapes.len(), node.output_types.len(), "{}", node.op_name());
    for (output, behind) in context.handles {
        inner.handles.insert(Endpoint { node: id, output }, behind);
    }
    Ok(shapes)
}

fn rule(op: &str) -> Option<Rule> {
    math::rule(op)
        .or_else(|| array::rule(op))
        .or_else(|| nn::rule(op))
        .or_else(|| state::rule(op))
        .or_else(|| flow::rule(op))
}

impl Context<'_> {
    /// Shape of input `i`.
    pub(crate) fn input(&self, i: usize) -> PartialShape {
        let Some(edge) = self.node.inputs.get(i) else {
            return PartialShape::unknown();
        };
        let shapes = self.inner.shapes.get(edge.node.index());
        let shape = shapes.and_then(|s| s.get(edge.output as usize));
        shape.cloned().unwrap_or_default()
    }

    /// Number of inputs.
    pub(crate) fn num_inputs(&self) -> usize {
        self.node.inputs.len()
    }

    /// Number of outputs.
    pub(crate) fn num_outputs(&self) -> usize {
        self.node.output_types.len()
    }

    /// The node's attributes.
    pub(crate) fn attrs(&self) -> &Attrs {
        &self.node.attrs
    }

    /// The elements of integer input `i` as far as they can be known; nothing if not even their
    /// number is.
    pub(crate) fn ints(&self, i: usize) -> Option<Vec<Option<i64>>> {
        ints(self.inner, *self.node.inputs.get(i)?)
    }

    /// The elements of integer input `i`, if all are known.
    pub(crate) fn known_ints(&self, i: usize) -> Option<Vec<i64>> {
        self.ints(i)?.into_iter().collect()
    }

    /// The only element of integer input `i`, if known.
    pub(crate) fn known_int(&self, i: usize) -> Option<i64> {
        match self.known_ints(i)?.as_slice() {
            [value] => Some(*value),
            _ => None,
        }
    }

    /// The shape that input `i` spells out as integers; -1 stands for an unknown dimension.
    pub(crate) fn shape_from(&self, i: usize) -> Result<PartialShape> {
        let Some(dims) = self.ints(i) else {
            // Its length may be known even so.
            return Ok(match self.input(i).dims() {
                Some([Some(n)]) => PartialShape::from_dims(std::iter::repeat_n(None, *n)),
                _ => PartialShape::unknown(),
            });
        };
        PartialShape::checked(dims.into_iter().map(|d| d.unwrap_or(-1)))
            .map_err(|e| Status::invalid_argument(e.to_string()))
    }

    /// The type and shape behind handle input `i`.
    pub(crate) fn behind(&self, i: usize) -> Option<(DType, PartialShape)> {
        self.inner.handles.get(self.node.inputs.get(i)?).cloned()
    }

    /// Says what is behind handle output `output`.
    pub(crate) fn set_behind(&mut self, output: u32, dtype: DType, shape: PartialShape) {
        self.handles.push((output, (dtype, shape)));
    }

    /// Refuses an input that cannot have this rank.
    pub(crate) fn with_rank(&self, i: usize, rank: usize) -> Result<PartialShape> {
        let shape = self.input(i);
        match shape.rank() {
            None => Ok(PartialShape::from_dims(std::iter::repeat_n(None, rank))),
            Some(r) if r == rank => Ok(shape),
            Some(r) => invalid(format!("Shape must be rank {rank} but is rank {r}")),
        }
    }
}

/// One output of this shape.
pub(crate) fn one(shape: PartialShape) -> Result<Shapes> {
    Ok(smallvec![shape])
}

pub(crate) fn invalid<T>(message: impl Into<String>) -> Result<T> {
    Err(Status::invalid_argument(message.into()))
}
