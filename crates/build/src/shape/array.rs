//! Shapes of operations that make, join, stretch and rearrange tensors.

use super::Rule::{self, Compute, Pattern};
use super::dims::{
    axis, concatenate, dims_of, divide, elements, merge, merge_dims, merge_prefix, multiply,
    of_rank, replace, rest, shape, size,
};
use super::{Context, Dim, Shapes, invalid, one};
use downpour_graph::Result;
use downpour_tensor::PartialShape;
use smallvec::smallvec;

pub(super) fn rule(op: &str) -> Option<Rule> {
    made(op).or_else(|| arranged(op))
}

fn made(op: &str) -> Option<Rule> {
    Some(match op {
        "StopGradient"
        | "PreventGradient"
        | "ZerosLike"
        | "OnesLike"
        | "RefIdentity"
        | "Snapshot"
        | "DebugGradientIdentity"
        | "GuaranteeConst"
        | "DeepCopy"
        | "InplaceAdd"
        | "InplaceSub"
        | "InplaceUpdate"
        | "RandomShuffle" => Pattern("S -> S"),
        "Identity" => Compute(|c| {
            c.pass_handle(0, 0);
            one(c.input(0))
        }),
        "IdentityN" => Compute(|c| {
            (0..c.num_outputs()).for_each(|i| c.pass_handle(i, i as u32));
            Ok((0..c.num_outputs()).map(|i| c.input(i)).collect())
        }),
        "Const" => Compute(|c| one(c.attrs().tensor("value")?.shape().into())),
        "_EagerConst" => Pattern("S -> S"),
        "ImmutableConst" | "FakeParam" | "PlaceholderV2" | "Placeholder" => {
            Compute(|c| one(c.attrs().shape("shape")?.clone()))
        }
        "PlaceholderWithDefault" => Compute(|c| {
            let wanted = c.attrs().shape("shape")?.clone();
            merge(&c.input(0), &wanted)?;
            one(wanted)
        }),
        "EnsureShape" => Compute(|c| {
            let wanted = c.attrs().shape("shape")?.clone();
            one(merge(&c.input(0), &wanted)?)
        }),
        "Shape" => Compute(|c| one(shape([c.input(0).rank()]))),
        "ShapeN" => Compute(|c| {
            let ranks = (0..c.num_outputs()).map(|i| shape([c.input(i).rank()]));
            Ok(ranks.collect())
        }),
        "Size" | "Rank" | "ToBool" => Pattern("* -> []"),
        "DeviceIndex" => Pattern("-> []"),
        "Fill" => Compute(|c| {
            c.rank(1, 0)?;
            if c.known_ints(0).is_some_and(|d| d.iter().any(|&d| d < 0)) {
                return invalid("Fill dimensions must be >= 0");
            }
            one(c.shape_from(0)?)
        }),
        "Empty" => Compute(|c| one(c.shape_from(0)?)),
        "BroadcastTo" => Compute(broadcast_to),
        "BroadcastArgs" => Compute(|c| {
            let (a, b) = (c.rank(0, 1)?[0], c.rank(1, 1)?[0]);
            one(shape([a.zip(b).map(|(a, b)| a.max(b))]))
        }),
        "BroadcastGradientArgs" => Pattern("[_] [_] -> [_] [_]"),
        "ConcatOffset" => Compute(|c| Ok((1..c.num_inputs()).map(|i| c.input(i)).collect())),
        "Where" => Compute(|c| one(shape([None, c.input(0).rank()]))),
        "OneHot" => Compute(one_hot),
        "ListDiff" => Pattern("[_] [_] -> [_] [_]"),
        "Unique" => Pattern("[n] -> [_] [n]"),
        "UniqueWithCounts" => Pattern("S -> [_] S [_]"),
        "UniqueV2" | "UniqueWithCountsV2" => Compute(unique),
        "UnravelIndex" => Compute(|c| {
            let rank = c.rank(1, 1)?[0];
            let indices = c.input(0);
            one(match indices.rank() {
                None => PartialShape::unknown(),
                Some(0) => shape([rank]),
                Some(_) => shape([rank, elements(&indices)]),
            })
        }),
        "LowerBound" | "UpperBound" => Pattern("[_,_] [n,m] -> [n,m]"),
        "Fingerprint" => Compute(fingerprint),
        "Bitcast" => Compute(bitcast),
        _ => return None,
    })
}

