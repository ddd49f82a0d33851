//! Local response normalisation across channels, and its gradient.

use crate::math::functions::{exp, log};
use crate::math::isa::{Isa, Loop, dispatch};
use crate::nn::float::{narrow, widen};
use downpour_graph::{Attrs, Result, Status};
use downpour_runtime::{Built, OpContext, Registry, parallel_ranges};
use downpour_tensor::{DType, Tensor};

pub(crate) fn register(r: &mut Registry) {
    const TYPES: &[DType] = &[DType::Half, DType::Float];
    r.add_typed("LRN", &[("T", TYPES)], |b| {
        let p = Params::parse(b.attrs())?;
        Built::cheap(move |ctx| forward(ctx, &p))
    });
    r.add_typed("LRNGrad", &[("T", TYPES)], |b| {
        let p = Params::parse(b.attrs())?;
        Built::cheap(move |ctx| backward(ctx, &p))
    });
}

struct Params {
    radius: usize,
    bias: f32,
    alpha: f32,
    beta: f32,
}

impl Params {
    fn parse(attrs: &Attrs) -> Result<Params> {
        let radius = attrs.int("depth_radius")?;
        let radius = i32::try_from(radius)
            .ok()
            .and_then(|r| usize::try_from(r).ok());
        let Some(radius) = radius else {
            return Err(Status::invalid_argument(format!(
                "depth_radius = {} larger than int max",
                attrs.int("depth_radius")?
            )));
        };
        Ok(Params {
            radius,
            bias: attrs.float("bias")?,
            alpha: attrs.float("alpha")?,
            beta: attrs.float("beta")?,
        })
    }

    /// Runs over pixels with what a norm's power is for this `beta`: what a channel is multiplied by. Chosen before the
    /// loop, which then has no branch.
    #[inline(always)]
    fn with_power<I: Isa>(&self, pixels: impl Pixels) {
        if self.beta == 0.5 {
            pixels.run(|norm| 1.0 / norm.sqrt());
        } else if self.beta == 0.75 {
            pixels.run(|norm| {
                let root = norm.sqrt();
                1.0 / (root * root.sqrt())
            });
        } else if self.beta == 1.0 {
            pixels.run(|norm| 1.0 / norm);
        } else {
            pixels.run(|norm| exp::<I>(-self.beta * log::<I>(norm)));
        }
    }
}

/// A loop over pixels that wants to know the power of norms.
trait Pixels {
    /// Runs it; must be inlined.
    fn run(self, power: impl Fn(f32) -> f32 + Copy);
}

/// Channels that are worked on together. A pixel has few: loops over just as many as it has would be loops over single
/// elements for the most part.
const WIDTH: usize = 16;

/// Calls `f` for the elements of two slices of equal length, a width of them at a time.
#[inline(always)]
fn pairs(to: &mut [f32], from: &[f32], f: impl Fn(f32, f32) -> f32) {
    let ((to, to_end), (from, from_end)) = (to.as_chunks_mut::<WIDTH>(), from.as_chunks::<WIDTH>());
    for (to, from) in to.iter_mut().zip(from) {
        // Read as a whole before anything is written: else the compiler would have to fear that both are the same.
        let mut made = *to;
        for k in 0..WIDTH {
            made[k] = f(made[k], from[k]);
        }
        *to = made;
    }
    for (to, from) in to_end.iter_mut().zip(from_end) {
        *to = f(*to, *from);
    }
}

/// Buffers for the channels of a pixel.
struct Room {
    radius: usize,
    channels: usize,
    /// A term for each channel, with zeros on both sides for the channels that are not there.
    terms: Vec<f32>,
    /// Sums of the terms around each channel.
    sums: Vec<f32>,
    /// What else a pixel needs.
    norms: Vec<f32>,
}

/// Pixels whose terms are written before the first sum is read from them: a processor that reads across what it has just
/// written in other pieces waits for it.
const PIXELS: usize = 16;

