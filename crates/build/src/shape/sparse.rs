//! Shapes of sparse and ragged tensors, and of sets: a sparse tensor is indices `[n,r]`, values `[n]`
//! and a shape `[r]`, a ragged one its row splits and its values.

use super::Rule::{self, Compute, Pattern};
use super::dims::{concatenate, elements, merge, merge_dims, of_rank, rest, shape};
use super::{Context, Dim, Shapes, invalid, one};
use downpour_graph::Result;
use downpour_tensor::PartialShape;
use smallvec::smallvec;

pub(super) fn rule(op: &str) -> Option<Rule> {
    sparse(op).or_else(|| sets(op)).or_else(|| ragged(op))
}

fn sparse(op: &str) -> Option<Rule> {
    Some(match op {
        "SparseTensorDenseMatMul" => Compute(matmul),
        "SparseToDense" => Compute(|c| one(c.shape_from(1)?)),
        "SparseConcat" => Compute(concat),
        "SparseCross" | "SparseCrossV2" | "SparseCrossHashed" => Pattern("-> [_,2] [_] [2]"),
        "SparseSplit" => Compute(|c| {
            let out = c.input(3);
            let parts = c.num_outputs() / 3;
            let (indices, values) = (shape([None, elements(&out)]), shape([None]));
            let mut shapes = Shapes::new();
            for part in [indices, values, out] {
                shapes.extend(std::iter::repeat_n(part, parts));
            }
            Ok(shapes)
        }),
        "SparseSlice" => Compute(|c| {
            let out = c.input(2);
            Ok(smallvec![shape([None, elements(&out)]), shape([None]), out])
        }),
        "SparseSliceGrad" => Pattern("* [n,_] -> [n]"),
        "SparseReorder" => Pattern("[n,r] [m] [_] -> [n,r] [m]"),
        "SparseReshape" => Pattern("[n,_] [_] [k] -> [n,k] [k]"),
        "SparseAdd" => Pattern("* * [r] -> [_,r] [_] [r]"),
        "SparseAddGrad" => Pattern("* [a,_] [b,_] -> [a] [b]"),
        "SparseTensorDenseAdd" => Pattern("* * * S -> S"),
        "SparseDenseCwiseAdd" | "SparseDenseCwiseMul" | "SparseDenseCwiseDiv" => {
            Pattern("[n,_] -> [n]")
        }
        "SparseReduceSum" | "SparseReduceMax" => Compute(reduce),
        "SparseReduceSumSparse" | "SparseReduceMaxSparse" => Pattern("->"),
        "SparseSoftmax" => Pattern("[_,_] [n] [_] -> [n]"),
        "SparseSparseMaximum" | "SparseSparseMinimum" => {
            Pattern("[_,_] [_] [_] [_,_] [_] [_] -> [_,_] [_]")
        }
        "SparseFillEmptyRows" => Compute(fill_empty_rows),
        "SparseFillEmptyRowsGrad" => Pattern("[n] [_] -> [n] []"),
        "SerializeSparse" => Pattern("[_,_] [_] [_] -> [3]"),
        "SerializeManySparse" => Pattern("[_,_] [_] [_] -> [_,3]"),
        "DeserializeSparse" => Pattern("[..,3] -> [_,_] [_] [_]"),
        "DeserializeManySparse" => Pattern("[_,3] -> [_,_] [_] [_]"),
        "AddSparseToTensorsMap" => Pattern("[_,_] [_] [_] -> []"),
        "AddManySparseToTensorsMap" => Pattern("[_,_] [_] [_] -> [_]"),
        "TakeManySparseFromTensorsMap" => Pattern("[_] -> [_,_] [_] [_]"),
        "DenseCountSparseOutput" => Compute(|c| {
            let (values, weights) = (c.input(0), c.input(1));
            let rank = match elements(&weights) {
                Some(0) => values.rank(),
                _ => merge(&weights, &values)?.rank(),
            };
            Ok(counts(rank))
        }),
        "SparseCountSparseOutput" => Compute(|c| {
            let rank = c.rank(0, 2)?[1];
            Ok(counts(rank))
        }),
        "RaggedCountSparseOutput" => Compute(|c| Ok(counts(c.input(1).rank().map(|r| r + 1)))),
        "EditDistance" => Compute(edit_distance),
        _ => return None,
    })
}

/// A sparse tensor of counts.
fn counts(rank: Dim) -> Shapes {
    smallvec![shape([None, rank]), shape([None]), shape([rank])]
}

fn matmul(c: &mut Context<'_>) -> Result<Shapes> {
    c.rank(0, 2)?;
    c.rank(1, 1)?;
    let a = c.shape_from(2)?;
    let a = match a.dims() {
        None => [None, None],
        Some([a, b]) => [*a, *b],
        Some(d) => return invalid(format!("Shape must be rank 2 but is rank {}", d.len())),
    };
    let b = c.rank(3, 2)?;
    let flip = |name: &str| c.attrs().bool(name).map(usize::from);
    let (x, y) = (flip("adjoint_a")?, flip("adjoint_b")?);
    merge_dims(a[1 - x], b[y])?;
    one(shape([a[x], b[1 - y]]))
}

