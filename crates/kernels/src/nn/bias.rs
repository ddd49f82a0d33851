//! `BiasAdd`, `BiasAddV1` and `BiasAddGrad`: one value per channel, added to all its elements or
//! summed over them.
#![allow(unsafe_code, reason = "outputs are written once, never zeroed first")]

use crate::linalg::wide::wide_fn;
use crate::nn::float::{Parts, compute_type, in_parts, narrow, widen};
use crate::nn::window::Format;
use crate::types::{NUMBERS, with_type};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, OpContext, Registry, parallel_for, parallel_ranges};
use downpour_tensor::{DType, Element, Shape, Tensor};
use parking_lot::Mutex;
use std::mem::MaybeUninit;

/// Elements below which a loop is not worth splitting.
const GRAIN: usize = 32 << 10;

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("BiasAdd", &[("T", NUMBERS)], |b| {
        let format = Format::parse(b.attrs())?;
        Built::cheap(move |ctx| bias_add(ctx, format))
    });
    r.add_typed("BiasAddV1", &[("T", NUMBERS)], |_| {
        Built::cheap(|ctx| bias_add(ctx, Format::Nhwc))
    });
    r.add_typed("BiasAddGrad", &[("T", NUMBERS)], |b| {
        let format = Format::parse(b.attrs())?;
        Built::cheap(move |ctx| bias_add_grad(ctx, format))
    });
}

/// The number of channels and the elements that share one, side by side.
fn layout(t: &Tensor, format: Format) -> Result<(usize, usize)> {
    if t.rank() < 2 {
        return Err(Status::invalid_argument(format!(
            "Input tensor must be at least 2D: {}",
            t.shape()
        )));
    }
    Ok(match format {
        Format::Nhwc => (t.dims()[t.rank() - 1], 1),
        Format::Nchw => (t.dims()[1], t.dims()[2..].iter().product()),
    })
}

fn bias_add(ctx: &mut OpContext<'_>, format: Format) -> Result<()> {
    let (mut x, bias) = (ctx.take(0)?, ctx.take(1)?);
    let (channels, inner) = layout(&x, format)?;
    if bias.rank() != 1 {
        return Err(Status::invalid_argument(format!(
            "Biases must be 1D: {}",
            bias.shape()
        )));
    }
    if bias.dims()[0] != channels {
        return Err(Status::invalid_argument(format!(
            "Must provide as many biases as the last dimension of the input tensor: {} vs. {}",
            bias.shape(),
            x.shape()
        )));
    }
    let dtype = x.dtype();
    if x.num_elements() == 0 {
        ctx.set_output(0, x);
        return Ok(());
    }
    let out = if dtype == DType::Float && inner == 1 {
        add_floats(x, bias.as_slice::<f32>()?)?
    } else {
        with_type!(dtype, T in numbers => add_any::<T>(&mut x, bias.as_slice::<T>()?, inner)?);
        x
    };
    ctx.set_output(0, out);
    Ok(())
}

/// Adds `bias` to every row, in the rows' own memory if this was their last use.
fn add_floats(mut x: Tensor, bias: &[f32]) -> Result<Tensor> {
    let row = bias.len();
    let grain = GRAIN / row + 1;
    if x.is_unique() {
        parallel_ranges(x.make_mut::<f32>()?, row, grain, |_, to| add_rows(to, bias));
        return Ok(x);
    }
    let from = x.as_slice::<f32>()?;
    let write = |out: &Parts<'_, f32>| {
        parallel_for(from.len() / row, grain, |rows| {
            let (start, len) = (rows.start * row, rows.len() * row);
            // SAFETY: ranges of rows given to threads are disjoint.
            let to = unsafe { out.part(start, len) };
            add_rows_to(to, &from[start..start + len], bias);
        });
        Ok(())
    };
    // SAFETY: the ranges cover all rows.
    unsafe { in_parts(Vec::new(), x.shape().clone(), write) }
}

wide_fn! {
    /// Adds `bias` to every row.
    pub(crate) fn add_rows(to: &mut [f32], bias: &[f32]) {
        for row in to.chunks_mut(bias.len()) {
            row.iter_mut().zip(bias).for_each(|(v, b)| *v += *b);
        }
    }

    fn add_rows_to(to: &mut [MaybeUninit<f32>], from: &[f32], bias: &[f32]) {
        for (row, from) in to.chunks_mut(bias.len()).zip(from.chunks(bias.len())) {
            for ((to, x), b) in row.iter_mut().zip(from).zip(bias) {
                to.write(*x + *b);
            }
        }
    }

    /// Adds each row to `sums`.
    fn sum_rows(sums: &mut [f32], rows: &[f32]) {
        // Four rows at a time: fewer passes over the sums.
        let n = sums.len();
        let mut blocks = rows.chunks_exact(4 * n);
        for block in &mut blocks {
            let (a, rest) = block.split_at(n);
            let (b, rest) = rest.split_at(n);
            let (c, d) = rest.split_at(n);
            for (i, s) in sums.iter_mut().enumerate() {
                *s += (a[i] + b[i]) + (c[i] + d[i]);
            }
        }
        for row in blocks.remainder().chunks_exact(n) {
            sums.iter_mut().zip(row).for_each(|(s, v)| *s += *v);
        }
    }
}

fn add_any<T: Element + Sum>(x: &mut Tensor, bias: &[T], inner: usize) -> Result<()> {
    let row = bias.len() * inner;
    parallel_ranges(x.make_mut::<T>()?, row, GRAIN / row + 1, |_, to| {
        for row in to.chunks_mut(row) {
            for (part, b) in row.chunks_mut(inner).zip(bias) {
                part.iter_mut().for_each(|v| *v = v.sum(*b));
            }
        }
    });
    Ok(())
}

