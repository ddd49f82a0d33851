//! The byte strings under which slices are filed: encodings whose byte order is the order of the
//! values. Only writing is needed; a key is found by encoding what one looks for.

use super::slice::TensorSlice;

/// The key of a stored slice of tensor `name`. It starts with a zero byte, so slices sort before
/// all whole tensors.
pub(super) fn slice_key(name: &[u8], slice: &TensorSlice) -> Vec<u8> {
    let mut key = Vec::with_capacity(name.len() + 8 + 4 * slice.rank());
    put_unsigned(&mut key, 0);
    put_string(&mut key, name);
    put_unsigned(&mut key, slice.rank() as u64);
    for extent in slice.extents() {
        let (start, length) = extent.range().unwrap_or((0, -1));
        put_signed(&mut key, start);
        put_signed(&mut key, length);
    }
    key
}

/// How many bytes, then those bytes, big end first.
fn put_unsigned(out: &mut Vec<u8>, value: u64) {
    let bytes = value.to_be_bytes();
    let skip = value.leading_zeros() as usize / 8;
    out.push((8 - skip) as u8);
    out.extend(bytes.iter().skip(skip));
}

/// The bytes with 00 and ff escaped, then a terminator below every continuation.
fn put_string(out: &mut Vec<u8>, value: &[u8]) {
    for &byte in value {
        out.push(byte);
        match byte {
            0x00 => out.push(0xff),
            0xff => out.push(0x00),
            _ => {}
        }
    }
    out.extend([0x00, 0x01]);
}

/// Two's complement in as few bytes as hold seven bits each, with as many leading ones as bytes.
fn put_signed(out: &mut Vec<u8>, value: i64) {
    let magnitude = if value < 0 { !value } else { value };
    let bits = 64 - magnitude.leading_zeros() as usize + 1;
    let len = bits.div_ceil(7);
    let wide = i128::from(value).to_be_bytes();
    let header = !(u128::MAX >> len) >> (128 - 8 * len);
    let header = header.to_be_bytes();
    let skip = wide.len() - len;
    out.extend(wide.iter().zip(header).skip(skip).map(|(a, b)| a ^ b));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signed(value: i64) -> Vec<u8> {
        let mut out = Vec::new();
        put_signed(&mut out, value);
        out
    }

    #[test]
    fn numbers_are_tensorflows() {
        let cases: [(i64, &[u8]); 12] = [
            (0, &[0x80]),
            (4, &[0x84]),
            (63, &[0xbf]),
            (64, &[0xc0, 0x40]),
            (100, &[0xc0, 0x64]),
            (6667, &[0xda, 0x0b]),
            (13334, &[0xe0, 0x34, 0x16]),
            (1_000_000, &[0xef, 0x42, 0x40]),
            (2_000_000, &[0xf0, 0x1e, 0x84, 0x80]),
            (-1, &[0x7f]),
            (-64, &[0x40]),
            (-65, &[0x3f, 0xbf]),
        ];
        for (value, bytes) in cases {
            assert_eq!(signed(value), bytes, "{value}");
        }
        let mut out = Vec::new();
        put_unsigned(&mut out, 0x1234);
        assert_eq!(out, [2, 0x12, 0x34]);
    }

    #[test]
    fn byte_order_is_number_order() {
        let mut values: Vec<i64> = (0..63)
            .flat_map(|b| [1 << b, (1 << b) - 1, -(1 << b)])
            .collect();
        values.extend([i64::MIN, i64::MAX]);
        values.sort();
        values.dedup();
        for pair in values.windows(2) {
            assert!(signed(pair[0]) < signed(pair[1]), "{pair:?}");
        }
    }

    #[test]
    fn keys_are_tensorflows() {
        let slice = TensorSlice::parse("4,3:0,4").unwrap();
        let expected = b"\x00m/emb\x00\x01\x01\x02\x84\x83\x80\x84";
        assert_eq!(slice_key(b"m/emb", &slice), expected);
        let full = TensorSlice::parse("-").unwrap();
        assert_eq!(
            slice_key(b"\x00\xff", &full),
            b"\x00\x00\xff\xff\x00\x00\x01\x01\x01\x80\x7f"
        );
    }
}
