//! Starting a model warm from another's checkpoint: which line of an old vocabulary each line of a
//! new one was, and a saved matrix with its rows and columns moved accordingly.

use super::Table;
use super::text_file::{self, Spec};
use crate::io::{path, storage};
use downpour_formats::bundle::BundleReader;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{DType, Shape, Tensor};
use std::collections::HashMap;

pub(super) fn register(r: &mut Registry) {
    r.add("GenerateVocabRemapping", remapping);
    r.add("LoadAndRemapMatrix", load);
}

/// The file that input `i` names.
fn file<'a>(ctx: &'a OpContext<'_>, i: usize, name: &str) -> Result<&'a str> {
    let tensor = ctx.input(i)?;
    match (tensor.rank(), tensor.as_strings()?) {
        (0, [file]) if file.is_empty() => Err(Status::invalid_argument(
            "new vocab filename cannot be empty.",
        )),
        (0, [file]) => path(file),
        _ => Err(Status::invalid_argument(format!(
            "{name} should be a single string, but got {}",
            tensor.shape()
        ))),
    }
}

fn remapping(b: &KernelBuilder<'_>) -> Result<Built> {
    let (offset, count) = (
        b.attrs().size("new_vocab_offset")?,
        b.attrs().size("num_new_vocab")?,
    );
    let lines = |key_index, value_index, vocab_size| Spec {
        key_index,
        value_index,
        vocab_size,
        delimiter: b'\t',
        offset: 0,
    };
    let by_number = lines(-1, -2, -1);
    let by_word = lines(-2, -1, b.attrs().int("old_vocab_size")?);
    Built::costly(move |ctx| {
        let new = Table::fixed(DType::Int64, DType::String);
        let new_file = file(ctx, 0, "new_vocab_file")?;
        text_file::initialize(&new, ctx.device(), new_file, &by_number)?;
        if offset.saturating_add(count) > new.len() {
            return Err(Status::invalid_argument(
                "lookup table size must be larger than last new vocab entry's line",
            ));
        }
        let old = Table::fixed(DType::String, DType::Int64);
        let old_file = file(ctx, 1, "old_vocab_file")?;
        text_file::initialize(&old, ctx.device(), old_file, &by_word)?;
        let ids: Vec<i64> = (offset..offset + count).map(|id| id as i64).collect();
        let words = new.find(&Tensor::vector(ids), &Tensor::string(""))?;
        let found = old.find(&words, &Tensor::scalar(-1i64))?;
        let present = found.as_slice::<i64>()?.iter().filter(|&&id| id != -1);
        let present = present.count() as i32;
        ctx.set_output(0, found);
        ctx.set_output(1, Tensor::scalar(present));
        Ok(())
    })
}

/// From old ids to new ones.
fn inverse(remapping: &[i64]) -> Result<HashMap<i64, usize>> {
    let mut new = HashMap::new();
    for (i, &old) in remapping.iter().enumerate().filter(|(_, old)| **old >= 0) {
        if let Some(other) = new.insert(old, i) {
            return Err(Status::unimplemented(format!(
                "Old ID {old} is mapped to both new ID {other} and {i}, which is not supported."
            )));
        }
    }
    Ok(new)
}

fn vector<'a>(ctx: &'a OpContext<'_>, i: usize, name: &str) -> Result<&'a [i64]> {
    let tensor = ctx.input(i)?;
    if tensor.rank() != 1 {
        return Err(Status::invalid_argument(format!(
            "{name} must be a vector, got shape {}",
            tensor.shape()
        )));
    }
    Ok(tensor.as_slice()?)
}

fn text<'a>(ctx: &'a OpContext<'_>, i: usize, name: &str) -> Result<&'a str> {
    let tensor = ctx.input(i)?;
    match tensor.as_strings()? {
        [one] => path(one),
        _ => Err(Status::invalid_argument(format!(
            "The `{name}` tensor must have exactly one element, got tensor of shape {}.",
            tensor.shape()
        ))),
    }
}

