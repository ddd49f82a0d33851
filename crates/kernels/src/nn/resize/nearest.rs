//! `ResizeNearestNeighbor` and its gradient, on elements of any type.

use super::{Mapping, Sizes, four, positive, two};
use crate::nn::bias::Sum;
use crate::nn::float::{compute_type, narrow, widen};
use crate::types::{REALS, with_type};
use crate::uninit::filled;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, OpContext, Registry};
use downpour_tensor::{Shape, Tensor};

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("ResizeNearestNeighbor", &[("T", REALS)], |b| {
        let m = Mapping::parse(b.attrs())?;
        Built::costly(move |ctx| forward(ctx, m))
    });
    r.add_typed("ResizeNearestNeighborGrad", &[("T", REALS)], |b| {
        let m = Mapping::parse(b.attrs())?;
        Built::costly(move |ctx| backward(ctx, m))
    });
}

/// Elements below which resizing is not worth splitting.
const GRAIN: usize = 16 << 10;

/// The pixel of the smaller or larger image that each of `output` pixels takes.
fn nearest(m: Mapping, input: usize, output: usize) -> Vec<usize> {
    let scale = m.scale(input, output);
    (0..output)
        .map(|i| {
            let at = if m.half_pixel {
                ((i as f32 + 0.5) * scale).floor()
            } else if m.align_corners {
                (i as f32 * scale).round()
            } else {
                (i as f32 * scale).floor()
            };
            (at as usize).min(input - 1)
        })
        .collect()
}

fn forward(ctx: &mut OpContext<'_>, m: Mapping) -> Result<()> {
    let s = Sizes::check(ctx)?;
    let shape = s.shape();
    let image = ctx.input(0)?;
    ctx.check_alloc(image.dtype(), &shape)?;
    let [n, h, w, c] = s.input;
    let [oh, ow] = s.output;
    let (ys, xs) = (nearest(m, h, oh), nearest(m, w, ow));
    let out = with_type!(image.dtype(), T in reals => {
        let from = image.as_slice::<T>()?;
        let (total, row) = (n * oh * ow * c, ow * c);
        let to = filled(Vec::new(), total, row, GRAIN / row + 1, |first, to| {
            for line in first..first + to.missing() / row {
                let start = (line / oh * h + ys[line % oh]) * w * c;
                let line = &from[start..start + w * c];
                match c {
                    1 => to.extend(xs.iter().map(|&x| line[x])),
                    _ => xs.iter().for_each(|x| to.extend_from_slice(&line[x * c..(x + 1) * c])),
                }
            }
        });
        Tensor::from_vec(to, shape)?
    });
    ctx.set_output(0, out);
    Ok(())
}

fn backward(ctx: &mut OpContext<'_>, m: Mapping) -> Result<()> {
    let (dy, size) = (ctx.input(0)?, ctx.input(1)?);
    let [n, oh, ow, c] = four(dy, "input")?;
    let Some([h, w]) = positive(&two(size)?) else {
        return Err(Status::invalid_argument(
            "shape_t's elements must be positive",
        ));
    };
    let shape = Shape::checked([n, h, w, c].map(|d| d as i64))?;
    let dtype = dy.dtype();
    let dy = widen(dy)?;
    let mut out = ctx.zeros(compute_type(dtype), &shape)?;
    if dy.num_elements() != 0 {
        let (ys, xs) = (nearest(m, h, oh), nearest(m, w, ow));
        with_type!(compute_type(dtype), T in [f32, f64, i8, i16, i32, i64, u8, u16, u32, u64] => {
            let to = out.make_mut::<T>()?;
            let mut pixels = dy.as_slice::<T>()?.chunks_exact(c);
            for b in 0..n {
                for y in &ys {
                    for (x, pixel) in xs.iter().zip(&mut pixels) {
                        let at = ((b * h + y) * w + x) * c;
                        for (to, v) in to[at..at + c].iter_mut().zip(pixel) {
                            *to = to.sum(*v);
                        }
                    }
                }
            }
        });
    }
    ctx.set_output(0, narrow(out, dtype)?);
    Ok(())
}
