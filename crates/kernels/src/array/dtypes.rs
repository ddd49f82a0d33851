//! Which element types TensorFlow's CPU kernels of this family take.

use downpour_tensor::DType;

pub(crate) use crate::types::COMMON;

/// Real numbers.
const REALS: &[DType] = COMMON.split_at(12).0;

const QUANTIZED: &[DType] = &[
    DType::QInt8,
    DType::QUInt8,
    DType::QInt32,
    DType::QInt16,
    DType::QUInt16,
];
const FLOAT8: &[DType] = &[DType::Float8E5M2, DType::Float8E4M3Fn];
const INT4: &[DType] = &[DType::Int4, DType::UInt4];

/// Numbers, bool and string.
pub(crate) const COMMON_AND_STRING: &[DType] = &join::<16>(&[COMMON, &[DType::String]]);

/// Numbers, bool, string and handles.
pub(crate) const ALL: &[DType] =
    &join::<18>(&[COMMON_AND_STRING, &[DType::Resource, DType::Variant]]);

/// `Transpose`, `Unpack`, `BroadcastTo`.
pub(super) const MOVABLE: &[DType] = &join::<20>(&[ALL, FLOAT8]);

/// `Concat`.
pub(super) const CONCAT: &[DType] = &join::<23>(&[COMMON_AND_STRING, QUANTIZED, FLOAT8]);

/// `Pack`, `Gather`.
pub(super) const PACK: &[DType] = &join::<25>(&[ALL, QUANTIZED, FLOAT8]);

/// `Split`.
pub(super) const SPLIT: &[DType] = &join::<23>(&[ALL, &[DType::QUInt8], INT4, FLOAT8]);

/// `Slice`.
pub(super) const SLICE: &[DType] =
    &join::<21>(&[COMMON_AND_STRING, QUANTIZED.split_at(3).0, FLOAT8]);

/// `StridedSlice`, `GatherNd`.
pub(crate) const STRIDED: &[DType] = &join::<23>(&[ALL, QUANTIZED.split_at(3).0, FLOAT8]);

/// `Pad`, `TensorArrayConcat`.
pub(crate) const PAD: &[DType] = &join::<19>(&[COMMON_AND_STRING, QUANTIZED.split_at(3).0]);

/// `Fill`.
pub(super) const FILL: &[DType] = &join::<25>(&[ALL, QUANTIZED, INT4]);

/// `SpaceToDepth`.
pub(super) const SPACE_TO_DEPTH: &[DType] = &join::<19>(&[ALL, &[DType::QInt8]]);

/// `DynamicStitch`, `TensorArrayGather`.
pub(crate) const STITCH: &[DType] = &join::<20>(&[
    COMMON_AND_STRING,
    &[DType::Variant],
    QUANTIZED.split_at(3).0,
]);

/// `TensorListStack`.
pub(crate) const TENSOR_LIST: &[DType] =
    &join::<22>(&[COMMON_AND_STRING, &[DType::Variant], QUANTIZED]);

/// `Unique`.
pub(super) const UNIQUE: &[DType] = &join::<14>(&[REALS, &[DType::Bool, DType::String]]);

/// `ListDiff`.
pub(super) const LIST_DIFF: &[DType] = &join::<13>(&[REALS, &[DType::String]]);

/// `Range`.
pub(super) const RANGE: &[DType] = &[
    DType::Half,
    DType::BFloat16,
    DType::Float,
    DType::Double,
    DType::Int32,
    DType::Int64,
];

/// `Diag`.
pub(super) const DIAG: &[DType] = &[
    DType::Half,
    DType::Float,
    DType::Double,
    DType::Int32,
    DType::Int64,
    DType::Complex64,
    DType::Complex128,
];

/// Lists one after the other; `N` is their total length, which the compiler checks.
const fn join<const N: usize>(lists: &[&[DType]]) -> [DType; N] {
    let mut out = [DType::Float; N];
    let (mut list, mut at) = (0, 0);
    while list < lists.len() {
        let mut i = 0;
        while i < lists[list].len() {
            out[at] = lists[list][i];
            at += 1;
            i += 1;
        }
        list += 1;
    }
    assert!(at == N, "the lengths do not add up");
    out
}
