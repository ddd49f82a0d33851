//! `ArgMax` and `ArgMin`: the first place of the largest or smallest element along an axis. NaN
//! is never chosen; where nothing is, the answer is 0.

use super::elementwise::GRAIN;
use super::isa::{Isa, Loop, Plain, dispatch};
use crate::args;
use crate::types::with_type;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, Registry, parallel_ranges};
use downpour_tensor::DType::{self, *};
use downpour_tensor::{Element, Tensor};
use half::{bf16, f16};

const TYPES: &[DType] = &[
    Float, Double, Half, BFloat16, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64, Bool,
];

pub(crate) fn register(r: &mut Registry) {
    r.add_typed(
        "ArgMax",
        &[
            ("T", TYPES),
            ("output_type", &[Int16, UInt16, Int32, Int64]),
        ],
        |b| {
            let t = b.attrs().dtype("T")?;
            with_type!(t, T in [f32, f64, f16, bf16, i8, i16, i32, i64, u8, u16, u32, u64, bool]
                => built(b, places::<T, true>))
        },
    );
    r.add_typed(
        "ArgMin",
        &[("T", TYPES), ("output_type", &[Int32, Int64])],
        |b| {
            let t = b.attrs().dtype("T")?;
            with_type!(t, T in [f32, f64, f16, bf16, i8, i16, i32, i64, u8, u16, u32, u64, bool]
                => built(b, places::<T, false>))
        },
    );
}

/// Finds places along the middle dimension of (outer, n, inner).
type Places = fn(&Tensor, [usize; 3]) -> Result<Vec<i64>>;

