//! `TensorProto` ⇄ [`Tensor`], by TensorFlow's rules: `tensor_content` wins over the typed lists;
//! a typed list that is too short repeats its last value (none: zeros), one that is too long is
//! cut. Repetition is paid for before it is written out. Encoding always uses `tensor_content`,
//! by reference for numbers.

use crate::budget::{Exhausted, Meter};
use crate::proto::{
    ResourceHandleProto, TensorProto, VariantTensorDataProto, resource_handle_proto::DtypeAndShape,
};
use crate::scan::{Kind, ScanError, scan};
use crate::{decode_partial_shape, decode_shape, encode_partial_shape, encode_shape};
use bytes::{BufMut as _, Bytes, BytesMut};
use downpour_graph::Status;
use downpour_tensor::{
    Buffer, DType, Element, Encoded, PartialShape, ResourceHandle, Shape, ShapeError, Tensor,
    Variant,
};
use prost::Message as _;
use prost::encoding::{encode_varint, encoded_len_varint};

/// Why a `TensorProto` is no tensor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorProtoError {
    /// A number that is no element type (0, a reference, or unknown).
    #[error("{0} is not the number of an element type")]
    DType(i32),
    /// The dimensions are no shape.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// The bytes do not fill the shape exactly.
    #[error("{actual} bytes are given for {expected} bytes of {dtype}{shape}")]
    Length {
        /// Element type.
        dtype: DType,
        /// Shape.
        shape: Shape,
        /// Bytes of that shape.
        expected: usize,
        /// Bytes that are there.
        actual: usize,
    },
    /// A bool that is neither 0 nor 1.
    #[error("a bool is neither 0 nor 1")]
    Bool,
    /// The list of lengths and contents of strings or handles is broken.
    #[error("the packed list of {0} elements is broken")]
    Packed(DType),
    /// A variant, which only its own process understands.
    #[error("a variant of type '{0}' cannot be received from another process")]
    Variant(String),
    /// Too large.
    #[error(transparent)]
    Exhausted(#[from] Exhausted),
}

impl From<TensorProtoError> for Status {
    fn from(e: TensorProtoError) -> Status {
        match e {
            TensorProtoError::Exhausted(e) => e.into(),
            other => Status::invalid_argument(format!("Cannot parse tensor from proto: {other}")),
        }
    }
}

/// Checks and takes over a tensor. Its elements are windows on the message where that is possible.
pub fn decode_tensor(proto: TensorProto, meter: &mut Meter) -> Result<Tensor, TensorProtoError> {
    decode_inner(proto, meter, 0)
}

/// A tensor inside so many variants.
fn decode_inner(
    proto: TensorProto,
    meter: &mut Meter,
    depth: u32,
) -> Result<Tensor, TensorProtoError> {
    let dtype =
        DType::from_number(proto.dtype).map_err(|_| TensorProtoError::DType(proto.dtype))?;
    let shape = match &proto.tensor_shape {
        Some(shape) => decode_shape(shape)?,
        None => Shape::scalar(),
    };
    let n = shape.num_elements();
    match dtype.size() {
        Some(size) => meter.tensor(n, size)?,
        None => meter.elements(n)?,
    }
    if n == 0 {
        // Whatever values are given, none is meant.
        return Tensor::zeros(dtype, shape.clone()).map_err(|_| length(dtype, &shape, 0));
    }
    match (dtype, dtype.size()) {
        (DType::String, _) => decode_strings(proto, shape, n),
        (DType::Resource, _) => decode_resources(proto, shape, n),
        (DType::Variant, _) => decode_variants(proto, (shape, n), meter, depth),
        (_, Some(size)) if !proto.tensor_content.is_empty() => {
            decode_content(proto.tensor_content, dtype, shape, size)
        }
        _ => {
            let given = proto.tensor_content.len();
            let buffer = typed_values(proto, dtype, n);
            Tensor::from_buffer(dtype, shape.clone(), buffer)
                .map_err(|_| length(dtype, &shape, given))
        }
    }
}

