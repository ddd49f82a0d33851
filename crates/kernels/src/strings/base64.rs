//! `EncodeBase64` and `DecodeBase64`, with the web-safe alphabet.

use super::map;
use bytes::Bytes;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, Registry};

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

pub(super) fn register(r: &mut Registry) {
    r.add("EncodeBase64", encode_base64);
    r.add("DecodeBase64", |_| {
        Built::cheap(|ctx| map(ctx, |s| decode(s)))
    });
}

fn encode_base64(b: &KernelBuilder<'_>) -> Result<Built> {
    let pad = b.attrs().bool("pad")?;
    Built::cheap(move |ctx| map(ctx, |s| Ok(encode(s, pad))))
}

fn encode(data: &[u8], pad: bool) -> Bytes {
    let mut out = Vec::with_capacity(data.len().div_ceil(3) * 4);
    let (whole, rest) = data.as_chunks::<3>();
    for &[a, b, c] in whole {
        let bits = u32::from(a) << 16 | u32::from(b) << 8 | u32::from(c);
        out.extend([18, 12, 6, 0].map(|by| ALPHABET[(bits >> by & 63) as usize]));
    }
    for chunk in rest.chunks(3) {
        let byte = |i: usize| u32::from(chunk.get(i).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for i in 0..=chunk.len() {
            out.push(ALPHABET[(bits >> (18 - 6 * i) & 63) as usize]);
        }
        if pad {
            out.resize(out.len() + 3 - chunk.len(), b'=');
        }
    }
    out.into()
}

fn decode(text: &[u8]) -> Result<Bytes> {
    let mut out = Vec::with_capacity(text.len() / 4 * 3 + 3);
    // Whole groups without padding, by a table; what is left, and what is wrong, step by step.
    let (whole, _) = text.as_chunks::<4>();
    let mut done = 0;
    for group in whole {
        let [a, b, c, d] = group.map(|c| DIGITS[usize::from(c)]);
        if a | b | c | d > 63 {
            break;
        }
        let bits = u32::from(a) << 18 | u32::from(b) << 12 | u32::from(c) << 6 | u32::from(d);
        out.extend_from_slice(&bits.to_be_bytes()[1..]);
        done += 4;
    }
    let mut chunks = text[done..].chunks(4).peekable();
    while let Some(chunk) = chunks.next() {
        // Padding may stand only at the very end of a whole group of four.
        let chunk = match (chunk, chunks.peek()) {
            ([_, _, b'=', b'='], None) => &chunk[..2],
            ([_, _, _, b'='], None) => &chunk[..3],
            _ => chunk,
        };
        if chunk.len() == 1 {
            return Err(Status::invalid_argument(
                "Base64 string length cannot be 1 modulo 4.",
            ));
        }
        let mut bits = 0;
        for i in 0..4 {
            bits = bits << 6 | chunk.get(i).map_or(Ok(0), |&c| digit(c))?;
        }
        out.extend_from_slice(&bits.to_be_bytes()[1..chunk.len()]);
    }
    Ok(out.into())
}

/// The value of every byte; 255 for those that stand for nothing.
const DIGITS: [u8; 256] = {
    let mut table = [255; 256];
    let mut i = 0;
    while i < 64 {
        table[ALPHABET[i] as usize] = i as u8;
        i += 1;
    }
    table
};

fn digit(c: u8) -> Result<u32> {
    Ok(match c {
        b'A'..=b'Z' => u32::from(c - b'A'),
        b'a'..=b'z' => u32::from(c - b'a') + 26,
        b'0'..=b'9' => u32::from(c - b'0') + 52,
        b'-' => 62,
        b'_' => 63,
        _ => {
            return Err(Status::invalid_argument(
                "Invalid character found in base64.",
            ));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        for (plain, coded) in [("", ""), ("a", "YQ=="), ("ab", "YWI="), ("abc", "YWJj")] {
            assert_eq!(encode(plain.as_bytes(), true), coded);
            let bare = coded.trim_end_matches('=');
            assert_eq!(encode(plain.as_bytes(), false), bare);
            assert_eq!(decode(coded.as_bytes()).unwrap(), plain);
            assert_eq!(decode(bare.as_bytes()).unwrap(), plain);
        }
        for n in 0..70u8 {
            let data: Vec<u8> = (0..n).map(|i| i.wrapping_mul(37) ^ n).collect();
            for pad in [false, true] {
                assert_eq!(decode(&encode(&data, pad)).unwrap(), data);
            }
        }
        assert_eq!(decode(b"__79").unwrap(), &b"\xff\xfe\xfd"[..]);
    }

    #[test]
    fn bad_text_is_refused_in_tensorflows_words() {
        for (text, message) in [
            ("a", "Base64 string length cannot be 1 modulo 4."),
            ("=", "Base64 string length cannot be 1 modulo 4."),
            ("YWJjZ", "Base64 string length cannot be 1 modulo 4."),
            ("a+/b", "Invalid character found in base64."),
            ("YQ=", "Invalid character found in base64."),
            ("YQ===", "Invalid character found in base64."),
        ] {
            assert_eq!(decode(text.as_bytes()).unwrap_err().message, message);
        }
    }
}
