//! `SoftmaxCrossEntropyWithLogits` and its sparse form: the loss of each row and the gradient of
//! its logits, in one pass.

use super::exp::exp_down;
use super::softmax::{row_max, row_sum};
use crate::args;
use crate::broadcast::Broadcast;
use crate::linalg::wide::wide_fn;
use crate::nn::float::{compute_type, narrow, widen};
use crate::types::{FLOATS, INDEX, with_type};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, OpContext, Registry, parallel_ranges};
use downpour_tensor::{Element, Shape, Tensor};
use parking_lot::Mutex;

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("SoftmaxCrossEntropyWithLogits", &[("T", FLOATS)], |_| {
        Built::cheap(dense)
    });
    r.add_typed(
        "SparseSoftmaxCrossEntropyWithLogits",
        &[("T", FLOATS), ("Tlabels", INDEX)],
        |_| Built::cheap(sparse),
    );
}

fn dense(ctx: &mut OpContext<'_>) -> Result<()> {
    let (logits, labels) = (ctx.take(0)?, ctx.take(1)?);
    let Some(bc) = Broadcast::new(logits.dims(), labels.dims()) else {
        return Err(Status::invalid_argument(format!(
            "logits and labels must be broadcastable: logits_size={} labels_size={}",
            logits.shape(),
            labels.shape()
        )));
    };
    let &[rows, cols] = bc.shape.dims() else {
        return Err(Status::invalid_argument(
            "logits and labels must be either 2-dimensional, or broadcasted to be 2-dimensional",
        ));
    };
    let dtype = logits.dtype();
    ctx.check_alloc(dtype, &bc.shape)?;
    let (logits, labels) = (widen(&logits)?, widen(&labels)?);
    let (loss, grad) = with_type!(compute_type(dtype), T in [f32, f64] => {
        let mut grad = expand::<T>(logits, &bc.shape)?;
        let labels = expand::<T>(labels, &bc.shape)?;
        let labels = labels.as_slice::<T>()?;
        let loss = each_row::<T>(grad.make_mut::<T>()?, rows, cols, |i, row| {
            T::dense_row(row, &labels[i * cols..(i + 1) * cols])
        });
        (Tensor::vector(loss), grad)
    });
    ctx.set_output(0, narrow(loss, dtype)?);
    ctx.set_output(1, narrow(grad, dtype)?);
    Ok(())
}

fn sparse(ctx: &mut OpContext<'_>) -> Result<()> {
    let (logits, labels) = (ctx.take(0)?, ctx.take(1)?);
    let invalid = |text: String| Err(Status::invalid_argument(text));
    let &[rows, cols] = logits.dims() else {
        return invalid(format!(
            "logits must be 2-D, but got shape {}",
            logits.shape()
        ));
    };
    if labels.rank() != 1 {
        return invalid(format!(
            "labels must be 1-D, but got shape {}",
            labels.shape()
        ));
    }
    if labels.dims()[0] != rows {
        return invalid(format!(
            "logits and labels must have the same first dimension, got logits shape {} and labels shape {}",
            logits.shape(),
            labels.shape()
        ));
    }
    if cols == 0 {
        return invalid(format!(
            "Must have at least one class, but got logits shape {}",
            logits.shape()
        ));
    }
    let labels = args::ints(&labels)?;
    let outside = |&&l: &&i64| l < 0 || l as u64 >= cols as u64;
    if let Some(bad) = labels.iter().rfind(outside) {
        let all: Vec<String> = labels.iter().map(i64::to_string).collect();
        return invalid(format!(
            "Received a label value of {bad} which is outside the valid range of [0, {cols}).  Label values: {}",
            all.join(" ")
        ));
    }
    let dtype = logits.dtype();
    let mut grad = widen(&logits)?;
    drop(logits);
    let loss = with_type!(compute_type(dtype), T in [f32, f64] => {
        let loss = each_row::<T>(grad.make_mut::<T>()?, rows, cols, |i, row| {
            T::sparse_row(row, labels[i] as usize)
        });
        Tensor::vector(loss)
    });
    ctx.set_output(0, narrow(loss, dtype)?);
    ctx.set_output(1, narrow(grad, dtype)?);
    Ok(())
}

