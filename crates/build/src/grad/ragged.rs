//! Gradients of ragged tensors' flat values, and of tensors inside variants.

use super::math::one;
use super::terms::{
    at, call, count_to, from, ints, join, of, rank_of, rows, shape_of, sum_over, to,
};
use super::{Back, Gradient, Grads, IndexedSlices, Rule};
use crate::Output;
use downpour_graph::{AttrList, AttrValue, Result};
use downpour_tensor::DType;

pub(super) fn rule(op: &str) -> Option<Rule> {
    Some(match op {
        "RaggedGather" => gather,
        "RaggedTensorToTensor" => to_tensor,
        "RaggedTensorToSparse" => |b| {
            let last = b.op().num_inputs() - 1;
            b.only(last, b.dy(1).reshape_to(&shape_of(&b.x(last))))
        },
        "RaggedTensorFromVariant" => |b| {
            let n = b.op().num_outputs() - 1;
            let batched = match b.x(0).rank() {
                Some(0) => false,
                Some(1) => true,
                None => b.int("output_ragged_rank")? > 0,
                Some(_) => return b.refuse("only for variants of rank 0 or 1"),
            };
            let splits: Vec<Output> = (0..n).map(|i| b.y(i)).collect();
            let op = b.graph().op("RaggedTensorToVariant").inputs(&splits);
            let op = op.input(&b.dy(n)).attrs_of(b.op(), &["Tsplits"]);
            one(op.attr("batched_input", batched).output())
        },
        "RaggedTensorToVariant" => |b| {
            let last = b.op().num_inputs() - 1;
            let values = b.x(last);
            let splits = match last {
                0 => b.graph().constant(0i64),
                _ => b.x(0),
            };
            let inputs = [&b.dy(0), &splits, &shape_of(&values)];
            let op = call("RaggedTensorToVariantGradient", &inputs);
            b.only(last, op.attr("Tvalues", values.dtype()).output())
        },
        "OptionalFromValue" => |b| {
            let inputs = b.op().inputs();
            let types = inputs.iter().map(Output::dtype).collect();
            let shapes = inputs.iter().map(Output::shape).collect();
            let op = call("OptionalGetValue", &[&b.dy(0)])
                .attr("output_types", AttrValue::List(AttrList::Type(types)))
                .attr("output_shapes", AttrValue::List(AttrList::Shape(shapes)));
            Ok(op.outputs().into_iter().map(|o| Some(o.into())).collect())
        },
        "OptionalGetValue" => |b| {
            let parts: Vec<Output> = (0..b.op().num_outputs()).map(|i| b.dy(i)).collect();
            one(b.graph().op("OptionalFromValue").inputs(&parts).output())
        },
        _ => return None,
    })
}

/// Where each gathered row's flat values came from says where its gradient belongs.
fn gather(b: &Back) -> Result<Grads> {
    let n = b.op().num_inputs();
    let (values, indices) = (b.x(n - 2), b.x(n - 1).reshape(&[-1]));
    let mut splits = b.x(0);
    for i in 1..n - 2 {
        splits = rows(&b.x(i), &splits);
    }
    let (starts, ends) = (rows(&splits, &indices), rows(&from(&splits, 1), &indices));
    let step = starts.scalar_like(1.0);
    let places = call("RaggedRange", &[&starts, &ends, &step]).build();
    let slices = IndexedSlices {
        values: b.dy(b.op().num_outputs() - 1),
        indices: places.output(1),
        shape: shape_of(&values),
    };
    b.only(n - 2, Gradient::Sparse(slices))
}

/// Numbers in place of the values say which element of the result is which value; -1 is the
/// default.
fn to_tensor(b: &Back) -> Result<Grads> {
    let (values, default, dy, g) = (b.x(1), b.x(2), b.dy(0), b.graph());
    let types = b.op().attrs().byte_strings("row_partition_types")?.to_vec();
    let ragged = types
        .iter()
        .filter(|t| t.as_ref() != b"FIRST_DIM_SIZE")
        .count() as i32;
    let partitions: Vec<Output> = (3..b.op().num_inputs()).map(|i| b.x(i)).collect();
    let (shape, flat_shape) = (shape_of(&dy), shape_of(&values));
    let numbers = count_to(&at(&flat_shape, 0));
    let minus = g.constant(-1i32);
    let op = call(
        "RaggedTensorToTensor",
        &[&to(&shape, 1 + ragged), &numbers, &minus],
    );
    let op = op
        .inputs(&partitions)
        .attrs_of(b.op(), &["row_partition_types"]);
    let which = op.output().reshape(&[-1]);
    let is_value = which.not_equal(&minus);
    let flat = dy.reshape_to(&join(&[&ints(g, &[-1]), &from(&shape, 1 + ragged)]));
    let chosen = |mask: &Output| of("Where", &[mask]).squeeze(&[1]);
    let kept = chosen(&is_value);
    let slices = IndexedSlices {
        values: rows(&flat, &kept),
        indices: rows(&which, &kept),
        shape: flat_shape,
    };
    let defaults = rows(&flat, &chosen(&is_value.logical_not()));
    // The default was broadcast to the values' shape: leading dimensions of length 1 count as none.
    let dims = shape_of(&default);
    let ones = dims.equal(&dims.scalar_like(1.0)).cast(DType::Int32);
    let leading = of("Cumprod", &[&ones, &g.constant(0i32)]).sum(());
    let more = rank_of(&defaults) - (rank_of(&default) - leading);
    let sum = sum_over(&defaults, &count_to(&more), false).reshape_to(&dims);
    let mut grads: Grads = vec![None; b.op().num_inputs()];
    grads[1] = Some(Gradient::Sparse(slices));
    grads[2] = Some(sum.into());
    Ok(grads)
}