/// Addition of any number; integers wrap around.
pub(crate) trait Sum: Copy {
    /// `self + x`.
    fn sum(self, x: Self) -> Self;
}

macro_rules! sums {
    ($($t:ty),*; $($w:ty),*) => {
        $(impl Sum for $t { #[inline(always)] fn sum(self, x: Self) -> Self { self + x } })*
        $(impl Sum for $w { #[inline(always)] fn sum(self, x: Self) -> Self { self.wrapping_add(x) } })*
    };
}
sums!(f32, f64, half::f16, half::bf16, num_complex::Complex32, num_complex::Complex64;
    i8, i16, i32, i64, u8, u16, u32, u64);

fn bias_add_grad(ctx: &mut OpContext<'_>, format: Format) -> Result<()> {
    let dy = ctx.take(0)?;
    let (channels, inner) = layout(&dy, format)?;
    let dtype = dy.dtype();
    let dy = widen(&dy)?;
    let out = match compute_type(dtype) {
        DType::Float if inner == 1 => {
            let sums = column_sums(dy.as_slice::<f32>()?, channels);
            Tensor::from_vec(sums, Shape::from([channels]))?
        }
        t => with_type!(t, T in [f32, f64, i32, i64, i8, i16, u8, u16, u32, u64,
            num_complex::Complex32, num_complex::Complex64] => {
            let mut sums = vec![T::default(); channels];
            if channels * inner != 0 {
                for image in dy.as_slice::<T>()?.chunks(channels * inner) {
                    for (s, part) in sums.iter_mut().zip(image.chunks(inner)) {
                        *s = part.iter().fold(*s, |s, v| s.sum(*v));
                    }
                }
            }
            Tensor::from_vec(sums, [channels])?
        }),
    };
    ctx.set_output(0, narrow(out, dtype)?);
    Ok(())
}

/// Sums of the columns of a matrix with `cols` columns. Blocks of rows depend on the size alone
/// and are added in order, so the result is the same for any number of threads.
pub(crate) fn column_sums(values: &[f32], cols: usize) -> Vec<f32> {
    let mut total = vec![0.0; cols];
    if cols == 0 || values.is_empty() {
        return total;
    }
    let rows = values.len() / cols;
    let block = (GRAIN / cols).max(64);
    let count = rows.div_ceil(block);
    if count == 1 {
        sum_rows(&mut total, values);
        return total;
    }
    let partial: Vec<Mutex<Vec<f32>>> = (0..count).map(|_| Mutex::default()).collect();
    parallel_for(count, 1, |blocks| {
        for b in blocks {
            let mut sums = vec![0.0; cols];
            let end = ((b + 1) * block).min(rows);
            sum_rows(&mut sums, &values[b * block * cols..end * cols]);
            *partial[b].lock() = sums;
        }
    });
    for sums in partial {
        sum_rows(&mut total, &sums.into_inner());
    }
    total
}

#[cfg(test)]
mod tests {
    use crate::testing::{floats, run_op};
    use downpour_tensor::{DType, Tensor};

    fn iota(dims: &[usize]) -> Tensor {
        let n = dims.iter().product::<usize>();
        Tensor::from_vec((0..n).map(|v| v as f32).collect(), dims).unwrap()
    }

    #[test]
    fn biases_go_to_their_channel() {
        let t = [("T", DType::Float.into())];
        let out = run_op("BiasAdd", vec![iota(&[2, 2]), floats(&[10.0, 20.0])], &t).unwrap();
        assert_eq!(out[0].as_slice::<f32>().unwrap(), [10.0, 21.0, 12.0, 23.0]);
        let t = [("T", DType::Float.into()), ("data_format", "NCHW".into())];
        let out = run_op("BiasAdd", vec![iota(&[1, 2, 2]), floats(&[10.0, 20.0])], &t).unwrap();
        assert_eq!(out[0].as_slice::<f32>().unwrap(), [10.0, 11.0, 22.0, 23.0]);
    }

    #[test]
    fn gradients_are_sums_over_all_but_the_channel() {
        let t = [("T", DType::Float.into())];
        let rows = 5003;
        let values: Vec<f32> = (0..rows * 7).map(|i| (i % 5) as f32).collect();
        let dy = Tensor::from_vec(values.clone(), [rows, 7]).unwrap();
        let out = run_op("BiasAddGrad", vec![dy], &t).unwrap();
        for (c, got) in out[0].as_slice::<f32>().unwrap().iter().enumerate() {
            let want: f32 = values.iter().skip(c).step_by(7).sum();
            assert_eq!(*got, want);
        }
        let t = [("T", DType::Float.into()), ("data_format", "NCHW".into())];
        let out = run_op("BiasAddGrad", vec![iota(&[2, 2, 2])], &t).unwrap();
        assert_eq!(out[0].as_slice::<f32>().unwrap(), [10.0, 18.0]);
        let out = run_op("BiasAddGrad", vec![iota(&[0, 3])], &t[..1]).unwrap();
        assert_eq!(out[0].as_slice::<f32>().unwrap(), [0.0; 3]);
    }

    #[test]
    fn wrong_shapes_are_named() {
        let t = [("T", DType::Float.into())];
        let fail = |x: &[usize], b: &[usize]| {
            run_op("BiasAdd", vec![iota(x), iota(b)], &t)
                .unwrap_err()
                .message
        };
        assert!(fail(&[3], &[3]).starts_with("Input tensor must be at least 2D: [3]"));
        assert!(fail(&[2, 3], &[1, 3]).starts_with("Biases must be 1D: [1,3]"));
        assert!(fail(&[2, 3], &[2]).starts_with(
            "Must provide as many biases as the last dimension of the input tensor: [2] vs. [2,3]"
        ));
    }
}
