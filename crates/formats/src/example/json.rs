//! `Example` in protobuf's JSON form, written straight into its binary form. As lenient as
//! protobuf's own reader: single quotes, bare keys, a comma before a closing bracket, a lone value
//! where a list is expected. Depth is bounded; nothing is kept but the output.

use super::FeatureKind;
use crate::coding::put_varint;
use std::fmt;

/// Deepest nesting of lists.
const MAX_DEPTH: usize = 100;

/// Why the text is no example, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonError {
    reason: String,
    offset: Option<usize>,
}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.offset {
            Some(offset) => write!(
                f,
                "invalid JSON in type.googleapis.com/tensorflow.Example, near offset {offset}: {}",
                self.reason
            ),
            None => f.write_str(&self.reason),
        }
    }
}

type Result<T> = std::result::Result<T, JsonError>;

/// The binary form of an example in JSON.
pub fn json_to_example(json: &[u8]) -> Result<Vec<u8>> {
    let mut json = Json { data: json, at: 0 };
    let mut out = Vec::new();
    let mut seen = false;
    json.object(|json, key| {
        if key != "features" {
            return json.no_field(key);
        }
        json.once(&mut seen, key)?;
        if !json.null() {
            let features = json.features()?;
            put_field(&mut out, 1, &features);
        }
        Ok(())
    })?;
    json.space();
    match json.at < json.data.len() {
        true => Err(JsonError {
            reason: "extraneous characters after end of JSON object".into(),
            offset: None,
        }),
        false => Ok(out),
    }
}

fn put_field(out: &mut Vec<u8>, number: u8, data: &[u8]) {
    out.push(number << 3 | 2);
    put_varint(out, data.len() as u64);
    out.extend_from_slice(data);
}

/// A scalar as it stands in the text.
enum Scalar<'a> {
    Null,
    Number(&'a str),
    Text(String),
}