impl Room {
    fn new(channels: usize, radius: usize) -> Room {
        let radius = radius.min(channels.saturating_sub(1));
        let whole = channels.next_multiple_of(WIDTH);
        Room {
            radius,
            channels,
            terms: vec![0.0; whole + 2 * radius],
            sums: vec![0.0; whole],
            norms: vec![0.0; channels],
        }
    }

    /// One for each of some pixels.
    fn several(channels: usize, radius: usize) -> Vec<Room> {
        (0..PIXELS).map(|_| Room::new(channels, radius)).collect()
    }

    #[inline(always)]
    fn terms(&mut self) -> &mut [f32] {
        &mut self.terms[self.radius..self.radius + self.channels]
    }

    /// Adds up the terms around each channel.
    #[inline(always)]
    fn add(&mut self) -> &[f32] {
        let groups = self.sums.as_chunks_mut::<WIDTH>().0.iter_mut();
        for (i, sums) in groups.enumerate() {
            let around = &self.terms[i * WIDTH..(i + 1) * WIDTH + 2 * self.radius];
            let mut sum = [0.0; WIDTH];
            for terms in around.windows(WIDTH) {
                if let Some(terms) = terms.first_chunk::<WIDTH>() {
                    for k in 0..WIDTH {
                        sum[k] += terms[k];
                    }
                }
            }
            *sums = sum;
        }
        &self.sums[..self.channels]
    }
}

struct Forward<'a> {
    p: &'a Params,
    rows: &'a mut [f32],
    channels: usize,
}

impl Loop for Forward<'_> {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        self.p.with_power::<I>(self);
    }
}

impl Pixels for Forward<'_> {
    #[inline(always)]
    fn run(self, power: impl Fn(f32) -> f32 + Copy) {
        let (n, bias, alpha) = (self.channels, self.p.bias, self.p.alpha);
        let mut rooms = Room::several(n, self.p.radius);
        for pixels in self.rows.chunks_mut(PIXELS * n) {
            for (pixel, room) in pixels.chunks_exact(n).zip(&mut rooms) {
                pairs(room.terms(), pixel, |_, v| v * v);
            }
            for (pixel, room) in pixels.chunks_exact_mut(n).zip(&mut rooms) {
                pairs(pixel, room.add(), |v, s| v * power(bias + alpha * s));
            }
        }
    }
}

struct Backward<'a> {
    p: &'a Params,
    dx: &'a mut [f32],
    given: [&'a [f32]; 3],
    channels: usize,
}

impl Loop for Backward<'_> {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        self.p.with_power::<I>(self);
    }
}

impl Pixels for Backward<'_> {
    #[inline(always)]
    fn run(self, power: impl Fn(f32) -> f32 + Copy) {
        let (p, n) = (self.p, self.channels);
        let mut rooms = Room::several(n, p.radius);
        let [dy, x, y] = self.given;
        let group = PIXELS * n;
        let groups = dy.chunks(group).zip(x.chunks(group)).zip(y.chunks(group));
        for (dx, ((dy, x), y)) in self.dx.chunks_mut(group).zip(groups) {
            for (x, room) in x.chunks_exact(n).zip(&mut rooms) {
                pairs(room.terms(), x, |_, v| v * v);
            }
            let given = dy.chunks_exact(n).zip(y.chunks_exact(n));
            for ((dx, (dy, y)), room) in dx.chunks_exact_mut(n).zip(given).zip(&mut rooms) {
                room.add();
                pairs(&mut room.norms, &room.sums[..n], |_, s| {
                    p.bias + p.alpha * s
                });
                pairs(dx, &room.norms, |_, norm| power(norm));
                pairs(dx, dy, |power, dy| power * dy);
                let terms = &mut room.terms[room.radius..room.radius + n];
                pairs(terms, y, |_, y| y);
                pairs(terms, dy, |y, dy| y * dy);
                pairs(terms, &room.norms, |t, norm| t / norm);
            }
            let by = -2.0 * p.alpha * p.beta;
            let given = dx.chunks_exact_mut(n).zip(x.chunks_exact(n));
            for ((dx, x), room) in given.zip(&mut rooms) {
                room.add();
                pairs(&mut room.sums[..n], x, |s, x| by * x * s);
                pairs(dx, &room.sums[..n], |dx, v| dx + v);
            }
        }
    }
}

