//! Choosing by a condition: `Where`, `Select`, `SelectV2`, `OneHot`.

use super::cast::Source;
use super::dtypes::{ALL, COMMON};
use super::tile::broadcast;
use super::units::{Unit, room, with_unit};
use crate::args::{axis as wrap, ints};
use crate::broadcast::Broadcast;
use crate::types::with_type;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{DType, Dims, Shape, Tensor};

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("Where", &[("T", COMMON)], |_| Built::cheap(where_true));
    r.add_typed("Select", &[("T", ALL)], |_| Built::cheap(select));
    r.add_typed("SelectV2", &[("T", ALL)], |_| Built::cheap(select_v2));
    r.add_typed(
        "OneHot",
        &[
            (
                "TI",
                &[DType::UInt8, DType::Int8, DType::Int32, DType::Int64],
            ),
            ("T", ALL),
        ],
        one_hot,
    );
}

fn invalid<T>(text: String) -> Result<T> {
    Err(Status::invalid_argument(text))
}

fn where_true(ctx: &mut OpContext<'_>) -> Result<()> {
    let input = ctx.input(0)?;
    let rank = input.rank();
    if rank == 0 || rank > 8 {
        return invalid(format!("WhereOp : Unhandled input dimensions: {rank}"));
    }
    if input.dtype() == DType::Half {
        return Err(Status::unimplemented(
            "No WhereOp available for float16/half type on CPU; dying in CPU WhereOp to avoid silently creating costly copies from device.",
        ));
    }
    let hits = with_type!(input.dtype(), T in plain => places(input.as_slice::<T>()?));
    let shape = Shape::from([hits.len(), rank]);
    let mut out = ctx.vec::<i64>(&shape)?;
    let dims = input.dims();
    for hit in &hits {
        let start = out.len();
        out.resize(start + rank, 0);
        let mut rest = *hit;
        for d in (0..rank).rev() {
            out[start + d] = (rest % dims[d]) as i64;
            rest /= dims[d];
        }
    }
    ctx.set_output(0, Tensor::from_vec(out, shape)?);
    Ok(())
}

/// Where values are not zero (or false).
fn places<T: Source>(values: &[T]) -> Vec<usize> {
    (0..values.len()).filter(|&i| values[i].truth()).collect()
}

fn select(ctx: &mut OpContext<'_>) -> Result<()> {
    let (cond, then, other) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    if cond.rank() == 0 {
        if then.shape() != other.shape() {
            return invalid(format!(
                "'then' and 'else' must have the same size.  but received: {} vs. {}",
                then.shape(),
                other.shape()
            ));
        }
        let chosen = if cond.scalar_value::<bool>()? { 1 } else { 2 };
        ctx.forward(chosen, 0);
        return Ok(());
    }
    let rows = cond.num_elements();
    // A vector condition chooses rows of anything larger.
    let by_row = cond.rank() == 1 && then.rank() != 1;
    if by_row {
        if then.rank() == 0 {
            return invalid(format!(
                "'then' must be at least a vector, but saw shape: {}",
                then.shape()
            ));
        }
        if then.dims()[0] != rows {
            return invalid(format!(
                "Number of batches of 'then' must match size of 'cond', but saw: {} vs. {rows}",
                then.dims()[0]
            ));
        }
        if then.shape() != other.shape() {
            return invalid(format!(
                "'then' and 'else' must have the same size.  but received: {} vs. {}",
                then.shape(),
                other.shape()
            ));
        }
    } else {
        for i in 1..3 {
            let t = ctx.input(i)?;
            if t.shape() != cond.shape() {
                return invalid(format!(
                    "Inputs to operation {} of type Select must have the same size and shape.  Input 0: {} != input {i}: {}",
                    ctx.name(),
                    cond.shape(),
                    t.shape()
                ));
            }
        }
    }
    let out = choose(ctx, cond.as_slice::<bool>()?, then, other)?;
    ctx.set_output(0, out);
    Ok(())
}

