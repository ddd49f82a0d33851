//! Sparse tensors that meet dense ones: `SparseToDense`, `SparseTensorDenseAdd`, and the
//! elementwise ops that broadcast a dense tensor to a sparse one.

use super::form::{Places, invalid, joined, picked};
use super::number::{Number, with_number};
use super::segment::{narrowed, widened};
use crate::args::{ints, shape_of};
use crate::array::COMMON_AND_STRING;
use crate::array::units::{Unit, room, with_unit};
use crate::types::{INDEX, NUMBERS, REALS};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, OpContext, Registry};
use downpour_tensor::{Shape, Tensor};

pub(crate) fn register(r: &mut Registry) {
    r.add_typed(
        "SparseToDense",
        &[("T", COMMON_AND_STRING), ("Tindices", INDEX)],
        |b| {
            let validate = b.attrs().bool("validate_indices")?;
            Built::cheap(move |ctx| to_dense(ctx, validate))
        },
    );
    let types = [("T", NUMBERS), ("Tindices", INDEX)];
    r.add_typed("SparseTensorDenseAdd", &types, |_| Built::cheap(dense_add));
    r.add_typed("SparseDenseCwiseAdd", &[("T", REALS)], |_| {
        Built::cheap(|ctx| elementwise(ctx, Op::Add))
    });
    r.add_typed("SparseDenseCwiseMul", &[("T", REALS)], |_| {
        Built::cheap(|ctx| elementwise(ctx, Op::Mul))
    });
    r.add_typed("SparseDenseCwiseDiv", &[("T", REALS)], |_| {
        Built::cheap(|ctx| elementwise(ctx, Op::Div))
    });
}

fn to_dense(ctx: &mut OpContext<'_>, validate: bool) -> Result<()> {
    let (indices, shape) = (ctx.input(0)?, ctx.input(1)?);
    let (values, default) = (ctx.input(2)?, ctx.input(3)?);
    if indices.rank() > 2 {
        return invalid(format!(
            "sparse_indices should be a scalar, vector, or matrix, got shape {}",
            indices.shape()
        ));
    }
    let count = indices.dims().first().copied().unwrap_or(1);
    let rank = indices.dims().get(1).copied().unwrap_or(1);
    if shape.rank() != 1 {
        return invalid(format!(
            "output_shape must be rank 1, got shape {}",
            shape.shape()
        ));
    }
    if shape.num_elements() != rank {
        return invalid(format!(
            "output_shape has incorrect number of elements: {} should be: {rank}",
            shape.num_elements()
        ));
    }
    if values.rank() != 0 && *values.dims() != [count] {
        return invalid(format!(
            "sparse_values has incorrect shape {}, should be [] or [{count}]",
            values.shape()
        ));
    }
    if default.rank() != 0 {
        return invalid("default_value should be a scalar.");
    }
    let dims = ints(shape)?;
    let shape = shape_of(&dims)?;
    let at = ints(indices)?;
    let places = Places::of(&at, rank, count);
    if validate {
        places.check_order(&dims)?;
    }
    let Some(flat) = flat_places(places, &shape) else {
        return invalid(format!(
            "Indices are not valid (out of bounds).  Shape: {shape}"
        ));
    };
    let dtype = values.dtype();
    let out = with_unit!(dtype, U => {
        let (from, rest) = (U::view(values)?, U::view(default)?);
        let mut out: Vec<U> = room(ctx, dtype, &shape)?;
        out.resize(shape.num_elements(), rest[0].clone());
        let one = values.rank() == 0;
        for (i, &place) in flat.iter().enumerate() {
            out[place] = from[if one { 0 } else { i }].clone();
        }
        U::tensor(dtype, out, shape)?
    });
    ctx.set_output(0, out);
    Ok(())
}

/// Offsets of the places in a dense tensor, or `None` if one is outside.
fn flat_places(places: Places<'_>, shape: &Shape) -> Option<Vec<usize>> {
    let strides = shape.strides();
    let flat = |row: &[i64]| {
        let mut offset = 0;
        for ((&at, &n), stride) in row.iter().zip(shape.dims()).zip(&strides) {
            let at = usize::try_from(at).ok().filter(|at| *at < n)?;
            offset += at * stride;
        }
        Some(offset)
    };
    places.rows().map(flat).collect()
}

