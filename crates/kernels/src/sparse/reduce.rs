//! Reductions over dimensions of a sparse tensor, to dense or sparse results, and
//! `SparseSoftmax`. Halves are computed in f32 and rounded once.

use super::form::{Places, created, dense_shape, groups, invalid, joined, picked, vector};
use super::number::{Number, with_number};
use super::segment::{narrowed, widened};
use crate::args::ints;
use crate::types::{NUMBERS, REALS, with_type};
use downpour_graph::{Code, Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{DType, Shape, Tensor};
use std::ops::Range;

pub(crate) fn register(r: &mut Registry) {
    for op in ["SparseReduceSum", "SparseReduceSumSparse"] {
        r.add_typed(op, &[("T", NUMBERS)], |b| reduction(b, false));
    }
    for op in ["SparseReduceMax", "SparseReduceMaxSparse"] {
        r.add_typed(op, &[("T", REALS)], |b| reduction(b, true));
    }
    let floats: &[DType] = &[DType::Half, DType::Float, DType::Double];
    r.add_typed("SparseSoftmax", &[("T", floats)], |_| Built::cheap(softmax));
}

fn reduction(b: &KernelBuilder<'_>, max: bool) -> Result<Built> {
    let keep = b.attrs().bool("keep_dims")?;
    let to_dense = b.node.output_types.len() == 1;
    Built::cheap(move |ctx| reduce(ctx, max, keep, to_dense))
}

fn reduce(ctx: &mut OpContext<'_>, max: bool, keep: bool, to_dense: bool) -> Result<()> {
    let (indices, values) = (ctx.input(0)?, ctx.input(1)?);
    let (shape, axes) = (ctx.input(2)?, ctx.input(3)?);
    if shape.rank() != 1 {
        return invalid(format!(
            "Expected input_shape to be a vector; got shape: {}",
            shape.shape()
        ));
    }
    if axes.rank() > 1 {
        return invalid(format!(
            "Expected reduction_axes to be a scalar or a vector; got shape: {}",
            axes.shape()
        ));
    }
    let dims = shape.as_slice::<i64>()?;
    dense_shape(dims)?;
    let places = created(indices, values, dims.len())?;
    let mut reduced = vec![false; dims.len()];
    for axis in ints(axes)? {
        match crate::args::axis(axis, dims.len()) {
            Some(d) => reduced[d] = true,
            None => {
                return invalid(format!(
                    "Invalid reduction dimension {axis}, for input with {} dimensions.",
                    dims.len()
                ));
            }
        }
    }
    let kept: Vec<usize> = (0..dims.len()).filter(|d| !reduced[*d]).collect();
    let gone = (0..dims.len()).filter(|d| reduced[*d]);
    let order = places.order_by(&kept.iter().copied().chain(gone).collect::<Vec<_>>());
    let groups = groups(places, &order, &kept);
    let out_dims: Vec<i64> = match keep {
        true => (0..dims.len())
            .map(|d| if reduced[d] { 1 } else { dims[d] })
            .collect(),
        false => kept.iter().map(|&d| dims[d]).collect(),
    };
    let dtype = values.dtype();
    let wide = widened(values)?;
    let results = with_number!(wide.dtype(), T =>
        folded::<T>(wide.as_slice()?, &order, &groups, max));
    let results = narrowed(results, dtype)?;
    if to_dense {
        let out = scattered(
            ctx, places, &order, &groups, &kept, dims, &out_dims, &results,
        )?;
        ctx.set_output(0, out);
        return Ok(());
    }
    let mut at = Vec::with_capacity(groups.len() * out_dims.len());
    for group in &groups {
        let row = places.row(order[group.start]);
        match keep {
            true => at.extend((0..dims.len()).map(|d| if reduced[d] { 0 } else { row[d] })),
            false => at.extend(kept.iter().map(|&d| row[d])),
        }
    }
    let at = Tensor::from_vec(at, [groups.len(), out_dims.len()])?;
    ctx.set_output(0, at);
    ctx.set_output(1, results);
    ctx.set_output(2, vector(&out_dims));
    Ok(())
}

fn folded<T: Number>(values: &[T], order: &[usize], groups: &[Range<usize>], max: bool) -> Tensor {
    let fold = |group: &Range<usize>| {
        let mut members = order[group.clone()].iter().map(|&i| values[i]);
        let first = members.next().unwrap_or(T::ZERO);
        match max {
            true => members.fold(first, T::larger),
            false => members.fold(first, T::plus),
        }
    };
    Tensor::vector(groups.iter().map(fold).collect())
}

#[expect(
    clippy::too_many_arguments,
    reason = "one step of `reduce`, kept apart for its length"
)]
fn scattered(
    ctx: &OpContext<'_>,
    places: Places<'_>,
    order: &[usize],
    groups: &[Range<usize>],
    kept: &[usize],
    dims: &[i64],
    out_dims: &[i64],
    results: &Tensor,
) -> Result<Tensor> {
    let shape = crate::args::shape_of(out_dims)?;
    let inner = Shape::checked(kept.iter().map(|&d| dims[d]))
        .map_err(|e| Status::invalid_argument(e.to_string()))?;
    let strides = inner.strides();
    let mut out = ctx.zeros(results.dtype(), &shape)?;
    let size = results.dtype().size().unwrap_or(1);
    let total = shape.num_elements() as i64;
    let from = results.buffer().map_or(&[][..], |b| b.as_bytes());
    let to = out.buffer_mut().unwrap_or(&mut []);
    for (i, group) in groups.iter().enumerate() {
        let row = places.row(order[group.start]);
        let terms = kept.iter().zip(&strides);
        let at = terms.fold(0i64, |sum, (&d, &s)| {
            sum.wrapping_add(row[d].wrapping_mul(s as i64))
        });
        if !(0..total).contains(&at) {
            return Err(Status::new(
                Code::Internal,
                format!(
                    "Obtained a write index of {at} which is outside of bounds of [0, {total})"
                ),
            ));
        }
        let at = at as usize;
        to[at * size..(at + 1) * size].copy_from_slice(&from[i * size..(i + 1) * size]);
    }
    Ok(out)
}

