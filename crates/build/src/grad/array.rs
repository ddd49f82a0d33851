//! Gradients of operations that join, cut, pad, repeat and rearrange tensors.

use super::math::one;
use super::terms::{
    call, from, ints, join, known_ints, of, rank_of, shape_as, shape_of, sum_over, to, vector,
};
use super::{Back, Gradient, Grads, IndexedSlices, Rule};
use crate::Output;
use downpour_graph::{Result, Status};
use downpour_tensor::DType;

pub(super) fn rule(op: &str) -> Option<Rule> {
    same(op)
        .or_else(|| cut(op))
        .or_else(|| moved(op))
        .or_else(|| diagonal(op))
}

/// Operations that hand on their input, or its elements in another shape.
fn same(op: &str) -> Option<Rule> {
    Some(match op {
        "Identity" | "RefIdentity" | "PlaceholderWithDefault" | "EnsureShape" => {
            |b| Ok(vec![b.gradient(0).cloned()])
        }
        "IdentityN" => |b| {
            let n = b.op().num_inputs();
            Ok((0..n).map(|i| b.given_or_zeros(i)).collect())
        },
        "Print" => |b| match b.gradient(0).cloned() {
            Some(dx) => b.only(0, dx),
            None => b.nothing(),
        },
        "QuantizeAndDequantizeV2" | "QuantizeAndDequantizeV3" => |b| b.only(0, b.dy(0)),
        "CheckNumerics" | "CheckNumericsV2" => |b| {
            let message = format!(
                "Not a number (NaN) or infinity (Inf) values detected in gradient. {}",
                b.text("message")
            );
            one(call(&b.op().op(), &[&b.dy(0)])
                .attr("message", message.as_str())
                .output())
        },
        "PreventGradient" => |b| {
            Err(Status::not_found(format!(
                "Gradient explicitly disabled. Reason: {}",
                b.text("message")
            )))
        },
        "Reshape" | "ExpandDims" | "Squeeze" => {
            |b| b.only(0, b.dy(0).reshape_to(&shape_of(&b.x(0))))
        }
        "BroadcastTo" => |b| {
            let shape = shape_as(&b.x(0), b.x(1).dtype());
            let axes = call("BroadcastGradientArgs", &[&b.x(1), &shape]).build();
            b.only(
                0,
                sum_over(&b.dy(0), &axes.output(1), true).reshape_to(&shape),
            )
        },
        "Fill" => |b| b.only(1, b.dy(0).sum(())),
        "Tile" => tile,
        _ => return None,
    })
}

/// Operations that join tensors or take parts of them.
fn cut(op: &str) -> Option<Rule> {
    Some(match op {
        "Pack" => |b| {
            let op = call("Unpack", &[&b.dy(0)]).attr("num", b.int("N")?);
            let parts = op.attr("axis", b.int("axis")?).outputs();
            Ok(parts.into_iter().map(|p| Some(p.into())).collect())
        },
        "Unpack" => |b| {
            let parts: Vec<Output> = (0..b.op().num_outputs()).map(|i| b.dy(i)).collect();
            let op = b.graph().op("Pack").inputs(&parts);
            b.only(0, op.attr("axis", b.int("axis")?).output())
        },
        "Concat" => |b| concat(b, 0, 1),
        "ConcatV2" => |b| concat(b, b.op().num_inputs() - 1, 0),
        "Split" => |b| b.only(1, joined(b, &b.x(0))),
        "SplitV" => |b| b.only(0, joined(b, &b.x(2))),
        "Slice" => |b| {
            let (x, begin) = (b.x(0), b.x(1));
            let taken = shape_as(&b.y(0), begin.dtype());
            let after = shape_as(&x, begin.dtype()) - taken - &begin;
            let column = |v: &Output| v.reshape(&[-1, 1]);
            let around = crate::concat(&[column(&begin), column(&after)], 1);
            b.only(0, of("Pad", &[&b.dy(0), &around]))
        },
        "StridedSlice" => |b| {
            let shape = shape_as(&b.x(0), b.x(1).dtype());
            let op = call(
                "StridedSliceGrad",
                &[&shape, &b.x(1), &b.x(2), &b.x(3), &b.dy(0)],
            );
            b.only(0, op.attrs_of(b.op(), MASKS).output())
        },
        "StridedSliceGrad" => |b| {
            let op = call("StridedSlice", &[&b.dy(0), &b.x(1), &b.x(2), &b.x(3)]);
            b.only(4, op.attrs_of(b.op(), MASKS).output())
        },
        "TensorStridedSliceUpdate" => |b| {
            let at = [b.x(1), b.x(2), b.x(3)];
            let [begin, end, step] = &at;
            let op = call("StridedSlice", &[&b.dy(0), begin, end, step]);
            let part = op.attrs_of(b.op(), MASKS).output();
            let rest = call(
                "TensorStridedSliceUpdate",
                &[&b.dy(0), begin, end, step, &part.zeros_like()],
            );
            let rest = rest.attrs_of(b.op(), MASKS).output();
            let shape = shape_as(&b.x(4), begin.dtype());
            let full = shape_as(&part, begin.dtype());
            let axes = call("BroadcastGradientArgs", &[&full, &shape]).build();
            let value = sum_over(&part, &axes.output(1), true).reshape_to(&shape);
            b.some([(0, rest), (4, value)])
        },
        "Pad" | "PadV2" => |b| {
            let (x, around) = (b.x(0), b.x(1));
            let size = vector(&[&rank_of(&x), &b.graph().constant(1i32)]);
            let before = of("Slice", &[&around, &ints(b.graph(), &[0, 0]), &size]);
            let begin = before.reshape(&[-1]);
            let size = shape_as(&x, begin.dtype());
            b.only(0, of("Slice", &[&b.dy(0), &begin, &size]))
        },
        "MirrorPad" => |b| mirrored(b, "MirrorPadGrad"),
        "MirrorPadGrad" => |b| mirrored(b, "MirrorPad"),
        _ => return None,
    })
}

