//! Messages as the bytes of files and tensors: how other crates read and write them without protobuf's library.
//!
//! What is read so comes from files, whose readers bound their size, and is a message of few parts; requests go through
//! [`crate::codec`], and graphs and tensors through the decoders that pay from a budget.

use bytes::Buf;
use prost::Message;
use prost::encoding::{DecodeContext, WireType, decode_key, encode_key, encode_varint, skip_field};
use std::fmt;

/// A message of [`crate::proto`] or [`crate::control`] as bytes.
pub trait MessageBytes: Sized {
    /// The message's bytes.
    fn to_bytes(&self) -> Vec<u8>;

    /// How many bytes [`MessageBytes::to_bytes`] gives.
    fn byte_len(&self) -> usize;

    /// Reads a message. From `Bytes`, fields of bytes are windows on them.
    fn from_bytes(bytes: impl Buf) -> Result<Self, NoMessage>;
}

/// Bytes that are no such message.
#[derive(Clone, Debug)]
pub struct NoMessage(prost::DecodeError);

impl fmt::Display for NoMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<M: Message + Default> MessageBytes for M {
    fn to_bytes(&self) -> Vec<u8> {
        self.encode_to_vec()
    }

    fn byte_len(&self) -> usize {
        self.encoded_len()
    }

    fn from_bytes(bytes: impl Buf) -> Result<M, NoMessage> {
        M::decode(bytes).map_err(NoMessage)
    }
}

/// Appends the field `number` with these bytes, as a message's encoder would.
pub fn put_bytes(number: u32, bytes: &[u8], out: &mut Vec<u8>) {
    encode_key(number, WireType::LengthDelimited, out);
    encode_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

/// The next field of a message: its number, and its bytes with its key, which `rest` then lacks.
pub fn take_field<'a>(rest: &mut &'a [u8]) -> Option<(u32, &'a [u8])> {
    let field = *rest;
    let (number, kind) = decode_key(rest).ok()?;
    skip_field(kind, number, rest, DecodeContext::default()).ok()?;
    Some((number, field.get(..field.len() - rest.len())?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::VersionDef;

    #[test]
    fn a_message_is_the_same_after_its_bytes_and_its_fields_can_be_taken_one_by_one() {
        let message = VersionDef {
            producer: 300,
            bad_consumers: vec![1, 2],
            ..Default::default()
        };
        let bytes = message.to_bytes();
        assert_eq!(bytes.len(), message.byte_len());
        assert_eq!(VersionDef::from_bytes(bytes.as_slice()).unwrap(), message);
        assert!(VersionDef::from_bytes(&b"\xff"[..]).is_err());

        let mut all = bytes.clone();
        put_bytes(9, b"more", &mut all);
        let mut rest = all.as_slice();
        let mut fields = Vec::new();
        while !rest.is_empty() {
            fields.push(take_field(&mut rest).unwrap());
        }
        assert_eq!(fields.iter().map(|f| f.0).collect::<Vec<_>>(), [1, 3, 9]);
        assert_eq!(fields[2].1, b"\x4a\x04more");
        assert_eq!(take_field(&mut &b"\x4a\x04mo"[..]), None);
    }
}