fn softmax(ctx: &mut OpContext<'_>) -> Result<()> {
    let (indices, values, shape) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    if indices.rank() != 2 {
        return invalid(format!(
            "Input sp_indices should be a matrix but received shape: {}",
            indices.shape()
        ));
    }
    if values.rank() != 1 || shape.rank() != 1 {
        return invalid(format!(
            "Inputs sp_values and sp_shape should be vectors but received shapes: {} and {}",
            values.shape(),
            shape.shape()
        ));
    }
    let dims = shape.as_slice::<i64>()?;
    if dims.len() < 2 {
        return invalid(format!(
            "Input should have rank >= 2, but received shape: {}",
            joined(dims, " ")
        ));
    }
    dense_shape(dims)?;
    let places = created(indices, values, dims.len())?;
    // The result is in the order of the sorted places, even where the input was not.
    let order = places.order();
    let by: Vec<usize> = (0..dims.len() - 1).collect();
    let groups = groups(places, &order, &by);
    let dtype = values.dtype();
    let mut out = widened(&picked(values, &order)?)?;
    with_type!(out.dtype(), T in [f32, f64] => {
        let all = out.make_mut::<T>()?;
        for group in groups {
            let row = &mut all[group];
            let top = row.iter().copied().fold(T::MIN, T::larger);
            row.iter_mut().for_each(|v| *v = (*v - top).exp());
            let sum: T = row.iter().sum();
            row.iter_mut().for_each(|v| *v /= sum);
        }
    });
    ctx.set_output(0, narrowed(out, dtype)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::{floats, run_op};
    use downpour_graph::Result;
    use downpour_tensor::{DType, Tensor};

    fn run(op: &str, axes: &[i32], keep: bool) -> Result<Vec<Tensor>> {
        let at = Tensor::from_vec(vec![0i64, 1, 0, 3, 2, 1], [3, 2]).unwrap();
        let inputs = vec![
            at,
            floats(&[1.0, 2.0, 4.0]),
            Tensor::vector(vec![3i64, 4]),
            Tensor::vector(axes.to_vec()),
        ];
        let attrs = [("T", DType::Float.into()), ("keep_dims", keep.into())];
        run_op(op, inputs, &attrs)
    }

    #[test]
    fn dimensions_are_reduced() {
        let out = run("SparseReduceSum", &[-1], false).unwrap();
        assert_eq!(out[0].as_slice::<f32>().unwrap(), [3.0, 0.0, 4.0]);
        let out = run("SparseReduceMax", &[0], true).unwrap();
        assert_eq!(out[0].dims(), [1, 4]);
        assert_eq!(out[0].as_slice::<f32>().unwrap(), [0.0, 4.0, 0.0, 2.0]);
        let out = run("SparseReduceSumSparse", &[0, 1], false).unwrap();
        assert_eq!(out[0].dims(), [1, 0]);
        assert_eq!(out[1].as_slice::<f32>().unwrap(), [7.0]);
        let out = run("SparseReduceSumSparse", &[1], true).unwrap();
        assert_eq!(out[0].as_slice::<i64>().unwrap(), [0, 0, 2, 0]);
        assert!(run("SparseReduceSum", &[2], false).is_err());
    }

    #[test]
    fn softmax_is_by_row() {
        let at = Tensor::from_vec(vec![0i64, 1, 0, 3, 2, 1], [3, 2]).unwrap();
        let inputs = vec![at, floats(&[1.0, 1.0, 4.0]), Tensor::vector(vec![3i64, 4])];
        let out = run_op("SparseSoftmax", inputs, &[("T", DType::Float.into())]).unwrap();
        assert_eq!(out[0].as_slice::<f32>().unwrap(), [0.5, 0.5, 1.0]);
    }
}
