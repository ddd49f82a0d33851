//! `Softmax` and `LogSoftmax` over the last dimension.

use super::exp::exp_down;
use crate::linalg::wide::wide_fn;
use crate::nn::float::{compute_type, narrow, widen};
use crate::types::FLOATS;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, OpContext, Registry, parallel_ranges};
use downpour_tensor::DType;

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("Softmax", &[("T", FLOATS)], |_| {
        Built::cheap(|ctx| run(ctx, false))
    });
    r.add_typed("LogSoftmax", &[("T", FLOATS)], |_| {
        Built::cheap(|ctx| run(ctx, true))
    });
}

fn run(ctx: &mut OpContext<'_>, log: bool) -> Result<()> {
    let x = ctx.take(0)?;
    let dtype = x.dtype();
    if x.rank() == 0 {
        return Err(Status::invalid_argument(
            "logits must have >= 1 dimension, got []",
        ));
    }
    let cols = x.dims()[x.rank() - 1];
    let mut out = widen(&x)?;
    // The widened copy may still share memory with `x`.
    drop(x);
    if out.num_elements() != 0 {
        let grain = (8 << 10) / cols + 1;
        if compute_type(dtype) == DType::Float {
            parallel_ranges(out.make_mut::<f32>()?, cols, grain, |_, rows| match log {
                false => softmax_rows(rows, cols),
                true => log_softmax_rows(rows, cols),
            });
        } else {
            parallel_ranges(out.make_mut::<f64>()?, cols, grain, |_, rows| {
                double_rows(rows, cols, log);
            });
        }
    }
    ctx.set_output(0, narrow(out, dtype)?);
    Ok(())
}

/// The largest value of a row; NaN is passed over and shows up in the sum.
#[inline(always)]
pub(crate) fn row_max(row: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let mut lanes = [f32::NEG_INFINITY; 16];
    let mut chunks = row.chunks_exact(16);
    for chunk in &mut chunks {
        for (l, v) in lanes.iter_mut().zip(chunk) {
            *l = larger(*l, *v);
        }
    }
    let tail = chunks.remainder().iter().copied();
    lanes
        .into_iter()
        .chain(tail)
        .fold(f32::NEG_INFINITY, larger)
}

/// The sum of a row in sixteen lanes.
#[inline(always)]
pub(crate) fn row_sum(row: &[f32]) -> f32 {
    let mut lanes = [0.0f32; 16];
    let mut chunks = row.chunks_exact(16);
    for chunk in &mut chunks {
        for (l, v) in lanes.iter_mut().zip(chunk) {
            *l += *v;
        }
    }
    let mut width = 8;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    chunks.remainder().iter().fold(lanes[0], |s, v| s + v)
}

wide_fn! {
    fn softmax_rows(rows: &mut [f32], cols: usize) {
        for row in rows.chunks_exact_mut(cols) {
            let max = row_max(row);
            row.iter_mut().for_each(|v| *v = exp_down(*v - max));
            let scale = 1.0 / row_sum(row);
            row.iter_mut().for_each(|v| *v *= scale);
        }
    }

    fn log_softmax_rows(rows: &mut [f32], cols: usize) {
        let mut scratch = vec![0.0f32; cols];
        for row in rows.chunks_exact_mut(cols) {
            let max = row_max(row);
            for (s, v) in scratch.iter_mut().zip(row.iter_mut()) {
                *v -= max;
                *s = exp_down(*v);
            }
            let log = row_sum(&scratch).ln();
            row.iter_mut().for_each(|v| *v -= log);
        }
    }
}

fn double_rows(rows: &mut [f64], cols: usize, log: bool) {
    for row in rows.chunks_exact_mut(cols) {
        let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if log {
            let sum: f64 = row.iter().map(|v| (v - max).exp()).sum();
            let all = max + sum.ln();
            row.iter_mut().for_each(|v| *v -= all);
        } else {
            row.iter_mut().for_each(|v| *v = (*v - max).exp());
            let sum: f64 = row.iter().sum();
            row.iter_mut().for_each(|v| *v /= sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{floats, run_op};
    use downpour_tensor::{DType, Tensor};

    #[test]
    fn rows_sum_to_one_and_logs_agree() {
        let t = [("T", DType::Float.into())];
        let x: Vec<f32> = (0..3 * 37).map(|i| ((i * 13) % 29) as f32 - 14.0).collect();
        let x = Tensor::from_vec(x, [3, 37]).unwrap();
        let y = run_op("Softmax", vec![x.clone()], &t).unwrap();
        let l = run_op("LogSoftmax", vec![x], &t).unwrap();
        let (y, l) = (
            y[0].as_slice::<f32>().unwrap(),
            l[0].as_slice::<f32>().unwrap(),
        );
        for row in y.chunks(37) {
            assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-6);
        }
        for (y, l) in y.iter().zip(l) {
            assert!((y.ln() - l).abs() < 1e-4, "{y} {l}");
        }
    }

    #[test]
    fn odd_values_come_out_as_tensorflows() {
        let t = [("T", DType::Float.into())];
        let inf = f32::INFINITY;
        let out = run_op("Softmax", vec![floats(&[-inf, 0.0])], &t).unwrap();
        assert_eq!(out[0].as_slice::<f32>().unwrap(), [0.0, 1.0]);
        let out = run_op("Softmax", vec![floats(&[f32::NAN, 0.0])], &t).unwrap();
        assert!(out[0].as_slice::<f32>().unwrap().iter().all(|v| v.is_nan()));
        let e = run_op("Softmax", vec![Tensor::scalar(1.0f32)], &t).unwrap_err();
        assert!(
            e.message
                .starts_with("logits must have >= 1 dimension, got []")
        );
    }
}
