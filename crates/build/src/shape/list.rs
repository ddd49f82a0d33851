//! Shapes of tensor lists and maps: what is behind a list's handle is its elements' shape.

use super::Rule::{self, Compute, Pattern};
use super::dims::{concatenate, merge, merge_prefix, rest, shape, size};
use super::{Context, Shapes, invalid, one};
use downpour_graph::Result;
use downpour_tensor::PartialShape;
use smallvec::smallvec;

pub(super) fn rule(op: &str) -> Option<Rule> {
    Some(match op {
        "EmptyTensorList" | "TensorListReserve" => Compute(|c| {
            let element = c.shape_or_any(0)?;
            list(c, element)
        }),
        "TensorListPushBack" => Compute(|c| {
            let element = held(c)?;
            list(c, element)
        }),
        "TensorListPushBackBatch" => Compute(|c| {
            let lists = c.with_rank(0, 1)?;
            let tensor = merge_prefix(&c.at_least(1, 1)?, &lists)?;
            let element = held(c)?;
            list(c, element)?;
            one(shape([tensor
                .dims()
                .and_then(|d| d[0])
                .or(lists.dims().and_then(|d| d[0]))]))
        }),
        "TensorListLength" => Pattern("* -> []"),
        "TensorListPopBack" => Compute(|c| {
            let element = held(c)?;
            c.pass_handle(0, 0);
            Ok(smallvec![shape([]), element])
        }),
        "TensorListStack" => Compute(|c| {
            let element = merge(&held(c)?, &c.shape_or_any(1)?)?;
            let count = size(c.attrs().int("num_elements")?)?;
            one(concatenate(&shape([count]), &element))
        }),
        "TensorListConcat" => Compute(|c| {
            let given = c.attrs().shape("element_shape")?.clone();
            concat(c, given)
        }),
        "TensorListConcatV2" => Compute(|c| {
            let given = c.shape_or_any(1)?;
            concat(c, given)
        }),
        "TensorListSplit" => Compute(|c| {
            let tensor = c.at_least(0, 1)?;
            c.rank(2, 1)?;
            let element = c.shape_or_any(1)?;
            merge(&concatenate(&shape([None]), &rest(&tensor, 1)), &element)?;
            list(c, element)
        }),
        "TensorListFromTensor" => Compute(|c| {
            let element = c.shape_or_any(1)?;
            let element = merge(&rest(&c.input(0), 1), &element)?;
            list(c, element)
        }),
        "TensorListElementShape" => Compute(|c| {
            let rank = c.behind(0).and_then(|b| b.1.rank());
            one(shape([rank]))
        }),
        "TensorListGetItem" => Compute(|c| {
            let element = merge(&held(c)?, &c.shape_or_any(2)?)?;
            one(element)
        }),
        "TensorListSetItem" => Compute(|c| {
            let element = held(c)?;
            merge(&c.input(2), &element)?;
            list(c, element)
        }),
        "TensorListResize" => Compute(|c| {
            c.rank(1, 0)?;
            c.pass_handle(0, 0);
            one(shape([]))
        }),
        "TensorListGather" => Compute(|c| {
            let element = merge(&held(c)?, &c.shape_or_any(2)?)?;
            one(concatenate(&c.input(1), &element))
        }),
        "TensorListScatter" | "TensorListScatterV2" => Compute(|c| {
            let element = c.shape_or_any(2)?;
            list(c, element)
        }),
        "TensorListScatterIntoExistingList" => Compute(|c| {
            c.at_least(1, 1)?;
            c.rank(2, 1)?;
            let element = held(c)?;
            list(c, element)
        }),
        "TensorListConcatLists" => Compute(|c| {
            let both = merge(&c.input(0), &c.input(1))?;
            let wanted = c.attrs().dtype("element_dtype")?;
            let mut element = PartialShape::unknown();
            for (i, name) in ["input_a", "input_b"].iter().enumerate() {
                let Some((dtype, held)) = c.behind(i) else {
                    continue;
                };
                if dtype != wanted {
                    return invalid(format!(
                        "{name}.type != element_dtype: {} vs. {}",
                        dtype.name(),
                        wanted.name()
                    ));
                }
                element = merge(&element, &held)?;
            }
            c.set_behind(0, wanted, element);
            one(both)
        }),
        "EmptyTensorMap" | "TensorMapSize" | "TensorMapInsert" | "TensorMapErase"
        | "TensorMapHasKey" => Pattern("-> []"),
        "TensorMapLookup" | "TensorMapStackKeys" => Pattern("-> ?"),
        _ => return None,
    })
}

/// One list of such elements.
fn list(c: &mut Context<'_>, element: PartialShape) -> Result<Shapes> {
    let dtype = c.attrs().dtype("element_dtype")?;
    c.set_behind(0, dtype, element);
    one(shape([]))
}

/// The shape of the elements of the list that is input 0.
fn held(c: &Context<'_>) -> Result<PartialShape> {
    let wanted = c.attrs().dtype("element_dtype")?;
    match c.behind(0) {
        Some((dtype, _)) if dtype != wanted => invalid(format!(
            "Expected list with element dtype {} but got list with element dtype {}",
            wanted.name(),
            dtype.name()
        )),
        Some((_, element)) => Ok(element),
        None => Ok(PartialShape::unknown()),
    }
}

fn concat(c: &mut Context<'_>, given: PartialShape) -> Result<Shapes> {
    let element = merge(&given, &held(c)?)?;
    let out = concatenate(&shape([None]), &rest(&element, 1));
    Ok(smallvec![out, shape([None])])
}
