//! The checksum of every format here: CRC-32C, stored "masked" so that a checksum of data that
//! contains checksums stays strong.

use crc_fast::{CrcAlgorithm, Digest};

const MASK_DELTA: u32 = 0xa282_ead8;

/// CRC-32C (Castagnoli) of `data`.
pub fn crc32c(data: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(data)
}

/// The form in which a checksum is stored.
pub fn mask(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(MASK_DELTA)
}

/// The checksum behind its stored form.
pub fn unmask(masked: u32) -> u32 {
    masked.wrapping_sub(MASK_DELTA).rotate_left(15)
}

/// Masked CRC-32C of `data`.
pub fn masked(data: &[u8]) -> u32 {
    mask(crc32c(data))
}

/// A checksum over pieces.
pub struct Crc32c(Digest);

impl Crc32c {
    /// The checksum of nothing.
    #[expect(
        clippy::new_without_default,
        reason = "a checksum under way is no value"
    )]
    pub fn new() -> Crc32c {
        Crc32c(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }

    /// Appends `data`.
    pub fn update(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    /// The checksum so far.
    pub fn value(&self) -> u32 {
        // The digest is 32 bits wide in a 64-bit carrier.
        self.0.finalize() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values_hold() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(
            masked(&5u64.to_le_bytes()),
            u32::from_le_bytes([0xea, 0xb2, 0x04, 0x3e])
        );
    }

    #[test]
    fn unmask_inverts_mask() {
        for crc in [0, 1, u32::MAX, 0xdead_beef] {
            assert_eq!(unmask(mask(crc)), crc);
            assert_ne!(mask(crc), crc);
        }
    }

    #[test]
    fn pieces_give_the_checksum_of_the_whole() {
        let data: Vec<u8> = (0..1000u32).map(|x| (x * 7) as u8).collect();
        for cut in [0, 1, 17, 500, 1000] {
            let mut crc = Crc32c::new();
            let (a, b) = data.split_at(cut);
            crc.update(a);
            crc.update(b);
            assert_eq!(crc.value(), crc32c(&data));
        }
    }
}