/// For each entry of `cond`, as many elements of one of the equal-shaped others as fall to it.
fn choose(ctx: &OpContext<'_>, cond: &[bool], then: &Tensor, other: &Tensor) -> Result<Tensor> {
    let (dtype, shape) = (then.dtype(), then.shape().clone());
    let row = shape.num_elements().checked_div(cond.len()).unwrap_or(0);
    with_unit!(dtype, U => {
        let mut out = room::<U>(ctx, dtype, &shape)?;
        let (a, b) = (U::view(then)?, U::view(other)?);
        match row {
            0 => {}
            1 => U::mix(&mut out, cond, a, b),
            n => for (&c, (a, b)) in cond.iter().zip(a.chunks_exact(n).zip(b.chunks_exact(n))) {
                out.extend_from_slice(if c { a } else { b });
            },
        }
        U::tensor(dtype, out, shape)
    })
}

fn select_v2(ctx: &mut OpContext<'_>) -> Result<()> {
    let (cond, then, other) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    if cond.rank() == 0 && then.shape() == other.shape() {
        let chosen = if cond.scalar_value::<bool>()? { 1 } else { 2 };
        ctx.forward(chosen, 0);
        return Ok(());
    }
    let shape = Broadcast::new(then.dims(), other.dims())
        .and_then(|b| Broadcast::new(cond.dims(), &b.shape))
        .map(|b| b.shape);
    let Some(shape) = shape else {
        return invalid(format!(
            "condition {}, then {}, and else {} must be broadcastable",
            cond.shape(),
            then.shape(),
            other.shape()
        ));
    };
    let cond = broadcast(ctx, cond, &shape)?;
    let out = choose_or_one(ctx, cond.as_slice::<bool>()?, then, other, shape)?;
    ctx.set_output(0, out);
    Ok(())
}

/// As [`choose`], element by element, an operand of one element standing for all.
fn choose_or_one(
    ctx: &OpContext<'_>,
    cond: &[bool],
    then: &Tensor,
    other: &Tensor,
    shape: Shape,
) -> Result<Tensor> {
    let expanded = |t: &Tensor| match t.num_elements() {
        1 => Ok(t.clone()),
        _ => broadcast(ctx, t, &shape),
    };
    let (then, other) = (expanded(then)?, expanded(other)?);
    let dtype = then.dtype();
    with_unit!(dtype, U => {
        let mut out = room::<U>(ctx, dtype, &shape)?;
        let (a, b) = (U::view(&then)?, U::view(&other)?);
        let fits = |x: &[U]| x.len() == cond.len() || x.len() == 1;
        if !fits(a) || !fits(b) {
            return Err(Status::internal("an operand was not broadcast"));
        }
        U::mix(&mut out, cond, a, b);
        U::tensor(dtype, out, shape)
    })
}

