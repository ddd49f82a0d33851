//! Ops on tensor lists that look at one element, or at none.

use super::pieces::row;
use super::tensor_list::{TensorList, check_length, given_shape, shown};
use crate::args;
use crate::array::TENSOR_LIST;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{DType, PartialShape, Tensor, Variant};

pub(super) fn register(r: &mut Registry) {
    r.add("EmptyTensorList", empty);
    r.add("TensorListReserve", reserve);
    r.add("TensorListPushBack", push_back);
    r.add("TensorListSetItem", set_item);
    let typed = &[("element_dtype", TENSOR_LIST)];
    r.add_typed("TensorListPushBackBatch", typed, |_| {
        Built::cheap(push_batch)
    });
    r.add_typed("TensorListPopBack", typed, pop_back);
    r.add_typed("TensorListGetItem", typed, get_item);
    r.add("TensorListConcatLists", concat_lists);
    r.add("TensorListResize", |_| Built::cheap(resize));
    r.add("TensorListElementShape", element_shape);
    r.add("TensorListLength", |_| {
        Built::cheap(|ctx| {
            let length = TensorList::of(ctx, 0)?.tensors.len();
            ctx.set_output(0, Tensor::scalar(i32::try_from(length).unwrap_or(i32::MAX)));
            Ok(())
        })
    });
}

fn invalid<T>(text: String) -> Result<T> {
    Err(Status::invalid_argument(text))
}

fn empty(b: &KernelBuilder<'_>) -> Result<Built> {
    let dtype = b.attrs().dtype("element_dtype")?;
    Built::cheap(move |ctx| {
        let max = ctx.input(1)?;
        if !max.shape().is_scalar() {
            return invalid(format!(
                "max_num_elements expected to be a scalar but got shape: {}",
                max.shape()
            ));
        }
        let mut list = TensorList::new(dtype, given_shape(ctx.input(0)?)?, Vec::new());
        list.max = args::int(max)?;
        ctx.set_output(0, list.into_tensor());
        Ok(())
    })
}

fn reserve(b: &KernelBuilder<'_>) -> Result<Built> {
    let dtype = b.attrs().dtype("element_dtype")?;
    Built::cheap(move |ctx| {
        let shape = given_shape(ctx.input(0)?)?;
        let given = ctx.input(1)?;
        if !given.shape().is_scalar() {
            return invalid(format!(
                "The num_elements to reserve must be a tensor size 1, but got {}",
                given.shape()
            ));
        }
        let n = args::int(given)?;
        let Ok(length) = usize::try_from(n) else {
            return invalid(format!(
                "The num_elements to reserve must be a non negative number, but got {n}"
            ));
        };
        check_length(ctx.device(), length)?;
        let list = TensorList::new(dtype, shape, vec![None; length]);
        ctx.set_output(0, list.into_tensor());
        Ok(())
    })
}

fn check_appended(list: &TensorList, tensor: &Tensor, place: &str) -> Result<()> {
    if list.shape.admits(tensor.shape()) {
        return Ok(());
    }
    invalid(format!(
        "Tried to append a tensor with incompatible shape to a list{place}. Op element shape: {} list shape: {}",
        tensor.shape(),
        list.shape
    ))
}

fn push_back(b: &KernelBuilder<'_>) -> Result<Built> {
    let dtype = b.attrs().dtype("element_dtype")?;
    Built::cheap(move |ctx| {
        let list = TensorList::of(ctx, 0)?;
        list.check_type(dtype)?;
        check_appended(list, ctx.input(1)?, "")?;
        let length = list.tensors.len();
        if list.max >= 0 && length as i64 >= list.max {
            return invalid(format!(
                "Tried to push item into a full list list size: {length} max_num_elements: {}",
                list.max
            ));
        }
        let tensor = ctx.take(1)?;
        let mut list = TensorList::take(ctx, 0)?;
        list.tensors.push(Some(tensor));
        ctx.set_output(0, list.into_tensor());
        Ok(())
    })
}

fn push_batch(ctx: &mut OpContext<'_>) -> Result<()> {
    let tensor = ctx.input(1)?.clone();
    let Some(&rows) = tensor.dims().first() else {
        return invalid(format!(
            "Expected tensor to be at least a vector, but saw shape: {}",
            tensor.shape()
        ));
    };
    let lists = ctx.input(0)?.num_elements();
    if rows != lists {
        return invalid(format!(
            "Expected tensor.shape[0] == input_handles.size, but saw {rows} vs. {lists}"
        ));
    }
    let mut handles = ctx.take(0)?;
    for (i, variant) in handles.make_mut_variants()?.iter_mut().enumerate() {
        let Some(list) = variant.downcast::<TensorList>() else {
            return invalid(format!(
                "Input handle at index {i} is not a list. Saw: '{}'",
                shown(Some(variant))
            ));
        };
        if list.dtype != tensor.dtype() {
            return invalid(format!(
                "Invalid data type at index {i}; op elements {} but list elements {}",
                tensor.dtype(),
                list.dtype
            ));
        }
        let element = row(&tensor, i)?;
        check_appended(list, &element, &format!(" at index {i}"))?;
        let mut list = TensorList::out_of(Some(variant))?;
        list.tensors.push(Some(element));
        *variant = Variant::new(list);
    }
    ctx.set_output(0, handles);
    Ok(())
}

