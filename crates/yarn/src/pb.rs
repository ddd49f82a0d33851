//! Protobuf by hand: fields out, fields in. A message is read one level at a time, as slices of what came: nothing is copied, and nothing
//! nests. Bytes from outside can make reading fail, never panic, and cost memory only in proportion to their number.

/// Most fields of one level of a message.
const MAX_FIELDS: usize = 1 << 20;

/// What is wrong with bytes that should be a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed message: {0}")]
pub struct PbError(pub(crate) &'static str);

/// A message that is written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message(Vec<u8>);

impl Message {
    /// One without fields.
    pub fn new() -> Message {
        Message::default()
    }

    fn varint(mut self, mut value: u64) -> Message {
        while value >= 0x80 {
            self.0.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
        self
    }

    /// An integer, enum or bool; negative ones as protobuf's `int32` and `int64` have them.
    pub fn int(self, field: u32, value: i64) -> Message {
        self.varint(u64::from(field) << 3)
            .varint(value.cast_unsigned())
    }

    /// A `sint32`.
    pub(crate) fn signed(self, field: u32, value: i32) -> Message {
        let folded = (value << 1) ^ (value >> 31);
        self.varint(u64::from(field) << 3)
            .varint(u64::from(folded.cast_unsigned()))
    }

    /// Bytes.
    pub fn bytes(self, field: u32, value: &[u8]) -> Message {
        let head = self.varint(u64::from(field) << 3 | 2);
        let mut message = head.varint(value.len() as u64);
        message.0.extend_from_slice(value);
        message
    }

    /// Text.
    pub fn text(self, field: u32, value: &str) -> Message {
        self.bytes(field, value.as_bytes())
    }

    /// A message in it.
    pub fn message(self, field: u32, value: &Message) -> Message {
        self.bytes(field, &value.0)
    }

    /// A `float`.
    pub(crate) fn float(self, field: u32, value: f32) -> Message {
        let mut message = self.varint(u64::from(field) << 3 | 5);
        message.0.extend_from_slice(&value.to_le_bytes());
        message
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Its bytes with their number before them.
    pub(crate) fn delimited(&self) -> Vec<u8> {
        let mut whole = Message::new().varint(self.0.len() as u64);
        whole.0.extend_from_slice(&self.0);
        whole.0
    }
}

#[derive(Clone, Copy, Debug)]
enum Value<'a> {
    Int(u64),
    Bytes(&'a [u8]),
}

/// The fields of a message that came; those that are missing read as 0 or empty, as protobuf has it.
#[derive(Clone, Debug, Default)]
pub struct Fields<'a>(Vec<(u32, Value<'a>)>);

/// Takes a number off the front.
pub(crate) fn varint(from: &mut &[u8]) -> Result<u64, PbError> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (first, rest) = from.split_first().ok_or(PbError("it ends in a number"))?;
        *from = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(PbError("a number is too long"))
}

/// Takes bytes with their number before them off the front.
pub(crate) fn delimited<'a>(from: &mut &'a [u8]) -> Result<&'a [u8], PbError> {
    let length = varint(from)?;
    let length = usize::try_from(length).map_err(|_| PbError("a length is too large"))?;
    take(from, length)
}

fn take<'a>(from: &mut &'a [u8], length: usize) -> Result<&'a [u8], PbError> {
    let (head, rest) = from
        .split_at_checked(length)
        .ok_or(PbError("it ends in a field"))?;
    *from = rest;
    Ok(head)
}

impl<'a> Fields<'a> {
    /// Reads the fields of a message.
    pub fn read(mut from: &'a [u8]) -> Result<Fields<'a>, PbError> {
        let mut fields = Vec::new();
        while !from.is_empty() {
            let key = varint(&mut from)?;
            let field =
                u32::try_from(key >> 3).map_err(|_| PbError("a field's number is too large"))?;
            match key & 7 {
                0 => fields.push((field, Value::Int(varint(&mut from)?))),
                1 => _ = take(&mut from, 8)?,
                2 => fields.push((field, Value::Bytes(delimited(&mut from)?))),
                5 => _ = take(&mut from, 4)?,
                _ => return Err(PbError("a field is of no known kind")),
            }
            if fields.len() > MAX_FIELDS {
                return Err(PbError("it has too many fields"));
            }
        }
        Ok(Fields(fields))
    }

    /// An integer, if it is there. Of several the last counts.
    pub fn maybe_int(&self, field: u32) -> Option<i64> {
        self.0.iter().rev().find_map(|(number, value)| match value {
            Value::Int(value) if *number == field => Some(value.cast_signed()),
            _ => None,
        })
    }

    /// An integer, or 0.
    pub fn int(&self, field: u32) -> i64 {
        self.maybe_int(field).unwrap_or(0)
    }

    /// All values of a repeated field.
    pub fn all(&self, field: u32) -> impl DoubleEndedIterator<Item = &'a [u8]> {
        self.0
            .iter()
            .filter_map(move |(number, value)| match value {
                Value::Bytes(bytes) if *number == field => Some(*bytes),
                _ => None,
            })
    }

    /// Bytes, or none.
    pub fn bytes(&self, field: u32) -> &'a [u8] {
        self.all(field).next_back().unwrap_or_default()
    }

    /// Text; what is no UTF-8 in it is replaced.
    pub fn text(&self, field: u32) -> String {
        String::from_utf8_lossy(self.bytes(field)).into_owned()
    }

    /// The message in it.
    pub fn message(&self, field: u32) -> Result<Fields<'a>, PbError> {
        Fields::read(self.bytes(field))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_reads_alike() {
        let inner = Message::new().text(1, "n1").int(2, -5);
        let outer = Message::new()
            .int(1, 300)
            .message(2, &inner)
            .float(3, 0.5)
            .message(2, &inner)
            .signed(4, -1);
        let read = Fields::read(outer.as_bytes()).unwrap();
        assert_eq!((read.int(1), read.int(4), read.int(9)), (300, 1, 0));
        assert_eq!(read.all(2).count(), 2);
        let inner = read.message(2).unwrap();
        assert_eq!((inner.text(1).as_str(), inner.int(2)), ("n1", -5));
    }

    #[test]
    fn no_bytes_panic_or_are_read_past_their_end() {
        // Every prefix of a message, and every single change of a byte in it.
        let whole = Message::new()
            .int(1, i64::MIN)
            .text(2, "abc")
            .float(3, 1.0)
            .bytes(15, &[0xff; 130]);
        let whole = whole.as_bytes();
        for end in 0..whole.len() {
            let _ = Fields::read(&whole[..end]);
        }
        for at in 0..whole.len() {
            for value in 0..=255 {
                let mut changed = whole.to_vec();
                changed[at] = value;
                if let Ok(read) = Fields::read(&changed) {
                    let bytes: usize = (0..64).flat_map(|f| read.all(f)).map(<[u8]>::len).sum();
                    assert!(bytes <= changed.len());
                }
            }
        }
        assert!(
            Fields::read(&[
                0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01
            ])
            .is_err()
        );
        assert!(Fields::read(&[0xff; 11]).is_err());
        assert!(Fields::read(&[0x0b]).is_err());
    }
}
