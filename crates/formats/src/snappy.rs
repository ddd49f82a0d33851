//! Snappy blocks, as TensorFlow compresses elements of datasets.

use downpour_graph::{Result, Status};

/// A block that holds `data`.
pub fn compress(data: &[u8]) -> Result<Vec<u8>> {
    snap::raw::Encoder::new()
        .compress_vec(data)
        .map_err(|_| Status::internal("Failed to compress using snappy."))
}

/// What a block holds, which must be `size` bytes.
pub fn uncompress(block: &[u8], size: usize) -> Result<Vec<u8>> {
    let corrupt = || Status::internal("Could not uncompress a Snappy block.");
    if snap::raw::decompress_len(block).map_err(|_| corrupt())? != size {
        return Err(corrupt());
    }
    snap::raw::Decoder::new()
        .decompress_vec(block)
        .map_err(|_| corrupt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_come_back_and_wrong_sizes_are_refused() {
        let block = compress(&[5; 1000]).unwrap();
        assert!(block.len() < 100);
        assert_eq!(uncompress(&block, 1000).unwrap(), [5; 1000]);
        assert!(uncompress(&block, 999).is_err());
        assert!(uncompress(b"\xff", 1).is_err());
    }
}
