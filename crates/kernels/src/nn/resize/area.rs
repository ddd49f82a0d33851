//! `ResizeArea`: each output pixel is the mean of the input it covers.

use super::{Mapping, Sizes, as_floats};
use crate::types::REALS;
use downpour_graph::Result;
use downpour_runtime::{Built, OpContext, Registry, parallel_ranges};
use downpour_tensor::DType;

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("ResizeArea", &[("T", REALS)], |b| {
        let m = Mapping::parse(b.attrs())?;
        Built::costly(move |ctx| forward(ctx, m))
    });
}

/// Input pixels that an output pixel covers, with how much of each.
fn covered(scale: f32, i: usize, input: usize) -> Vec<(usize, f32)> {
    let (start, end) = (i as f32 * scale, (i + 1) as f32 * scale);
    let (first, last) = (start.floor() as usize, end.ceil() as usize);
    (first..last)
        .map(|p| {
            let at = p as f32;
            let part = if at < start {
                if at + 1.0 > end {
                    scale
                } else {
                    at + 1.0 - start
                }
            } else if at + 1.0 > end {
                end - at
            } else {
                1.0
            };
            (p.min(input - 1), part)
        })
        .collect()
}

fn forward(ctx: &mut OpContext<'_>, m: Mapping) -> Result<()> {
    let s = Sizes::check(ctx)?;
    let mut out = ctx.zeros(DType::Float, &s.shape())?;
    let [_, h, w, c] = s.input;
    let [oh, ow] = s.output;
    let image = as_floats(ctx.input(0)?)?;
    let (sy, sx) = (m.scale(h, oh), m.scale(w, ow));
    let inverse = 1.0 / (sy * sx);
    let xs: Vec<_> = (0..ow).map(|x| covered(sx, x, w)).collect();
    let row = ow * c;
    parallel_ranges(
        out.make_mut::<f32>()?,
        row,
        (4 << 10) / row + 1,
        |first, rows| {
            for (i, to) in rows.chunks_exact_mut(row).enumerate() {
                let n = (first + i) / oh;
                let ys = covered(sy, (first + i) % oh, h);
                for (to, xs) in to.chunks_exact_mut(c).zip(&xs) {
                    for &(y, wy) in &ys {
                        for &(x, wx) in xs {
                            let at = ((n * h + y) * w + x) * c;
                            for (to, v) in to.iter_mut().zip(&image[at..at + c]) {
                                *to += v * wy * wx;
                            }
                        }
                    }
                    to.iter_mut().for_each(|v| *v *= inverse);
                }
            }
        },
    );
    ctx.set_output(0, out);
    Ok(())
}