fn arranged(op: &str) -> Option<Rule> {
    Some(match op {
        "Reverse" => Compute(|c| {
            let flags = c.rank(1, 1)?[0];
            match flags {
                Some(n) if n > 8 => {
                    invalid("reverse does not work on tensors with more than 8 dimensions")
                }
                Some(n) => one(c.with_rank(0, n)?),
                None => one(c.input(0)),
            }
        }),
        "ReverseV2" => Compute(reverse),
        "ReverseSequence" => Compute(reverse_sequence),
        "InvertPermutation" => Pattern("[n] -> [n]"),
        "Reshape" => Compute(reshape),
        "ExpandDims" => Compute(expand_dims),
        "Squeeze" => Compute(squeeze),
        "Transpose" | "ConjugateTranspose" => Compute(transpose),
        "Pack" => Compute(pack),
        "Unpack" => Compute(unpack),
        "ParallelConcat" => Compute(parallel_concat),
        "ConcatV2" => Compute(|c| {
            let last = c.num_inputs().saturating_sub(1);
            concat(c, 0..last, last)
        }),
        "Concat" => Compute(|c| concat(c, 1..c.num_inputs(), 0)),
        "Tile" => Compute(tile),
        "Roll" => Compute(|c| {
            c.at_least(0, 1)?;
            c.at_most(1, 1)?;
            c.at_most(2, 1)?;
            merge(&c.input(1), &c.input(2))?;
            one(c.input(0))
        }),
        "SpaceToDepth" => Compute(|c| depth_space(c, true)),
        "DepthToSpace" => Compute(|c| depth_space(c, false)),
        "DynamicPartition" => Compute(dynamic_partition),
        "DynamicStitch" | "ParallelDynamicStitch" => Compute(dynamic_stitch),
        _ => return None,
    })
}

fn broadcast_to(c: &mut Context<'_>) -> Result<Shapes> {
    let (input, out) = (c.input(0), c.shape_from(1)?);
    let (Some(dims), Some(mut to)) = (input.dims(), dims_of(&out)) else {
        return one(out);
    };
    if dims.len() > to.len() {
        return invalid(format!("{input} has more dimensions than {out}"));
    }
    for (d, t) in dims.iter().rev().zip(to.iter_mut().rev()) {
        if d.is_some_and(|d| d > 1) {
            *t = merge_dims(*d, *t)?;
        }
    }
    one(shape(to))
}

fn one_hot(c: &mut Context<'_>) -> Result<Shapes> {
    let (depth, along) = (c.dim_from(1)?, c.attrs().int("axis")?);
    if along < -1 {
        return invalid(format!("axis must be >= -1, but is {along}"));
    }
    let Some(mut dims) = dims_of(&c.input(0)) else {
        return one(PartialShape::unknown());
    };
    // An axis that is too large comes around here and is refused by the kernel, as in TensorFlow.
    let rank = dims.len() as i64 + 1;
    dims.insert(((along + rank) % rank) as usize, depth);
    one(shape(dims))
}

fn unique(c: &mut Context<'_>) -> Result<Shapes> {
    let input = c.input(0);
    let axes = c.known_ints(1);
    let length = match (input.dims(), axes.as_deref()) {
        (None, _) | (_, None) => None,
        (Some([n]), Some([])) => *n,
        (Some(_), Some([])) => return invalid("x expects a 1D vector."),
        (Some(dims), Some([a])) => dims[axis(*a, dims.len())?],
        _ => return invalid("axis does not support input tensors larger than 1 elements."),
    };
    let values = input.rank().map_or_else(PartialShape::unknown, of_rank);
    Ok([values, shape([length]), shape([None])]
        .into_iter()
        .take(c.num_outputs())
        .collect())
}

