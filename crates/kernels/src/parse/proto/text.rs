//! Protobuf's text format for message types that are given at run time. As protobuf's own parser it refuses unknown
//! fields, fields that are set twice, two fields of one `oneof`, and messages that lack what is required.

use super::schema::{Field, Kind, Pool};
use super::value::{Dynamic, Value};
use super::wire::{MAX_DEPTH, zigzag};

/// The message of the type `name` that a text gives; `None` if it gives none.
pub(super) fn parse(pool: &Pool, name: &str, text: &[u8]) -> Option<Dynamic> {
    let mut parser = Parser { text, at: 0 };
    let mut message = Dynamic::default();
    parser.message(pool, name, None, &mut message, 0)?;
    message.is_whole(pool, name).then_some(message)
}

/// What a quoted text stands for.
pub(super) fn unescape(text: &[u8]) -> Option<Vec<u8>> {
    let (mut out, mut rest) = (Vec::with_capacity(text.len()), text);
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        let (&kind, after) = rest.split_first()?;
        rest = after;
        let digits = |rest: &[u8], radix: u32, most: usize| {
            let is_digit = |b: &&u8| char::from(**b).is_digit(radix);
            rest.iter().take(most).take_while(is_digit).count()
        };
        let value = |digits: &[u8], radix| {
            u32::from_str_radix(std::str::from_utf8(digits).ok()?, radix).ok()
        };
        match kind {
            b'a' => out.push(7),
            b'b' => out.push(8),
            b'f' => out.push(12),
            b'n' => out.push(b'\n'),
            b'r' => out.push(b'\r'),
            b't' => out.push(b'\t'),
            b'v' => out.push(11),
            b'\\' | b'\'' | b'"' | b'?' => out.push(kind),
            b'0'..=b'7' => {
                let more = digits(rest, 8, 2);
                let mut all = vec![kind];
                all.extend_from_slice(&rest[..more]);
                out.push(u8::try_from(value(&all, 8)?).ok()?);
                rest = &rest[more..];
            }
            b'x' | b'X' => {
                let more = digits(rest, 16, 2);
                out.push(value(&rest[..more], 16)? as u8);
                rest = &rest[more..];
            }
            b'u' | b'U' => {
                let most = if kind == b'u' { 4 } else { 8 };
                let character = char::from_u32(value(rest.get(..most)?, 16)?)?;
                out.extend(character.to_string().bytes());
                rest = &rest[most..];
            }
            _ => return None,
        }
    }
    Some(out)
}

struct Parser<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Parser<'a> {
    fn skip(&mut self) {
        while let Some(&byte) = self.text.get(self.at) {
            match byte {
                b' ' | b'\t'..=b'\r' => self.at += 1,
                b'#' => {
                    let rest = &self.text[self.at..];
                    self.at += rest.iter().position(|&b| b == b'\n').unwrap_or(rest.len());
                }
                _ => return,
            }
        }
    }

    fn peek(&mut self) -> Option<u8> {
        self.skip();
        self.text.get(self.at).copied()
    }

    fn eat(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    /// A name, or a number with all that belongs to it.
    fn word(&mut self) -> Option<&'a str> {
        self.skip();
        let rest = &self.text[self.at..];
        let in_number = rest
            .first()
            .is_some_and(|b| b.is_ascii_digit() || *b == b'.');
        let mut len = 0;
        while let Some(&b) = rest.get(len) {
            let signed = len > 0 && matches!(rest[len - 1], b'e' | b'E');
            let is_hex = rest.starts_with(b"0x") || rest.starts_with(b"0X");
            let in_sign = in_number && signed && !is_hex && matches!(b, b'+' | b'-');
            let in_word = b.is_ascii_alphanumeric() || b == b'_' || (in_number && b == b'.');
            if !in_word && !in_sign {
                break;
            }
            len += 1;
        }
        self.at += len;
        (len > 0).then(|| std::str::from_utf8(&rest[..len]).ok())?
    }

    /// Strings, one after the other.
    fn string(&mut self) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        let mut some = false;
        while let Some(quote @ (b'"' | b'\'')) = self.peek() {
            let start = self.at + 1;
            let mut end = start;
            loop {
                match self.text.get(end)? {
                    b'\\' => end += 2,
                    b'\n' => return None,
                    b if *b == quote => break,
                    _ => end += 1,
                }
            }
            out.extend(unescape(self.text.get(start..end)?)?);
            self.at = end + 1;
            some = true;
        }
        some.then_some(out)
    }

    fn message(
        &mut self,
        pool: &Pool,
        name: &str,
        end: Option<u8>,
        message: &mut Dynamic,
        depth: usize,
    ) -> Option<()> {
        if depth > MAX_DEPTH {
            return None;
        }
        loop {
            match (self.peek(), end) {
                (None, None) => return Some(()),
                (Some(b), Some(end)) if b == end => {
                    self.at += 1;
                    return Some(());
                }
                (None, _) => return None,
                _ => (),
            }
            self.field(pool, name, message, depth)?;
            let _ = self.eat(b',') || self.eat(b';');
        }
    }

    fn field(
        &mut self,
        pool: &Pool,
        name: &str,
        message: &mut Dynamic,
        depth: usize,
    ) -> Option<()> {
        let field = if self.eat(b'[') {
            let mut full = self.word()?.to_owned();
            while self.eat(b'.') {
                full = format!("{full}.{}", self.word()?);
            }
            if !self.eat(b']') {
                return None;
            }
            pool.extension(name, &full)?
        } else {
            let word = self.word()?;
            let of_type = pool.message(name)?;
            // A group is called by its type's name.
            match of_type.field(word).filter(|f| f.kind != Kind::Group) {
                Some(field) => field,
                None => of_type
                    .fields
                    .values()
                    .filter(|f| f.kind == Kind::Group)
                    .find(|f| f.type_name.rsplit('.').next() == Some(word))?,
            }
        };
        if !field.is_repeated && message.fields.contains_key(&field.number)
            || message.other_of_oneof(pool, name, field).is_some()
        {
            return None;
        }
        let is_message = matches!(field.kind, Kind::Message | Kind::Group);
        if !self.eat(b':') && !is_message {
            return None;
        }
        if field.is_repeated && self.eat(b'[') {
            if self.eat(b']') {
                return Some(());
            }
            loop {
                self.value(pool, name, field, message, depth)?;
                if self.eat(b']') {
                    return Some(());
                }
                if !self.eat(b',') {
                    return None;
                }
            }
        }
        self.value(pool, name, field, message, depth)
    }

    fn value(
        &mut self,
        pool: &Pool,
        name: &str,
        field: &Field,
        message: &mut Dynamic,
        depth: usize,
    ) -> Option<()> {
        let value = match field.kind {
            Kind::Message | Kind::Group => {
                let end = match self.peek()? {
                    b'{' => b'}',
                    b'<' => b'>',
                    _ => return None,
                };
                self.at += 1;
                let inner = message.open(pool, name, field);
                self.message(pool, &field.type_name, Some(end), inner, depth + 1)?;
                message.end_entry(pool, field);
                return Some(());
            }
            Kind::String | Kind::Bytes => {
                let bytes = self.string()?;
                if field.is_utf8 && std::str::from_utf8(&bytes).is_err() {
                    return None;
                }
                Value::Bytes(bytes)
            }
            kind => {
                let minus = self.eat(b'-');
                let word = self.word()?;
                Value::Number(number(pool, field, kind, minus, word)?)
            }
        };
        message.set(pool, name, field, value);
        Some(())
    }
}

