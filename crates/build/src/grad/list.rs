//! Gradients of lists of tensors: the gradient of a list is a list of gradients.

use super::{Back, Gradient, Grads, Rule};
use crate::Output;
use downpour_graph::Result;
use downpour_tensor::DType;

pub(super) fn rule(op: &str) -> Option<Rule> {
    Some(match op {
        "TensorListPushBack" => |b| {
            let shape = b.x(1).shape_op();
            let op = b.graph().op("TensorListPopBack").input(&b.dy(0));
            let op = op.input(&shape).attrs_of(b.op(), &["element_dtype"]);
            Ok(op.outputs().into_iter().map(|o| Some(o.into())).collect())
        },
        "TensorListPopBack" => |b| {
            let op = b.graph().op("TensorListPushBack").input(&b.dy(0));
            Ok(vec![Some(op.input(&b.dy(1)).output().into()), None])
        },
        "TensorListStack" => |b| {
            let list = from_tensor(b, &b.dy(0));
            Ok(vec![Some(list.into()), None])
        },
        "TensorListFromTensor" => |b| {
            let op = b.graph().op("TensorListStack").input(&b.dy(0));
            let op = op.input(&rows(&b.x(0)));
            let count = b.x(0).shape().dims().and_then(|d| d.first().copied()?);
            let op = op.attr("element_dtype", b.x(0).dtype());
            let tensor = op.attr("num_elements", count.map_or(-1, |n| n as i64));
            Ok(vec![Some(tensor.output().into()), None])
        },
        "TensorListGetItem" => |b| {
            let list = reserve(b, &b.x(0), b.dy(0).dtype());
            Ok(vec![Some(set(b, &list, &b.x(1), &b.dy(0))), None, None])
        },
        "TensorListSetItem" => set_item,
        "TensorListResize" => |b| {
            let size = length(b, &b.x(0));
            let op = b.graph().op("TensorListResize").input(&b.dy(0));
            Ok(vec![Some(op.input(&size).output().into()), None])
        },
        "TensorListGather" => |b| {
            // An element may have been gathered more than once.
            let (dy, indices) = (b.dy(0), b.x(1));
            let sums = b.graph().op("UnsortedSegmentSum").input(&dy);
            let sums = sums.input(&indices).input(&length(b, &b.x(0))).output();
            let list = reserve(b, &b.x(0), dy.dtype());
            let op = b.graph().op("TensorListScatterIntoExistingList");
            let op = op.input(&list).input(&sums.gather(&indices, 0));
            Ok(vec![Some(op.input(&indices).output().into()), None, None])
        },
        "TensorListScatter" | "TensorListScatterV2" => |b| {
            let mut grads: Grads = vec![None; b.op().num_inputs()];
            grads[0] = Some(gather(b, &b.x(0), &b.x(1)));
            Ok(grads)
        },
        "TensorListScatterIntoExistingList" => |b| {
            let tensor = gather(b, &b.x(1), &b.x(2));
            let op = b.graph().op("TensorListScatterIntoExistingList");
            let op = op.input(&b.dy(0)).input(&b.x(1).zeros_like());
            let list = op.input(&b.x(2)).output();
            Ok(vec![Some(list.into()), Some(tensor), None])
        },
        "TensorListConcat" | "TensorListConcatV2" => concat,
        "TensorListSplit" => split,
        _ => return None,
    })
}

fn set_item(b: &Back) -> Result<Grads> {
    let (dlist, index, item) = (b.dy(0), b.x(1), b.x(2));
    let mut list = set(b, &dlist, &index, &item.zeros_like());
    if b.op().attrs().bool("resize_if_index_out_of_bounds")? {
        let size = length(b, &b.x(0));
        let op = b.graph().op("TensorListResize").input(&list.to_dense());
        list = op.input(&size).output().into();
    }
    let op = b.graph().op("TensorListGetItem").input(&dlist);
    let op = op.input(&index).input(&item.shape_op());
    let item = op.attr("element_dtype", item.dtype()).output();
    Ok(vec![Some(list), None, Some(item.into())])
}

fn concat(b: &Back) -> Result<Grads> {
    let shape = element_shape(b, &b.x(0));
    let op = b.graph().op("TensorListSplit").input(&b.dy(0));
    let list = op.input(&shape).input(&b.y(1)).output();
    let mut grads: Grads = vec![None; b.op().num_inputs()];
    grads[0] = Some(list.into());
    Ok(grads)
}

fn split(b: &Back) -> Result<Grads> {
    let (tensor, lengths) = (b.x(0), b.x(2));
    let any = b.graph().constant([-1i32]);
    let shape = crate::concat(&[any, rows(&tensor)], 0);
    let op = b.graph().op("TensorListConcatV2").input(&b.dy(0));
    let op = op.input(&shape).input(&lengths);
    let tensor = op.attr("element_dtype", tensor.dtype()).output();
    Ok(vec![Some(tensor.into()), None, None])
}

/// The shape of a tensor's slices along its first dimension.
fn rows(tensor: &Output) -> Output {
    let shape = tensor.shape_op();
    let graph = shape.graph();
    let (begin, size) = (graph.constant([1i32]), graph.constant([-1i32]));
    let op = graph.op("Slice").input(&shape).input(&begin);
    op.input(&size).output()
}

fn from_tensor(b: &Back, tensor: &Output) -> Output {
    let op = b.graph().op("TensorListFromTensor").input(tensor);
    op.input(&rows(tensor)).output()
}

fn element_shape(b: &Back, list: &Output) -> Output {
    let op = b.graph().op("TensorListElementShape").input(list);
    op.attr("shape_type", DType::Int32).output()
}

fn length(b: &Back, list: &Output) -> Output {
    b.graph().op("TensorListLength").input(list).output()
}

/// A list of as many elements as another has.
fn reserve(b: &Back, like: &Output, dtype: DType) -> Output {
    let (shape, count) = (element_shape(b, like), length(b, like));
    let op = b.graph().op("TensorListReserve").input(&shape);
    op.input(&count).attr("element_dtype", dtype).output()
}

fn set(b: &Back, list: &Output, index: &Output, item: &Output) -> Gradient {
    let op = b.graph().op("TensorListSetItem").input(list);
    op.input(index).input(item).output().into()
}

/// The elements of the list's gradient that a tensor's slices went to.
fn gather(b: &Back, tensor: &Output, indices: &Output) -> Gradient {
    let op = b.graph().op("TensorListGather").input(&b.dy(0));
    let op = op.input(indices).input(&rows(tensor));
    op.attr("element_dtype", tensor.dtype()).output().into()
}
