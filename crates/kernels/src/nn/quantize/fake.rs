//! `FakeQuantWithMinMaxArgs`, `…Vars`, `…VarsPerChannel` and their gradients: floats moved to the
//! nearest of the values that some bits can tell apart.

use super::invalid;
use downpour_graph::{Attrs, Result};
use downpour_runtime::{Built, OpContext, Registry, parallel_ranges};
use downpour_tensor::Tensor;

/// Elements worth a thread of their own.
const GRAIN: usize = 16 << 10;

pub(crate) fn register(r: &mut Registry) {
    r.add("FakeQuantWithMinMaxArgs", |b| {
        let (range, grid) = (range(b.attrs())?, Grid::parse(b.attrs())?);
        let nudged = grid.nudge(range.0, range.1);
        Built::costly(move |ctx| {
            let mut x = ctx.take(0)?;
            each(&mut x, |v| nudged.round(v))?;
            ctx.set_output(0, x);
            Ok(())
        })
    });
    r.add("FakeQuantWithMinMaxArgsGradient", |b| {
        let (range, grid) = (range(b.attrs())?, Grid::parse(b.attrs())?);
        let nudged = grid.nudge(range.0, range.1);
        Built::costly(move |ctx| {
            let (g, x) = (ctx.input(0)?, ctx.input(1)?);
            if g.shape() != x.shape() {
                return invalid(format!(
                    "Inputs to operation {} of type FakeQuantWithMinMaxArgsGradient must have the same size and shape.  Input 0: {} != input 1: {}",
                    ctx.name(),
                    g.shape(),
                    x.shape()
                ));
            }
            let (mut g, x) = gradient_inputs(ctx)?;
            pass_inside(&mut g, &x, |_| Some(nudged))?;
            ctx.set_output(0, g);
            Ok(())
        })
    });
    r.add("FakeQuantWithMinMaxVars", |b| {
        let grid = Grid::parse(b.attrs())?;
        Built::costly(move |ctx| {
            let (min, max) = (scalar(ctx, 1, "min")?, scalar(ctx, 2, "max")?);
            let nudged = grid.of(min, max);
            let mut x = ctx.take(0)?;
            each(&mut x, |v| nudged.map_or(0.0, |n| n.round(v)))?;
            ctx.set_output(0, x);
            Ok(())
        })
    });
    r.add("FakeQuantWithMinMaxVarsGradient", |b| {
        let grid = Grid::parse(b.attrs())?;
        Built::costly(move |ctx| {
            let (mut g, x) = gradient_inputs(ctx)?;
            let (min, max) = (scalar(ctx, 2, "min")?, scalar(ctx, 3, "max")?);
            let nudged = grid.of(min, max);
            let sums = outside(&g, &x, 1, |_| nudged)?;
            pass_inside(&mut g, &x, |_| nudged)?;
            ctx.set_output(0, g);
            ctx.set_output(1, Tensor::scalar(sums[0].0));
            ctx.set_output(2, Tensor::scalar(sums[0].1));
            Ok(())
        })
    });
    r.add("FakeQuantWithMinMaxVarsPerChannel", |b| {
        let grid = Grid::parse(b.attrs())?;
        Built::costly(move |ctx| {
            let x = ctx.input(0)?;
            let Some(&depth) = x.dims().last() else {
                return invalid("Input must be at least 1-D");
            };
            let channels = channels(ctx, grid, 1, depth)?;
            let mut x = ctx.take(0)?;
            if depth > 0 {
                parallel_ranges(x.make_mut::<f32>()?, depth, GRAIN / depth + 1, |_, rows| {
                    for (i, v) in rows.iter_mut().enumerate() {
                        *v = channels[i % depth].map_or(0.0, |n| n.round(*v));
                    }
                });
            }
            ctx.set_output(0, x);
            Ok(())
        })
    });
    r.add("FakeQuantWithMinMaxVarsPerChannelGradient", |b| {
        let grid = Grid::parse(b.attrs())?;
        Built::costly(move |ctx| {
            let (mut g, x) = gradient_inputs(ctx)?;
            let Some(&depth) = x.dims().last() else {
                return invalid("Input must be at least 1-D");
            };
            let channels = channels(ctx, grid, 2, depth)?;
            let sums = outside(&g, &x, depth, |c| channels[c])?;
            pass_inside(&mut g, &x, |i| channels[i % depth])?;
            ctx.set_output(0, g);
            let (below, above) = sums.into_iter().take(depth).unzip();
            ctx.set_output(1, Tensor::vector::<f32>(below));
            ctx.set_output(2, Tensor::vector::<f32>(above));
            Ok(())
        })
    });
}

/// The integers to round to.
#[derive(Clone, Copy)]
struct Grid {
    low: f32,
    high: f32,
}

impl Grid {
    fn parse(attrs: &Attrs) -> Result<Grid> {
        let bits = attrs.int("num_bits")?;
        if !(2..=16).contains(&bits) {
            return invalid("num_bits must be between 2 and 16, inclusive");
        }
        Ok(Grid {
            low: if attrs.bool("narrow_range")? {
                1.0
            } else {
                0.0
            },
            high: ((1u32 << bits) - 1) as f32,
        })
    }

