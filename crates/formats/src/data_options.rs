//! The one field of a serialized `tf.data.Options` that changes what a pipeline gives.

use crate::coding::Cursor;

/// `deterministic` (field 1), if it is set. Bytes that are no message say nothing.
pub fn deterministic(options: &[u8]) -> Option<bool> {
    let mut found = None;
    let mut cursor = Cursor(options);
    while !cursor.is_empty() {
        let tag = cursor.varint32()?;
        match (tag >> 3, tag & 7) {
            (1, 0) => found = Some(cursor.varint64()? != 0),
            (_, 0) => {
                cursor.varint64()?;
            }
            (_, 1) => {
                cursor.array::<8>()?;
            }
            (_, 2) => {
                let length = cursor.length()?;
                cursor.take(length)?;
            }
            (_, 5) => {
                cursor.array::<4>()?;
            }
            _ => return None,
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::deterministic;

    #[test]
    fn the_option_is_found_among_others() {
        assert_eq!(deterministic(b"\x12\x02ab\x08\x00"), Some(false));
        assert_eq!(deterministic(b"\x08\x01"), Some(true));
        assert_eq!(deterministic(b""), None);
        assert_eq!(deterministic(b"\x12\xff"), None);
    }
}
