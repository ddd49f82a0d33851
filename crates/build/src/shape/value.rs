//! What integer tensors will hold, as far as a graph under construction tells: the shapes,
//! sizes, axes and positions that other shapes follow from.

use crate::graph::Inner;
use downpour_graph::{Endpoint, Node};
use downpour_tensor::{DType, Tensor};

/// Longest tensor that is followed: shapes are short.
const MAX_ELEMENTS: usize = 1024;

/// Deepest chain of operations that is followed.
const MAX_DEPTH: usize = 64;

/// The elements of an integer tensor, unknown ones as `None`; nothing if their number is unknown.
pub(crate) fn ints(inner: &Inner, at: Endpoint) -> Option<Vec<Option<i64>>> {
    follow(inner, at, 0)
}

/// The elements of an integer constant.
pub(crate) fn constant(value: &Tensor) -> Option<Vec<i64>> {
    if value.num_elements() > MAX_ELEMENTS {
        return None;
    }
    Some(match value.dtype() {
        DType::Int32 => value
            .as_slice::<i32>()
            .ok()?
            .iter()
            .map(|&v| v.into())
            .collect(),
        DType::Int64 => value.as_slice::<i64>().ok()?.to_vec(),
        _ => return None,
    })
}

fn follow(inner: &Inner, at: Endpoint, depth: usize) -> Option<Vec<Option<i64>>> {
    if depth > MAX_DEPTH {
        return None;
    }
    let node = inner.graph.node(at.node);
    let input = |i: usize| follow(inner, *node.inputs.get(i)?, depth + 1);
    let shape_of = |i: usize| {
        let edge = node.inputs.get(i)?;
        inner
            .shapes
            .get(edge.node.index())?
            .get(edge.output as usize)
    };
    match node.op_name() {
        "Const" => {
            let values = constant(node.attrs.tensor("value").ok()?)?;
            Some(values.into_iter().map(Some).collect())
        }
        "Identity" | "StopGradient" | "PreventGradient" | "Enter" | "Snapshot" | "Cast"
        | "Reshape" | "ExpandDims" | "Squeeze" | "EnsureShape"
            if node.output_types.first().is_some_and(|t| t.0.is_integer()) =>
        {
            input(0)
        }
        "Shape" => {
            let dims = shape_of(0)?.dims()?;
            Some(dims.iter().map(|d| d.map(|d| d as i64)).collect())
        }
        "ShapeN" => {
            let dims = shape_of(at.output as usize)?.dims()?;
            Some(dims.iter().map(|d| d.map(|d| d as i64)).collect())
        }
        "Size" => {
            let shape = shape_of(0)?.to_shape();
            Some(vec![shape.map(|s| s.num_elements() as i64)])
        }
        "ZerosLike" | "OnesLike" => {
            let value = i64::from(node.op_name() == "OnesLike");
            Some(vec![Some(value); elements(shape_of(0)?)?])
        }
        "Neg" => {
            let negated = |v: Option<i64>| v.and_then(i64::checked_neg);
            Some(input(0)?.into_iter().map(negated).collect())
        }
        "Rank" => Some(vec![Some(shape_of(0)?.rank()? as i64)]),
        "Pack" => {
            let mut out = Vec::new();
            for i in 0..node.inputs.len() {
                let part = input(i).or_else(|| Some(vec![None; elements(shape_of(i)?)?]))?;
                out.extend(part);
            }
            (out.len() == node.inputs.len()).then_some(out)
        }
        "ConcatV2" => {
            let count = node.inputs.len() - 1;
            let axis = input(count)?.first().copied().flatten()?;
            let mut parts = Vec::new();
            for i in 0..count {
                let shape = shape_of(i)?.to_shape()?;
                let part = input(i).or_else(|| Some(vec![None; elements(shape_of(i)?)?]))?;
                parts.push((part, run(shape.dims(), axis)?));
            }
            interleaved(&parts)
        }
        "Fill" => {
            let dims: Option<Vec<i64>> = input(0)?.into_iter().collect();
            let count = dims?
                .iter()
                .try_fold(1usize, |n, &d| n.checked_mul(d.try_into().ok()?))?;
            let value = input(1)?.first().copied()?;
            (count <= MAX_ELEMENTS).then(|| vec![value; count])
        }
        "Range" => {
            let bound = |i: usize| input(i)?.first().copied().flatten();
            range(bound(0)?, bound(1)?, bound(2)?)
        }
        "GatherV2" | "Gather" if shape_of(0)?.rank()? == 1 => {
            let (from, at) = (input(0)?, input(1)?);
            let get = |i: Option<i64>| from.get(usize::try_from(i?).ok()?).copied().flatten();
            Some(at.into_iter().map(get).collect())
        }
        "Slice" if shape_of(0)?.rank()? == 1 => {
            let (from, begin, size) = (input(0)?, input(1)?, input(2)?);
            let ([Some(begin)], [Some(size)]) = (begin.as_slice(), size.as_slice()) else {
                return None;
            };
            let begin = usize::try_from(*begin).ok()?;
            let end = match *size {
                -1 => from.len(),
                n => begin.checked_add(usize::try_from(n).ok()?)?,
            };
            Some(from.get(begin..end)?.to_vec())
        }
        "StridedSlice" if shape_of(0)?.rank()? == 1 => {
            strided(node, input(0)?, input(1)?, input(2)?, input(3)?)
        }
        "Prod" | "Sum" if shape_of(0)?.rank()? == 1 => {
            let known: Option<Vec<i64>> = input(0)?.into_iter().collect();
            Some(vec![known.and_then(|v| match node.op_name() {
                "Prod" => v.iter().try_fold(1i64, |p, &d| p.checked_mul(d)),
                _ => v.iter().try_fold(0i64, |p, &d| p.checked_add(d)),
            })])
        }
        op => {
            let apply: fn(i64, i64) -> Option<i64> = match op {
                "Add" | "AddV2" => i64::checked_add,
                "Sub" => i64::checked_sub,
                "Mul" => i64::checked_mul,
                "FloorDiv" => |a, b| (b != 0).then(|| a.div_euclid(b)).filter(|_| b > 0),
                "FloorMod" => |a, b| (b > 0).then(|| a.rem_euclid(b)),
                "Maximum" => |a, b| Some(a.max(b)),
                "Minimum" => |a, b| Some(a.min(b)),
                _ => return None,
            };
            let (a, b) = (shape_of(0)?.to_shape()?, shape_of(1)?.to_shape()?);
            if a.rank() > 1 && a != b && b.rank() > 0 || b.rank() > 1 && a != b && a.rank() > 0 {
                return None;
            }
            pairwise(input(0)?, input(1)?, apply)
        }
    }
}

