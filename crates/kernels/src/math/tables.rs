//! Choosing a kernel by element type: `pick1!` and `pick2!` paste one function for each type of a
//! group, so that an op is a line per group and not per type. half and bfloat16 are computed as
//! float and rounded once.

use super::elementwise::{Binary, Unary, vector, vector2};
use super::halves;
use downpour_tensor::DType::{self, *};

/// half, bfloat16, float, double, complex64, complex128.
pub(crate) const FIELDS: &[DType] = &[BFloat16, Half, Float, Double, Complex64, Complex128];
/// complex64, complex128.
pub(crate) const COMPLEX: &[DType] = &[Complex64, Complex128];
/// float, double.
pub(crate) const WIDE: &[DType] = crate::types::FLOAT_DOUBLE;
/// half, float, double.
pub(crate) const NO_BFLOAT: &[DType] = crate::types::HALF_TO_DOUBLE;

/// A function of floats for numbers of 16 bits.
pub(crate) fn halves1(
    t: DType,
    f: impl Fn(f32) -> f32 + Copy + Send + Sync + 'static,
) -> Option<Box<dyn Unary>> {
    halves::one(t, vector(f))
}

/// The same of two.
pub(crate) fn halves2(
    t: DType,
    f: impl Fn(f32, f32) -> f32 + Copy + Send + Sync + 'static,
) -> Option<Box<dyn Binary>> {
    halves::two(t, vector2(f))
}

/// The unary kernel for a type: `pick1!(dtype; group => function; …)`, an `Option`.
macro_rules! pick1 {
    ($t:expr; $($group:ident => $f:expr);+ $(;)?) => {{
        #[allow(unused_imports, reason = "which are used depends on the groups")]
        use $crate::math::{elementwise::*, tables::*};
        let t: ::downpour_tensor::DType = $t;
        None$(.or_else(|| $crate::math::tables::pick1!(@$group t, $f)))+
    }};
    // Loops that vectorise.
    (@floats $t:ident, $f:expr) => {
        match $t {
            ::downpour_tensor::DType::Float => Some(vector($f)),
            ::downpour_tensor::DType::Double => Some(vector64($f)),
            _ => $crate::math::tables::pick1!(@halves $t, $f),
        }
    };
    (@halves $t:ident, $f:expr) => {
        halves1($t, $f)
    };
    // Calls of functions.
    (@float $t:ident, $f:expr) => {
        match $t {
            ::downpour_tensor::DType::Float => Some(scalar::<f32, _>($f)),
            _ => $crate::math::halves::one($t, scalar::<f32, _>($f)),
        }
    };
    // A `Function` for float, its definition for the halves.
    (@function $t:ident, $f:expr) => {
        match $t {
            ::downpour_tensor::DType::Float => Some(Box::new(Floats($f)) as Box<dyn Unary>),
            _ => $crate::math::halves::one($t, Box::new(Floats($f))),
        }
    };
    (@double $t:ident, $f:expr) => {
        match $t {
            ::downpour_tensor::DType::Double => Some(scalar::<f64, _>($f)),
            _ => None,
        }
    };
    // Results that do not depend on the sign, by width.
    (@wrapping $t:ident, $f:expr) => {
        match $t {
            ::downpour_tensor::DType::Int8 | ::downpour_tensor::DType::UInt8 => Some(scalar::<i8, _>($f)),
            ::downpour_tensor::DType::Int16 | ::downpour_tensor::DType::UInt16 => Some(scalar::<i16, _>($f)),
            ::downpour_tensor::DType::Int32 | ::downpour_tensor::DType::UInt32 => Some(plain::<i32, _>($f)),
            ::downpour_tensor::DType::Int64 | ::downpour_tensor::DType::UInt64 => Some(plain::<i64, _>($f)),
            _ => None,
        }
    };
    (@unsigned $t:ident, $f:expr) => {
        match $t {
            ::downpour_tensor::DType::UInt8 => Some(scalar::<u8, _>($f)),
            ::downpour_tensor::DType::UInt16 => Some(scalar::<u16, _>($f)),
            ::downpour_tensor::DType::UInt32 => Some(scalar::<u32, _>($f)),
            ::downpour_tensor::DType::UInt64 => Some(scalar::<u64, _>($f)),
            _ => None,
        }
    };
    (@complex $t:ident, $f:expr) => {
        match $t {
            ::downpour_tensor::DType::Complex64 => Some(scalar::<::num_complex::Complex32, _>($f)),
            ::downpour_tensor::DType::Complex128 => Some(scalar::<::num_complex::Complex64, _>($f)),
            _ => None,
        }
    };
}

