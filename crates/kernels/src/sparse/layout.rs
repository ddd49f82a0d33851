//! Ops that move the elements of sparse tensors: `SparseReorder`, `SparseReshape`, `SparseSlice`
//! and its gradient.

use super::form::{Places, dense_shape, invalid, picked, validated, vector};
use crate::array::COMMON_AND_STRING;
use crate::array::units::{Unit, with_unit};
use crate::types::NUMBERS;
use downpour_graph::{Code, Result, Status};
use downpour_runtime::{Built, OpContext, Registry};
use downpour_tensor::{Shape, Tensor};

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("SparseReorder", &[("T", COMMON_AND_STRING)], |_| {
        Built::cheap(reorder)
    });
    r.add("SparseReshape", |_| Built::cheap(reshape));
    r.add_typed("SparseSlice", &[("T", COMMON_AND_STRING)], |_| {
        Built::cheap(slice)
    });
    r.add_typed("SparseSliceGrad", &[("T", NUMBERS)], |_| {
        Built::cheap(slice_grad)
    });
}

fn reorder(ctx: &mut OpContext<'_>) -> Result<()> {
    let (indices, values) = (ctx.input(0)?, ctx.input(1)?);
    let (places, _) = validated(indices, values, ctx.input(2)?, false)?;
    if places.is_sorted() {
        ctx.forward(0, 0);
        ctx.forward(1, 1);
        return Ok(());
    }
    let order = places.order();
    let (indices, values) = (places.picked(&order)?, picked(values, &order)?);
    ctx.set_output(0, indices);
    ctx.set_output(1, values);
    Ok(())
}

fn reshape(ctx: &mut OpContext<'_>) -> Result<()> {
    let (indices, old, new) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    if indices.rank() != 2 {
        return invalid("Input must be a matrix.");
    }
    if old.rank() != 1 {
        return invalid("Input shape must be a vector.");
    }
    if new.rank() != 1 {
        return invalid(format!(
            "Target shape should be a vector but received shape {}",
            new.shape()
        ));
    }
    let places = Places::new(indices)?;
    if old.num_elements() != places.rank {
        return invalid("Input tensor rank must match input shape length.");
    }
    let old = dense_shape(old.as_slice()?)?;
    let target = new_shape(&old, new.as_slice()?)?;
    let dims: Vec<i64> = target.dims().iter().map(|&d| d as i64).collect();
    if old == target {
        ctx.forward(0, 0);
        ctx.set_output(1, vector(&dims));
        return Ok(());
    }
    let strides =
        |shape: &Shape| -> Vec<i64> { shape.strides().iter().map(|&s| s as i64).collect() };
    let (from, to) = (strides(&old), strides(&target));
    let shape = Shape::from([places.count, target.rank()]);
    let mut out = ctx.vec::<i64>(&shape)?;
    for row in places.rows() {
        let terms = row.iter().zip(&from);
        let mut flat = terms.fold(0i64, |sum, (at, s)| sum.wrapping_add(at.wrapping_mul(*s)));
        for stride in &to {
            out.push(flat / stride);
            flat %= stride;
        }
    }
    ctx.set_output(0, Tensor::from_vec(out, shape)?);
    ctx.set_output(1, vector(&dims));
    Ok(())
}

/// The requested shape with at most one -1 filled in.
fn new_shape(old: &Shape, wanted: &[i64]) -> Result<Shape> {
    let total = old.num_elements() as i64;
    let (mut open, mut known) = (None, 1i64);
    let mut dims = Vec::with_capacity(wanted.len());
    for (i, &size) in wanted.iter().enumerate() {
        if size == -1 {
            if let Some(first) = open {
                return invalid(format!(
                    "only one output dimension may be -1, not both {first} and {i}"
                ));
            }
            open = Some(i);
            dims.push(1);
            continue;
        }
        if size < 0 {
            return invalid(format!("size {i} must be non-negative, not {size}"));
        }
        known = match known.checked_mul(size) {
            Some(p) => p,
            None => {
                return invalid(format!(
                    "Encountered overflow when multiplying {known} with {size}, result: -1"
                ));
            }
        };
        dims.push(size);
    }
    if let Some(i) = open {
        if known == 0 {
            return invalid(
                "reshape cannot infer the missing input size for an empty tensor unless all specified input sizes are non-zero",
            );
        }
        if total % known != 0 {
            return invalid(format!(
                "Input to reshape is a SparseTensor with {total} dense values, but the requested shape requires a multiple of {known}. input_shape={old} output_shape=[{}]",
                super::form::joined(&dims, ",")
            ));
        }
        dims[i] = total / known;
        known = total;
    }
    if known != total {
        return invalid(format!(
            "Input to reshape is a tensor with {total} dense values, but the requested shape has {known}. input_shape={old} output_shape=[{}]",
            super::form::joined(&dims, ",")
        ));
    }
    crate::args::shape_of(&dims)
}