/// How many elements lie together when tensors of such dimensions are joined along an axis.
fn run(dims: &[usize], axis: i64) -> Option<usize> {
    let rank = dims.len() as i64;
    let axis = usize::try_from(if axis < 0 { axis + rank } else { axis }).ok()?;
    Some(dims.get(axis..)?.iter().product())
}

/// Tensors joined along an axis: in turn a run of each.
fn interleaved(parts: &[(Vec<Option<i64>>, usize)]) -> Option<Vec<Option<i64>>> {
    let total: usize = parts.iter().map(|(part, _)| part.len()).sum();
    let mut out = Vec::with_capacity(total);
    let mut turn = 0;
    while out.len() < total {
        for (part, run) in parts {
            out.extend(part.get(turn * run..(turn + 1) * run)?);
        }
        turn += 1;
    }
    Some(out)
}

fn elements(shape: &downpour_tensor::PartialShape) -> Option<usize> {
    Some(shape.to_shape()?.num_elements()).filter(|n| *n <= MAX_ELEMENTS)
}

fn range(start: i64, limit: i64, step: i64) -> Option<Vec<Option<i64>>> {
    let mut out = Vec::new();
    let mut at = start;
    while (step > 0 && at < limit) || (step < 0 && at > limit) {
        if out.len() == MAX_ELEMENTS {
            return None;
        }
        out.push(Some(at));
        at = at.checked_add(step)?;
    }
    (step != 0).then_some(out)
}

/// A slice of a vector, as `shape(x)[1:3]` or `shape(x)[0]` make it.
fn strided(
    node: &Node,
    from: Vec<Option<i64>>,
    begin: Vec<Option<i64>>,
    end: Vec<Option<i64>>,
    step: Vec<Option<i64>>,
) -> Option<Vec<Option<i64>>> {
    let mask = |name: &str| node.attrs.int(name).ok();
    if mask("ellipsis_mask")? != 0 || mask("new_axis_mask")? != 0 {
        return None;
    }
    let ([begin], [end], [Some(step)]) = (begin.as_slice(), end.as_slice(), step.as_slice()) else {
        return None;
    };
    let len = from.len() as i64;
    let wrap = |i: i64| if i < 0 { i + len } else { i };
    if mask("shrink_axis_mask")? & 1 == 1 {
        let at = usize::try_from(wrap((*begin)?)).ok()?;
        return Some(vec![*from.get(at)?]);
    }
    let (low, high) = if *step > 0 { (0, len) } else { (-1, len - 1) };
    let begin = match mask("begin_mask")? & 1 {
        1 => {
            if *step > 0 {
                0
            } else {
                len - 1
            }
        }
        _ => wrap((*begin)?).clamp(low, high),
    };
    let end = match mask("end_mask")? & 1 {
        1 => {
            if *step > 0 {
                len
            } else {
                -1
            }
        }
        _ => wrap((*end)?).clamp(low, high),
    };
    let positions = range(begin, end, *step)?;
    let get = |i: Option<i64>| from.get(usize::try_from(i?).ok()?).copied();
    positions.into_iter().map(get).collect()
}

fn pairwise(
    a: Vec<Option<i64>>,
    b: Vec<Option<i64>>,
    apply: fn(i64, i64) -> Option<i64>,
) -> Option<Vec<Option<i64>>> {
    let n = a.len().max(b.len());
    if (a.len() != n && a.len() != 1) || (b.len() != n && b.len() != 1) {
        return None;
    }
    let at = |v: &[Option<i64>], i: usize| if v.len() == 1 { v[0] } else { v[i] };
    Some((0..n).map(|i| apply(at(&a, i)?, at(&b, i)?)).collect())
}

/// The only element of a constant, as a number.
pub(super) fn number(value: &Tensor) -> Option<f64> {
    Some(match value.dtype() {
        DType::Float => value.scalar_value::<f32>().ok()?.into(),
        DType::Double => value.scalar_value::<f64>().ok()?,
        DType::Half => value.scalar_value::<half::f16>().ok()?.into(),
        DType::BFloat16 => value.scalar_value::<half::bf16>().ok()?.into(),
        _ => return None,
    })
}
