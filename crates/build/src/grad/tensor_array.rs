//! Gradients of TensorArrays, of which imported graphs are full. The gradient of an array is an
//! array beside it that the resource makes on demand; reading writes to it and writing reads from
//! it. What orders all that are the flows, whose gradients are flows.

use super::{Back, Gradient, Grads, Rule};
use crate::Output;
use downpour_graph::Result;

pub(super) fn rule(op: &str) -> Option<Rule> {
    Some(match op {
        "TensorArrayReadV3" => |b| {
            let (array, flow) = gradient_array(b, &b.x(0), &b.x(2));
            let op = b.graph().op("TensorArrayWriteV3").input(&array);
            let op = op.input(&b.x(1)).input(&b.dy(0)).input(&flow);
            Ok(vec![None, None, Some(op.output().into())])
        },
        "TensorArrayGatherV3" => |b| {
            let (array, flow) = gradient_array(b, &b.x(0), &b.x(2));
            let op = b.graph().op("TensorArrayScatterV3").input(&array);
            let op = op.input(&b.x(1)).input(&b.dy(0)).input(&flow);
            Ok(vec![None, None, Some(op.output().into())])
        },
        "TensorArrayConcatV3" => |b| {
            let (array, flow) = gradient_array(b, &b.x(0), &b.x(1));
            let op = b.graph().op("TensorArraySplitV3").input(&array);
            let op = op.input(&b.dy(0)).input(&b.y(1)).input(&flow);
            Ok(vec![None, Some(op.output().into())])
        },
        "TensorArrayWriteV3" => |b| {
            let (array, flow, back) = written(b);
            let op = b.graph().op("TensorArrayReadV3").input(&array);
            let op = op.input(&b.x(1)).input(&flow);
            let value = op.attr("dtype", b.x(2).dtype()).output();
            Ok(vec![None, None, Some(value.into()), Some(back)])
        },
        "TensorArrayScatterV3" => |b| {
            let (array, flow, back) = written(b);
            let op = b.graph().op("TensorArrayGatherV3").input(&array);
            let op = op.input(&b.x(1)).input(&flow);
            let value = op.attr("dtype", b.x(2).dtype()).output();
            Ok(vec![None, None, Some(value.into()), Some(back)])
        },
        "TensorArraySplitV3" => |b| {
            let (array, flow, back) = written(b);
            let op = b.graph().op("TensorArrayConcatV3").input(&array);
            let value = op.input(&flow).attr("dtype", b.x(1).dtype()).output();
            Ok(vec![None, Some(value.into()), None, Some(back)])
        },
        "StackPushV2" | "StackPush" => refuse,
        _ => return None,
    })
}

/// Stacks belong to loops' ways back, of which there is no gradient.
fn refuse(b: &Back) -> Result<Grads> {
    Err(downpour_graph::Status::not_found(format!(
        "No gradient defined for operation '{}' (op type: {})",
        b.op().name(),
        b.op().op()
    )))
}

/// The array of gradients beside an array, and the flow behind its making.
fn gradient_array(b: &Back, array: &Output, flow: &Output) -> (Output, Output) {
    let graph = b.graph();
    // Another differentiation's gradients must not mix with this one's.
    let source = super::differentiation(&graph.scope());
    let op = graph.op("TensorArrayGradV3").input(array).input(flow);
    let made = op.attr("source", source.as_str()).build();
    let flow = graph.op("Identity").name("gradient_flow").input(flow);
    (made.output(0), flow.control(&made).output())
}

/// As [`gradient_array`] for an array that the operation wrote to: all writing is done by then.
/// Also the gradient of the flow.
fn written(b: &Back) -> (Output, Output, Gradient) {
    let done = b.y(0).identity().operation();
    let graph = b.graph();
    let barrier = graph.op("Identity").name("write_barrier").input(&b.dy(0));
    let barrier = barrier.control(&done).output();
    let (array, flow) = gradient_array(b, &b.x(0), &barrier);
    (array, flow, barrier.into())
}
