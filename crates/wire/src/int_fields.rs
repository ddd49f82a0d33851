//! Messages that consist of integers and lists of them only, such as the dimension numbers of
//! XLA's ops, by field number.

use prost::encoding::{WireType, decode_varint};

/// The integers of a message's fields, in the order in which they came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IntFields(Vec<(u32, i64)>);

impl IntFields {
    /// Reads a message; `None` if it is none, or holds anything else.
    pub fn decode(bytes: &[u8]) -> Option<IntFields> {
        let mut rest = bytes;
        let mut fields = Vec::new();
        while !rest.is_empty() {
            let key = decode_varint(&mut rest).ok()?;
            let field = u32::try_from(key >> 3).ok()?;
            match WireType::try_from(key & 7).ok()? {
                WireType::Varint => fields.push((field, decode_varint(&mut rest).ok()? as i64)),
                WireType::LengthDelimited => {
                    let len = usize::try_from(decode_varint(&mut rest).ok()?).ok()?;
                    let (mut list, after) = rest.split_at_checked(len)?;
                    rest = after;
                    while !list.is_empty() {
                        fields.push((field, decode_varint(&mut list).ok()? as i64));
                    }
                }
                _ => return None,
            }
        }
        Some(IntFields(fields))
    }

    /// All integers of a field.
    pub fn list(&self, field: u32) -> Vec<i64> {
        let of = self.0.iter().filter(|(f, _)| *f == field);
        of.map(|(_, v)| *v).collect()
    }

    /// The last integer of a field, 0 if there is none.
    pub fn one(&self, field: u32) -> i64 {
        self.list(field).last().copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::IntFields;

    #[test]
    fn lists_are_read_packed_or_not_and_what_is_cut_off_is_refused() {
        let fields = IntFields::decode(&[0x0a, 2, 1, 2, 0x08, 3, 0x20, 7]).unwrap();
        assert_eq!(fields.list(1), [1, 2, 3]);
        assert_eq!((fields.one(4), fields.one(9)), (7, 0));
        assert_eq!(IntFields::decode(&[0x0a, 2, 1]), None);
        assert_eq!(IntFields::decode(&[0x08]), None);
        assert_eq!(IntFields::decode(&[0x0d, 1, 2, 3, 4]), None);
    }
}
