//! Gradients, graph to graph: walks from what is differentiated back to what it depends on and
//! adds, for each operation on the way, the operations that turn the gradients of its outputs
//! into those of its inputs. Rules are one function per kind of op, by family.

mod array;
mod constant;
mod conv;
mod custom;
mod fft;
mod flow;
mod gather;
mod image;
mod linalg;
mod list;
mod math;
mod matmul;
mod nn;
mod ragged;
mod random;
mod reduce;
mod segment;
mod sparse;
mod special;
mod svd;
mod tensor_array;
mod terms;
#[cfg(test)]
mod tests;

use crate::ops::add_n;
use crate::{Graph, Operation, Output, concat};
use downpour_graph::{Edge, Endpoint, NodeId, Result, Status};
use downpour_tensor::DType;
use flow::V1Loop;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

pub use custom::custom_gradient;

/// A gradient: of every element, or of some rows only.
///
/// ```
/// use downpour::{Gradient, Graph, Init, Server, ServerConfig, Session, gradients};
/// let g = Graph::new();
/// let table = g.variable("table").init(Init::value([[1.0f32], [2.0], [3.0]])).build();
/// let loss = table.gather(&g.constant([2i32, 0, 2])).square().sum(());
/// let gradient = gradients(&[loss], &[table.handle().clone()])?.remove(0).unwrap();
/// assert!(matches!(gradient, Gradient::Sparse(_)));
/// let dense = gradient.to_dense();
/// let server = Server::start(ServerConfig::local())?;
/// let session = Session::new(&server, &g)?;
/// session.run(table.initializer())?;
/// assert_eq!(session.fetch(&dense)?.as_slice::<f32>()?, [2.0, 0.0, 12.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub enum Gradient {
    /// One number for each element.
    Dense(Output),
    /// Rows, at positions that may repeat; all other rows are zero.
    Sparse(IndexedSlices),
}

/// Some rows of a large tensor. Rows of the same position add up.
///
/// ```
/// use downpour::{Graph, IndexedSlices, Server, ServerConfig, Session};
/// let g = Graph::new();
/// let slices = IndexedSlices {
///     values: g.constant([[1.0f32], [2.0], [4.0]]),
///     indices: g.constant([2i32, 0, 2]),
///     shape: g.constant([4i32, 1]),
/// };
/// let dense = slices.to_dense();
/// let server = Server::start(ServerConfig::local())?;
/// let session = Session::new(&server, &g)?;
/// assert_eq!(session.fetch(&dense)?.as_slice::<f32>()?, [2.0, 0.0, 5.0, 0.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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

/// One operation on the way back: itself, and the gradients of its outputs.
///
/// ```
/// use downpour::{Back, Grads, Graph, Result, Server, ServerConfig, Session, gradients};
/// /// Halves the gradient on its way back.
/// fn halved(back: &Back) -> Result<Grads> {
///     Ok(vec![Some((back.dy(0) * 0.5).into())])
/// }
/// let g = Graph::new();
/// let x = g.constant(3.0f32);
/// let y = g.with_gradient("Identity", halved, || x.identity()).square();
/// let dx = gradients(&[y], &[x])?.remove(0).unwrap().to_dense();
/// let server = Server::start(ServerConfig::local())?;
/// let session = Session::new(&server, &g)?;
/// assert_eq!(session.fetch(&dx)?.scalar_value::<f32>()?, 3.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Back {
    op: Operation,
    grads: Grads,
    /// Which inputs' gradients somebody waits for.
    wanted: Vec<bool>,
}

/// Gradients of an operation's inputs, in order; `None` where none flows.
///
/// ```
/// use downpour::{Grads, Graph, Server, ServerConfig, Session, gradients};
/// let g = Graph::new();
/// let (x, y, z) = (g.constant(2.0f32), g.constant(5.0f32), g.constant(0.0f32));
/// let grads: Grads = gradients(&[&x * &y], &[x, y, z])?;
/// let [Some(dx), Some(dy), None] = &grads[..] else { panic!("the product does not depend on z") };
/// let (dx, dy) = (dx.to_dense(), dy.to_dense());
/// let server = Server::start(ServerConfig::local())?;
/// let session = Session::new(&server, &g)?;
/// assert_eq!(session.fetch(&dx)?.scalar_value::<f32>()?, 5.0);
/// assert_eq!(session.fetch(&dy)?.scalar_value::<f32>()?, 2.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type Grads = Vec<Option<Gradient>>;

