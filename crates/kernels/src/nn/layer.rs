//! A layer as one node: a convolution or a product of matrices that only goes to a `BiasAdd`, and
//! that only to a `Relu`. Bias and activation are put on results that are still in the cache.

use crate::linalg::fuse::Activation;
use crate::linalg::matmul;
use crate::nn::conv;
use crate::nn::window::Format;
use downpour_graph::Node;
use downpour_runtime::{Around, Registry, Shortcut};
use downpour_tensor::DType;

pub(crate) fn register(r: &mut Registry) {
    r.add_shortcut("Relu", |around| find(around, Activation::Relu));
}

fn find(around: &Around<'_>, activation: Activation) -> Option<Shortcut> {
    let sum = *around.node().inputs.first()?;
    let bias_add = around.op(sum, "BiasAdd")?;
    let &[product, bias] = bias_add.inputs.as_slice() else {
        return None;
    };
    let node = around.before(product);
    let &[left, right] = node.inputs.as_slice() else {
        return None;
    };
    let is_float = |node: &Node| node.attrs.dtype("T").is_ok_and(|t| t == DType::Float);
    let last = Format::parse(&bias_add.attrs).is_ok_and(|f| f == Format::Nhwc);
    if !is_float(node) || !is_float(bias_add) || !last {
        return None;
    }
    let run = match node.op_name() {
        "Conv2D" => conv::with_bias(&node.attrs, activation)?,
        "MatMul" => matmul::with_bias(&node.attrs, activation)?,
        _ => return None,
    };
    Some(Shortcut {
        members: vec![product.node, sum.node],
        inputs: vec![left, right, bias],
        run,
    })
}