const MASKS: &[&str] = &[
    "begin_mask",
    "end_mask",
    "ellipsis_mask",
    "new_axis_mask",
    "shrink_axis_mask",
];

/// Operations that put elements into another order.
fn moved(op: &str) -> Option<Rule> {
    Some(match op {
        "Transpose" | "ConjugateTranspose" => |b| {
            let order = of("InvertPermutation", &[&b.x(1)]);
            b.only(0, of(&b.op().op(), &[&b.dy(0), &order]))
        },
        "Reverse" | "ReverseV2" => |b| b.only(0, of(&b.op().op(), &[&b.dy(0), &b.x(1)])),
        "ReverseSequence" => |b| {
            let op = call("ReverseSequence", &[&b.dy(0), &b.x(1)]);
            b.only(0, op.attrs_of(b.op(), &["seq_dim", "batch_dim"]).output())
        },
        "Roll" => |b| b.only(0, of("Roll", &[&b.dy(0), &-b.x(1), &b.x(2)])),
        "SpaceToBatch" => |b| blocks(b, "BatchToSpace"),
        "BatchToSpace" => |b| blocks(b, "SpaceToBatch"),
        "SpaceToBatchND" => |b| b.only(0, of("BatchToSpaceND", &[&b.dy(0), &b.x(1), &b.x(2)])),
        "BatchToSpaceND" => |b| b.only(0, of("SpaceToBatchND", &[&b.dy(0), &b.x(1), &b.x(2)])),
        "SpaceToDepth" => |b| depth(b, "DepthToSpace"),
        "DepthToSpace" => |b| depth(b, "SpaceToDepth"),
        _ => return None,
    })
}

/// Diagonals of tensors and of matrices.
fn diagonal(op: &str) -> Option<Rule> {
    Some(match op {
        "Diag" => |b| one(of("DiagPart", &[&b.dy(0)])),
        "DiagPart" => |b| one(of("Diag", &[&b.dy(0)])),
        "MatrixDiag" => |b| one(of("MatrixDiagPart", &[&b.dy(0)])),
        "MatrixDiagPart" => |b| one(of("MatrixSetDiag", &[&b.x(0).zeros_like(), &b.dy(0)])),
        "MatrixDiagV2" | "MatrixDiagV3" => |b| b.only(0, diag_part(b, &b.x(1))),
        "MatrixDiagPartV2" | "MatrixDiagPartV3" => {
            |b| b.only(0, set_diag(b, &b.x(0).zeros_like(), &b.dy(0), &b.x(1)))
        }
        "MatrixSetDiag" => |b| {
            let diag = of("MatrixDiagPart", &[&b.dy(0)]);
            let rest = of("MatrixSetDiag", &[&b.dy(0), &diag.zeros_like()]);
            b.some([(0, rest), (1, diag)])
        },
        "MatrixSetDiagV2" | "MatrixSetDiagV3" => |b| {
            let diag = diag_part(b, &b.x(2));
            let rest = set_diag(b, &b.dy(0), &diag.zeros_like(), &b.x(2));
            b.some([(0, rest), (1, diag)])
        },
        "MatrixBandPart" => |b| b.only(0, of("MatrixBandPart", &[&b.dy(0), &b.x(1), &b.x(2)])),
        _ => return None,
    })
}

/// How an operation on several diagonals aligns them: only the third version can say.
fn align(b: &Back) -> String {
    match b.text("align") {
        none if none.is_empty() => "LEFT_LEFT".to_owned(),
        align => align,
    }
}

/// Diagonals `k` of the gradient.
fn diag_part(b: &Back, k: &Output) -> Output {
    let dy = b.dy(0);
    call("MatrixDiagPartV3", &[&dy, k, &dy.scalar_like(0.0)])
        .attr("align", align(b).as_str())
        .output()
}

/// A matrix with other diagonals `k`.
fn set_diag(b: &Back, matrix: &Output, diag: &Output, k: &Output) -> Output {
    call("MatrixSetDiagV3", &[matrix, diag, k])
        .attr("align", align(b).as_str())
        .output()
}

