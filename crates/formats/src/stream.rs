//! Files read from front to back: in lines, in pieces of a given length, in whole; plain or as one
//! zlib or gzip stream. Memory is bounded by what the caller allows for one piece.

use crate::record::Compression;
use crate::snappy;
use crate::storage::{ReadAt, Storage};
use bytes::Bytes;
use downpour_graph::{Code, Result, Status};
use downpour_tensor::account::stop_point;
use std::io::{self, Read};

/// Bytes asked of a source at a time.
const BUFFER: usize = 256 << 10;
/// How much a growing piece may ask for ahead of its data.
const GROWTH: usize = 1 << 20;

/// A file as a stream, read in chunks. Ends where the file ends at that moment, so that a file
/// still being written can be read on later.
pub(crate) struct FileSource {
    file: Box<dyn ReadAt>,
    offset: u64,
    buffer: Vec<u8>,
    start: usize,
    chunk: usize,
}

impl FileSource {
    pub(crate) fn new(file: Box<dyn ReadAt>, chunk: usize) -> FileSource {
        FileSource {
            file,
            offset: 0,
            buffer: Vec::new(),
            start: 0,
            chunk,
        }
    }

    pub(crate) fn seek(&mut self, offset: u64) {
        self.offset = offset;
        self.buffer.clear();
        self.start = 0;
    }
}

impl Read for FileSource {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let waiting = self.buffer.get(self.start..).unwrap_or_default();
        if waiting.is_empty() {
            // Long reads go straight to their place.
            if buf.len() >= self.chunk {
                let got = self.file.read_at(self.offset, buf).map_err(carry)?;
                self.offset += got as u64;
                return Ok(got);
            }
            self.buffer.resize(self.chunk, 0);
            let got = self.file.read_at(self.offset, &mut self.buffer);
            let got = got.map_err(carry)?;
            self.buffer.truncate(got);
            self.start = 0;
            self.offset += got as u64;
        }
        let waiting = self.buffer.get(self.start..).unwrap_or_default();
        let n = waiting.len().min(buf.len());
        if let (Some(to), Some(from)) = (buf.get_mut(..n), waiting.get(..n)) {
            to.copy_from_slice(from);
        }
        self.start += n;
        Ok(n)
    }
}

/// Sends a status through `std::io`, out of which [`stream_status`] takes it.
pub(crate) fn carry(status: Status) -> io::Error {
    io::Error::other(status)
}

/// The status a file gave, or zlib's complaint in TensorFlow's words. Our inflater does not tell
/// a bad header from bad data, but it can only be the header while nothing has come out.
pub(crate) fn stream_status(error: io::Error, at_start: bool) -> Status {
    let text = error.to_string();
    match error.into_inner().map(|e| e.downcast::<Status>()) {
        Some(Ok(status)) => *status,
        _ => {
            let reason = if at_start || text.contains("header") {
                "incorrect header check"
            } else {
                "incorrect data check"
            };
            Status::data_loss(format!("inflate() failed with error -3: {reason}"))
        }
    }
}

/// A stream of bytes with a buffer in front.
pub struct ByteStream {
    source: Box<dyn Read + Send>,
    buffer: Vec<u8>,
    start: usize,
    /// How many bytes have gone through the buffer or are in it.
    read: u64,
    /// Whether this is a zlib stream of which nothing has come out yet: an error is then taken for
    /// one of its header. A gzip stream's is recognised by itself.
    fresh: bool,
    /// What the source said when it failed; a stream does not recover.
    failed: Option<Status>,
    /// Largest piece that is accepted.
    limit: usize,
}

impl ByteStream {
    /// Opens a file; no line or piece may have more than `limit` bytes.
    pub fn open(
        storage: &dyn Storage,
        path: &str,
        compression: Compression,
        limit: usize,
    ) -> Result<ByteStream> {
        Ok(ByteStream::new(storage.open(path)?, compression, limit))
    }

