//! `UnicodeDecode`, `UnicodeDecodeWithOffsets`, `UnicodeEncode`, `UnicodeTranscode` for the UTF
//! encodings, ASCII and Latin-1. (TensorFlow knows every converter of ICU; others are refused
//! here as an encoding it does not know would be.)

use crate::args::{int_tensor, ints};
use crate::types::INDEX;
use bytes::Bytes;
use downpour_graph::{Attrs, Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{DType, Shape, Tensor};

pub(super) fn register(r: &mut Registry) {
    r.add_typed("UnicodeDecode", &[("Tsplits", INDEX)], |b| {
        decode_op(b, false)
    });
    r.add_typed("UnicodeDecodeWithOffsets", &[("Tsplits", INDEX)], |b| {
        decode_op(b, true)
    });
    r.add_typed("UnicodeEncode", &[("Tsplits", INDEX)], encode_op);
    r.add("UnicodeTranscode", transcode_op);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    Utf8,
    /// By byte order mark, else big-endian.
    Utf16,
    Utf16Be,
    Utf16Le,
    Utf32Be,
    Utf32Le,
    Ascii,
    Latin1,
}

impl Encoding {
    /// The encoding called `name`; ICU ignores case, dashes and underscores.
    fn parse(name: &[u8]) -> Option<Encoding> {
        let plain: String = (name.iter())
            .filter(|b| b.is_ascii_alphanumeric())
            .map(|b| b.to_ascii_lowercase() as char)
            .collect();
        Some(match plain.as_str() {
            "utf8" => Encoding::Utf8,
            "utf16" => Encoding::Utf16,
            "utf16be" => Encoding::Utf16Be,
            "utf16le" => Encoding::Utf16Le,
            "utf32be" | "utf32" => Encoding::Utf32Be,
            "utf32le" => Encoding::Utf32Le,
            "usascii" | "ascii" | "iso646us" => Encoding::Ascii,
            "iso88591" | "latin1" => Encoding::Latin1,
            _ => return None,
        })
    }
}

/// What becomes of bytes or numbers that are no characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnError {
    Strict,
    Ignore,
    Replace(u32),
}

struct Options {
    on_error: OnError,
    replace_control: Option<u32>,
}

fn options(attrs: &Attrs) -> Result<Options> {
    let replacement = attrs.int("replacement_char")?;
    let replacement = match u32::try_from(replacement) {
        Ok(c) if c <= 0x10_ffff => c,
        _ => {
            return Err(Status::invalid_argument(
                "replacement_char out of unicode codepoint range",
            ));
        }
    };
    let on_error = match attrs.bytes("errors")?.as_ref() {
        b"strict" => OnError::Strict,
        b"ignore" => OnError::Ignore,
        _ => OnError::Replace(replacement),
    };
    let control = attrs.find("replace_control_characters").is_some()
        && attrs.bool("replace_control_characters")?;
    Ok(Options {
        on_error,
        replace_control: control.then_some(replacement),
    })
}

fn input_encoding(attrs: &Attrs) -> Result<Encoding> {
    let name = attrs.bytes("input_encoding")?;
    Encoding::parse(name).ok_or_else(|| {
        Status::invalid_argument(format!(
            "Could not create converter for input encoding: {}",
            String::from_utf8_lossy(name)
        ))
    })
}

/// One character, or `None` where there is none, and the bytes it takes.
type Decoded = (Option<u32>, usize);

fn step(encoding: Encoding, rest: &[u8]) -> Decoded {
    match encoding {
        Encoding::Utf8 => utf8_step(rest),
        Encoding::Ascii => (rest.first().filter(|b| b.is_ascii()).map(|&b| b.into()), 1),
        Encoding::Latin1 => (rest.first().map(|&b| b.into()), 1),
        Encoding::Utf16 | Encoding::Utf16Be => utf16_step(rest, u16::from_be_bytes),
        Encoding::Utf16Le => utf16_step(rest, u16::from_le_bytes),
        Encoding::Utf32Be => utf32_step(rest, u32::from_be_bytes),
        Encoding::Utf32Le => utf32_step(rest, u32::from_le_bytes),
    }
}

fn utf8_step(rest: &[u8]) -> Decoded {
    let window = &rest[..rest.len().min(4)];
    let (valid, error) = match std::str::from_utf8(window) {
        Ok(s) => (s, None),
        Err(e) => {
            let valid = std::str::from_utf8(&window[..e.valid_up_to()]).unwrap_or_default();
            (valid, Some(e))
        }
    };
    match (valid.chars().next(), error) {
        (Some(c), _) => (Some(c.into()), c.len_utf8()),
        // A maximal beginning of a character counts as one error.
        (None, Some(e)) => (None, e.error_len().unwrap_or(window.len())),
        (None, None) => (None, 1),
    }
}

