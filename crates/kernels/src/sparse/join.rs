//! `SparseConcat` and `SparseSplit`.

use super::form::{Places, created, invalid, picked, validated, vector};
use crate::array::COMMON_AND_STRING;
use crate::array::units::{Unit, with_unit};
use downpour_graph::{Code, Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{Shape, Tensor};

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("SparseConcat", &[("T", COMMON_AND_STRING)], concat);
    r.add_typed("SparseSplit", &[("T", COMMON_AND_STRING)], split);
}

fn concat(b: &KernelBuilder<'_>) -> Result<Built> {
    let n = b.attrs().size("N")?;
    let dim = b.attrs().int("concat_dim")?;
    Built::cheap(move |ctx| {
        let (indices, values) = (ctx.inputs(0..n)?, ctx.inputs(n..2 * n)?);
        let shapes = ctx.inputs(2 * n..3 * n)?;
        let out = joined(&indices, &values, &shapes, dim)?;
        for (i, t) in out.into_iter().enumerate() {
            ctx.set_output(i, t);
        }
        Ok(())
    })
}

fn joined(
    indices: &[&Tensor],
    values: &[&Tensor],
    shapes: &[&Tensor],
    dim: i64,
) -> Result<[Tensor; 3]> {
    let kinds = [
        ("indices", "a matrix", 2, indices),
        ("values", "a vector", 1, values),
        ("shapes", "a vector", 1, shapes),
    ];
    for (name, kind, rank, tensors) in kinds {
        if let Some((i, t)) = tensors.iter().enumerate().find(|(_, t)| t.rank() != rank) {
            return invalid(format!(
                "Input {name} should be {kind} but received shape {} at position {i}",
                t.shape()
            ));
        }
    }
    let mut dims = shapes[0].as_slice::<i64>()?.to_vec();
    let rank = dims.len();
    let Some(axis) = crate::args::axis(dim, rank) else {
        return invalid(format!(
            "Concat dimension must be in range [-{rank}, {rank}), got {dim}"
        ));
    };
    for (i, shape) in shapes.iter().enumerate().skip(1) {
        let shape = shape.as_slice::<i64>()?;
        if shape.len() != rank {
            return invalid(format!(
                "Ranks of all input tensors must match: expected {rank} but got {} at position {i}",
                shape.len()
            ));
        }
        for d in (0..rank).filter(|d| *d != axis) {
            if shape[d] != dims[d] {
                return invalid(format!(
                    "Input shapes must match: expected {} for dimension {d} but got {} at position {i}",
                    dims[d], shape[d]
                ));
            }
        }
    }
    let mut offset = 0i64;
    let (mut at, mut order): (Vec<i64>, Vec<(usize, usize)>) = (Vec::new(), Vec::new());
    for (i, (t, v)) in indices.iter().zip(values).enumerate() {
        let places = created(t, v, rank)?;
        for row in places.order() {
            at.extend_from_slice(places.row(row));
            let end = at.len();
            let moved = &mut at[end - rank + axis];
            *moved = moved.wrapping_add(offset);
            order.push((i, row));
        }
        let size = shapes[i].as_slice::<i64>()?[axis];
        offset = match offset.checked_add(size) {
            Some(sum) => sum,
            None => {
                return Err(Status::new(
                    Code::Internal,
                    "Encountered overflow from large input shape.",
                ));
            }
        };
    }
    dims[axis] = offset;
    let places = Places::of(&at, rank, order.len());
    let sorted = if axis == 0 {
        (0..order.len()).collect()
    } else {
        places.order()
    };
    let dtype = values[0].dtype();
    let values = with_unit!(dtype, U => {
        let views = values.iter().map(|v| U::view(v)).collect::<Result<Vec<_>>>()?;
        let taken = sorted.iter().map(|&i| views[order[i].0][order[i].1].clone()).collect();
        U::tensor(dtype, taken, Shape::from([sorted.len()]))?
    });
    Ok([places.picked(&sorted)?, values, vector(&dims)])
}

fn split(b: &KernelBuilder<'_>) -> Result<Built> {
    let parts = b.attrs().size("num_split")?;
    Built::cheap(move |ctx| divide(ctx, parts))
}

