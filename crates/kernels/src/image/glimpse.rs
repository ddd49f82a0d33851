//! `ExtractGlimpse`: windows at given places of images, noise where they reach past the edge.

use crate::args::{ints, shape_of};
use crate::random::philox::{Philox, Words, entropy};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::Tensor;

pub(crate) fn register(r: &mut Registry) {
    r.add("ExtractGlimpse", |b| build(b, false));
    r.add("ExtractGlimpseV2", |b| build(b, true));
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Noise {
    Uniform,
    Gaussian,
    Zero,
}

#[derive(Clone, Copy)]
struct Options {
    centered: bool,
    normalized: bool,
    noise: Noise,
    /// Whether this is the op's second version.
    second: bool,
}

fn invalid<T>(text: String) -> Result<T> {
    Err(Status::invalid_argument(text))
}

fn build(b: &KernelBuilder<'_>, second: bool) -> Result<Built> {
    let attrs = b.attrs();
    let (uniform, name) = (attrs.bool("uniform_noise")?, attrs.str("noise")?);
    let noise = match name {
        _ if uniform && name != "uniform" => {
            return invalid(
                "The uniform_noise should not be True when noise is not uniform".into(),
            );
        }
        "zero" => Noise::Zero,
        "gaussian" => Noise::Gaussian,
        "uniform" => Noise::Uniform,
        other => {
            return invalid(format!(
                "The noise could only be uniform, gaussian, or zero, got{other}"
            ));
        }
    };
    let options = Options {
        centered: attrs.bool("centered")?,
        normalized: attrs.bool("normalized")?,
        noise,
        second,
    };
    Built::costly(move |ctx| run(ctx, options))
}

fn run(ctx: &mut OpContext<'_>, o: Options) -> Result<()> {
    let (x, size, offsets) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    let &[batch, height, width, depth] = x.dims() else {
        return invalid(format!(
            "input must be 4-dimensional (batch_size, height, width, depth){}",
            x.shape()
        ));
    };
    if size.dims() != [2] {
        return invalid(format!(
            "input must be a vector of size 2 (height, width){}",
            size.shape()
        ));
    }
    let wanted = ints(size)?;
    if let Some(bad) = wanted.iter().find(|d| **d < 0) {
        return invalid(format!("Expected a non-negative size, got {bad}"));
    }
    let shape = shape_of(&[batch as i64, wanted[0], wanted[1], depth as i64])?;
    if offsets.rank() != 2 {
        return invalid(format!("input must be a matrix{}", offsets.shape()));
    }
    if offsets.dims()[0] != batch {
        return invalid(format!(
            "first dimension should be batch{}",
            offsets.shape()
        ));
    }
    if offsets.dims()[1] != 2 {
        return invalid(format!(
            "second dimension should be of size 2 (y,x){}",
            offsets.shape()
        ));
    }
    let mut out = ctx.vec::<f32>(&shape)?;
    let (values, offsets) = (x.as_slice::<f32>()?, offsets.as_slice::<f32>()?);
    let (rows, columns) = (shape[1], shape[2]);
    let image = height * width * depth;
    for b in 0..batch {
        let from = &values[b * image..(b + 1) * image];
        let top = start(offsets[2 * b], height, rows, o);
        let left = start(offsets[2 * b + 1], width, columns, o);
        let inside = |v: i64, n: usize| usize::try_from(v).ok().filter(|v| *v < n);
        let within = |start: i64, length: usize, size: usize| {
            start >= 0 && start.saturating_add(length as i64) <= size as i64
        };
        let whole = within(top, rows, height) && within(left, columns, width);
        let mut noise = (!whole).then(|| Source::new(o.noise, from, depth));
        for y in 0..rows {
            for x in 0..columns {
                let at = inside(top.saturating_add(y as i64), height)
                    .zip(inside(left.saturating_add(x as i64), width))
                    .map(|(y, x)| (y * width + x) * depth);
                match (at, &mut noise) {
                    (Some(at), _) => out.extend_from_slice(&from[at..at + depth]),
                    (None, Some(noise)) => out.extend((0..depth).map(|c| noise.next(c))),
                    (None, None) => out.extend(std::iter::repeat_n(0.0, depth)),
                }
            }
        }
    }
    ctx.set_output(0, Tensor::from_vec(out, shape)?);
    Ok(())
}

/// Where a window of `window` pixels begins.
fn start(offset: f32, size: usize, window: usize, o: Options) -> i64 {
    let (size, half) = (size as f32, window as f32 / 2.0);
    let at = match (o.normalized, o.centered) {
        (true, true) => offset * size / 2.0 + size / 2.0 - half,
        (true, false) => offset * size - if o.second { 0.0 } else { half },
        // The second version takes pixels for the window's corner, the first for its centre.
        (false, true) if o.second => offset + size / 2.0,
        (false, true) => offset / 2.0 + size / 2.0 - half,
        (false, false) => offset - if o.second { 0.0 } else { half },
    };
    at as i64
}

/// Noise that looks like an image. Nothing promises which: TensorFlow's is not seeded either.
struct Source {
    noise: Noise,
    words: Words,
    low: f32,
    high: f32,
    /// Mean, deviation and range by channel.
    channels: Vec<[f32; 4]>,
}

impl Source {
    fn new(noise: Noise, image: &[f32], depth: usize) -> Source {
        let range = |values: &mut dyn Iterator<Item = f32>| {
            values.fold((f32::INFINITY, f32::NEG_INFINITY), |(a, b), v| {
                (a.min(v), b.max(v))
            })
        };
        let (low, high) = range(&mut image.iter().copied());
        let channel = |c: usize| {
            let values = || image.iter().skip(c).step_by(depth.max(1)).copied();
            let n = values().count() as f32;
            let mean = values().sum::<f32>() / n;
            let square = values().map(|v| (v - mean) * (v - mean)).sum::<f32>() / n;
            let (low, high) = range(&mut values());
            [mean, square.sqrt(), low, high]
        };
        Source {
            noise,
            words: Words::new(Philox::from_seeds(entropy(), entropy())),
            low,
            high,
            channels: match noise {
                Noise::Gaussian => (0..depth).map(channel).collect(),
                _ => Vec::new(),
            },
        }
    }

    fn next(&mut self, channel: usize) -> f32 {
        match self.noise {
            Noise::Zero => 0.0,
            Noise::Uniform => self.low + self.words.f32() * (self.high - self.low),
            Noise::Gaussian => {
                let (u, v) = (1.0 - self.words.f32(), self.words.f32());
                let normal = (-2.0 * u.ln()).sqrt() * (std::f32::consts::TAU * v).cos();
                let [mean, deviation, low, high] = self.channels[channel];
                (mean + normal * deviation).min(high).max(low)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::run_op;
    use downpour_tensor::Tensor;

    #[test]
    fn windows_far_outside_are_noise_within_the_range() {
        let image = Tensor::from_vec((0..9).map(|v| v as f32).collect(), [1, 3, 3, 1]).unwrap();
        for far in [1e30f32, -1e30, f32::NAN, f32::INFINITY, 2.0] {
            let offsets = Tensor::from_vec(vec![far, far], [1, 2]).unwrap();
            let inputs = vec![image.clone(), Tensor::vector(vec![2i32, 4]), offsets];
            let out = run_op("ExtractGlimpse", inputs, &[]).unwrap();
            let values = out[0].as_slice::<f32>().unwrap();
            assert!(values.iter().all(|v| (0.0..=8.0).contains(v)), "{values:?}");
        }
    }
}
