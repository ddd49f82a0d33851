//! Serialized `TensorProto`s outside of messages: what `SerializeSparse` writes into strings and
//! what files keep. Parsing spends at most what the caller allows.

use bytes::Bytes;
use downpour_graph::Status;
use downpour_tensor::Tensor;
use downpour_wire::MessageBytes as _;
use downpour_wire::proto::TensorProto;
use downpour_wire::{Budget, Meter, decode_tensor, encode_tensor};

/// Why bytes are no tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParseError {
    /// They are no `TensorProto`.
    Proto,
    /// The message's parts do not fit together, or it is too large.
    Tensor,
}

/// The tensor as TensorFlow's `AsProtoTensorContent` writes it. Variants have no such form.
pub fn serialize(tensor: &Tensor) -> Result<Bytes, Status> {
    Ok(encode_tensor(tensor)?.to_bytes().into())
}

/// The tensor as `SerializeTensor` writes it: as [`serialize`], but strings stand in a field of
/// their own.
pub fn serialize_fields(tensor: &Tensor) -> Result<Bytes, Status> {
    let mut proto = encode_tensor(tensor)?;
    if let Ok(strings) = tensor.as_strings() {
        proto.tensor_content = Bytes::new();
        proto.string_val = strings.to_vec();
    }
    Ok(proto.to_bytes().into())
}

/// The tensor in a serialized `TensorProto`, if it takes at most `max_bytes`.
pub fn parse(bytes: &Bytes, max_bytes: u64) -> Result<Tensor, ParseError> {
    let proto = TensorProto::from_bytes(bytes.clone()).map_err(|_| ParseError::Proto)?;
    decode(proto, max_bytes)
}

/// The tensor in a decoded message, if it takes at most `max_bytes`.
pub fn decode(proto: TensorProto, max_bytes: u64) -> Result<Tensor, ParseError> {
    let budget = Budget {
        tensor_bytes: max_bytes,
        ..Budget::default()
    };
    decode_tensor(proto, &mut Meter::from(&budget)).map_err(|_| ParseError::Tensor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_survive_the_trip_within_the_budget() {
        let t = Tensor::from_vec(vec![1.5f32, -2.0], [2, 1]).unwrap();
        let bytes = serialize(&t).unwrap();
        // A leading dtype, then the shape, then eight bytes of content.
        assert_eq!(bytes[..2], [8, 1]);
        let back = parse(&bytes, 8).unwrap();
        assert_eq!(back.dims(), [2, 1]);
        assert_eq!(back.as_slice::<f32>().unwrap(), [1.5, -2.0]);
        assert_eq!(parse(&bytes, 7).unwrap_err(), ParseError::Tensor);
        assert_eq!(
            parse(&Bytes::from_static(b"a"), 99).unwrap_err(),
            ParseError::Proto
        );
        assert_eq!(parse(&Bytes::new(), 99).unwrap_err(), ParseError::Tensor);
    }
}
