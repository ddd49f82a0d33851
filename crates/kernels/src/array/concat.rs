//! Joining tensors along a dimension, old (`Concat`) or new (`Pack`).

use super::dtypes::{COMMON_AND_STRING, CONCAT, PACK};
use super::units::{Unit, room, with_unit};
use crate::args::{axis as wrap, int_tensor, ints};
use crate::types::INDEX;
use crate::uninit::append;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::account::stop_point;
use downpour_tensor::{DType, Dims, Shape, Tensor};

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("ConcatV2", &[("T", CONCAT)], |_| {
        Built::cheap(|ctx| {
            let n = ctx.num_inputs() - 1;
            concat(ctx, n, 0..n, "axis")
        })
    });
    r.add_typed("Concat", &[("T", CONCAT)], |_| {
        Built::cheap(|ctx| {
            let n = ctx.num_inputs();
            concat(ctx, 0, 1..n, "concat_dim")
        })
    });
    r.add_typed("ConcatOffset", &[("shape_type", INDEX)], |_| {
        Built::cheap(concat_offset)
    });
    r.add_typed("Pack", &[("T", PACK)], pack);
    let types = &[("dtype", COMMON_AND_STRING)];
    r.add_typed("_ParallelConcatStart", types, parallel_start);
    let types = &[("T", COMMON_AND_STRING)];
    r.add_typed("_ParallelConcatUpdate", types, parallel_update);
    r.add_typed(
        "ParallelConcat",
        &[("T", COMMON_AND_STRING)],
        parallel_concat,
    );
}

/// Joins the inputs `values` along the dimension in input `axis_at`.
fn concat(
    ctx: &mut OpContext<'_>,
    axis_at: usize,
    values: std::ops::Range<usize>,
    axis_name: &str,
) -> Result<()> {
    let axis = ctx.input(axis_at)?;
    // A vector of one element passes, as it did in old graphs.
    if axis.rank() > 1 || axis.num_elements() != 1 {
        return Err(Status::invalid_argument(format!(
            "{axis_name} tensor should be a scalar integer, but got shape {}",
            axis.shape()
        )));
    }
    let axis = ints(axis)?[0];
    let inputs = ctx.inputs(values)?;
    let (shape, axis) = concat_shape(&inputs, axis)?;
    let outer: usize = shape[..axis].iter().product();
    let out = joined(ctx, &inputs, outer, shape)?;
    ctx.set_output(0, out);
    Ok(())
}

fn concat_shape(inputs: &[&Tensor], axis: i64) -> Result<(Shape, usize)> {
    let invalid = |text: String| Err(Status::invalid_argument(format!("ConcatOp : {text}")));
    let Some(first) = inputs.first() else {
        return invalid("there is nothing to concatenate".to_owned());
    };
    let rank = first.rank();
    if rank == 0 && axis == 0 {
        return invalid("Can't concatenate scalars (use tf.stack instead)".to_owned());
    }
    let Some(axis) = wrap(axis, rank) else {
        return invalid(format!(
            "Expected concatenating dimensions in the range [{}, {rank}), but got {axis}",
            -(rank as i64)
        ));
    };
    let mut total = 0usize;
    for (i, t) in inputs.iter().enumerate() {
        let both = || {
            format!(
                "shape[0] = {} vs. shape[{i}] = {}",
                first.shape(),
                t.shape()
            )
        };
        if t.rank() != rank {
            return invalid(format!(
                "Ranks of all input tensors should match: {}",
                both()
            ));
        }
        if let Some(d) = (0..rank).find(|&d| d != axis && t.dims()[d] != first.dims()[d]) {
            return invalid(format!(
                "Dimension {d} in both shapes must be equal: {}",
                both()
            ));
        }
        total = total.saturating_add(t.dims()[axis]);
    }
    let mut dims: Vec<i64> = first.dims().iter().map(|&d| d as i64).collect();
    dims[axis] = total as i64;
    Ok((crate::args::shape_of(&dims)?, axis))
}

/// Turns after which a join asks whether to go on.
const LINES: usize = 1 << 14;

