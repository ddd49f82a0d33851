//! Local response normalisation across channels, and its gradient.

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

    /// Channels around `c`.
    fn around(&self, c: usize, channels: usize) -> std::ops::Range<usize> {
        c.saturating_sub(self.radius)..c.saturating_add(self.radius + 1).min(channels)
    }

    /// What each channel of a pixel is divided by, before the power.
    fn norms(&self, pixel: &[f32]) -> Vec<f32> {
        (0..pixel.len())
            .map(|c| {
                let near = &pixel[self.around(c, pixel.len())];
                self.bias + self.alpha * near.iter().map(|v| v * v).sum::<f32>()
            })
            .collect()
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
            for pixel in rows.chunks_exact_mut(channels) {
                let norms = p.norms(pixel);
                for (v, n) in pixel.iter_mut().zip(norms) {
                    *v *= n.powf(-p.beta);
                }
            }
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
            for (i, dx) in rows.chunks_exact_mut(channels).enumerate() {
                let at = (first + i) * channels..(first + i + 1) * channels;
                let (dy, x, y) = (&dy[at.clone()], &xs[at.clone()], &y[at]);
                for (j, norm) in p.norms(x).into_iter().enumerate() {
                    let power = norm.powf(-p.beta);
                    for k in p.around(j, channels) {
                        let mut d = -2.0 * p.alpha * p.beta * x[k] * y[j] / norm;
                        if k == j {
                            d += power;
                        }
                        dx[k] += d * dy[j];
                    }
                }
            }
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
