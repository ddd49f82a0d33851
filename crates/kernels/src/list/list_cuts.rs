//! Tensor lists made of a tensor's pieces, and tensors made of a list's elements.

use super::pieces::{cut, join, pack, row};
use super::shapes::{merge, split_first, with_first};
use super::tensor_list::{TensorList, check_length, given_shape};
use crate::args;
use crate::array::TENSOR_LIST;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{PartialShape, Shape, Tensor};

pub(super) fn register(r: &mut Registry) {
    let typed = &[("element_dtype", TENSOR_LIST)];
    r.add_typed("TensorListStack", typed, stack);
    r.add_typed("TensorListGather", typed, gather);
    r.add_typed("TensorListConcat", typed, concat);
    r.add_typed("TensorListConcatV2", typed, concat);
    r.add_typed("TensorListFromTensor", typed, |_| Built::cheap(from_tensor));
    r.add_typed("TensorListSplit", typed, |_| Built::cheap(split));
    r.add_typed("TensorListScatter", typed, |_| Built::cheap(scatter));
    r.add_typed("TensorListScatterV2", typed, |_| Built::cheap(scatter));
    r.add_typed("TensorListScatterIntoExistingList", typed, |_| {
        Built::cheap(scatter_into)
    });
}

fn invalid<T>(text: String) -> Result<T> {
    Err(Status::invalid_argument(text))
}

fn stack(b: &KernelBuilder<'_>) -> Result<Built> {
    let dtype = b.attrs().dtype("element_dtype")?;
    let wanted = b.attrs().int("num_elements")?;
    Built::cheap(move |ctx| {
        let list = TensorList::of(ctx, 0)?;
        list.check_type(dtype)?;
        let length = list.tensors.len();
        if wanted != -1 && wanted != length as i64 {
            return invalid(format!(
                "Operation expected a list with {wanted} elements but got a list with {length} elements."
            ));
        }
        let mut shape = list.element_shape(ctx, 1)?;
        if length == 0 && shape.to_shape().is_none() {
            return invalid(format!(
                "Tried to stack elements of an empty list with non-fully-defined element_shape: {shape}"
            ));
        }
        shape = list.refined(shape)?;
        let Some(inner) = shape.to_shape() else {
            return invalid(format!(
                "Tried to stack list which only contains uninitialized tensors and has a non-fully-defined element_shape: {shape}"
            ));
        };
        let chosen = list.tensors.iter().map(Option::as_ref);
        let values = TensorList::filled(ctx, dtype, &inner, chosen)?;
        let parts: Vec<&Tensor> = values.iter().collect();
        let whole = pack(ctx.device(), dtype, &inner, &parts)?;
        ctx.set_output(0, whole);
        Ok(())
    })
}

fn gather(b: &KernelBuilder<'_>) -> Result<Built> {
    let dtype = b.attrs().dtype("element_dtype")?;
    Built::cheap(move |ctx| {
        let list = TensorList::of(ctx, 0)?;
        list.check_type(dtype)?;
        let indices = args::ints(ctx.input(1)?)?;
        let mut shape = list.element_shape(ctx, 2)?;
        if indices.is_empty() && shape.to_shape().is_none() {
            return invalid(format!(
                "Tried to gather 0-elements from a list with non-fully-defined shape: {shape}"
            ));
        }
        let mut chosen = Vec::with_capacity(indices.len());
        for i in indices {
            let Some(element) = usize::try_from(i).ok().and_then(|i| list.tensors.get(i)) else {
                return invalid(format!(
                    "Trying to gather element {i} in a list with {} elements.",
                    list.tensors.len()
                ));
            };
            if let Some(element) = element {
                shape = merge(&shape, &element.shape().into())?;
            }
            chosen.push(element.as_ref());
        }
        let Some(inner) = shape.to_shape() else {
            return invalid(format!(
                "Tried to gather uninitialized tensors from a list with non-fully-defined element_shape: {shape}"
            ));
        };
        let values = TensorList::filled(ctx, dtype, &inner, chosen)?;
        let parts: Vec<&Tensor> = values.iter().collect();
        let whole = pack(ctx.device(), dtype, &inner, &parts)?;
        ctx.set_output(0, whole);
        Ok(())
    })
}

