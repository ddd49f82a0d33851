//! Protobuf's wire format as far as no schema is needed: tags, numbers, and values that are passed over. Nothing is
//! read beyond the bytes given; groups may be nested a hundred deep, as in protobuf itself.

/// Groups or messages in one another.
pub(super) const MAX_DEPTH: usize = 100;

pub(crate) const VARINT: u8 = 0;
pub(super) const FIXED64: u8 = 1;
pub(crate) const BYTES: u8 = 2;
pub(super) const START_GROUP: u8 = 3;
pub(super) const END_GROUP: u8 = 4;
pub(super) const FIXED32: u8 = 5;

/// A place in a message's bytes.
#[derive(Clone, Copy)]
pub(crate) struct Input<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) at: usize,
}

/// A field's number and how its value is written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Tag {
    pub(crate) number: u32,
    pub(crate) wire: u8,
}

impl<'a> Input<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Input<'a> {
        Input { bytes, at: 0 }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.at >= self.bytes.len()
    }

    /// The next tag; `None` at the end of a message, at a tag of zero and at one that is broken off.
    pub(crate) fn tag(&mut self) -> Option<Tag> {
        let start = self.at;
        let tag = self.varint().unwrap_or(0) as u32;
        if tag == 0 {
            self.at = start;
            return None;
        }
        Some(Tag {
            number: tag >> 3,
            wire: (tag & 7) as u8,
        })
    }

    /// A number of at most ten bytes.
    pub(crate) fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for i in 0..10 {
            let byte = *self.bytes.get(self.at)?;
            self.at += 1;
            value |= u64::from(byte & 0x7f) << (7 * i);
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    pub(super) fn fixed32(&mut self) -> Option<u32> {
        let word = self.bytes.get(self.at..)?.first_chunk::<4>()?;
        self.at += 4;
        Some(u32::from_le_bytes(*word))
    }

    pub(super) fn fixed64(&mut self) -> Option<u64> {
        let word = self.bytes.get(self.at..)?.first_chunk::<8>()?;
        self.at += 8;
        Some(u64::from_le_bytes(*word))
    }

    /// So many bytes as the number before them says.
    pub(crate) fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.varint()? as u32;
        self.take(i32::try_from(len).ok()? as usize)
    }

    pub(super) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let bytes = self.bytes.get(self.at..self.at.checked_add(len)?)?;
        self.at += len;
        Some(bytes)
    }

    /// Passes over the value of a field.
    pub(crate) fn skip(&mut self, tag: Tag, depth: usize) -> Option<()> {
        if tag.number == 0 || depth > MAX_DEPTH {
            return None;
        }
        match tag.wire {
            VARINT => self.varint().map(drop),
            FIXED64 => self.fixed64().map(drop),
            FIXED32 => self.fixed32().map(drop),
            BYTES => self.bytes().map(drop),
            START_GROUP => loop {
                let inner = self.tag()?;
                if inner.wire == END_GROUP {
                    return (inner.number == tag.number).then_some(());
                }
                self.skip(inner, depth + 1)?;
            },
            _ => None,
        }
    }
}

/// Appends a number.
pub(super) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a tag.
pub(super) fn put_tag(out: &mut Vec<u8>, number: u32, wire: u8) {
    put_varint(out, u64::from(number) << 3 | u64::from(wire));
}

/// Appends bytes with their number before them.
pub(super) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Small numbers, negative ones too, as small numbers that are not negative.
pub(super) fn zigzag(v: i64) -> u64 {
    (v << 1 ^ v >> 63) as u64
}

pub(super) fn unzigzag32(v: u32) -> i32 {
    (v >> 1) as i32 ^ -((v & 1) as i32)
}

pub(super) fn unzigzag64(v: u64) -> i64 {
    (v >> 1) as i64 ^ -((v & 1) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_and_broken_ones_do_not() {
        for v in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX] {
            let mut out = Vec::new();
            put_varint(&mut out, v);
            assert_eq!(Input::new(&out).varint(), Some(v));
            assert_eq!(Input::new(&out[..out.len() - 1]).varint(), None);
        }
        assert_eq!(Input::new(&[0xff; 11]).varint(), None);
        for v in [0i64, -1, 1, i64::MIN, i64::MAX] {
            assert_eq!(unzigzag64(zigzag(v)), v);
        }
        for v in [0i32, -1, 1, i32::MIN, i32::MAX] {
            assert_eq!(unzigzag32(zigzag(v.into()) as u32), v);
        }
    }

    #[test]
    fn groups_are_passed_over_with_their_own_ends_only() {
        // Field 1, a group that holds a group and a number.
        let group = [0x0b, 0x13, 0x08, 0x05, 0x14, 0x0c];
        let mut input = Input::new(&group);
        let tag = input.tag().unwrap();
        assert_eq!(tag.wire, START_GROUP);
        assert!(input.skip(tag, 0).is_some() && input.is_done());
        let mut wrong = Input::new(&[0x0b, 0x14]);
        let tag = wrong.tag().unwrap();
        assert!(wrong.skip(tag, 0).is_none());
        let deep = [0x0b; 200];
        let mut input = Input::new(&deep);
        let tag = input.tag().unwrap();
        assert!(input.skip(tag, 0).is_none());
    }
}
