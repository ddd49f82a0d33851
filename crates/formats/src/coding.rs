//! Little-endian integers and varints out of untrusted bytes. Nothing here can run past its input.

/// A cursor that takes bytes off the front of a slice.
#[derive(Clone, Copy)]
pub(crate) struct Cursor<'a>(pub(crate) &'a [u8]);

impl<'a> Cursor<'a> {
    /// Whether nothing is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next `n` bytes.
    pub(crate) fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(n)?;
        self.0 = tail;
        Some(head)
    }

    /// The next `N` bytes as an array.
    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk::<N>()?;
        self.0 = tail;
        Some(*head)
    }

    /// A base-128 varint of at most 64 bits.
    #[inline]
    pub(crate) fn varint64(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..70).step_by(7) {
            let (&byte, tail) = self.0.split_first()?;
            self.0 = tail;
            // The tenth byte has room for one bit only; protobuf drops the rest.
            value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    /// A varint that must fit 32 bits.
    pub(crate) fn varint32(&mut self) -> Option<u32> {
        self.varint64()?.try_into().ok()
    }

    /// A varint that counts bytes in memory.
    pub(crate) fn length(&mut self) -> Option<usize> {
        self.varint64()?.try_into().ok()
    }
}

/// Appends `value` as a varint.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A little-endian `u32` at `offset`.
pub(crate) fn u32_at(data: &[u8], offset: usize) -> Option<u32> {
    let bytes = data.get(offset..)?.first_chunk::<4>()?;
    Some(u32::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_round_trip() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), 1 << 63, u64::MAX] {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            let mut cursor = Cursor(&out);
            assert_eq!(cursor.varint64(), Some(value));
            assert!(cursor.is_empty());
            assert!(Cursor(&out[..out.len() - 1]).varint64().is_none());
        }
    }

    #[test]
    fn endless_and_wide_varints_are_refused() {
        assert_eq!(Cursor(&[0xff; 20]).varint64(), None);
        let mut out = Vec::new();
        put_varint(&mut out, 1 << 32);
        assert_eq!(Cursor(&out).varint32(), None);
    }
}
