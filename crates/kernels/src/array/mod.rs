//! Ops that make, reshape, cut, join, move and convert arrays. Pure data movement works on units
//! (`units.rs`), whatever the element type, mostly through one strided copy (`strided.rs`).

mod bins;
mod cast;
mod choose;
mod concat;
mod diag;
mod edit_distance;
mod fill;
mod gather;
mod inplace;
mod pad;
mod partition;
mod patches;
mod reverse;
mod scatter;
mod shapes;
mod slice;
mod slice_spec;
mod space;
mod split;
mod strided;
mod tile;
mod transpose;
mod unique;
mod units;

pub(crate) use gather::{BadIndices, Tuples, gather_rows, gather_slices, position};
pub(crate) use slice::{STRIDED, overwrite_slice};
pub(crate) use slice_spec::{Masks, SliceSpec};

use downpour_runtime::Registry;
use downpour_tensor::DType;

/// Numbers and bool.
pub(crate) const COMMON: &[DType] = &[
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
];

/// Numbers, bool and string.
pub(crate) const COMMON_AND_STRING: &[DType] = &[
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
];

/// Every type with a meaning to CPU kernels: numbers, bool, string and handles.
const ALL: &[DType] = &[
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
];

pub(crate) fn register(registry: &mut Registry) {
    bins::register(registry);
    cast::register(registry);
    choose::register(registry);
    concat::register(registry);
    diag::register(registry);
    edit_distance::register(registry);
    fill::register(registry);
    gather::register(registry);
    inplace::register(registry);
    pad::register(registry);
    partition::register(registry);
    patches::register(registry);
    reverse::register(registry);
    scatter::register(registry);
    shapes::register(registry);
    slice::register(registry);
    space::register(registry);
    split::register(registry);
    tile::register(registry);
    transpose::register(registry);
    unique::register(registry);
}
