//! `MaxPoolWithArgmax` and its gradient: maxima together with where they were found.

use super::maximum::{Ordered, first_largest};
use super::{Geometry, Params, four};
use crate::args::{int_tensor, ints};
use crate::types::{INDEX, REALS, with_type};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, OpContext, Registry};
use downpour_tensor::{DType, Shape, Tensor};

pub(crate) fn register(r: &mut Registry) {
    r.add_typed(
        "MaxPoolWithArgmax",
        &[("Targmax", INDEX), ("T", REALS)],
        |b| {
            let p = Params::parse(b.attrs())?;
            let whole = b.attrs().bool("include_batch_in_index")?;
            let index = b.attrs().dtype("Targmax")?;
            Built::costly(move |ctx| forward(ctx, &p, whole, index))
        },
    );
    r.add_typed(
        "MaxPoolGradWithArgmax",
        &[("T", REALS), ("Targmax", &[DType::Int64])],
        |b| {
            let p = Params::parse(b.attrs())?;
            let whole = b.attrs().bool("include_batch_in_index")?;
            Built::costly(move |ctx| gradient(ctx, &p, whole))
        },
    );
}

fn forward(ctx: &mut OpContext<'_>, p: &Params, whole: bool, index: DType) -> Result<()> {
    let x = ctx.take(0)?;
    let input = four(&x, "tensor_in must be 4-dimensional (2)")?;
    let g = p.geometry(input)?;
    let shape = Shape::from(g.out_dims());
    ctx.check_alloc(DType::Int64, &shape)?;
    let (out, at) =
        with_type!(x.dtype(), T in reals => find::<T>(&g, x.as_slice::<T>()?, whole, &shape)?);
    ctx.set_output(0, out);
    ctx.set_output(1, int_tensor(index, at, shape)?);
    Ok(())
}

fn find<T: Ordered>(
    g: &Geometry,
    x: &[T],
    whole: bool,
    shape: &Shape,
) -> Result<(Tensor, Vec<i64>)> {
    let n = shape.num_elements();
    let (mut out, mut at) = (Vec::with_capacity(n), Vec::with_capacity(n));
    let size = g.image_in();
    for b in 0..g.batch {
        let image = &x[b * size..(b + 1) * size];
        g.windows(|_, ys, xs| {
            for ch in 0..g.channels {
                let found = first_largest(g, image, &ys, &xs, ch);
                out.push(found.map_or(T::LOWEST, |i| image[i]));
                let base = if whole { b * size } else { 0 };
                at.push(found.map_or(0, |i| (base + i) as i64));
            }
        });
    }
    Ok((Tensor::from_vec(out, shape.clone())?, at))
}

fn gradient(ctx: &mut OpContext<'_>, p: &Params, whole: bool) -> Result<()> {
    let (x, grad, argmax) = (ctx.take(0)?, ctx.take(1)?, ctx.take(2)?);
    let g = p.geometry(four(&x, "tensor_in must be 4-dimensional (2)")?)?;
    let shape = Shape::from(g.out_dims());
    for (what, t) in [("grad", &grad), ("argmax", &argmax)] {
        if t.shape() != &shape {
            return Err(Status::invalid_argument(format!(
                "Expected {what} shape to be {shape}, but got {}",
                t.shape()
            )));
        }
    }
    let at = ints(&argmax)?;
    let (size, total) = (g.image_out(), x.num_elements());
    let mut out = ctx.zeros(x.dtype(), x.shape())?;
    with_type!(x.dtype(), T in reals => {
        let to = out.make_mut::<T>()?;
        let grad = grad.as_slice::<T>()?;
        for (i, (&at, v)) in at.iter().zip(grad).enumerate() {
            let base = if whole { 0 } else { i / size * g.image_in() };
            let Some(at) = usize::try_from(at).ok().and_then(|a| a.checked_add(base)) else {
                // TensorFlow passes over what lies before the image.
                continue;
            };
            let Some(place) = to.get_mut(at) else {
                return Err(Status::invalid_argument(format!(
                    "Invalid input grad out index: {at}, 0, {total}"
                )));
            };
            *place = crate::nn::bias::Sum::sum(*place, *v);
        }
    });
    ctx.set_output(0, out);
    Ok(())
}
