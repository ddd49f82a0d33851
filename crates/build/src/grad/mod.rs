//! Gradients, graph to graph: walks from what is differentiated back to what it depends on and
//! adds, for each operation on the way, the operations that turn the gradients of its outputs
//! into those of its inputs. Rules are one function per kind of op, by family.

mod array;
mod math;
mod nn;
mod state;

use crate::ops::add_n;
use crate::{Graph, Operation, Output, concat};
use downpour_graph::{Endpoint, NodeId, Result, Status};
use downpour_tensor::DType;
use std::collections::{HashMap, HashSet};

/// A gradient: of every element, or of some rows only.
#[derive(Clone, Debug)]
pub enum Gradient {
    /// One number for each element.
    Dense(Output),
    /// Rows, at positions that may repeat; all other rows are zero.
    Sparse(IndexedSlices),
}

/// Some rows of a large tensor. Rows of the same position add up.
#[derive(Clone, Debug)]
pub struct IndexedSlices {
    /// The rows.
    pub values: Output,
    /// Where each row belongs.
    pub indices: Output,
    /// Shape of the whole, as int32 or int64.
    pub shape: Output,
}

impl IndexedSlices {
    /// The whole tensor, zeros included.
    #[track_caller]
    pub fn to_dense(&self) -> Output {
        let graph = self.values.graph();
        let (zero, one) = (graph.constant([0i32]), graph.constant([1i32]));
        let count = graph
            .op("StridedSlice")
            .input(&self.shape)
            .input(&zero)
            .input(&one)
            .input(&one)
            .attr("shrink_axis_mask", 1i64)
            .output();
        let op = graph.op("UnsortedSegmentSum").input(&self.values);
        op.input(&self.indices).input(&count).output()
    }
}

impl Gradient {
    /// The gradient of every element.
    #[track_caller]
    pub fn to_dense(&self) -> Output {
        match self {
            Gradient::Dense(output) => output.clone(),
            Gradient::Sparse(slices) => slices.to_dense(),
        }
    }
}

impl From<Output> for Gradient {
    fn from(output: Output) -> Gradient {
        Gradient::Dense(output)
    }
}

/// One operation on the way back: its gradients so far.
pub(crate) struct Back {
    op: Operation,
    grads: Vec<Option<Gradient>>,
}

/// Gradients of an operation's inputs, in order; `None` where none flows.
pub(crate) type Grads = Vec<Option<Gradient>>;

/// Computes the gradients of one op's inputs.
pub(crate) type Rule = fn(&Back) -> Result<Grads>;

impl Back {
    /// The operation.
    pub(crate) fn op(&self) -> &Operation {
        &self.op
    }

    /// Its graph.
    pub(crate) fn graph(&self) -> &Graph {
        self.op.graph()
    }

    /// Input `i`.
    pub(crate) fn x(&self, i: usize) -> Output {
        self.op.input(i)
    }

    /// Output `i`.
    pub(crate) fn y(&self, i: usize) -> Output {
        self.op.output(i)
    }

    /// The gradient of output `i`; zeros if none flows into it.
    pub(crate) fn dy(&self, i: usize) -> Output {
        match self.grads.get(i) {
            Some(Some(gradient)) => gradient.to_dense(),
            _ => self.y(i).zeros_like(),
        }
    }

    /// The gradient of output `i` as it came, if one did.
    pub(crate) fn gradient(&self, i: usize) -> Option<&Gradient> {
        self.grads.get(i)?.as_ref()
    }
}

/// Gradients of `sum(ys)` with respect to each of `xs`; `None` where `ys` do not depend on one.
///
/// `xs` may be handles of variables.
///
/// ```
/// use downpour_build::{DType, Graph, gradients};
/// let g = Graph::new();
/// let x = g.placeholder("x", DType::Float, ());
/// let dx = gradients(&[x.square()], &[x])?;
/// assert!(dx[0].is_some());
/// # Ok::<(), downpour_build::Status>(())
/// ```
pub fn gradients(ys: &[Output], xs: &[Output]) -> Result<Vec<Option<Gradient>>> {
    gradients_from(ys, &vec![None; ys.len()], xs)
}

