//! half and bfloat16 are computed as float and rounded once: block by block, so that a kernel of floats serves them with
//! its own vectors and the conversions are vectors too.
#![allow(unsafe_code, reason = "blocks arrive as bytes and are typed here")]

use super::elementwise::{Binary, COSTLY_GRAIN, Steps, Unary};
use downpour_tensor::DType;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use std::marker::PhantomData;

/// Elements converted at a time: both buffers of floats stay in the nearest cache.
const BLOCK: usize = 512;

/// A number of 16 bits.
trait Half: Copy + Default + Send + Sync + 'static {
    fn widen(from: &[Self], to: &mut [f32]);
    fn narrow(from: &[f32], to: &mut [Self]);
}

macro_rules! halves {
    ($($t:ty),*) => {
        $(impl Half for $t {
            fn widen(from: &[Self], to: &mut [f32]) {
                from.convert_to_f32_slice(to);
            }
            fn narrow(from: &[f32], to: &mut [Self]) {
                to.convert_from_f32_slice(from);
            }
        })*
    };
}

halves!(f16, bf16);

struct One<H> {
    floats: Box<dyn Unary>,
    element: PhantomData<fn(H) -> H>,
}

impl<H: Half> Unary for One<H> {
    fn size(&self) -> usize {
        size_of::<H>()
    }
    fn grain(&self) -> usize {
        self.floats.grain()
    }
    unsafe fn run(&self, block: *mut u8, n: usize) {
        // SAFETY: the trait's contract.
        let block = unsafe { std::slice::from_raw_parts_mut(block.cast::<H>(), n) };
        let mut room = [0f32; BLOCK];
        for part in block.chunks_mut(BLOCK) {
            let floats = &mut room[..part.len()];
            H::widen(part, floats);
            // SAFETY: as many floats, which are this call's own.
            unsafe { self.floats.run(floats.as_mut_ptr().cast(), floats.len()) };
            H::narrow(floats, part);
        }
    }
}

/// A kernel of floats for numbers of 16 bits; `None` for other types.
pub(crate) fn one(t: DType, floats: Box<dyn Unary>) -> Option<Box<dyn Unary>> {
    fn of<H: Half>(floats: Box<dyn Unary>) -> Box<dyn Unary> {
        Box::new(One::<H> {
            floats,
            element: PhantomData,
        })
    }
    match t {
        DType::Half => Some(of::<f16>(floats)),
        DType::BFloat16 => Some(of::<bf16>(floats)),
        _ => None,
    }
}

struct Two<H> {
    floats: Box<dyn Binary>,
    element: PhantomData<fn(H) -> H>,
}

impl<H: Half> Binary for Two<H> {
    fn size_in(&self) -> usize {
        size_of::<H>()
    }
    fn output(&self) -> Option<DType> {
        self.floats.output()
    }
    fn grain(&self) -> usize {
        self.floats.grain().max(COSTLY_GRAIN)
    }
    unsafe fn run(&self, out: *mut u8, a: *const u8, b: *const u8, n: usize, steps: Steps) -> bool {
        let of_a = if steps == Steps::Right { 1 } else { n };
        let of_b = if steps == Steps::Left { 1 } else { n };
        // SAFETY: the trait's contract.
        let (a, b) = unsafe {
            (
                std::slice::from_raw_parts(a.cast::<H>(), of_a),
                std::slice::from_raw_parts(b.cast::<H>(), of_b),
            )
        };
        let (mut left, mut right) = ([0f32; BLOCK], [0f32; BLOCK]);
        let mut made = [0f32; BLOCK];
        let mut good = true;
        for start in (0..n).step_by(BLOCK) {
            let len = BLOCK.min(n - start);
            let place = |stays: bool| if stays { (0, 1) } else { (start, len) };
            let ((ia, na), (ib, nb)) = (place(steps == Steps::Right), place(steps == Steps::Left));
            H::widen(&a[ia..ia + na], &mut left[..na]);
            H::widen(&b[ib..ib + nb], &mut right[..nb]);
            let (a, b) = (left.as_ptr().cast(), right.as_ptr().cast());
            if self.floats.output().is_some() {
                // SAFETY: a comparison gives one byte for each element, from `start` on there are `len` of them.
                good &= unsafe { self.floats.run(out.add(start), a, b, len, steps) };
                continue;
            }
            // SAFETY: the operands are floats, as many as they move, and `made` has room for a block of results.
            good &= unsafe { self.floats.run(made.as_mut_ptr().cast(), a, b, len, steps) };
            // SAFETY: the trait's contract: room for `n` elements, which overlaps with no operand.
            let out = unsafe { out.cast::<H>().add(start) };
            let mut narrow = [H::default(); BLOCK];
            H::narrow(&made[..len], &mut narrow[..len]);
            // SAFETY: as above; `narrow` is this call's own.
            unsafe { std::ptr::copy_nonoverlapping(narrow.as_ptr(), out, len) };
        }
        good
    }
}

/// A kernel of two floats for numbers of 16 bits, a comparison too; `None` for other types.
pub(crate) fn two(t: DType, floats: Box<dyn Binary>) -> Option<Box<dyn Binary>> {
    fn of<H: Half>(floats: Box<dyn Binary>) -> Box<dyn Binary> {
        Box::new(Two::<H> {
            floats,
            element: PhantomData,
        })
    }
    match t {
        DType::Half => Some(of::<f16>(floats)),
        DType::BFloat16 => Some(of::<bf16>(floats)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::run_op;
    use downpour_tensor::{DType, Element, Tensor, bf16, f16};

    fn numbers<T: Element>(n: usize, of: fn(f32) -> T) -> Vec<T> {
        (0..n).map(|i| of((i as f32 * 0.37).sin() * 9.0)).collect()
    }

    fn check<T: Element + PartialEq + std::fmt::Debug>(of: fn(f32) -> T, to: fn(T) -> f32) {
        for n in [1, 511, 512, 513, 5000] {
            let x = numbers(n, of);
            let run = |op: &str, inputs: Vec<Tensor>| {
                run_op(op, inputs, &[("T", T::DTYPE.into())])
                    .unwrap()
                    .remove(0)
            };
            let t = Tensor::vector(x.clone());
            let floor = run("Floor", vec![t.clone()]);
            let want: Vec<T> = x.iter().map(|v| of(to(*v).floor())).collect();
            assert_eq!(floor.as_slice::<T>().unwrap(), want);
            let y: Vec<T> = x.iter().rev().copied().collect();
            let one = Tensor::scalar(of(2.5));
            for (a, b) in [
                (t.clone(), Tensor::vector(y.clone())),
                (t.clone(), one.clone()),
                (one.clone(), t.clone()),
            ] {
                let (sum, less) = (
                    run("AddV2", vec![a.clone(), b.clone()]),
                    run("Less", vec![a.clone(), b.clone()]),
                );
                let (a, b) = (a.as_slice::<T>().unwrap(), b.as_slice::<T>().unwrap());
                let at = |s: &[T], i: usize| to(s[if s.len() == 1 { 0 } else { i }]);
                for i in 0..n {
                    assert_eq!(sum.as_slice::<T>().unwrap()[i], of(at(a, i) + at(b, i)));
                    assert_eq!(less.as_slice::<bool>().unwrap()[i], at(a, i) < at(b, i));
                }
            }
        }
    }

    #[test]
    fn blocks_and_their_rests_are_computed_alike_whichever_operand_stays() {
        check::<f16>(f16::from_f32, f16::to_f32);
        check::<bf16>(bf16::from_f32, bf16::to_f32);
        assert_eq!(f16::DTYPE, DType::Half);
    }
}