fn slice(ctx: &mut OpContext<'_>) -> Result<()> {
    let (indices, values) = (ctx.input(0)?, ctx.input(1)?);
    let (places, shape) = validated(indices, values, ctx.input(2)?, false)?;
    let (start, size) = (ctx.input(3)?, ctx.input(4)?);
    for (name, t) in [("start", start), ("size", size)] {
        if t.rank() != 1 {
            return invalid(format!(
                "Input {name} should be a vector but received shape {}",
                t.shape()
            ));
        }
    }
    for (name, t) in [("start", start), ("size", size)] {
        if t.num_elements() != places.rank {
            return invalid(format!(
                "Expected {name} to be a vector of length {} but got length {}",
                places.rank,
                t.num_elements()
            ));
        }
    }
    let (start, size) = (start.as_slice::<i64>()?, size.as_slice::<i64>()?);
    if let Some(n) = size.iter().find(|n| **n < 0) {
        return invalid(format!("Expected a non-negative size, got {n}"));
    }
    let dims = shape.iter().zip(start).zip(size);
    let dims: Vec<i64> = dims
        .map(|((&n, &from), &size)| n.saturating_sub(from).clamp(0, size))
        .collect();
    let inside = |row: &[i64]| {
        let mut parts = row.iter().zip(start).zip(size);
        parts.all(|((&at, &from), &size)| at >= from && at.saturating_sub(from) < size)
    };
    let order: Vec<usize> = (0..places.count)
        .filter(|&i| inside(places.row(i)))
        .collect();
    let moved = order.iter().flat_map(|&i| {
        let row = places.row(i).iter().zip(start);
        row.map(|(at, from)| at.wrapping_sub(*from))
    });
    let moved = Tensor::from_vec(moved.collect(), [order.len(), places.rank])?;
    let values = picked(values, &order)?;
    ctx.set_output(0, moved);
    ctx.set_output(1, values);
    ctx.set_output(2, vector(&dims));
    Ok(())
}

fn slice_grad(ctx: &mut OpContext<'_>) -> Result<()> {
    let (grad, indices) = (ctx.input(0)?, ctx.input(1)?);
    let (start, parts) = (ctx.input(2)?, ctx.input(3)?);
    if indices.rank() != 2 || parts.rank() != 2 {
        return invalid(format!(
            "Input and output indices should be matrices but received shapes: {} and {}",
            indices.shape(),
            parts.shape()
        ));
    }
    if grad.rank() != 1 {
        return invalid(format!(
            "Input backprop_val_grad should be a vector but received shape: {}",
            grad.shape()
        ));
    }
    let (places, parts) = (Places::new(indices)?, Places::new(parts)?);
    if places.rank != parts.rank {
        return invalid(format!(
            "The input and output should have the same ndims: got: {} and {}",
            places.rank, parts.rank
        ));
    }
    if parts.count != grad.num_elements() {
        return invalid(format!(
            "# elements of backprop_val_grad and # rows of output_indices should match (#nnz of sum): got {} and {}",
            grad.num_elements(),
            parts.count
        ));
    }
    if start.rank() != 1 {
        return invalid(format!(
            "The input_start should be a vector but received shape {}",
            start.shape()
        ));
    }
    if start.num_elements() != places.rank {
        return invalid(format!(
            "Expected input_start to be a vector of length {} but got length {}",
            places.rank,
            start.num_elements()
        ));
    }
    let start = start.as_slice::<i64>()?;
    let mut used = 0;
    let from: Vec<Option<usize>> = places
        .rows()
        .map(|row| {
            let next = (used < parts.count).then(|| parts.row(used))?;
            let mut both = row.iter().zip(next).zip(start);
            let same = both.all(|((at, part), from)| at.checked_sub(*from) == Some(*part));
            same.then(|| {
                used += 1;
                used - 1
            })
        })
        .collect();
    if used < parts.count {
        return Err(Status::new(
            Code::Internal,
            format!(
                "Elements of backprop_val_grad aren't all propagated. Num elements:{}, used: {used}",
                parts.count
            ),
        ));
    }
    let out = spread(grad, &from)?;
    ctx.set_output(0, out);
    Ok(())
}