/// A tensor that takes, `outer` times, the next part of each input.
fn joined(ctx: &OpContext<'_>, inputs: &[&Tensor], outer: usize, shape: Shape) -> Result<Tensor> {
    let dtype = inputs.first().map_or(DType::Float, |t| t.dtype());
    with_unit!(dtype, U => {
        let mut out = room::<U>(ctx, dtype, &shape)?;
        let views = inputs.iter().map(|t| U::view(t)).collect::<Result<Vec<&[U]>>>()?;
        for o in 0..outer {
            for view in &views {
                let n = view.len() / outer;
                match &view[o * n..(o + 1) * n] {
                    [one] => out.push(one.clone()),
                    many => append(&mut out, many),
                }
            }
            if o % LINES == LINES - 1 {
                stop_point();
            }
        }
        U::tensor(dtype, out, shape)
    })
}

fn concat_offset(ctx: &mut OpContext<'_>) -> Result<()> {
    let dim = ctx.input(0)?;
    if dim.rank() != 0 {
        return Err(Status::invalid_argument(format!(
            "Concat dim tensor should be a scalar integer, but got shape {}",
            dim.shape()
        )));
    }
    let dim = ints(dim)?[0];
    let n = ctx.num_inputs() - 1;
    for i in 0..n {
        let shape = ctx.input(i + 1)?.shape();
        if shape.rank() != 1 {
            return Err(Status::invalid_argument(format!(
                "input {} should be a vector, but got shape {shape}",
                i + 1
            )));
        }
    }
    let dtype = ctx.input(1)?.dtype();
    let first = ints(ctx.input(1)?)?;
    let Some(axis) = wrap(dim, first.len()) else {
        return Err(Status::invalid_argument(format!(
            "Concat dim is out of range: {dim} vs. {}",
            first.len()
        )));
    };
    let mut offset = 0i64;
    for i in 0..n {
        let shape = ints(ctx.input(i + 1)?)?;
        if shape.len() != first.len() {
            return Err(Status::invalid_argument(format!(
                "input {i} should contain {} elements, but got {}",
                first.len(),
                shape.len()
            )));
        }
        if (0..shape.len()).any(|d| d != axis && shape[d] != first[d]) {
            let text = |s: &[i64]| s.iter().map(i64::to_string).collect::<Vec<_>>().join(" ");
            return Err(Status::invalid_argument(format!(
                "All dimensions except {axis} must match. Input {i} has shape [{}] and doesn't match input 0 with shape [{}].",
                text(&shape),
                text(&first)
            )));
        }
        let mut out = vec![0; first.len()];
        out[axis] = offset;
        offset = offset.wrapping_add(shape[axis]);
        ctx.set_output(i, int_tensor(dtype, out, [first.len()])?);
    }
    Ok(())
}