fn utf16_step(rest: &[u8], word: fn([u8; 2]) -> u16) -> Decoded {
    let unit = |i: usize| rest.get(2 * i..2 * i + 2).map(|b| word([b[0], b[1]]));
    match (unit(0), unit(1)) {
        (None, _) => (None, rest.len()),
        (Some(high @ 0xd800..=0xdbff), Some(low @ 0xdc00..=0xdfff)) => {
            let code = 0x1_0000 + ((u32::from(high) - 0xd800) << 10) + (u32::from(low) - 0xdc00);
            (Some(code), 4)
        }
        (Some(0xd800..=0xdfff), _) => (None, 2),
        (Some(c), _) => (Some(c.into()), 2),
    }
}

fn utf32_step(rest: &[u8], word: fn([u8; 4]) -> u32) -> Decoded {
    match rest {
        [a, b, c, d, ..] => {
            let code = word([*a, *b, *c, *d]);
            (char::from_u32(code).map(u32::from), 4)
        }
        _ => (None, rest.len()),
    }
}

/// Calls `each(character, first byte)` for all characters of `text`.
fn decode(
    text: &[u8],
    encoding: Encoding,
    options: &Options,
    mut each: impl FnMut(u32, usize),
) -> Result<()> {
    let (encoding, mut at) = match (encoding, text) {
        (Encoding::Utf16, [0xff, 0xfe, ..]) => (Encoding::Utf16Le, 2),
        (Encoding::Utf16, [0xfe, 0xff, ..]) => (Encoding::Utf16Be, 2),
        _ => (encoding, 0),
    };
    let mark = at;
    while at < text.len() {
        let (found, length) = step(encoding, &text[at..]);
        // A byte order mark counts as part of the first character.
        let start = if at == mark { 0 } else { at };
        match (found, options.on_error, options.replace_control) {
            (Some(0..=0x1f | 0x7f..=0x9f), OnError::Ignore, Some(_)) => {}
            (Some(0..=0x1f | 0x7f..=0x9f), _, Some(c)) => each(c, start),
            (Some(c), ..) => each(c, start),
            (None, OnError::Replace(c), _) => each(c, start),
            (None, OnError::Ignore, _) => {}
            (None, OnError::Strict, _) => {
                return Err(Status::invalid_argument(
                    "Invalid formatting on input string",
                ));
            }
        }
        at += length.max(1);
    }
    Ok(())
}

/// Appends a character that is one.
fn encode(out: &mut Vec<u8>, encoding: Encoding, code: u32) {
    let c = char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
    match encoding {
        Encoding::Utf16Be => {
            let mut units = [0; 2];
            let units = c.encode_utf16(&mut units);
            out.extend(units.iter().flat_map(|u| u.to_be_bytes()));
        }
        Encoding::Utf32Be => out.extend_from_slice(&u32::from(c).to_be_bytes()),
        _ => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
    }
}

fn decode_op(b: &KernelBuilder<'_>, offsets: bool) -> Result<Built> {
    let encoding = input_encoding(b.attrs())?;
    let options = options(b.attrs())?;
    let splits_type = b.attrs().dtype("Tsplits")?;
    Built::costly(move |ctx| {
        let input = ctx.input(0)?.as_strings()?;
        let bytes: usize = input.iter().map(Bytes::len).sum();
        ctx.check_alloc(DType::Int64, &Shape::from([bytes]))?;
        let (mut codes, mut starts, mut splits) = (Vec::new(), Vec::new(), vec![0i64]);
        for text in input {
            decode(text, encoding, &options, |c, at| {
                codes.push(c as i32);
                starts.push(at as i64);
            })?;
            splits.push(codes.len() as i64);
        }
        let rows = splits.len();
        ctx.set_output(0, int_tensor(splits_type, splits, [rows])?);
        ctx.set_output(1, Tensor::vector(codes));
        if offsets {
            ctx.set_output(2, Tensor::vector(starts));
        }
        Ok(())
    })
}

fn output_encoding(attrs: &Attrs) -> Result<Encoding> {
    Encoding::parse(attrs.bytes("output_encoding")?)
        .ok_or_else(|| Status::internal("the output encoding is one of the op's own"))
}

