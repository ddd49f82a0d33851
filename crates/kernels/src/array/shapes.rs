//! Ops about shapes: asking for them, and giving the same elements another one.

use crate::args::{int_tensor, ints};
use crate::types::INDEX;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{DType, Dims, MAX_RANK, Shape, Tensor};

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("Shape", &[("out_type", INDEX)], shape_n);
    r.add_typed("ShapeN", &[("out_type", INDEX)], shape_n);
    r.add_typed("Size", &[("out_type", INDEX)], size);
    r.add("Rank", |_| {
        Built::cheap(|ctx| {
            let rank = ctx.input(0)?.rank() as i32;
            ctx.set_output(0, Tensor::scalar(rank));
            Ok(())
        })
    });
    r.add_typed("Reshape", &[("Tshape", INDEX)], |_| Built::cheap(reshape));
    r.add("Squeeze", squeeze);
    r.add_typed("ExpandDims", &[("Tdim", INDEX)], |_| {
        Built::cheap(expand_dims)
    });
    r.add_typed("BroadcastArgs", &[("T", INDEX)], |_| {
        Built::cheap(broadcast_args)
    });
    r.add_typed("BroadcastGradientArgs", &[("T", INDEX)], |_| {
        Built::cheap(broadcast_gradient_args)
    });
}

fn shape_n(b: &KernelBuilder<'_>) -> Result<Built> {
    let out_type = b.attrs().dtype("out_type")?;
    Built::cheap(move |ctx| {
        for i in 0..ctx.num_inputs() {
            let dims = ctx.input(i)?.dims();
            let values: Vec<i64> = dims.iter().map(|&d| d as i64).collect();
            if out_type == DType::Int32
                && let Some(big) = values.iter().find(|&&d| d > i64::from(i32::MAX))
            {
                return Err(Status::invalid_argument(format!(
                    "Shape output type is 32-bit  but dim {} is {big}",
                    values.iter().position(|d| d == big).unwrap_or(0)
                )));
            }
            let n = values.len();
            ctx.set_output(i, int_tensor(out_type, values, [n])?);
        }
        Ok(())
    })
}

fn size(b: &KernelBuilder<'_>) -> Result<Built> {
    let out_type = b.attrs().dtype("out_type")?;
    Built::cheap(move |ctx| {
        let n = ctx.input(0)?.num_elements();
        if out_type == DType::Int32 && n > i32::MAX as usize {
            return Err(Status::invalid_argument(
                "Number of elements was larger than representable by 32-bit output type",
            ));
        }
        ctx.set_output(0, int_tensor(out_type, vec![n as i64], Shape::scalar())?);
        Ok(())
    })
}

pub(crate) fn reshape(ctx: &mut OpContext<'_>) -> Result<()> {
    let sizes = ctx.input(1)?;
    if sizes.rank() > 1 {
        return Err(Status::invalid_argument(format!(
            "sizes input must be 1-D, not {}",
            sizes.shape()
        )));
    }
    let wanted = ints(sizes)?;
    if wanted.len() >= MAX_RANK {
        return Err(Status::invalid_argument(format!(
            "too many dimensions: must be < {MAX_RANK}, but received {}",
            wanted.len()
        )));
    }
    let shape = reshaped(ctx.input(0)?.dims(), &wanted)?;
    let input = ctx.take(0)?;
    ctx.set_output(0, input.reshaped(shape)?);
    Ok(())
}

/// The shape that `wanted`, with at most one -1, stands for when `from` is the present one.
fn reshaped(from: &[usize], wanted: &[i64]) -> Result<Shape> {
    let n: usize = from.iter().product();
    let invalid = |text: String| Err(Status::invalid_argument(text));
    let mut unknown = None;
    let mut product = 1i64;
    let mut dims = Dims::with_capacity(wanted.len());
    for (i, &d) in wanted.iter().enumerate() {
        if d == -1 {
            if let Some(first) = unknown {
                return invalid(format!(
                    "Only one input size may be -1, not both {first} and {i}"
                ));
            }
            unknown = Some(i);
            dims.push(1);
            continue;
        }
        if d < 0 {
            return invalid(format!("Size {i} must be non-negative, not {d}"));
        }
        let Some(p) = product.checked_mul(d) else {
            let list: Vec<String> = wanted.iter().map(i64::to_string).collect();
            return invalid(format!("Shape [{}] has too many elements", list.join(", ")));
        };
        product = p;
        dims.push(d as usize);
    }
    if let Some(at) = unknown {
        if product > 0 {
            let missing = n / product as usize;
            if missing * product as usize != n {
                return invalid(format!(
                    "Input to reshape is a tensor with {n} values, but the requested shape requires a multiple of {product}"
                ));
            }
            dims[at] = missing;
        } else {
            // A zero among the known sizes: both sides are compared without their zeros.
            let product = |dims: &[usize]| dims.iter().filter(|&&d| d != 0).product::<usize>();
            dims[at] = product(from) / product(&dims);
        }
    }
    let shape = Shape::from(dims);
    if shape.num_elements() != n {
        return invalid(format!(
            "Input to reshape is a tensor with {n} values, but the requested shape has {}",
            shape.num_elements()
        ));
    }
    Ok(shape)
}

