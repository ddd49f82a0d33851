//! `RaggedTensorToTensor`: a ragged tensor padded to a dense one. Partitions come from a user;
//! an element that belongs nowhere is left out, never written outside the result.

use super::form::invalid;
use crate::args::ints;
use crate::array::COMMON_AND_STRING;
use crate::array::units::{Unit, room, with_unit};
use crate::types::INDEX;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{PartialShape, Shape, Tensor};

pub(crate) fn register(r: &mut Registry) {
    let types = [
        ("T", COMMON_AND_STRING),
        ("Tindex", INDEX),
        ("Tshape", INDEX),
    ];
    r.add_typed("RaggedTensorToTensor", &types, to_tensor);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    FirstDimSize,
    ValueRowIds,
    RowSplits,
}

fn to_tensor(b: &KernelBuilder<'_>) -> Result<Built> {
    let mut kinds = Vec::new();
    for kind in b.attrs().byte_strings("row_partition_types")? {
        kinds.push(match &kind[..] {
            b"FIRST_DIM_SIZE" => Kind::FirstDimSize,
            b"VALUE_ROWIDS" => Kind::ValueRowIds,
            b"ROW_SPLITS" => Kind::RowSplits,
            other => {
                return invalid(format!(
                    "Unknown string for partition info type: {}",
                    String::from_utf8_lossy(other)
                ));
            }
        });
    }
    Built::cheap(move |ctx| pad(ctx, &kinds))
}

fn pad(ctx: &mut OpContext<'_>, kinds: &[Kind]) -> Result<()> {
    let (wanted, values, default) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    let partitions: Vec<Vec<i64>> = ctx
        .inputs(3..ctx.num_inputs())?
        .into_iter()
        .map(ints)
        .collect::<Result<_>>()?;
    let (Some(&kind), Some(first)) = (kinds.first(), partitions.first()) else {
        return invalid("No row_partition_types given.");
    };
    // A leading size is no ragged dimension of its own: it counts the rows of the next one.
    let lead = usize::from(kind == Kind::FirstDimSize);
    let rows = match (kind, first.as_slice()) {
        (Kind::FirstDimSize, [n]) => *n,
        (Kind::RowSplits, [_, ..]) => first.len() as i64 - 1,
        (Kind::ValueRowIds, _) => {
            return invalid("Cannot handle VALUE_ROWIDS in first dimension.");
        }
        _ => return invalid("The first row partition is empty."),
    };
    let ragged = kinds.len() - lead;
    if values.rank() == 0 {
        return invalid("values must not be a scalar");
    }
    let inner = &values.dims()[1..];
    let wanted = wanted_shape(wanted, ragged, inner)?;
    check_default(default, values)?;
    check_values(*kinds.last().unwrap_or(&kind), &partitions, values)?;
    let mut dims = vec![wanted[0].map_or(rows, |n| n as i64)];
    for (i, kind) in kinds.iter().enumerate().skip(lead) {
        let d = 1 + i - lead;
        dims.push(match wanted[d] {
            Some(n) => n as i64,
            None => widest(*kind, &partitions[i])?,
        });
    }
    dims.extend(inner.iter().map(|&d| d as i64));
    let shape = crate::args::shape_of(&dims)?;
    ctx.check_alloc(values.dtype(), &shape)?;
    let places = places(kinds, &partitions, &shape, rows, lead, values.dims()[0])?;
    let out = fill(ctx, values, default, &places, shape)?;
    ctx.set_output(0, out);
    Ok(())
}

/// The shape asked for, all dimensions unknown if none was.
fn wanted_shape(t: &Tensor, ragged: usize, inner: &[usize]) -> Result<Vec<Option<usize>>> {
    let rank = 1 + ragged + inner.len();
    if t.rank() == 0 {
        return match ints(t)?.as_slice() {
            [-1] => Ok(vec![None; rank]),
            _ => invalid(
                "The only valid scalar shape tensor is the fully unknown shape specified as -1.",
            ),
        };
    }
    let shape =
        PartialShape::checked(ints(t)?).map_err(|e| Status::invalid_argument(e.to_string()))?;
    let dims = shape.dims().unwrap_or(&[]).to_vec();
    if dims.len() != rank {
        return invalid(format!(
            "rt_input.shape and shape={shape} are incompatible: rt_input.rank = {rank} but shape.rank = {}",
            dims.len()
        ));
    }
    for (d, &n) in inner.iter().enumerate() {
        let d = d + 1 + ragged;
        if let Some(want) = dims[d].filter(|want| *want != n) {
            return invalid(format!(
                "rt_input.shape and shape={shape} are incompatible: rt_input.shape[{d}] = {n} but shape[{d}] = {want}"
            ));
        }
    }
    Ok(dims)
}

/// Refuses a last partition that speaks of more values than there are. TensorFlow reads whatever
/// lies behind them in memory.
fn check_values(kind: Kind, partitions: &[Vec<i64>], values: &Tensor) -> Result<()> {
    let claimed = match (kind, partitions.last().map(Vec::as_slice)) {
        (Kind::RowSplits, Some([.., end])) => *end,
        (Kind::ValueRowIds, Some(ids)) => ids.len() as i64,
        _ => return Ok(()),
    };
    let given = values.dims()[0];
    if claimed > given as i64 {
        return invalid(format!(
            "The last row partition speaks of {claimed} values, but only {given} are given."
        ));
    }
    Ok(())
}