fn length(dtype: DType, shape: &Shape, actual: usize) -> TensorProtoError {
    TensorProtoError::Length {
        dtype,
        shape: shape.clone(),
        expected: shape
            .num_elements()
            .saturating_mul(dtype.size().unwrap_or(1)),
        actual,
    }
}

fn decode_content(
    content: Bytes,
    dtype: DType,
    shape: Shape,
    size: usize,
) -> Result<Tensor, TensorProtoError> {
    let len = content.len();
    if shape.num_elements().checked_mul(size) != Some(len) {
        return Err(length(dtype, &shape, len));
    }
    if dtype == DType::Bool && content.iter().any(|&b| b > 1) {
        return Err(TensorProtoError::Bool);
    }
    // Complex numbers need the alignment of their parts only.
    let align = if dtype.is_complex() { size / 2 } else { size };
    let buffer = Buffer::from_bytes(content, align);
    Tensor::from_buffer(dtype, shape.clone(), buffer).map_err(|_| length(dtype, &shape, len))
}

/// The values of the list that belongs to a numeric type, `n` of them.
fn typed_values(proto: TensorProto, dtype: DType, n: usize) -> Buffer {
    fn ints<T: Element>(values: Vec<i32>, n: usize, narrow: impl Fn(i32) -> T) -> Buffer {
        filled(values.into_iter().take(n).map(narrow).collect(), n)
    }
    // Casts keep the low bits, as TensorFlow's do.
    match dtype {
        DType::Float => filled(proto.float_val, n),
        DType::Double => filled(proto.double_val, n),
        DType::Int64 => filled(proto.int64_val, n),
        DType::UInt32 => filled(proto.uint32_val, n),
        DType::UInt64 => filled(proto.uint64_val, n),
        DType::Bool => filled(proto.bool_val, n),
        DType::Int32 | DType::QInt32 => filled(proto.int_val, n),
        DType::Int16 | DType::QInt16 => ints(proto.int_val, n, |v| v as i16),
        DType::UInt16 | DType::QUInt16 => ints(proto.int_val, n, |v| v as u16),
        DType::Half | DType::BFloat16 => ints(proto.half_val, n, |v| v as u16),
        DType::Complex64 => pairs(proto.scomplex_val, n),
        DType::Complex128 => pairs(proto.dcomplex_val, n),
        DType::Float8E5M2
        | DType::Float8E4M3Fn
        | DType::Float8E4M3Fnuz
        | DType::Float8E4M3B11Fnuz
        | DType::Float8E5M2Fnuz => filled(proto.float8_val.iter().copied().take(n).collect(), n),
        // Everything left is one byte in `int_val`: int8, uint8, quantized, 4 and 2 bits.
        _ => ints(proto.int_val, n, |v| v as u8),
    }
}

/// Cut or repeated to `n` values.
fn filled<T: Element>(mut values: Vec<T>, n: usize) -> Buffer {
    let Some(&last) = values.last() else {
        return Buffer::zeroed(n.saturating_mul(size_of::<T>()));
    };
    values.resize(n, last);
    Buffer::from_vec(values)
}

/// Cut or repeated to `n` complex numbers; a real part without its imaginary one is ignored.
fn pairs<T: Element>(mut parts: Vec<T>, n: usize) -> Buffer {
    let whole = parts.len() & !1;
    parts.truncate(whole.min(n.saturating_mul(2)));
    let &[.., re, im] = parts.as_slice() else {
        return Buffer::zeroed(n.saturating_mul(2 * size_of::<T>()));
    };
    parts.reserve_exact(n.saturating_mul(2) - parts.len());
    while parts.len() < n * 2 {
        parts.extend([re, im]);
    }
    Buffer::from_vec(parts)
}

fn decode_strings(proto: TensorProto, shape: Shape, n: usize) -> Result<Tensor, TensorProtoError> {
    let values = if proto.tensor_content.is_empty() {
        let mut values = proto.string_val;
        let last = values.last().cloned().unwrap_or_default();
        values.resize(n, last);
        values
    } else {
        unpack(proto.tensor_content, n).ok_or(TensorProtoError::Packed(DType::String))?
    };
    Tensor::strings(values, shape.clone()).map_err(|_| length(DType::String, &shape, 0))
}