fn squeeze(b: &KernelBuilder<'_>) -> Result<Built> {
    let axes = b.attrs().ints("squeeze_dims")?.to_vec();
    Built::cheap(move |ctx| {
        let input = ctx.take(0)?;
        let rank = input.rank() as i64;
        let mut drop = vec![false; input.rank()];
        for &axis in &axes {
            let wrapped = if axis < 0 { axis + rank } else { axis };
            match usize::try_from(wrapped).ok().and_then(|a| drop.get_mut(a)) {
                Some(d) => *d = true,
                None => {
                    return Err(Status::invalid_argument(format!(
                        "Tried to squeeze dim index {axis} for tensor with {rank} dimensions."
                    )));
                }
            }
        }
        let mut dims = Dims::new();
        for (i, (&d, &drop)) in input.dims().iter().zip(&drop).enumerate() {
            if drop && d != 1 {
                return Err(Status::invalid_argument(format!(
                    "Can not squeeze dim[{i}], expected a dimension of 1, got {d}"
                )));
            }
            if !(drop || axes.is_empty() && d == 1) {
                dims.push(d);
            }
        }
        ctx.set_output(0, input.reshaped(dims)?);
        Ok(())
    })
}

fn expand_dims(ctx: &mut OpContext<'_>) -> Result<()> {
    let axis = ints(ctx.input(1)?)?;
    let [axis] = axis.as_slice() else {
        return Err(Status::invalid_argument(
            "'dim' must be a tensor with a single value",
        ));
    };
    let input = ctx.take(0)?;
    let rank = input.rank() as i64;
    if *axis < -1 - rank || *axis > rank {
        return Err(Status::invalid_argument(format!(
            "Tried to expand dim index {axis} for tensor with {rank} dimensions."
        )));
    }
    let at = if *axis < 0 { axis + rank + 1 } else { *axis };
    let mut dims = Dims::from_slice(input.dims());
    dims.insert(at as usize, 1);
    ctx.set_output(0, input.reshaped(dims)?);
    Ok(())
}

/// Both inputs as shapes; they need not be real ones (-1 is taken as any other number).
fn two_shapes(ctx: &OpContext<'_>) -> Result<(Vec<i64>, Vec<i64>)> {
    for i in 0..2 {
        let shape = ctx.input(i)?.shape();
        if shape.rank() != 1 {
            return Err(Status::invalid_argument(format!(
                "In[{i}] must be a vector.{shape}"
            )));
        }
    }
    Ok((ints(ctx.input(0)?)?, ints(ctx.input(1)?)?))
}

fn mismatch(a: &[i64], b: &[i64]) -> Status {
    let text = |s: &[i64]| s.iter().map(i64::to_string).collect::<Vec<_>>().join(",");
    Status::invalid_argument(format!(
        "Incompatible shapes: [{}] vs. [{}]",
        text(a),
        text(b)
    ))
}

fn broadcast_args(ctx: &mut OpContext<'_>) -> Result<()> {
    let (a, b) = two_shapes(ctx)?;
    let rank = a.len().max(b.len());
    let mut out = Vec::with_capacity(rank);
    for i in 0..rank {
        let (x, y) = (at(&a, i, rank), at(&b, i, rank));
        out.push(match (x, y) {
            (x, y) if x == y => x,
            (1, y) => y,
            (x, 1) => x,
            _ => return Err(mismatch(&a, &b)),
        });
    }
    let dtype = ctx.input(0)?.dtype();
    ctx.set_output(0, int_tensor(dtype, out, [rank])?);
    Ok(())
}

