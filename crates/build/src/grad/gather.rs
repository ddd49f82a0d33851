//! Gradients of operations that take or put elements at positions. Whole rows stay sparse.

use super::math::one;
use super::terms::{
    at, call, count_to, from, ints, join, known_ints, of, product, range, rows, shape_as, shape_of,
    to, vector,
};
use super::{Back, Gradient, Grads, IndexedSlices, Rule};
use crate::Output;
use downpour_graph::Result;
use downpour_tensor::DType;

pub(super) fn rule(op: &str) -> Option<Rule> {
    Some(match op {
        "Gather" => |b| b.only(0, taken_rows(b, shape_of(&b.x(0)))),
        "ResourceGather" => |b| b.only(0, taken_rows(b, variable_shape(&b.x(0), DType::Int32))),
        "GatherV2" => gather_v2,
        "GatherNd" => |b| {
            let shape = shape_as(&b.x(0), b.x(1).dtype());
            b.only(0, gather_nd(b, shape))
        },
        "ResourceGatherNd" => |b| {
            let shape = variable_shape(&b.x(0), b.x(1).dtype());
            b.only(0, gather_nd(b, shape))
        },
        "ScatterNd" => |b| b.only(1, of("GatherNd", &[&b.dy(0), &b.x(0)])),
        "ScatterNdNonAliasingAdd" | "TensorScatterAdd" => {
            |b| b.some([(0, b.dy(0)), (2, of("GatherNd", &[&b.dy(0), &b.x(1)]))])
        }
        "TensorScatterSub" => {
            |b| b.some([(0, b.dy(0)), (2, -of("GatherNd", &[&b.dy(0), &b.x(1)]))])
        }
        "TensorScatterUpdate" => |b| {
            let zeros = b.x(2).zeros_like();
            let rest = of("TensorScatterUpdate", &[&b.dy(0), &b.x(1), &zeros]);
            b.some([(0, rest), (2, of("GatherNd", &[&b.dy(0), &b.x(1)]))])
        },
        "TensorScatterMax" | "TensorScatterMin" => scatter_extreme,
        "DynamicPartition" => dynamic_partition,
        "DynamicStitch" | "ParallelDynamicStitch" => |b| {
            let n = b.op().num_inputs() / 2;
            let mut grads: Grads = vec![None; n];
            for i in 0..n {
                let part = rows(&b.dy(0), &b.x(i).cast(DType::Int32));
                grads.push(Some(part.into()));
            }
            Ok(grads)
        },
        "TopK" | "TopKV2" => top_k,
        "NthElement" => |b| {
            let (x, y) = (b.x(0), b.y(0).expand_dims(-1));
            let hits = y.equal(&x).cast(b.dy(0).dtype());
            let number = hits.sum_keep(-1);
            b.only(0, hits / number * b.dy(0).expand_dims(-1))
        },
        "ReadVariableOp" => |b| Ok(vec![b.gradient(0).cloned()]),
        "ExtractImagePatches" => |b| one(patches(b, &[2, 0, 1, 3])?),
        "ExtractVolumePatches" => |b| one(patches(b, &[3, 0, 1, 2, 4])?),
        _ => return None,
    })
}

/// The shape of the variable behind a handle.
fn variable_shape(handle: &Output, dtype: DType) -> Output {
    let g = handle.graph();
    let behind = g.inner.lock().handles.get(&handle.endpoint()).cloned();
    let known = behind.and_then(|(_, shape)| shape.to_shape());
    match (known, dtype) {
        (Some(shape), DType::Int64) => {
            g.constant(shape.iter().map(|d| *d as i64).collect::<Vec<_>>())
        }
        (Some(shape), _) => g.constant(shape.iter().map(|d| *d as i32).collect::<Vec<_>>()),
        (None, _) => call("VariableShape", &[handle])
            .attr("out_type", dtype)
            .output(),
    }
}

/// The gradient of rows that were taken from a tensor of this shape.
fn taken_rows(b: &Back, shape: Output) -> Gradient {
    let indices = b.x(1);
    let count = vector(&[&indices.size_op()]);
    let values = b.dy(0).reshape_to(&join(&[&count, &from(&shape, 1)]));
    Gradient::Sparse(IndexedSlices {
        values,
        indices: indices.reshape(&[-1]),
        shape,
    })
}