fn fingerprint(c: &mut Context<'_>) -> Result<Shapes> {
    let data = c.at_least(0, 1)?;
    c.rank(1, 0)?;
    let method = c
        .constant(1)
        .and_then(|t| t.as_strings().ok()?.first().cloned());
    let length = match method.as_deref() {
        None => None,
        Some(b"farmhash64") => Some(8),
        Some(other) => {
            let other = String::from_utf8_lossy(other);
            return invalid(format!("Unsupported method: {other}"));
        }
    };
    let rows = data.dims().and_then(|d| d[0]);
    one(shape([rows, length]))
}

fn bitcast(c: &mut Context<'_>) -> Result<Shapes> {
    let (from, to) = (c.attrs().dtype("T")?, c.attrs().dtype("type")?);
    let (Some(from), Some(to)) = (from.size(), to.size()) else {
        return invalid("Cannot bitcast types without a fixed size");
    };
    let input = c.input(0);
    let Some(mut dims) = dims_of(&input) else {
        return one(PartialShape::unknown());
    };
    if from > to {
        dims.push(Some(from / to));
    } else if from < to {
        c.at_least(0, 1)?;
        let parts = to / from;
        match dims.pop().flatten() {
            Some(d) if d != parts => {
                return invalid(format!("Dimension must be {parts} but is {d}"));
            }
            _ => {}
        }
    }
    one(shape(dims))
}

fn reverse(c: &mut Context<'_>) -> Result<Shapes> {
    c.rank(1, 1)?;
    let input = c.input(0);
    let Some(rank) = input.rank() else {
        return one(input);
    };
    if rank > 8 {
        return invalid("reverse does not work on tensors with more than 8 dimensions");
    }
    let mut seen = vec![false; rank];
    for a in c.known_ints(1).unwrap_or_default() {
        let a = axis(a, rank)?;
        if std::mem::replace(&mut seen[a], true) {
            return invalid(format!("axis {a} specified more than once."));
        }
    }
    one(input)
}

fn reverse_sequence(c: &mut Context<'_>) -> Result<Shapes> {
    let (input, lengths) = (c.input(0), c.rank(1, 1)?[0]);
    let Some(dims) = input.dims() else {
        return one(PartialShape::unknown());
    };
    let place = |name: &str| -> Result<usize> {
        match usize::try_from(c.attrs().int(name)?) {
            Ok(at) if at < dims.len() => Ok(at),
            _ => invalid(format!("{name} must be < input rank: {}", dims.len())),
        }
    };
    let batch = place("batch_dim")?;
    place("seq_dim")?;
    one(replace(&input, batch, merge_dims(dims[batch], lengths)?))
}

fn reshape(c: &mut Context<'_>) -> Result<Shapes> {
    let (input, out) = (c.input(0), c.shape_from(1)?);
    let (Some(count), Some(mut dims)) = (elements(&input), dims_of(&out)) else {
        return one(out);
    };
    let refused = || {
        invalid(format!(
            "Cannot reshape a tensor with {count} elements to shape {out}"
        ))
    };
    let open: Vec<usize> = (0..dims.len()).filter(|&i| dims[i].is_none()).collect();
    let known = dims
        .iter()
        .flatten()
        .try_fold(1usize, |n, d| n.checked_mul(*d));
    match (open.as_slice(), known) {
        ([], known) if known != Some(count) => return refused(),
        ([at], Some(known)) if known > 0 => {
            if count % known != 0 {
                return refused();
            }
            dims[*at] = Some(count / known);
        }
        _ => {}
    }
    one(shape(dims))
}

fn expand_dims(c: &mut Context<'_>) -> Result<Shapes> {
    if c.known_ints(1).is_some_and(|v| v.len() != 1) {
        return invalid("'dim' input must be a tensor with a single value");
    }
    let Some(mut dims) = dims_of(&c.input(0)) else {
        return one(PartialShape::unknown());
    };
    match c.known_int(1) {
        None => one(of_rank(dims.len() + 1)),
        Some(at) => {
            dims.insert(axis(at, dims.len() + 1)?, Some(1));
            one(shape(dims))
        }
    }
}