fn pop_back(b: &KernelBuilder<'_>) -> Result<Built> {
    let dtype = b.attrs().dtype("element_dtype")?;
    Built::cheap(move |ctx| {
        let list = TensorList::of(ctx, 0)?;
        list.check_type(dtype)?;
        let element = match list.tensors.last() {
            None => return invalid("Trying to pop from an empty list.".into()),
            Some(Some(_)) => None,
            Some(None) => {
                let shape = list.element_shape(ctx, 1)?;
                let Some(shape) = shape.to_shape() else {
                    return invalid(format!(
                        "Trying to read an uninitialized tensor but element_shape is not fully defined.{shape}"
                    ));
                };
                Some(super::values::zeros(ctx, dtype, &shape)?)
            }
        };
        let mut list = TensorList::take(ctx, 0)?;
        let popped = list.tensors.pop().flatten();
        ctx.set_output(0, list.into_tensor());
        if let Some(element) = popped.or(element) {
            ctx.set_output(1, element);
        }
        Ok(())
    })
}

fn get_item(b: &KernelBuilder<'_>) -> Result<Built> {
    let dtype = b.attrs().dtype("element_dtype")?;
    Built::cheap(move |ctx| {
        let list = TensorList::of(ctx, 0)?;
        list.check_type(dtype)?;
        let index = args::int(ctx.input(1)?)?;
        let Some(element) = usize::try_from(index)
            .ok()
            .and_then(|i| list.tensors.get(i))
        else {
            return invalid(format!(
                "Trying to access element {index} in a list with {} elements.",
                list.tensors.len()
            ));
        };
        let element = match element {
            Some(element) => element.clone(),
            None => {
                let mut shape = list.element_shape(ctx, 2)?;
                if shape.to_shape().is_none() {
                    shape = list.refined(shape)?;
                }
                let Some(shape) = shape.to_shape() else {
                    return invalid(format!(
                        "Trying to read an uninitialized tensor but element_shape is not fully defined: {shape} and no list element is set."
                    ));
                };
                super::values::zeros(ctx, dtype, &shape)?
            }
        };
        ctx.set_output(0, element);
        Ok(())
    })
}

fn set_item(b: &KernelBuilder<'_>) -> Result<Built> {
    let dtype = b.attrs().dtype("element_dtype")?;
    let grows = match b.attrs().find("resize_if_index_out_of_bounds") {
        Some(_) => b.attrs().bool("resize_if_index_out_of_bounds")?,
        None => false,
    };
    Built::cheap(move |ctx| {
        let list = TensorList::of(ctx, 0)?;
        list.check_type(dtype)?;
        let (index, item) = (ctx.input(1)?, ctx.input(2)?);
        if !index.shape().is_scalar() {
            return invalid(format!(
                "Expected argument 1 to be a scalar. Received{index:?}"
            ));
        }
        if !list.shape.admits(item.shape()) {
            return invalid(format!(
                "Tried to set a tensor with incompatible shape at a list index. Item element shape: {} list shape: {}",
                item.shape(),
                list.shape
            ));
        }
        let (index, length) = (args::int(index)?, list.tensors.len());
        let at = usize::try_from(index).ok();
        let Some(at) = at.filter(|&i| i < length || grows) else {
            return invalid(format!(
                "Trying to modify element {index} in a list with {length} elements."
            ));
        };
        if at >= length {
            check_length(ctx.device(), at + 1)?;
        }
        let item = ctx.take(2)?;
        let mut list = TensorList::take(ctx, 0)?;
        if at >= length {
            list.tensors.resize(at + 1, None);
        }
        list.tensors[at] = Some(item);
        ctx.set_output(0, list.into_tensor());
        Ok(())
    })
}

fn concat_lists(b: &KernelBuilder<'_>) -> Result<Built> {
    let dtype = b.attrs().dtype("element_dtype")?;
    Built::cheap(move |ctx| {
        let (a, b) = (ctx.input(0)?, ctx.input(1)?);
        if a.shape() != b.shape() {
            return invalid(format!(
                "Expected input_a.shape == input_b.shape, but saw: {} vs. {}",
                a.shape(),
                b.shape()
            ));
        }
        let pairs = a.as_variants()?.iter().zip(b.as_variants()?).enumerate();
        let joined = pairs.map(|(i, (a, b))| concat_pair(dtype, i, a, b));
        let joined = joined.collect::<Result<Vec<Variant>>>()?;
        let out = Tensor::variants(joined, a.shape().clone())?;
        ctx.set_output(0, out);
        Ok(())
    })
}

