//! `RaggedCross`: crosses of features that come ragged, sparse or dense, in any order.

use super::cross::{
    Column, Crossed, Values, check_room, counts, feature_hash, hashes, row_starts, words,
};
use super::form::{Places, invalid};
use crate::args::{int_tensor, ints, shape_of};
use downpour_graph::Result;
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{DType, Tensor};
use std::ops::Range;

pub(crate) fn register(r: &mut Registry) {
    r.add("RaggedCross", ragged_cross);
}

/// Where each kind of input is among the node's.
struct Layout {
    ragged_values: Range<usize>,
    ragged_splits: Range<usize>,
    sparse_indices: Range<usize>,
    sparse_values: Range<usize>,
    sparse_shapes: Range<usize>,
    dense: Range<usize>,
}

fn ragged_cross(b: &KernelBuilder<'_>) -> Result<Built> {
    let attrs = b.attrs();
    let order = attrs.str("input_order")?.to_owned();
    let buckets = attrs.int("num_buckets")?;
    let key = attrs.int("hash_key")? as u64;
    // The type asked for decides, not `hashed_output`: TensorFlow's kernels differ by type alone.
    let to_hash = attrs.dtype("out_values_type")? == DType::Int64;
    let splits_type = attrs.dtype("out_row_splits_type")?;
    let ragged = attrs.dtypes("ragged_values_types")?.len();
    let sparse = attrs.size("Nsparse")?;
    let dense = attrs.dtypes("dense_types")?.len();
    let mut at = 0;
    let mut next = |n: usize| {
        at += n;
        at - n..at
    };
    let layout = Layout {
        ragged_values: next(ragged),
        ragged_splits: next(ragged),
        sparse_indices: next(sparse),
        sparse_values: next(sparse),
        sparse_shapes: next(sparse),
        dense: next(dense),
    };
    Built::costly(move |ctx| {
        let columns = columns(ctx, &layout, &order)?;
        check_room(ctx, &columns)?;
        let made = match to_hash {
            true => hashes(&columns, Some(key), buckets, feature_hash)?,
            false => words(&columns, b"_X_")?,
        };
        let mut splits = vec![0];
        let mut total = 0;
        for count in counts(&columns) {
            total += count as i64;
            splits.push(total);
        }
        let values = match made {
            Crossed::Words(words) => {
                let n = words.len();
                Tensor::strings(words, [n])?
            }
            Crossed::Hashes(hashes) => Tensor::vector(hashes),
        };
        let n = splits.len();
        let splits = int_tensor(splits_type, splits, [n])?;
        ctx.set_output(0, values);
        ctx.set_output(1, splits);
        Ok(())
    })
}

