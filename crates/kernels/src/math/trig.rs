//! Sine and cosine of floats: a vectorised loop for arguments up to a few thousand, the
//! library's function for blocks with larger ones.
#![allow(unsafe_code, reason = "blocks arrive as bytes and are typed here")]

use super::elementwise::{GRAIN, Unary};
use super::isa::{Isa, Loop, dispatch};
use std::f32::consts::FRAC_2_PI;

/// Up to here the three-part reduction below keeps its precision.
const LIMIT: f32 = 8192.0;
/// 1.5·2²³: adding it rounds to an integer that sits in the low mantissa bits.
const ROUND: f32 = 12_582_912.0;

/// sin(x), or cos(x) when `quarter` is 1: the sine a quarter turn on.
#[inline(always)]
fn turn<I: Isa>(x: f32, quarter: u32) -> f32 {
    let shifted = I::madd(x, FRAC_2_PI, ROUND);
    let n = shifted - ROUND;
    // π/2 in three parts, the first two of few enough bits that products with n are exact.
    let r = I::madd(n, -1.570_312_5, x);
    let r = I::madd(n, -4.837_513e-4, r);
    let r = I::madd(n, -7.549_79e-8, r);
    let z = r * r;
    let s = I::madd(z, -1.951_529_6e-4, 8.332_161e-3);
    let s = I::madd(s, z, -1.666_665_5e-1);
    let s = I::madd(s * z, r, r);
    let c = I::madd(z, 2.443_315_7e-5, -1.388_731_6e-3);
    let c = I::madd(c, z, 4.166_664_6e-2);
    let c = I::madd(c * z, z, I::madd(-0.5, z, 1.0));
    let quadrant = shifted.to_bits().wrapping_add(quarter);
    let y = if quadrant & 1 == 0 { s } else { c };
    f32::from_bits(y.to_bits() ^ ((quadrant & 2) << 30))
}

struct Turn<'a>(&'a mut [f32], u32);

impl Loop for Turn<'_> {
    type Out = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        for x in self.0 {
            *x = turn::<I>(*x, self.1);
        }
    }
}

fn block(xs: &mut [f32], quarter: u32, exact: fn(f32) -> f32) {
    // NaN is not in range either: the library's function gives it back.
    if xs.iter().fold(true, |all, x| all & (x.abs() <= LIMIT)) {
        dispatch(Turn(xs, quarter));
    } else {
        xs.iter_mut().for_each(|x| *x = exact(*x));
    }
}

/// Sine.
pub(crate) struct Sin;

impl Unary for Sin {
    fn size(&self) -> usize {
        size_of::<f32>()
    }
    fn grain(&self) -> usize {
        GRAIN / 2
    }
    unsafe fn run(&self, at: *mut u8, n: usize) {
        // SAFETY: the trait's contract.
        block(
            unsafe { std::slice::from_raw_parts_mut(at.cast(), n) },
            0,
            f32::sin,
        );
    }
}

/// Cosine.
pub(crate) struct Cos;

impl Unary for Cos {
    fn size(&self) -> usize {
        size_of::<f32>()
    }
    fn grain(&self) -> usize {
        GRAIN / 2
    }
    unsafe fn run(&self, at: *mut u8, n: usize) {
        // SAFETY: the trait's contract.
        block(
            unsafe { std::slice::from_raw_parts_mut(at.cast(), n) },
            1,
            f32::cos,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::isa::{Fused, Plain};
    use super::*;

    #[test]
    fn values_agree_with_the_library() {
        for i in 0..=20_000 {
            for scale in [1e-3, 0.8f32] {
                let x = (i - 10_000) as f32 * scale;
                let (s, c) = (f64::from(x).sin(), f64::from(x).cos());
                for (got, want) in [
                    (turn::<Plain>(x, 0), s),
                    (turn::<Fused>(x, 0), s),
                    (turn::<Plain>(x, 1), c),
                    (turn::<Fused>(x, 1), c),
                ] {
                    assert!((f64::from(got) - want).abs() < 2e-7, "{x}: {got} {want}");
                }
            }
        }
        let mut far = [1e6f32, f32::NAN, f32::INFINITY, 1.0];
        block(&mut far, 0, f32::sin);
        assert_eq!((far[0], far[3]), (1e6f32.sin(), 1f32.sin()));
        assert!(far[1].is_nan() && far[2].is_nan());
    }
}