/// The default must broadcast to one value.
fn check_default(default: &Tensor, values: &Tensor) -> Result<()> {
    let head = format!(
        "default_value.shape={} and rt_input.flat_values.shape={} are incompatible: ",
        default.shape(),
        values.shape()
    );
    if default.rank() >= values.rank() {
        return invalid(format!(
            "{head}default_value.rank = {}  must be less than rt_input.flat_values.rank = {}",
            default.rank(),
            values.rank()
        ));
    }
    let skip = values.rank() - default.rank();
    for (i, (&d, &v)) in default
        .dims()
        .iter()
        .zip(&values.dims()[skip..])
        .enumerate()
    {
        if d != 1 && d != v {
            return invalid(format!(
                "{head}default_value.shape[{i}] = {d} but rt_input.flat_values.shape[{}] = {v}",
                i + skip
            ));
        }
    }
    Ok(())
}

/// The longest row of a partition.
fn widest(kind: Kind, partition: &[i64]) -> Result<i64> {
    if kind == Kind::RowSplits {
        let widths = partition.windows(2).map(|w| w[1].saturating_sub(w[0]));
        return Ok(widths.max().unwrap_or(0).max(0));
    }
    let (mut best, mut run) = (0, 0);
    for (i, id) in partition.iter().enumerate() {
        run = if i > 0 && partition[i - 1] == *id {
            run + 1
        } else {
            1
        };
        best = best.max(run);
    }
    Ok(best)
}

/// Where each value goes, in units of one value; `None` leaves it out.
fn places(
    kinds: &[Kind],
    partitions: &[Vec<i64>],
    shape: &Shape,
    rows: i64,
    lead: usize,
    values: usize,
) -> Result<Vec<Option<usize>>> {
    let ragged = kinds.len() - lead;
    let step = |d: usize| shape[d + 1..=ragged].iter().product::<usize>();
    // Rows may claim more values than there are; what is never filled is not listed.
    let limit = partitions.iter().map(Vec::len).max().unwrap_or(0) + values;
    let mut parents = Parents::Rows {
        count: usize::try_from(rows).unwrap_or(0),
        size: shape[0],
        step: step(0),
    };
    for (d, i) in (lead..kinds.len()).enumerate() {
        let (size, step) = (shape[d + 1], step(d + 1));
        let partition = &partitions[i];
        parents = Parents::Places(match kinds[i] {
            Kind::RowSplits => by_splits(partition, &parents, size, step, limit)?,
            _ => by_rows(partition, &parents, size, step)?,
        });
    }
    Ok(match parents {
        Parents::Places(mut places) => {
            places.truncate(values);
            places
        }
        Parents::Rows { count, .. } => (0..count.min(values)).map(|r| parents.get(r)?).collect(),
    })
}

/// Where the rows of a dimension begin in the result.
enum Parents {
    /// The first dimension: a user may name any number of rows, so they are not listed.
    Rows {
        count: usize,
        size: usize,
        step: usize,
    },
    Places(Vec<Option<usize>>),
}

impl Parents {
    fn len(&self) -> usize {
        match self {
            Parents::Rows { count, .. } => *count,
            Parents::Places(places) => places.len(),
        }
    }

    /// The place of row `r` if there is such a row; it may have none.
    fn get(&self, r: usize) -> Option<Option<usize>> {
        match self {
            Parents::Rows { count, size, step } => {
                (r < *count).then(|| (r < *size).then(|| r * step))
            }
            Parents::Places(places) => places.get(r).copied(),
        }
    }
}

fn by_splits(
    splits: &[i64],
    parents: &Parents,
    size: usize,
    step: usize,
    limit: usize,
) -> Result<Vec<Option<usize>>> {
    let mut out = Vec::new();
    for (row, w) in splits.windows(2).enumerate() {
        let length = w[1].checked_sub(w[0]).and_then(|n| usize::try_from(n).ok());
        let Some(length) = length else {
            return invalid("Invalid row split size.");
        };
        let parent = parents.get(row).flatten();
        for j in 0..length.min(limit.saturating_sub(out.len())) {
            out.push(parent.filter(|_| j < size).map(|p| p + j * step));
        }
    }
    Ok(out)
}

fn by_rows(ids: &[i64], parents: &Parents, size: usize, step: usize) -> Result<Vec<Option<usize>>> {
    let mut out = Vec::with_capacity(ids.len());
    let (mut column, mut current) = (0, None);
    for (i, &id) in ids.iter().enumerate() {
        if i > 0 && ids[i - 1] == id {
            column += 1;
        } else {
            column = 0;
            current = match usize::try_from(id).ok().and_then(|id| parents.get(id)) {
                Some(parent) => parent,
                None => {
                    return invalid(format!(
                        "Got next_value_rowid={id} which is not less than {}",
                        parents.len()
                    ));
                }
            };
        }
        out.push(current.filter(|_| column < size).map(|p| p + column * step));
    }
    Ok(out)
}