fn forward(ctx: &mut OpContext<'_>, p: &Params) -> Result<()> {
    let x = ctx.take(0)?;
    let dtype = x.dtype();
    let &[_, _, _, channels] = x.dims() else {
        return Err(Status::invalid_argument("in must be 4-dimensional"));
    };
    let mut out = widen(&x)?;
    drop(x);
    if out.num_elements() != 0 {
        let grain = (4 << 10) / channels + 1;
        parallel_ranges(out.make_mut::<f32>()?, channels, grain, |_, rows| {
            dispatch(Forward { p, rows, channels });
        });
    }
    ctx.set_output(0, narrow(out, dtype)?);
    Ok(())
}

fn backward(ctx: &mut OpContext<'_>, p: &Params) -> Result<()> {
    let (dy, x, y) = (ctx.take(0)?, ctx.take(1)?, ctx.take(2)?);
    let dtype = x.dtype();
    if dy.rank() != 4 || x.rank() != 4 {
        return Err(Status::invalid_argument("inputs must be 4-dimensional"));
    }
    if dy.shape() != x.shape() || y.shape() != x.shape() {
        return Err(Status::invalid_argument(
            "input_grads, input_image, and out_image should have the same shape",
        ));
    }
    let channels = x.dims()[3];
    let (dy, x, y) = (widen(&dy)?, widen(&x)?, widen(&y)?);
    let (dy, xs, y) = (
        dy.as_slice::<f32>()?,
        x.as_slice::<f32>()?,
        y.as_slice::<f32>()?,
    );
    let mut out = vec![0.0f32; xs.len()];
    if !xs.is_empty() {
        let grain = (4 << 10) / channels + 1;
        parallel_ranges(&mut out, channels, grain, |first, rows| {
            let at = first * channels..first * channels + rows.len();
            dispatch(Backward {
                p,
                dx: rows,
                given: [&dy[at.clone()], &xs[at.clone()], &y[at]],
                channels,
            });
        });
    }
    let out = Tensor::from_vec(out, x.shape().clone())?;
    ctx.set_output(0, narrow(out, dtype)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::run_op;
    use downpour_graph::AttrValue;
    use downpour_tensor::{DType, Tensor};

    fn attrs() -> Vec<(&'static str, AttrValue)> {
        vec![
            ("T", DType::Float.into()),
            ("depth_radius", 1i64.into()),
            ("bias", 1.0f32.into()),
            ("alpha", 0.5f32.into()),
            ("beta", 0.75f32.into()),
        ]
    }

    fn iota(scale: f32) -> Tensor {
        let v = (0..8).map(|i| (i % 7) as f32 / scale).collect();
        Tensor::from_vec(v, [1, 1, 2, 4]).unwrap()
    }

    fn close(got: &Tensor, want: [f32; 8]) {
        let got = got.as_slice::<f32>().unwrap();
        let near = |(g, w): (&f32, &f32)| (g - w).abs() < 1e-5;
        assert!(got.iter().zip(&want).all(near), "{got:?}");
    }

    // tf.raw_ops.LRN and LRNGrad on arange(8) % 7.
    #[test]
    fn values_agree_with_tensorflow() {
        let y = run_op("LRN", vec![iota(1.0)], &attrs()).unwrap();
        let want = [
            0.0, 0.39079496, 0.4204482, 0.6619502, 0.40061864, 0.31733808, 0.4512511, 0.0,
        ];
        close(&y[0], want);
        let dx = run_op("LRNGrad", vec![iota(1.0), iota(1.0), iota(3.0)], &attrs()).unwrap();
        let want = [
            0.0,
            0.1943664,
            -0.572409,
            -0.61304986,
            -0.9764788,
            -2.8326054,
            -2.2124016,
            0.0,
        ];
        close(&dx[0], want);
        let e = run_op("LRN", vec![Tensor::vector(vec![1.0f32])], &attrs()).unwrap_err();
        assert!(e.message.starts_with("in must be 4-dimensional"));
    }
}
