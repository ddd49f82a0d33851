//! Shape inference: what is known of an operation's outputs before anything runs, and the error
//! when its inputs cannot fit. A rule is a line in the notation of [`pattern`], or a function where
//! sizes are computed; rules stand by family, one file each. An op without a rule has outputs of
//! unknown shape.
//!
//! Invariant: a rule never claims what TensorFlow's own inference contradicts, and refuses what
//! TensorFlow refuses; `conformance/graphs.py shapes` compares both.

mod array;
mod call;
mod conv;
mod cut;
mod data;
mod diag;
mod dims;
mod einsum;
mod flow;
mod image;
mod io;
mod linalg;
mod list;
mod math;
mod nn;
mod pattern;
mod queue;
mod random;
mod sparse;
mod state;
mod string;
mod training;
mod value;

use crate::graph::Inner;
use downpour_graph::{Attrs, Endpoint, Node, NodeId, Result, Status};
use downpour_tensor::{DType, PartialShape, Tensor};
use smallvec::{SmallVec, smallvec};

pub(crate) use dims::merge;
pub(crate) use flow::infer_all;
pub(crate) use value::ints;

/// One dimension, if known.
pub(crate) type Dim = Option<usize>;

/// Shapes of a node's outputs.
pub(crate) type Shapes = SmallVec<[PartialShape; 1]>;

