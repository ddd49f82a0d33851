//! Gradients of neural network operations.

use super::math::{one, pair};
use super::{Back, Grads, Rule};
use downpour_graph::Result;

pub(super) fn rule(op: &str) -> Option<Rule> {
    Some(match op {
        "Relu" => |b| one(pair(b, "ReluGrad", &b.dy(0), &b.y(0))),
        "BiasAdd" => |b| {
            let op = b.graph().op("BiasAddGrad").input(&b.dy(0));
            let bias = op.attrs_of(b.op(), &["data_format"]).output();
            Ok(vec![Some(b.dy(0).into()), Some(bias.into())])
        },
        "SparseSoftmaxCrossEntropyWithLogits" | "SoftmaxCrossEntropyWithLogits" => cross_entropy,
        _ => return None,
    })
}

/// The kernel computes the gradient of the logits beside the loss.
fn cross_entropy(b: &Back) -> Result<Grads> {
    let rows = b.dy(0).expand_dims(-1);
    Ok(vec![Some((rows * b.y(1)).into()), None])
}