/// Dimension `i` of `shape` seen as having `rank` dimensions.
fn at(shape: &[i64], i: usize, rank: usize) -> i64 {
    (i + shape.len()).checked_sub(rank).map_or(1, |j| shape[j])
}

fn broadcast_gradient_args(ctx: &mut OpContext<'_>) -> Result<()> {
    let (a, b) = two_shapes(ctx)?;
    let (r0, r1) = reduced_axes(&a, &b).ok_or_else(|| mismatch(&a, &b))?;
    let dtype = ctx.input(0)?.dtype();
    let (n0, n1) = (r0.len(), r1.len());
    ctx.set_output(0, int_tensor(dtype, r0, [n0])?);
    ctx.set_output(1, int_tensor(dtype, r1, [n1])?);
    Ok(())
}

/// The axes over which each side's gradient is summed. An axis where both are 1 counts for both
/// sides, unless the shapes are the same and nothing needs summing.
fn reduced_axes(a: &[i64], b: &[i64]) -> Option<(Vec<i64>, Vec<i64>)> {
    if a == b {
        return Some((Vec::new(), Vec::new()));
    }
    let rank = a.len().max(b.len());
    let (mut r0, mut r1) = (Vec::new(), Vec::new());
    for i in 0..rank {
        let (x, y) = (at(a, i, rank), at(b, i, rank));
        match (x, y) {
            (1, 1) => {
                r0.push(i as i64);
                r1.push(i as i64);
            }
            (x, y) if x == y => {}
            (1, _) => r0.push(i as i64),
            (_, 1) => r1.push(i as i64),
            _ => return None,
        }
    }
    Some((r0, r1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{floats, run_op};

    #[test]
    fn one_size_may_be_left_open() {
        assert_eq!(reshaped(&[2, 3], &[-1, 2]).unwrap().dims(), [3, 2]);
        assert_eq!(reshaped(&[1], &[]).unwrap().dims(), [0usize; 0]);
        assert_eq!(reshaped(&[2, 0, 4], &[5, -1, 0]).unwrap().dims(), [5, 1, 0]);
        assert_eq!(reshaped(&[0, 3], &[-1, 0]).unwrap().dims(), [3, 0]);
        let text = |s: &[i64]| reshaped(&[2, 3], s).unwrap_err().message;
        assert_eq!(
            text(&[-1, -1]),
            "Only one input size may be -1, not both 0 and 1"
        );
        assert_eq!(
            text(&[4, -1]),
            "Input to reshape is a tensor with 6 values, but the requested shape requires a multiple of 4"
        );
        assert_eq!(
            text(&[4, 2]),
            "Input to reshape is a tensor with 6 values, but the requested shape has 8"
        );
        assert_eq!(
            text(&[1 << 40, 1 << 40]),
            "Shape [1099511627776, 1099511627776] has too many elements"
        );
    }

    #[test]
    fn gradients_are_summed_where_a_side_was_repeated() {
        let axes = |a: &[i64], b: &[i64]| reduced_axes(a, b).unwrap();
        assert_eq!(axes(&[2, 3], &[3]), (vec![], vec![0]));
        assert_eq!(
            axes(&[5, 1, 1, 2], &[1, 4, 1, 1]),
            (vec![1, 2], vec![0, 2, 3])
        );
        assert_eq!(axes(&[1, 2, 3], &[2, 3]), (vec![0], vec![0]));
        assert_eq!(axes(&[1, 1], &[1, 1]), (vec![], vec![]));
        assert!(reduced_axes(&[2], &[3]).is_none());
    }

    #[test]
    fn reshaping_a_unique_tensor_copies_nothing() {
        let out = run_op(
            "Reshape",
            vec![
                floats(&[1.0, 2.0, 3.0, 4.0]),
                Tensor::vector(vec![2i32, -1]),
            ],
            &[("T", DType::Float.into())],
        )
        .unwrap();
        assert_eq!(out[0].dims(), [2, 2]);
        let e = run_op(
            "Squeeze",
            vec![out[0].clone()],
            &[
                ("T", DType::Float.into()),
                ("squeeze_dims", vec![1i64].into()),
            ],
        )
        .unwrap_err();
        assert!(
            e.message
                .starts_with("Can not squeeze dim[1], expected a dimension of 1, got 2")
        );
    }
}