struct Json<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> Json<'a> {
    fn fail<T>(&self, reason: impl Into<String>) -> Result<T> {
        Err(JsonError {
            reason: reason.into(),
            offset: Some(self.at),
        })
    }

    fn no_field<T>(&self, key: &str) -> Result<T> {
        self.fail(format!("no such field: '{key}'"))
    }

    /// Refuses what was there before.
    fn once(&self, seen: &mut bool, key: &str) -> Result<()> {
        match std::mem::replace(seen, true) {
            true => self.fail(format!("'{key}' has already been set")),
            false => Ok(()),
        }
    }

    fn rest(&self) -> &'a [u8] {
        self.data.get(self.at..).unwrap_or_default()
    }

    fn space(&mut self) {
        let blank = |b: &&u8| matches!(**b, b' ' | b'\t' | b'\n' | b'\r');
        self.at += self.rest().iter().take_while(blank).count();
    }

    /// The next byte that is no space.
    fn peek(&mut self) -> Result<u8> {
        self.space();
        match self.rest().first() {
            Some(byte) => Ok(*byte),
            None => Err(JsonError {
                reason: "unexpected EOF".into(),
                offset: None,
            }),
        }
    }

    /// Passes over `byte` if it is next.
    fn eat(&mut self, byte: u8) -> Result<bool> {
        let found = self.peek()? == byte;
        self.at += usize::from(found);
        Ok(found)
    }

    fn expect(&mut self, byte: u8) -> Result<()> {
        if self.eat(byte)? {
            return Ok(());
        }
        let found = char::from(self.peek()?);
        self.fail(format!(
            "unexpected character: '{found}'; expected '{}'",
            char::from(byte)
        ))
    }

    /// Passes over `null` if it is next.
    fn null(&mut self) -> bool {
        self.space();
        let found = self.rest().starts_with(b"null");
        self.at += if found { 4 } else { 0 };
        found
    }

    /// An object, `each` reading the value after each key.
    fn object(&mut self, mut each: impl FnMut(&mut Self, &str) -> Result<()>) -> Result<()> {
        self.expect(b'{')?;
        while !self.eat(b'}')? {
            let key = self.key()?;
            self.expect(b':')?;
            each(self, &key)?;
            if !self.eat(b',')? && self.peek()? != b'}' {
                return self.fail("expected ',' or '}'");
            }
        }
        Ok(())
    }

    fn key(&mut self) -> Result<String> {
        if matches!(self.peek()?, b'"' | b'\'') {
            return self.string();
        }
        let word = |b: &&u8| b.is_ascii_alphanumeric() || matches!(**b, b'_' | b'$');
        let n = self.rest().iter().take_while(word).count();
        if n == 0 {
            return self.fail("expected a key");
        }
        let text = self.rest().get(..n).unwrap_or_default();
        self.at += n;
        Ok(String::from_utf8_lossy(text).into_owned())
    }

    /// A map of features.
    fn features(&mut self) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        let mut names = std::collections::HashSet::new();
        let mut seen = false;
        self.object(|json, key| {
            if key != "feature" {
                return json.no_field(key);
            }
            json.once(&mut seen, key)?;
            if json.null() {
                return Ok(());
            }
            json.object(|json, name| {
                if !names.insert(name.to_owned()) {
                    return json.fail(format!(
                        "got unexpectedly-repeated repeated map key: '{name}'"
                    ));
                }
                let mut entry = Vec::new();
                put_field(&mut entry, 1, name.as_bytes());
                if !json.null() {
                    put_field(&mut entry, 2, &json.feature()?);
                }
                put_field(&mut out, 1, &entry);
                Ok(())
            })
        })?;
        Ok(out)
    }

    fn feature(&mut self) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        let mut seen = false;
        self.object(|json, key| {
            let (number, kind) = match key {
                "bytesList" | "bytes_list" => (1, FeatureKind::Bytes),
                "floatList" | "float_list" => (2, FeatureKind::Float),
                "int64List" | "int64_list" => (3, FeatureKind::Int64),
                _ => return json.no_field(key),
            };
            if json.null() {
                return Ok(());
            }
            json.once(&mut seen, key)?;
            let mut list = Vec::new();
            let mut given = false;
            json.object(|json, key| {
                if key != "value" {
                    return json.no_field(key);
                }
                json.once(&mut given, key)?;
                match json.null() {
                    true => Ok(()),
                    false => json.values(kind, &mut list, 0),
                }
            })?;
            put_field(&mut out, number, &list);
            Ok(())
        })?;
        Ok(out)
    }

    /// A value, or a list of values at any depth.
    fn values(&mut self, kind: FeatureKind, out: &mut Vec<u8>, depth: usize) -> Result<()> {
        if !self.eat(b'[')? {
            let at = self.at;
            let scalar = self.scalar()?;
            return self.value(kind, scalar, out).inspect_err(|_| self.at = at);
        }
        if depth >= MAX_DEPTH {
            return self.fail("lists are nested too deeply");
        }
        while !self.eat(b']')? {
            self.values(kind, out, depth + 1)?;
            if !self.eat(b',')? && self.peek()? != b']' {
                return self.fail("expected ',' or ']'");
            }
        }
        Ok(())
    }

    fn value(&self, kind: FeatureKind, scalar: Scalar<'_>, out: &mut Vec<u8>) -> Result<()> {
        match kind {
            FeatureKind::Bytes => {
                let bytes = match scalar {
                    Scalar::Null => Vec::new(),
                    Scalar::Text(text) => match base64(text.as_bytes()) {
                        Some(bytes) => bytes,
                        None => return self.fail("corrupt base64"),
                    },
                    Scalar::Number(_) => return self.fail("expected string"),
                };
                put_field(out, 1, &bytes);
            }
            FeatureKind::Float => {
                let value = match &scalar {
                    Scalar::Null => Some(0.0),
                    Scalar::Number(text) => text.parse().ok(),
                    Scalar::Text(text) => text.parse().ok(),
                };
                let Some(value) = value.filter(|v: &f64| !v.is_infinite() || !is_digits(&scalar))
                else {
                    return self.fail("non-number characters in quoted number");
                };
                if value.is_finite() && (value as f32).is_infinite() {
                    return self.fail("float out of range");
                }
                out.push(1 << 3 | 5);
                out.extend_from_slice(&(value as f32).to_le_bytes());
            }
            FeatureKind::Int64 => {
                let text = match &scalar {
                    Scalar::Null => "0",
                    Scalar::Number(text) => text,
                    Scalar::Text(text) => text,
                };
                let Some(value) = integer(text) else {
                    return self.fail(format!("invalid number: '{text}'"));
                };
                out.push(1 << 3);
                put_varint(out, value as u64);
            }
        }
        Ok(())
    }

    fn scalar(&mut self) -> Result<Scalar<'a>> {
        if self.null() {
            return Ok(Scalar::Null);
        }
        match self.peek()? {
            b'"' | b'\'' => self.string().map(Scalar::Text),
            b'-' | b'0'..=b'9' => {
                let part = |b: &&u8| matches!(**b, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
                let n = self.rest().iter().take_while(part).count();
                let text = self.rest().get(..n).unwrap_or_default();
                self.at += n;
                match std::str::from_utf8(text) {
                    Ok(text) if text.parse::<f64>().is_ok() => Ok(Scalar::Number(text)),
                    _ => self.fail("invalid number"),
                }
            }
            _ => self.fail("expected number or string"),
        }
    }

    fn string(&mut self) -> Result<String> {
        let quote = self.peek()?;
        self.at += 1;
        let mut out = Vec::new();
        loop {
            let Some(&byte) = self.rest().first() else {
                self.peek()?;
                continue;
            };
            self.at += 1;
            match byte {
                b if b == quote => break,
                b'\\' => self.escape(&mut out)?,
                b if b < 0x20 => return self.fail("invalid control character in string"),
                b => out.push(b),
            }
        }
        String::from_utf8(out).or_else(|_| self.fail("invalid UTF-8 in string"))
    }

    fn escape(&mut self, out: &mut Vec<u8>) -> Result<()> {
        let byte = self.rest().first().copied().unwrap_or(0);
        self.at += 1;
        out.push(match byte {
            b'n' => b'\n',
            b't' => b'\t',
            b'r' => b'\r',
            b'b' => 8,
            b'f' => 12,
            b'"' | b'\'' | b'\\' | b'/' => byte,
            b'u' => {
                let mut code = self.hex4()?;
                if (0xd800..0xdc00).contains(&code) && self.rest().starts_with(b"\\u") {
                    self.at += 2;
                    let low = self.hex4()?;
                    code = 0x10000 + ((code - 0xd800) << 10) + (low.wrapping_sub(0xdc00) & 0x3ff);
                }
                let Some(c) = char::from_u32(code) else {
                    return self.fail("lone surrogate in string");
                };
                out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                return Ok(());
            }
            _ => return self.fail("invalid escape in string"),
        });
        Ok(())
    }

    fn hex4(&mut self) -> Result<u32> {
        let digits = self.rest().get(..4).unwrap_or_default();
        let hex = digits.iter().all(u8::is_ascii_hexdigit) && digits.len() == 4;
        let text = std::str::from_utf8(digits).unwrap_or_default();
        match u32::from_str_radix(text, 16) {
            Ok(code) if hex => {
                self.at += 4;
                Ok(code)
            }
            _ => self.fail("invalid Unicode escape"),
        }
    }
}