fn load(b: &KernelBuilder<'_>) -> Result<Built> {
    let (rows, cols) = (b.attrs().size("num_rows")?, b.attrs().size("num_cols")?);
    Built::costly(move |ctx| {
        let row_ids = vector(ctx, 2, "row_remapping")?;
        if row_ids.len() != rows {
            return Err(Status::invalid_argument(format!(
                "Size of row_remapping is {} instead of being equal to num_rows={rows}",
                row_ids.len()
            )));
        }
        inverse(row_ids)?;
        let col_ids = vector(ctx, 3, "col_remapping")?;
        if !col_ids.is_empty() && col_ids.len() != cols {
            return Err(Status::invalid_argument(format!(
                "Provided col_remapping, but its size is {} instead of being equal to num_cols={cols}",
                col_ids.len()
            )));
        }
        inverse(col_ids)?;
        let old = old_matrix(ctx, cols, col_ids.is_empty())?;
        let out = moved(ctx, &old, (rows, cols), row_ids, col_ids)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// The saved matrix.
fn old_matrix(ctx: &OpContext<'_>, cols: usize, same_cols: bool) -> Result<Tensor> {
    let (prefix, name) = (text(ctx, 0, "ckpt_path")?, text(ctx, 1, "old_tensor_name")?);
    let reader = BundleReader::open(storage(ctx.device()), prefix)?;
    let info = reader.info(name)?;
    if info.dtype != DType::Float {
        return Err(Status::invalid_argument(format!(
            "Tensor {name} has invalid type {} instead of expected type float",
            info.dtype
        )));
    }
    let &[_, width] = info.shape.dims() else {
        return Err(Status::invalid_argument(format!(
            "Tensor {name} has shape {} of invalid rank {} instead of expected shape of rank 2.",
            info.shape,
            info.shape.rank()
        )));
    };
    if same_cols && width != cols {
        return Err(Status::invalid_argument(format!(
            "Tensor {name} has shape {}, where the size of its 2nd dimension is {width} instead of being equal to num_cols={cols}",
            info.shape
        )));
    }
    ctx.check_alloc(DType::Float, &info.shape)?;
    reader.read(name)
}

/// The new matrix: cells of old rows and columns, and initial values for the rest.
fn moved(
    ctx: &OpContext<'_>,
    old: &Tensor,
    (rows, cols): (usize, usize),
    row_ids: &[i64],
    col_ids: &[i64],
) -> Result<Tensor> {
    let (values, dims) = (old.as_slice::<f32>()?, old.dims());
    let &[height, width] = dims else {
        return Err(Status::internal("the matrix is none"));
    };
    let shape = Shape::from([rows, cols]);
    let mut out: Vec<f32> = ctx.vec(&shape)?;
    let initial = ctx.input(4)?.as_slice::<f32>()?;
    let mut fresh = initial.iter();
    for &row in row_ids {
        if usize::try_from(row).is_ok_and(|row| row >= height) {
            return Err(Status::invalid_argument(format!(
                "row {row} to load is beyond the {height} rows of the saved matrix"
            )));
        }
        for j in 0..cols {
            let col = col_ids.get(j).copied().unwrap_or(j as i64);
            if row < 0 || col < 0 {
                let value = fresh.next().ok_or_else(|| {
                    Status::invalid_argument(format!(
                        "initializing_values contained {} elements, but more missing values remain.",
                        initial.len()
                    ))
                })?;
                out.push(*value);
                continue;
            }
            // A column that was never saved is left as it is, which is zero here.
            let at = usize::try_from(col).ok().filter(|&col| col < width);
            let cell = at.and_then(|col| values.get(row as usize * width + col));
            out.push(cell.copied().unwrap_or(0.0));
        }
    }
    let unused = fresh.len();
    if unused > 0 {
        return Err(Status::invalid_argument(format!(
            "initializing_values contained {} elements, but only {} elements were used to fill in missing values.",
            initial.len(),
            initial.len() - unused
        )));
    }
    Ok(Tensor::from_vec(out, shape)?)
}
