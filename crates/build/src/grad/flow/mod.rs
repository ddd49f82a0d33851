//! Gradients through branches, loops and calls. The gradient of an operation that runs functions
//! is an operation of the same kind that runs their gradients. Those need values from inside the
//! functions, so the forward operation grows in place: its functions return such values as well.
//!
//! A gradient that is sparse inside a function comes out sparse of a call, as three results, but
//! dense of branches and loops: what they return must be alike whichever way a step goes.

mod branch;
mod functional;
mod growth;
mod repeat;
mod v1;

pub(super) use repeat::v1_gradient;
pub(super) use v1::{V1Loop, at_exits};

use super::{Back, Gradient, Grads, Rule, flows};
use crate::body::Body;
use crate::function::ArgSpec;
use crate::{Graph, Operation, Output};
use downpour_graph::{FunctionRef, NodeDef, Result, Status};
use downpour_tensor::DType;

pub(super) fn rule(op: &str) -> Option<Rule> {
    Some(match op {
        "If" | "StatelessIf" => |b| {
            let attrs = b.op().attrs();
            let branches = [attrs.func("then_branch")?, attrs.func("else_branch")?];
            branch::gradient(b, &branches.map(Clone::clone))
        },
        "Case" | "StatelessCase" => |b| branch::gradient(b, b.op().attrs().funcs("branches")?),
        "PartitionedCall" | "StatefulPartitionedCall" => {
            |b| branch::gradient(b, &[b.op().attrs().func("f")?.clone()])
        }
        "While" | "StatelessWhile" => repeat::gradient,
        "Merge" => merge,
        "Switch" => |b| {
            let sides = [b.dy(0), b.dy(1)];
            let op = b.graph().op("Merge").inputs(&sides).build();
            Ok(vec![Some(op.output(0).into()), None])
        },
        "Enter" | "Exit" | "NextIteration" | "RefEnter" | "RefExit" | "RefNextIteration"
        | "RefSwitch" | "RefMerge" => |b| {
            Err(Status::unimplemented(format!(
                "No gradient defined for operation '{}' (op type: {}): the loop around it has no shape that TensorFlow's loops have",
                b.op().name(),
                b.op().op()
            )))
        },
        _ => return None,
    })
}

/// A function that is called as an op: the server works its gradient out.
pub(super) fn direct_call(b: &Back) -> Result<Grads> {
    let op = b.op();
    let mut inputs = op.inputs();
    let types: Vec<DType> = inputs.iter().map(Output::dtype).collect();
    inputs.extend((0..op.num_outputs()).map(|i| b.dy(i)));
    let function = FunctionRef {
        name: op.op(),
        attrs: op.attrs(),
    };
    let grads = b.graph().op("SymbolicGradient").inputs(&inputs);
    let grads = grads.attr("Tout", types).attr("f", function).outputs();
    let one = |g: Output| flows(g.dtype()).then(|| g.into());
    Ok(grads.into_iter().map(one).collect())
}

/// The gradient goes where the value came from; `value_index` says which way that was.
fn merge(b: &Back) -> Result<Grads> {
    let looped = |x: &Output| matches!(x.operation().op().as_str(), "Enter" | "NextIteration");
    if b.op().num_inputs() != 2 || b.op().inputs().iter().any(looped) {
        return Err(Status::unimplemented(format!(
            "No gradient defined for operation '{}' (op type: Merge): it joins more than two branches, or is part of a loop",
            b.op().name()
        )));
    }
    let second = b.y(1).equal(&b.graph().constant(1i32));
    let op = b.graph().op("Switch").input(&b.dy(0)).input(&second);
    Ok(op.outputs().into_iter().map(|o| Some(o.into())).collect())
}

/// What the gradient of such a tensor is like; nothing if none can be worked out.
fn gradient_spec(output: &Output) -> Option<ArgSpec> {
    match output.dtype() {
        DType::Resource => {
            let (dtype, shape) = output.behind()?;
            flows(dtype).then(|| ArgSpec::new(dtype, shape))
        }
        dtype => flows(dtype).then(|| ArgSpec::like(output)),
    }
}

/// Zeros like a tensor, or like the value of a variable.
fn zeros(like: &Output) -> Result<Output> {
    if like.dtype() != DType::Resource {
        return Ok(like.zeros_like());
    }
    let (dtype, _) = like.behind().ok_or_else(|| {
        Status::invalid_argument(format!(
            "the type of the variable behind '{}' is not known",
            like.name()
        ))
    })?;
    let graph = like.graph();
    let shape = graph.op("VariableShape").input(like);
    let shape = shape.attr("out_type", DType::Int32).output();
    let zero = crate::literal::number(0.0, dtype)
        .ok_or_else(|| Status::invalid_argument(format!("{} has no numbers", dtype.name())))?;
    let zero = graph.constant(zero);
    Ok(graph.op("Fill").input(&shape).input(&zero).output())
}

/// The tensor that identities of it stand for.
fn origin(output: &Output) -> Output {
    let op = output.operation();
    match op.op().as_str() {
        "Identity" => origin(&op.input(0)),
        _ => output.clone(),
    }
}

/// A node in the form it is written in, to be changed.
fn definition(op: &Operation) -> Result<NodeDef> {
    let node = op
        .valid_node()
        .ok_or_else(|| Status::internal("an operation that was not made"))?;
    let inner = op.graph().inner.lock();
    Ok(crate::graph::node_def(&inner.graph, inner.graph.node(node)))
}

/// A body for the way back through `forward`.
fn way_back(forward: &Body) -> Body {
    Body {
        graph: forward.graph.body(),
        args: Vec::new(),
        results: Vec::new(),
        instead: Default::default(),
    }
}

/// A resource that the way back needs, but that no argument hands it.
fn unreachable_resource(output: &Output) -> Status {
    Status::unimplemented(format!(
        "The gradient needs the resource '{}', which is made inside a function's body",
        output.name()
    ))
}

/// Makes operations in the graph that the gradients of `op` go to.
fn target(op: &Operation) -> Graph {
    op.graph().innermost()
}

fn dense(gradient: Option<&Gradient>) -> Option<Output> {
    gradient.map(Gradient::to_dense)
}
