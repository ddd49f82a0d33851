//! Snappy: blocks, as TensorFlow compresses elements of datasets, and streams of them, each behind its length in four bytes.

use crate::stream::carry;
use downpour_graph::{Result, Status};
use std::io::{self, Read, Write};

/// Bytes of a stream that become a block. TensorFlow's readers take blocks of up to 256 KiB.
const BLOCK: usize = 128 << 10;

/// A stream of blocks as the bytes they hold.
pub(crate) struct Stream<R> {
    source: R,
    /// Largest block that is accepted, compressed or not.
    limit: usize,
    block: Vec<u8>,
    start: usize,
}

impl<R: Read> Stream<R> {
    pub(crate) fn new(source: R, limit: usize) -> Stream<R> {
        Stream {
            source,
            limit,
            block: Vec::new(),
            start: 0,
        }
    }

    /// Reads the next block; whether there was one.
    fn refill(&mut self) -> io::Result<bool> {
        let mut header = Vec::with_capacity(4);
        (&mut self.source).take(4).read_to_end(&mut header)?;
        if header.is_empty() {
            return Ok(false);
        }
        let header = <[u8; 4]>::try_from(header).map_err(|_| corrupt())?;
        let length = u32::from_be_bytes(header) as usize;
        if length > self.limit {
            return Err(too_large(length, self.limit));
        }
        let mut packed = Vec::new();
        (&mut self.source)
            .take(length as u64)
            .read_to_end(&mut packed)?;
        if packed.len() != length {
            return Err(corrupt());
        }
        let size = snap::raw::decompress_len(&packed).map_err(|_| corrupt())?;
        if size > self.limit {
            return Err(too_large(size, self.limit));
        }
        self.block = uncompress(&packed, size).map_err(carry)?;
        self.start = 0;
        Ok(true)
    }
}

fn corrupt() -> io::Error {
    carry(Status::data_loss("a Snappy stream is corrupted"))
}

fn too_large(size: usize, limit: usize) -> io::Error {
    carry(Status::resource_exhausted(format!(
        "a Snappy block has {size} bytes, more than the limit of {limit}"
    )))
}

impl<R: Read> Read for Stream<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            let waiting = self.block.get(self.start..).unwrap_or_default();
            if !waiting.is_empty() || buf.is_empty() {
                let n = waiting.len().min(buf.len());
                for (to, from) in buf.iter_mut().zip(waiting) {
                    *to = *from;
                }
                self.start += n;
                return Ok(n);
            }
            if !self.refill()? {
                return Ok(0);
            }
        }
    }
}

/// Writes a stream of blocks.
pub(crate) struct StreamWriter<W: Write> {
    sink: W,
    waiting: Vec<u8>,
}

impl<W: Write> StreamWriter<W> {
    pub(crate) fn new(sink: W) -> StreamWriter<W> {
        StreamWriter {
            sink,
            waiting: Vec::new(),
        }
    }

    fn block(&mut self) -> io::Result<()> {
        if !self.waiting.is_empty() {
            let packed = compress(&self.waiting).map_err(carry)?;
            self.sink.write_all(&(packed.len() as u32).to_be_bytes())?;
            self.sink.write_all(&packed)?;
            self.waiting.clear();
        }
        Ok(())
    }

    /// Writes what waits and gives back what is written to.
    pub(crate) fn finish(mut self) -> io::Result<W> {
        self.block()?;
        Ok(self.sink)
    }
}

impl<W: Write> Write for StreamWriter<W> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let (now, _) = data.split_at(data.len().min(BLOCK - self.waiting.len()));
        self.waiting.extend_from_slice(now);
        if self.waiting.len() == BLOCK {
            self.block()?;
        }
        Ok(now.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.block()?;
        self.sink.flush()
    }
}

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
    fn streams_come_back_and_broken_ones_are_refused() {
        let data: Vec<u8> = (0..400_000u32)
            .map(|i| (i.wrapping_mul(i) / 7) as u8)
            .collect();
        let mut writer = StreamWriter::new(Vec::new());
        writer.write_all(&data).unwrap();
        let stream = writer.finish().unwrap();
        let read = |bytes: &[u8], limit| {
            let mut out = Vec::new();
            Stream::new(bytes, limit).read_to_end(&mut out).map(|_| out)
        };
        assert_eq!(read(&stream, 1 << 20).unwrap(), data);
        for cut in [1, 3, 4, 100, stream.len() - 1] {
            assert!(read(&stream[..cut], 1 << 20).is_err(), "{cut}");
        }
        assert!(read(&stream, 1000).is_err());
        let bomb = compress(&[0; 1 << 20]).unwrap();
        let framed = [&(bomb.len() as u32).to_be_bytes()[..], &bomb].concat();
        assert!(read(&framed, 1 << 19).is_err());
    }

    #[test]
    fn blocks_come_back_and_wrong_sizes_are_refused() {
        let block = compress(&[5; 1000]).unwrap();
        assert!(block.len() < 100);
        assert_eq!(uncompress(&block, 1000).unwrap(), [5; 1000]);
        assert!(uncompress(&block, 999).is_err());
        assert!(uncompress(b"\xff", 1).is_err());
    }
}