fn concat_pair(dtype: DType, i: usize, a: &Variant, b: &Variant) -> Result<Variant> {
    let list = |name: &str, v: &Variant| {
        let list: Option<&TensorList> = v.downcast();
        list.cloned().ok_or_else(|| {
            Status::invalid_argument(format!(
                "{name} is not a TensorList at index {i}.  Saw: '{}'",
                shown(Some(v))
            ))
        })
    };
    let (mut first, second) = (list("input_a", a)?, list("input_b", b)?);
    for (name, list) in [("input_a", &first), ("input_b", &second)] {
        if list.dtype != dtype {
            return invalid(format!(
                "{name}[{i}].dtype != element_dtype.  Saw: {} vs. {dtype}",
                list.dtype
            ));
        }
    }
    if first.shape != second.shape {
        return invalid(format!(
            "input_a and input_b TensorList element shapes are not identical at index {i}.  Saw {} vs. {}",
            first.shape, second.shape
        ));
    }
    first.tensors.extend(second.tensors);
    Ok(Variant::new(first))
}

fn resize(ctx: &mut OpContext<'_>) -> Result<()> {
    TensorList::of(ctx, 0)?;
    let size = ctx.input(1)?;
    if !size.shape().is_scalar() {
        return invalid("size must be a scalar".into());
    }
    let size = args::int(size)?;
    let Ok(length) = usize::try_from(size) else {
        return invalid(format!(
            "TensorListSlice expects size to be non-negative. Got: {size}"
        ));
    };
    check_length(ctx.device(), length)?;
    let mut list = TensorList::take(ctx, 0)?;
    list.tensors.resize(length, None);
    ctx.set_output(0, list.into_tensor());
    Ok(())
}

fn element_shape(b: &KernelBuilder<'_>) -> Result<Built> {
    let dtype = b.attrs().dtype("shape_type")?;
    Built::cheap(move |ctx| {
        let shape = shape_tensor(dtype, &TensorList::of(ctx, 0)?.shape)?;
        ctx.set_output(0, shape);
        Ok(())
    })
}

/// A shape as [`given_shape`] reads it.
fn shape_tensor(dtype: DType, shape: &PartialShape) -> Result<Tensor> {
    match shape.dims() {
        None => args::int_tensor(dtype, vec![-1], []),
        Some(dims) => {
            let dims: Vec<i64> = dims.iter().map(|d| d.map_or(-1, |d| d as i64)).collect();
            let rank = dims.len();
            args::int_tensor(dtype, dims, [rank])
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{floats, run_op};
    use downpour_graph::Result;
    use downpour_tensor::{DType, Tensor};

    fn op(name: &str, inputs: Vec<Tensor>) -> Result<Vec<Tensor>> {
        run_op(name, inputs, &[("element_dtype", DType::Float.into())])
    }

    fn empty(max: i32) -> Tensor {
        let inputs = vec![Tensor::scalar(-1i32), Tensor::scalar(max)];
        let attrs = [
            ("element_dtype", DType::Float.into()),
            ("shape_type", DType::Int32.into()),
        ];
        run_op("EmptyTensorList", inputs, &attrs).unwrap().remove(0)
    }

    #[test]
    fn what_was_pushed_is_popped_and_the_limit_holds() {
        let push =
            |list: &Tensor, v: f32| op("TensorListPushBack", vec![list.clone(), floats(&[v])]);
        let one = push(&empty(2), 1.0).unwrap().remove(0);
        let two = push(&one, 2.0).unwrap().remove(0);
        let e = push(&two, 3.0).unwrap_err();
        assert!(
            e.message.starts_with(
                "Tried to push item into a full list list size: 2 max_num_elements: 2"
            ),
            "{}",
            e.message
        );
        let unknown = || Tensor::scalar(-1i32);
        let popped = op("TensorListPopBack", vec![two, unknown()]).unwrap();
        assert_eq!(popped[1].as_slice::<f32>().unwrap(), [2.0]);
        // The list of one element is as it was: pushing to it made a new list.
        let stacked = op("TensorListStack", vec![one, unknown()]).unwrap();
        assert_eq!(stacked[0].dims(), [1, 1]);
    }

    #[test]
    fn a_hostile_length_is_refused() {
        let inputs = vec![Tensor::scalar(-1i32), Tensor::scalar(i32::MAX)];
        let attrs = [
            ("element_dtype", DType::Float.into()),
            ("shape_type", DType::Int32.into()),
        ];
        let e = run_op("TensorListReserve", inputs, &attrs).unwrap_err();
        assert_eq!(e.code, downpour_graph::Code::ResourceExhausted);
    }
}
