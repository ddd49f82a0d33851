//! Binary elementwise ops with broadcasting. The result goes into an operand's buffer when that
//! operand has the result's shape and this was its last use.

use crate::broadcast::Broadcast;
use crate::types::{NUMBERS, with_type};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, OpContext, Registry, parallel_ranges};
use downpour_tensor::{Element, Tensor};
use std::ops::{Add, Mul, Sub};

/// Elements below which a loop is not worth splitting.
const GRAIN: usize = 32 << 10;

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("AddV2", &[("T", NUMBERS)], |b| {
        let t = b.attrs().dtype("T")?;
        with_type!(t, T in numbers => Built::cheap(|ctx| apply::<T>(ctx, Add::add)))
    });
    r.add_typed("Sub", &[("T", NUMBERS)], |b| {
        let t = b.attrs().dtype("T")?;
        with_type!(t, T in numbers => Built::cheap(|ctx| apply::<T>(ctx, Sub::sub)))
    });
    r.add_typed("Mul", &[("T", NUMBERS)], |b| {
        let t = b.attrs().dtype("T")?;
        with_type!(t, T in numbers => Built::cheap(|ctx| apply::<T>(ctx, Mul::mul)))
    });
}

/// Runs `f` over both inputs, elements of one type in and out.
fn apply<T: Element>(ctx: &mut OpContext<'_>, f: impl Fn(T, T) -> T + Sync + Copy) -> Result<()> {
    let (x, y) = (ctx.take(0)?, ctx.take(1)?);
    let out = combine(ctx, x, y, f)?;
    ctx.set_output(0, out);
    Ok(())
}

fn combine<T: Element>(
    ctx: &OpContext<'_>,
    mut x: Tensor,
    mut y: Tensor,
    f: impl Fn(T, T) -> T + Sync + Copy,
) -> Result<Tensor> {
    if x.shape() == y.shape() {
        if x.is_unique() {
            let b = y.as_slice::<T>()?;
            parallel_ranges(x.make_mut::<T>()?, 1, GRAIN, |at, a| {
                a.iter_mut().zip(&b[at..]).for_each(|(a, b)| *a = f(*a, *b));
            });
            return Ok(x);
        }
        if y.is_unique() {
            let a = x.as_slice::<T>()?;
            parallel_ranges(y.make_mut::<T>()?, 1, GRAIN, |at, b| {
                b.iter_mut().zip(&a[at..]).for_each(|(b, a)| *b = f(*a, *b));
            });
            return Ok(y);
        }
        let (a, b) = (x.as_slice::<T>()?, y.as_slice::<T>()?);
        let mut out = ctx.vec::<T>(x.shape())?;
        out.extend(a.iter().zip(b).map(|(a, b)| f(*a, *b)));
        return Ok(Tensor::from_vec(out, x.shape().clone())?);
    }
    let Some(bc) = Broadcast::new(x.dims(), y.dims()) else {
        return Err(incompatible(&x, &y));
    };
    let (a, b) = (x.as_slice::<T>()?, y.as_slice::<T>()?);
    let mut out = ctx.vec::<T>(&bc.shape)?;
    let inner = bc.sizes.len() - 1;
    let (n, sl, sr) = (bc.sizes[inner], bc.left[inner], bc.right[inner]);
    bc.rows(|_, l, r| match (sl, sr) {
        (0, 1) => out.extend(b[r..r + n].iter().map(|b| f(a[l], *b))),
        (1, 0) => out.extend(a[l..l + n].iter().map(|a| f(*a, b[r]))),
        (1, 1) => out.extend(a[l..l + n].iter().zip(&b[r..r + n]).map(|(a, b)| f(*a, *b))),
        _ => out.extend((0..n).map(|i| f(a[l + i * sl], b[r + i * sr]))),
    });
    Ok(Tensor::from_vec(out, bc.shape)?)
}

/// TensorFlow's text for shapes that do not broadcast.
pub(crate) fn incompatible(x: &Tensor, y: &Tensor) -> Status {
    Status::invalid_argument(format!(
        "Incompatible shapes: {} vs. {}",
        x.shape(),
        y.shape()
    ))
}

#[cfg(test)]
mod tests {
    use crate::testing::{floats, run_op};
    use downpour_tensor::{DType, Tensor};

    #[test]
    fn addition_broadcasts_and_names_shapes_that_do_not() {
        let t = [("T", DType::Float.into())];
        let a = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 4.0], [2, 2]).unwrap();
        let out = run_op("AddV2", vec![a.clone(), floats(&[10.0, 20.0])], &t).unwrap();
        assert_eq!(out[0].as_slice::<f32>().unwrap(), [11.0, 22.0, 13.0, 24.0]);
        let e = run_op("AddV2", vec![a, floats(&[1.0, 2.0, 3.0])], &t).unwrap_err();
        assert!(
            e.message.starts_with("Incompatible shapes: [2,2] vs. [3]"),
            "{}",
            e.message
        );
    }
}