fn decode_resources(
    proto: TensorProto,
    shape: Shape,
    n: usize,
) -> Result<Tensor, TensorProtoError> {
    let broken = || TensorProtoError::Packed(DType::Resource);
    let mut handles = if proto.tensor_content.is_empty() {
        proto.resource_handle_val
    } else {
        unpack(proto.tensor_content, n)
            .ok_or_else(broken)?
            .into_iter()
            .map(ResourceHandleProto::decode)
            .collect::<Result<_, _>>()
            .map_err(|_| broken())?
    };
    // Unlike values, handles are not repeated.
    handles.resize(n, ResourceHandleProto::default());
    let handles = handles.into_iter().map(decode_handle).collect();
    Tensor::resources(handles, shape.clone()).map_err(|_| length(DType::Resource, &shape, 0))
}

/// `n` lengths as varints, then the contents, with nothing left over.
fn unpack(content: Bytes, n: usize) -> Option<Vec<Bytes>> {
    // Every length takes a byte at least: this bounds the list before it is allocated.
    if n > content.len() {
        return None;
    }
    let mut rest = content.as_ref();
    let mut lengths = Vec::with_capacity(n);
    let mut total = 0usize;
    for _ in 0..n {
        let len = u32::try_from(prost::encoding::decode_varint(&mut rest).ok()?).ok()? as usize;
        total = total.checked_add(len)?;
        lengths.push(len);
    }
    if rest.len() != total {
        return None;
    }
    let mut data = content.slice(content.len() - rest.len()..);
    Some(lengths.into_iter().map(|len| data.split_to(len)).collect())
}

/// Variants that are plain data: lists, optional values, an iterator's state. Others are
/// understood by their own process only.
fn decode_variants(
    proto: TensorProto,
    (shape, n): (Shape, usize),
    meter: &mut Meter,
    depth: u32,
) -> Result<Tensor, TensorProtoError> {
    let broken = || TensorProtoError::Packed(DType::Variant);
    let mut out = Vec::new();
    if proto.tensor_content.is_empty() {
        for value in proto.variant_val {
            out.push(decode_at(value, meter, depth)?);
        }
    } else {
        for value in unpack(proto.tensor_content, n).ok_or_else(broken)? {
            // The look at the whole message saw these only as bytes.
            scan(&value, Kind::Variant, meter).map_err(|e| match e {
                ScanError::Exhausted(e) => TensorProtoError::Exhausted(e),
                ScanError::Malformed => broken(),
            })?;
            let value = VariantTensorDataProto::decode(value).map_err(|_| broken())?;
            out.push(decode_at(value, meter, depth)?);
        }
    }
    if out.len() != n {
        let given = out.len();
        return match given {
            0 => Err(TensorProtoError::Variant(String::new())),
            _ => Err(length(DType::Variant, &shape, given)),
        };
    }
    Tensor::variants(out, shape.clone()).map_err(|_| length(DType::Variant, &shape, n))
}

/// One variant out of its message.
pub fn decode_variant(
    value: VariantTensorDataProto,
    meter: &mut Meter,
) -> Result<Variant, TensorProtoError> {
    decode_at(value, meter, 0)
}

fn decode_at(
    value: VariantTensorDataProto,
    meter: &mut Meter,
    depth: u32,
) -> Result<Variant, TensorProtoError> {
    if !PLAIN.contains(&value.type_name.as_str()) {
        let name = value.type_name.chars().take(100).collect();
        return Err(TensorProtoError::Variant(name));
    }
    // A list may hold lists, each a message of its own.
    meter.depth(depth + 1)?;
    let tensors = value.tensors.into_iter();
    let tensors = tensors.map(|t| decode_inner(t, meter, depth + 1));
    Ok(Variant::new(Encoded {
        type_name: value.type_name,
        metadata: value.metadata,
        tensors: tensors.collect::<Result<_, _>>()?,
    }))
}

/// The types whose values consist of tensors, or are numbers, and nothing else.
const PLAIN: [&str; 9] = [
    "tensorflow::Iterator",
    "tensorflow::TensorList",
    "tensorflow::data::Optional",
    "RaggedTensorVariant",
    "CompositeTensorVariant",
    "bool",
    "double",
    "float",
    "int",
];