fn built(b: &KernelBuilder<'_>, places: Places) -> Result<Built> {
    let output = b.attrs().dtype("output_type")?;
    Built::cheap(move |ctx| {
        let (x, dimension) = (ctx.input(0)?, ctx.input(1)?);
        if !dimension.shape().is_scalar() {
            return Err(Status::invalid_argument(format!(
                "dim must be a scalar, but received tensor of shape: {}",
                dimension.shape()
            )));
        }
        let (given, rank) = (args::int(dimension)?, x.rank() as i64);
        let axis = if given < 0 {
            given.saturating_add(rank)
        } else {
            given
        };
        let n = usize::try_from(axis).ok().and_then(|a| x.dims().get(a));
        let Some(&n) = n else {
            return Err(Status::invalid_argument(format!(
                "Expected dimension in the range [{}, {rank}), but got {given}",
                -rank
            )));
        };
        let (before, after) = x.dims().split_at(axis as usize);
        let after = &after[1..];
        if n == 0 {
            return Err(Status::invalid_argument(format!(
                "Reduction axis {given} is empty in shape {}",
                x.shape()
            )));
        }
        let shape: Vec<usize> = before.iter().chain(after).copied().collect();
        let found = if x.num_elements() == 0 {
            Vec::new()
        } else {
            places(x, [before.iter().product(), n, after.iter().product()])?
        };
        let out = args::int_tensor(output, found, shape)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// Types with an order, and its ends.
trait Ordered: Element + PartialOrd {
    const LOWEST: Self;
    const HIGHEST: Self;
    /// Whether loops are compiled for several instruction sets.
    const VECTOR: bool = false;
}

macro_rules! ordered {
    ($($t:ident: $vector:expr),*) => {$(
        impl Ordered for $t {
            const LOWEST: $t = $t::MIN;
            const HIGHEST: $t = $t::MAX;
            const VECTOR: bool = $vector;
        }
    )*};
}

ordered!(f32: true, f64: false, f16: false, bf16: false, i8: false, i16: false, i32: false,
    i64: false, u8: false, u16: false, u32: false, u64: false);

impl Ordered for bool {
    const LOWEST: bool = false;
    const HIGHEST: bool = true;
}

#[inline(always)]
fn better<T: PartialOrd, const MAX: bool>(x: T, best: T) -> bool {
    if MAX { x > best } else { x < best }
}

/// What an element must be better than to be chosen at all.
fn start<T: Ordered, const MAX: bool>() -> T {
    if MAX { T::LOWEST } else { T::HIGHEST }
}

fn places<T: Ordered, const MAX: bool>(
    x: &Tensor,
    [outer, n, inner]: [usize; 3],
) -> Result<Vec<i64>> {
    let xs = x.as_slice::<T>()?;
    let mut out = vec![0i64; outer * inner];
    parallel_ranges(&mut out, inner, GRAIN.div_ceil(n * inner), |first, out| {
        for (i, out) in out.chunks_mut(inner).enumerate() {
            let xs = &xs[(first + i) * n * inner..][..n * inner];
            if inner == 1 {
                out[0] = along::<T, MAX>(xs) as i64;
                continue;
            }
            let mut best = vec![start::<T, MAX>(); inner];
            for (row, xs) in xs.chunks(inner).enumerate() {
                for ((best, out), &x) in best.iter_mut().zip(out.iter_mut()).zip(xs) {
                    if better::<T, MAX>(x, *best) {
                        (*best, *out) = (x, row as i64);
                    }
                }
            }
        }
    });
    Ok(out)
}

struct Best<'a, T, const MAX: bool>(&'a [T]);

impl<T: Ordered, const MAX: bool> Loop for Best<'_, T, MAX> {
    type Out = T;
    #[inline(always)]
    fn run<I: Isa>(self) -> T {
        let mut lanes = [start::<T, MAX>(); 32];
        let (chunks, rest) = self.0.as_chunks::<32>();
        let better = |best: &mut T, x: T| {
            *best = if better::<T, MAX>(x, *best) { x } else { *best };
        };
        for chunk in chunks {
            lanes.iter_mut().zip(chunk).for_each(|(l, &x)| better(l, x));
        }
        lanes.iter_mut().zip(rest).for_each(|(l, &x)| better(l, x));
        let mut best = start::<T, MAX>();
        lanes.iter().for_each(|&l| better(&mut best, l));
        best
    }
}

/// The place of the best element: its value first, at vector speed, then where it is.
fn along<T: Ordered, const MAX: bool>(xs: &[T]) -> usize {
    if xs.len() < 32 {
        let (mut best, mut place) = (start::<T, MAX>(), 0);
        for (i, &x) in xs.iter().enumerate() {
            if better::<T, MAX>(x, best) {
                (best, place) = (x, i);
            }
        }
        return place;
    }
    let best = if T::VECTOR {
        dispatch(Best::<T, MAX>(xs))
    } else {
        Best::<T, MAX>(xs).run::<Plain>()
    };
    if best == start::<T, MAX>() {
        // Nothing was better than that.
        return 0;
    }
    xs.iter().position(|&x| x == best).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use crate::testing::{floats, run_op};
    use downpour_tensor::{DType, Tensor};

    fn arg_max(x: Tensor, axis: i32) -> Vec<i64> {
        let attrs = [
            ("T", x.dtype().into()),
            ("Tidx", DType::Int32.into()),
            ("output_type", DType::Int64.into()),
        ];
        let out = run_op("ArgMax", vec![x, Tensor::scalar(axis)], &attrs).unwrap();
        out[0].as_slice::<i64>().unwrap().to_vec()
    }

    #[test]
    fn nan_is_never_chosen() {
        let nan = f32::NAN;
        assert_eq!(arg_max(floats(&[1.0, nan, 2.0]), 0), [2]);
        assert_eq!(arg_max(floats(&[nan, nan]), 0), [0]);
        assert_eq!(arg_max(floats(&[f32::NEG_INFINITY; 40]), 0), [0]);
        let mut long = vec![nan; 100];
        long[77] = -1.0;
        long[90] = -1.0;
        assert_eq!(arg_max(floats(&long), -1), [77]);
    }

    #[test]
    fn any_axis_is_searched() {
        let x = Tensor::from_vec(vec![1, 9, 3, 7, 2, 8, 7, 1, 1, 1, 5, 6], [2, 3, 2]).unwrap();
        assert_eq!(arg_max(x.clone(), 0), [1, 0, 0, 0, 1, 0]);
        assert_eq!(arg_max(x.clone(), 1), [1, 0, 0, 2]);
        assert_eq!(arg_max(x, -1), [1, 1, 1, 0, 0, 1]);
    }

    #[test]
    fn bad_axes_are_refused() {
        let attrs = [
            ("T", DType::Float.into()),
            ("Tidx", DType::Int32.into()),
            ("output_type", DType::Int64.into()),
        ];
        let text =
            |x: Tensor, axis: Tensor| run_op("ArgMax", vec![x, axis], &attrs).unwrap_err().message;
        let x = Tensor::zeros(DType::Float, [2, 0]).unwrap();
        let message = text(x.clone(), Tensor::scalar(1i32));
        assert!(
            message.starts_with("Reduction axis 1 is empty in shape [2,0]"),
            "{message}"
        );
        let message = text(x.clone(), Tensor::scalar(2i32));
        assert!(
            message.starts_with("Expected dimension in the range [-2, 2), but got 2"),
            "{message}"
        );
        let message = text(x, Tensor::vector(vec![1i32]));
        assert!(
            message.starts_with("dim must be a scalar, but received tensor of shape: [1]"),
            "{message}"
        );
    }
}