fn dense_add(ctx: &mut OpContext<'_>) -> Result<()> {
    let (indices, values, shape) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    let dense = ctx.input(3)?;
    if indices.rank() != 2 {
        return invalid(format!(
            "Input a_indices should be a matrix but received shape: {}",
            indices.shape()
        ));
    }
    if values.rank() != 1 || shape.rank() != 1 {
        return invalid(format!(
            "Inputs a_values and a_shape should be vectors but received shapes: {} and {}",
            values.shape(),
            shape.shape()
        ));
    }
    let (count, rank) = (indices.dims()[0], indices.dims()[1]);
    if count != values.num_elements() {
        return invalid(format!(
            "Dimensions {count} and {} are not compatible",
            values.num_elements()
        ));
    }
    if rank != shape.num_elements() {
        return invalid(format!(
            "Dimensions {rank} and {} are not compatible",
            shape.num_elements()
        ));
    }
    if rank != dense.rank() {
        return invalid(format!(
            "Two operands have different ranks; received: {rank} and {}",
            dense.rank()
        ));
    }
    for (i, (&a, &b)) in ints(shape)?.iter().zip(dense.dims()).enumerate() {
        if a != b as i64 {
            return invalid(format!(
                "Dimension {i} does not equal (no broadcasting is supported): sparse side {a} vs dense side {b}"
            ));
        }
    }
    if !(1..=5).contains(&rank) {
        return invalid(format!(
            "Only tensors with ranks between 1 and 5 are currently supported.  Tensor rank: {rank}"
        ));
    }
    let at = ints(indices)?;
    let places = Places::of(&at, rank, count);
    let Some(flat) = flat_places(places, dense.shape()) else {
        return Err(bad_place(places, dense));
    };
    let dtype = dense.dtype();
    let add = widened(values)?;
    let mut out = widened(&ctx.take(3)?)?;
    with_number!(out.dtype(), T => {
        let from = add.as_slice::<T>()?;
        let to = out.make_mut::<T>()?;
        for (&place, v) in flat.iter().zip(from) {
            to[place] = to[place].plus(*v);
        }
    });
    ctx.set_output(0, narrowed(out, dtype)?);
    Ok(())
}