/// The digits of an integer: decimal, hexadecimal or octal.
fn unsigned(word: &str) -> Option<u64> {
    if !word.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    if let Some(hex) = word.strip_prefix("0x").or_else(|| word.strip_prefix("0X")) {
        return u64::from_str_radix(hex, 16).ok();
    }
    match word.strip_prefix('0') {
        Some(octal) if !octal.is_empty() => u64::from_str_radix(octal, 8).ok(),
        _ => word.parse().ok(),
    }
}

fn float(minus: bool, word: &str) -> Option<f64> {
    let value = match word.to_ascii_lowercase().as_str() {
        "inf" | "infinity" => f64::INFINITY,
        "nan" => f64::NAN,
        word if word.starts_with("0x") => return None,
        word => {
            let digits = word.strip_suffix('f').unwrap_or(word);
            if !digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
                return None;
            }
            digits.parse().ok()?
        }
    };
    Some(if minus { -value } else { value })
}

/// A number as its field writes it.
fn number(pool: &Pool, field: &Field, kind: Kind, minus: bool, word: &str) -> Option<u64> {
    let signed = |bits: u32| -> Option<i64> {
        let v = i128::from(unsigned(word)?) * if minus { -1 } else { 1 };
        let most = 1i128 << (bits - 1);
        (-most..most).contains(&v).then_some(v as i64)
    };
    let plain = |most: u64| unsigned(word).filter(|v| !minus && *v <= most);
    match kind {
        Kind::Double => Some(float(minus, word)?.to_bits()),
        Kind::Float => Some(u64::from((float(minus, word)? as f32).to_bits())),
        Kind::Bool => match word {
            "true" | "True" | "t" => Some(1),
            "false" | "False" | "f" => Some(0),
            _ => plain(1),
        },
        Kind::Enum => {
            let values = pool.enumeration(&field.type_name)?;
            let named = values.values.iter().find(|v| v.0 == word && !minus);
            let value = match named {
                Some(named) => named.1,
                None => {
                    let v = i32::try_from(signed(32)?).ok()?;
                    let known = values.is_open || values.values.iter().any(|n| n.1 == v);
                    known.then_some(v)?
                }
            };
            Some(i64::from(value) as u64)
        }
        Kind::Int32 => Some(signed(32)? as u64),
        Kind::Sfixed32 => Some(u64::from(signed(32)? as u32)),
        Kind::Sint32 | Kind::Sint64 => {
            Some(zigzag(signed(if kind == Kind::Sint32 { 32 } else { 64 })?))
        }
        Kind::Int64 | Kind::Sfixed64 => Some(signed(64)? as u64),
        Kind::Uint32 | Kind::Fixed32 => plain(u32::MAX.into()),
        _ => plain(u64::MAX),
    }
}
