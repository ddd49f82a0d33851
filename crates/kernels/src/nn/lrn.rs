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

    /// `to` becomes, channel by channel, the sum of the channels around it. A sum for each distance, so that the loop runs
    /// along the channels.
    #[inline(always)]
    fn sums(&self, to: &mut [f32], of: &[f32]) {
        let n = of.len();
        to.copy_from_slice(of);
        for d in 1..=self.radius.min(n.saturating_sub(1)) {
            for (to, of) in to[d..].iter_mut().zip(&of[..n - d]) {
                *to += *of;
            }
            for (to, of) in to[..n - d].iter_mut().zip(&of[d..]) {
                *to += *of;
            }
        }
    }

    /// A norm's power: what a channel is multiplied by.
    #[inline(always)]
    fn power<I: Isa>(&self, norm: f32) -> f32 {
        if self.beta == 0.5 {
            1.0 / norm.sqrt()
        } else if self.beta == 0.75 {
            let root = norm.sqrt();
            1.0 / (root * root.sqrt())
        } else if self.beta == 1.0 {
            1.0 / norm
        } else {
            exp::<I>(-self.beta * log::<I>(norm))
        }
    }
}

/// Buffers for the channels of a pixel.
struct Room {
    terms: Vec<f32>,
    sums: Vec<f32>,
}

impl Room {
    fn new(channels: usize) -> Room {
        let zeros = vec![0.0; channels];
        Room {
            terms: zeros.clone(),
            sums: zeros,
        }
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
        let p = self.p;
        let Room {
            mut terms,
            mut sums,
        } = Room::new(self.channels);
        for pixel in self.rows.chunks_exact_mut(self.channels) {
            for (t, v) in terms.iter_mut().zip(&*pixel) {
                *t = *v * *v;
            }
            p.sums(&mut sums, &terms);
            for (v, s) in pixel.iter_mut().zip(&sums) {
                *v *= p.power::<I>(p.bias + p.alpha * *s);
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
        let (p, n) = (self.p, self.channels);
        let Room {
            mut terms,
            mut sums,
        } = Room::new(n);
        let [dy, x, y] = self.given;
        let pixels = dy
            .chunks_exact(n)
            .zip(x.chunks_exact(n))
            .zip(y.chunks_exact(n));
        for (dx, ((dy, x), y)) in self.dx.chunks_exact_mut(n).zip(pixels) {
            for (t, v) in terms.iter_mut().zip(x) {
                *t = *v * *v;
            }
            p.sums(&mut sums, &terms);
            for i in 0..n {
                let norm = p.bias + p.alpha * sums[i];
                dx[i] = p.power::<I>(norm) * dy[i];
                terms[i] = y[i] * dy[i] / norm;
            }
            p.sums(&mut sums, &terms);
            for i in 0..n {
                dx[i] += -2.0 * p.alpha * p.beta * x[i] * sums[i];
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