    /// Reads an open file.
    pub fn new(file: Box<dyn ReadAt>, compression: Compression, limit: usize) -> ByteStream {
        let file = FileSource::new(file, BUFFER);
        ByteStream {
            source: match compression {
                Compression::None => Box::new(file),
                Compression::Zlib => Box::new(flate2::read::ZlibDecoder::new(file)),
                Compression::Gzip => Box::new(flate2::read::MultiGzDecoder::new(file)),
                Compression::Snappy => Box::new(snappy::Stream::new(file, limit)),
            },
            buffer: Vec::new(),
            start: 0,
            read: 0,
            fresh: compression == Compression::Zlib,
            failed: None,
            limit,
        }
    }

    /// What is buffered; refilled when empty, so empty means the end.
    fn waiting(&mut self) -> Result<&[u8]> {
        if self.start >= self.buffer.len() {
            if let Some(status) = &self.failed {
                return Err(status.clone());
            }
            self.start = 0;
            self.buffer.resize(BUFFER, 0);
            let got = loop {
                match self.source.read(&mut self.buffer) {
                    Ok(n) => break n,
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    // A compressed stream that stops in the middle.
                    Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => break 0,
                    Err(e) => {
                        let status = stream_status(e, self.fresh);
                        self.buffer.clear();
                        self.failed = Some(status.clone());
                        return Err(status);
                    }
                }
            };
            self.buffer.truncate(got);
            self.read += got as u64;
            self.fresh &= got == 0;
        }
        Ok(self.buffer.get(self.start..).unwrap_or_default())
    }

    fn too_long(&self, what: &str) -> Status {
        Status::resource_exhausted(format!(
            "{what} has more than the {} bytes that one may have",
            self.limit
        ))
    }

    /// How many bytes have been taken out of the stream.
    pub fn position(&self) -> u64 {
        self.read - self.buffer.len().saturating_sub(self.start) as u64
    }

    /// The next byte, left where it is; `None` at the end.
    pub fn peek(&mut self) -> Result<Option<u8>> {
        Ok(self.waiting()?.first().copied())
    }

    /// The next byte; `None` at the end.
    pub fn byte(&mut self) -> Result<Option<u8>> {
        let byte = self.peek()?;
        self.start += usize::from(byte.is_some());
        Ok(byte)
    }

    /// Appends a byte to a piece that the caller puts together, if it may still grow.
    pub fn push_within(&self, byte: u8, piece: &mut Vec<u8>) -> Result<()> {
        if piece.len() >= self.limit {
            return Err(self.too_long("a piece"));
        }
        piece.push(byte);
        Ok(())
    }

    /// The next line without its end (`\n` or `\r\n`), or `None` at the end of the stream.
    pub fn read_line(&mut self) -> Result<Option<Vec<u8>>> {
        let mut line = Vec::new();
        loop {
            let limit = self.limit;
            let waiting = self.waiting()?;
            if waiting.is_empty() {
                trim_return(&mut line);
                return Ok((!line.is_empty()).then_some(line));
            }
            let end = waiting.iter().position(|&b| b == b'\n');
            let taken = end.unwrap_or(waiting.len());
            if line.len().saturating_add(taken) > limit {
                return Err(self.too_long("a line"));
            }
            line.extend_from_slice(waiting.get(..taken).unwrap_or_default());
            self.start += taken + usize::from(end.is_some());
            if end.is_some() {
                trim_return(&mut line);
                return Ok(Some(line));
            }
        }
    }

    /// Appends the next `count` bytes to `out`, or as many as there are; returns how many.
    pub fn read_onto(&mut self, count: usize, out: &mut Vec<u8>) -> Result<usize> {
        if count > self.limit {
            return Err(self.too_long("a piece"));
        }
        out.reserve(count.min(GROWTH));
        let mut done = 0;
        while done < count {
            let waiting = self.waiting()?;
            let n = waiting.len().min(count - done);
            if n == 0 {
                break;
            }
            out.extend_from_slice(waiting.get(..n).unwrap_or_default());
            self.start += n;
            done += n;
        }
        Ok(done)
    }