fn fill(
    ctx: &OpContext<'_>,
    values: &Tensor,
    default: &Tensor,
    places: &[Option<usize>],
    shape: Shape,
) -> Result<Tensor> {
    let dtype = values.dtype();
    let inner = &values.dims()[1..];
    let row: usize = inner.iter().product();
    let from: Vec<usize> = {
        // Which element of the default each element of a value falls back to.
        let strides = default.shape().strides();
        let skip = inner.len() - default.rank();
        let at = |cell: usize| {
            let (mut rest, mut offset) = (cell, 0);
            for d in (0..inner.len()).rev() {
                let i = rest % inner[d];
                rest /= inner[d];
                if d >= skip && default.dims()[d - skip] != 1 {
                    offset += i * strides[d - skip];
                }
            }
            offset
        };
        (0..row).map(at).collect()
    };
    with_unit!(dtype, U => {
        let (values, default) = (U::view(values)?, U::view(default)?);
        let pad: Vec<U> = from.iter().map(|&i| default[i].clone()).collect();
        let total = shape.num_elements();
        let mut out: Vec<U> = room(ctx, dtype, &shape)?;
        // As TensorFlow copies: the result only ever grows, a value whose place is already
        // filled follows the one before it.
        for (i, place) in places.iter().enumerate() {
            let Some(place) = *place else { continue };
            while out.len() < place * row && out.len() < total {
                out.extend_from_slice(&pad);
            }
            if out.len() < total {
                out.extend_from_slice(&values[i * row..(i + 1) * row]);
            }
        }
        while row > 0 && out.len() < total {
            out.extend_from_slice(&pad);
        }
        U::tensor(dtype, out, shape)
    })
}

#[cfg(test)]
mod tests {
    use crate::testing::{floats, run_op};
    use downpour_graph::{AttrList, AttrValue, Result};
    use downpour_tensor::{DType, Tensor};

    fn run(shape: &[i64], parts: Vec<Tensor>, kinds: &[&'static str]) -> Result<Tensor> {
        let mut inputs = vec![
            Tensor::vector(shape.to_vec()),
            floats(&[1.0, 2.0, 3.0]),
            Tensor::scalar(9.0f32),
        ];
        let n = parts.len() as i64;
        inputs.extend(parts);
        let kinds = kinds.iter().map(|k| (*k).into()).collect();
        let attrs = [
            ("T", DType::Float.into()),
            ("Tindex", DType::Int64.into()),
            ("Tshape", DType::Int64.into()),
            ("num_row_partition_tensors", n.into()),
            ("row_partition_types", AttrValue::List(AttrList::Str(kinds))),
        ];
        Ok(run_op("RaggedTensorToTensor", inputs, &attrs)?.remove(0))
    }

    #[test]
    fn rows_are_padded_or_cut() {
        let splits = || vec![Tensor::vector(vec![0i64, 2, 2, 3])];
        let out = run(&[-1, -1], splits(), &["ROW_SPLITS"]).unwrap();
        assert_eq!(out.dims(), [3, 2]);
        assert_eq!(
            out.as_slice::<f32>().unwrap(),
            [1.0, 2.0, 9.0, 9.0, 3.0, 9.0]
        );
        let out = run(&[2, 1], splits(), &["ROW_SPLITS"]).unwrap();
        assert_eq!(out.as_slice::<f32>().unwrap(), [1.0, 9.0]);
        let ids = vec![Tensor::scalar(3i64), Tensor::vector(vec![0i64, 2, 2])];
        let out = run(&[-1, -1], ids, &["FIRST_DIM_SIZE", "VALUE_ROWIDS"]).unwrap();
        assert_eq!(
            out.as_slice::<f32>().unwrap(),
            [1.0, 9.0, 9.0, 9.0, 2.0, 3.0]
        );
    }

    #[test]
    fn hostile_partitions_are_refused() {
        let huge = vec![Tensor::vector(vec![0i64, 1 << 60])];
        assert!(run(&[-1, -1], huge, &["ROW_SPLITS"]).is_err());
        let beyond = vec![Tensor::vector(vec![0i64, 2, 4])];
        let error = run(&[-1, -1], beyond, &["ROW_SPLITS"]).unwrap_err();
        assert!(error.message.contains("only 3 are given"), "{error}");
        let down = vec![Tensor::vector(vec![0i64, 2, 1, 3])];
        assert!(run(&[-1, -1], down, &["ROW_SPLITS"]).is_err());
        let many = vec![Tensor::scalar(1i64 << 60), Tensor::vector(vec![0i64, 1])];
        let out = run(&[-1, 0], many, &["FIRST_DIM_SIZE", "VALUE_ROWIDS"]).unwrap();
        assert_eq!(out.dims(), [1 << 60, 0]);
        let ids = vec![Tensor::scalar(3i64), Tensor::vector(vec![0i64, -2, 7])];
        assert!(run(&[-1, -1], ids, &["FIRST_DIM_SIZE", "VALUE_ROWIDS"]).is_err());
    }
}