/// The inputs as columns of one batch, in the order asked for.
fn columns<'a>(ctx: &'a OpContext<'_>, layout: &Layout, order: &str) -> Result<Vec<Column<'a>>> {
    let ragged = ctx.inputs(layout.ragged_values.clone())?;
    let splits = ctx.inputs(layout.ragged_splits.clone())?;
    let indices = ctx.inputs(layout.sparse_indices.clone())?;
    let values = ctx.inputs(layout.sparse_values.clone())?;
    let shapes = ctx.inputs(layout.sparse_shapes.clone())?;
    let dense = ctx.inputs(layout.dense.clone())?;
    let rank = || invalid("tf.ragged.cross only supports inputs with rank=2.");
    let mut all_starts = Vec::with_capacity(ragged.len());
    for (value, splits) in ragged.iter().zip(&splits) {
        if value.rank() != 1 || splits.rank() != 1 {
            return rank();
        }
        all_starts.push(checked_splits(&ints(splits)?, value.num_elements())?);
    }
    for ((at, value), shape) in indices.iter().zip(&values).zip(&shapes) {
        let is_matrix = at.rank() == 2 && at.dims()[1] == 2;
        if !is_matrix || value.rank() != 1 || shape.rank() != 1 || shape.num_elements() != 2 {
            return rank();
        }
    }
    if dense.iter().any(|t| t.rank() != 2) {
        return rank();
    }
    let rows = batch_size(&all_starts, &shapes, &dense)?;
    ctx.check_alloc(DType::Int64, &shape_of(&[rows])?)?;
    let rows = rows as usize;
    let have = ragged.len() + values.len() + dense.len();
    if order.len() != have {
        return invalid("Invalid length for input_order");
    }
    let mut seen = [0; 3];
    let mut take = |kind: usize, name: &str, have: usize| {
        let at = seen[kind];
        seen[kind] += 1;
        match at < have {
            true => Ok(at),
            false => invalid(format!(
                "input_order \"{order}\" specifies reading a {name} tensor at index {at} from a list of {have} tensors."
            )),
        }
    };
    let mut out = Vec::with_capacity(have);
    for letter in order.bytes() {
        let (values, is_dense, starts) = match letter {
            b'R' => {
                let i = take(0, "ragged", ragged.len())?;
                (ragged[i], false, std::mem::take(&mut all_starts[i]))
            }
            b'S' => {
                let i = take(1, "sparse", values.len())?;
                let places = Places::new(indices[i])?;
                let starts = row_starts(&places, rows, values[i].num_elements());
                (values[i], false, starts)
            }
            b'D' => {
                let i = take(2, "dense", dense.len())?;
                let width = dense[i].dims()[1];
                (dense[i], true, (0..=rows).map(|r| r * width).collect())
            }
            _ => return invalid("Unexpected input_order value."),
        };
        out.push(Column {
            values: Values::of(values)?,
            is_dense,
            starts,
        });
    }
    Ok(out)
}

/// Row splits that cut `count` values into rows.
fn checked_splits(splits: &[i64], count: usize) -> Result<Vec<usize>> {
    let (Some(&first), Some(&last)) = (splits.first(), splits.last()) else {
        return invalid(
            "Invalid ragged splits: ragged splits must have at least one splits, but is empty",
        );
    };
    if first != 0 {
        return invalid(format!(
            "Invalid ragged splits: first element of ragged splits  must be 0 but is {first}"
        ));
    }
    for (i, pair) in splits.windows(2).enumerate() {
        if pair[1] < pair[0] {
            return invalid(format!(
                "Invalid ragged splits: ragged splits must be monotonically increasing, but ragged_splits[{}]={} is smaller than row_splits[{i}]={}",
                i + 1,
                pair[1],
                pair[0]
            ));
        }
    }
    if last != count as i64 {
        return invalid(format!(
            "Invalid ragged splits: last element of ragged splits must be the number of ragged values({count}) but is {last}"
        ));
    }
    Ok(splits.iter().map(|&s| s as usize).collect())
}

/// The rows that all inputs have.
fn batch_size(starts: &[Vec<usize>], shapes: &[&Tensor], dense: &[&Tensor]) -> Result<i64> {
    let mut sizes: Vec<i64> = starts.iter().map(|s| s.len() as i64 - 1).collect();
    for shape in shapes {
        sizes.push(shape.as_slice::<i64>()?[0]);
    }
    sizes.extend(dense.iter().map(|t| t.dims()[0] as i64));
    let first = sizes.first().copied().unwrap_or(0);
    match sizes.iter().all(|s| *s == first) {
        true => Ok(first),
        false => invalid("inputs must all have the same batch dimension size."),
    }
}

#[cfg(test)]
mod tests {
    use super::checked_splits;

    #[test]
    fn splits_must_start_at_zero_ascend_and_end_with_the_values() {
        assert_eq!(checked_splits(&[0, 2, 2, 3], 3).unwrap(), [0, 2, 2, 3]);
        for bad in [&[][..], &[1, 3], &[0, 3, 1, 3], &[0, 2]] {
            assert!(checked_splits(bad, 3).is_err(), "{bad:?}");
        }
    }
}