fn concat(b: &KernelBuilder<'_>) -> Result<Built> {
    let dtype = b.attrs().dtype("element_dtype")?;
    // The first form has the shape as an attribute and no sizes for missing elements.
    let declared = match b.attrs().find("element_shape") {
        Some(_) => Some(b.attrs().shape("element_shape")?.clone()),
        None => None,
    };
    Built::cheap(move |ctx| {
        let list = TensorList::of(ctx, 0)?;
        list.check_type(dtype)?;
        let (shape, leading) = match &declared {
            Some(shape) => (merge(shape, &list.shape)?, Vec::new()),
            None => (list.element_shape(ctx, 1)?, args::ints(ctx.input(2)?)?),
        };
        let (first, inner) = rows_shape(list, &shape)?;
        let first = if declared.is_some() { None } else { first };
        let lengths = row_counts(list, first, &leading)?;
        let total = lengths
            .iter()
            .fold(0, |sum: usize, &l| sum.saturating_add(l));
        let mut blanks = Vec::new();
        for (tensor, &length) in list.tensors.iter().zip(&lengths) {
            if tensor.is_none() {
                let shape = with_first(length, &inner)?;
                blanks.push(super::values::zeros(ctx, dtype, &shape)?);
            }
        }
        let mut blank = blanks.iter();
        let parts: Vec<&Tensor> = (list.tensors.iter())
            .filter_map(|t| t.as_ref().or_else(|| blank.next()))
            .collect();
        let whole = join(ctx.device(), dtype, with_first(total, &inner)?, &parts)?;
        ctx.set_output(0, whole);
        let lengths = lengths.iter().map(|&l| l as i64).collect();
        ctx.set_output(1, Tensor::vector(lengths));
        Ok(())
    })
}

/// Checks the elements of a list against `shape`; gives the first dimension if it is known and the
/// others, which must be.
fn rows_shape(list: &TensorList, shape: &PartialShape) -> Result<(Option<usize>, Shape)> {
    let (mut first, mut inner) = (None, PartialShape::unknown());
    if let Some(dims) = shape.dims() {
        let Some((&size, rest)) = dims.split_first() else {
            return invalid(
                "Concat requires elements to be at least vectors, found scalars instead.".into(),
            );
        };
        first = size;
        inner = PartialShape::from_dims(rest.iter().copied());
    }
    if list.tensors.is_empty() && inner.to_shape().is_none() {
        return invalid(format!(
            "All except the first dimension must be fully defined when concating an empty tensor list. element_shape: {inner}"
        ));
    }
    for (i, tensor) in list.tensors.iter().enumerate() {
        let Some(tensor) = tensor else { continue };
        let Some((_, rest)) = split_first(tensor.shape()) else {
            return invalid(format!(
                "Concat saw a scalar shape at index {i} but requires at least vectors."
            ));
        };
        inner = merge(&inner, &(&rest).into())?;
    }
    let Some(known) = inner.to_shape() else {
        return invalid(format!(
            "Trying to concat list with only uninitialized tensors but element_shape_except_first_dim is not fully defined: {inner}"
        ));
    };
    Ok((first, known))
}

/// The number of rows of each element. One that is not there has as many as `leading` says, else
/// `first`, else as many as all the others.
fn row_counts(list: &TensorList, first: Option<usize>, leading: &[i64]) -> Result<Vec<usize>> {
    let count = |t: &Tensor| t.dims().first().copied().unwrap_or(0);
    let mut present = list.tensors.iter().flatten().map(count);
    let common = present.next().filter(|&c| present.all(|other| other == c));
    let mut lengths = Vec::with_capacity(list.tensors.len());
    for (i, tensor) in list.tensors.iter().enumerate() {
        lengths.push(match (tensor, leading.get(i)) {
            (Some(tensor), _) => {
                let actual = count(tensor);
                if let Some(expected) = first.filter(|&f| f != actual) {
                    return invalid(format!(
                        "First entry of element_shape input does not match the first dim of list element at index: {i} Expected: {expected} Actual: {actual}"
                    ));
                }
                actual
            }
            (None, Some(&given)) => usize::try_from(given).map_err(|_| {
                Status::invalid_argument(format!("Invalid value in leading_dims: {given}"))
            })?,
            (None, None) => match first.or(common) {
                Some(length) => length,
                None => {
                    return invalid(format!(
                        "List contains uninitialized tensor at index {i} but leading_dims has only {} elements.",
                        leading.len()
                    ));
                }
            },
        });
    }
    Ok(lengths)
}

/// The shape of a tensor's rows, which must agree with `shape`.
fn row_shape(tensor: &Tensor, shape: &PartialShape) -> Result<(usize, Shape)> {
    let Some((rows, inner)) = split_first(tensor.shape()) else {
        return invalid(format!(
            "Tensor must be at least a vector, but saw shape: {}",
            tensor.shape()
        ));
    };
    if !shape.admits(&inner) {
        return invalid(format!(
            "Specified a list with shape {shape} from a tensor with shape {inner}"
        ));
    }
    Ok((rows, inner))
}

fn from_tensor(ctx: &mut OpContext<'_>) -> Result<()> {
    let tensor = ctx.input(0)?;
    let shape = given_shape(ctx.input(1)?)?;
    let (rows, _) = row_shape(tensor, &shape)?;
    check_length(ctx.device(), rows)?;
    let tensors = (0..rows).map(|i| row(tensor, i).map(Some));
    let list = TensorList::new(tensor.dtype(), shape, tensors.collect::<Result<_>>()?);
    ctx.set_output(0, list.into_tensor());
    Ok(())
}