fn tile(b: &Back) -> Result<Grads> {
    let (x, times) = (b.x(0), b.x(1));
    let shape = shape_as(&x, times.dtype());
    // Each dimension as (repeats, length); the repeats add up.
    let pairs = crate::stack(&[times, shape.clone()], 1).reshape(&[-1]);
    let g = b.graph();
    let (zero, two) = (g.constant(0i32), g.constant(2i32));
    let axes = of("Range", &[&zero, &pairs.size_op(), &two]);
    let sum = sum_over(&b.dy(0).reshape_to(&pairs), &axes, false);
    b.only(0, sum.reshape_to(&shape))
}

/// The gradients of a split's parts, joined along its axis.
fn joined(b: &Back, axis: &Output) -> Output {
    let parts: Vec<Output> = (0..b.op().num_outputs()).map(|i| b.dy(i)).collect();
    match parts.as_slice() {
        [one] => one.clone(),
        parts => b.graph().op("ConcatV2").inputs(parts).input(axis).output(),
    }
}

fn mirrored(b: &Back, op: &str) -> Result<Grads> {
    let op = call(op, &[&b.dy(0), &b.x(1)]);
    b.only(0, op.attrs_of(b.op(), &["mode"]).output())
}

fn blocks(b: &Back, op: &str) -> Result<Grads> {
    let op = call(op, &[&b.dy(0), &b.x(1)]);
    b.only(0, op.attrs_of(b.op(), &["block_size"]).output())
}

fn depth(b: &Back, op: &str) -> Result<Grads> {
    if b.text("data_format") == "NCHW_VECT_C" {
        return b.refuse("NCHW_VECT_C requires the type qint8");
    }
    let op = call(op, &[&b.dy(0)]);
    one(op.attrs_of(b.op(), &["block_size", "data_format"]).output())
}

/// Each input's part of the gradient; `axis` and `first` are inputs.
fn concat(b: &Back, axis: usize, first: usize) -> Result<Grads> {
    let n = b.op().num_inputs() - 1;
    let mut grads: Grads = vec![None; n + 1];
    if n == 1 {
        grads[first] = b.gradient(0).cloned();
        return Ok(grads);
    }
    let parts: Vec<Output> = (first..first + n).map(|i| b.x(i)).collect();
    if let (Some(Gradient::Sparse(slices)), Some([axis])) =
        (b.gradient(0), known_ints(&b.x(axis)).as_deref())
        && let Some(axis) = wrapped(*axis, b.y(0).rank())
    {
        for (i, part) in sparse_parts(slices, &parts, axis).into_iter().enumerate() {
            grads[first + i] = Some(Gradient::Sparse(part));
        }
        return Ok(grads);
    }
    let rank = rank_of(&parts[0]);
    let axis = b.x(axis).cast(DType::Int32) % &rank;
    let sizes: Vec<Output> = parts.iter().map(shape_of).collect();
    let offset = b.graph().op("ConcatOffset").input(&axis).inputs(&sizes);
    for (i, (begin, size)) in offset.outputs().iter().zip(&sizes).enumerate() {
        grads[first + i] = Some(of("Slice", &[&b.dy(0), begin, size]).into());
    }
    Ok(grads)
}

/// An axis counted from the front; from the end it needs the rank.
fn wrapped(axis: i64, rank: Option<usize>) -> Option<i64> {
    match axis {
        0.. => Some(axis),
        _ => Some(axis + rank? as i64),
    }
}

/// The rows of a gradient that belong to each part, or each part's columns of all rows.
fn sparse_parts(slices: &IndexedSlices, parts: &[Output], axis: i64) -> Vec<IndexedSlices> {
    let mut out = Vec::with_capacity(parts.len());
    let g = slices.values.graph();
    if axis > 0 {
        let rank = shape_of(&parts[0]).size_op();
        let (axis, minus) = (g.constant(axis as i32), ints(g, &[-1]));
        let one_hot = of(
            "OneHot",
            &[&axis, &rank, &g.constant(1i32), &g.constant(0i32)],
        );
        let mut begin = one_hot.zeros_like();
        for part in parts {
            let shape = shape_of(part);
            let size = join(&[&minus, &from(&shape, 1)]);
            let values = of("Slice", &[&slices.values, &begin, &size]);
            begin = begin + &shape * &one_hot;
            out.push(IndexedSlices {
                values,
                indices: slices.indices.clone(),
                shape,
            });
        }
        return out;
    }
    let mut start = slices.indices.scalar_like(0.0);
    for part in parts {
        let shape = shape_of(part);
        let rows = to(&shape, 1).reshape(&[]).cast(slices.indices.dtype());
        let end = &start + rows;
        let inside = slices
            .indices
            .greater_equal(&start)
            .logical_and(&slices.indices.less(&end));
        let which = of("Where", &[&inside]).squeeze(&[1]);
        out.push(IndexedSlices {
            values: slices.values.gather(&which, 0),
            indices: slices.indices.gather(&which, 0) - &start,
            shape,
        });
        start = end;
    }
    out
}
