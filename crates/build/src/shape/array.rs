//! Shapes of operations that make, join, cut and rearrange tensors.

use super::common::{axis, merge, merge_dim, same};
use super::{Context, Rule, Shapes, invalid, one};
use downpour_graph::{Result, Status};
use downpour_tensor::PartialShape;
use smallvec::smallvec;

pub(super) fn rule(op: &str) -> Option<Rule> {
    Some(match op {
        "Identity"
        | "StopGradient"
        | "PreventGradient"
        | "ZerosLike"
        | "OnesLike"
        | "RefIdentity"
        | "Snapshot"
        | "PlaceholderWithDefault"
        | "Reverse"
        | "ReverseV2"
        | "ReverseSequence"
        | "InvertPermutation"
        | "RandomShuffle"
        | "Print"
        | "DebugGradientIdentity" => same,
        "IdentityN" => |c| Ok((0..c.num_outputs()).map(|i| c.input(i)).collect()),
        "Const" => |c| one(c.attrs().tensor("value")?.shape().into()),
        "Placeholder" | "PlaceholderV2" => |c| one(c.attrs().shape("shape")?.clone()),
        "Shape" => |c| one(PartialShape::from_dims([c.input(0).rank()])),
        "ShapeN" => |c| {
            Ok((0..c.num_outputs())
                .map(|i| PartialShape::from_dims([c.input(i).rank()]))
                .collect())
        },
        "Size" | "Rank" => |_| one(PartialShape::from_dims([])),
        "Fill" => |c| one(c.shape_from(0)?),
        "RandomUniform"
        | "RandomStandardNormal"
        | "TruncatedNormal"
        | "RandomUniformInt"
        | "Empty"
        | "StatelessRandomUniform"
        | "StatelessRandomNormal"
        | "StatelessTruncatedNormal" => |c| one(c.shape_from(0)?),
        "Reshape" => reshape,
        "ExpandDims" => expand_dims,
        "Squeeze" => squeeze,
        "Transpose" => transpose,
        "Pack" => pack,
        "Unpack" => unpack,
        "ConcatV2" => |c| concat(c, 0..c.num_inputs() - 1, c.num_inputs() - 1),
        "Concat" => |c| concat(c, 1..c.num_inputs(), 0),
        "Split" => split,
        "SplitV" => split_v,
        "Slice" => slice,
        "StridedSlice" => strided_slice,
        "Tile" => tile,
        "Pad" | "PadV2" | "MirrorPad" => pad,
        "Gather" => |c| gather(c, 0),
        "GatherV2" => |c| gather(c, c.known_int(2).unwrap_or(i64::MIN)),
        "GatherNd" => gather_nd,
        "OneHot" => one_hot,
        "BroadcastTo" => |c| one(c.shape_from(1)?),
        "Where" => |c| one(PartialShape::from_dims([None, c.input(0).rank()])),
        _ => return None,
    })
}

fn reshape(c: &mut Context<'_>) -> Result<Shapes> {
    let (input, Some(wanted)) = (c.input(0), c.ints(1)) else {
        return one(c.shape_from(1)?);
    };
    let count = input.to_shape().map(|s| s.num_elements());
    let open = wanted.iter().filter(|d| matches!(d, Some(-1))).count();
    if open > 1 {
        return invalid("only one dimension of the new shape may be -1");
    }
    let known: Option<usize> = wanted
        .iter()
        .filter(|d| **d != Some(-1))
        .try_fold(1usize, |n, d| n.checked_mul((*d)?.try_into().ok()?));
    let whole: Vec<Option<i64>> = wanted.clone();
    if let (Some(count), Some(known)) = (count, known) {
        let fits = match open {
            0 => known == count,
            _ => known != 0 && count % known == 0,
        };
        if !fits {
            let shown: Vec<String> = whole
                .iter()
                .map(|d| d.map_or("?".to_owned(), |d| d.to_string()))
                .collect();
            return invalid(format!(
                "Cannot reshape a tensor with {count} elements to shape [{}]",
                shown.join(",")
            ));
        }
    }
    let dims = wanted.into_iter().map(|d| match (d, count, known) {
        (Some(-1), Some(count), Some(known)) if known > 0 => Some(count / known),
        (Some(-1), ..) | (None, ..) => None,
        (Some(d), ..) => usize::try_from(d).ok(),
    });
    one(PartialShape::from_dims(dims))
}