/// How the shapes of one op's outputs follow from its inputs.
pub(crate) enum Rule {
    /// In a line.
    Pattern(&'static str),
    /// By computation.
    Compute(fn(&mut Context<'_>) -> Result<Shapes>),
}

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
    let mut context = Context {
        inner,
        node: &node,
        handles: Vec::new(),
    };
    let shapes = match rule(node.op_name()) {
        None => call::function(&mut context),
        Some(Rule::Pattern(pattern)) => pattern::apply(pattern, &context),
        Some(Rule::Compute(compute)) => compute(&mut context),
    };
    let mut shapes = shapes.map_err(|e| {
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
    })?;
    shapes.resize(node.output_types.len(), PartialShape::unknown());
    for (output, behind) in context.handles {
        inner.handles.insert(Endpoint { node: id, output }, behind);
    }
    Ok(shapes)
}

fn rule(op: &str) -> Option<Rule> {
    let families = [
        math::rule,
        array::rule,
        cut::rule,
        diag::rule,
        nn::rule,
        conv::rule,
        state::rule,
        training::rule,
        linalg::rule,
        random::rule,
        flow::rule,
        queue::rule,
        list::rule,
        sparse::rule,
        string::rule,
        image::rule,
        io::rule,
        data::rule,
    ];
    families.iter().find_map(|rule| rule(op))
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

    /// Type of input `i`.
    pub(crate) fn dtype(&self, i: usize) -> Option<DType> {
        self.node.input_types.get(i).map(|t| t.0)
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

    /// Which inputs make the argument called `name`.
    pub(crate) fn range(&self, name: &str) -> Result<std::ops::Range<usize>> {
        let ranges = self.node.op.input_ranges(&self.node.attrs)?;
        let found = ranges.into_iter().find(|(n, _)| *n == name);
        found
            .map(|(_, range)| range)
            .ok_or_else(|| Status::internal(format!("{} has no input {name}", self.node.op_name())))
    }

    /// The node that makes input `i`, through operations that only pass a tensor on.
    pub(crate) fn producer(&self, i: usize) -> Option<&Node> {
        let mut node = self.inner.graph.node(self.node.inputs.get(i)?.node);
        for _ in 0..16 {
            match node.op_name() {
                "Identity" | "Enter" => node = self.inner.graph.node(node.inputs.first()?.node),
                _ => break,
            }
        }
        Some(node)
    }

    /// The value of input `i` if it is a constant.
    pub(crate) fn constant(&self, i: usize) -> Option<&Tensor> {
        let node = self.producer(i)?;
        match node.op_name() {
            "Const" => node.attrs.tensor("value").ok(),
            _ => None,
        }
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

    /// The dimension that scalar input `i` spells out.
    pub(crate) fn dim_from(&self, i: usize) -> Result<Dim> {
        let value = self.known_ints(i);
        if value.is_some() {
            self.rank(i, 0)?;
        }
        match value.and_then(|v| v.first().copied()) {
            Some(value) if value < 0 => invalid(format!(
                "Dimension size, given by scalar input {i}, must be non-negative but is {value}"
            )),
            value => Ok(value.and_then(|v| usize::try_from(v).ok())),
        }
    }

    /// The shape that input `i` spells out as integers; -1 stands for an unknown dimension.
    pub(crate) fn shape_from(&self, i: usize) -> Result<PartialShape> {
        let length = self.rank(i, 1)?[0];
        let Some(dims) = self.ints(i) else {
            // Its length may be known even so.
            return Ok(length.map_or_else(PartialShape::unknown, dims::of_rank));
        };
        PartialShape::checked(dims.into_iter().map(|d| d.unwrap_or(-1)))
            .map_err(|e| Status::invalid_argument(e.to_string()))
    }

    /// Like [`Context::shape_from`], but a scalar stands for any shape, if it is -1.
    pub(crate) fn shape_or_any(&self, i: usize) -> Result<PartialShape> {
        self.at_most(i, 1)?;
        match (self.input(i).rank(), self.known_int(i)) {
            (Some(0), Some(value)) if value != -1 => invalid(format!(
                "Expected -1 for the scalar that stands for an unknown shape, but it is {value}"
            )),
            (Some(0), None) => invalid(
                "Received a shape scalar with unknown static value.  A static value of '-1' is \
                 required to represent an unknown shape.",
            ),
            (Some(0) | None, _) => Ok(PartialShape::unknown()),
            _ => self.shape_from(i),
        }
    }

    /// The type and shape behind handle input `i`.
    pub(crate) fn behind(&self, i: usize) -> Option<(DType, PartialShape)> {
        self.inner.handles.get(self.node.inputs.get(i)?).cloned()
    }

    /// The shape of the variable that input `i` is, or is the handle of.
    pub(crate) fn variable(&self, i: usize) -> PartialShape {
        match self.dtype(i) {
            Some(DType::Resource) => self.behind(i).map(|b| b.1).unwrap_or_default(),
            _ => self.input(i),
        }
    }

    /// Says what is behind handle output `output`.
    pub(crate) fn set_behind(&mut self, output: u32, dtype: DType, shape: PartialShape) {
        self.handles.push((output, (dtype, shape)));
    }

    /// Output `output` is the handle that input `i` is.
    pub(crate) fn pass_handle(&mut self, i: usize, output: u32) {
        if let Some((dtype, shape)) = self.behind(i) {
            self.set_behind(output, dtype, shape);
        }
    }

    /// The dimensions of an input that must have this rank.
    pub(crate) fn rank(&self, i: usize, rank: usize) -> Result<Vec<Dim>> {
        match dims::dims_of(&self.input(i)) {
            None => Ok(vec![None; rank]),
            Some(dims) if dims.len() == rank => Ok(dims),
            Some(dims) => invalid(format!(
                "Shape must be rank {rank} but is rank {}",
                dims.len()
            )),
        }
    }

    /// Refuses an input that cannot have this rank.
    pub(crate) fn with_rank(&self, i: usize, rank: usize) -> Result<PartialShape> {
        Ok(PartialShape::from_dims(self.rank(i, rank)?))
    }

    /// Refuses an input of fewer dimensions.
    pub(crate) fn at_least(&self, i: usize, rank: usize) -> Result<PartialShape> {
        let shape = self.input(i);
        match shape.rank() {
            Some(r) if r < rank => invalid(format!(
                "Shape must be at least rank {rank} but is rank {r}"
            )),
            _ => Ok(shape),
        }
    }

    /// Refuses an input of more dimensions.
    pub(crate) fn at_most(&self, i: usize, rank: usize) -> Result<()> {
        match self.input(i).rank() {
            Some(r) if r > rank => {
                invalid(format!("Shape must be at most rank {rank} but is rank {r}"))
            }
            _ => Ok(()),
        }
    }

    /// Refuses inputs that are not scalars.
    pub(crate) fn scalars(&self, inputs: impl IntoIterator<Item = usize>) -> Result<()> {
        for i in inputs {
            self.rank(i, 0)?;
        }
        Ok(())
    }
}

/// One output of this shape.
pub(crate) fn one(shape: PartialShape) -> Result<Shapes> {
    Ok(smallvec![shape])
}

pub(crate) fn invalid<T>(message: impl Into<String>) -> Result<T> {
    Err(Status::invalid_argument(message.into()))
}

#[cfg(test)]
mod tests {
    use crate::{DType, Graph, Output};

    fn x(g: &Graph, dims: &[usize]) -> Output {
        g.placeholder("x", DType::Float, dims.to_vec())
    }

    /// What TensorFlow 2.21 refuses while a graph is built, and its reason.
    #[test]
    fn wrong_graphs_are_refused_with_the_facts() {
        type Wrong = fn(&Graph) -> Output;
        let cases: &[(Wrong, &str)] = &[
            // Dimensions must be equal, but are 2 and 3
            (|g| &x(g, &[2]) + &x(g, &[3]), "[2] and [3]"),
            // Cannot reshape a tensor with 6 elements to shape [4] (4 elements)
            (
                |g| {
                    let to = g.constant(vec![4i32]);
                    g.op("Reshape").input(&x(g, &[2, 3])).input(&to).output()
                },
                "6 elements",
            ),
            // Dimension 1 in both shapes must be equal, but are 3 and 4
            (
                |g| {
                    let axis = g.constant(0i32);
                    let parts = [x(g, &[2, 3]), x(g, &[2, 4])];
                    g.op("ConcatV2").inputs(&parts).input(&axis).output()
                },
                "3 and 4",
            ),
            // Negative dimension size caused by subtracting 5 from 4
            (
                |g| {
                    let op = g.op("Conv2D").input(&x(g, &[1, 4, 4, 1]));
                    let op = op.input(&x(g, &[5, 5, 1, 2])).attr("padding", "VALID");
                    op.attr("strides", vec![1i64, 1, 1, 1]).output()
                },
                "5 from 4",
            ),
            // Depth of input (3) is not a multiple of input depth of filter (2)
            (
                |g| {
                    let op = g.op("Conv2D").input(&x(g, &[1, 4, 4, 3]));
                    let op = op.input(&x(g, &[1, 1, 2, 2])).attr("padding", "SAME");
                    op.attr("strides", vec![1i64, 1, 1, 1]).output()
                },
                "(3) is not a multiple",
            ),
            // Shape must be rank 2 but is rank 3
            (
                |g| {
                    let labels = g.placeholder("labels", DType::Int32, [Some(4)]);
                    let op = g.op("SparseSoftmaxCrossEntropyWithLogits");
                    op.input(&x(g, &[4, 5, 1])).input(&labels).output()
                },
                "rank 2 but is rank 3",
            ),
            // Can not squeeze dim[0], expected a dimension of 1, got 2
            (
                |g| {
                    let op = g.op("Squeeze").input(&x(g, &[2, 1]));
                    op.attr("squeeze_dims", vec![0i64]).output()
                },
                "squeeze dim[0]",
            ),
            // Shape must be rank 2 but is rank 3 (two labels, three dimensions)
            (
                |g| {
                    let op = g.op("Einsum").inputs(&[x(g, &[2, 3, 4])]);
                    op.attr("equation", "ij->ji").output()
                },
                "rank 2 but is rank 3",
            ),
        ];
        for (wrong, fact) in cases {
            let g = Graph::new();
            let _ = wrong(&g);
            let error = g.check().unwrap_err();
            assert!(error.message.contains(fact), "{error}");
            assert!(error.message.contains("input shapes: "), "{error}");
        }
    }
}
