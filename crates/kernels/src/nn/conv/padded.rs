//! `FusedPadConv2D` and `FusedResizeAndPadConv2D`: a convolution of an image that is mirrored at its
//! edges, and resized before that.

use super::convolve;
use super::shape::{Direction, Params};
use crate::args::ints;
use crate::array::pad::mirrored;
use crate::array::units::{Unit, with_unit};
use crate::nn::float::{narrow, widen};
use crate::nn::resize::{Mapping, lerp};
use crate::types::FLOATS;
use downpour_graph::{AttrList, AttrValue, Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{DType, Shape, Tensor};

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("FusedPadConv2D", &[("T", FLOATS)], |b| {
        let (p, offset) = params(b)?;
        Built::costly(move |ctx| {
            let (x, filter) = (ctx.take(0)?, ctx.take(2)?);
            let x = mirror(ctx, &x, ctx.input(1)?, offset)?;
            let out = convolve(ctx, &p, &x, &filter, None)?;
            ctx.set_output(0, out);
            Ok(())
        })
    });
    const RESIZED: &[DType] = crate::types::FLOAT_HALF;
    r.add_typed("FusedResizeAndPadConv2D", &[("T", RESIZED)], |b| {
        let (p, offset) = params(b)?;
        let mapping = Mapping::new(b.attrs().bool("resize_align_corners")?, false);
        Built::costly(move |ctx| {
            let dtype = ctx.input(0)?.dtype();
            let image = widen(ctx.input(0)?)?;
            let x = narrow(lerp(ctx, mapping, image.as_slice::<f32>()?)?, dtype)?;
            let x = mirror(ctx, &x, ctx.input(2)?, offset)?;
            let filter = ctx.take(3)?;
            let out = convolve(ctx, &p, &x, &filter, None)?;
            ctx.set_output(0, out);
            Ok(())
        })
    });
}

/// The convolution, channels last and without dilation, and whether edges are repeated.
fn params(b: &KernelBuilder<'_>) -> Result<(Params, i64)> {
    let mut attrs = b.attrs().clone();
    attrs.set("data_format", AttrValue::Str("NHWC".into()));
    attrs.set("dilations", AttrValue::List(AttrList::Int(vec![1; 4])));
    let offset = i64::from(attrs.str("mode")? == "REFLECT");
    Ok((Params::parse(&attrs, Direction::Forward)?, offset))
}

fn mirror(ctx: &OpContext<'_>, x: &Tensor, paddings: &Tensor, offset: i64) -> Result<Tensor> {
    let invalid = |text: String| Err(Status::invalid_argument(text));
    let &[n, h, w, c] = x.dims() else {
        return invalid(format!("input must be 4-dimensional{}", x.shape()));
    };
    if paddings.dims() != [4, 2] {
        return invalid(format!(
            "paddings must be a matrix with 2 columns: {}",
            paddings.shape()
        ));
    }
    let pads = ints(paddings)?;
    let pair = |d: usize| (pads[2 * d], pads[2 * d + 1]);
    for d in 0..4 {
        let (before, after) = pair(d);
        if before < 0 || after < 0 {
            return invalid(format!("paddings must be non-negative: {before} {after}"));
        }
        let most = x.dims()[d] as i64 - offset;
        if before > most || after > most {
            return invalid(match offset {
                1 => format!(
                    "paddings must be less than the dimension size: {before}, {after} not less than {}",
                    x.dims()[d]
                ),
                _ => format!(
                    "paddings must be no greater than the dimension size: {before}, {after} greater than {}",
                    x.dims()[d]
                ),
            });
        }
    }
    if pair(0) != (0, 0) || pair(3) != (0, 0) {
        return Err(Status::unimplemented(
            "padding of the batch and the channels is not supported",
        ));
    }
    let (rows, columns) = (mirrored(h, pair(1), offset), mirrored(w, pair(2), offset));
    let dims = [n as i64, rows.len() as i64, columns.len() as i64, c as i64];
    let shape = Shape::checked(dims)?;
    ctx.check_alloc(x.dtype(), &shape)?;
    let dtype = x.dtype();
    Ok(with_unit!(dtype, U => {
        let from = U::view(x)?;
        let mut out = Vec::with_capacity(shape.num_elements());
        for image in 0..n {
            for row in &rows {
                for column in &columns {
                    let at = ((image * h + row) * w + column) * c;
                    out.extend_from_slice(&from[at..at + c]);
                }
            }
        }
        U::tensor(dtype, out, shape)?
    }))
}