/// The elements named, zeros where none is.
pub(super) fn spread(from: &Tensor, which: &[Option<usize>]) -> Result<Tensor> {
    let dtype = from.dtype();
    with_unit!(dtype, U => {
        let values = U::view(from)?;
        let zero = U::zero()?;
        let out = which.iter().map(|i| i.map_or(zero.clone(), |i| values[i].clone())).collect();
        U::tensor(dtype, out, Shape::from([which.len()]))
    })
}

#[cfg(test)]
mod tests {
    use crate::testing::{floats, run_op};
    use downpour_graph::Result;
    use downpour_tensor::{DType, Tensor};

    fn at() -> Tensor {
        Tensor::from_vec(vec![0i64, 1, 0, 3, 2, 2], [3, 2]).unwrap()
    }

    fn ids(v: &[i64]) -> Tensor {
        Tensor::vector(v.to_vec())
    }

    #[test]
    fn places_follow_the_new_shape() {
        let run = |new: &[i64]| -> Result<Vec<Tensor>> {
            run_op("SparseReshape", vec![at(), ids(&[3, 4]), ids(new)], &[])
        };
        let out = run(&[-1, 2]).unwrap();
        assert_eq!(out[0].as_slice::<i64>().unwrap(), [0, 1, 1, 1, 5, 0]);
        assert_eq!(out[1].as_slice::<i64>().unwrap(), [6, 2]);
        let text = |new: &[i64]| run(new).unwrap_err().message;
        assert!(text(&[-1, -1]).starts_with("only one output dimension may be -1"));
        assert!(
            text(&[5, -1])
                .contains("requires a multiple of 5. input_shape=[3,4] output_shape=[5,1]")
        );
        assert!(text(&[7]).contains("but the requested shape has 7."));
        assert!(text(&[1 << 40, 1 << 40]).starts_with("Encountered overflow"));
    }

    #[test]
    fn a_slice_keeps_what_is_inside_and_gives_gradients_back() {
        let attrs = [("T", DType::Float.into())];
        let inputs = vec![
            at(),
            floats(&[1.0, 2.0, 3.0]),
            ids(&[3, 4]),
            ids(&[0, 2]),
            ids(&[9, 9]),
        ];
        let out = run_op("SparseSlice", inputs, &attrs).unwrap();
        assert_eq!(out[0].as_slice::<i64>().unwrap(), [0, 1, 2, 0]);
        assert_eq!(out[1].as_slice::<f32>().unwrap(), [2.0, 3.0]);
        assert_eq!(out[2].as_slice::<i64>().unwrap(), [3, 2]);
        let grad = |parts: Tensor| {
            let inputs = vec![floats(&[5.0, 6.0]), at(), ids(&[0, 2]), parts];
            run_op("SparseSliceGrad", inputs, &attrs)
        };
        let back = grad(out[0].clone()).unwrap();
        assert_eq!(back[0].as_slice::<f32>().unwrap(), [0.0, 5.0, 6.0]);
        let wrong = Tensor::from_vec(vec![0i64, 0, 2, 0], [2, 2]).unwrap();
        let text = grad(wrong).unwrap_err().message;
        assert!(text.contains("Num elements:2, used: 0"), "{text}");
    }
}
