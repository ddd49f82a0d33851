//! Elementwise arithmetic of in-place updates, as C++ does it: integers wrap around.

use downpour_tensor::Element;
use half::{bf16, f16};
use num_complex::{Complex32, Complex64};

/// A number that can be updated in place.
pub(super) trait Arith: Element {
    fn plus(self, other: Self) -> Self;
    fn minus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    /// Quotient; an integer divided by zero is zero (callers refuse that before).
    fn over(self, other: Self) -> Self;
}

/// A number with an order.
pub(super) trait Ordered: Arith + PartialOrd {
    /// The smaller one.
    fn least(self, other: Self) -> Self {
        if other < self { other } else { self }
    }
    /// The larger one.
    fn greatest(self, other: Self) -> Self {
        if self < other { other } else { self }
    }
}

macro_rules! integers {
    ($($t:ty),*) => {$(
        impl Arith for $t {
            fn plus(self, other: $t) -> $t {
                self.wrapping_add(other)
            }
            fn minus(self, other: $t) -> $t {
                self.wrapping_sub(other)
            }
            fn times(self, other: $t) -> $t {
                self.wrapping_mul(other)
            }
            fn over(self, other: $t) -> $t {
                if other == 0 { 0 } else { self.wrapping_div(other) }
            }
        }
        impl Ordered for $t {}
    )*};
}
integers!(i8, i16, i32, i64, u8, u16, u32, u64);

macro_rules! others {
    ($($t:ty),*) => {$(
        impl Arith for $t {
            fn plus(self, other: $t) -> $t {
                self + other
            }
            fn minus(self, other: $t) -> $t {
                self - other
            }
            fn times(self, other: $t) -> $t {
                self * other
            }
            fn over(self, other: $t) -> $t {
                self / other
            }
        }
    )*};
}
others!(f32, f64, f16, bf16, Complex32, Complex64);
impl Ordered for f32 {}
impl Ordered for f64 {}
impl Ordered for f16 {}
impl Ordered for bf16 {}
