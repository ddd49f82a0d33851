//! The arithmetic that optimizer passes are written in. Half precision rounds after every
//! operation, as TensorFlow's kernels do; the passes must not widen behind its back.

use downpour_tensor::Element;
use half::{bf16, f16};
use num_complex::{Complex32, Complex64};
use std::ops::{Add, Div, Mul, Neg, Sub};

/// A number an optimizer can work on, real or complex.
pub(super) trait Number:
    Element
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
{
    /// A constant.
    fn of(value: f32) -> Self;
    /// Square root.
    fn sqrt(self) -> Self;
    /// Reciprocal of the square root.
    fn rsqrt(self) -> Self;
    /// The number times itself.
    #[inline(always)]
    fn square(self) -> Self {
        self * self
    }
}

/// A real number.
pub(super) trait Real: Number + PartialOrd {
    /// Distance from zero.
    fn abs(self) -> Self;
    /// -1, 0 or 1; NaN stays NaN.
    #[inline(always)]
    fn sign(self) -> Self {
        if self > Self::of(0.0) {
            Self::of(1.0)
        } else if self < Self::of(0.0) {
            Self::of(-1.0)
        } else {
            // Zero and NaN are their own sign.
            self
        }
    }
    /// The larger one.
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        if self < other { other } else { self }
    }
    /// Power.
    fn pow(self, exponent: Self) -> Self;
    /// Exponential.
    fn exp(self) -> Self;
    /// A whole number, rounded.
    fn of_int(value: i64) -> Self;
}

macro_rules! native {
    ($t:ty) => {
        impl Number for $t {
            #[inline(always)]
            fn of(value: f32) -> $t {
                value as $t
            }
            #[inline(always)]
            fn sqrt(self) -> $t {
                <$t>::sqrt(self)
            }
            #[inline(always)]
            fn rsqrt(self) -> $t {
                1.0 / <$t>::sqrt(self)
            }
        }
        impl Real for $t {
            #[inline(always)]
            fn abs(self) -> $t {
                <$t>::abs(self)
            }
            #[inline(always)]
            fn pow(self, exponent: $t) -> $t {
                self.powf(exponent)
            }
            #[inline(always)]
            fn exp(self) -> $t {
                <$t>::exp(self)
            }
            #[inline(always)]
            fn of_int(value: i64) -> $t {
                value as $t
            }
        }
    };
}
native!(f32);
native!(f64);

macro_rules! narrow {
    ($t:ty) => {
        impl Number for $t {
            #[inline(always)]
            fn of(value: f32) -> $t {
                <$t>::from_f32(value)
            }
            #[inline(always)]
            fn sqrt(self) -> $t {
                <$t>::from_f32(self.to_f32().sqrt())
            }
            #[inline(always)]
            fn rsqrt(self) -> $t {
                <$t>::from_f32(1.0 / self.to_f32().sqrt())
            }
        }
        impl Real for $t {
            #[inline(always)]
            fn abs(self) -> $t {
                <$t>::from_bits(self.to_bits() & 0x7fff)
            }
            #[inline(always)]
            fn pow(self, exponent: $t) -> $t {
                <$t>::from_f32(self.to_f32().powf(exponent.to_f32()))
            }
            #[inline(always)]
            fn exp(self) -> $t {
                <$t>::from_f32(self.to_f32().exp())
            }
            #[inline(always)]
            fn of_int(value: i64) -> $t {
                <$t>::from_f32(value as f32)
            }
        }
    };
}
narrow!(f16);
narrow!(bf16);

macro_rules! complex {
    ($t:ty) => {
        impl Number for $t {
            #[inline(always)]
            fn of(value: f32) -> $t {
                <$t>::new(value.into(), 0.0)
            }
            #[inline(always)]
            fn sqrt(self) -> $t {
                <$t>::sqrt(self)
            }
            #[inline(always)]
            fn rsqrt(self) -> $t {
                <$t>::new(1.0, 0.0) / <$t>::sqrt(self)
            }
        }
    };
}
complex!(Complex32);
complex!(Complex64);
