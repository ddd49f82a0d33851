//! What a reader writes down of itself: TensorFlow's `ReaderBaseState` message.

use crate::coding::Cursor;

/// The message with these counts and the name of the current work.
pub fn encode(started: i64, finished: i64, produced: i64, work: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for (field, value) in [(1u8, started), (2, finished), (3, produced)] {
        if value != 0 {
            out.push(field << 3);
            varint(value as u64, &mut out);
        }
    }
    if !work.is_empty() {
        out.push(4 << 3 | 2);
        varint(work.len() as u64, &mut out);
        out.extend_from_slice(work);
    }
    out
}

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Started, finished, produced, current work; `None` where the bytes are no such message.
pub fn decode(bytes: &[u8]) -> Option<(i64, i64, i64, &[u8])> {
    let mut state = (0, 0, 0, &[][..]);
    let mut cursor = Cursor(bytes);
    while !cursor.is_empty() {
        let tag = cursor.varint32()?;
        match (tag >> 3, tag & 7) {
            (0, _) => return None,
            (1, 0) => state.0 = cursor.varint64()? as i64,
            (2, 0) => state.1 = cursor.varint64()? as i64,
            (3, 0) => state.2 = cursor.varint64()? as i64,
            (field, 2) => {
                let length = cursor.length()?;
                let value = cursor.take(length)?;
                if field == 4 {
                    state.3 = value;
                }
            }
            (_, 0) => {
                cursor.varint64()?;
            }
            (_, 1) => {
                cursor.array::<8>()?;
            }
            (_, 5) => {
                cursor.array::<4>()?;
            }
            _ => return None,
        }
    }
    Some(state)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_survives_and_junk_is_refused() {
        let bytes = encode(300, 2, 1, b"file");
        assert_eq!(bytes, b"\x08\xac\x02\x10\x02\x18\x01\x22\x04file");
        assert_eq!(decode(&bytes), Some((300, 2, 1, &b"file"[..])));
        assert_eq!(decode(b""), Some((0, 0, 0, &b""[..])));
        assert_eq!(decode(b"junk"), None);
        assert_eq!(decode(&bytes[..bytes.len() - 1]), None);
    }
}