/// How deep lists in lists may be to leave the process: TensorFlow's own recursion ends somewhere
/// as well, and ours refuses more than [`Budget::attr_depth`](crate::Budget).
const MAX_NESTED: u32 = 24;

/// A resource handle out of its message.
pub fn decode_handle(proto: ResourceHandleProto) -> ResourceHandle {
    ResourceHandle {
        device: proto.device,
        container: proto.container,
        name: proto.name,
        hash_code: proto.hash_code,
        type_name: proto.maybe_type_name,
        // Only a hint: what cannot be understood is left out, as if it had not been known.
        dtypes_and_shapes: proto
            .dtypes_and_shapes
            .into_iter()
            .filter_map(|d| {
                let shape = match d.shape {
                    Some(shape) => decode_partial_shape(&shape).ok()?,
                    None => PartialShape::from_dims([]),
                };
                Some((DType::from_number(d.dtype).ok()?, shape))
            })
            .collect(),
    }
}

/// The message of a resource handle.
pub fn encode_handle(handle: &ResourceHandle) -> ResourceHandleProto {
    ResourceHandleProto {
        device: handle.device.clone(),
        container: handle.container.clone(),
        name: handle.name.clone(),
        hash_code: handle.hash_code,
        maybe_type_name: handle.type_name.clone(),
        dtypes_and_shapes: handle
            .dtypes_and_shapes
            .iter()
            .map(|(dtype, shape)| DtypeAndShape {
                dtype: dtype.number(),
                shape: Some(encode_partial_shape(shape)),
            })
            .collect(),
    }
}

/// A tensor as TensorFlow's services send it: everything in `tensor_content`, numbers by
/// reference. Only variants that are plain data leave the process.
pub fn encode_tensor(tensor: &Tensor) -> Result<TensorProto, Status> {
    encode_inner(tensor, 0)
}

fn encode_inner(tensor: &Tensor, depth: u32) -> Result<TensorProto, Status> {
    let tensor_content = if let Some(buffer) = tensor.buffer() {
        buffer.to_bytes()
    } else if let Ok(strings) = tensor.as_strings() {
        pack(strings)
    } else if let Ok(handles) = tensor.as_resources() {
        let encoded: Vec<Bytes> = handles
            .iter()
            .map(|h| encode_handle(h).encode_to_vec().into())
            .collect();
        pack(&encoded)
    } else {
        let variants = tensor.as_variants().unwrap_or_default();
        let mut encoded = Vec::with_capacity(variants.len());
        for variant in variants {
            encoded.push(encode_at(variant, depth)?.encode_to_vec().into());
        }
        pack(&encoded)
    };
    Ok(TensorProto {
        dtype: tensor.dtype().number(),
        tensor_shape: Some(encode_shape(tensor.shape())),
        tensor_content,
        ..Default::default()
    })
}

/// The message of one variant, if it may leave the process.
pub fn encode_variant(variant: &Variant) -> Result<VariantTensorDataProto, Status> {
    encode_at(variant, 0)
}

fn encode_at(variant: &Variant, depth: u32) -> Result<VariantTensorDataProto, Status> {
    if depth >= MAX_NESTED {
        return Err(Status::unimplemented(format!(
            "variants that are {MAX_NESTED} levels deep cannot be sent to another process"
        )));
    }
    let Some(encoded) = variant.0.encoded() else {
        return Err(Status::unimplemented(format!(
            "a variant of type '{}' cannot be sent to another process",
            variant.0.type_name()
        )));
    };
    let tensors = encoded.tensors.iter();
    let tensors = tensors.map(|t| encode_inner(t, depth + 1));
    Ok(VariantTensorDataProto {
        type_name: encoded.type_name,
        metadata: encoded.metadata,
        tensors: tensors.collect::<Result<_, _>>()?,
    })
}

