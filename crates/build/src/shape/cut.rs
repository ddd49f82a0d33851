//! Shapes of operations that cut, gather, scatter and pad.

use super::Rule::{self, Compute, Pattern};
use super::dims::{axis, concatenate, dims_of, elements, merge, of_rank, rest, shape, size};
use super::{Context, Dim, Shapes, invalid, one};
use downpour_graph::Result;
use downpour_tensor::PartialShape;
use smallvec::smallvec;

pub(super) fn rule(op: &str) -> Option<Rule> {
    Some(match op {
        "Split" => Compute(split),
        "SplitV" => Compute(split_v),
        "Slice" => Compute(slice),
        "StridedSlice" => Compute(|c| {
            c.pass_handle(0, 0);
            strided_slice(c)
        }),
        "StridedSliceGrad" => Compute(|c| one(c.shape_from(0)?)),
        "StridedSliceAssign" | "TensorStridedSliceUpdate" => Pattern("S -> S"),
        "ResourceStridedSliceAssign" => Pattern("->"),
        "Pad" | "PadV2" | "MirrorPad" => Compute(|c| pad(c, true)),
        "MirrorPadGrad" => Compute(|c| pad(c, false)),
        "Gather" => Compute(|c| {
            c.at_least(0, 1)?;
            one(concatenate(&c.input(1), &rest(&c.input(0), 1)))
        }),
        "GatherV2" => Compute(gather),
        "GatherNd" => Compute(|c| gather_nd(c, c.input(0))),
        "ResourceGatherNd" => Compute(|c| gather_nd(c, c.variable(0))),
        "ScatterNd" => Compute(|c| {
            let out = c.shape_from(2)?;
            scatter_fits(c, 0, 1, &out)?;
            one(out)
        }),
        "TensorScatterUpdate"
        | "TensorScatterAdd"
        | "TensorScatterSub"
        | "TensorScatterMin"
        | "TensorScatterMax" => Compute(|c| {
            let out = c.at_least(0, 1)?;
            c.at_least(1, 1)?;
            // One value for all places is fine here.
            if c.input(2).rank() != Some(0) {
                scatter_fits(c, 1, 2, &out)?;
            }
            one(out)
        }),
        "ScatterNdUpdate"
        | "ScatterNdAdd"
        | "ScatterNdSub"
        | "ScatterNdMin"
        | "ScatterNdMax"
        | "ScatterNdNonAliasingAdd"
        | "ResourceScatterNdUpdate"
        | "ResourceScatterNdAdd"
        | "ResourceScatterNdSub"
        | "ResourceScatterNdMin"
        | "ResourceScatterNdMax" => Compute(|c| {
            let out = c.variable(0);
            scatter_fits(c, 1, 2, &out)?;
            Ok(smallvec![out; c.num_outputs()])
        }),
        _ => return None,
    })
}

fn split(c: &mut Context<'_>) -> Result<Shapes> {
    let (input, n) = (c.input(1), c.num_outputs());
    let (Some(mut dims), Some(at)) = (dims_of(&input), c.known_int(0)) else {
        let part = input.rank().map_or_else(PartialShape::unknown, of_rank);
        return Ok(smallvec![part; n]);
    };
    let at = axis(at, dims.len())?;
    if dims[at].is_some_and(|d| n == 0 || d % n != 0) {
        return invalid(format!(
            "Dimension size must be evenly divisible by {n} but is {}. Number of ways to split \
             should evenly divide the split dimension",
            dims[at].unwrap_or(0)
        ));
    }
    dims[at] = dims[at].map(|d| d / n);
    Ok(smallvec![shape(dims); n])
}

