//! Gradients of arithmetic, reductions and products.

use super::{Back, Grads, Rule};
use crate::Output;
use downpour_graph::Result;
use downpour_tensor::DType;

pub(super) fn rule(op: &str) -> Option<Rule> {
    Some(match op {
        "Add" | "AddV2" => |b| broadcast(b, b.dy(0), b.dy(0)),
        "Sub" => |b| broadcast(b, b.dy(0), -b.dy(0)),
        "Mul" => |b| broadcast(b, b.dy(0) * conj(&b.x(1)), b.dy(0) * conj(&b.x(0))),
        "RealDiv" | "Div" => |b| {
            let (x, y, dy) = (conj(&b.x(0)), conj(&b.x(1)), b.dy(0));
            let dx = &dy / &y;
            broadcast(b, dx, dy * (-x / &y / &y))
        },
        "Neg" => |b| one(-b.dy(0)),
        "Square" => |b| one(b.dy(0) * (conj(&b.x(0)) * 2.0)),
        "Exp" => |b| one(b.dy(0) * conj(&b.y(0))),
        "Log" => |b| one(b.dy(0) * conj(&b.x(0)).reciprocal()),
        "Tanh" => |b| one(pair(b, "TanhGrad", &conj(&b.y(0)), &b.dy(0))),
        "Sigmoid" => |b| one(pair(b, "SigmoidGrad", &conj(&b.y(0)), &b.dy(0))),
        "Sqrt" => |b| one(pair(b, "SqrtGrad", &b.y(0), &b.dy(0))),
        "Sum" => |b| {
            let (dy, _) = spread(b);
            Ok(vec![Some(dy.into()), None])
        },
        "Mean" => |b| {
            let (dy, factor) = spread(b);
            Ok(vec![Some((dy / factor.cast(b.x(0).dtype())).into()), None])
        },
        "MatMul" => matmul,
        "Cast" => |b| match super::flows(b.x(0).dtype()) {
            true => one(b.dy(0).cast(b.x(0).dtype())),
            false => Ok(vec![None]),
        },
        "AddN" => |b| Ok(vec![b.gradient(0).cloned(); b.op().num_inputs()]),
        _ => return None,
    })
}

/// The only input's gradient.
pub(super) fn one(dx: Output) -> Result<Grads> {
    Ok(vec![Some(dx.into())])
}

/// `op` of two tensors.
pub(super) fn pair(b: &Back, op: &str, x: &Output, y: &Output) -> Output {
    b.graph().op(op).input(x).input(y).output()
}

/// The complex conjugate; a real tensor is its own.
pub(super) fn conj(x: &Output) -> Output {
    match x.dtype() {
        DType::Complex64 | DType::Complex128 => x.graph().op("Conj").input(x).output(),
        _ => x.clone(),
    }
}

/// Sums gradients over the dimensions along which an input was broadcast.
pub(super) fn broadcast(b: &Back, dx: Output, dy: Output) -> Result<Grads> {
    let (x, y) = (b.x(0), b.x(1));
    let (known_x, known_y) = (x.shape(), y.shape());
    if known_x.to_shape().is_some() && known_x == known_y {
        return Ok(vec![Some(dx.into()), Some(dy.into())]);
    }
    let (shape_x, shape_y) = (x.shape_op(), y.shape_op());
    let op = b.graph().op("BroadcastGradientArgs").input(&shape_x);
    let axes = op.input(&shape_y).outputs();
    if axes.len() != 2 {
        return Ok(vec![None, None]);
    }
    let back = |g: Output, axes: &Output, shape: &Output| {
        let sum = b.graph().op("Sum").input(&g).input(axes).output();
        sum.reshape_to(shape)
    };
    Ok(vec![
        Some(back(dx, &axes[0], &shape_x).into()),
        Some(back(dy, &axes[1], &shape_y).into()),
    ])
}

/// The gradient of a sum, spread over what was summed, and how many elements each sum had.
fn spread(b: &Back) -> (Output, Output) {
    let g = b.graph();
    let (x, axes) = (b.x(0), b.x(1).cast(DType::Int32));
    let shape = x.shape_op();
    let rank = shape.size_op();
    // The shape with 1 in place of each dimension that was reduced.
    let wrapped = (&axes + &rank) % &rank;
    let ones = wrapped.ones_like();
    let all = g.range_to_rank(&x);
    let kept = g
        .op("DynamicStitch")
        .inputs(&[all, wrapped])
        .inputs(&[shape.clone(), ones])
        .output();
    let tall = b.dy(0).reshape_to(&kept);
    let spread = g.op("BroadcastTo").input(&tall).input(&shape).output();
    let zero = g.constant(0i32);
    let total = |s: &Output| g.op("Prod").input(s).input(&zero).output();
    let one = g.constant(1i32);
    let factor = total(&shape).floor_div(&total(&kept).maximum(&one));
    (spread, factor)
}

fn matmul(b: &Back) -> Result<Grads> {
    let flip = |name: &str| b.op().attrs().bool(name);
    let (ta, tb) = (flip("transpose_a")?, flip("transpose_b")?);
    let (x, y, dy) = (conj(&b.x(0)), conj(&b.x(1)), b.dy(0));
    let product = |a: &Output, ta: bool, b: &Output, tb: bool| a.matmul_as(b, ta, tb);
    let (dx, dy) = match (ta, tb) {
        (false, false) => (product(&dy, false, &y, true), product(&x, true, &dy, false)),
        (false, true) => (
            product(&dy, false, &y, false),
            product(&dy, true, &x, false),
        ),
        (true, false) => (
            product(&y, false, &dy, true),
            product(&x, false, &dy, false),
        ),
        (true, true) => (product(&y, true, &dy, true), product(&dy, true, &x, true)),
    };
    Ok(vec![Some(dx.into()), Some(dy.into())])
}