/// Runs `f(row index, row)`, which turns logits into their gradient and gives the loss.
fn each_row<T: Element>(
    grad: &mut [T],
    rows: usize,
    cols: usize,
    f: impl Fn(usize, &mut [T]) -> T + Sync,
) -> Vec<T> {
    // Without classes there is nothing to lose.
    if cols == 0 || rows == 0 {
        return vec![T::default(); rows];
    }
    let losses = Mutex::new(vec![T::default(); rows]);
    parallel_ranges(grad, cols, (8 << 10) / cols + 1, |first, part| {
        let own: Vec<T> = part
            .chunks_mut(cols)
            .enumerate()
            .map(|(i, row)| f(first + i, row))
            .collect();
        let mut all = losses.lock();
        all[first..first + own.len()].copy_from_slice(&own);
    });
    losses.into_inner()
}

/// The tensor repeated along the dimensions it lacks.
fn expand<T: Element>(t: Tensor, shape: &Shape) -> Result<Tensor> {
    if t.shape() == shape {
        return Ok(t);
    }
    let (rows, cols) = (shape[0], shape[1]);
    let dim = |back: usize| t.rank().checked_sub(back).map_or(1, |i| t.dims()[i]);
    let (tr, tc) = (dim(2), dim(1));
    let from = t.as_slice::<T>()?;
    let mut out = Vec::with_capacity(rows * cols);
    for r in 0..rows {
        let r = if tr == 1 { 0 } else { r };
        for c in 0..cols {
            out.push(from[r * tc + if tc == 1 { 0 } else { c }]);
        }
    }
    Ok(Tensor::from_vec(out, shape.clone())?)
}

/// One row, in float or double.
trait Row: Element {
    fn dense_row(row: &mut [Self], labels: &[Self]) -> Self;
    fn sparse_row(row: &mut [Self], label: usize) -> Self;
}

impl Row for f32 {
    fn dense_row(row: &mut [f32], labels: &[f32]) -> f32 {
        dense_f32(row, labels)
    }
    fn sparse_row(row: &mut [f32], label: usize) -> f32 {
        sparse_f32(row, label)
    }
}

wide_fn! {
    fn dense_f32(row: &mut [f32], labels: &[f32]) -> f32 {
        let max = row_max(row);
        row.iter_mut().for_each(|v| *v -= max);
        let mut scratch = [0.0f32; 64];
        let mut sum = 0.0;
        for part in row.chunks(64) {
            let s = &mut scratch[..part.len()];
            s.iter_mut().zip(part).for_each(|(s, v)| *s = exp_down(*v));
            sum += row_sum(s);
        }
        let (log, scale) = (sum.ln(), 1.0 / sum);
        let mut loss = 0.0;
        for (part, labels) in row.chunks_mut(64).zip(labels.chunks(64)) {
            let s = &mut scratch[..part.len()];
            for ((s, v), l) in s.iter_mut().zip(part.iter()).zip(labels) {
                *s = *l * (log - *v);
            }
            loss += row_sum(s);
            for (v, l) in part.iter_mut().zip(labels) {
                *v = exp_down(*v) * scale - *l;
            }
        }
        loss
    }

    fn sparse_f32(row: &mut [f32], label: usize) -> f32 {
        let max = row_max(row);
        let at = row[label] - max;
        row.iter_mut().for_each(|v| *v = exp_down(*v - max));
        let sum = row_sum(row);
        let scale = 1.0 / sum;
        row.iter_mut().for_each(|v| *v *= scale);
        row[label] -= 1.0;
        sum.ln() - at
    }
}