fn bad_place(places: Places<'_>, dense: &Tensor) -> Status {
    let dims: Vec<i64> = dense.dims().iter().map(|&d| d as i64).collect();
    for (i, row) in places.rows().enumerate() {
        for (d, (&at, &n)) in row.iter().zip(&dims).enumerate() {
            if !(0..n).contains(&at) {
                return Status::invalid_argument(format!(
                    "Sparse tensor has an invalid index on dimension {d}: a_indices({i},{d}) = {at}, dense tensor shape: {}",
                    joined(&dims, " ")
                ));
            }
        }
    }
    Status::internal("no place is outside the dense tensor")
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Op {
    Add,
    Mul,
    Div,
}

fn elementwise(ctx: &mut OpContext<'_>, op: Op) -> Result<()> {
    let (indices, values, shape) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    let dense = ctx.input(3)?;
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
    let places = Places::new(indices)?;
    if values.num_elements() != places.count {
        return invalid(format!(
            "The first dimension of values and indices should match. ({} vs. {})",
            values.num_elements(),
            places.count
        ));
    }
    if shape.num_elements() != places.rank {
        return invalid(format!(
            "Number of dimensions must match second dimension of indices. Got {} dimensions, indices shape: {}",
            shape.num_elements(),
            indices.shape()
        ));
    }
    if places.count == 0 {
        ctx.set_output(0, Tensor::zeros(values.dtype(), [0])?);
        return Ok(());
    }
    let dims = shape.as_slice::<i64>()?;
    let lead = dims.len().checked_sub(dense.rank());
    let strides = dense.shape().strides();
    let fits = |skip: usize| {
        let mut pairs = dims[skip..].iter().zip(dense.dims());
        pairs.all(|(&a, &b)| a == b as i64 || b == 1)
    };
    let Some(skip) = lead.filter(|&skip| fits(skip)) else {
        let dense: Vec<i64> = dense.dims().iter().map(|&d| d as i64).collect();
        return invalid(format!(
            "SparseDenseBinaryOpShared broadcasts dense to sparse only; got incompatible shapes: [{}] vs. [{}]",
            joined(dims, ","),
            joined(&dense, ",")
        ));
    };
    let mut order = Vec::with_capacity(places.count);
    for row in places.rows() {
        if row.iter().zip(dims).any(|(at, n)| !(0..*n).contains(at)) {
            return invalid(
                "Provided indices are out-of-bounds w.r.t. dense side with broadcasted shape",
            );
        }
        let ends = row[skip..].iter().zip(dense.dims()).zip(&strides);
        let offset = ends.map(|((&at, &n), stride)| if n == 1 { 0 } else { at as usize * stride });
        order.push(offset.sum());
    }
    let dtype = values.dtype();
    let other = widened(&picked(dense, &order)?)?;
    let mut out = widened(values)?;
    with_number!(out.dtype(), T => {
        let other = other.as_slice::<T>()?;
        if op == Op::Div && other.contains(&T::ZERO) {
            return invalid(
                "SparseDenseCwiseDiv cannot divide by zero,but input dense tensor contains zero",
            );
        }
        let pairs = out.make_mut::<T>()?.iter_mut().zip(other);
        match op {
            Op::Add => pairs.for_each(|(a, b)| *a = a.plus(*b)),
            Op::Mul => pairs.for_each(|(a, b)| *a = a.times(*b)),
            Op::Div => pairs.for_each(|(a, b)| *a = a.over(*b)),
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

    fn matrix(at: &[[i64; 2]]) -> Tensor {
        Tensor::from_vec(at.concat(), [at.len(), 2]).unwrap()
    }

    fn to_dense(at: &[[i64; 2]], shape: [i64; 2]) -> Result<Tensor> {
        let inputs = vec![
            matrix(at),
            Tensor::vector(shape.to_vec()),
            floats(&[1.0, 2.0]),
            Tensor::scalar(-1.0f32),
        ];
        let attrs = [
            ("T", DType::Float.into()),
            ("Tindices", DType::Int64.into()),
        ];
        Ok(run_op("SparseToDense", inputs, &attrs)?.remove(0))
    }

    #[test]
    fn elements_land_at_their_places() {
        let out = to_dense(&[[0, 1], [1, 0]], [2, 2]).unwrap();
        assert_eq!(out.as_slice::<f32>().unwrap(), [-1.0, 1.0, 2.0, -1.0]);
        let text = |at: &[[i64; 2]]| to_dense(at, [2, 2]).unwrap_err().message;
        assert!(text(&[[0, 1], [0, 2]]).starts_with("indices[1] = [0,2] is out of bounds"));
        assert!(text(&[[1, 1], [0, 0]]).contains("is out of order"));
        assert!(text(&[[1, 1], [1, 1]]).contains("is repeated"));
        let e = to_dense(&[[0, 1], [1, 0]], [1 << 20, 1 << 20]).unwrap_err();
        assert_eq!(e.code, downpour_graph::Code::ResourceExhausted);
    }

    #[test]
    fn dense_side_is_broadcast() {
        let run = |dense: Vec<f32>| {
            let inputs = vec![
                matrix(&[[0, 1], [1, 0]]),
                floats(&[6.0, 8.0]),
                Tensor::vector(vec![2i64, 2]),
                Tensor::vector(dense),
            ];
            run_op("SparseDenseCwiseDiv", inputs, &[("T", DType::Float.into())])
        };
        let out = run(vec![2.0, 3.0]).unwrap();
        assert_eq!(out[0].as_slice::<f32>().unwrap(), [2.0, 4.0]);
        assert!(run(vec![1.0, 2.0, 3.0]).is_err());
        assert!(
            run(vec![0.0])
                .unwrap_err()
                .message
                .contains("cannot divide by zero")
        );
    }
}
