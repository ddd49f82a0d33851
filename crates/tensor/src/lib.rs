//! The values a graph computes: element types, shapes, buffers, tensors.
//!
//! [`Tensor`] is the principal type. It is cheap to clone (a reference count) and copy-on-write:
//! [`Tensor::make_mut`] writes in place when nobody else holds the buffer, else on a fresh copy.
//! Nothing here computes, waits, logs or reads a file.

pub mod account;
mod allocator;
mod buffer;
mod code_pages;
mod display;
mod dtype;
mod element;
mod shape;
pub mod shared;
mod tensor;
mod variant;

pub use allocator::TensorMemory;
pub use buffer::{Buffer, BufferWriter};
pub use code_pages::release_code_pages;
pub use dtype::{DType, UnknownDType};
pub use element::Element;
pub use half::{bf16, f16};
pub use num_complex::{Complex32, Complex64};
pub use shape::{Dims, MAX_RANK, PartialShape, Shape, ShapeError};
pub use tensor::{Tensor, TensorError};
pub use variant::{Encoded, ResourceHandle, Variant, VariantValue};