fn split_v(c: &mut Context<'_>) -> Result<Shapes> {
    let (input, n) = (c.input(0), c.num_outputs());
    let (Some(dims), Some(at)) = (dims_of(&input), c.known_int(2)) else {
        let part = input.rank().map_or_else(PartialShape::unknown, of_rank);
        return Ok(smallvec![part; n]);
    };
    let at = axis(at, dims.len())?;
    if n == 1 {
        return one(input);
    }
    let Some(sizes) = c.ints(1).filter(|s| s.iter().any(Option::is_some)) else {
        let part = super::dims::replace(&input, at, None);
        return Ok(smallvec![part; n]);
    };
    if sizes.len() != n {
        return invalid(format!(
            "Length of size_splits should be equal to num_outputs: {} and {n}",
            sizes.len()
        ));
    }
    let given = sizes.iter().flatten().filter(|s| **s >= 0);
    let known = given.fold(0i64, |sum, s| sum.saturating_add(*s));
    let open = sizes.iter().filter(|s| **s == Some(-1)).count();
    let unsure = sizes.iter().any(Option::is_none);
    if open > 1 {
        return invalid("size_splits can only have one -1 in it.");
    }
    let room = dims[at].map(|d| d as i64 - known);
    if !unsure && room.is_some_and(|room| room < 0 || (open == 0 && room > 0)) {
        return invalid(format!(
            "Sum of output sizes ({known}) must match the size of the original Tensor along the \
             split dimension ({}) or less if one of them is -1",
            dims[at].unwrap_or(0)
        ));
    }
    let mut parts = Shapes::new();
    for given in sizes {
        let length = match given {
            Some(-1) if !unsure => room.and_then(|r| usize::try_from(r).ok()),
            Some(given) => size(given)?,
            None => None,
        };
        parts.push(super::dims::replace(&input, at, length));
    }
    Ok(parts)
}

fn slice(c: &mut Context<'_>) -> Result<Shapes> {
    let count = super::dims::merge_dims(c.rank(1, 1)?[0], c.rank(2, 1)?[0])?;
    let (begin, sizes) = (c.ints(1), c.ints(2));
    let rank = count
        .or(begin.as_ref().map(Vec::len))
        .or(sizes.as_ref().map(Vec::len))
        .or(c.input(0).rank());
    let Some(rank) = rank else {
        return one(PartialShape::unknown());
    };
    let dims = c.rank(0, rank)?;
    let begin = begin.unwrap_or_else(|| vec![None; rank]);
    let sizes = sizes.unwrap_or_else(|| vec![None; rank]);
    if begin.len() != rank || sizes.len() != rank {
        return invalid(format!("begin and size must have {rank} elements"));
    }
    let mut out = Vec::new();
    for i in 0..rank {
        out.push(match sizes[i] {
            Some(-1) => match (dims[i], begin[i]) {
                (Some(d), Some(b)) if b > d as i64 || b < 0 => {
                    return invalid(format!(
                        "Negative dimension size caused by subtracting {b} from {d}"
                    ));
                }
                (Some(d), Some(b)) => Some(d - b as usize),
                _ => None,
            },
            Some(n) => size(n)?,
            None => None,
        });
    }
    one(shape(out))
}

/// The places of a strided slice's specification, walked with the input's dimensions.
fn strided_slice(c: &mut Context<'_>) -> Result<Shapes> {
    let input = c.input(0);
    let mut count = None;
    for i in 1..4 {
        count = super::dims::merge_dims(count, c.rank(i, 1)?[0])?;
    }
    let (Some(specs), Some(dims), Some(_)) = (count, input.dims(), c.known_ints(3)) else {
        return one(PartialShape::unknown());
    };
    let values = [c.ints(1), c.ints(2), c.ints(3)];
    let mask = Masks::of(c)?;
    let taken = (0..specs).filter(|&i| mask.takes(i)).count();
    let mut out: Vec<Dim> = Vec::new();
    let mut at = 0;
    let value = |which: usize, i: usize| {
        let v: &Option<Vec<Option<i64>>> = &values[which];
        v.as_ref().and_then(|v| v.get(i).copied().flatten())
    };
    for i in 0..specs {
        if set(mask.ellipsis, i) {
            let many = dims.len().saturating_sub(taken);
            out.extend(dims.iter().skip(at).take(many));
            at += many;
            continue;
        }
        if set(mask.new, i) {
            out.push(Some(1));
            continue;
        }
        let Some(&dim) = dims.get(at) else {
            return invalid(format!(
                "Index out of range using input dim {at}; input has only {} dims",
                dims.len()
            ));
        };
        let step = value(2, i);
        if step == Some(0) {
            return invalid(format!("strides[{i}] must be non-zero"));
        }
        if set(mask.shrink, i) {
            if step.is_some_and(|s| s <= 0) {
                return invalid("only stride 1 allowed on non-range indexing.");
            }
            if let (Some(d), Some(b)) = (dim, value(0, i))
                && (b >= d as i64 || b < -(d as i64))
            {
                return invalid(format!("slice index {b} of dimension {at} out of bounds."));
            }
            at += 1;
            continue;
        }
        at += 1;
        let open = |mask: i64, v: Option<i64>| match set(mask, i) {
            true => Some(None),
            false => v.map(Some),
        };
        let (from, to) = (open(mask.begin, value(0, i)), open(mask.end, value(1, i)));
        out.push(match (from, to, step) {
            (Some(b), Some(e), Some(s)) => strided_len(dim, b, e, s),
            _ => None,
        });
    }
    out.extend(dims.iter().skip(at));
    one(shape(out))
}

