//! `Cumsum`, `Cumprod` and `CumulativeLogsumexp`: running folds along an axis, forwards or
//! backwards, with or without the element itself.

use super::elementwise::GRAIN;
use crate::args;
use crate::types::{FLOATS, INDEX, NUMBERS};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, Registry, parallel_ranges};
use downpour_tensor::DType::{self, *};
use downpour_tensor::{Buffer, Element, Tensor};
use half::{bf16, f16};
use num_complex::{Complex32, Complex64 as Complex128_};

pub(crate) fn register(r: &mut Registry) {
    let numbers = [("T", NUMBERS), ("Tidx", INDEX)];
    r.add_typed("Cumsum", &numbers, |b| scan(b, sums));
    r.add_typed("Cumprod", &numbers, |b| scan(b, products));
    let floats = [("T", FLOATS), ("Tidx", INDEX)];
    r.add_typed("CumulativeLogsumexp", &floats, |b| scan(b, log_sums));
}

/// How to walk: (outer, along the axis, inner) sizes and directions.
#[derive(Clone, Copy)]
struct Walk {
    dims: [usize; 3],
    reverse: bool,
    exclusive: bool,
}

type Kernel = Box<dyn Fn(Tensor, Walk) -> Result<Tensor> + Send + Sync>;

fn scan(b: &KernelBuilder<'_>, choice: fn(DType) -> Result<Kernel>) -> Result<Built> {
    let (reverse, exclusive) = (b.attrs().bool("reverse")?, b.attrs().bool("exclusive")?);
    let kernel = choice(b.attrs().dtype("T")?)?;
    Built::cheap(move |ctx| {
        let x = ctx.take(0)?;
        let axis = ctx.input(1)?;
        if !axis.shape().is_scalar() {
            return Err(Status::invalid_argument(format!(
                "ScanOp: axis must be a scalar, not {}",
                axis.shape()
            )));
        }
        let (given, rank) = (args::int(axis)?, x.rank() as i64);
        let axis = if given < 0 {
            given.saturating_add(rank)
        } else {
            given
        };
        let place = usize::try_from(axis).ok().filter(|&a| a < x.rank());
        let Some(place) = place else {
            return Err(Status::invalid_argument(format!(
                "ScanOp: Expected scan axis in the range [{}, {rank}), but got {axis}",
                -rank
            )));
        };
        if x.num_elements() == 0 {
            ctx.set_output(0, x);
            return Ok(());
        }
        let (before, after) = x.dims().split_at(place);
        let dims = [
            before.iter().product(),
            after[0],
            after[1..].iter().product(),
        ];
        let walk = Walk {
            dims,
            reverse,
            exclusive,
        };
        let out = kernel(x, walk)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// A running fold in place, starting from `zero`.
fn running<T: Element>(zero: T, fold: fn(T, T) -> T) -> Kernel {
    Box::new(move |mut x, walk| {
        let [outer, n, inner] = walk.dims;
        let (dtype, shape) = (x.dtype(), x.shape().clone());
        // Signed and unsigned numbers of a width share their code, so the tensor is seen as bytes.
        let mut buffer = match x.buffer() {
            Some(b) if !x.is_unique() => Buffer::copy_from(b.as_bytes()),
            Some(b) => {
                let own = b.clone();
                x = Tensor::scalar(false);
                own
            }
            None => return Err(Status::internal(format!("{dtype} is not plain"))),
        };
        drop(x);
        let xs = buffer
            .make_mut_slice::<T>()
            .ok_or_else(|| Status::internal("a tensor of odd size"))?;
        let block = n * inner;
        parallel_ranges(xs, block, GRAIN.div_ceil(block), |_, xs| {
            for xs in xs.chunks_mut(block) {
                if inner == 1 {
                    run(xs, zero, fold, walk);
                } else {
                    run_rows(xs, inner, zero, fold, walk);
                }
            }
        });
        debug_assert_eq!(outer * block * size_of::<T>(), buffer.len());
        Ok(Tensor::from_buffer(dtype, shape, buffer)?)
    })
}

fn run<T: Copy>(xs: &mut [T], zero: T, fold: fn(T, T) -> T, walk: Walk) {
    let mut acc = zero;
    let mut step = |x: &mut T| {
        let next = fold(acc, *x);
        *x = if walk.exclusive { acc } else { next };
        acc = next;
    };
    if walk.reverse {
        xs.iter_mut().rev().for_each(&mut step);
    } else {
        xs.iter_mut().for_each(&mut step);
    }
}

fn run_rows<T: Copy>(xs: &mut [T], inner: usize, zero: T, fold: fn(T, T) -> T, walk: Walk) {
    let mut acc = vec![zero; inner];
    let mut step = |row: &mut [T]| {
        for (x, acc) in row.iter_mut().zip(&mut acc) {
            let next = fold(*acc, *x);
            *x = if walk.exclusive { *acc } else { next };
            *acc = next;
        }
    };
    if walk.reverse {
        xs.chunks_mut(inner).rev().for_each(&mut step);
    } else {
        xs.chunks_mut(inner).for_each(&mut step);
    }
}

fn sums(t: DType) -> Result<Kernel> {
    Ok(match t {
        Float => running(0.0f32, |a, x| a + x),
        Double => running(0.0f64, |a, x| a + x),
        // TensorFlow rounds every step.
        Half => running(f16::ZERO, |a, x| f16::from_f32(a.to_f32() + x.to_f32())),
        BFloat16 => running(bf16::ZERO, |a, x| bf16::from_f32(a.to_f32() + x.to_f32())),
        Int8 | UInt8 => running(0i8, i8::wrapping_add),
        Int16 | UInt16 => running(0i16, i16::wrapping_add),
        Int32 | UInt32 => running(0i32, i32::wrapping_add),
        Int64 | UInt64 => running(0i64, i64::wrapping_add),
        Complex64 => running(Complex32::new(0.0, 0.0), |a, x| a + x),
        Complex128 => running(Complex128_::new(0.0, 0.0), |a, x| a + x),
        t => return Err(super::binary::no_code(t)),
    })
}

fn products(t: DType) -> Result<Kernel> {
    Ok(match t {
        Float => running(1.0f32, |a, x| a * x),
        Double => running(1.0f64, |a, x| a * x),
        Half => running(f16::ONE, |a, x| f16::from_f32(a.to_f32() * x.to_f32())),
        BFloat16 => running(bf16::ONE, |a, x| bf16::from_f32(a.to_f32() * x.to_f32())),
        Int8 | UInt8 => running(1i8, i8::wrapping_mul),
        Int16 | UInt16 => running(1i16, i16::wrapping_mul),
        Int32 | UInt32 => running(1i32, i32::wrapping_mul),
        Int64 | UInt64 => running(1i64, i64::wrapping_mul),
        Complex64 => running(Complex32::new(1.0, 0.0), |a, x| a * x),
        Complex128 => running(Complex128_::new(1.0, 0.0), |a, x| a * x),
        t => return Err(super::binary::no_code(t)),
    })
}

/// log(eᵃ + eᵇ).
fn log_add(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() {
        return f64::NAN;
    }
    let (low, high) = if a < b { (a, b) } else { (b, a) };
    if high.is_infinite() {
        return high;
    }
    high + (low - high).exp().ln_1p()
}

fn log_sums(t: DType) -> Result<Kernel> {
    Ok(match t {
        Float => running(f32::NEG_INFINITY, |a, x| log_add(a.into(), x.into()) as f32),
        Double => running(f64::NEG_INFINITY, log_add),
        Half => running(f16::NEG_INFINITY, |a, x| {
            f16::from_f64(log_add(a.to_f64(), x.to_f64()))
        }),
        BFloat16 => running(bf16::NEG_INFINITY, |a, x| {
            bf16::from_f64(log_add(a.to_f64(), x.to_f64()))
        }),
        t => return Err(super::binary::no_code(t)),
    })
}

#[cfg(test)]
mod tests {
    use crate::testing::run_op;
    use downpour_graph::Result;
    use downpour_tensor::{DType, Tensor};

    fn scan(op: &str, x: Tensor, axis: Tensor, exclusive: bool, reverse: bool) -> Result<Tensor> {
        let attrs = [
            ("T", x.dtype().into()),
            ("Tidx", DType::Int32.into()),
            ("exclusive", exclusive.into()),
            ("reverse", reverse.into()),
        ];
        Ok(run_op(op, vec![x, axis], &attrs)?.remove(0))
    }

    fn matrix() -> Tensor {
        Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3]).unwrap()
    }

    #[test]
    fn every_direction_agrees_with_tensorflow() {
        for (op, axis, exclusive, reverse, want) in [
            ("Cumsum", 1, false, false, [1.0, 3.0, 6.0, 4.0, 9.0, 15.0]),
            ("Cumsum", 0, false, false, [1.0, 2.0, 3.0, 5.0, 7.0, 9.0]),
            ("Cumsum", -1, true, false, [0.0, 1.0, 3.0, 0.0, 4.0, 9.0]),
            ("Cumsum", 1, false, true, [6.0, 5.0, 3.0, 15.0, 11.0, 6.0]),
            ("Cumsum", 1, true, true, [5.0, 3.0, 0.0, 11.0, 6.0, 0.0]),
            ("Cumprod", 0, false, true, [4.0, 10.0, 18.0, 4.0, 5.0, 6.0]),
            ("Cumprod", 1, true, true, [6.0, 3.0, 1.0, 30.0, 6.0, 1.0]),
        ] {
            let out = scan(op, matrix(), Tensor::scalar(axis), exclusive, reverse).unwrap();
            assert_eq!(
                out.as_slice::<f32>().unwrap(),
                want,
                "{op} {axis} {exclusive} {reverse}"
            );
        }
        let out = scan(
            "CumulativeLogsumexp",
            matrix(),
            Tensor::scalar(1),
            true,
            false,
        )
        .unwrap();
        let out = out.as_slice::<f32>().unwrap();
        assert_eq!(out[..2], [f32::NEG_INFINITY, 1.0]);
        assert!((out[2] - 2.313_261_7).abs() < 1e-6);
    }

    #[test]
    fn unsigned_sums_wrap() {
        let x = Tensor::vector(vec![200u8, 100, 1]);
        let out = scan("Cumsum", x, Tensor::scalar(0), false, false).unwrap();
        assert_eq!(out.as_slice::<u8>().unwrap(), [200, 44, 45]);
    }

    #[test]
    fn bad_axes_are_refused_in_tensorflows_words() {
        let text = |axis| {
            scan("Cumsum", matrix(), axis, false, false)
                .unwrap_err()
                .message
        };
        let message = text(Tensor::scalar(-3));
        let want = "ScanOp: Expected scan axis in the range [-2, 2), but got -1";
        assert!(message.starts_with(want), "{message}");
        let message = text(Tensor::vector(vec![0, 1]));
        assert!(
            message.starts_with("ScanOp: axis must be a scalar, not [2]"),
            "{message}"
        );
    }
}
