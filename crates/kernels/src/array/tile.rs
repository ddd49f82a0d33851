//! Repeating a tensor: `Tile` and `BroadcastTo`.

use super::dtypes::{ALL, MOVABLE};
use super::strided::{Walk, gathered, strides_of};
use crate::args::{ints, shape_of};
use crate::types::INDEX;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, OpContext, Registry};
use downpour_tensor::{DType, Shape, Tensor};

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("Tile", &[("Tmultiples", INDEX)], |_| Built::cheap(tile));
    r.add_typed("BroadcastTo", &[("T", MOVABLE)], |_| {
        Built::cheap(broadcast_to)
    });
}

fn tile(ctx: &mut OpContext<'_>) -> Result<()> {
    let (input, multiples) = (ctx.input(0)?, ctx.input(1)?);
    let invalid = |text: String| Err(Status::invalid_argument(text));
    if multiples.rank() != 1 {
        return invalid(format!(
            "Expected multiples to be 1-D, but got shape {}",
            multiples.shape()
        ));
    }
    let multiples = ints(multiples)?;
    if multiples.len() != input.rank() {
        return invalid(format!(
            "Expected multiples argument to be a vector of length {} but got length {}",
            input.rank(),
            multiples.len()
        ));
    }
    let mut dims = Vec::with_capacity(multiples.len());
    for (i, (&m, &d)) in multiples.iter().zip(input.dims()).enumerate() {
        if m < 0 {
            return invalid(format!("Expected multiples[{i}] >= 0, but got {m}"));
        }
        let size = m.wrapping_mul(d as i64);
        if size < 0 || m.checked_mul(d as i64).is_none() {
            return invalid(format!("Expected a non-negative size, got {size}"));
        }
        dims.push(size);
    }
    let shape = shape_of(&dims)?;
    if shape == *input.shape() {
        ctx.forward(0, 0);
        return Ok(());
    }
    let dtype = input.dtype();
    // TensorFlow's kernel leaves this one out.
    let known = ALL.contains(&dtype) && dtype != DType::UInt16;
    if !known && shape.num_elements() > 0 {
        return Err(Status::unimplemented(format!(
            "TileOp : The input data type is not supported, DataType : {dtype}, Dimension : {}",
            input.rank()
        )));
    }
    // Each dimension becomes two: the repetition, which stands still, and the dimension itself.
    let memory = strides_of(input.dims());
    let (mut sizes, mut strides) = (Vec::new(), Vec::new());
    for i in 0..input.rank() {
        sizes.extend([multiples[i] as usize, input.dims()[i]]);
        strides.extend([0, memory[i]]);
    }
    let out = gathered(ctx, input, &Walk::new(0, &sizes, &strides), shape)?;
    ctx.set_output(0, out);
    Ok(())
}

fn broadcast_to(ctx: &mut OpContext<'_>) -> Result<()> {
    let (input, wanted) = (ctx.input(0)?, ctx.input(1)?);
    if wanted.rank() != 1 {
        return Err(Status::invalid_argument(format!(
            "shape must be a vector of {{int32,int64}}, got shape {}",
            wanted.shape()
        )));
    }
    let shape = shape_of(&ints(wanted)?)?;
    if input.rank() > shape.rank() {
        return Err(Status::invalid_argument(format!(
            "Rank of input ({}) must be no greater than rank of output shape ({}).",
            input.rank(),
            shape.rank()
        )));
    }
    if *input.shape() == shape {
        ctx.forward(0, 0);
        return Ok(());
    }
    let out = broadcast(ctx, input, &shape)?;
    ctx.set_output(0, out);
    Ok(())
}

/// `input` repeated to `shape`, which has at least as many dimensions.
pub(super) fn broadcast(ctx: &OpContext<'_>, input: &Tensor, shape: &Shape) -> Result<Tensor> {
    if input.shape() == shape {
        return Ok(input.clone());
    }
    let walk = broadcast_walk(input.dims(), shape).ok_or_else(|| {
        Status::invalid_argument(format!(
            "Incompatible shapes: {} vs. {shape}",
            input.shape()
        ))
    })?;
    gathered(ctx, input, &walk, shape.clone())
}

/// The walk over a tensor of shape `from` that repeats it to `to`; `None` if it does not fit.
pub(super) fn broadcast_walk(from: &[usize], to: &[usize]) -> Option<Walk> {
    // Leading ones may be more than `to` has dimensions when slices are overwritten.
    let extra = from.len().saturating_sub(to.len());
    if from[..extra].iter().any(|&d| d != 1) {
        return None;
    }
    let from = &from[extra..];
    let lead = to.len() - from.len();
    let memory = strides_of(from);
    let mut strides = vec![0; lead];
    for (i, &d) in from.iter().enumerate() {
        strides.push(match d {
            1 => 0,
            d if d == to[lead + i] => memory[i],
            _ => return None,
        });
    }
    Some(Walk::new(0, to, &strides))
}

#[cfg(test)]
mod tests {
    use crate::testing::{floats, run_op};
    use downpour_graph::Code;
    use downpour_tensor::{DType, Tensor};

    #[test]
    fn tiles_repeat_every_dimension() {
        let t = Tensor::from_vec(vec![1i32, 2, 3, 4], [2, 2]).unwrap();
        let attrs = [("T", DType::Int32.into())];
        let out = run_op("Tile", vec![t, Tensor::vector(vec![1i32, 2])], &attrs).unwrap();
        assert_eq!(out[0].as_slice::<i32>().unwrap(), [1, 2, 1, 2, 3, 4, 3, 4]);
        let attrs = [
            ("T", DType::Float.into()),
            ("Tmultiples", DType::Int64.into()),
        ];
        let e = run_op(
            "Tile",
            vec![floats(&[1.0; 2]), Tensor::vector(vec![i64::MAX / 4])],
            &attrs,
        );
        assert_eq!(e.unwrap_err().code, Code::ResourceExhausted);
        let e = run_op(
            "Tile",
            vec![floats(&[1.0; 2]), Tensor::vector(vec![1i64 << 62])],
            &attrs,
        );
        let text = e.unwrap_err().message;
        assert!(
            text.starts_with("Expected a non-negative size, got -9223372036854775808"),
            "{text}"
        );
    }

    #[test]
    fn broadcasting_checks_shapes() {
        let attrs = [("T", DType::Float.into())];
        let run = |shape: Vec<i32>| {
            run_op(
                "BroadcastTo",
                vec![floats(&[1.0, 2.0]), Tensor::vector(shape)],
                &attrs,
            )
        };
        let out = run(vec![2, 2]).unwrap();
        assert_eq!(out[0].as_slice::<f32>().unwrap(), [1.0, 2.0, 1.0, 2.0]);
        assert!(
            run(vec![2, 3])
                .unwrap_err()
                .message
                .starts_with("Incompatible shapes: [2] vs. [2,3]")
        );
        assert!(
            run(vec![-1])
                .unwrap_err()
                .message
                .starts_with("Dimension -1 must be >= 0")
        );
    }
}
