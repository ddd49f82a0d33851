//! What TensorFlow writes beside the tensors of a `TensorList`: which elements are not there, and
//! what all agree with. Numbers as varints, then the shape as its own message.

use crate::proto::TensorShapeProto;
use crate::{decode_partial_shape, encode_partial_shape};
use bytes::Bytes;
use downpour_tensor::{DType, PartialShape};
use prost::Message as _;
use prost::encoding::{decode_varint, encode_varint};

/// A list without its tensors.
#[derive(Clone, Debug, PartialEq)]
pub struct ListMetadata {
    /// Positions of elements that are only reserved, in order.
    pub missing: Vec<usize>,
    /// Type of the elements.
    pub dtype: DType,
    /// Most elements there may be; -1 if there is no limit.
    pub max: i64,
    /// What every element's shape agrees with.
    pub shape: PartialShape,
}

impl ListMetadata {
    /// As TensorFlow writes it.
    pub fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        encode_varint(self.missing.len() as u64, &mut out);
        for index in &self.missing {
            encode_varint(*index as u64, &mut out);
        }
        encode_varint(self.dtype.number() as u64, &mut out);
        encode_varint(self.max as u64, &mut out);
        out.extend(encode_partial_shape(&self.shape).encode_to_vec());
        out.into()
    }

    /// Reads what [`ListMetadata::encode`] or TensorFlow wrote.
    pub fn decode(bytes: &[u8]) -> Option<ListMetadata> {
        let mut rest = bytes;
        let count = usize::try_from(decode_varint(&mut rest).ok()?).ok()?;
        // Each takes a byte at least: this bounds the list before it is allocated.
        if count > rest.len() {
            return None;
        }
        let mut missing = Vec::with_capacity(count);
        for _ in 0..count {
            missing.push(usize::try_from(decode_varint(&mut rest).ok()?).ok()?);
        }
        let dtype = i32::try_from(decode_varint(&mut rest).ok()?).ok()?;
        let dtype = DType::from_number(dtype).ok()?;
        let max = decode_varint(&mut rest).ok()? as i64;
        let shape = TensorShapeProto::decode(rest).ok()?;
        Some(ListMetadata {
            missing,
            dtype,
            max,
            shape: decode_partial_shape(&shape).ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_what_tensorflow_writes() {
        let lists = [
            (
                ListMetadata {
                    missing: vec![0, 2],
                    dtype: DType::Float,
                    max: -1,
                    shape: PartialShape::from_dims([Some(2)]),
                },
                "02000201ffffffffffffffffff0112020802",
            ),
            (
                ListMetadata {
                    missing: vec![],
                    dtype: DType::String,
                    max: -1,
                    shape: PartialShape::unknown(),
                },
                "0007ffffffffffffffffff011801",
            ),
            (
                ListMetadata {
                    missing: vec![],
                    dtype: DType::Int64,
                    max: 5,
                    shape: PartialShape::from_dims([None, Some(3)]),
                },
                "000905120b08ffffffffffffffffff0112020803",
            ),
        ];
        for (list, hex) in lists {
            let bytes = list.encode();
            let shown: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
            assert_eq!(shown, hex);
            assert_eq!(ListMetadata::decode(&bytes), Some(list));
        }
        for broken in [&[][..], &[9, 1], &[0], &[0, 1], &[0, 0, 1], &[0xff; 20]] {
            assert_eq!(ListMetadata::decode(broken), None, "{broken:?}");
        }
    }
}