fn concat(c: &mut Context<'_>) -> Result<Shapes> {
    let n = c.num_inputs() / 3;
    let (mut rows, mut rank, mut out) = (Some(0usize), None, PartialShape::unknown());
    for i in 0..n {
        let (indices, values) = (c.rank(i, 2)?, c.rank(n + i, 1)?);
        let count = merge_dims(indices[0], values[0])?;
        rows = rows.zip(count).and_then(|(a, b)| a.checked_add(b));
        rank = merge_dims(rank, indices[1])?;
        out = merge(&out, &c.with_rank(2 * n + i, 1)?)?;
    }
    Ok(smallvec![shape([rows, rank]), shape([rows]), out])
}

/// A reduction's axes are its input 3, the shape its input 2.
fn reduce(c: &mut Context<'_>) -> Result<Shapes> {
    let keep = c.attrs().bool("keep_dims")?;
    let (Some(dims), Some(axes)) = (c.known_ints(2), c.known_ints(3)) else {
        return one(PartialShape::unknown());
    };
    let mut reduced = vec![false; dims.len()];
    for a in axes {
        reduced[super::dims::axis(a, dims.len())?] = true;
    }
    let mut out = Vec::new();
    for (d, reduced) in dims.into_iter().zip(reduced) {
        match reduced {
            false => out.push(super::dims::size(d)?),
            true if keep => out.push(Some(1)),
            true => {}
        }
    }
    one(shape(out))
}

fn fill_empty_rows(c: &mut Context<'_>) -> Result<Shapes> {
    let (indices, values) = (c.rank(0, 2)?, c.rank(1, 1)?);
    let rank = c.rank(2, 1)?[0];
    c.rank(3, 0)?;
    let count = merge_dims(indices[0], values[0])?;
    merge_dims(indices[1], rank)?;
    if rank == Some(0) {
        return invalid("dense_shape must not be empty");
    }
    let rows = c
        .shape_from(2)?
        .dims()
        .and_then(|d| d.first().copied().flatten());
    Ok(smallvec![
        shape([None, rank]),
        shape([None]),
        shape([rows]),
        shape([count])
    ])
}

fn edit_distance(c: &mut Context<'_>) -> Result<Shapes> {
    valid(c, 0)?;
    valid(c, 3)?;
    let (Some(a), Some(b)) = (c.known_ints(2), c.known_ints(5)) else {
        return one(PartialShape::unknown());
    };
    if a.len() != b.len() {
        return invalid(format!(
            "Num elements of hypothesis_shape does not match truth_shape: {} vs. {}",
            a.len(),
            b.len()
        ));
    }
    let mut out = Vec::new();
    for (a, b) in a.iter().zip(&b).take(a.len().saturating_sub(1)) {
        out.push(super::dims::size(*a.max(b))?);
    }
    one(shape(out))
}

/// Refuses what cannot be one sparse tensor; its rank, if known.
fn valid(c: &Context<'_>, first: usize) -> Result<Dim> {
    let (indices, values) = (c.rank(first, 2)?, c.rank(first + 1, 1)?);
    let rank = c.rank(first + 2, 1)?[0];
    merge_dims(indices[0], values[0])?;
    merge_dims(indices[1], rank)
}

fn sets(op: &str) -> Option<Rule> {
    Some(match op {
        "DenseToDenseSetOperation" => Compute(|c| {
            let (a, b) = (c.at_least(0, 2)?, c.at_least(1, 2)?);
            let rank = a.rank().or(b.rank());
            if let (Some(x), Some(_)) = (a.dims(), b.dims()) {
                let y = c.rank(1, x.len())?;
                let lead = |d: &[Dim]| shape(d[..d.len() - 1].iter().copied());
                merge(&lead(x), &lead(&y))?;
            }
            Ok(counts(rank))
        }),
        "DenseToSparseSetOperation" => Compute(|c| {
            let rank = valid(c, 1)?;
            let rank = merge_dims(c.at_least(0, 2)?.rank(), rank)?;
            Ok(counts(rank))
        }),
        "SparseToSparseSetOperation" => Compute(|c| {
            let rank = merge_dims(valid(c, 0)?, valid(c, 3)?)?;
            match rank {
                Some(r) if r < 2 => invalid(format!("Input 0, expected rank >= 2, got {r}.")),
                _ => Ok(counts(rank)),
            }
        }),
        "SetSize" => Pattern("->"),
        _ => return None,
    })
}

