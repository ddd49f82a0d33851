//! Element types with TensorFlow's numbers, names and sizes. Reference types (number + 100) are
//! not listed: whether a value travels by reference is a property of an edge, not of a tensor.

use std::fmt;

/// An element type, numbered as in TensorFlow's `DataType`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[allow(
    missing_docs,
    reason = "each variant is the TensorFlow type of the same name"
)]
pub enum DType {
    Float = 1,
    Double = 2,
    Int32 = 3,
    UInt8 = 4,
    Int16 = 5,
    Int8 = 6,
    String = 7,
    Complex64 = 8,
    Int64 = 9,
    Bool = 10,
    QInt8 = 11,
    QUInt8 = 12,
    QInt32 = 13,
    BFloat16 = 14,
    QInt16 = 15,
    QUInt16 = 16,
    UInt16 = 17,
    Complex128 = 18,
    Half = 19,
    Resource = 20,
    Variant = 21,
    UInt32 = 22,
    UInt64 = 23,
    Float8E5M2 = 24,
    Float8E4M3Fn = 25,
    Float8E4M3Fnuz = 26,
    Float8E4M3B11Fnuz = 27,
    Float8E5M2Fnuz = 28,
    Int4 = 29,
    UInt4 = 30,
    Int2 = 31,
    UInt2 = 32,
    Float4E2M1Fn = 33,
}

/// A number or name that is no element type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown data type {0}")]
pub struct UnknownDType(pub String);

/// Every type with its lower-case name, its `DT_` name and its element size (0: not plain bytes).
const TABLE: [(DType, &str, &str, usize); 33] = [
    (DType::Float, "float", "DT_FLOAT", 4),
    (DType::Double, "double", "DT_DOUBLE", 8),
    (DType::Int32, "int32", "DT_INT32", 4),
    (DType::UInt8, "uint8", "DT_UINT8", 1),
    (DType::Int16, "int16", "DT_INT16", 2),
    (DType::Int8, "int8", "DT_INT8", 1),
    (DType::String, "string", "DT_STRING", 0),
    (DType::Complex64, "complex64", "DT_COMPLEX64", 8),
    (DType::Int64, "int64", "DT_INT64", 8),
    (DType::Bool, "bool", "DT_BOOL", 1),
    (DType::QInt8, "qint8", "DT_QINT8", 1),
    (DType::QUInt8, "quint8", "DT_QUINT8", 1),
    (DType::QInt32, "qint32", "DT_QINT32", 4),
    (DType::BFloat16, "bfloat16", "DT_BFLOAT16", 2),
    (DType::QInt16, "qint16", "DT_QINT16", 2),
    (DType::QUInt16, "quint16", "DT_QUINT16", 2),
    (DType::UInt16, "uint16", "DT_UINT16", 2),
    (DType::Complex128, "complex128", "DT_COMPLEX128", 16),
    (DType::Half, "half", "DT_HALF", 2),
    (DType::Resource, "resource", "DT_RESOURCE", 0),
    (DType::Variant, "variant", "DT_VARIANT", 0),
    (DType::UInt32, "uint32", "DT_UINT32", 4),
    (DType::UInt64, "uint64", "DT_UINT64", 8),
    (DType::Float8E5M2, "float8_e5m2", "DT_FLOAT8_E5M2", 1),
    (DType::Float8E4M3Fn, "float8_e4m3fn", "DT_FLOAT8_E4M3FN", 1),
    (
        DType::Float8E4M3Fnuz,
        "float8_e4m3fnuz",
        "DT_FLOAT8_E4M3FNUZ",
        1,
    ),
    (
        DType::Float8E4M3B11Fnuz,
        "float8_e4m3b11fnuz",
        "DT_FLOAT8_E4M3B11FNUZ",
        1,
    ),
    (
        DType::Float8E5M2Fnuz,
        "float8_e5m2fnuz",
        "DT_FLOAT8_E5M2FNUZ",
        1,
    ),
    (DType::Int4, "int4", "DT_INT4", 1),
    (DType::UInt4, "uint4", "DT_UINT4", 1),
    (DType::Int2, "int2", "DT_INT2", 1),
    (DType::UInt2, "uint2", "DT_UINT2", 1),
    (DType::Float4E2M1Fn, "float4_e2m1fn", "DT_FLOAT4_E2M1FN", 1),
];

impl DType {
    /// Every element type, in TensorFlow's numeric order.
    pub fn all() -> impl Iterator<Item = DType> {
        TABLE.iter().map(|row| row.0)
    }

    /// Returns the type with TensorFlow's number `number`; references and 0 have none.
    pub fn from_number(number: i32) -> Result<DType, UnknownDType> {
        usize::try_from(number)
            .ok()
            .and_then(|n| n.checked_sub(1))
            .and_then(|n| TABLE.get(n))
            .map(|row| row.0)
            .ok_or_else(|| UnknownDType(number.to_string()))
    }

    /// Returns the type called `name` in op signatures (`float`, `int64`, …).
    pub fn from_name(name: &str) -> Result<DType, UnknownDType> {
        TABLE
            .iter()
            .find(|row| row.1 == name)
            .map(|row| row.0)
            .ok_or_else(|| UnknownDType(name.to_owned()))
    }

    fn row(self) -> &'static (DType, &'static str, &'static str, usize) {
        &TABLE[self as usize - 1]
    }

    /// TensorFlow's number.
    pub fn number(self) -> i32 {
        self as i32
    }

    /// TensorFlow's lower-case name, as in `float` or `int64`.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// TensorFlow's enum name, as in `DT_FLOAT`.
    pub fn enum_name(self) -> &'static str {
        self.row().2
    }

    /// Bytes of one element, or `None` for strings, resources and variants.
    pub fn size(self) -> Option<usize> {
        match self.row().3 {
            0 => None,
            n => Some(n),
        }
    }

    /// Real floating point of any width.
    pub fn is_floating(self) -> bool {
        matches!(
            self,
            Self::Float | Self::Double | Self::Half | Self::BFloat16
        ) || (Self::Float8E5M2..=Self::Float8E5M2Fnuz).contains(&self)
    }

    /// Signed or unsigned integer (not bool, not quantized).
    pub fn is_integer(self) -> bool {
        matches!(
            self,
            Self::Int8
                | Self::Int16
                | Self::Int32
                | Self::Int64
                | Self::UInt8
                | Self::UInt16
                | Self::UInt32
                | Self::UInt64
                | Self::Int4
                | Self::UInt4
                | Self::Int2
                | Self::UInt2
        )
    }

    /// Complex of either width.
    pub fn is_complex(self) -> bool {
        matches!(self, Self::Complex64 | Self::Complex128)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.enum_name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_names_and_rows_agree() {
        for (i, row) in TABLE.iter().enumerate() {
            assert_eq!(row.0 as usize, i + 1);
            assert_eq!(DType::from_number(i as i32 + 1), Ok(row.0));
            assert_eq!(DType::from_name(row.1), Ok(row.0));
        }
        for bad in [0, -1, 34, 99, 101, i32::MIN, i32::MAX] {
            assert!(DType::from_number(bad).is_err());
        }
    }
}
