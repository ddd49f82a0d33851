//! Lists of element types as TensorFlow's kernels group them, and dispatch from an element type
//! at run time to a Rust type at compile time.

use downpour_tensor::DType;

/// half, bfloat16, float, double.
pub(crate) const FLOATS: &[DType] = &[DType::Half, DType::BFloat16, DType::Float, DType::Double];

/// half, float, double: what kernels took before bfloat16.
pub(crate) const HALF_TO_DOUBLE: &[DType] = &[DType::Half, DType::Float, DType::Double];

/// float and double.
pub(crate) const FLOAT_DOUBLE: &[DType] = &[DType::Float, DType::Double];

/// float and half.
pub(crate) const FLOAT_HALF: &[DType] = &[DType::Float, DType::Half];

/// int16, int32 and int64: index types of newer ops.
pub(crate) const INDEX_FROM_16: &[DType] = &[DType::Int16, DType::Int32, DType::Int64];

/// Integers of 32 and 64 bits.
pub(crate) const WORDS: &[DType] = &[DType::Int32, DType::Int64, DType::UInt32, DType::UInt64];

/// float and double, in the order in which kernels of linear algebra are registered.
pub(crate) const DOUBLE_FLOAT: &[DType] = &[DType::Double, DType::Float];

/// All integers with a Rust type.
pub(crate) const INTS: &[DType] = &[
    DType::Int8,
    DType::Int16,
    DType::Int32,
    DType::Int64,
    DType::UInt8,
    DType::UInt16,
    DType::UInt32,
    DType::UInt64,
];

/// int32 and int64: index types.
pub(crate) const INDEX: &[DType] = &[DType::Int32, DType::Int64];

/// All real numbers.
pub(crate) const REALS: &[DType] = &[
    DType::Half,
    DType::BFloat16,
    DType::Float,
    DType::Double,
    DType::Int8,
    DType::Int16,
    DType::Int32,
    DType::Int64,
    DType::UInt8,
    DType::UInt16,
    DType::UInt32,
    DType::UInt64,
];

/// All numbers, complex ones included.
pub(crate) const NUMBERS: &[DType] = &[
    DType::Half,
    DType::BFloat16,
    DType::Float,
    DType::Double,
    DType::Int8,
    DType::Int16,
    DType::Int32,
    DType::Int64,
    DType::UInt8,
    DType::UInt16,
    DType::UInt32,
    DType::UInt64,
    DType::Complex64,
    DType::Complex128,
];

/// What may be moved without being looked at, in the order in which TensorFlow's kernels that do so are registered: numbers
/// and bool ([`COMMON`]), strings and handles ([`WITH_HANDLES`]), quantized integers.
pub(crate) const MOVED: &[DType] = &[
    DType::Float,
    DType::Double,
    DType::Half,
    DType::BFloat16,
    DType::Int8,
    DType::Int16,
    DType::Int32,
    DType::Int64,
    DType::UInt8,
    DType::UInt16,
    DType::UInt32,
    DType::UInt64,
    DType::Bool,
    DType::Complex64,
    DType::Complex128,
    DType::String,
    DType::Resource,
    DType::Variant,
    DType::QInt8,
    DType::QUInt8,
    DType::QInt32,
];

/// The numbers and bool of [`MOVED`].
pub(crate) const COMMON: &[DType] = MOVED.split_at(15).0;

/// Those, strings, handles and variants.
pub(crate) const WITH_HANDLES: &[DType] = MOVED.split_at(18).0;

/// Runs `$body` with `$T` standing for the Rust type of `$dtype`, or returns INTERNAL for a type
/// not in the list (which a registration's type list should have kept away).
///
/// `with_type!(dtype, T in [f32, f64] => kernel::<T>(ctx))`, or one of the groups:
/// `floats`, `ints`, `reals`, `numbers`, `plain` (numbers and bool).
macro_rules! with_type {
    ($dtype:expr, $T:ident in floats => $body:expr) => {
        $crate::types::with_type!($dtype, $T in [f32, f64, ::half::f16, ::half::bf16] => $body)
    };
    ($dtype:expr, $T:ident in ints => $body:expr) => {
        $crate::types::with_type!($dtype, $T in [i32, i64, i8, i16, u8, u16, u32, u64] => $body)
    };
    ($dtype:expr, $T:ident in index => $body:expr) => {
        $crate::types::with_type!($dtype, $T in [i32, i64] => $body)
    };
    ($dtype:expr, $T:ident in reals => $body:expr) => {
        $crate::types::with_type!($dtype, $T in [f32, f64, ::half::f16, ::half::bf16,
            i32, i64, i8, i16, u8, u16, u32, u64] => $body)
    };
    ($dtype:expr, $T:ident in numbers => $body:expr) => {
        $crate::types::with_type!($dtype, $T in [f32, f64, ::half::f16, ::half::bf16,
            i32, i64, i8, i16, u8, u16, u32, u64,
            ::num_complex::Complex32, ::num_complex::Complex64] => $body)
    };
    ($dtype:expr, $T:ident in plain => $body:expr) => {
        $crate::types::with_type!($dtype, $T in [f32, f64, ::half::f16, ::half::bf16,
            i32, i64, i8, i16, u8, u16, u32, u64, bool,
            ::num_complex::Complex32, ::num_complex::Complex64] => $body)
    };
    ($dtype:expr, $T:ident in [$($t:ty),* $(,)?] => $body:expr) => {{
        let dtype: ::downpour_tensor::DType = $dtype;
        $(if dtype == <$t as ::downpour_tensor::Element>::DTYPE {
            type $T = $t;
            $body
        } else)* {
            return Err(::downpour_graph::Status::internal(format!(
                "this kernel has no code for type {dtype}"
            )));
        }
    }};
}
pub(crate) use with_type;
