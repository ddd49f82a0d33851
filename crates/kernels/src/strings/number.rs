//! `StringToNumber`.

use crate::types::with_type;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, Registry};
use downpour_tensor::{DType, Tensor};

const TYPES: &[DType] = &[
    DType::Float,
    DType::Double,
    DType::Int32,
    DType::Int64,
    DType::UInt32,
    DType::UInt64,
];

pub(super) fn register(r: &mut Registry) {
    r.add_typed("StringToNumber", &[("out_type", TYPES)], string_to_number);
}

fn string_to_number(b: &KernelBuilder<'_>) -> Result<Built> {
    let dtype = b.attrs().dtype("out_type")?;
    Built::cheap(move |ctx| {
        let input = ctx.input(0)?;
        let out = with_type!(dtype, T in [f32, f64, i32, i64, u32, u64] => {
            let parse = |s: &bytes::Bytes| <T as Parse>::parse(s).ok_or_else(|| {
                Status::invalid_argument(format!(
                    "StringToNumberOp could not correctly convert string: {}",
                    String::from_utf8_lossy(s)
                ))
            });
            let values: Result<Vec<T>> = input.as_strings()?.iter().map(parse).collect();
            Tensor::from_vec(values?, input.shape().clone())?
        });
        ctx.set_output(0, out);
        Ok(())
    })
}

/// A number from text, in TensorFlow's grammar.
pub(crate) trait Parse: Sized {
    fn parse(text: &[u8]) -> Option<Self>;
}

/// Text without the white space around it, or `None` if nothing is left.
fn trimmed(text: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(text).ok()?;
    let space = |c: char| matches!(c, ' ' | '\t' | '\n' | '\x0b' | '\x0c' | '\r');
    Some(text.trim_matches(space)).filter(|t| !t.is_empty())
}

macro_rules! integers {
    ($($t:ty => $signed:literal),*) => {
        $(impl Parse for $t {
            fn parse(text: &[u8]) -> Option<$t> {
                let text = trimmed(text)?;
                // Unsigned numbers take no minus, not even before zero.
                if !$signed && text.starts_with('-') {
                    return None;
                }
                text.parse().ok()
            }
        })*
    };
}

integers!(i32 => true, i64 => true, u32 => false, u64 => false);

macro_rules! floats {
    ($($t:ty),*) => {
        $(impl Parse for $t {
            fn parse(text: &[u8]) -> Option<$t> {
                let text = trimmed(text)?;
                let (negative, digits) = match text.as_bytes() {
                    [b'-', ..] => (true, &text[1..]),
                    [b'+', ..] => (false, &text[1..]),
                    _ => (false, text),
                };
                if digits.starts_with(['+', '-']) {
                    return None;
                }
                let lower = digits.to_ascii_lowercase();
                let magnitude = if let Some(hex) = lower.strip_prefix("0x") {
                    hexadecimal(hex)? as $t
                } else if lower.starts_with("nan") {
                    not_a_number(&lower)?;
                    <$t>::NAN
                } else {
                    digits.parse::<$t>().ok()?
                };
                Some(if negative { -magnitude } else { magnitude })
            }
        })*
    };
}

floats!(f32, f64);

/// `nan` or `nan(characters)`.
fn not_a_number(text: &str) -> Option<()> {
    let rest = text.strip_prefix("nan")?;
    let inner = match rest {
        "" => return Some(()),
        _ => rest.strip_prefix('(')?.strip_suffix(')')?,
    };
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    inner.chars().all(word).then_some(())
}

/// C's hexadecimal floats without their `0x`: digits, a point, a binary exponent after `p`.
fn hexadecimal(text: &str) -> Option<f64> {
    let (mantissa, exponent) = match text.split_once('p') {
        Some((m, e)) => (m, e.parse::<i32>().ok()?),
        None => (text, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let mut value = 0.0f64;
    for c in whole.chars().chain(fraction.chars()) {
        value = value * 16.0 + f64::from(c.to_digit(16)?);
    }
    let scale = exponent.saturating_sub(i32::try_from(fraction.len()).ok()?.saturating_mul(4));
    Some(value * 2f64.powi(scale))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_as_tensorflow_reads_them() {
        for (text, expect) in [
            ("1", Some(1.0)),
            (" +1.5\n", Some(1.5)),
            ("0x10", Some(16.0)),
            ("0x1p3", Some(8.0)),
            ("-Infinity", Some(f32::NEG_INFINITY)),
            ("1e400", Some(f32::INFINITY)),
            ("1.", Some(1.0)),
            (".5", Some(0.5)),
            ("1e", None),
            ("", None),
            ("1 2", None),
            ("+-1", None),
            ("1_0", None),
            ("1f", None),
        ] {
            assert_eq!(f32::parse(text.as_bytes()), expect, "{text:?}");
        }
        assert!(f64::parse(b"nan(1)").is_some_and(f64::is_nan));
        assert_eq!(i32::parse(b" +00012\t"), Some(12));
        assert_eq!(i32::parse(b"4294967295"), None);
        assert_eq!(u32::parse(b"4294967295"), Some(u32::MAX));
        assert_eq!(u32::parse(b"-0"), None);
        assert_eq!(i64::parse(b"-0"), Some(0));
    }
}
