//! `FusedBatchNorm` and its versions: each channel shifted and scaled to mean 0 and variance 1,
//! then scaled and shifted by what was learnt. Sums over a channel are taken in blocks that
//! depend on the shape alone.

use crate::linalg::wide::wide_fn;
use crate::nn::batch_sums::{Moments, sums};
use crate::nn::float::{narrow, widen};
use crate::nn::window::{Format, channels_last, from_channels_last};
use downpour_graph::{Attrs, Result, Status};
use downpour_runtime::{Built, OpContext, Registry, parallel_ranges};
use downpour_tensor::{DType, Shape, Tensor};

const HALVES: &[DType] = &[DType::BFloat16, DType::Half, DType::Float];
const FLOAT: &[DType] = &[DType::Float];

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("FusedBatchNorm", &[("T", FLOAT)], |b| {
        let p = Params::parse(b.attrs())?;
        Built::costly(move |ctx| forward(ctx, &p))
    });
    for op in ["FusedBatchNormV2", "FusedBatchNormV3"] {
        r.add_typed(op, &[("T", HALVES), ("U", FLOAT)], |b| {
            let p = Params::parse(b.attrs())?;
            Built::costly(move |ctx| forward(ctx, &p))
        });
    }
    r.add_typed("FusedBatchNormGrad", &[("T", FLOAT)], |b| {
        let p = Params::parse(b.attrs())?;
        Built::costly(move |ctx| backward(ctx, &p))
    });
    for op in ["FusedBatchNormGradV2", "FusedBatchNormGradV3"] {
        r.add_typed(op, &[("T", HALVES), ("U", FLOAT)], |b| {
            let p = Params::parse(b.attrs())?;
            Built::costly(move |ctx| backward(ctx, &p))
        });
    }
}

struct Params {
    epsilon: f32,
    /// How much of the batch's statistics goes into the running ones.
    factor: f32,
    format: Format,
    training: bool,
}

impl Params {
    fn parse(attrs: &Attrs) -> Result<Params> {
        let factor = match attrs.find("exponential_avg_factor") {
            Some(_) => attrs.float("exponential_avg_factor")?,
            None => 1.0,
        };
        Ok(Params {
            epsilon: attrs.float("epsilon")?,
            factor,
            format: Format::parse(attrs)?,
            training: attrs.bool("is_training")?,
        })
    }

    fn check_rank(&self, x: &Tensor) -> Result<()> {
        if x.rank() != 4 && x.rank() != 5 {
            return Err(Status::invalid_argument(format!(
                "input must be 4 or 5-dimensional{}",
                x.shape()
            )));
        }
        Ok(())
    }

    fn channels(&self, x: &Tensor) -> usize {
        match self.format {
            Format::Nhwc => x.dims()[x.rank() - 1],
            Format::Nchw => x.dims()[1],
        }
    }
}

fn check_vector(name: &str, t: &Tensor) -> Result<()> {
    if t.rank() != 1 {
        return Err(Status::invalid_argument(format!(
            "{name} must be 1-dimensional{}",
            t.shape()
        )));
    }
    Ok(())
}

fn check_size(name: &str, t: &Tensor, channels: usize) -> Result<()> {
    if t.num_elements() != channels {
        return Err(Status::invalid_argument(format!(
            "{name} must have the same number of elements as the channels of x, got {} and {channels}",
            t.num_elements()
        )));
    }
    Ok(())
}

fn check_forward(ctx: &OpContext<'_>, p: &Params) -> Result<usize> {
    let x = ctx.input(0)?;
    p.check_rank(x)?;
    let (scale, offset) = (ctx.input(1)?, ctx.input(2)?);
    let (mean, variance) = (ctx.input(3)?, ctx.input(4)?);
    check_vector("scale", scale)?;
    check_vector("offset", offset)?;
    check_vector("estimated_mean", mean)?;
    check_vector("estimated_variance", variance)?;
    let channels = p.channels(x);
    check_size("scale", scale, channels)?;
    check_size("offset", offset, channels)?;
    if !p.training || p.factor != 1.0 {
        let when = if p.training {
            "When exponential_avg_factor != 1, "
        } else {
            "When is_training=false, "
        };
        check_size(&format!("{when}mean"), mean, channels)?;
        check_size(&format!("{when}variance"), variance, channels)?;
    }
    Ok(channels)
}