fn divide(ctx: &mut OpContext<'_>, parts: usize) -> Result<()> {
    let axis = ctx.input(0)?;
    let (indices, values, shape) = (ctx.input(1)?, ctx.input(2)?, ctx.input(3)?);
    if axis.rank() != 0 {
        return invalid(format!(
            "Input axis should be a scalar but received shape {}",
            axis.shape()
        ));
    }
    for (name, kind, rank, t) in [
        ("indices", "a matrix", 2, indices),
        ("values", "a vector", 1, values),
        ("shape", "a vector", 1, shape),
    ] {
        if t.rank() != rank {
            return invalid(format!(
                "Input {name} should be {kind} but received shape {}",
                t.shape()
            ));
        }
    }
    let dim = axis.scalar_value::<i64>()?;
    let rank = shape.num_elements();
    let Some(axis) = crate::args::axis(dim, rank) else {
        return invalid(format!(
            "Input axis should be in range [-{rank}, {rank}), got {dim}"
        ));
    };
    let size = shape.as_slice::<i64>()?[axis];
    if size < 1 || parts as i64 > size {
        return invalid(format!(
            "Input num_split should be between 1 and the splitting dimension size ({size}), got {parts}"
        ));
    }
    let (places, dims) = validated(indices, values, shape, true)?;
    // The first parts are one longer where the dimension does not divide evenly.
    let (each, longer) = (size / parts as i64, size % parts as i64);
    let start = |part: i64| part * each + part.min(longer);
    let part_of = |at: i64| {
        if at < longer * (each + 1) {
            at / (each + 1)
        } else {
            longer + (at - longer * (each + 1)) / each
        }
    };
    let mut orders = vec![Vec::new(); parts];
    for (i, row) in places.rows().enumerate() {
        orders[part_of(row[axis]) as usize].push(i);
    }
    let mut outputs = Vec::with_capacity(parts);
    for (part, order) in orders.iter().enumerate() {
        let part = part as i64;
        let mut at = Vec::with_capacity(order.len() * places.rank);
        for &i in order {
            at.extend_from_slice(places.row(i));
            let end = at.len();
            at[end - places.rank + axis] -= start(part);
        }
        let mut dims = dims.to_vec();
        dims[axis] = each + i64::from(part < longer);
        let at = Tensor::from_vec(at, [order.len(), places.rank])?;
        outputs.push((at, picked(values, order)?, vector(&dims)));
    }
    for (i, (at, values, shape)) in outputs.into_iter().enumerate() {
        ctx.set_output(i, at);
        ctx.set_output(parts + i, values);
        ctx.set_output(2 * parts + i, shape);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::{floats, run_op};
    use downpour_tensor::{DType, Tensor};

    fn at(v: &[[i64; 2]]) -> Tensor {
        Tensor::from_vec(v.concat(), [v.len(), 2]).unwrap()
    }

    fn ids(v: &[i64]) -> Tensor {
        Tensor::vector(v.to_vec())
    }

    #[test]
    fn joining_sorts_and_splitting_takes_apart() {
        let attrs = [
            ("T", DType::Float.into()),
            ("N", 2i64.into()),
            ("concat_dim", (-1i64).into()),
        ];
        let inputs = vec![
            at(&[[0, 1], [1, 0]]),
            at(&[[0, 0], [1, 1]]),
            floats(&[1.0, 2.0]),
            floats(&[3.0, 4.0]),
            ids(&[2, 2]),
            ids(&[2, 3]),
        ];
        let out = run_op("SparseConcat", inputs, &attrs).unwrap();
        assert_eq!(out[0].as_slice::<i64>().unwrap(), [0, 1, 0, 2, 1, 0, 1, 3]);
        assert_eq!(out[1].as_slice::<f32>().unwrap(), [1.0, 3.0, 2.0, 4.0]);
        assert_eq!(out[2].as_slice::<i64>().unwrap(), [2, 5]);
        let attrs = [("T", DType::Float.into()), ("num_split", 2i64.into())];
        let mut inputs = vec![Tensor::scalar(1i64)];
        inputs.extend(out);
        let out = run_op("SparseSplit", inputs, &attrs).unwrap();
        assert_eq!(out[0].as_slice::<i64>().unwrap(), [0, 1, 0, 2, 1, 0]);
        assert_eq!(out[1].as_slice::<i64>().unwrap(), [1, 0]);
        assert_eq!(out[3].as_slice::<f32>().unwrap(), [4.0]);
        assert_eq!(out[4].as_slice::<i64>().unwrap(), [2, 3]);
        assert_eq!(out[5].as_slice::<i64>().unwrap(), [2, 2]);
    }
}
