//! `ResizeBicubic` and its gradient. Weights come from a table of 1024 steps between two pixels,
//! as in TensorFlow: without half-pixel centres with a = -0.75 and edges repeated, with them with
//! a = -0.5 and edges left out.

use super::{Mapping, Sizes, as_floats, four, from_floats};
use crate::types::REALS;
use downpour_graph::Result;
use downpour_runtime::{Built, OpContext, Registry, parallel_ranges};
use downpour_tensor::{DType, Shape};

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("ResizeBicubic", &[("T", REALS)], |b| {
        let m = Mapping::parse(b.attrs())?;
        Built::costly(move |ctx| forward(ctx, m))
    });
    r.add_typed(
        "ResizeBicubicGrad",
        &[("T", &[DType::Float, DType::Double])],
        |b| {
            let m = Mapping::parse(b.attrs())?;
            let dtype = b.attrs().dtype("T")?;
            Built::costly(move |ctx| backward(ctx, m, dtype))
        },
    );
}

const STEPS: usize = 1 << 10;

/// Weights at distance `offset / STEPS` and one more.
fn weights(a: f32, offset: usize) -> (f32, f32) {
    let near = offset as f32 / STEPS as f32;
    let far = near + 1.0;
    (
        ((a + 2.0) * near - (a + 3.0)) * near * near + 1.0,
        ((a * far - 5.0 * a) * far + 8.0 * a) * far - 4.0 * a,
    )
}

/// Four input pixels with their weights, for each output pixel.
fn taps(m: Mapping, input: usize, output: usize) -> Vec<[(usize, f32); 4]> {
    let scale = m.scale(input, output);
    let a = if m.half_pixel { -0.5 } else { -0.75 };
    let last = input as i64 - 1;
    (0..output)
        .map(|i| {
            let at = m.position(i, scale);
            let floor = at.floor();
            let offset = ((at - floor) * STEPS as f32).round_ties_even() as usize;
            let (w1, w0) = weights(a, offset);
            let (w2, w3) = weights(a, STEPS - offset);
            let mut out = [(0, w0), (0, w1), (0, w2), (0, w3)];
            let mut sum = 0.0;
            for (k, (index, weight)) in out.iter_mut().enumerate() {
                let wanted = floor as i64 - 1 + k as i64;
                let inside = wanted.clamp(0, last);
                *index = inside as usize;
                if m.half_pixel && inside != wanted {
                    *weight = 0.0;
                }
                sum += *weight;
            }
            if m.half_pixel && sum.abs() >= 1000.0 * f32::MIN_POSITIVE {
                out.iter_mut().for_each(|(_, w)| *w /= sum);
            }
            out
        })
        .collect()
}

fn forward(ctx: &mut OpContext<'_>, m: Mapping) -> Result<()> {
    let s = Sizes::check(ctx)?;
    let mut out = ctx.zeros(DType::Float, &s.shape())?;
    let [_, h, w, c] = s.input;
    let [oh, ow] = s.output;
    let image = as_floats(ctx.input(0)?)?;
    let (ys, xs) = (taps(m, h, oh), taps(m, w, ow));
    let row = ow * c;
    parallel_ranges(
        out.make_mut::<f32>()?,
        row,
        (8 << 10) / row + 1,
        |first, rows| {
            let mut line = vec![0.0f32; w * c];
            for (i, to) in rows.chunks_exact_mut(row).enumerate() {
                let (n, y) = ((first + i) / oh, &ys[(first + i) % oh]);
                line.fill(0.0);
                for &(iy, weight) in y {
                    let from = &image[(n * h + iy) * w * c..(n * h + iy + 1) * w * c];
                    line.iter_mut()
                        .zip(from)
                        .for_each(|(l, v)| *l += v * weight);
                }
                for (to, x) in to.chunks_exact_mut(c).zip(&xs) {
                    for (ch, to) in to.iter_mut().enumerate() {
                        *to = x
                            .iter()
                            .map(|&(ix, weight)| line[ix * c + ch] * weight)
                            .sum();
                    }
                }
            }
        },
    );
    ctx.set_output(0, out);
    Ok(())
}

fn backward(ctx: &mut OpContext<'_>, m: Mapping, dtype: DType) -> Result<()> {
    let (dy, image) = (ctx.input(0)?, ctx.input(1)?);
    let [n, oh, ow, c] = four(dy, "input_grad")?;
    let [_, h, w, _] = four(image, "original_image")?;
    let shape = Shape::checked([n, h, w, c].map(|d| d as i64))?;
    ctx.check_alloc(DType::Float, &shape)?;
    let mut out = vec![0.0f32; shape.num_elements()];
    if !out.is_empty() && dy.num_elements() != 0 {
        let dy = dy.as_slice::<f32>()?;
        let (ys, xs) = (taps(m, h, oh), taps(m, w, ow));
        let image = h * w * c;
        parallel_ranges(&mut out, image, 1, |first, images| {
            for (i, to) in images.chunks_exact_mut(image).enumerate() {
                let dy = &dy[(first + i) * oh * ow * c..(first + i + 1) * oh * ow * c];
                for (y, row) in ys.iter().zip(dy.chunks_exact(ow * c)) {
                    for (x, pixel) in xs.iter().zip(row.chunks_exact(c)) {
                        for &(iy, wy) in y {
                            for &(ix, wx) in x {
                                let at = (iy * w + ix) * c;
                                for (to, v) in to[at..at + c].iter_mut().zip(pixel) {
                                    *to += v * wy * wx;
                                }
                            }
                        }
                    }
                }
            }
        });
    }
    let out = from_floats(out, shape, dtype)?;
    ctx.set_output(0, out);
    Ok(())
}
