//! Resource handles as strings: what `IteratorToStringHandle` gives out and takes back.

use bytes::Bytes;
use downpour_tensor::ResourceHandle;
use downpour_wire::MessageBytes as _;
use downpour_wire::proto::ResourceHandleProto;
use downpour_wire::{decode_handle, encode_handle};

/// The handle as a serialized `ResourceHandleProto`.
pub fn serialize(handle: &ResourceHandle) -> Bytes {
    encode_handle(handle).to_bytes().into()
}

/// The handle in a serialized `ResourceHandleProto`, if it is one.
pub fn parse(bytes: &Bytes) -> Option<ResourceHandle> {
    ResourceHandleProto::from_bytes(bytes.clone())
        .ok()
        .map(decode_handle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_survive_and_junk_is_refused() {
        let handle = ResourceHandle {
            device: "/job:w".into(),
            name: "it".into(),
            hash_code: 7,
            ..Default::default()
        };
        assert_eq!(parse(&serialize(&handle)), Some(handle));
        assert_eq!(parse(&Bytes::from_static(b"junk")), None);
    }
}