fn expand_dims(c: &mut Context<'_>) -> Result<Shapes> {
    let input = c.input(0);
    let Some(dims) = input.dims() else {
        return one(PartialShape::unknown());
    };
    let mut dims = dims.to_vec();
    match c.known_int(1) {
        None => one(PartialShape::from_dims(std::iter::repeat_n(
            None,
            dims.len() + 1,
        ))),
        Some(at) => {
            dims.insert(axis(at, dims.len() + 1)?, Some(1));
            one(PartialShape::from_dims(dims))
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
    one(PartialShape::from_dims(kept.map(|(d, _)| *d)))
}

fn transpose(c: &mut Context<'_>) -> Result<Shapes> {
    let input = c.input(0);
    let Some(dims) = input.dims() else {
        let rank = match c.input(1).dims() {
            Some([Some(n)]) => *n,
            _ => return one(PartialShape::unknown()),
        };
        return one(PartialShape::from_dims(std::iter::repeat_n(None, rank)));
    };
    let Some(order) = c.known_ints(1) else {
        return one(PartialShape::from_dims(std::iter::repeat_n(
            None,
            dims.len(),
        )));
    };
    if order.len() != dims.len() {
        return invalid(format!("the permutation {order:?} does not fit {input}"));
    }
    let out: Result<Vec<_>> = order
        .iter()
        .map(|&a| Ok(dims[axis(a, dims.len())?]))
        .collect();
    one(PartialShape::from_dims(out?))
}

fn pack(c: &mut Context<'_>) -> Result<Shapes> {
    let mut shape = c.input(0);
    for i in 1..c.num_inputs() {
        shape = merge(&shape, &c.input(i))?;
    }
    let Some(dims) = shape.dims() else {
        return one(shape);
    };
    let mut dims = dims.to_vec();
    let at = axis(c.attrs().int("axis")?, dims.len() + 1)?;
    dims.insert(at, Some(c.num_inputs()));
    one(PartialShape::from_dims(dims))
}

fn unpack(c: &mut Context<'_>) -> Result<Shapes> {
    let input = c.input(0);
    let mut part = PartialShape::unknown();
    if let Some(dims) = input.dims() {
        let mut dims = dims.to_vec();
        let at = axis(c.attrs().int("axis")?, dims.len())?;
        if merge_dim(dims[at], Some(c.num_outputs())).is_none() {
            return invalid(format!(
                "{input} cannot be cut in {} parts",
                c.num_outputs()
            ));
        }
        dims.remove(at);
        part = PartialShape::from_dims(dims);
    }
    Ok(smallvec![part; c.num_outputs()])
}

fn concat(c: &mut Context<'_>, values: std::ops::Range<usize>, along: usize) -> Result<Shapes> {
    let Some(rank) = values.clone().find_map(|i| c.input(i).rank()) else {
        return one(PartialShape::unknown());
    };
    let Some(at) = c.known_int(along) else {
        return one(PartialShape::from_dims(std::iter::repeat_n(None, rank)));
    };
    let at = axis(at, rank)?;
    let mut out = vec![None; rank];
    let mut length = Some(0);
    for i in values {
        let shape = c.with_rank(i, rank)?;
        let dims = shape.dims().unwrap_or_default();
        length = length.zip(dims[at]).map(|(a, b)| a + b);
        for (d, (known, given)) in out.iter_mut().zip(dims).enumerate() {
            if d == at {
                continue;
            }
            let merged = merge_dim(*known, *given);
            *known = merged.ok_or_else(|| {
                Status::invalid_argument(format!(
                    "Dimension {d} in both shapes must be equal, but are {} and {}",
                    known.unwrap_or(0),
                    given.unwrap_or(0)
                ))
            })?;
        }
    }
    out[at] = length;
    one(PartialShape::from_dims(out))
}

fn split(c: &mut Context<'_>) -> Result<Shapes> {
    let (input, n) = (c.input(1), c.num_outputs());
    let (Some(dims), Some(at)) = (input.dims(), c.known_int(0)) else {
        let part = match input.rank() {
            Some(rank) => PartialShape::from_dims(std::iter::repeat_n(None, rank)),
            None => PartialShape::unknown(),
        };
        return Ok(smallvec![part; n]);
    };
    let mut dims = dims.to_vec();
    let at = axis(at, dims.len())?;
    if dims[at].is_some_and(|d| d % n != 0) {
        return invalid(format!(
            "Dimension size must be evenly divisible by {n} but is {}",
            dims[at].unwrap_or(0)
        ));
    }
    dims[at] = dims[at].map(|d| d / n);
    Ok(smallvec![PartialShape::from_dims(dims); n])
}

fn split_v(c: &mut Context<'_>) -> Result<Shapes> {
    let (input, n) = (c.input(0), c.num_outputs());
    let (Some(dims), Some(at)) = (input.dims(), c.known_int(2)) else {
        let part = match input.rank() {
            Some(rank) => PartialShape::from_dims(std::iter::repeat_n(None, rank)),
            None => PartialShape::unknown(),
        };
        return Ok(smallvec![part; n]);
    };
    let at = axis(at, dims.len())?;
    let sizes = c.ints(1).unwrap_or_else(|| vec![None; n]);
    let known: i64 = sizes.iter().flatten().filter(|s| **s >= 0).sum();
    let open = sizes.iter().filter(|s| s.is_none_or(|s| s < 0)).count();
    let part = |size: Option<i64>| {
        let mut dims = dims.to_vec();
        dims[at] = match size {
            Some(size) if size >= 0 => Some(size as usize),
            _ if open == 1 => dims[at].and_then(|d| d.checked_sub(known as usize)),
            _ => None,
        };
        PartialShape::from_dims(dims)
    };
    Ok(sizes.into_iter().map(part).collect())
}

fn slice(c: &mut Context<'_>) -> Result<Shapes> {
    let input = c.input(0);
    let (begin, size) = (c.ints(1), c.ints(2));
    let rank = input
        .rank()
        .or(begin.as_ref().map(Vec::len))
        .or(size.as_ref().map(Vec::len));
    let Some(rank) = rank else {
        return one(PartialShape::unknown());
    };
    let begin = begin.unwrap_or_else(|| vec![None; rank]);
    let size = size.unwrap_or_else(|| vec![None; rank]);
    if begin.len() != rank || size.len() != rank {
        return invalid(format!("begin and size must have {rank} elements"));
    }
    let mut out = Vec::new();
    for i in 0..rank {
        let whole = input.dims().and_then(|d| d[i]);
        let room = whole.zip(begin[i]).map(|(d, b)| d as i64 - b);
        if let (Some(room), Some(size)) = (room, size[i])
            && (room < 0 || size > room)
        {
            return invalid(format!(
                "a slice of {size} exceeds dimension {i} of {input}"
            ));
        }
        out.push(match size[i] {
            Some(-1) => room.and_then(|r| usize::try_from(r).ok()),
            Some(n) => usize::try_from(n).ok(),
            None => None,
        });
    }
    one(PartialShape::from_dims(out))
}

/// The places of a strided slice's specification, walked with the input's dimensions.
fn strided_slice(c: &mut Context<'_>) -> Result<Shapes> {
    let input = c.input(0);
    let specs = match c.input(1).dims() {
        Some([Some(n)]) => *n,
        _ => return one(PartialShape::unknown()),
    };
    let Some(dims) = input.dims() else {
        return one(PartialShape::unknown());
    };
    let (begin, end, step) = (c.ints(1), c.ints(2), c.ints(3));
    let bits = |name: &str| -> Result<i64> { c.attrs().int(name) };
    let (begin_mask, end_mask) = (bits("begin_mask")?, bits("end_mask")?);
    let (ellipsis, new, shrink) = (
        bits("ellipsis_mask")?,
        bits("new_axis_mask")?,
        bits("shrink_axis_mask")?,
    );
    let set = |mask: i64, i: usize| i < 63 && mask >> i & 1 == 1;
    let taken = (0..specs)
        .filter(|&i| !set(ellipsis, i) && !set(new, i))
        .count();
    let mut out = Vec::new();
    let mut at = 0;
    let value = |v: &Option<Vec<Option<i64>>>, i: usize| {
        v.as_ref().and_then(|v| v.get(i).copied().flatten())
    };
    for i in 0..specs {
        if set(ellipsis, i) {
            for _ in 0..dims.len().saturating_sub(taken) {
                out.push(dims[at]);
                at += 1;
            }
        } else if set(new, i) {
            out.push(Some(1));
        } else {
            let Some(&dim) = dims.get(at) else {
                return invalid(format!(
                    "the slice has more positions than {input} dimensions"
                ));
            };
            at += 1;
            if set(shrink, i) {
                if let (Some(d), Some(b)) = (dim, value(&begin, i))
                    && (b >= d as i64 || b < -(d as i64))
                {
                    return invalid(format!(
                        "slice index {b} of dimension {} out of bounds",
                        at - 1
                    ));
                }
                continue;
            }
            let open = |mask: i64, v: Option<i64>| match set(mask, i) {
                true => Some(None),
                false => v.map(Some),
            };
            out.push(
                match (
                    open(begin_mask, value(&begin, i)),
                    open(end_mask, value(&end, i)),
                    value(&step, i),
                ) {
                    (Some(b), Some(e), Some(s)) => strided_len(dim, b, e, s),
                    _ => None,
                },
            );
        }
    }
    out.extend(dims.get(at..).unwrap_or_default().iter().copied());
    one(PartialShape::from_dims(out))
}

fn strided_len(
    dim: Option<usize>,
    begin: Option<i64>,
    end: Option<i64>,
    step: i64,
) -> Option<usize> {
    let dim = dim? as i64;
    let wrap = |i: i64| if i < 0 { i + dim } else { i };
    let (low, high) = if step > 0 { (0, dim) } else { (-1, dim - 1) };
    let (first, last) = if step > 0 { (0, dim) } else { (dim - 1, -1) };
    let begin = begin.map_or(first, |b| wrap(b).clamp(low, high));
    let end = end.map_or(last, |e| wrap(e).clamp(low, high));
    let span = end - begin;
    if step == 0 || span == 0 || (span < 0) != (step < 0) {
        return (step != 0).then_some(0);
    }
    Some((span / step + i64::from(span % step != 0)) as usize)
}

fn tile(c: &mut Context<'_>) -> Result<Shapes> {
    let input = c.input(0);
    let Some(dims) = input.dims() else {
        return one(PartialShape::unknown());
    };
    let times = c.ints(1).unwrap_or_else(|| vec![None; dims.len()]);
    if times.len() != dims.len() {
        return invalid(format!("{input} cannot be tiled {} times", times.len()));
    }
    let out = dims.iter().zip(times).map(|(d, n)| {
        let n = usize::try_from(n?).ok()?;
        (*d)?.checked_mul(n)
    });
    one(PartialShape::from_dims(out))
}

fn pad(c: &mut Context<'_>) -> Result<Shapes> {
    let input = c.input(0);
    let rank = match (input.rank(), c.input(1).dims()) {
        (Some(rank), _) => rank,
        (None, Some([Some(rank), _])) => *rank,
        _ => return one(PartialShape::unknown()),
    };
    let sizes = c.ints(1).unwrap_or_else(|| vec![None; 2 * rank]);
    if sizes.len() != 2 * rank {
        return invalid(format!("the paddings must have shape [{rank},2]"));
    }
    let out = (0..rank).map(|i| {
        let whole = input.dims()?[i]?;
        let around = sizes[2 * i]?.checked_add(sizes[2 * i + 1]?)?;
        whole.checked_add(usize::try_from(around).ok()?)
    });
    one(PartialShape::from_dims(out))
}

fn gather(c: &mut Context<'_>, along: i64) -> Result<Shapes> {
    let (params, indices) = (c.input(0), c.input(1));
    let (Some(params), Some(indices)) = (params.dims(), indices.dims()) else {
        return one(PartialShape::unknown());
    };
    let batch = c.attrs().int("batch_dims").unwrap_or(0).max(0) as usize;
    if along == i64::MIN {
        let rank = (params.len() + indices.len()).saturating_sub(1 + batch);
        return one(PartialShape::from_dims(std::iter::repeat_n(None, rank)));
    }
    let at = axis(along, params.len())?;
    let rest = indices.get(batch..).unwrap_or_default();
    let dims = params[..at].iter().chain(rest).chain(&params[at + 1..]);
    one(PartialShape::from_dims(dims.copied()))
}

fn gather_nd(c: &mut Context<'_>) -> Result<Shapes> {
    let (params, indices) = (c.input(0), c.input(1));
    let (Some(params), Some([lead @ .., Some(depth)])) = (params.dims(), indices.dims()) else {
        return one(PartialShape::unknown());
    };
    let Some(rest) = params.get(*depth..) else {
        return invalid("the indices are longer than the parameters have dimensions");
    };
    one(PartialShape::from_dims(lead.iter().chain(rest).copied()))
}

fn one_hot(c: &mut Context<'_>) -> Result<Shapes> {
    let depth = c.known_int(1).and_then(|d| usize::try_from(d).ok());
    let input = c.input(0);
    let Some(dims) = input.dims() else {
        return one(PartialShape::unknown());
    };
    let mut dims = dims.to_vec();
    let at = match c.attrs().int("axis")? {
        -1 => dims.len(),
        a => axis(a, dims.len() + 1)?,
    };
    dims.insert(at, depth);
    one(PartialShape::from_dims(dims))
}
