//! Gradients of operations that rearrange tensors.

use super::math::one;
use super::{Gradient, IndexedSlices, Rule};
use downpour_tensor::DType;

pub(super) fn rule(op: &str) -> Option<Rule> {
    Some(match op {
        "Identity" => |b| Ok(vec![b.gradient(0).cloned()]),
        "Reshape" => |b| {
            let shape = b.x(0).shape_op();
            Ok(vec![Some(b.dy(0).reshape_to(&shape).into()), None])
        },
        "ExpandDims" => |b| {
            let shape = b.x(0).shape_op();
            Ok(vec![Some(b.dy(0).reshape_to(&shape).into()), None])
        },
        "Squeeze" => |b| one(b.dy(0).reshape_to(&b.x(0).shape_op())),
        "Transpose" => |b| {
            let order = b.graph().op("InvertPermutation").input(&b.x(1)).output();
            let op = b.graph().op("Transpose").input(&b.dy(0)).input(&order);
            Ok(vec![Some(op.output().into()), None])
        },
        "ResourceGather" => |b| {
            let (handle, indices) = (b.x(0), b.x(1));
            let g = b.graph();
            let shape = g
                .op("VariableShape")
                .input(&handle)
                .attr("out_type", DType::Int32)
                .output();
            let flat = indices.reshape(&[-1]);
            let (one, end) = (g.constant([1i32]), g.constant([0i32]));
            let row = g
                .op("StridedSlice")
                .input(&shape)
                .input(&one)
                .input(&end)
                .input(&one)
                .attr("end_mask", 1i64)
                .output();
            let count = indices.size_op().expand_dims(0);
            let values = b.dy(0).reshape_to(&crate::concat(&[count, row], 0));
            let slices = IndexedSlices {
                values,
                indices: flat,
                shape,
            };
            Ok(vec![Some(Gradient::Sparse(slices)), None])
        },
        _ => return None,
    })
}