impl Row for f64 {
    fn dense_row(row: &mut [f64], labels: &[f64]) -> f64 {
        let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = row.iter().map(|v| (v - max).exp()).sum();
        let log = sum.ln();
        let mut loss = 0.0;
        for (v, l) in row.iter_mut().zip(labels) {
            loss += l * (log - (*v - max));
            *v = (*v - max).exp() / sum - l;
        }
        loss
    }

    fn sparse_row(row: &mut [f64], label: usize) -> f64 {
        let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let at = row[label] - max;
        let sum: f64 = row.iter().map(|v| (v - max).exp()).sum();
        row.iter_mut().for_each(|v| *v = (*v - max).exp() / sum);
        row[label] -= 1.0;
        sum.ln() - at
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::run_op;
    use downpour_tensor::{DType, Tensor};

    fn t(values: &[f32], dims: &[usize]) -> Tensor {
        Tensor::from_vec(values.to_vec(), dims).unwrap()
    }

    fn close(got: &Tensor, want: &[f32]) {
        let got = got.as_slice::<f32>().unwrap();
        assert_eq!(got.len(), want.len());
        for (g, w) in got.iter().zip(want) {
            assert!((g - w).abs() < 1e-6, "{got:?} {want:?}");
        }
    }

    // tf.raw_ops.SoftmaxCrossEntropyWithLogits(features=[[0,1,2]], labels=[[0],[1]])
    #[test]
    fn labels_and_logits_broadcast() {
        let attrs = [("T", DType::Float.into())];
        let (x, l) = (t(&[0.0, 1.0, 2.0], &[1, 3]), t(&[0.0, 1.0], &[2, 1]));
        let out = run_op("SoftmaxCrossEntropyWithLogits", vec![x, l], &attrs).unwrap();
        close(&out[0], &[0.0, 4.222818]);
        close(
            &out[1],
            &[
                0.09003057,
                0.24472848,
                0.66524094,
                -0.90996945,
                -0.75527155,
                -0.33475906,
            ],
        );
        let e = run_op(
            "SoftmaxCrossEntropyWithLogits",
            vec![t(&[0.0; 6], &[2, 3]), t(&[0.0; 8], &[2, 4])],
            &attrs,
        );
        assert!(e.unwrap_err().message.starts_with(
            "logits and labels must be broadcastable: logits_size=[2,3] labels_size=[2,4]"
        ));
    }

    #[test]
    fn sparse_labels_give_the_dense_result() {
        let x: Vec<f32> = (0..200).map(|i| ((i * 7) % 23) as f32 / 5.0).collect();
        let labels = [3i32, 99];
        let mut hot = vec![0.0; 200];
        labels
            .iter()
            .enumerate()
            .for_each(|(r, &l)| hot[r * 100 + l as usize] = 1.0);
        let x = t(&x, &[2, 100]);
        let attrs = [("T", DType::Float.into()), ("Tlabels", DType::Int32.into())];
        let s = run_op(
            "SparseSoftmaxCrossEntropyWithLogits",
            vec![x.clone(), Tensor::vector(labels.to_vec())],
            &attrs,
        )
        .unwrap();
        let d = run_op(
            "SoftmaxCrossEntropyWithLogits",
            vec![x, t(&hot, &[2, 100])],
            &attrs[..1],
        )
        .unwrap();
        close(&s[0], d[0].as_slice::<f32>().unwrap());
        close(&s[1], d[1].as_slice::<f32>().unwrap());
    }

    #[test]
    fn labels_out_of_range_are_listed() {
        let attrs = [("T", DType::Float.into()), ("Tlabels", DType::Int32.into())];
        let e = run_op(
            "SparseSoftmaxCrossEntropyWithLogits",
            vec![t(&[0.0; 6], &[2, 3]), Tensor::vector(vec![1i32, 5])],
            &attrs,
        );
        assert!(e.unwrap_err().message.starts_with(
            "Received a label value of 5 which is outside the valid range of [0, 3).  Label values: 1 5"
        ));
    }
}
