//! Arithmetic that sparse ops share. Integers wrap; halves are widened by the callers.

use downpour_tensor::Element;
use num_complex::{Complex32, Complex64};

pub(super) trait Number: Element {
    const ZERO: Self;
    fn plus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    /// Integers divide towards zero, and give zero where the divisor is (callers refuse that).
    fn over(self, other: Self) -> Self;
    /// The other one if it is larger; complex numbers, which have no order, stay.
    fn larger(self, other: Self) -> Self;
    fn smaller(self, other: Self) -> Self;
    /// Complex conjugate.
    fn conj(self) -> Self;
    fn magnitude(self) -> f64;
}

macro_rules! integers {
    ($($t:ty),*) => {
        $(impl Number for $t {
            const ZERO: Self = 0;
            fn plus(self, other: Self) -> Self { self.wrapping_add(other) }
            fn times(self, other: Self) -> Self { self.wrapping_mul(other) }
            fn over(self, other: Self) -> Self {
                if other == 0 { 0 } else { self.wrapping_div(other) }
            }
            fn larger(self, other: Self) -> Self { self.max(other) }
            fn smaller(self, other: Self) -> Self { self.min(other) }
            fn conj(self) -> Self { self }
            fn magnitude(self) -> f64 { (self as f64).abs() }
        })*
    };
}
integers!(i8, i16, i32, i64, u8, u16, u32, u64);

macro_rules! floats {
    ($($t:ty),*) => {
        $(impl Number for $t {
            const ZERO: Self = 0.0;
            fn plus(self, other: Self) -> Self { self + other }
            fn times(self, other: Self) -> Self { self * other }
            fn over(self, other: Self) -> Self { self / other }
            fn larger(self, other: Self) -> Self { if self < other { other } else { self } }
            fn smaller(self, other: Self) -> Self { if other < self { other } else { self } }
            fn conj(self) -> Self { self }
            fn magnitude(self) -> f64 { f64::from(self).abs() }
        })*
    };
}
floats!(f32, f64);

macro_rules! complexes {
    ($($t:ty),*) => {
        $(impl Number for $t {
            const ZERO: Self = <$t>::new(0.0, 0.0);
            fn plus(self, other: Self) -> Self { self + other }
            fn times(self, other: Self) -> Self { self * other }
            fn over(self, other: Self) -> Self { self / other }
            fn larger(self, _: Self) -> Self { self }
            fn smaller(self, _: Self) -> Self { self }
            fn conj(self) -> Self { <$t>::new(self.re, -self.im) }
            fn magnitude(self) -> f64 { self.norm().into() }
        })*
    };
}
complexes!(Complex32, Complex64);

/// As `with_type!` over every type that has [`Number`].
macro_rules! with_number {
    ($dtype:expr, $T:ident => $body:expr) => {
        $crate::types::with_type!($dtype, $T in [f32, f64, i32, i64, i8, i16, u8, u16, u32, u64,
            ::num_complex::Complex32, ::num_complex::Complex64] => $body)
    };
}
pub(super) use with_number;
