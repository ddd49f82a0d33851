//! `ResizeBilinear` and its gradient.

use super::{Mapping, Sizes, as_floats, four, from_floats};
use crate::types::{FLOATS, REALS};
use downpour_graph::Result;
use downpour_runtime::{Built, OpContext, Registry, parallel_ranges};
use downpour_tensor::{DType, Shape, Tensor};

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("ResizeBilinear", &[("T", REALS)], |b| {
        let m = Mapping::parse(b.attrs())?;
        Built::costly(move |ctx| forward(ctx, m))
    });
    r.add_typed("ResizeBilinearGrad", &[("T", FLOATS)], |b| {
        let m = Mapping::parse(b.attrs())?;
        let dtype = b.attrs().dtype("T")?;
        Built::costly(move |ctx| backward(ctx, m, dtype))
    });
}

/// Between which pixels an output pixel lies, and how far from the first.
struct Between {
    low: usize,
    high: usize,
    lerp: f32,
}

fn positions(m: Mapping, input: usize, output: usize) -> Vec<Between> {
    let scale = m.scale(input, output);
    (0..output)
        .map(|i| {
            let at = m.position(i, scale);
            let floor = at.floor();
            // A cast of a negative or too large float saturates, as wanted.
            Between {
                low: (floor as usize).min(input - 1),
                high: (at.ceil() as usize).min(input - 1),
                lerp: at - floor,
            }
        })
        .collect()
}

fn forward(ctx: &mut OpContext<'_>, m: Mapping) -> Result<()> {
    let image = as_floats(ctx.input(0)?)?;
    let out = lerp(ctx, m, &image)?;
    ctx.set_output(0, out);
    Ok(())
}

/// Resizes the image of input 0, whose pixels are `image`, to the size in input 1.
pub(crate) fn lerp(ctx: &OpContext<'_>, m: Mapping, image: &[f32]) -> Result<Tensor> {
    let s = Sizes::check(ctx)?;
    let shape = s.shape();
    let mut out = ctx.zeros(DType::Float, &shape)?;
    let [_, h, w, c] = s.input;
    let [oh, ow] = s.output;
    let (ys, xs) = (positions(m, h, oh), positions(m, w, ow));
    let row = ow * c;
    parallel_ranges(
        out.make_mut::<f32>()?,
        row,
        (16 << 10) / row + 1,
        |first, rows| {
            for (i, to) in rows.chunks_exact_mut(row).enumerate() {
                let (n, y) = ((first + i) / oh, &ys[(first + i) % oh]);
                let line = |y: usize| &image[(n * h + y) * w * c..(n * h + y + 1) * w * c];
                let (top, bottom) = (line(y.low), line(y.high));
                for (to, x) in to.chunks_exact_mut(c).zip(&xs) {
                    for (ch, to) in to.iter_mut().enumerate() {
                        let (l, r) = (x.low * c + ch, x.high * c + ch);
                        let t = top[l] + (top[r] - top[l]) * x.lerp;
                        let b = bottom[l] + (bottom[r] - bottom[l]) * x.lerp;
                        *to = t + (b - t) * y.lerp;
                    }
                }
            }
        },
    );
    Ok(out)
}

/// As [`lerp`] over integers, in fixed point with `bits` behind the point.
pub(crate) fn lerp_codes(
    ctx: &OpContext<'_>,
    m: Mapping,
    image: &[i32],
    bits: u32,
) -> Result<(Vec<i32>, Shape)> {
    let s = Sizes::check(ctx)?;
    let shape = s.shape();
    ctx.check_alloc(DType::QInt32, &shape)?;
    let [n, h, w, c] = s.input;
    let (ys, xs) = (positions(m, h, s.output[0]), positions(m, w, s.output[1]));
    let one = 1i64 << bits;
    let share = |lerp: f32| (lerp * one as f32) as i64;
    let mut out = Vec::with_capacity(shape.num_elements());
    for picture in 0..n {
        for y in &ys {
            for x in &xs {
                for ch in 0..c {
                    let at = |row: usize, column: usize| {
                        // TensorFlow reads its integers through floats.
                        image[((picture * h + row) * w + column) * c + ch] as f32 as i64
                    };
                    let line = |row: usize| {
                        let (l, r) = (at(row, x.low), at(row, x.high));
                        l * one + (r - l) * share(x.lerp)
                    };
                    let (top, bottom) = (line(y.low), line(y.high));
                    let v = top + (bottom - top) / one * share(y.lerp);
                    out.push(((v + one / 2) / one) as i32);
                }
            }
        }
    }
    Ok((out, shape))
}

fn backward(ctx: &mut OpContext<'_>, m: Mapping, dtype: DType) -> Result<()> {
    let (dy, image) = (ctx.input(0)?, ctx.input(1)?);
    let [n, oh, ow, c] = four(dy, "input_grad")?;
    let [_, h, w, _] = four(image, "original_image")?;
    let shape = Shape::checked([n, h, w, c].map(|d| d as i64))?;
    let mut out = ctx.zeros(DType::Float, &shape)?;
    if shape.num_elements() != 0 && dy.num_elements() != 0 {
        let dy = dy.as_slice::<f32>()?;
        let (ys, xs) = (positions(m, h, oh), positions(m, w, ow));
        let image = h * w * c;
        parallel_ranges(out.make_mut::<f32>()?, image, 1, |first, images| {
            for (i, to) in images.chunks_exact_mut(image).enumerate() {
                let dy = &dy[(first + i) * oh * ow * c..(first + i + 1) * oh * ow * c];
                for (y, row) in ys.iter().zip(dy.chunks_exact(ow * c)) {
                    for (x, pixel) in xs.iter().zip(row.chunks_exact(c)) {
                        let corners = [
                            (y.low, x.low, (1.0 - y.lerp) * (1.0 - x.lerp)),
                            (y.low, x.high, (1.0 - y.lerp) * x.lerp),
                            (y.high, x.low, y.lerp * (1.0 - x.lerp)),
                            (y.high, x.high, y.lerp * x.lerp),
                        ];
                        for (iy, ix, weight) in corners {
                            let at = (iy * w + ix) * c;
                            for (to, v) in to[at..at + c].iter_mut().zip(pixel) {
                                *to += v * weight;
                            }
                        }
                    }
                }
            }
        });
    }
    let values = out.as_slice::<f32>()?.to_vec();
    let out: Tensor = from_floats(values, shape, dtype)?;
    ctx.set_output(0, out);
    Ok(())
}