/// Whether a number was written in digits, so that infinity means it was too large.
fn is_digits(scalar: &Scalar<'_>) -> bool {
    match scalar {
        Scalar::Null => true,
        Scalar::Number(_) => true,
        Scalar::Text(text) => text.bytes().any(|b| b.is_ascii_digit()),
    }
}

/// A whole number; `1.0` and `1e3` are, too.
fn integer(text: &str) -> Option<i64> {
    if let Ok(value) = text.parse() {
        return Some(value);
    }
    // Only what a double holds exactly may be written with a fraction or an exponent.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if !text.contains(['.', 'e', 'E']) {
        return None;
    }
    let value: f64 = text.parse().ok()?;
    (value.fract() == 0.0 && value.abs() <= EXACT).then_some(value as i64)
}

/// Base 64 in either alphabet, padded or not.
fn base64(text: &[u8]) -> Option<Vec<u8>> {
    let digits = text.trim_ascii_end();
    let padding = digits.iter().rev().take_while(|b| **b == b'=').count();
    let digits = digits.get(..digits.len() - padding)?;
    if padding > 2 || digits.len() % 4 == 1 || (padding > 0 && (digits.len() + padding) % 4 != 0) {
        return None;
    }
    let mut out = Vec::with_capacity(digits.len() / 4 * 3 + 2);
    for group in digits.chunks(4) {
        let mut word = 0u32;
        for byte in group {
            let value = match byte {
                b'A'..=b'Z' => byte - b'A',
                b'a'..=b'z' => byte - b'a' + 26,
                b'0'..=b'9' => byte - b'0' + 52,
                b'+' | b'-' => 62,
                b'/' | b'_' => 63,
                _ => return None,
            };
            word = word << 6 | u32::from(value);
        }
        word <<= 6 * (4 - group.len());
        let [_, bytes @ ..] = word.to_be_bytes();
        out.extend(bytes.iter().take(group.len() * 3 / 4));
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of TensorFlow 2.21.
    #[test]
    fn examples_are_encoded_as_tensorflow_does() {
        let ints = r#"{"features":{"feature":{"a":{"int64List":{"value":["1","-2",3]}}}}}"#;
        let expect =
            b"\n\x18\n\x16\n\x01a\x12\x11\x1a\x0f\x08\x01\x08\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01\x08\x03";
        assert_eq!(json_to_example(ints.as_bytes()).unwrap(), expect);
        let bytes =
            r#"{features:{'feature':{"a":{"bytes_list":{"value":["YQ==","YWJj","YQ","-_-_",]}}}}}"#;
        let expect = b"\n\x19\n\x17\n\x01a\x12\x12\n\x10\n\x01a\n\x03abc\n\x01a\n\x03\xfb\xff\xbf";
        assert_eq!(json_to_example(bytes.as_bytes()).unwrap(), expect);
        for (json, expect) in [
            ("{}", &b""[..]),
            (
                r#"{"features":{"feature":{"a":null}}}"#,
                b"\n\x05\n\x03\n\x01a",
            ),
            (
                r#"{"features":{"feature":{"a":{}}}}"#,
                b"\n\x07\n\x05\n\x01a\x12\x00",
            ),
            (
                r#"{"features":{"feature":{"a":{"int64List":{"value":[1,[2.0]]}}}}}"#,
                b"\n\r\n\x0b\n\x01a\x12\x06\x1a\x04\x08\x01\x08\x02",
            ),
        ] {
            assert_eq!(json_to_example(json.as_bytes()).unwrap(), expect, "{json}");
        }
    }

    #[test]
    fn malformed_and_deep_texts_are_refused() {
        let list = |values: &str| {
            format!(r#"{{"features":{{"feature":{{"a":{{"int64List":{{"value":{values}}}}}}}}}}}"#)
        };
        for json in [
            "",
            "[]",
            "{",
            "null",
            "{} {}",
            r#"{"x":1}"#,
            r#"{"features":3}"#,
        ] {
            assert!(json_to_example(json.as_bytes()).is_err(), "{json}");
        }
        for values in ["[1.5]", "[true]", "[9223372036854775808]", "[\"x\"]", "3 4"] {
            assert!(
                json_to_example(list(values).as_bytes()).is_err(),
                "{values}"
            );
        }
        let deep = list(&"[".repeat(100_000));
        assert!(json_to_example(deep.as_bytes()).is_err());
        let mut noise = crate::testing::Noise(11);
        let good = list("[1,\"2\\u00e9\"]").into_bytes();
        for _ in 0..5000 {
            let mut bad = good.clone();
            let at = noise.below(bad.len());
            bad[at] = noise.next() as u8;
            let _ = json_to_example(&bad[..noise.below(good.len() + 1)]);
        }
    }
}