    /// The range moved so that zero is one of its values.
    fn nudge(self, min: f32, max: f32) -> Nudged {
        let scale = (max - min) / (self.high - self.low);
        let zero = self.low - min / scale;
        let zero = if zero < self.low {
            self.low
        } else if zero > self.high {
            self.high
        } else if zero.is_nan() {
            // What the conversion of NaN to 16 bits gives.
            0.0
        } else {
            zero.round()
        };
        let inverse = 1.0 / scale;
        let min = (self.low - zero) * scale;
        Nudged {
            min,
            max: (self.high - zero) * scale,
            scale,
            inverse,
            zero: (-min * inverse + 0.5).floor(),
        }
    }

    /// As `nudge`, nothing where both ends are zero.
    fn of(self, min: f32, max: f32) -> Option<Nudged> {
        (normal(min) != 0.0 || normal(max) != 0.0).then(|| self.nudge(min, max))
    }
}

#[derive(Clone, Copy)]
struct Nudged {
    min: f32,
    max: f32,
    scale: f32,
    inverse: f32,
    /// The integer that stands for zero.
    zero: f32,
}

impl Nudged {
    fn round(&self, v: f32) -> f32 {
        // In comparisons that leave a NaN, and what is compared with one, as it is.
        let cut = if self.max < v { self.max } else { v };
        let cut = if cut < self.min { self.min } else { cut };
        ((cut - self.min) * self.inverse - self.zero + 0.5).floor() * self.scale
    }
}

/// A number as a processor compares it that flushes denormals.
fn normal(v: f32) -> f32 {
    if v.is_subnormal() { 0.0 } else { v }
}

fn range(attrs: &Attrs) -> Result<(f32, f32)> {
    let (min, max) = (attrs.float("min")?, attrs.float("max")?);
    if !(min < max) {
        // C's spelling of NaN.
        let text = format!("min has to be smaller than max, was: {min} >= {max}");
        return invalid(text.replace("NaN", "nan"));
    }
    Ok((min, max))
}

fn each(x: &mut Tensor, f: impl Fn(f32) -> f32 + Sync) -> Result<()> {
    parallel_ranges(x.make_mut::<f32>()?, 1, GRAIN, |_, values| {
        values.iter_mut().for_each(|v| *v = f(*v));
    });
    Ok(())
}

fn scalar(ctx: &OpContext<'_>, i: usize, name: &str) -> Result<f32> {
    let t = ctx.input(i)?;
    match t.rank() {
        0 => Ok(t.scalar_value()?),
        n => invalid(format!("`{name}` must be rank 0 but is rank {n}")),
    }
}

fn channels(
    ctx: &OpContext<'_>,
    grid: Grid,
    first: usize,
    depth: usize,
) -> Result<Vec<Option<Nudged>>> {
    let mut ends = Vec::new();
    for (i, name) in ["min", "max"].into_iter().enumerate() {
        let t = ctx.input(first + i)?;
        if t.rank() != 1 {
            return invalid(format!("`{name}` must be rank 1 but is rank {}", t.rank()));
        }
        if t.num_elements() != depth {
            return invalid(format!(
                "{name} has incorrect size, expected {depth} was {}",
                t.num_elements()
            ));
        }
        ends.push(t.as_slice::<f32>()?);
    }
    let pairs = ends[0].iter().zip(ends[1]);
    Ok(pairs.map(|(&min, &max)| grid.of(min, max)).collect())
}

fn gradient_inputs(ctx: &mut OpContext<'_>) -> Result<(Tensor, Tensor)> {
    let (g, x) = (ctx.take(0)?, ctx.take(1)?);
    if g.shape() != x.shape() {
        return invalid("gradient and input must be the same size");
    }
    Ok((g, x))
}

/// Keeps the gradients of inputs inside their range.
fn pass_inside(
    g: &mut Tensor,
    x: &Tensor,
    nudged: impl Fn(usize) -> Option<Nudged> + Sync,
) -> Result<()> {
    let x = x.as_slice::<f32>()?;
    parallel_ranges(g.make_mut::<f32>()?, 1, GRAIN, |first, rows| {
        for (i, g) in rows.iter_mut().enumerate() {
            let v = normal(x[first + i]);
            // A channel without a range passes everything. Nothing is cut by multiplication: what
            // is not finite stays so.
            if nudged(first + i).is_some_and(|n| !(v >= n.min && v <= n.max)) {
                *g *= 0.0;
            }
        }
    });
    Ok(())
}

/// The sums of the gradients below and above the range, by channel.
fn outside(
    g: &Tensor,
    x: &Tensor,
    depth: usize,
    nudged: impl Fn(usize) -> Option<Nudged>,
) -> Result<Vec<(f32, f32)>> {
    let mut sums = vec![(0.0f64, 0.0f64); depth.max(1)];
    let pairs = g.as_slice::<f32>()?.iter().zip(x.as_slice::<f32>()?);
    for (i, (&g, &v)) in pairs.enumerate() {
        let channel = i % depth.max(1);
        let (Some(n), v) = (nudged(channel), normal(v)) else {
            continue;
        };
        let share = |counts: bool| f64::from(g * if counts { 1.0 } else { 0.0 });
        sums[channel].0 += share(v < n.min);
        sums[channel].1 += share(v > n.max);
    }
    Ok(sums.iter().map(|s| (s.0 as f32, s.1 as f32)).collect())
}
