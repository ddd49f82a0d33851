//! `Sum`, `Mean`, `Prod`, `Max`, `Min`, `EuclideanNorm`, `All`, `Any` over any axes, and
//! `L2Loss`: which runs and rows of the input make which element of the output.

use super::elementwise::GRAIN;
use super::reducers::{
    All, Any, Fold, HalfSquares, Max, Mean, Min, Norm, Prod, Reducer, STRETCH, Sum, rows, run, tree,
};
use crate::args;
use crate::types::{FLOATS, INDEX, NUMBERS, REALS};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry, parallel_ranges};
use downpour_tensor::DType::{self, *};
use downpour_tensor::{Buffer, Dims, Element, Shape, Tensor};
use half::{bf16, f16};
use num_complex::{Complex32, Complex64 as Complex128_};

pub(crate) fn register(r: &mut Registry) {
    let numbers = [("T", NUMBERS), ("Tidx", INDEX)];
    let reals = [("T", REALS), ("Tidx", INDEX)];
    r.add_typed("Sum", &numbers, |b| reduction(b, sum));
    r.add_typed("Mean", &numbers, |b| reduction(b, mean));
    r.add_typed("Prod", &numbers, |b| reduction(b, prod));
    r.add_typed("EuclideanNorm", &numbers, |b| reduction(b, norm));
    r.add_typed("Max", &reals, |b| reduction(b, max));
    r.add_typed("Min", &reals, |b| reduction(b, min));
    r.add_typed("All", &[("Tidx", INDEX)], |b| {
        reduction(b, |_| Ok(reduce::<u8, _>(All)))
    });
    r.add_typed("Any", &[("Tidx", INDEX)], |b| {
        reduction(b, |_| Ok(reduce::<u8, _>(Any)))
    });
    r.add_typed("L2Loss", &[("T", FLOATS)], |b| {
        let kernel = half_squares(b.attrs().dtype("T")?)?;
        Built::cheap(move |ctx| {
            let x = ctx.input(0)?;
            let plan = Reduction {
                shape: Shape::scalar(),
                dims: smallvec::smallvec![(x.num_elements(), true)],
            };
            let out = kernel(ctx, x, &plan)?;
            ctx.set_output(0, out);
            Ok(())
        })
    });
}