    /// Passes over `count` bytes, or as many as there are; returns how many.
    pub fn skip(&mut self, count: u64) -> Result<u64> {
        let mut done = 0;
        while done < count {
            let waiting = self.waiting()?;
            let n = (waiting.len() as u64).min(count - done);
            if n == 0 {
                break;
            }
            self.start += usize::try_from(n).unwrap_or(usize::MAX);
            done += n;
        }
        Ok(done)
    }

    /// Everything that is left.
    pub fn read_all(&mut self) -> Result<Bytes> {
        let mut out = Vec::new();
        loop {
            let limit = self.limit;
            let waiting = self.waiting()?;
            if waiting.is_empty() {
                return Ok(Bytes::from(out));
            }
            if out.len().saturating_add(waiting.len()) > limit {
                return Err(self.too_long("the file"));
            }
            out.extend_from_slice(waiting);
            self.start = self.buffer.len();
            stop_point();
        }
    }
}

fn trim_return(line: &mut Vec<u8>) {
    if line.last() == Some(&b'\r') {
        line.pop();
    }
}

/// Inflates `data` (zlib or gzip) into at most `limit` bytes. A stream that stops in the middle
/// gives what came out of it, as TensorFlow's does.
pub fn inflate(data: &Bytes, compression: Compression, limit: usize) -> Result<Bytes> {
    let out = ByteStream::new(Box::new(data.clone()), compression, limit).read_all();
    let sound_header = match (compression, data.as_ref()) {
        (Compression::Zlib, &[a, b, ..]) => a & 15 == 8 && u16::from_be_bytes([a, b]) % 31 == 0,
        _ => false,
    };
    out.map_err(|e| match e.code {
        Code::DataLoss if sound_header => {
            Status::data_loss("inflate() failed with error -3: incorrect data check")
        }
        _ => e,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn stream(data: &[u8], limit: usize) -> ByteStream {
        let file = Box::new(Bytes::copy_from_slice(data));
        ByteStream::new(file, Compression::None, limit)
    }

    fn gzip(data: &[u8]) -> Vec<u8> {
        let mut z = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        z.write_all(data).unwrap();
        z.finish().unwrap()
    }

    #[test]
    fn lines_end_where_tensorflows_do() {
        let mut s = stream(b"a\rb\r\nc\n\n\r\nd\re\r", 100);
        let mut lines = Vec::new();
        while let Some(line) = s.read_line().unwrap() {
            lines.push(line);
        }
        assert_eq!(lines, [&b"a\rb"[..], b"c", b"", b"", b"d\re"]);
        assert!(stream(b"\r", 100).read_line().unwrap().is_none());
    }

    #[test]
    fn a_line_or_a_bomb_over_the_limit_is_refused() {
        let long = vec![b'x'; 1000];
        let e = stream(&long, 999).read_line().unwrap_err();
        assert_eq!(e.code, Code::ResourceExhausted);
        let bomb = Bytes::from(gzip(&vec![0; 10 << 20]));
        let e = inflate(&bomb, Compression::Gzip, 1 << 20).unwrap_err();
        assert_eq!(e.code, Code::ResourceExhausted);
    }

    #[test]
    fn pieces_and_skips_stop_at_the_end() {
        let mut s = stream(b"abcdef", 100);
        let mut out = Vec::new();
        assert_eq!(s.skip(1).unwrap(), 1);
        assert_eq!(s.read_onto(3, &mut out).unwrap(), 3);
        assert_eq!(out, b"bcd");
        assert_eq!(s.read_onto(9, &mut out).unwrap(), 2);
        assert_eq!(s.skip(1).unwrap(), 0);
    }

    #[test]
    fn a_broken_stream_stays_broken() {
        let mut s = ByteStream::new(
            Box::new(Bytes::from_static(b"this is no gzip stream at all")),
            Compression::Gzip,
            100,
        );
        for _ in 0..2 {
            assert_eq!(
                s.read_line().unwrap_err().message,
                "inflate() failed with error -3: incorrect header check"
            );
        }
    }
}