/// As [`gradients`], with gradients of the `ys` to begin with instead of ones.
pub fn gradients_from(
    ys: &[Output],
    dys: &[Option<Gradient>],
    xs: &[Output],
) -> Result<Vec<Option<Gradient>>> {
    let Some(graph) = ys.first().map(|y| y.graph().clone()) else {
        return Ok(vec![None; xs.len()]);
    };
    graph.check()?;
    let outcome = graph.with_scope("gradients", || Walk::new(&graph, ys, xs).run(ys, dys, xs));
    graph.check()?;
    outcome
}

/// Whether gradients flow through tensors of this type.
fn flows(dtype: DType) -> bool {
    dtype.is_floating() || dtype.is_complex() || matches!(dtype, DType::Resource | DType::Variant)
}

/// The state of one call of [`gradients`].
struct Walk {
    graph: Graph,
    /// Operations that lie between the `xs` and the `ys`.
    between: HashSet<NodeId>,
    /// Gradients that arrived at each output.
    arrived: HashMap<Endpoint, Vec<Gradient>>,
}

impl Walk {
    fn new(graph: &Graph, ys: &[Output], xs: &[Output]) -> Walk {
        let inner = graph.inner.lock();
        let mut reached: HashSet<NodeId> = HashSet::new();
        let mut stack: Vec<NodeId> = ys.iter().map(|y| y.endpoint().node).collect();
        while let Some(id) = stack.pop() {
            if id.index() < inner.graph.len() && reached.insert(id) {
                stack.extend(inner.graph.node(id).inputs.iter().map(|e| e.node));
            }
        }
        let targets: HashSet<Endpoint> = xs.iter().map(Output::endpoint).collect();
        // Ids grow from producers to consumers but for loops' back edges, which functions avoid.
        let mut order: Vec<NodeId> = reached.iter().copied().collect();
        order.sort();
        let mut between: HashSet<NodeId> = HashSet::new();
        for id in order {
            let node = inner.graph.node(id);
            let depends = node.inputs.iter().any(|edge| {
                let dtype = inner.graph.node(edge.node).output_types[edge.output as usize].0;
                flows(dtype) && (targets.contains(edge) || between.contains(&edge.node))
            });
            if depends {
                between.insert(id);
            }
        }
        Walk {
            graph: graph.clone(),
            between,
            arrived: HashMap::new(),
        }
    }

    fn run(
        mut self,
        ys: &[Output],
        dys: &[Option<Gradient>],
        xs: &[Output],
    ) -> Result<Vec<Option<Gradient>>> {
        for (y, dy) in ys.iter().zip(dys) {
            if !flows(y.dtype()) {
                return Err(Status::invalid_argument(format!(
                    "'{}' is {}: only floating and complex tensors have gradients",
                    y.name(),
                    y.dtype().name()
                )));
            }
            if dy.is_none() && y.dtype().is_complex() {
                return Err(Status::invalid_argument(format!(
                    "'{}' is complex: say with which gradient to begin (gradients_from)",
                    y.name()
                )));
            }
            let dy = dy.clone().unwrap_or_else(|| y.ones_like().into());
            self.arrived.entry(y.endpoint()).or_default().push(dy);
        }
        let mut order: Vec<NodeId> = self.between.iter().copied().collect();
        order.sort();
        for id in order.into_iter().rev() {
            self.step_back(id)?;
        }
        Ok(xs.iter().map(|x| self.sum(x.endpoint())).collect())
    }