/// Reduces a tensor as the plan says.
type Kernel = Box<dyn Fn(&OpContext<'_>, &Tensor, &Reduction) -> Result<Tensor> + Send + Sync>;

/// A kernel for each type of a list, the first being what the bytes are read as.
macro_rules! choose {
    ($t:expr, $r:expr, [$($read:ty: $($dtype:pat_param)|+),* $(,)?]) => {
        match $t {
            $($($dtype)|+ => Ok(reduce::<$read, _>($r)),)*
            t => Err(super::binary::no_code(t)),
        }
    };
}

fn sum(t: DType) -> Result<Kernel> {
    choose!(t, Sum, [
        f32: Float, f64: Double, f16: Half, bf16: BFloat16,
        i8: Int8 | UInt8, i16: Int16 | UInt16, i32: Int32 | UInt32, i64: Int64 | UInt64,
        Complex32: Complex64, Complex128_: Complex128,
    ])
}

fn prod(t: DType) -> Result<Kernel> {
    choose!(t, Prod, [
        f32: Float, f64: Double, f16: Half, bf16: BFloat16,
        i8: Int8 | UInt8, i16: Int16 | UInt16, i32: Int32 | UInt32, i64: Int64 | UInt64,
        Complex32: Complex64, Complex128_: Complex128,
    ])
}

fn mean(t: DType) -> Result<Kernel> {
    choose!(t, Mean, [
        f32: Float, f64: Double, f16: Half, bf16: BFloat16,
        i8: Int8, i16: Int16, i32: Int32, i64: Int64, u8: UInt8, u16: UInt16, u32: UInt32,
        u64: UInt64, Complex32: Complex64, Complex128_: Complex128,
    ])
}

fn norm(t: DType) -> Result<Kernel> {
    choose!(t, Norm, [
        f32: Float, f64: Double, f16: Half, bf16: BFloat16,
        i8: Int8, i16: Int16, i32: Int32, i64: Int64, u8: UInt8, u16: UInt16, u32: UInt32,
        u64: UInt64, Complex32: Complex64, Complex128_: Complex128,
    ])
}

fn max(t: DType) -> Result<Kernel> {
    choose!(t, Max, [
        f32: Float, f64: Double, f16: Half, bf16: BFloat16,
        i8: Int8, i16: Int16, i32: Int32, i64: Int64, u8: UInt8, u16: UInt16, u32: UInt32,
        u64: UInt64,
    ])
}

fn min(t: DType) -> Result<Kernel> {
    choose!(t, Min, [
        f32: Float, f64: Double, f16: Half, bf16: BFloat16,
        i8: Int8, i16: Int16, i32: Int32, i64: Int64, u8: UInt8, u16: UInt16, u32: UInt32,
        u64: UInt64,
    ])
}

fn half_squares(t: DType) -> Result<Kernel> {
    choose!(t, HalfSquares, [f32: Float, f64: Double, f16: Half, bf16: BFloat16])
}

fn reduction(b: &KernelBuilder<'_>, choice: fn(DType) -> Result<Kernel>) -> Result<Built> {
    let keep_dims = b.attrs().bool("keep_dims")?;
    let kernel = choice(b.input_type(0)?)?;
    Built::cheap(move |ctx| {
        let x = ctx.input(0)?;
        let plan = Reduction::new(x.dims(), &args::ints(ctx.input(1)?)?, keep_dims)?;
        let out = kernel(ctx, x, &plan)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// What is folded into what: the output's shape and the input's dimensions as runs that are
/// alternately kept and folded (`true`), dimensions of size 1 left out.
struct Reduction {
    shape: Shape,
    dims: smallvec::SmallVec<[(usize, bool); 4]>,
}

impl Reduction {
    fn new(dims: &[usize], axes: &[i64], keep_dims: bool) -> Result<Reduction> {
        let mut folded = vec![false; dims.len()];
        for &axis in axes {
            let rank = dims.len() as i64;
            let place = if axis < 0 {
                axis.saturating_add(rank)
            } else {
                axis
            };
            let slot = usize::try_from(place).ok().and_then(|i| folded.get_mut(i));
            match slot {
                None => {
                    return Err(Status::invalid_argument(format!(
                        "Invalid reduction dimension ({axis} for input with {rank} dimension(s)"
                    )));
                }
                Some(true) => {
                    return Err(Status::invalid_argument(format!(
                        "Invalid reduction arguments: Axes contains duplicate dimension: {place}"
                    )));
                }
                Some(slot) => *slot = true,
            }
        }
        let mut shape = Dims::new();
        let mut merged: smallvec::SmallVec<[(usize, bool); 4]> = smallvec::SmallVec::new();
        for (&n, &folded) in dims.iter().zip(&folded) {
            if !folded {
                shape.push(n);
            } else if keep_dims {
                shape.push(1);
            }
            match merged.last_mut() {
                _ if n == 1 => {}
                Some((size, last)) if *last == folded => *size = size.saturating_mul(n),
                _ => merged.push((n, folded)),
            }
        }
        Ok(Reduction {
            shape: shape.into(),
            dims: merged,
        })
    }
}

/// Sizes and strides of dimensions, outermost first, and a walk over them.
struct Walk(smallvec::SmallVec<[(usize, usize); 4]>);

impl Walk {
    fn count(&self) -> usize {
        self.0.iter().map(|d| d.0).product()
    }

    /// Where the `i`th place is.
    fn offset(&self, mut i: usize) -> usize {
        let mut offset = 0;
        for &(n, stride) in self.0.iter().rev() {
            offset += i % n * stride;
            i /= n;
        }
        offset
    }
}

fn reduce<T: Element, R: Reducer<T>>(r: R) -> Kernel {
    Box::new(move |ctx, x, plan| reduced::<T, R::Acc>(&r, ctx, x, plan))
}

fn reduced<T: Element, A: Copy + Send + Sync>(
    r: &dyn Fold<T, A>,
    ctx: &OpContext<'_>,
    x: &Tensor,
    plan: &Reduction,
) -> Result<Tensor> {
    let buffer = x
        .buffer()
        .and_then(Buffer::as_slice::<T>)
        .ok_or_else(|| Status::internal("the input is not plain"))?;
    ctx.check_alloc(x.dtype(), &plan.shape)?;
    let out = fold(r, buffer, plan);
    Ok(Tensor::from_buffer(
        x.dtype(),
        plan.shape.clone(),
        Buffer::from_vec(out),
    )?)
}

fn fold<T: Element, A: Copy + Send + Sync>(
    r: &dyn Fold<T, A>,
    xs: &[T],
    plan: &Reduction,
) -> Vec<T> {
    let outputs = plan.shape.num_elements();
    if outputs == 0 {
        return Vec::new();
    }
    let count = xs.len() / outputs;
    if xs.is_empty() {
        return vec![r.finish(r.zero(), 0); outputs];
    }
    let (mut kept, mut folded) = (Walk(Default::default()), Walk(Default::default()));
    let mut stride = xs.len();
    for &(n, is_folded) in &plan.dims {
        stride /= n;
        if is_folded { &mut folded } else { &mut kept }
            .0
            .push((n, stride));
    }
    match plan.dims.last() {
        // Nothing to fold, or single elements: every element by itself.
        None | Some((_, false)) if folded.0.is_empty() => r.each(xs),
        Some((n, true)) => {
            folded.0.pop();
            fold_runs(r, xs, *n, &kept, &folded, count)
        }
        Some((n, false)) => {
            kept.0.pop();
            fold_rows(r, xs, *n, &kept, &mut folded, count)
        }
        None => Vec::new(),
    }
}

/// The innermost dimension, of `n` elements, is folded.
fn fold_runs<T: Element, A: Copy + Send + Sync>(
    r: &dyn Fold<T, A>,
    xs: &[T],
    n: usize,
    kept: &Walk,
    folded: &Walk,
    count: usize,
) -> Vec<T> {
    let outputs = kept.count();
    // Few outputs of long runs: the stretches of a run are folded by several threads.
    if n > 2 * GRAIN && folded.0.is_empty() && outputs < 16 {
        let per_run = n.div_ceil(STRETCH);
        let mut parts = vec![r.zero(); outputs * per_run];
        parallel_ranges(&mut parts, 1, GRAIN / STRETCH, |first, parts| {
            for (i, part) in parts.iter_mut().enumerate() {
                let (output, piece) = ((first + i) / per_run, (first + i) % per_run);
                let run = &xs[kept.offset(output)..][..n];
                *part = r.stretch(&run[piece * STRETCH..n.min((piece + 1) * STRETCH)]);
            }
        });
        return parts
            .chunks(per_run)
            .map(|p| r.finish(tree(r, p), count))
            .collect();
    }
    let mut out = vec![T::default(); outputs];
    parallel_ranges(&mut out, 1, GRAIN.div_ceil(count), |first, out| {
        for (i, out) in out.iter_mut().enumerate() {
            let base = kept.offset(first + i);
            let mut acc = run(r, &xs[base..base + n]);
            for j in 1..folded.count() {
                let at = base + folded.offset(j);
                acc = r.merge(acc, run(r, &xs[at..at + n]));
            }
            *out = r.finish(acc, count);
        }
    });
    out
}

/// The innermost dimension, of `n` elements, is kept; the one before it is folded.
fn fold_rows<T: Element, A: Copy + Send + Sync>(
    r: &dyn Fold<T, A>,
    xs: &[T],
    n: usize,
    kept: &Walk,
    folded: &mut Walk,
    count: usize,
) -> Vec<T> {
    let (height, stride) = folded.0.pop().unwrap_or((1, n));
    let outer = kept.count();
    let parts = folded.count();
    let mut out = vec![T::default(); outer * n];
    /// Columns that a thread takes at once, and rows that are folded as a unit.
    const COLUMNS: usize = 512;
    if outer == 1 && n >= 2 * COLUMNS {
        parallel_ranges(
            &mut out,
            1,
            COLUMNS.max(GRAIN.div_ceil(count)),
            |first, out| {
                fold_block(r, &xs[first..], out, (height, stride), folded, parts, count);
            },
        );
    } else if outer < 8 && height >= 2 && height * n > 2 * GRAIN {
        // Few outputs of many rows: blocks of rows are folded by several threads.
        let at_once = (GRAIN / n).max(1);
        let per_part = height.div_ceil(at_once);
        let blocks = outer * parts * per_part;
        let mut accs = vec![r.zero(); blocks * n];
        parallel_ranges(&mut accs, n, 1, |first, accs| {
            for (i, acc) in accs.chunks_mut(n).enumerate() {
                let (unit, block) = ((first + i) / per_part, (first + i) % per_part);
                let base = kept.offset(unit / parts) + folded.offset(unit % parts);
                let (from, to) = (block * at_once, height.min((block + 1) * at_once));
                rows(
                    r,
                    acc,
                    &xs[base + from * stride..base + (to - 1) * stride + n],
                    stride,
                );
            }
        });
        let mut sum = vec![r.zero(); n];
        for (out, accs) in out.chunks_mut(n).zip(accs.chunks(n * parts * per_part)) {
            sum.fill(r.zero());
            accs.chunks(n).for_each(|acc| r.merge_rows(&mut sum, acc));
            r.finish_row(out, &sum, count);
        }
    } else {
        parallel_ranges(&mut out, n, GRAIN.div_ceil(count * n), |first, out| {
            for (i, out) in out.chunks_mut(n).enumerate() {
                let xs = &xs[kept.offset(first + i)..];
                fold_block(r, xs, out, (height, stride), folded, parts, count);
            }
        });
    }
    out
}

/// Folds `height` rows, `stride` apart, of each part into `out`.
fn fold_block<T: Element, A: Copy + Send + Sync>(
    r: &dyn Fold<T, A>,
    xs: &[T],
    out: &mut [T],
    (height, stride): (usize, usize),
    folded: &Walk,
    parts: usize,
    count: usize,
) {
    let mut acc = vec![r.zero(); out.len()];
    for part in 0..parts {
        let base = folded.offset(part);
        let end = base + (height - 1) * stride + out.len();
        rows(r, &mut acc, &xs[base..end], stride);
    }
    r.finish_row(out, &acc, count);
}

#[cfg(test)]
mod tests {
    use crate::testing::run_op;
    use downpour_graph::Result;
    use downpour_tensor::{DType, Tensor};

    fn run(op: &str, x: Tensor, axes: &[i32], keep_dims: bool) -> Result<Tensor> {
        let attrs = [
            ("T", x.dtype().into()),
            ("Tidx", DType::Int32.into()),
            ("keep_dims", keep_dims.into()),
        ];
        let out = run_op(op, vec![x, Tensor::vector(axes.to_vec())], &attrs);
        Ok(out?.remove(0))
    }

    #[test]
    fn any_axes_agree_with_the_definition() {
        for dims in [
            vec![3, 4, 5],
            vec![2, 3, 4, 5],
            vec![100_000],
            vec![70_000, 3],
            vec![3, 70_000],
            vec![300, 2000],
            vec![2, 40_000, 2],
            vec![1, 5, 1, 7],
            vec![2, 300, 2, 300],
        ] {
            let n: usize = dims.iter().product();
            let xs: Vec<i64> = (0..n as i64).map(|i| i * 7 % 1001).collect();
            let x = Tensor::from_vec(xs.clone(), dims.clone()).unwrap();
            for set in 0..1u32 << dims.len() {
                let axes: Vec<i32> = (0..dims.len() as i32)
                    .filter(|a| set >> a & 1 == 1)
                    .collect();
                let kept: Vec<usize> = (0..dims.len()).filter(|a| set >> a & 1 == 0).collect();
                let mut want = vec![0i64; kept.iter().map(|&d| dims[d]).product()];
                for (i, x) in xs.iter().enumerate() {
                    let (mut rest, mut at, mut step) = (i, 0, 1);
                    for d in (0..dims.len()).rev() {
                        if kept.contains(&d) {
                            at += rest % dims[d] * step;
                            step *= dims[d];
                        }
                        rest /= dims[d];
                    }
                    want[at] += x;
                }
                let got = run("Sum", x.clone(), &axes, false).unwrap();
                assert_eq!(got.as_slice::<i64>().unwrap(), want, "{dims:?} {axes:?}");
            }
        }
    }

    #[test]
    fn shapes_keep_what_they_are_told() {
        let x = Tensor::zeros(DType::Float, [2, 3, 4]).unwrap();
        assert_eq!(
            run("Max", x.clone(), &[-2], true).unwrap().dims(),
            [2, 1, 4]
        );
        assert_eq!(run("Max", x.clone(), &[0, 2], false).unwrap().dims(), [3]);
        assert_eq!(run("Mean", x, &[], false).unwrap().dims(), [2, 3, 4]);
    }

    #[test]
    fn nothing_folds_to_the_neutral_element() {
        let x = || Tensor::zeros(DType::Float, [0, 2]).unwrap();
        let all = |op| {
            run(op, x(), &[0], false)
                .unwrap()
                .as_slice::<f32>()
                .unwrap()
                .to_vec()
        };
        assert_eq!(all("Sum"), [0.0; 2]);
        assert_eq!(all("Prod"), [1.0; 2]);
        assert_eq!(all("Max"), [f32::NEG_INFINITY; 2]);
        assert_eq!(all("Min"), [f32::INFINITY; 2]);
        assert!(all("Mean").iter().all(|m| m.is_nan()));
        assert_eq!(run("Sum", x(), &[1], false).unwrap().dims(), [0]);
        let mean = run(
            "Mean",
            Tensor::zeros(DType::Int32, [0]).unwrap(),
            &[0],
            false,
        );
        assert_eq!(mean.unwrap().scalar_value::<i32>().unwrap(), 0);
    }

    #[test]
    fn integer_means_do_not_overflow_and_sums_do() {
        let x = Tensor::vector(vec![100i8; 10]);
        let one = |op| {
            run(op, x.clone(), &[0], false)
                .unwrap()
                .scalar_value::<i8>()
                .unwrap()
        };
        assert_eq!((one("Mean"), one("Sum")), (100, -24));
        let x = Tensor::vector(vec![-1i32, -2, -4]);
        assert_eq!(
            run("Mean", x, &[0], false)
                .unwrap()
                .scalar_value::<i32>()
                .unwrap(),
            -2
        );
    }

    #[test]
    fn bad_axes_are_refused_in_tensorflows_words() {
        let x = || Tensor::zeros(DType::Float, [2, 3]).unwrap();
        let text = |axes: &[i32]| run("Sum", x(), axes, false).unwrap_err().message;
        assert!(
            text(&[3]).starts_with("Invalid reduction dimension (3 for input with 2 dimension(s)")
        );
        assert!(
            text(&[-4])
                .starts_with("Invalid reduction dimension (-4 for input with 2 dimension(s)")
        );
        assert!(
            text(&[0, -2])
                .starts_with("Invalid reduction arguments: Axes contains duplicate dimension: 0")
        );
    }

    #[test]
    fn truth_and_losses_fold() {
        let x = Tensor::from_vec(vec![true, false, true, true], [2, 2]).unwrap();
        let attrs = [("Tidx", DType::Int32.into()), ("keep_dims", false.into())];
        for (op, want) in [("All", [false, true]), ("Any", [true, true])] {
            let out = run_op(op, vec![x.clone(), Tensor::scalar(1i32)], &attrs).unwrap();
            assert_eq!(out[0].as_slice::<bool>().unwrap(), want);
        }
        let x = Tensor::vector(vec![1.0f32, 2.0, 3.0]);
        let out = run_op("L2Loss", vec![x], &[("T", DType::Float.into())]).unwrap();
        assert_eq!(out[0].scalar_value::<f32>().unwrap(), 7.0);
    }
}
