//! What matters of the messages that `tf.data` ops carry as strings: options and metadata.

use crate::coding::Cursor;

/// `deterministic` (field 1 of a serialized `tf.data.Options`), if it is set: the one option that
/// changes what a pipeline gives. Bytes that are no message say nothing.
pub fn deterministic(options: &[u8]) -> Option<bool> {
    let mut found = None;
    fields(options, |field| {
        if let Field::Number(1, value) = field {
            found = Some(value != 0);
        }
    })?;
    found
}

/// `distribute_options.auto_shard_policy` of a serialized `tf.data.Options`, if it is set.
pub fn auto_shard_policy(options: &[u8]) -> Option<i64> {
    let mut found = None;
    fields(options, |field| {
        if let Field::Bytes(2, distribute) = field {
            let _ = fields(distribute, |field| {
                if let Field::Number(1, value) = field {
                    found = Some(i64::from(value as i32));
                }
            });
        }
    })?;
    found
}

/// `name` (field 1 of a serialized `Metadata`), if it is set.
pub fn metadata_name(metadata: &[u8]) -> Option<String> {
    let mut found = None;
    fields(metadata, |field| {
        if let Field::Bytes(1, value) = field {
            found = Some(String::from_utf8_lossy(value).into_owned());
        }
    })?;
    found.filter(|name| !name.is_empty())
}

/// The class of the type in a serialised `CompositeTensorVariantMetadata`, if it says one.
pub fn type_spec_class(metadata: &[u8]) -> Option<u64> {
    let mut found = None;
    fields(metadata, |field| {
        if let Field::Bytes(1, spec) = field {
            let _ = fields(spec, |field| {
                if let Field::Number(1, class) = field {
                    found = Some(class);
                }
            });
        }
    })?;
    found
}

enum Field<'a> {
    Number(u32, u64),
    Bytes(u32, &'a [u8]),
}

/// Visits the numbers and byte strings of a message; `None` where it is none.
fn fields<'a>(message: &'a [u8], mut visit: impl FnMut(Field<'a>)) -> Option<()> {
    let mut cursor = Cursor(message);
    while !cursor.is_empty() {
        let tag = cursor.varint32()?;
        match (tag >> 3, tag & 7) {
            (n, 0) => visit(Field::Number(n, cursor.varint64()?)),
            (_, 1) => {
                cursor.array::<8>()?;
            }
            (n, 2) => {
                let length = cursor.length()?;
                visit(Field::Bytes(n, cursor.take(length)?));
            }
            (_, 5) => {
                cursor.array::<4>()?;
            }
            _ => return None,
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_among_others() {
        assert_eq!(deterministic(b"\x12\x02ab\x08\x00"), Some(false));
        assert_eq!(deterministic(b"\x08\x01"), Some(true));
        assert_eq!(deterministic(b""), None);
        assert_eq!(deterministic(b"\x12\xff"), None);
        assert_eq!(auto_shard_policy(b"\x12\x02\x08\x02"), Some(2));
        let off = b"\x12\x0b\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01";
        assert_eq!(auto_shard_policy(off), Some(-1));
        assert_eq!(auto_shard_policy(b"\x08\x01"), None);
        assert_eq!(metadata_name(b"\x0a\x01m"), Some("m".into()));
        assert_eq!(metadata_name(b""), None);
        assert_eq!(type_spec_class(b"\x0a\x02\x08\x03"), Some(3));
        assert_eq!(type_spec_class(b"\x0a\x00"), None);
    }
}