fn split(ctx: &mut OpContext<'_>) -> Result<()> {
    let (tensor, lengths) = (ctx.input(0)?, ctx.input(2)?);
    let shape = given_shape(ctx.input(1)?)?;
    let Some((rows, inner)) = split_first(tensor.shape()) else {
        return invalid(format!(
            "Tensor must be at least a vector, but saw shape: {}",
            tensor.shape()
        ));
    };
    if lengths.rank() != 1 {
        return invalid(format!(
            "Expected lengths to be a vector, received shape: {}",
            lengths.shape()
        ));
    }
    if let Some(dims) = shape.dims() {
        let Some((_, rest)) = dims.split_first() else {
            return invalid(format!(
                "TensorListSplit requires element_shape to be at least of rank 1, but saw: {shape}"
            ));
        };
        if !PartialShape::from_dims(rest.iter().copied()).admits(&inner) {
            return invalid(format!(
                "tensor shape {} is not compatible with element_shape {shape}",
                tensor.shape()
            ));
        }
    }
    let (mut end, mut counts) = (0usize, Vec::new());
    for length in args::ints(lengths)? {
        let Ok(count) = usize::try_from(length) else {
            return invalid(format!("Invalid value in lengths: {length}"));
        };
        let start = end;
        end = end.saturating_add(count);
        if end > rows {
            return invalid(format!(
                "Attempting to slice [{start}, {end}] from tensor with length {rows}"
            ));
        }
        counts.push(count);
    }
    if end != rows {
        return invalid(format!(
            "Unused values in tensor. Length of tensor: {rows} Values used: {end}"
        ));
    }
    let pieces = cut(tensor, &counts)?.into_iter().map(Some);
    let list = TensorList::new(tensor.dtype(), shape, pieces.collect());
    ctx.set_output(0, list.into_tensor());
    Ok(())
}

/// Puts the rows of `tensor` to `indices`, which must have been checked to be within the list.
fn place(list: &mut TensorList, tensor: &Tensor, indices: &[usize]) -> Result<()> {
    for (i, &at) in indices.iter().enumerate() {
        list.tensors[at] = Some(row(tensor, i)?);
    }
    Ok(())
}

fn non_negative(indices: &Tensor) -> Result<Vec<usize>> {
    let indices = args::ints(indices)?.into_iter().map(usize::try_from);
    indices.collect::<Result<_, _>>().map_err(|_| {
        Status::invalid_argument("Indices in TensorListScatter must all be non-negative.")
    })
}

fn scatter(ctx: &mut OpContext<'_>) -> Result<()> {
    let tensor = ctx.input(0)?;
    let shape = given_shape(ctx.input(2)?)?;
    let (rows, _) = row_shape(tensor, &shape)?;
    let wanted = match ctx.num_inputs() {
        4 => args::int(ctx.input(3)?)?,
        _ => -1,
    };
    if wanted < -1 {
        return invalid(format!(
            "TensorListScatter expects num_elements >= -1, found: {wanted}"
        ));
    }
    let indices = non_negative(ctx.input(1)?)?;
    if indices.len() != rows {
        return invalid(format!(
            "Invalid number of rows in input tensor. Expected: {} Actual: {rows}",
            indices.len()
        ));
    }
    let needed = indices.iter().max().map_or(0, |&m| m.saturating_add(1));
    let length = usize::try_from(wanted).unwrap_or(needed);
    if let Some(i) = indices.iter().find(|&&i| i >= length) {
        return invalid(format!(
            "TensorListScatter: Trying to scatter at index {i} in list with size {length}"
        ));
    }
    check_length(ctx.device(), length)?;
    let mut list = TensorList::new(tensor.dtype(), shape, vec![None; length]);
    place(&mut list, tensor, &indices)?;
    ctx.set_output(0, list.into_tensor());
    Ok(())
}

fn scatter_into(ctx: &mut OpContext<'_>) -> Result<()> {
    let list = TensorList::of(ctx, 0)?;
    let tensor = ctx.input(1)?.clone();
    if tensor.dtype() != list.dtype {
        return invalid(format!(
            "Invalid data types; input tensor type: {} list element_type: {}",
            tensor.dtype(),
            list.dtype
        ));
    }
    let Some(&rows) = tensor.dims().first() else {
        return invalid(format!(
            "Tensor must be at least a vector, but saw shape: {}",
            tensor.shape()
        ));
    };
    let given = ctx.input(2)?;
    if given.num_elements() != rows {
        return invalid(format!(
            "Expected len(indices) == tensor.shape[0], but saw: {} vs. {rows}",
            given.num_elements()
        ));
    }
    // TensorFlow ends the process on a negative index.
    let indices = non_negative(given)?;
    let needed = indices.iter().max().map_or(0, |&m| m.saturating_add(1));
    check_length(ctx.device(), needed)?;
    let mut list = TensorList::take(ctx, 0)?;
    if needed > list.tensors.len() {
        list.tensors.resize(needed, None);
    }
    place(&mut list, &tensor, &indices)?;
    ctx.set_output(0, list.into_tensor());
    Ok(())
}