/// The binary kernel for a type: `pick2!(dtype; group => function; …)`, an `Option`.
macro_rules! pick2 {
    ($t:expr; $($group:ident => $f:expr);+ $(;)?) => {{
        #[allow(unused_imports, reason = "which are used depends on the groups")]
        use $crate::math::{elementwise::*, tables::*};
        let t: ::downpour_tensor::DType = $t;
        None$(.or_else(|| $crate::math::tables::pick2!(@$group t, $f)))+
    }};
    // Loops that vectorise.
    (@floats $t:ident, $f:expr) => {
        match $t {
            ::downpour_tensor::DType::Float => Some(vector2($f)),
            ::downpour_tensor::DType::Double => Some(plain2::<f64, _>($f)),
            _ => halves2($t, $f),
        }
    };
    // Calls of functions.
    (@float $t:ident, $f:expr) => {
        match $t {
            ::downpour_tensor::DType::Float => Some(scalar2::<f32, _>($f)),
            _ => $crate::math::halves::two($t, scalar2::<f32, _>($f)),
        }
    };
    (@double $t:ident, $f:expr) => {
        match $t {
            ::downpour_tensor::DType::Double => Some(scalar2::<f64, _>($f)),
            _ => None,
        }
    };
    // Results that do not depend on the sign, by width.
    (@wrapping $t:ident, $f:expr) => {
        match $t {
            ::downpour_tensor::DType::Int8 | ::downpour_tensor::DType::UInt8 => Some(scalar2::<i8, _>($f)),
            ::downpour_tensor::DType::Int16 | ::downpour_tensor::DType::UInt16 => Some(scalar2::<i16, _>($f)),
            ::downpour_tensor::DType::Int32 | ::downpour_tensor::DType::UInt32 => Some(plain2::<i32, _>($f)),
            ::downpour_tensor::DType::Int64 | ::downpour_tensor::DType::UInt64 => Some(plain2::<i64, _>($f)),
            _ => None,
        }
    };
    (@ints $t:ident, $f:expr) => {
        match $t {
            ::downpour_tensor::DType::Int8 => Some(scalar2::<i8, _>($f)),
            ::downpour_tensor::DType::Int16 => Some(scalar2::<i16, _>($f)),
            ::downpour_tensor::DType::Int32 => Some(plain2::<i32, _>($f)),
            ::downpour_tensor::DType::Int64 => Some(plain2::<i64, _>($f)),
            ::downpour_tensor::DType::UInt8 => Some(scalar2::<u8, _>($f)),
            ::downpour_tensor::DType::UInt16 => Some(scalar2::<u16, _>($f)),
            ::downpour_tensor::DType::UInt32 => Some(scalar2::<u32, _>($f)),
            ::downpour_tensor::DType::UInt64 => Some(scalar2::<u64, _>($f)),
            _ => None,
        }
    };
    // Functions that may refuse their operands.
    (@checked_signed $t:ident, $f:expr) => {
        match $t {
            ::downpour_tensor::DType::Int8 => Some(checked2::<i8, _>($f)),
            ::downpour_tensor::DType::Int16 => Some(checked2::<i16, _>($f)),
            ::downpour_tensor::DType::Int32 => Some(checked2::<i32, _>($f)),
            ::downpour_tensor::DType::Int64 => Some(checked2::<i64, _>($f)),
            _ => None,
        }
    };
    (@checked_unsigned $t:ident, $f:expr) => {
        match $t {
            ::downpour_tensor::DType::UInt8 => Some(checked2::<u8, _>($f)),
            ::downpour_tensor::DType::UInt16 => Some(checked2::<u16, _>($f)),
            ::downpour_tensor::DType::UInt32 => Some(checked2::<u32, _>($f)),
            ::downpour_tensor::DType::UInt64 => Some(checked2::<u64, _>($f)),
            _ => None,
        }
    };
    (@complex $t:ident, $f:expr) => {
        match $t {
            ::downpour_tensor::DType::Complex64 => Some(scalar2::<::num_complex::Complex32, _>($f)),
            ::downpour_tensor::DType::Complex128 => Some(scalar2::<::num_complex::Complex64, _>($f)),
            _ => None,
        }
    };
    // Comparisons.
    (@float_tests $t:ident, $f:expr) => {
        match $t {
            ::downpour_tensor::DType::Float => Some(vector_test($f)),
            ::downpour_tensor::DType::Double => Some(plain_test::<f64, _>($f)),
            _ => $crate::math::halves::two($t, vector_test($f)),
        }
    };
    (@int_tests $t:ident, $f:expr) => {
        match $t {
            ::downpour_tensor::DType::Int8 => Some(scalar_test::<i8, _>($f)),
            ::downpour_tensor::DType::Int16 => Some(scalar_test::<i16, _>($f)),
            ::downpour_tensor::DType::Int32 => Some(plain_test::<i32, _>($f)),
            ::downpour_tensor::DType::Int64 => Some(plain_test::<i64, _>($f)),
            ::downpour_tensor::DType::UInt8 => Some(scalar_test::<u8, _>($f)),
            ::downpour_tensor::DType::UInt16 => Some(scalar_test::<u16, _>($f)),
            ::downpour_tensor::DType::UInt32 => Some(scalar_test::<u32, _>($f)),
            ::downpour_tensor::DType::UInt64 => Some(scalar_test::<u64, _>($f)),
            _ => None,
        }
    };
    // Equality of anything that is equal when its bits are.
    (@bit_tests $t:ident, $f:expr) => {
        match ($t.is_floating() || $t.is_complex(), $t.size()) {
            (false, Some(1)) => Some(plain_test::<u8, _>($f)),
            (false, Some(2)) => Some(scalar_test::<u16, _>($f)),
            (false, Some(4)) => Some(plain_test::<u32, _>($f)),
            (false, Some(8)) => Some(plain_test::<u64, _>($f)),
            _ => None,
        }
    };
    (@complex_tests $t:ident, $f:expr) => {
        match $t {
            ::downpour_tensor::DType::Complex64 => Some(scalar_test::<::num_complex::Complex32, _>($f)),
            ::downpour_tensor::DType::Complex128 => Some(scalar_test::<::num_complex::Complex64, _>($f)),
            _ => None,
        }
    };
}

pub(crate) use {pick1, pick2};
