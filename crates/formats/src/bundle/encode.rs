//! The bytes of one tensor in a data file, and their checksum. Plain types are their memory;
//! strings are all lengths, a checksum of the lengths, then all contents; variants are messages, each with
//! its length and a checksum.

use crate::Fault;
use crate::coding::{Cursor, put_varint};
use crate::crc32c::{self, Crc32c};
use bytes::Bytes;
use downpour_graph::{Result, Status};
use downpour_tensor::{DType, Shape, Tensor, Variant};
use downpour_wire::MessageBytes as _;
use downpour_wire::proto::VariantTensorDataProto;
use downpour_wire::{Budget, Meter, decode_variant, encode_variant};

/// Hands the stored form of `tensor` to `write` piece by piece; returns size and masked checksum.
pub(super) fn write_tensor(
    tensor: &Tensor,
    mut write: impl FnMut(&[u8]) -> Result<()>,
) -> Result<(i64, u32)> {
    if let Some(buffer) = tensor.buffer() {
        let data = buffer.as_bytes();
        write(data)?;
        return Ok((data.len() as i64, crc32c::masked(data)));
    }
    if let Ok(variants) = tensor.as_variants() {
        return write_variants(variants, write);
    }
    if tensor.dtype() != DType::String {
        return Err(Status::unimplemented(format!(
            "Saving a tensor of type {} is not supported",
            tensor.dtype()
        )));
    }
    let strings = tensor.as_strings()?;
    let mut crc = Crc32c::new();
    let mut lengths = Vec::with_capacity(strings.len() + 4);
    for string in strings {
        put_varint(&mut lengths, string.len() as u64);
        update_length(&mut crc, string.len());
    }
    let checksum = crc32c::mask(crc.value()).to_le_bytes();
    crc.update(&checksum);
    lengths.extend(checksum);
    write(&lengths)?;
    let mut size = lengths.len();
    for string in strings {
        crc.update(string);
        write(string)?;
        size += string.len();
    }
    Ok((size as i64, crc32c::mask(crc.value())))
}

/// Each variant is its length, its message, and a checksum of all so far.
fn write_variants(
    variants: &[Variant],
    mut write: impl FnMut(&[u8]) -> Result<()>,
) -> Result<(i64, u32)> {
    let (mut crc, mut size) = (Crc32c::new(), 0);
    for variant in variants {
        let message = encode_variant(variant)?.to_bytes();
        let mut out = Vec::with_capacity(message.len() + 14);
        put_varint(&mut out, message.len() as u64);
        // Other than strings' lengths, these count as 64 bits always.
        crc.update(&(message.len() as u64).to_le_bytes());
        crc.update(&message);
        out.extend(message);
        let checksum = crc32c::mask(crc.value()).to_le_bytes();
        crc.update(&checksum);
        out.extend(checksum);
        write(&out)?;
        size += out.len() as i64;
    }
    Ok((size, crc32c::mask(crc.value())))
}

/// Variants out of their stored form, with the unmasked checksum over them.
pub(super) fn read_variants(data: &Bytes, shape: &Shape) -> Result<(Tensor, u32), Fault> {
    let short = || Status::out_of_range("Read less bytes than requested");
    let count = shape.num_elements();
    if count > data.len() {
        return Err(short().into());
    }
    let mut cursor = Cursor(data);
    let mut crc = Crc32c::new();
    let mut variants = Vec::with_capacity(count);
    let mut meter = Meter::from(&Budget::default());
    for _ in 0..count {
        let length = cursor.length().ok_or_else(short)?;
        let message = cursor.take(length).ok_or_else(short)?;
        crc.update(&(length as u64).to_le_bytes());
        crc.update(message);
        let stored = cursor.array::<4>().ok_or_else(short)?;
        if crc32c::unmask(u32::from_le_bytes(stored)) != crc.value() {
            return Err(Fault::changed(
                None,
                "The checksum after a variant does not match",
            ));
        }
        crc.update(&stored);
        let message = VariantTensorDataProto::from_bytes(data.slice_ref(message))
            .map_err(|e| Status::data_loss(format!("Unable to parse a variant: {e}")))?;
        variants.push(decode_variant(message, &mut meter).map_err(Status::from)?);
    }
    if !cursor.is_empty() {
        let text = format!(
            "{} bytes are left over behind the variants of the tensor",
            cursor.0.len()
        );
        return Err(Status::data_loss(text).into());
    }
    let tensor = Tensor::variants(variants, shape.clone()).map_err(Status::from)?;
    Ok((tensor, crc.value()))
}