fn transcode_op(b: &KernelBuilder<'_>) -> Result<Built> {
    let (from, to) = (input_encoding(b.attrs())?, output_encoding(b.attrs())?);
    let options = options(b.attrs())?;
    Built::costly(move |ctx| {
        super::map(ctx, |text| {
            let mut out = Vec::with_capacity(text.len());
            decode(text, from, &options, |c, _| encode(&mut out, to, c))?;
            Ok(out.into())
        })
    })
}

fn encode_op(b: &KernelBuilder<'_>) -> Result<Built> {
    let encoding = output_encoding(b.attrs())?;
    let options = options(b.attrs())?;
    Built::costly(move |ctx: &mut OpContext<'_>| {
        let (values, splits) = (ctx.input(0)?, ctx.input(1)?);
        let bad = |text: &str| Err(Status::invalid_argument(text));
        if splits.num_elements() == 0 {
            return bad(
                "Input_splits should contain elements, but given input_values has 0 elements",
            );
        }
        if values.rank() != 1 || splits.rank() != 1 {
            return bad("Both the input_tensor and input_splits should be of rank 1. ");
        }
        let codes = values.as_slice::<i32>()?;
        let splits = ints(splits)?;
        if splits[0] != 0 {
            return bad("First value in input_splits must be zero.");
        }
        if splits[splits.len() - 1] != codes.len() as i64 {
            return bad("Last value in input_splits must be equal to length of input_tensor.");
        }
        if splits.windows(2).any(|w| w[1] < w[0]) {
            return bad("Values in input_splits must be equal or in ascending order.");
        }
        let mut rows = Vec::with_capacity(splits.len() - 1);
        for row in splits.windows(2) {
            let mut out = Vec::new();
            for &code in codes
                .get(row[0] as usize..row[1] as usize)
                .unwrap_or_default()
            {
                match (
                    u32::try_from(code).ok().and_then(char::from_u32),
                    options.on_error,
                ) {
                    (Some(c), _) => encode(&mut out, encoding, c.into()),
                    (None, OnError::Replace(c)) => encode(&mut out, encoding, c),
                    (None, OnError::Ignore) => {}
                    (None, OnError::Strict) => {
                        return bad("Code point is out of range for Unicode, or is a surrogate.");
                    }
                }
            }
            rows.push(Bytes::from(out));
        }
        let shape = [rows.len()];
        ctx.set_output(0, Tensor::strings(rows, shape)?);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codes(text: &[u8], encoding: Encoding, on_error: OnError) -> Result<Vec<(u32, usize)>> {
        let options = Options {
            on_error,
            replace_control: None,
        };
        let mut all = Vec::new();
        decode(text, encoding, &options, |c, at| all.push((c, at)))?;
        Ok(all)
    }

    /// Each answer is TensorFlow's.
    #[test]
    fn faulty_bytes_are_counted_as_icu_counts_them() {
        let replace = OnError::Replace(0xfffd);
        let utf8 = |text: &[u8]| codes(text, Encoding::Utf8, replace).unwrap();
        assert_eq!(utf8("aé".as_bytes()), [(97, 0), (233, 1)]);
        assert_eq!(utf8(b"\xff\xfea"), [(0xfffd, 0), (0xfffd, 1), (97, 2)]);
        assert_eq!(utf8("\u{1f600}x".as_bytes()), [(0x1f600, 0), (120, 4)]);
        assert_eq!(utf8(b"\xe2\x82"), [(0xfffd, 0)]);
        assert_eq!(utf8(b"\xed\xa0\x80").len(), 3);
        assert_eq!(utf8(b"\xc0\x80").len(), 2);
        let ignored = codes(b"\xff\xfea", Encoding::Utf8, OnError::Ignore).unwrap();
        assert_eq!(ignored, [(97, 2)]);
        assert!(codes(b"\xff", Encoding::Utf8, OnError::Strict).is_err());
    }

    #[test]
    fn wide_encodings() {
        let replace = OnError::Replace(0xfffd);
        let be = codes(b"\x00a\xd8\x3d\xde\x00", Encoding::Utf16, replace).unwrap();
        assert_eq!(be, [(97, 0), (0x1f600, 2)]);
        let le = codes(b"\xff\xfea\x00", Encoding::Utf16, replace).unwrap();
        assert_eq!(le, [(97, 0)]);
        assert_eq!(
            codes(b"\xd8\x3d", Encoding::Utf16Be, replace).unwrap(),
            [(0xfffd, 0)]
        );
        let mut out = Vec::new();
        encode(&mut out, Encoding::Utf16Be, 0x1f600);
        assert_eq!(out, b"\xd8\x3d\xde\x00");
    }
}
