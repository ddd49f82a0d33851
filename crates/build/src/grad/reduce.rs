//! Gradients of reductions and running sums.

use super::terms::{
    call, conj, count_to, join, known_ints, of, product, rank_of, rows, shape_of, sum_over,
};
use super::{Back, Grads, Rule};
use crate::Output;
use downpour_graph::Result;
use downpour_tensor::DType;
use half::{bf16, f16};

pub(super) fn rule(op: &str) -> Option<Rule> {
    Some(match op {
        "Sum" => |b| b.only(0, spread(b, &b.dy(0))),
        "Mean" => |b| {
            let sum = spread(b, &b.dy(0));
            let count = reduced_count(b).cast(sum.dtype());
            b.only(0, sum / count)
        },
        "Max" | "Min" => extreme,
        "Prod" => prod,
        "EuclideanNorm" => |b| {
            let kept = kept_shape(&b.x(0), &b.x(1));
            let (y, dy) = (b.y(0).reshape_to(&kept), b.dy(0).reshape_to(&kept));
            b.only(0, b.x(0) / (y / dy))
        },
        "Cumsum" => |b| b.only(0, running(b, "Cumsum", &b.dy(0), true)?),
        "Cumprod" => |b| {
            let y = running(b, "Cumprod", &b.x(0), false)?;
            let sum = running(b, "Cumsum", &(y * b.dy(0)), true)?;
            b.only(0, sum.div_no_nan(&b.x(0)))
        },
        "CumulativeLogsumexp" => logsumexp,
        _ => return None,
    })
}

/// A shape with 1 in place of each dimension that is reduced.
pub(super) fn kept_shape(x: &Output, axes: &Output) -> Output {
    if let (Some(shape), Some(axes)) = (x.shape().to_shape(), known_ints(axes)) {
        let rank = shape.rank() as i64;
        let mut dims: Vec<i32> = shape.iter().map(|d| *d as i32).collect();
        for axis in axes {
            if let Some(dim) = dims.get_mut(if axis < 0 { axis + rank } else { axis } as usize) {
                *dim = 1;
            }
        }
        return x.graph().constant(dims);
    }
    kept_dims(&shape_of(x), axes)
}

/// The same for a shape that the step computes.
pub(super) fn kept_dims(shape: &Output, axes: &Output) -> Output {
    let (shape, axes) = (shape.cast(DType::Int32), axes.cast(DType::Int32));
    let rank = shape.size_op();
    let wrapped = (axes + &rank) % &rank;
    let ones = wrapped.ones_like();
    let stitch = shape.graph().op("DynamicStitch");
    stitch
        .inputs(&[count_to(&rank), wrapped])
        .inputs(&[shape, ones])
        .output()
}

/// The gradient of a sum, for each element that was summed.
fn spread(b: &Back, dy: &Output) -> Output {
    let tall = dy.reshape_to(&kept_shape(&b.x(0), &b.x(1)));
    of("BroadcastTo", &[&tall, &shape_of(&b.x(0))])
}

/// How many elements went into each element of the result.
fn reduced_count(b: &Back) -> Output {
    let (x, y) = (b.x(0), b.y(0));
    if let (Some(x), Some(y)) = (x.shape().to_shape(), y.shape().to_shape()) {
        let count = x.num_elements() / y.num_elements().max(1);
        return b.graph().constant(count as i64);
    }
    let (shape, rank) = (shape_of(&x), rank_of(&x));
    let axes = (b.x(1).cast(DType::Int32) + &rank) % &rank;
    product(&rows(&shape, &axes).reshape(&[-1]))
}

/// Elements equal to the extreme share its gradient.
fn extreme(b: &Back) -> Result<Grads> {
    let (x, axes) = (b.x(0), b.x(1));
    let kept = kept_shape(&x, &axes);
    let (y, dy) = (b.y(0).reshape_to(&kept), b.dy(0).reshape_to(&kept));
    let hits = y.equal(&x).cast(dy.dtype());
    let number = sum_over(&hits, &axes, false).reshape_to(&kept);
    b.only(0, hits / number * dy)
}

/// The product of all other elements, by running products from both sides.
fn prod(b: &Back) -> Result<Grads> {
    let (x, g) = (b.x(0), b.graph());
    let (shape, rank) = (shape_of(&x), rank_of(&x));
    let axes = (b.x(1).reshape(&[-1]).cast(DType::Int32) + &rank) % &rank;
    let others = of("ListDiff", &[&count_to(&rank), &axes]);
    let order = join(&[&axes, &others]);
    let numbers = [&axes, &others].map(|axes| product(&rows(&shape, axes)));
    let ahead = of("Transpose", &[&x, &order]);
    let flat = ahead.reshape_to(&crate::stack(&numbers, 0));
    let others_of = |reverse: bool| {
        let op = call("Cumprod", &[&flat, &g.constant(0i32)]);
        let op = op.attr("exclusive", true).attr("reverse", reverse);
        conj(&op.output())
    };
    let rest = (others_of(false) * others_of(true)).reshape_to(&shape_of(&ahead));
    let back = of("Transpose", &[&rest, &of("InvertPermutation", &[&order])]);
    b.only(0, (spread(b, &b.dy(0)) * back).reshape_to(&shape))
}

/// A running sum or product along the operation's axis, in its direction or the other.
fn running(b: &Back, op: &str, x: &Output, turned: bool) -> Result<Output> {
    let op = call(op, &[x, &b.x(1)]).attr("exclusive", b.flag("exclusive")?);
    Ok(op.attr("reverse", b.flag("reverse")? != turned).output())
}

/// In logarithms, positive and negative gradients apart.
fn logsumexp(b: &Back) -> Result<Grads> {
    let dy = b.dy(0);
    let lowest = dy.scalar_like(match dy.dtype() {
        DType::Half => f64::from(f16::MIN),
        DType::BFloat16 => f64::from(bf16::MIN),
        DType::Double => f64::MIN,
        _ => f64::from(f32::MIN),
    });
    let zero = dy.scalar_like(0.0);
    let side = |mask: Output, size: &Output| -> Result<Output> {
        let log = mask.select(&size.log(), &lowest) - b.y(0);
        Ok((running(b, "CumulativeLogsumexp", &log, true)? + b.x(0)).exp())
    };
    let above = side(dy.greater(&zero), &dy)?;
    let below = side(dy.less(&zero), &-&dy)?;
    b.only(0, above - below)
}