/// Computes the gradients of one op's inputs.
pub(crate) type Rule = fn(&Back) -> Result<Grads>;

/// A rule that the user gave.
pub(crate) type OwnRule = Arc<dyn Fn(&Back) -> Result<Grads> + Send + Sync>;

impl Back {
    /// The operation.
    pub fn op(&self) -> &Operation {
        &self.op
    }

    /// Its graph.
    pub fn graph(&self) -> &Graph {
        self.op.graph()
    }

    /// Input `i`.
    pub fn x(&self, i: usize) -> Output {
        self.op.input(i)
    }

    /// Output `i`.
    pub fn y(&self, i: usize) -> Output {
        self.op.output(i)
    }

    /// The gradient of output `i`; zeros if none flows into it.
    pub fn dy(&self, i: usize) -> Output {
        match self.grads.get(i) {
            Some(Some(gradient)) => gradient.to_dense(),
            _ => self.y(i).zeros_like(),
        }
    }

    /// Whether anybody waits for the gradient of input `i`.
    pub fn wants(&self, i: usize) -> bool {
        self.wanted.get(i).copied().unwrap_or(false)
    }

    /// The gradient of output `i` as it came, if one did.
    pub fn gradient(&self, i: usize) -> Option<&Gradient> {
        self.grads.get(i)?.as_ref()
    }

    /// The gradient of output `i` as it came; zeros if it could have one.
    fn given_or_zeros(&self, i: usize) -> Option<Gradient> {
        match self.gradient(i) {
            Some(gradient) => Some(gradient.clone()),
            None if flows(self.y(i).dtype()) => Some(self.dy(i).into()),
            None => None,
        }
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
pub fn gradients(ys: &[Output], xs: &[Output]) -> Result<Grads> {
    Differentiate {
        ys,
        xs,
        ..Default::default()
    }
    .run()
}

/// As [`gradients`], with gradients of the `ys` to begin with instead of ones.
///
/// ```
/// use downpour::{Graph, Server, ServerConfig, Session, gradients_from};
/// let g = Graph::new();
/// let x = g.constant([1.0f32, 2.0]);
/// let dy = g.constant([10.0f32, 1.0]);
/// let dx = gradients_from(&[x.square()], &[Some(dy.into())], &[x])?.remove(0).unwrap().to_dense();
/// let server = Server::start(ServerConfig::local())?;
/// let session = Session::new(&server, &g)?;
/// assert_eq!(session.fetch(&dx)?.as_slice::<f32>()?, [20.0, 4.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn gradients_from(ys: &[Output], dys: &[Option<Gradient>], xs: &[Output]) -> Result<Grads> {
    Differentiate {
        ys,
        dys,
        xs,
        ..Default::default()
    }
    .run()
}

/// What to differentiate, and how.
///
/// ```
/// use downpour_build::{DType, Differentiate, Graph};
/// let g = Graph::new();
/// let x = g.placeholder("x", DType::Float, ());
/// let held = x.square();
/// let y = &x * &held;
/// // As if `held` were a constant: dy/dx = held.
/// let dx = Differentiate {
///     ys: &[y],
///     xs: &[x],
///     stop: &[held],
///     ..Default::default()
/// }
/// .run()?;
/// assert!(dx[0].is_some());
/// # Ok::<(), downpour_build::Status>(())
/// ```
#[derive(Clone, Copy, Default)]
pub struct Differentiate<'a> {
    /// What is differentiated: the sum of all.
    pub ys: &'a [Output],
    /// The gradients to begin with, ones where there is none; none at all means ones for all.
    pub dys: &'a [Option<Gradient>],
    /// With respect to what; handles of variables too.
    pub xs: &'a [Output],
    /// Tensors that count as constants: gradients do not flow past the operations that make them.
    pub stop: &'a [Output],
    /// Whether the gradient of an operation is placed on its device.
    pub colocate: bool,
}

