//! The Rust types that may stand in a tensor's plain bytes.
#![allow(
    unsafe_code,
    reason = "an unsafe marker trait: implementors are plain old data"
)]

use crate::DType;
use half::{bf16, f16};
use num_complex::{Complex32, Complex64};

/// A plain element: fixed size, no padding, no destructor.
///
/// # Safety
/// `DTYPE.size()` must be `size_of::<Self>()`, and every buffer of that type that
/// [`crate::Tensor`] admits must hold valid values of `Self`: any bits for numbers, 0 or 1 for
/// `bool` (which `Tensor::from_buffer` enforces).
pub unsafe trait Element: Copy + Default + PartialEq + Send + Sync + 'static {
    /// The element type this Rust type stores.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($t:ty => $d:ident),* $(,)?) => {
        // SAFETY: each is plain old data of the size the table in `dtype.rs` gives, as the test
        // below checks; `bool` bytes are normalised when a tensor is made from foreign bytes.
        $(unsafe impl Element for $t { const DTYPE: DType = DType::$d; })*
        #[cfg(test)]
        #[test]
        fn sizes_agree_with_the_table() {
            $(assert_eq!(Some(size_of::<$t>()), DType::$d.size());)*
        }
    };
}

elements! {
    f32 => Float, f64 => Double, f16 => Half, bf16 => BFloat16,
    i8 => Int8, i16 => Int16, i32 => Int32, i64 => Int64,
    u8 => UInt8, u16 => UInt16, u32 => UInt32, u64 => UInt64,
    bool => Bool, Complex32 => Complex64, Complex64 => Complex128,
}
