//! Control flow: branches, loops and calls, each an operation that runs functions which the user
//! writes as closures. The operations are TensorFlow's own, marked to be lowered, so that servers
//! run them without calling anything.
//!
//! Whatever a closure makes belongs to the branch or the loop's body, by whichever handle it is
//! made; what it uses from outside is passed to it.

mod branch;
mod call;
mod map;
mod repeat;
#[cfg(test)]
mod tests;

pub use branch::{Branch, case, cond, cond_op, switch_case};
pub use call::{Function, call};
pub use map::{fold, map_fn, scan};
pub(crate) use repeat::emit as emit_loop;
pub use repeat::{While, while_loop};

use crate::body::Body;
use crate::{Graph, Operation, Output};
use downpour_graph::{AttrList, AttrValue, FunctionRef};
use downpour_tensor::{DType, PartialShape};

/// Tells servers to turn a functional operation into v1 control flow.
pub(crate) const LOWER: &str = "_lower_using_switch_merge";

/// The outer tensors that bodies need, each once.
fn all_captures(bodies: &[&Body]) -> Vec<Output> {
    let mut out: Vec<Output> = Vec::new();
    for (outer, _) in bodies.iter().flat_map(|b| b.captures()) {
        if !out.contains(&outer) {
            out.push(outer);
        }
    }
    out
}

/// What is known of a tensor that is one of two.
pub(crate) fn either(a: &PartialShape, b: &PartialShape) -> PartialShape {
    match (a.dims(), b.dims()) {
        (Some(a), Some(b)) if a.len() == b.len() => {
            PartialShape::from_dims(a.iter().zip(b).map(|(a, b)| a.filter(|_| a == b)))
        }
        _ => PartialShape::unknown(),
    }
}

/// What is known of an operation's outputs beyond what its attributes say.
pub(crate) fn describe(
    op: &Operation,
    shapes: &[PartialShape],
    behind: &[Option<(DType, PartialShape)>],
) {
    for (output, shape) in op.outputs().iter().zip(shapes) {
        output.set_shape(shape);
    }
    for (output, behind) in op.outputs().iter().zip(behind) {
        if let Some((dtype, shape)) = behind {
            output.set_behind(*dtype, shape.clone());
        }
    }
}

/// Outputs of which each can be left out alone once the operation is lowered.
fn identities(op: &Operation, outputs: &[Output]) -> Vec<Output> {
    let graph = op.graph();
    let scope = op.name();
    graph.in_scope(scope, || {
        let one = |output: &Output| {
            let same = output.identity();
            if let Some((dtype, shape)) = output.behind() {
                same.set_behind(dtype, shape);
            }
            same
        };
        outputs.iter().map(one).collect()
    })
}

/// As many outputs that could not be made.
fn invalid(graph: &Graph, count: usize) -> Vec<Output> {
    vec![graph.invalid(); count]
}

pub(crate) fn shapes_attr(shapes: Vec<PartialShape>) -> AttrValue {
    AttrValue::List(AttrList::Shape(shapes))
}

pub(crate) fn functions_attr(functions: Vec<FunctionRef>) -> AttrValue {
    AttrValue::List(AttrList::Func(functions))
}