impl Differentiate<'_> {
    /// The gradients of `xs`, in order; `None` where `ys` do not depend on one.
    pub fn run(&self) -> Result<Grads> {
        let Some(graph) = self.ys.first().map(|y| y.graph().clone()) else {
            return Ok(vec![None; self.xs.len()]);
        };
        graph.check()?;
        if !self.dys.is_empty() && self.dys.len() != self.ys.len() {
            return Err(Status::invalid_argument(format!(
                "{} gradients to begin with for {} outputs",
                self.dys.len(),
                self.ys.len()
            )));
        }
        let inside: Vec<Option<Output>> = self.xs.iter().map(|x| seen_from(&graph, x)).collect();
        let known: Vec<Output> = inside.iter().flatten().cloned().collect();
        let what = Differentiate {
            xs: &known,
            ..*self
        };
        let outcome = graph.with_scope("gradients", || Walk::new(&graph, &what).run(&what));
        graph.check()?;
        let mut grads = outcome?.into_iter();
        let next = |x: Option<Output>| x.and_then(|_| grads.next().flatten());
        Ok(inside.into_iter().map(next).collect())
    }

    /// As [`Differentiate::run`], for the body of a function; what is added lands in another body,
    /// which captures what it needs of this one.
    fn run_into(&self, around: &Graph, body: &Graph, back: &Graph) -> Result<Grads> {
        let scope = differentiation(&around.scope());
        let outcome = body.building(back, || {
            back.in_scope(scope, || Walk::new(body, self).run(self))
        });
        body.check()?;
        back.check()?;
        outcome
    }
}

/// The outer part of a scope's name that says which differentiation this is.
fn differentiation(scope: &str) -> String {
    let parts: Vec<&str> = scope.split('/').collect();
    let last = parts.iter().rposition(|p| p.starts_with("gradients"));
    parts[..=last.unwrap_or(0)].join("/")
}

/// `x`, or what stands for it in a function's body.
fn seen_from(graph: &Graph, x: &Output) -> Option<Output> {
    if x.graph().is(graph) {
        return Some(x.clone());
    }
    let x = seen_from(&graph.outer()?, x)?;
    let captures = graph.captures();
    let known = captures.into_iter().find(|(from, _)| *from == x);
    known.map(|(_, inside)| inside)
}

/// Whether gradients flow through tensors of this type.
fn flows(dtype: DType) -> bool {
    dtype.is_floating() || dtype.is_complex() || matches!(dtype, DType::Resource | DType::Variant)
}

/// The state of one differentiation.
struct Walk {
    graph: Graph,
    targets: HashSet<Endpoint>,
    /// Operations that lie between the `xs` and the `ys`.
    reached: HashSet<NodeId>,
    /// The same, producers first.
    between: Vec<NodeId>,
    /// Operations past which nothing flows.
    stop: HashSet<NodeId>,
    colocate: bool,
    /// Whether gradients go on the devices of what they are gradients of.
    beside: bool,
    /// Gradients that arrived at each output.
    arrived: HashMap<Endpoint, Vec<Gradient>>,
    /// v1 loops by their exits. A loop is gone through at its exit that is first in `between`.
    loops: HashMap<NodeId, Arc<V1Loop>>,
}

impl Walk {
    fn new(graph: &Graph, what: &Differentiate<'_>) -> Walk {
        let inner = graph.inner.lock();
        let targets: HashSet<Endpoint> = what.xs.iter().map(Output::endpoint).collect();
        let mut reached: HashSet<NodeId> = HashSet::new();
        let mut between: Vec<NodeId> = Vec::new();
        let mut loops = HashMap::new();
        for id in producers_first(&inner.graph, what.ys, &mut loops) {
            let depends = inputs_of(&inner.graph, id, &loops).iter().any(|edge| {
                let dtype = inner.graph.node(edge.node).output_types[edge.output as usize].0;
                flows(dtype) && (targets.contains(edge) || reached.contains(&edge.node))
            });
            if depends {
                reached.insert(id);
                between.push(id);
            }
        }
        Walk {
            graph: graph.clone(),
            targets,
            reached,
            between,
            stop: what.stop.iter().map(|s| s.endpoint().node).collect(),
            colocate: what.colocate,
            beside: inner.gradients_beside,
            arrived: HashMap::new(),
            loops,
        }
    }