fn forward(ctx: &mut OpContext<'_>, p: &Params) -> Result<()> {
    let channels = check_forward(ctx, p)?;
    let x = ctx.take(0)?;
    let dtype = x.dtype();
    let vector = |v: Vec<f32>| Tensor::vector(v);
    let (scale, offset) = (ctx.input(1)?.clone(), ctx.input(2)?.clone());
    let (scale, offset) = (scale.as_slice::<f32>()?, offset.as_slice::<f32>()?);
    let old = (ctx.input(3)?.clone(), ctx.input(4)?.clone());
    let (old_mean, old_variance) = (old.0.as_slice::<f32>()?, old.1.as_slice::<f32>()?);
    // The version of the op with a third reserve output says how many outputs there are.
    if ctx.num_outputs() > 5 {
        ctx.set_output(5, Tensor::scalar(0.0f32));
    }
    if x.num_elements() == 0 {
        ctx.set_output(1, vector(vec![f32::NAN; channels]));
        ctx.set_output(2, vector(vec![f32::NAN; channels]));
        ctx.set_output(3, vector(vec![0.0; channels]));
        ctx.set_output(4, vector(vec![0.0; channels]));
        ctx.set_output(0, x);
        return Ok(());
    }
    let mut wide = widen(&channels_last(&x, p.format)?)?;
    drop(x);
    let rows = wide.num_elements() / channels;
    let (mean, variance);
    if p.training {
        let m = Moments::new(wide.as_slice::<f32>()?, channels);
        let unbiased = rows as f32 / (rows as f32 - 1.0).max(1.0);
        let keep = 1.0 - p.factor;
        let blend = |old: &[f32], new: &mut dyn Iterator<Item = f32>| -> Vec<f32> {
            if p.factor == 1.0 {
                return new.collect();
            }
            new.zip(old).map(|(n, o)| keep * o + p.factor * n).collect()
        };
        let new_mean = blend(old_mean, &mut m.mean.iter().copied());
        let new_variance = blend(old_variance, &mut m.variance.iter().map(|v| v * unbiased));
        ctx.set_output(1, vector(new_mean));
        ctx.set_output(2, vector(new_variance));
        ctx.set_output(3, vector(m.mean.clone()));
        ctx.set_output(4, vector(m.variance.clone()));
        (mean, variance) = (m.mean, m.variance);
    } else {
        (mean, variance) = (old_mean.to_vec(), old_variance.to_vec());
        ctx.set_output(1, vector(mean.clone()));
        ctx.set_output(2, vector(variance.clone()));
        // TensorFlow leaves whatever was in memory here.
        ctx.set_output(3, vector(vec![0.0; channels]));
        ctx.set_output(4, vector(vec![0.0; channels]));
    }
    let scale: Vec<f32> = variance
        .iter()
        .zip(scale)
        .map(|(v, s)| s / (v + p.epsilon).sqrt())
        .collect();
    let grain = (16 << 10) / channels + 1;
    parallel_ranges(wide.make_mut::<f32>()?, channels, grain, |_, rows| {
        normalise(rows, &mean, &scale, offset);
    });
    let y = from_channels_last(narrow(wide, dtype)?, p.format)?;
    ctx.set_output(0, y);
    Ok(())
}

wide_fn! {
    fn normalise(rows: &mut [f32], mean: &[f32], scale: &[f32], offset: &[f32]) {
        let n = mean.len();
        let (scale, offset) = (&scale[..n], &offset[..n]);
        for row in rows.chunks_exact_mut(n) {
            for i in 0..n {
                row[i] = (row[i] - mean[i]) * scale[i] + offset[i];
            }
        }
    }

    /// `x[i] = a[i] * dy[i] + b[i] * x[i] + c[i]` for every row.
    fn combine(x: &mut [f32], dy: &[f32], a: &[f32], b: &[f32], c: &[f32]) {
        let n = a.len();
        let (b, c) = (&b[..n], &c[..n]);
        for (x, dy) in x.chunks_exact_mut(n).zip(dy.chunks_exact(n)) {
            for i in 0..n {
                x[i] = a[i] * dy[i] + b[i] * x[i] + c[i];
            }
        }
    }
}