    /// Hands the gradients of one operation's outputs on to its inputs.
    fn step_back(&mut self, id: NodeId) -> Result<()> {
        let op = Operation::new(self.graph.clone(), id);
        let grads: Grads = (0..op.num_outputs())
            .map(|i| self.sum(op.output(i).endpoint()))
            .collect();
        if grads.iter().all(Option::is_none) {
            return Ok(());
        }
        let kind = op.op();
        let rule = match rule(&kind) {
            Some(Some(rule)) => rule,
            Some(None) => return Ok(()),
            None => {
                return Err(Status::not_found(format!(
                    "No gradient defined for operation '{}' (op type: {kind})",
                    op.name()
                )));
            }
        };
        let back = Back { op, grads };
        let name = format!("{}_grad", back.op.name());
        let grads = self.graph.with_scope(&name, || rule(&back))?;
        let inputs = back.op.inputs();
        if grads.len() != inputs.len() {
            return Err(Status::internal(format!(
                "the gradient of {kind} gave {} results for {} inputs",
                grads.len(),
                inputs.len()
            )));
        }
        for (input, grad) in inputs.iter().zip(grads) {
            if let Some(grad) = grad
                && flows(input.dtype())
            {
                self.arrived.entry(input.endpoint()).or_default().push(grad);
            }
        }
        Ok(())
    }

    /// The sum of what arrived at an output; it replaces its parts.
    fn sum(&mut self, at: Endpoint) -> Option<Gradient> {
        let parts = self.arrived.get(&at)?;
        let sum = match parts.as_slice() {
            [one] => one.clone(),
            parts => aggregate(parts)?,
        };
        self.arrived.insert(at, vec![sum.clone()]);
        Some(sum)
    }
}

/// The sum of gradients of one tensor; sparse as long as all are.
fn aggregate(parts: &[Gradient]) -> Option<Gradient> {
    let sparse: Vec<&IndexedSlices> = parts
        .iter()
        .filter_map(|p| match p {
            Gradient::Sparse(slices) => Some(slices),
            Gradient::Dense(_) => None,
        })
        .collect();
    if let (Some(first), true) = (sparse.first(), sparse.len() == parts.len()) {
        let indices: Vec<Output> = sparse.iter().map(|s| s.indices.clone()).collect();
        let dtype = match indices.iter().all(|i| i.dtype() == DType::Int32) {
            true => DType::Int32,
            false => DType::Int64,
        };
        let indices: Vec<Output> = indices.iter().map(|i| i.cast(dtype)).collect();
        let values: Vec<Output> = sparse.iter().map(|s| s.values.clone()).collect();
        return Some(Gradient::Sparse(IndexedSlices {
            values: concat(&values, 0),
            indices: concat(&indices, 0),
            shape: first.shape.clone(),
        }));
    }
    let dense: Vec<Output> = parts.iter().map(Gradient::to_dense).collect();
    add_n(&dense).map(Gradient::Dense)
}

/// How an op is differentiated: `Some(None)` if no gradient flows through it, `None` if nobody
/// knows.
fn rule(op: &str) -> Option<Option<Rule>> {
    math::rule(op)
        .or_else(|| array::rule(op))
        .or_else(|| nn::rule(op))
        .or_else(|| state::rule(op))
        .map(Some)
        .or_else(|| constant(op).then_some(None))
}

/// Ops through which no gradient flows.
fn constant(op: &str) -> bool {
    matches!(
        op,
        "Const"
            | "StopGradient"
            | "Shape"
            | "ShapeN"
            | "Size"
            | "Rank"
            | "ZerosLike"
            | "OnesLike"
            | "Equal"
            | "NotEqual"
            | "Less"
            | "LessEqual"
            | "Greater"
            | "GreaterEqual"
            | "LogicalAnd"
            | "LogicalOr"
            | "LogicalNot"
            | "ArgMax"
            | "ArgMin"
            | "Floor"
            | "Ceil"
            | "Round"
            | "Rint"
            | "Sign"
            | "Range"
            | "OneHot"
            | "IsNan"
            | "IsInf"
            | "IsFinite"
            | "RandomUniform"
            | "RandomStandardNormal"
            | "TruncatedNormal"
            | "VarIsInitializedOp"
            | "InTopK"
            | "InTopKV2"
            | "FloorDiv"
            | "All"
            | "Any"
    )
}