fn one_hot(b: &KernelBuilder<'_>) -> Result<Built> {
    let axis = b.attrs().int("axis")?;
    Built::cheap(move |ctx| {
        let (indices, depth) = (ctx.input(0)?, ctx.input(1)?);
        let (on, off) = (ctx.input(2)?, ctx.input(3)?);
        let rank = indices.rank() + 1;
        let Some(axis) = wrap(axis, rank).filter(|_| axis >= -1) else {
            return invalid(format!(
                "Expected axis to be -1 or between [0, {rank}).  But received: {axis}"
            ));
        };
        for (name, t) in [("depth", depth), ("on_value", on), ("off_value", off)] {
            if t.rank() != 0 {
                return invalid(format!("{name} must be a scalar, but got: {}", t.shape()));
            }
        }
        let depth = ints(depth)?[0];
        if depth < 0 {
            return invalid(format!("depth must be non-negative, got: {depth}"));
        }
        let mut dims: Vec<i64> = indices.dims().iter().map(|&d| d as i64).collect();
        dims.insert(axis, depth);
        let shape = crate::args::shape_of(&dims)?;
        let out = hot(ctx, indices, on, off, axis, shape)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

fn hot(
    ctx: &OpContext<'_>,
    indices: &Tensor,
    on: &Tensor,
    off: &Tensor,
    axis: usize,
    shape: Shape,
) -> Result<Tensor> {
    let dtype = on.dtype();
    ctx.check_alloc(dtype, &shape)?;
    let depth = shape[axis];
    let inner: usize = Dims::from_slice(&shape[axis + 1..]).iter().product();
    let at = ints(indices)?;
    with_unit!(dtype, U => {
        let (on, off) = match (U::view(on)?, U::view(off)?) {
            ([on], [off]) => (on.clone(), off.clone()),
            _ => return Err(Status::internal("a scalar without an element")),
        };
        let mut out = crate::uninit::repeated(&off, shape.num_elements());
        // Indices outside the depth leave their row cold.
        for (i, &k) in at.iter().enumerate() {
            if let Some(k) = usize::try_from(k).ok().filter(|&k| k < depth) {
                out[(i / inner * depth + k) * inner + i % inner] = on.clone();
            }
        }
        U::tensor(dtype, out, shape)
    })
}

#[cfg(test)]
mod tests {
    use crate::testing::{floats, run_op};
    use downpour_graph::Result;
    use downpour_tensor::{DType, Tensor};

    fn select(op: &str, cond: Tensor, a: Tensor, b: Tensor) -> Result<Tensor> {
        run_op(op, vec![cond, a, b], &[("T", DType::Float.into())]).map(|mut o| o.remove(0))
    }

    #[test]
    fn conditions_choose_elements_rows_or_all() {
        let square = |v: [f32; 4]| Tensor::from_vec(v.to_vec(), [2, 2]).unwrap();
        let (a, b) = (
            square([1.0, 2.0, 3.0, 4.0]),
            square([-1.0, -2.0, -3.0, -4.0]),
        );
        let cond = Tensor::vector(vec![true, false]);
        let out = select("Select", cond.clone(), a.clone(), b.clone()).unwrap();
        assert_eq!(out.as_slice::<f32>().unwrap(), [1.0, 2.0, -3.0, -4.0]);
        let out = select("SelectV2", cond, a.clone(), b.clone()).unwrap();
        assert_eq!(out.as_slice::<f32>().unwrap(), [1.0, -2.0, 3.0, -4.0]);
        let column = Tensor::from_vec(vec![true, false], [2, 1]).unwrap();
        let out = select("SelectV2", column, a.clone(), Tensor::scalar(0.0f32)).unwrap();
        assert_eq!(out.as_slice::<f32>().unwrap(), [1.0, 2.0, 0.0, 0.0]);
        let wide = Tensor::vector(vec![true; 3]);
        let e = select("SelectV2", wide, a, b).unwrap_err();
        assert!(
            e.message
                .starts_with("condition [3], then [2,2], and else [2,2] must be broadcastable")
        );
    }

    #[test]
    fn where_lists_the_places_that_are_not_zero() {
        let t = floats(&[0.0, -0.0, f32::NAN, 2.0]);
        let out = run_op("Where", vec![t], &[("T", DType::Float.into())]).unwrap();
        assert_eq!(
            (out[0].dims(), out[0].as_slice::<i64>().unwrap()),
            (&[2, 1][..], &[2, 3][..])
        );
    }

    #[test]
    fn an_index_beyond_the_depth_is_cold() {
        let attrs = [
            ("T", DType::Float.into()),
            ("TI", DType::Int32.into()),
            ("axis", 0.into()),
        ];
        let inputs = vec![
            Tensor::vector(vec![0i32, 2, -1, 5]),
            Tensor::scalar(3i32),
            Tensor::scalar(1.0f32),
            Tensor::scalar(0.5f32),
        ];
        let out = run_op("OneHot", inputs, &attrs).unwrap();
        assert_eq!(out[0].dims(), [3, 4]);
        assert_eq!(
            out[0].as_slice::<f32>().unwrap(),
            [1.0, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 1.0, 0.5, 0.5]
        );
    }
}