fn pack(b: &KernelBuilder<'_>) -> Result<Built> {
    let axis = b.attrs().int("axis")?;
    Built::cheap(move |ctx| {
        let n = ctx.num_inputs();
        let first = ctx.input(0)?.shape().clone();
        let rank = first.rank() + 1;
        let Some(axis) = wrap(axis, rank) else {
            return Err(Status::invalid_argument(format!(
                "axis = {axis} not in [{}, {rank})",
                -(rank as i64)
            )));
        };
        let mut dims = Dims::from_slice(&first);
        dims.insert(axis, n);
        if n == 1 {
            let only = ctx.take(0)?;
            ctx.set_output(0, only.reshaped(dims)?);
            return Ok(());
        }
        let inputs = ctx.inputs(0..n)?;
        if let Some(i) = inputs.iter().position(|t| *t.shape() != first) {
            return Err(Status::invalid_argument(format!(
                "Shapes of all inputs must match: values[0].shape = {first} != values[{i}].shape = {}",
                inputs[i].shape()
            )));
        }
        let outer: usize = first[..axis].iter().product();
        let shape = crate::args::shape_of(&dims.iter().map(|&d| d as i64).collect::<Vec<_>>())?;
        let out = joined(ctx, &inputs, outer, shape)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// Every input is one row of the output, whose shape the node knows.
fn parallel_concat(b: &KernelBuilder<'_>) -> Result<Built> {
    let wanted = b.attrs().shape("shape")?.clone();
    Built::cheap(move |ctx| {
        let inputs = ctx.inputs(0..ctx.num_inputs())?;
        let (shape, _) = concat_shape(&inputs, 0)?;
        if !wanted.admits(&shape) {
            return Err(Status::invalid_argument(format!(
                "ParallelConcat gives shape {shape}, but its attribute says {wanted}"
            )));
        }
        let out = joined(ctx, &inputs, 1, shape)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// The tensor that `_ParallelConcatUpdate` fills, row by row.
fn parallel_start(b: &KernelBuilder<'_>) -> Result<Built> {
    let dtype = b.attrs().dtype("dtype")?;
    let Some(shape) = b.attrs().shape("shape")?.to_shape() else {
        return Err(Status::invalid_argument("shape must be known in full"));
    };
    Built::cheap(move |ctx| {
        let out = ctx.zeros(dtype, &shape)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

fn parallel_update(b: &KernelBuilder<'_>) -> Result<Built> {
    let row = b.attrs().int("loc")?;
    Built::cheap(move |ctx| {
        let (value, update) = (ctx.input(0)?, ctx.input(1)?);
        let same = value.rank() == update.rank()
            && value.rank() > 0
            && update.dims()[0] == 1
            && value.dims()[1..] == update.dims()[1..];
        if !same {
            return Err(Status::invalid_argument(format!(
                "value and update shape doesn't match: {} vs. {}",
                value.shape(),
                update.shape()
            )));
        }
        let rows = value.dims()[0] as i64;
        if row >= rows {
            return Err(Status::invalid_argument(format!(
                "0th dimension of value = {rows} must be greater than loc_ = {row}"
            )));
        }
        if rows == 0 {
            ctx.forward(0, 0);
            return Ok(());
        }
        // Counted from the end when negative.
        let at = row.rem_euclid(rows) as usize;
        let dtype = value.dtype();
        let shape = value.shape().clone();
        let out = with_unit!(dtype, U => {
            let from = U::view(update)?;
            let mut out = U::view(value)?.to_vec();
            out[at * from.len()..(at + 1) * from.len()].clone_from_slice(from);
            U::tensor(dtype, out, shape)?
        });
        ctx.set_output(0, out);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use crate::testing::{floats, run_op};
    use downpour_tensor::{DType, Tensor};

    fn concat(values: Vec<Tensor>, axis: i32) -> downpour_graph::Result<Tensor> {
        let attrs = [
            ("T", values[0].dtype().into()),
            ("N", (values.len() as i64).into()),
        ];
        let mut inputs = values;
        inputs.push(Tensor::scalar(axis));
        run_op("ConcatV2", inputs, &attrs).map(|mut o| o.remove(0))
    }

    #[test]
    fn tensors_join_along_any_dimension() {
        let a = Tensor::from_vec(vec![1i64, 2, 3, 4], [2, 2]).unwrap();
        let b = Tensor::from_vec(vec![5i64, 6], [2, 1]).unwrap();
        let out = concat(vec![a.clone(), b.clone()], -1).unwrap();
        assert_eq!(out.as_slice::<i64>().unwrap(), [1, 2, 5, 3, 4, 6]);
        let e = concat(vec![a, b], 0).unwrap_err();
        assert!(e.message.starts_with(
            "ConcatOp : Dimension 1 in both shapes must be equal: shape[0] = [2,2] vs. shape[1] = [2,1]"
        ), "{}", e.message);
    }

    #[test]
    fn packing_makes_a_new_dimension() {
        let attrs = [
            ("T", DType::Float.into()),
            ("N", 2.into()),
            ("axis", 1.into()),
        ];
        let out = run_op(
            "Pack",
            vec![floats(&[1.0, 2.0]), floats(&[3.0, 4.0])],
            &attrs,
        )
        .unwrap();
        assert_eq!(out[0].dims(), [2, 2]);
        assert_eq!(out[0].as_slice::<f32>().unwrap(), [1.0, 3.0, 2.0, 4.0]);
        let attrs = [("T", DType::String.into()), ("N", 2.into())];
        let out = run_op(
            "Pack",
            vec![Tensor::string("x"), Tensor::string("y")],
            &attrs,
        )
        .unwrap();
        assert_eq!(out[0].as_strings().unwrap(), ["x", "y"]);
    }
}