/// The checksum sees lengths as fixed-width numbers, not as the varints in the file.
fn update_length(crc: &mut Crc32c, length: usize) {
    match u32::try_from(length) {
        Ok(short) => crc.update(&short.to_le_bytes()),
        Err(_) => crc.update(&(length as u64).to_le_bytes()),
    }
}

/// Strings out of their stored form, with the unmasked checksum over them. The strings share the
/// memory of `data`.
pub(super) fn read_strings(data: &Bytes, shape: &Shape) -> Result<(Tensor, u32), Fault> {
    let short = || Status::out_of_range("Read less bytes than requested");
    let count = shape.num_elements();
    // Every element has at least one byte of length, so a shape cannot claim more than is there.
    if count > data.len() {
        return Err(short().into());
    }
    let mut cursor = Cursor(data);
    let mut crc = Crc32c::new();
    let mut lengths = Vec::with_capacity(count);
    for _ in 0..count {
        let length = cursor.length().ok_or_else(short)?;
        update_length(&mut crc, length);
        lengths.push(length);
    }
    let stored = cursor.array::<4>().ok_or_else(short)?;
    let expected = crc32c::unmask(u32::from_le_bytes(stored));
    if expected != crc.value() {
        let text = format!(
            "The length checksum does not match: expected {expected:08} but actual is {:08}",
            crc.value()
        );
        return Err(Fault::changed(Some((expected, crc.value())), text));
    }
    crc.update(&stored);
    let mut strings = Vec::with_capacity(count);
    for length in lengths {
        let string = cursor.take(length).ok_or_else(short)?;
        crc.update(string);
        strings.push(data.slice_ref(string));
    }
    if !cursor.is_empty() {
        let text = format!(
            "{} bytes are left over behind the strings of the tensor",
            cursor.0.len()
        );
        return Err(Status::data_loss(text).into());
    }
    let tensor = Tensor::strings(strings, shape.clone()).map_err(Status::from)?;
    Ok((tensor, crc.value()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use downpour_graph::Code;

    fn encoded(strings: &[&'static str]) -> (Vec<u8>, u32) {
        let strings: Vec<Bytes> = strings
            .iter()
            .map(|s| Bytes::from_static(s.as_bytes()))
            .collect();
        let n = strings.len();
        let tensor = Tensor::strings(strings, [n]).unwrap();
        let mut out = Vec::new();
        let (size, crc) = write_tensor(&tensor, |data| {
            out.extend_from_slice(data);
            Ok(())
        })
        .unwrap();
        assert_eq!(size as usize, out.len());
        (out, crc)
    }

    #[test]
    fn strings_are_stored_as_tensorflow_stores_them() {
        let (data, crc) = encoded(&["hello", "", "world!!"]);
        assert_eq!(data, b"\x05\x00\x07\x85\x78\x52\xb5helloworld!!");
        let (tensor, read) = read_strings(&Bytes::from(data), &Shape::from([3])).unwrap();
        assert_eq!(tensor.as_strings().unwrap(), ["hello", "", "world!!"]);
        assert_eq!(crc32c::mask(read), crc);
    }

    #[test]
    fn lying_lengths_are_refused_before_memory_is_asked_for() {
        let shape = |n: usize| Shape::from([n]);
        let read = |data: &[u8], n: usize| {
            let fault = read_strings(&Bytes::copy_from_slice(data), &shape(n)).unwrap_err();
            (fault.status.code, fault.status.message)
        };
        let short = (
            Code::OutOfRange,
            "Read less bytes than requested".to_owned(),
        );
        assert_eq!(read(&[1; 20], 1 << 40), short);
        assert_eq!(read(&[0xff; 20], 2), short);
        assert_eq!(read(&[1, 2, 0], 2), short);
        let text = "The length checksum does not match: expected 2324975230 but actual is 00000000";
        assert_eq!(
            read(&[0, 0, 0x80, 0x3f], 0),
            (Code::DataLoss, text.to_owned())
        );
        // The lengths and their checksum are right, but the contents stop early.
        let (data, _) = encoded(&["hello", "world"]);
        for cut in 0..data.len() {
            assert_eq!(read(&data[..cut], 2).0, Code::OutOfRange, "{cut}");
        }
        let (mut data, _) = encoded(&["hello"]);
        data.push(0);
        assert_eq!(read(&data, 1).0, Code::DataLoss);
    }

    #[test]
    fn handles_cannot_be_saved() {
        let tensor = Tensor::resource(Default::default());
        let status = write_tensor(&tensor, |_| Ok(())).unwrap_err();
        assert_eq!(status.code, Code::Unimplemented);
    }
}