fn gather_nd(b: &Back, shape: Output) -> Gradient {
    let indices = b.x(1);
    if matches!(indices.shape().dims(), Some([_, Some(1)])) {
        return Gradient::Sparse(IndexedSlices {
            values: b.dy(0),
            indices: indices.squeeze(&[-1]),
            shape,
        });
    }
    let op = call("ScatterNd", &[&indices, &b.dy(0), &shape]);
    Gradient::Dense(op.attrs_of(b.op(), &["bad_indices_policy"]).output())
}

/// Moves the gathered dimension to where batches end, sums rows per batch, moves it back.
fn gather_v2(b: &Back) -> Result<Grads> {
    let (x, indices, axis, g) = (b.x(0), b.x(1), b.x(2), b.graph());
    let shape = shape_of(&x);
    if known_ints(&axis).as_deref() == Some(&[0]) {
        return b.only(0, taken_rows(b, shape));
    }
    let mut batches = b.int("batch_dims")? as i32;
    if batches < 0 {
        let Some(rank) = indices.rank() else {
            return b.refuse("batch_dims < 0 needs the rank of the indices");
        };
        batches += rank as i32;
    }
    let rank = shape.size_op();
    let axis = axis.cast(DType::Int32) % &rank;
    let one_more = &axis + 1;
    let (zero, one) = (g.constant(0i32), g.constant(1i32));
    let before = range(&zero, &axis, &one);
    let after = range(&one_more, &rank, &one);
    let (outer, inner) = (rows(&shape, &before), rows(&shape, &after));
    let values = b
        .dy(0)
        .reshape_to(&join(&[&outer, &ints(g, &[-1]), &inner]));
    let leading = count_to(&g.constant(batches));
    let middle = range(&g.constant(batches), &axis, &one);
    let ahead = join(&[&leading, &vector(&[&axis]), &middle, &after]);
    let values = of("Transpose", &[&values, &ahead]);
    let ahead_shape = rows(&shape, &ahead);
    let summed = batch_rows(
        &ahead_shape,
        values,
        indices,
        batches,
        &at(&rows(&shape, &vector(&[&axis])), 0),
    );
    let back = join(&[&leading, &(&middle + 1), &ints(g, &[batches]), &after]);
    let dx = of("Transpose", &[&summed, &back]);
    b.only(0, dx.reshape_to(&shape))
}

/// Sums of rows with the same position, in each batch apart; `size` positions per batch.
fn batch_rows(
    shape: &Output,
    values: Output,
    indices: Output,
    batches: i32,
    size: &Output,
) -> Output {
    let g = values.graph().clone();
    if batches == 0 {
        return of(
            "UnsortedSegmentSum",
            &[&values, &indices.reshape(&[-1]), size],
        );
    }
    let full = shape_of(&values);
    let outer = to(&full, batches);
    let flat = join(&[&ints(&g, &[-1]), &from(&full, batches + 1)]);
    let mut positions = indices.clone();
    let dims = shape.cast(indices.dtype());
    let mut step = indices.scalar_like(1.0);
    for dim in (1..=batches).rev() {
        step = step * at(&dims, dim);
        let base = count_to(&at(&dims, dim - 1)) * &step;
        let ones_before = ints(&g, &vec![1; dim as usize - 1]);
        let ones_after = of(
            "Fill",
            &[
                &vector(&[&(of("Rank", &[&indices]) - dim)]),
                &g.constant(1i32),
            ],
        );
        let base = base.reshape_to(&join(&[&ones_before, &ints(&g, &[-1]), &ones_after]));
        positions = positions + base;
    }
    let count = size * product(&outer);
    let rows = values.reshape_to(&flat);
    let sum = of(
        "UnsortedSegmentSum",
        &[&rows, &positions.reshape(&[-1]), &count],
    );
    sum.reshape_to(&join(&[&outer, &flat]))
}