fn squeeze(c: &mut Context<'_>) -> Result<Shapes> {
    let input = c.input(0);
    let Some(dims) = input.dims() else {
        return one(PartialShape::unknown());
    };
    let wanted = c.attrs().ints("squeeze_dims")?;
    let mut drop = vec![false; dims.len()];
    for &a in wanted {
        let a = axis(a, dims.len())?;
        if dims[a].is_some_and(|d| d != 1) {
            return invalid(format!(
                "Can not squeeze dim[{a}], expected a dimension of 1, got {}",
                dims[a].unwrap_or(0)
            ));
        }
        drop[a] = true;
    }
    if wanted.is_empty() {
        if dims.contains(&None) {
            return one(PartialShape::unknown());
        }
        drop = dims.iter().map(|d| *d == Some(1)).collect();
    }
    let kept = dims.iter().zip(&drop).filter(|(_, drop)| !**drop);
    one(shape(kept.map(|(d, _)| *d)))
}

fn transpose(c: &mut Context<'_>) -> Result<Shapes> {
    let (input, order) = (c.input(0), c.known_ints(1));
    let count = elements(&c.input(1)).or(order.as_ref().map(Vec::len));
    let Some(rank) = input.rank().or(count) else {
        return one(PartialShape::unknown());
    };
    if input.rank().is_none() && rank < 2 {
        return one(input);
    }
    c.rank(1, 1)?;
    if count.is_some_and(|n| n != rank) {
        return invalid(format!(
            "Dimension must be {rank} but is {}: the permutation does not fit {input}",
            count.unwrap_or(0)
        ));
    }
    let (Some(dims), Some(order)) = (input.dims(), order) else {
        return one(of_rank(rank));
    };
    let mut out = Vec::with_capacity(rank);
    for a in order {
        out.push(dims[axis(a, rank)?]);
    }
    one(shape(out))
}

fn pack(c: &mut Context<'_>) -> Result<Shapes> {
    let mut all = c.input(0);
    for i in 1..c.num_inputs() {
        all = merge(&all, &c.input(i))?;
    }
    let Some(mut dims) = dims_of(&all) else {
        return one(all);
    };
    let at = axis(c.attrs().int("axis")?, dims.len() + 1)?;
    dims.insert(at, Some(c.num_inputs()));
    one(shape(dims))
}

fn unpack(c: &mut Context<'_>) -> Result<Shapes> {
    let (input, n) = (c.input(0), c.num_outputs());
    let mut part = PartialShape::unknown();
    if let Some(mut dims) = dims_of(&input) {
        let at = axis(c.attrs().int("axis")?, dims.len())?;
        if dims[at].is_some_and(|d| d != n) {
            return invalid(format!(
                "Dimension must be {n} but is {}",
                dims[at].unwrap_or(0)
            ));
        }
        dims.remove(at);
        part = shape(dims);
    }
    Ok(smallvec![part; n])
}

fn parallel_concat(c: &mut Context<'_>) -> Result<Shapes> {
    let out = c.attrs().shape("shape")?.clone();
    if out.to_shape().is_none() {
        return invalid("shape attr must be fully defined.");
    }
    let mut part = replace(&out, 0, Some(1));
    for i in 0..c.num_inputs() {
        let input = c.input(i);
        if input.to_shape().is_none() {
            return invalid("All input shapes must be fully defined.");
        }
        if input.dims().and_then(|d| d.first().copied().flatten()) != Some(1) {
            return invalid("Size of first dimension must be 1.");
        }
        part = merge(&input, &part)?;
    }
    one(out)
}