struct Masks {
    begin: i64,
    end: i64,
    ellipsis: i64,
    new: i64,
    shrink: i64,
}

impl Masks {
    fn of(c: &Context<'_>) -> Result<Masks> {
        let bits = |name: &str| c.attrs().int(name);
        let ellipsis = bits("ellipsis_mask")?;
        if ellipsis & ellipsis.wrapping_sub(1) != 0 {
            return invalid("Multiple ellipses in slice spec not allowed");
        }
        Ok(Masks {
            begin: bits("begin_mask")?,
            end: bits("end_mask")?,
            ellipsis,
            new: bits("new_axis_mask")?,
            shrink: bits("shrink_axis_mask")?,
        })
    }

    /// Whether place `i` stands for a dimension of the input.
    fn takes(&self, i: usize) -> bool {
        !set(self.ellipsis, i) && !set(self.new, i)
    }
}

fn set(mask: i64, i: usize) -> bool {
    i < 63 && mask >> i & 1 == 1
}

fn strided_len(dim: Dim, begin: Option<i64>, end: Option<i64>, step: i64) -> Dim {
    let dim = dim? as i64;
    let wrap = |i: i64| if i < 0 { i.saturating_add(dim) } else { i };
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

/// Padding around (`grow`), or its gradient, which takes it away.
fn pad(c: &mut Context<'_>, grow: bool) -> Result<Shapes> {
    let paddings = c.rank(1, 2)?;
    if paddings[1].is_some_and(|n| n != 2) {
        return invalid(format!(
            "Dimension must be 2 but is {}: paddings hold what goes before and after",
            paddings[1].unwrap_or(0)
        ));
    }
    let Some(rank) = paddings[0].or(c.input(0).rank()) else {
        return one(PartialShape::unknown());
    };
    let dims = c.rank(0, rank)?;
    let Some(sizes) = c.ints(1) else {
        return one(of_rank(rank));
    };
    let mut out = Vec::with_capacity(rank);
    for (d, pair) in dims.iter().zip(sizes.chunks(2)) {
        if pair.iter().flatten().any(|p| *p < 0) {
            return invalid("Paddings must be non-negative");
        }
        let around = match pair {
            [Some(a), Some(b)] => a.checked_add(*b),
            _ => None,
        };
        out.push(match (d, around) {
            (Some(d), Some(n)) if grow => d.checked_add(n as usize),
            (Some(d), Some(n)) if n <= *d as i64 => Some(d - n as usize),
            (Some(d), Some(n)) => {
                return invalid(format!(
                    "Negative dimension size caused by subtracting {n} from {d}"
                ));
            }
            _ => None,
        });
    }
    one(shape(out))
}

fn gather(c: &mut Context<'_>) -> Result<Shapes> {
    let (params, indices) = (c.at_least(0, 1)?, c.input(1));
    c.rank(2, 0)?;
    let batch = c.attrs().int("batch_dims").unwrap_or(0);
    let Some(along) = c.known_int(2) else {
        return one(match (params.rank(), indices.rank()) {
            (Some(p), Some(i)) if batch >= 0 => of_rank((p + i - 1).saturating_sub(batch as usize)),
            _ => PartialShape::unknown(),
        });
    };
    let least = if along < 0 {
        along.unsigned_abs()
    } else {
        along.unsigned_abs().saturating_add(1)
    };
    c.at_least(0, usize::try_from(least).unwrap_or(usize::MAX))?;
    c.at_least(
        1,
        usize::try_from(batch.unsigned_abs()).unwrap_or(usize::MAX),
    )?;
    let (Some(params), Some(indices)) = (params.dims(), indices.dims()) else {
        return one(PartialShape::unknown());
    };
    let batch = match batch < 0 {
        true => (batch + indices.len() as i64) as usize,
        false => batch as usize,
    };
    c.at_least(0, batch + 1)?;
    let at = axis(along, params.len())?;
    if at < batch {
        return invalid(format!("batch_dims ({batch}) must be at most axis ({at})"));
    }
    let lead = merge(
        &shape(params[..batch].iter().copied()),
        &shape(indices[..batch].iter().copied()),
    )?;
    let inner = params[batch..at].iter().chain(&indices[batch..]);
    let dims = inner.chain(&params[at + 1..]).copied();
    one(concatenate(&lead, &shape(dims)))
}

fn gather_nd(c: &mut Context<'_>, params: PartialShape) -> Result<Shapes> {
    let indices = c.at_least(1, 1)?;
    let Some([lead @ .., Some(depth)]) = indices.dims() else {
        return one(PartialShape::unknown());
    };
    if params.rank().is_some_and(|r| *depth > r) {
        return invalid(format!(
            "indices.shape[-1] must be <= params.rank, but saw indices shape: {indices} and \
             params shape: {params}"
        ));
    }
    one(concatenate(
        &shape(lead.iter().copied()),
        &rest(&params, *depth),
    ))
}

/// Refuses indices and updates that cannot be scattered into `out`.
fn scatter_fits(c: &Context<'_>, indices: usize, updates: usize, out: &PartialShape) -> Result<()> {
    let (indices, updates) = (c.at_least(indices, 1)?, c.at_least(updates, 1)?);
    let some = |s: &PartialShape| elements(s).is_some_and(|n| n > 0);
    if elements(out) == Some(0) && (some(&indices) || some(&updates)) {
        return invalid("Indices and updates specified for empty output shape");
    }
    let (Some([lead @ .., depth]), Some(values)) = (indices.dims(), updates.dims()) else {
        return Ok(());
    };
    let Some(depth) = depth else {
        return Ok(());
    };
    let outer = lead.len();
    let (Some(first), Some(inner)) = (values.get(..outer), values.get(outer..)) else {
        return invalid(format!(
            "updates {updates} have fewer dimensions than the {outer} outer ones of indices \
             {indices}"
        ));
    };
    let context = |e: downpour_graph::Status| {
        downpour_graph::Status::invalid_argument(format!(
            "Dimensions [0,{outer}) of indices[shape={indices}] must match dimensions [0,{outer}) \
             of updates[shape={updates}], and the inner ones those of {out}: {}",
            e.message
        ))
    };
    let same = |a: &[Dim], b: &[Dim]| {
        merge(&shape(a.iter().copied()), &shape(b.iter().copied())).map_err(context)
    };
    same(lead, first)?;
    if let Some(dims) = rest(out, *depth).dims() {
        same(dims, inner)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::strided_len;
    use crate::{DType, Graph, Output};

    #[test]
    fn strided_lengths() {
        for (dim, begin, end, step, want) in [
            (10, Some(0), Some(10), 3, 4),
            (10, None, None, -1, 10),
            (10, Some(-3), None, 1, 3),
            (10, Some(8), Some(2), -2, 3),
            (10, Some(5), Some(5), 1, 0),
            (10, Some(20), None, 1, 0),
            (10, Some(20), None, -1, 10),
            (0, None, None, 1, 0),
            (5, Some(i64::MIN), Some(i64::MAX), 2, 3),
        ] {
            assert_eq!(strided_len(Some(dim), begin, end, step), Some(want));
        }
        assert_eq!(strided_len(None, Some(0), Some(1), 1), None);
    }

    fn sliced(g: &Graph, x: &Output, n: usize, ellipsis: i64, shrink: i64) -> Output {
        let vector = |v: i32| g.constant(vec![v; n]);
        g.op("StridedSlice")
            .input(x)
            .input(&vector(0))
            .input(&vector(1))
            .input(&vector(1))
            .attr("ellipsis_mask", ellipsis)
            .attr("shrink_axis_mask", shrink)
            .output()
    }

    #[test]
    fn ellipsis_with_too_many_places_is_an_error() {
        let g = Graph::new();
        let x = g.placeholder("x", DType::Float, [Some(4), Some(5)]);
        let fits = sliced(&g, &x, 3, 0b10, 0b100);
        assert_eq!(fits.shape().to_string(), "[1]");
        let _ = sliced(&g, &x, 4, 0b10, 0);
        let error = g.check().unwrap_err();
        assert!(error.message.contains("only 2 dims"), "{error}");
    }

    #[test]
    fn gather_follows_batch_dimensions_from_either_end() {
        let g = Graph::new();
        let params = g.placeholder("params", DType::Float, [Some(2), Some(5), Some(7)]);
        let indices = g.placeholder("indices", DType::Int32, [None, Some(3)]);
        for batch in [1i64, -1] {
            let axis = g.constant(1i32);
            let op = g.op("GatherV2").input(&params).input(&indices).input(&axis);
            let out = op.attr("batch_dims", batch).output();
            assert_eq!(out.shape().to_string(), "[2,3,7]");
        }
    }
}