/// Whoever equals the result shares its gradient.
fn scatter_extreme(b: &Back) -> Result<Grads> {
    let (x, indices, y, dy) = (b.x(0), b.x(1), b.x(2), b.dy(0));
    let policy = |op: &str, inputs: &[&Output]| {
        call(op, inputs)
            .attrs_of(b.op(), &["bad_indices_policy"])
            .output()
    };
    let x_hits = x.equal(&b.y(0)).cast(dy.dtype());
    let y_hits = y
        .equal(&policy("GatherNd", &[&b.y(0), &indices]))
        .cast(dy.dtype());
    let shape = shape_as(&x, indices.dtype());
    let hits = &x_hits + policy("ScatterNd", &[&indices, &y_hits, &shape]);
    let dx = &dy * x_hits / &hits;
    let shared = policy("GatherNd", &[&(dy / hits), &indices]);
    b.some([(0, dx), (2, shared * y_hits)])
}

fn dynamic_partition(b: &Back) -> Result<Grads> {
    let (x, partitions) = (b.x(0), b.x(1));
    let shape = shape_of(&partitions);
    let number = b.int("num_partitions")?;
    let all = count_to(&product(&shape)).reshape_to(&shape);
    let op = call("DynamicPartition", &[&all, &partitions]);
    let where_from = op.attr("num_partitions", number).outputs();
    let parts: Vec<Output> = (0..b.op().num_outputs()).map(|i| b.dy(i)).collect();
    let op = b.graph().op("ParallelDynamicStitch").inputs(&where_from);
    let whole = op.inputs(&parts).output();
    b.only(0, whole.reshape_to(&shape_of(&x)))
}

/// Scatters the gradient to where the largest were, in a flat view of all rows.
fn top_k(b: &Back) -> Result<Grads> {
    let g = b.graph();
    let (shape, indices) = (shape_of(&b.x(0)), b.y(1));
    let width = at(&shape, -1).cast(DType::Int64);
    let k = at(&shape_of(&indices), -1);
    let flat = indices.reshape_to(&vector(&[&g.constant(-1i32), &k]));
    let count = at(&shape_of(&flat), 0).cast(DType::Int64);
    let starts = count_to(&count) * width;
    let positions = flat.cast(DType::Int64) + starts.expand_dims(-1);
    let whole = vector(&[&product(&shape)]).cast(DType::Int64);
    let positions = positions.reshape(&[-1, 1]);
    let dx = of("ScatterNd", &[&positions, &b.dy(0).reshape(&[-1]), &whole]);
    b.only(0, dx.reshape_to(&shape))
}

/// Adds up each input element's copies: patches of the elements' numbers say where each copy
/// came from; 0 is padding. `order` moves the batch back to the front.
fn patches(b: &Back, order: &[i32]) -> Result<Output> {
    let g = b.graph();
    let (shape, out) = (
        shape_as(&b.x(0), DType::Int64),
        shape_as(&b.y(0), DType::Int64),
    );
    let one = g.constant([1i64]);
    let (size, batch, channels) = (pick_inner(&shape), to(&shape, 1), from(&shape, -1));
    let count = product(&size);
    let numbers = range(&g.constant(1i64), &(&count + 1), &g.constant(1i64));
    let grid = numbers
        .cast(DType::Double)
        .reshape_to(&join(&[&one, &size, &one]));
    let op = call(&b.op().op(), &[&grid]);
    let op = op.attrs_of(b.op(), &["ksizes", "strides", "rates", "padding"]);
    let origins = op.output().cast(DType::Int64).reshape(&[-1]) - 1;
    let ksizes: Vec<i64> = b.op().attrs().ints("ksizes")?.to_vec();
    let window = g.constant(
        ksizes
            .get(1..ksizes.len().max(2) - 1)
            .unwrap_or_default()
            .to_vec(),
    );
    let split = join(&[&batch, &pick_inner(&out), &window, &channels]);
    // [batch, places…, window…, channels] → [places…, window…, batch, channels].
    let inner = (order.len() - 2) as i32 * 2;
    let ahead: Vec<i32> = (1..=inner).chain([0, inner + 1]).collect();
    let copies = b.dy(0).reshape_to(&split).transpose(&ahead);
    let wide = join(&[&g.constant([-1i64]), &(&batch * &channels)]);
    let sums = of(
        "UnsortedSegmentSum",
        &[&copies.reshape_to(&wide), &origins, &count],
    );
    Ok(sums
        .reshape_to(&join(&[&size, &batch, &channels]))
        .transpose(order))
}

/// A shape without its first and last dimension.
fn pick_inner(shape: &Output) -> Output {
    to(&from(shape, 1), -1)
}