fn concat(c: &mut Context<'_>, values: std::ops::Range<usize>, along: usize) -> Result<Shapes> {
    c.rank(along, 0)?;
    let Some(rank) = values.clone().find_map(|i| c.input(i).rank()) else {
        return one(PartialShape::unknown());
    };
    if rank == 0 {
        return invalid("Can't concatenate scalars (use stack instead)");
    }
    let Some(at) = c.known_int(along) else {
        values
            .into_iter()
            .try_for_each(|i| c.rank(i, rank).map(|_| ()))?;
        return one(of_rank(rank));
    };
    let at = axis(at, rank)?;
    let mut out: Vec<Dim> = vec![None; rank];
    let mut length = Some(0usize);
    for i in values {
        let dims = c.rank(i, rank)?;
        length = length.zip(dims[at]).and_then(|(a, b)| a.checked_add(b));
        for (d, (known, given)) in out.iter_mut().zip(&dims).enumerate() {
            if d == at {
                continue;
            }
            *known = match (*known, *given) {
                (Some(a), Some(b)) if a != b => {
                    return invalid(format!(
                        "Dimension {d} in both shapes must be equal, but are {a} and {b}"
                    ));
                }
                (a, b) => a.or(b),
            };
        }
    }
    out[at] = length;
    one(shape(out))
}

fn tile(c: &mut Context<'_>) -> Result<Shapes> {
    let (input, count) = (c.input(0), c.rank(1, 1)?[0]);
    let times = c.ints(1);
    let Some(rank) = input.rank().or(count).or(times.as_ref().map(Vec::len)) else {
        return one(PartialShape::unknown());
    };
    if count.is_some_and(|n| n != rank) {
        return invalid(format!(
            "Dimension must be {rank} but is {}",
            count.unwrap_or(0)
        ));
    }
    let (dims, times) = (c.rank(0, rank)?, times.unwrap_or_else(|| vec![None; rank]));
    let mut out = Vec::with_capacity(rank);
    for (d, n) in dims.iter().zip(times) {
        out.push(match n {
            Some(n) => multiply(*d, size(n)?)?,
            None => multiply(*d, None)?,
        });
    }
    one(shape(out))
}

fn depth_space(c: &mut Context<'_>, to_depth: bool) -> Result<Shapes> {
    let format = c.attrs().str("data_format")?;
    let vectors = format == "NCHW_VECT_C";
    let mut dims = c.rank(0, if vectors { 5 } else { 4 })?;
    let (height, width, depth) = match format {
        "NHWC" => (1, 2, 3),
        _ => (2, 3, 1),
    };
    let block = usize::try_from(c.attrs().int("block_size")?).unwrap_or(0);
    let Some(area) = block.checked_mul(block).filter(|a| *a > 0) else {
        return invalid("block_size must be at least 1");
    };
    for d in [height, width] {
        dims[d] = match to_depth {
            true => divide(dims[d], block)?,
            false => multiply(dims[d], Some(block))?,
        };
    }
    dims[depth] = match to_depth {
        true => multiply(dims[depth], Some(area))?,
        false => divide(dims[depth], area)?,
    };
    one(shape(dims))
}

fn dynamic_partition(c: &mut Context<'_>) -> Result<Shapes> {
    let (data, partitions) = (c.input(0), c.input(1));
    let mut part = PartialShape::unknown();
    if let Some(rank) = partitions.rank() {
        let data = merge_prefix(&data, &partitions)?;
        part = concatenate(&shape([None]), &rest(&data, rank));
    }
    Ok(smallvec![part; c.num_outputs()])
}

fn dynamic_stitch(c: &mut Context<'_>) -> Result<Shapes> {
    let n = c.num_inputs() / 2;
    let (mut last, mut row) = (Some(0i64), PartialShape::unknown());
    for i in 0..n {
        let (indices, data) = (c.input(i), c.input(n + i));
        let known = c.known_ints(i);
        last = last
            .zip(known)
            .map(|(last, v)| v.iter().fold(last, |m, &v| m.max(v + 1)));
        let Some(rank) = indices.rank() else {
            continue;
        };
        let data = merge_prefix(&data, &indices)?;
        row = merge(&row, &rest(&data, rank))?;
    }
    // TensorFlow counts a row even if there is no index at all.
    let rows = last.map(|last| last.max(1) as usize);
    one(concatenate(&shape([rows]), &row))
}