fn backward(ctx: &mut OpContext<'_>, p: &Params) -> Result<()> {
    let (dy, x) = (ctx.take(0)?, ctx.take(1)?);
    let (scale, mean, variance) = (ctx.take(2)?, ctx.take(3)?, ctx.take(4)?);
    p.check_rank(&dy)?;
    p.check_rank(&x)?;
    check_vector("scale", &scale)?;
    check_vector("saved mean", &mean)?;
    check_vector("saved variance", &variance)?;
    if x.shape() != dy.shape() {
        return Err(Status::invalid_argument(format!(
            "x and y_backprop must have same shape, but x has shape {} and y_backprop has shape {}",
            x.shape(),
            dy.shape()
        )));
    }
    let channels = p.channels(&x);
    check_size("scale", &scale, channels)?;
    check_size("reserve_space_1", &mean, channels)?;
    check_size("reserve_space_2", &variance, channels)?;
    for i in 3..5 {
        ctx.set_output(i, Tensor::vector(Vec::<f32>::new()));
    }
    let zeros = || Tensor::vector(vec![0.0f32; channels]);
    if x.num_elements() == 0 {
        ctx.set_output(0, x);
        ctx.set_output(1, zeros());
        ctx.set_output(2, zeros());
        return Ok(());
    }
    let dtype = x.dtype();
    let dy = widen(&channels_last(&dy, p.format)?)?;
    let mut x = widen(&channels_last(&x, p.format)?)?;
    let rows = (x.num_elements() / channels) as f32;
    let (scale, mean, variance) = (
        scale.as_slice::<f32>()?,
        mean.as_slice::<f32>()?,
        variance.as_slice::<f32>()?,
    );
    let dy = dy.as_slice::<f32>()?;
    // Per channel: the sum of dy, and of dy times the centred x.
    let (sum, product) = sums(dy, x.as_slice::<f32>()?, mean);
    let inverse: Vec<f32> = variance
        .iter()
        .map(|v| 1.0 / (v + p.epsilon).sqrt())
        .collect();
    let scale_grad: Vec<f32> = product.iter().zip(&inverse).map(|(p, i)| p * i).collect();
    let mut factors = [
        vec![0.0; channels],
        vec![0.0; channels],
        vec![0.0; channels],
    ];
    for c in 0..channels {
        let a = scale[c] * inverse[c];
        factors[0][c] = a;
        if p.training {
            let b = -a * inverse[c] * inverse[c] * product[c] / rows;
            factors[1][c] = b;
            factors[2][c] = -a * sum[c] / rows - b * mean[c];
        }
    }
    let [a, b, c] = &factors;
    let grain = (16 << 10) / channels + 1;
    parallel_ranges(x.make_mut::<f32>()?, channels, grain, |first, part| {
        let dy = &dy[first * channels..first * channels + part.len()];
        if p.training {
            combine(part, dy, a, b, c);
        } else {
            for (x, dy) in part.chunks_mut(channels).zip(dy.chunks(channels)) {
                for ((x, dy), a) in x.iter_mut().zip(dy).zip(a) {
                    *x = a * dy;
                }
            }
        }
    });
    let shape = Shape::from([channels]);
    ctx.set_output(1, Tensor::from_vec(scale_grad, shape.clone())?);
    ctx.set_output(2, Tensor::from_vec(sum, shape)?);
    let dx = from_channels_last(narrow(x, dtype)?, p.format)?;
    ctx.set_output(0, dx);
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::{floats, run_op};
    use downpour_graph::AttrValue;
    use downpour_tensor::{DType, Tensor};

    fn x() -> Tensor {
        let v = (0..24).map(|i| (i % 7) as f32).collect();
        Tensor::from_vec(v, [2, 2, 2, 3]).unwrap()
    }

    fn attrs(training: bool, factor: f32) -> Vec<(&'static str, AttrValue)> {
        vec![
            ("T", DType::Float.into()),
            ("U", DType::Float.into()),
            ("epsilon", 0.01f32.into()),
            ("exponential_avg_factor", factor.into()),
            ("is_training", training.into()),
        ]
    }

    fn close(got: &Tensor, want: &[f32]) {
        let got = got.as_slice::<f32>().unwrap();
        for (g, w) in got.iter().zip(want) {
            assert!((g - w).abs() < 1e-5 * w.abs().max(1.0), "{got:?} {want:?}");
        }
    }

    // All expected values: tf.raw_ops.FusedBatchNorm(Grad)V3 on arange(24) % 7.
    #[test]
    fn training_normalises_and_reports_its_statistics() {
        let s = floats(&[1.0, 2.0, 3.0]);
        let inputs = vec![x(), s.clone(), s.clone(), s.clone(), s];
        let out = run_op("FusedBatchNormV3", inputs, &attrs(true, 0.25)).unwrap();
        close(
            &out[0],
            &[
                -0.23821092,
                0.23840141,
                1.6202115,
                1.1768873,
                3.2582848,
                6.350915,
            ],
        );
        close(&out[1], &[1.40625, 2.1875, 2.96875]);
        close(&out[2], &[2.03125, 2.625, 3.28125]);
        close(&out[3], &[2.625, 2.75, 2.875]);
        close(&out[4], &[4.484375, 3.9375, 3.609375]);
        assert!(out[5].dims().is_empty());
    }

    #[test]
    fn inference_uses_what_it_is_given() {
        let s = floats(&[1.0, 2.0, 3.0]);
        let inputs = vec![x(), s.clone(), s.clone(), s.clone(), s];
        let out = run_op("FusedBatchNormV3", inputs, &attrs(false, 1.0)).unwrap();
        close(&out[0], &[0.0049628615, 0.58930874, 1.2708287]);
        close(&out[2], &[1.0, 2.0, 3.0]);
    }

    #[test]
    fn gradients_agree_with_tensorflow() {
        let dy = (0..24).map(|i| ((i * 5) % 11) as f32).collect();
        let dy = Tensor::from_vec(dy, [2, 2, 2, 3]).unwrap();
        let s = floats(&[1.0, 2.0, 3.0]);
        let inputs = vec![dy, x(), s.clone(), s.clone(), s, floats(&[])];
        let all = attrs(true, 1.0);
        let attrs: Vec<_> = all
            .into_iter()
            .filter(|(k, _)| *k != "exponential_avg_factor")
            .collect();
        let out = run_op("FusedBatchNormGradV3", inputs, &attrs).unwrap();
        close(
            &out[0],
            &[
                4.1439347, 6.314774, 6.7802467, -17.367584, -8.044801, 1.5697539,
            ],
        );
        close(&out[1], &[68.65756, 53.60627, -18.444492]);
        close(&out[2], &[35.0, 42.0, 38.0]);
        assert_eq!(out[3].dims(), [0]);
    }

    #[test]
    fn empty_batches_and_wrong_sizes() {
        let s = floats(&[1.0, 2.0, 3.0]);
        let none = Tensor::zeros(DType::Float, [0, 2, 2, 3]).unwrap();
        let run = |x: Tensor, scale: Tensor| {
            let inputs = vec![x, scale, s.clone(), floats(&[]), floats(&[])];
            run_op("FusedBatchNormV3", inputs, &attrs(true, 1.0))
        };
        let out = run(none, s.clone()).unwrap();
        assert!(out[1].as_slice::<f32>().unwrap().iter().all(|v| v.is_nan()));
        let e = run(x(), floats(&[1.0])).unwrap_err();
        assert!(e.message.starts_with(
            "scale must have the same number of elements as the channels of x, got 1 and 3"
        ));
    }
}