    fn run(mut self, what: &Differentiate<'_>) -> Result<Grads> {
        for (i, y) in what.ys.iter().enumerate() {
            let dy = what.dys.get(i).cloned().flatten();
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
            let ones = || Gradient::from(y.ones_like());
            let dy = dy.unwrap_or_else(|| match self.beside {
                true => self.graph.beside(&y.operation(), ones),
                false => ones(),
            });
            self.arrived.entry(y.endpoint()).or_default().push(dy);
        }
        for id in std::mem::take(&mut self.between).into_iter().rev() {
            let op = Operation::new(self.graph.clone(), id);
            let graph = self.graph.clone();
            match (self.colocate, self.beside) {
                (true, _) => graph.with_colocation(&op, || self.step_back(&op))?,
                (false, true) => graph.beside(&op, || self.step_back(&op))?,
                (false, false) => self.step_back(&op)?,
            }
        }
        Ok(what.xs.iter().map(|x| self.sum(x.endpoint())).collect())
    }

    /// Hands the gradients of one operation's outputs on to its inputs.
    fn step_back(&mut self, op: &Operation) -> Result<()> {
        let found = op.valid_node().and_then(|id| self.loops.get(&id).cloned());
        if let Some(found) = found {
            return self.step_through(op, &found);
        }
        let grads: Grads = (0..op.num_outputs())
            .map(|i| self.sum(op.output(i).endpoint()))
            .collect();
        let stopped = op.valid_node().is_some_and(|id| self.stop.contains(&id));
        if stopped || grads.iter().all(Option::is_none) {
            return Ok(());
        }
        let wanted = |x: &Output| {
            let at = x.endpoint();
            self.targets.contains(&at) || self.reached.contains(&at.node)
        };
        let back = Back {
            op: op.clone(),
            grads,
            wanted: op.inputs().iter().map(wanted).collect(),
        };
        let Some(grads) = self
            .graph
            .with_scope(&format!("{}_grad", op.name()), || apply(&back))?
        else {
            return Ok(());
        };
        let inputs = op.inputs();
        if grads.len() != inputs.len() {
            return Err(Status::internal(format!(
                "the gradient of {} gave {} results for {} inputs",
                op.op(),
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

    /// Hands the gradients of a v1 loop's exits on to what enters it, once all are there.
    fn step_through(&mut self, op: &Operation, found: &V1Loop) -> Result<()> {
        let mut left = found.exits.iter().filter(|e| self.loops.contains_key(e));
        if left.clone().count() > 1 {
            let id = op.valid_node();
            self.loops.retain(|exit, _| Some(*exit) != id);
            return Ok(());
        }
        debug_assert!(left.any(|e| Some(*e) == op.valid_node()));
        let grads = flow::at_exits(found, |at| self.sum(at));
        if grads.iter().all(Option::is_none) {
            return Ok(());
        }
        let wanted = |at: &Endpoint| {
            let dtype = self.graph.node(at.node).output_types[at.output as usize].0;
            flows(dtype) && (self.targets.contains(at) || self.reached.contains(&at.node))
        };
        let back = Back {
            op: op.clone(),
            grads,
            wanted: found.inputs.iter().map(wanted).collect(),
        };
        let scope = format!("{}_grad", op.name());
        let grads = self
            .graph
            .with_scope(&scope, || flow::v1_gradient(&back, found))?;
        for (input, grad) in found.inputs.iter().zip(grads) {
            if let Some(grad) = grad {
                self.arrived.entry(*input).or_default().push(grad);
            }
        }
        Ok(())
    }

    /// The sum of what arrived at an output; it replaces its parts.
    fn sum(&mut self, at: Endpoint) -> Option<Gradient> {
        let parts = self.arrived.get(&at)?;
        let sum = match parts.as_slice() {
            [one] => one.clone(),
            parts if self.beside => aggregate_by_device(&self.graph, at, parts)?,
            parts => aggregate(parts)?,
        };
        self.arrived.insert(at, vec![sum.clone()]);
        Some(sum)
    }
}

/// What `ys` are computed from, producers before consumers. Of v1 loops, which are found on the way,
/// there are only the exits.
fn producers_first(
    graph: &downpour_graph::Graph,
    ys: &[Output],
    loops: &mut HashMap<NodeId, Arc<V1Loop>>,
) -> Vec<NodeId> {
    let mut order = Vec::new();
    let mut seen: HashSet<NodeId> = HashSet::new();
    // Nodes on the way down, each with its inputs that were not yet looked at.
    let mut path: Vec<(NodeId, Vec<Edge>)> = Vec::new();
    for y in ys {
        let mut next = Some(y.endpoint().node).filter(|id| id.index() < graph.len());
        loop {
            if let Some(id) = next.filter(|id| seen.insert(*id)) {
                if !loops.contains_key(&id)
                    && let Some(found) = V1Loop::of(graph, id)
                {
                    let found = Arc::new(found);
                    loops.extend(found.exits.iter().map(|exit| (*exit, found.clone())));
                }
                let mut inputs = inputs_of(graph, id, loops);
                inputs.reverse();
                path.push((id, inputs));
            }
            let Some((id, rest)) = path.last_mut() else {
                break;
            };
            next = rest.pop().map(|edge| edge.node);
            if next.is_none() {
                order.push(*id);
                path.pop();
            }
        }
    }
    // Exits that nothing depends on are not waited for.
    loops.retain(|exit, _| seen.contains(exit));
    order
}

/// What a node is computed from; for the exit of a loop, what enters the loop.
fn inputs_of(
    graph: &downpour_graph::Graph,
    id: NodeId,
    loops: &HashMap<NodeId, Arc<V1Loop>>,
) -> Vec<Edge> {
    match loops.get(&id) {
        Some(found) => found.inputs.clone(),
        None => graph.node(id).inputs.clone(),
    }
}

/// The sum of gradients of one tensor, first on each device that some come from and then where the
/// tensor is made: one gradient per device travels.
fn aggregate_by_device(graph: &Graph, at: Endpoint, parts: &[Gradient]) -> Option<Gradient> {
    let place = |part: &Gradient| match part {
        Gradient::Dense(output) => output.operation(),
        Gradient::Sparse(slices) => slices.values.operation(),
    };
    let mut devices: Vec<(String, Vec<Gradient>)> = Vec::new();
    for part in parts {
        let device = place(part).device();
        match devices.iter_mut().find(|(d, _)| *d == device) {
            Some((_, there)) => there.push(part.clone()),
            None => devices.push((device, vec![part.clone()])),
        }
    }
    let sums: Option<Vec<Gradient>> = devices
        .iter()
        .map(|(_, there)| match there.as_slice() {
            [one] => Some(one.clone()),
            several => graph.beside(&place(&several[0]), || aggregate(several)),
        })
        .collect();
    match sums?.as_slice() {
        [one] => Some(one.clone()),
        sums => graph.beside(&Operation::new(graph.clone(), at.node), || aggregate(sums)),
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

/// The gradients of an operation's inputs; nothing if none flows through it.
fn apply(back: &Back) -> Result<Option<Grads>> {
    let op = back.op();
    let attrs = op.attrs();
    let kind = match attrs.str("_gradient_op_type") {
        Ok(kind) => kind.to_owned(),
        Err(_) => op.op(),
    };
    if let Some(own) = op.graph().own_rule(&kind) {
        return own(back).map(Some);
    }
    if op.graph().function_signature(&kind).is_some() {
        return flow::direct_call(back).map(Some);
    }
    match rule(&kind) {
        Some(rule) => rule(back).map(Some),
        None if constant::is_constant(&kind) => Ok(None),
        None => Err(Status::not_found(format!(
            "No gradient defined for operation '{}' (op type: {kind})",
            op.name()
        ))),
    }
}

/// How an op is differentiated, if gradients flow through it.
fn rule(op: &str) -> Option<Rule> {
    math::rule(op)
        .or_else(|| array::rule(op))
        .or_else(|| reduce::rule(op))
        .or_else(|| matmul::rule(op))
        .or_else(|| nn::rule(op))
        .or_else(|| conv::rule(op))
        .or_else(|| gather::rule(op))
        .or_else(|| segment::rule(op))
        .or_else(|| special::rule(op))
        .or_else(|| sparse::rule(op))
        .or_else(|| ragged::rule(op))
        .or_else(|| linalg::rule(op))
        .or_else(|| fft::rule(op))
        .or_else(|| image::rule(op))
        .or_else(|| random::rule(op))
        .or_else(|| flow::rule(op))
        .or_else(|| list::rule(op))
        .or_else(|| tensor_array::rule(op))
}