fn pack(values: &[Bytes]) -> Bytes {
    let size = values
        .iter()
        .map(|v| v.len() + encoded_len_varint(v.len() as u64))
        .sum();
    let mut out = BytesMut::with_capacity(size);
    for value in values {
        encode_varint(value.len() as u64, &mut out);
    }
    for value in values {
        out.put_slice(value);
    }
    out.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Budget;
    use downpour_graph::Code;
    use downpour_tensor::{Complex32, VariantValue, bf16, f16};

    fn proto(dtype: DType, dims: &[usize]) -> TensorProto {
        TensorProto {
            dtype: dtype.number(),
            tensor_shape: Some(crate::encode_dims(dims)),
            ..Default::default()
        }
    }

    fn decode(proto: TensorProto) -> Result<Tensor, TensorProtoError> {
        decode_tensor(proto, &mut Meter::from(&Budget::default()))
    }

    fn content(dtype: DType, dims: &[usize], bytes: &'static [u8]) -> TensorProto {
        TensorProto {
            tensor_content: Bytes::from_static(bytes),
            ..proto(dtype, dims)
        }
    }

    #[test]
    fn short_lists_repeat_their_last_value_and_long_ones_are_cut() {
        for (given, expected) in [
            (vec![], [0.0; 3]),
            (vec![1.0], [1.0; 3]),
            (vec![1.0, 2.0], [1.0, 2.0, 2.0]),
            (vec![1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0]),
        ] {
            let t = decode(TensorProto {
                float_val: given,
                ..proto(DType::Float, &[3])
            });
            assert_eq!(t.unwrap().as_slice::<f32>().unwrap(), expected);
        }
        let strings = decode(TensorProto {
            string_val: vec!["x".into(), "y".into()],
            ..proto(DType::String, &[3])
        });
        assert_eq!(strings.unwrap().as_strings().unwrap(), ["x", "y", "y"]);
        let none = decode(proto(DType::String, &[2])).unwrap();
        assert_eq!(none.as_strings().unwrap(), ["", ""]);
    }

    #[test]
    fn every_numeric_type_reads_its_own_list() {
        let all = || TensorProto {
            float_val: vec![1.5],
            double_val: vec![2.5],
            int_val: vec![-3],
            int64_val: vec![-4],
            bool_val: vec![true],
            half_val: vec![0x13c00],
            scomplex_val: vec![5.0, 6.0, 7.0],
            dcomplex_val: vec![8.0, 9.0],
            uint32_val: vec![10],
            uint64_val: vec![11],
            float8_val: Bytes::from_static(&[12]),
            ..Default::default()
        };
        let bytes = |dtype: DType| {
            let t = decode(TensorProto {
                dtype: dtype.number(),
                ..all()
            });
            t.unwrap().buffer().unwrap().as_bytes().to_vec()
        };
        assert_eq!(bytes(DType::Float), 1.5f32.to_le_bytes());
        assert_eq!(bytes(DType::Double), 2.5f64.to_le_bytes());
        assert_eq!(bytes(DType::Int64), (-4i64).to_le_bytes());
        assert_eq!(bytes(DType::UInt32), 10u32.to_le_bytes());
        assert_eq!(bytes(DType::UInt64), 11u64.to_le_bytes());
        assert_eq!(bytes(DType::Bool), [1]);
        for dtype in [DType::Int32, DType::QInt32] {
            assert_eq!(bytes(dtype), (-3i32).to_le_bytes());
        }
        for dtype in [DType::Int16, DType::QInt16, DType::UInt16, DType::QUInt16] {
            assert_eq!(bytes(dtype), (-3i16).to_le_bytes());
        }
        for dtype in [
            DType::Int8,
            DType::UInt8,
            DType::QInt8,
            DType::QUInt8,
            DType::Int4,
            DType::UInt4,
            DType::Int2,
            DType::UInt2,
        ] {
            assert_eq!(bytes(dtype), (-3i8).to_le_bytes(), "{dtype}");
        }
        // Bits above the sixteenth are dropped.
        assert_eq!(bytes(DType::Half), 0x3c00u16.to_le_bytes());
        assert_eq!(bytes(DType::BFloat16), 0x3c00u16.to_le_bytes());
        assert_eq!(
            bytes(DType::Complex64),
            [5f32.to_le_bytes(), 6f32.to_le_bytes()].concat()
        );
        assert_eq!(
            bytes(DType::Complex128),
            [8f64.to_le_bytes(), 9f64.to_le_bytes()].concat()
        );
        for n in 24..=28 {
            assert_eq!(bytes(DType::from_number(n).unwrap()), [12]);
        }
    }

    #[test]
    fn complex_numbers_repeat_whole() {
        let of = |parts: &[f32]| {
            let t = decode(TensorProto {
                scomplex_val: parts.to_vec(),
                ..proto(DType::Complex64, &[3])
            });
            t.unwrap().as_slice::<Complex32>().unwrap().to_vec()
        };
        let c = Complex32::new;
        assert_eq!(of(&[1., 2., 3., 4.]), [c(1., 2.), c(3., 4.), c(3., 4.)]);
        assert_eq!(of(&[1., 2., 3.]), [c(1., 2.); 3]);
        assert_eq!(of(&[1.]), [c(0., 0.); 3]);
        assert_eq!(of(&[1.; 9]), [c(1., 1.); 3]);
    }

    #[test]
    fn content_must_fill_the_shape_exactly_and_wins_over_lists() {
        for bytes in [&b"1234"[..], b"123456789abc", b"1234567"] {
            let e = decode(content(DType::Float, &[2], bytes)).unwrap_err();
            assert!(matches!(e, TensorProtoError::Length { expected: 8, .. }));
        }
        let both = decode(TensorProto {
            float_val: vec![7.0],
            ..content(DType::Float, &[1], &[0, 0, 0, 0])
        });
        assert_eq!(both.unwrap().as_slice::<f32>().unwrap(), [0.0]);
        // No element is meant, so nothing is looked at.
        assert!(decode(content(DType::Float, &[0], b"1234")).is_ok());
    }

    #[test]
    fn bools_are_zero_or_one() {
        let t = decode(content(DType::Bool, &[2], &[1, 0])).unwrap();
        assert_eq!(t.as_slice::<bool>().unwrap(), [true, false]);
        assert_eq!(
            decode(content(DType::Bool, &[2], &[2, 0])).unwrap_err(),
            TensorProtoError::Bool
        );
    }

    #[test]
    fn aligned_content_is_not_copied() {
        let memory = Buffer::zeroed(64).to_bytes();
        let t = decode(TensorProto {
            tensor_content: memory.clone(),
            ..proto(DType::Double, &[8])
        })
        .unwrap();
        assert_eq!(t.buffer().unwrap().as_bytes().as_ptr(), memory.as_ptr());
        let odd = memory.slice(1..9);
        let t = decode(TensorProto {
            tensor_content: odd,
            ..proto(DType::Double, &[])
        });
        assert_eq!(t.unwrap().as_slice::<f64>().unwrap(), [0.0]);
    }

    #[test]
    fn packed_strings_must_fit_exactly() {
        let t = decode(content(DType::String, &[3], b"\x01\x00\x03a\xff\x00z")).unwrap();
        assert_eq!(t.as_strings().unwrap(), [&b"a"[..], b"", b"\xff\x00z"]);
        for bytes in [
            &b"\x01\x00\x03a\xff\x00"[..],
            b"\x01\x00\x03a\xff\x00zz",
            b"\x01\x00\xff\xff\xff\xff\xff\xff\xff",
            b"\x01",
            b"\xff\xff\xff\xff\x7f\x00\x00",
        ] {
            assert_eq!(
                decode(content(DType::String, &[3], bytes)).unwrap_err(),
                TensorProtoError::Packed(DType::String)
            );
        }
    }

    #[test]
    fn repetition_is_paid_for_before_it_is_written_out() {
        let bomb = decode(TensorProto {
            float_val: vec![1.0],
            ..proto(DType::Float, &[1 << 40])
        });
        assert!(matches!(bomb, Err(TensorProtoError::Exhausted(_))));
        assert_eq!(
            Status::from(bomb.unwrap_err()).code,
            Code::ResourceExhausted
        );
        for dtype in [DType::String, DType::Resource, DType::Variant] {
            let bomb = decode(proto(dtype, &[1 << 32]));
            assert!(matches!(bomb, Err(TensorProtoError::Exhausted(_))));
        }
        let mut meter = Meter::from(&Budget {
            tensor_bytes: 1000,
            ..Budget::default()
        });
        let legal = || proto(DType::Float, &[200]);
        assert!(decode_tensor(legal(), &mut meter).is_ok());
        assert!(decode_tensor(legal(), &mut meter).is_err());
    }

    #[test]
    fn element_types_and_shapes_are_checked() {
        for number in [0, -1, 34, 99, 101, i32::MAX] {
            let e = decode(TensorProto {
                dtype: number,
                ..Default::default()
            });
            assert_eq!(e.unwrap_err(), TensorProtoError::DType(number));
        }
        let mut negative = proto(DType::Float, &[1]);
        negative.tensor_shape.as_mut().unwrap().dim[0].size = -1;
        assert!(matches!(
            decode(negative),
            Err(TensorProtoError::Shape(ShapeError::Negative(0, -1)))
        ));
        // Without a shape it is a scalar.
        let scalar = decode(TensorProto {
            tensor_shape: None,
            int_val: vec![3],
            ..proto(DType::Int32, &[])
        });
        assert_eq!(scalar.unwrap().scalar_value::<i32>().unwrap(), 3);
    }

    #[test]
    fn handles_travel_packed_or_listed_and_are_not_repeated() {
        let handle = ResourceHandle {
            device: "/job:ps".into(),
            container: "c".into(),
            name: "v".into(),
            hash_code: 7,
            type_name: "Var".into(),
            dtypes_and_shapes: vec![(DType::Float, PartialShape::from_dims([None, Some(2)]))],
        };
        let t = Tensor::resources(vec![handle.clone(), Default::default()], [2]).unwrap();
        let encoded = encode_tensor(&t).unwrap();
        assert!(!encoded.tensor_content.is_empty());
        let back = decode(encoded).unwrap();
        assert_eq!(back.as_resources().unwrap(), t.as_resources().unwrap());

        let mut listed = encode_handle(&handle);
        listed.dtypes_and_shapes.push(DtypeAndShape {
            dtype: 99,
            shape: None,
        });
        let back = decode(TensorProto {
            resource_handle_val: vec![listed],
            ..proto(DType::Resource, &[2])
        })
        .unwrap();
        assert_eq!(back.as_resources().unwrap(), t.as_resources().unwrap());

        for bytes in [&b"\x01"[..], b"\x01\xff"] {
            assert_eq!(
                decode(content(DType::Resource, &[1], bytes)).unwrap_err(),
                TensorProtoError::Packed(DType::Resource)
            );
        }
    }

    #[derive(Debug)]
    struct Opaque;
    impl VariantValue for Opaque {
        fn type_name(&self) -> &str {
            "tensorflow::TensorMap"
        }
        fn as_any(&self) -> &dyn std::any::Any {
            self
        }
    }

    #[test]
    fn variants_stay_in_their_process() {
        let e = encode_tensor(&Tensor::variant(Variant::new(Opaque))).unwrap_err();
        assert_eq!(e.code, Code::Unimplemented);
        assert!(e.message.contains("'tensorflow::TensorMap'"));
        let e = decode(TensorProto {
            variant_val: vec![VariantTensorDataProto {
                type_name: "tensorflow::TensorMap".into(),
                ..Default::default()
            }],
            ..proto(DType::Variant, &[])
        });
        let e = Status::from(e.unwrap_err());
        assert_eq!(e.code, Code::InvalidArgument);
        assert!(e.message.contains("'tensorflow::TensorMap'"));
        let empty = decode(proto(DType::Variant, &[0])).unwrap();
        assert_eq!(encode_tensor(&empty).unwrap().tensor_content, "");
    }

    /// What TensorFlow 2.21's `tf.io.serialize_tensor` makes of a list of three reserved vectors
    /// of two floats, of which the second is set.
    const LIST: &str = "081512002241400a1674656e736f72666c6f773a3a54656e736f724c697374121202000201ffffffffffffffffff01120208021a1208011204120208022a080000803f00000040";

    fn bytes(hex: &str) -> Bytes {
        let digits = hex.as_bytes().chunks(2);
        let byte = |d: &[u8]| u8::from_str_radix(std::str::from_utf8(d).unwrap(), 16).unwrap();
        digits.map(byte).collect::<Vec<u8>>().into()
    }

    #[test]
    fn lists_come_and_go_as_tensorflow_writes_them() {
        let list = decode(TensorProto::decode(bytes(LIST)).unwrap()).unwrap();
        let variants = list.as_variants().unwrap();
        let encoded: &Encoded = variants[0].downcast().unwrap();
        assert_eq!(encoded.type_name, "tensorflow::TensorList");
        assert_eq!(encoded.metadata[..4], [2, 0, 2, 1]);
        assert_eq!(encoded.tensors[0].as_slice::<f32>().unwrap(), [1.0, 2.0]);
        // Inside, values are bytes rather than numbers; the rest is the same to the byte.
        let again = encode_tensor(&list).unwrap().encode_to_vec();
        let want = bytes(LIST);
        assert_eq!(again.len(), want.len());
        assert_eq!(again[..want.len() - 10], want[..want.len() - 10]);
        let same = decode(TensorProto::decode(again.as_slice()).unwrap()).unwrap();
        let encoded: &Encoded = same.as_variants().unwrap()[0].downcast().unwrap();
        assert_eq!(encoded.tensors[0].as_slice::<f32>().unwrap(), [1.0, 2.0]);
    }

    #[test]
    fn lists_in_lists_are_followed_only_so_deep() {
        let nested = |levels: u32| {
            let mut inner = Tensor::scalar(1i32);
            for _ in 0..levels {
                inner = Tensor::variant(Variant::new(Encoded {
                    type_name: "tensorflow::TensorList".into(),
                    metadata: Bytes::new(),
                    tensors: vec![inner],
                }));
            }
            inner
        };
        let fine = encode_tensor(&nested(20)).unwrap();
        assert!(decode(fine).is_ok());
        let e = encode_tensor(&nested(30)).unwrap_err();
        assert_eq!(e.code, Code::Unimplemented);
        // A peer that sends more, one message inside the other.
        let mut hostile = TensorProto::default();
        for _ in 0..40 {
            let value = VariantTensorDataProto {
                type_name: "tensorflow::TensorList".into(),
                tensors: vec![hostile],
                ..Default::default()
            };
            hostile = TensorProto {
                tensor_content: pack(&[value.encode_to_vec().into()]),
                ..proto(DType::Variant, &[])
            };
        }
        assert!(matches!(
            decode(hostile).unwrap_err(),
            TensorProtoError::Exhausted(_)
        ));
        let broken = TensorProto {
            tensor_content: Bytes::from_static(&[2, 0xff, 0xff]),
            ..proto(DType::Variant, &[])
        };
        assert_eq!(
            decode(broken).unwrap_err(),
            TensorProtoError::Packed(DType::Variant)
        );
    }

    #[test]
    fn tensors_survive_the_round_trip_by_reference() {
        let tensors = [
            Tensor::vector(vec![1.0f32, f32::NAN]),
            Tensor::scalar(1.0f64),
            Tensor::from_vec(vec![1i32, 2, 3, 4], [2, 2]).unwrap(),
            Tensor::vector(vec![true, false]),
            Tensor::vector(vec![f16::from_f32(1.5)]),
            Tensor::vector(vec![bf16::from_f32(1.5)]),
            Tensor::scalar(Complex32::new(1.0, -1.0)),
            Tensor::from_buffer(DType::Int4, [2], Buffer::copy_from(&[1, 7])).unwrap(),
            Tensor::from_buffer(DType::Float8E5M2, [1], Buffer::copy_from(&[9])).unwrap(),
            Tensor::zeros(DType::Float, [3, 0]).unwrap(),
        ];
        for t in tensors {
            let encoded = encode_tensor(&t).unwrap();
            let bytes = t.buffer().unwrap().as_bytes();
            if !bytes.is_empty() {
                assert_eq!(encoded.tensor_content.as_ptr(), bytes.as_ptr());
            }
            let back = decode(encoded).unwrap();
            assert_eq!((back.dtype(), back.shape()), (t.dtype(), t.shape()));
            assert_eq!(back.buffer().unwrap().as_bytes(), bytes);
        }
    }
}