fn ragged(op: &str) -> Option<Rule> {
    Some(match op {
        "RaggedRange" => Compute(ragged_range),
        "RaggedGather" => Compute(|c| {
            let given = c.attrs().size("PARAMS_RAGGED_RANK")?;
            let made = c.attrs().size("OUTPUT_RAGGED_RANK")?;
            (0..given).try_for_each(|i| c.rank(i, 1).map(|_| ()))?;
            let values = c.at_least(given, 1)?;
            if let Some(indices) = (made + 1).checked_sub(given) {
                c.rank(given + 1, indices)?;
            }
            let mut out = smallvec![shape([None]); made];
            out.push(concatenate(&shape([None]), &rest(&values, 1)));
            Ok(out)
        }),
        "RaggedTensorFromVariant" => Compute(|c| {
            let input = c.attrs().int("input_ragged_rank")?;
            let output = c.attrs().size("output_ragged_rank")?;
            if input >= 0 && c.input(0).rank().is_some() {
                let lead = usize::try_from(output as i64 - input).unwrap_or(0);
                c.rank(0, lead)?;
            }
            let mut out = smallvec![shape([None]); output];
            out.push(PartialShape::unknown());
            Ok(out)
        }),
        "RaggedTensorToVariant" => Compute(|c| {
            let splits = c.attrs().size("RAGGED_RANK")?;
            c.at_least(splits, 1)?;
            (0..splits).try_for_each(|i| c.rank(i, 1).map(|_| ()))?;
            if !c.attrs().bool("batched_input")? {
                return one(shape([]));
            }
            let first = c.input(0).dims().and_then(|d| d.first().copied().flatten());
            // Without splits TensorFlow still counts one row less than there are.
            let rows = first.filter(|_| splits > 0).and_then(|n| n.checked_sub(1));
            one(shape([rows]))
        }),
        "RaggedTensorToVariantGradient" => Compute(|c| one(c.shape_from(2)?)),
        "RaggedTensorToSparse" => Compute(|c| {
            let splits = c.attrs().size("RAGGED_RANK")?;
            if splits < 1 {
                return invalid("Requires RAGGED_RANK>0");
            }
            let values = c.at_least(splits, 1)?;
            (0..splits).try_for_each(|i| c.rank(i, 1).map(|_| ()))?;
            let (rank, count) = (values.rank().map(|r| r + splits), elements(&values));
            Ok(smallvec![
                shape([count, rank]),
                shape([count]),
                shape([rank])
            ])
        }),
        "RaggedTensorToTensor" => Compute(ragged_to_dense),
        "RaggedFillEmptyRows" => Pattern("[n] [n] [] [] -> [_] [_] [_] [n]"),
        "RaggedFillEmptyRowsGrad" => Pattern("[n] [_] -> [n] []"),
        _ => return None,
    })
}

fn ragged_range(c: &mut Context<'_>) -> Result<Shapes> {
    let (mut rows, mut scalars) = (None, 0);
    for i in 0..3 {
        c.at_most(i, 1)?;
        match c.input(i).dims() {
            Some([n]) => rows = merge_dims(rows, *n)?,
            Some(_) => scalars += 1,
            None => {}
        }
    }
    let splits = match (rows, scalars) {
        (None, 3) => Some(2),
        (rows, _) => rows.map(|n| n + 1),
    };
    Ok(smallvec![shape([splits]), shape([None])])
}

/// The dense shape: what is asked for, where it is known, then what the values have.
fn ragged_to_dense(c: &mut Context<'_>) -> Result<Shapes> {
    let (wanted, values) = (c.shape_or_any(0)?, c.input(1));
    let kinds = c.attrs().byte_strings("row_partition_types")?;
    let ragged = match kinds.first() {
        Some(first) if first.as_ref() == b"FIRST_DIM_SIZE" => kinds.len() - 1,
        _ => kinds.len(),
    };
    for (kind, i) in kinds.iter().zip(c.range("row_partition_tensors")?) {
        let size = kind.as_ref() == b"FIRST_DIM_SIZE";
        if c.input(i).rank().is_some_and(|r| r != usize::from(!size)) {
            return invalid(match size {
                true => "FIRST_DIM_SIZE must be a scalar.",
                false => "Row partition must be a vector.",
            });
        }
    }
    let Some(inner) = values.dims() else {
        return one(wanted);
    };
    if let (Some(rank), true) = (c.input(2).rank(), !inner.is_empty())
        && rank >= inner.len()
    {
        return invalid(format!(
            "default_value.shape={} and rt_input.flat_values.shape={values} are incompatible: \
             default_value.rank = {rank} must be less than rt_input.flat_values.rank = {}",
            c.input(2),
            inner.len()
        ));
    }
    let rank = ragged + inner.len();
    if wanted.rank().is_some_and(|r| r != rank) {
        return invalid(format!(
            "shape must have {rank} dimensions, as the ragged tensor has, but is {wanted}"
        ));
    }
    let given = rest(&values, 1.min(inner.len()));
    let whole = concatenate(&of_rank(rank + 1 - inner.len()), &given);
    let mut out = whole.dims().unwrap_or_default().to_vec();
    for (place, wanted) in out.iter_mut().zip(wanted.dims().unwrap_or_default()) {
        *place = merge_dims(*place, *wanted)?;
    }
    one(shape(out))
}
