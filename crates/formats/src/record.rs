//! TFRecord framing: length, its checksum, data, its checksum; optionally one zlib, gzip or Snappy stream
//! around the whole file. Memory is bounded: a length is believed only as far as bytes for it
//! really arrive, even when its checksum is right.

use crate::crc32c;
use crate::snappy;
use crate::storage::{ReadAt, Storage, StreamFile};
use crate::stream::{FileSource, carry, stream_status};
use bytes::Bytes;
use downpour_graph::{Code, Result, Status};
use std::io::{self, Read, Write};

const HEADER: usize = 12;
const FOOTER: usize = 4;
/// How much a growing record may ask for ahead of its data.
const GROWTH: usize = 1 << 20;

/// How a record file is compressed; the file itself does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    /// Plain framing.
    #[default]
    None,
    /// One zlib stream.
    Zlib,
    /// Gzip members.
    Gzip,
    /// Snappy blocks, each behind its length. Snapshots of datasets have it; nothing else asks for it.
    Snappy,
}

impl Compression {
    /// TensorFlow's option string. Anything but `ZLIB` and `GZIP` means none, as there.
    pub fn from_option(option: &str) -> Compression {
        match option {
            "ZLIB" => Compression::Zlib,
            "GZIP" => Compression::Gzip,
            _ => Compression::None,
        }
    }
}

/// How to read a record file.
#[derive(Debug, Clone, Copy)]
pub struct RecordOptions {
    /// Compression of the file.
    pub compression: Compression,
    /// Bytes read from the file at a time.
    pub buffer_size: usize,
    /// Largest record that is accepted; refuses what a compressed file could blow up to.
    pub max_record: usize,
}

impl Default for RecordOptions {
    fn default() -> RecordOptions {
        RecordOptions {
            compression: Compression::None,
            buffer_size: 256 << 10,
            max_record: 1 << 30,
        }
    }
}

/// Reads records one after the other.
pub struct RecordReader {
    source: Source,
    /// Offset in the uncompressed stream of the next record.
    offset: u64,
    max_record: usize,
    /// What a source that ended early is called in messages.
    short: &'static str,
}

enum Source {
    Plain(FileSource),
    Compressed(Box<dyn Read + Send>),
}

impl RecordReader {
    /// Opens a record file.
    pub fn open(storage: &dyn Storage, path: &str, options: RecordOptions) -> Result<RecordReader> {
        Ok(RecordReader::new(storage.open(path)?, options))
    }

    /// Reads records from an open file.
    pub fn new(file: Box<dyn ReadAt>, options: RecordOptions) -> RecordReader {
        let file = FileSource::new(file, options.buffer_size.clamp(4 << 10, 64 << 20));
        let source = match options.compression {
            Compression::None => Source::Plain(file),
            Compression::Zlib => Source::Compressed(Box::new(flate2::read::ZlibDecoder::new(file))),
            Compression::Gzip => {
                Source::Compressed(Box::new(flate2::read::MultiGzDecoder::new(file)))
            }
            Compression::Snappy => {
                Source::Compressed(Box::new(snappy::Stream::new(file, options.max_record)))
            }
        };
        let short = match options.compression {
            Compression::None => "Read less bytes than requested",
            _ => "EOF reached",
        };
        RecordReader {
            source,
            offset: 0,
            max_record: options.max_record,
            short,
        }
    }

    /// Offset of the next record in the uncompressed stream.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Moves to the record at `offset` of a file that is not compressed.
    pub fn seek(&mut self, offset: u64) -> Result<()> {
        match &mut self.source {
            Source::Plain(file) => {
                file.seek(offset);
                self.offset = offset;
                Ok(())
            }
            Source::Compressed(_) => Err(Status::unimplemented(
                "A compressed record file cannot be entered in the middle",
            )),
        }
    }

    /// The next record, or `None` at the end. As in TensorFlow, a file that stops inside a
    /// record's first twelve bytes has ended; one that stops later has lost data. If the file is
    /// not compressed, the record can be asked for again when the file has grown.
    pub fn read(&mut self) -> Result<Option<Bytes>> {
        let result = self.read_record();
        if let (Ok(None) | Err(_), Source::Plain(file)) = (&result, &mut self.source) {
            file.seek(self.offset);
        }
        result
    }

    fn read_record(&mut self) -> Result<Option<Bytes>> {
        let mut header = [0; HEADER];
        if self.fill(&mut header)? < HEADER {
            return Ok(None);
        }
        let ([length @ .., _, _, _, _], [_, _, _, _, _, _, _, _, crc @ ..]) = (header, header);
        if crc32c::masked(&length) != u32::from_le_bytes(crc) {
            return Err(Status::data_loss(format!(
                "corrupted record at {} (Is this even a TFRecord file?)",
                self.offset
            )));
        }
        let length = u64::from_le_bytes(length);
        let data = self.body(length)?;
        let mut footer = [0; FOOTER];
        if self.fill(&mut footer)? < FOOTER {
            return Err(self.truncated());
        }
        if crc32c::masked(&data) != u32::from_le_bytes(footer) {
            let at = self.offset + HEADER as u64;
            return Err(Status::data_loss(format!("corrupted record at {at}")));
        }
        self.offset += length + (HEADER + FOOTER) as u64;
        Ok(Some(Bytes::from(data)))
    }

    /// `length` bytes, asking for memory only as they arrive.
    fn body(&mut self, length: u64) -> Result<Vec<u8>> {
        let mut data = Vec::new();
        let wanted = usize::try_from(length).unwrap_or(usize::MAX);
        while data.len() < wanted {
            if data.len() >= self.max_record {
                return Err(Status::resource_exhausted(format!(
                    "record at {} claims {length} bytes, more than the limit of {}",
                    self.offset, self.max_record
                )));
            }
            let have = data.len();
            let step = (wanted - have).min(have.max(GROWTH)).min(self.max_record);
            data.resize(have + step, 0);
            let got = self.fill(data.get_mut(have..).unwrap_or_default())?;
            if got < step {
                return Err(self.truncated());
            }
        }
        Ok(data)
    }

    fn truncated(&self) -> Status {
        Status::data_loss(format!(
            "truncated record at {}' failed with {}",
            self.offset, self.short
        ))
    }

    /// Reads until `buf` is full or the source ends; returns how much there was.
    fn fill(&mut self, buf: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        while let Some(rest) = buf.get_mut(done..)
            && !rest.is_empty()
        {
            let read = match &mut self.source {
                Source::Plain(file) => file.read(rest),
                Source::Compressed(stream) => stream.read(rest),
            };
            match read {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // A compressed stream that stops in the middle.
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => break,
                Err(e) => return Err(stream_status(e, self.offset == 0 && done == 0)),
            }
        }
        Ok(done)
    }
}

fn carried(error: io::Error) -> Status {
    stream_status(error, false)
}

/// Writes records to a growing file.
pub struct RecordWriter {
    sink: Sink,
}

enum Sink {
    Plain(Box<dyn StreamFile>),
    Zlib(flate2::write::ZlibEncoder<StreamWrite>),
    Gzip(flate2::write::GzEncoder<StreamWrite>),
    Snappy(snappy::StreamWriter<StreamWrite>),
}

struct StreamWrite(Box<dyn StreamFile>);

impl Write for StreamWrite {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.0.write(data).map_err(carry)?;
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(carry)
    }
}

impl RecordWriter {
    /// Writes to `file`, compressed or not.
    pub fn new(file: Box<dyn StreamFile>, compression: Compression) -> RecordWriter {
        let level = flate2::Compression::default();
        let sink = match compression {
            Compression::None => Sink::Plain(file),
            Compression::Zlib => {
                Sink::Zlib(flate2::write::ZlibEncoder::new(StreamWrite(file), level))
            }
            Compression::Gzip => {
                Sink::Gzip(flate2::write::GzEncoder::new(StreamWrite(file), level))
            }
            Compression::Snappy => Sink::Snappy(snappy::StreamWriter::new(StreamWrite(file))),
        };
        RecordWriter { sink }
    }

    /// Appends one record.
    pub fn write(&mut self, data: &[u8]) -> Result<()> {
        let length = (data.len() as u64).to_le_bytes();
        self.put(&length)?;
        self.put(&crc32c::masked(&length).to_le_bytes())?;
        self.put(data)?;
        self.put(&crc32c::masked(data).to_le_bytes())
    }

    fn put(&mut self, data: &[u8]) -> Result<()> {
        match &mut self.sink {
            Sink::Plain(file) => file.write(data),
            Sink::Zlib(z) => z.write_all(data).map_err(carried),
            Sink::Gzip(z) => z.write_all(data).map_err(carried),
            Sink::Snappy(z) => z.write_all(data).map_err(carried),
        }
    }

    /// Makes the records written so far visible to readers.
    pub fn flush(&mut self) -> Result<()> {
        match &mut self.sink {
            Sink::Plain(file) => file.flush(),
            Sink::Zlib(z) => z.flush().map_err(carried),
            Sink::Gzip(z) => z.flush().map_err(carried),
            Sink::Snappy(z) => z.flush().map_err(carried),
        }
    }

    /// Ends the file and brings it onto the disk.
    pub fn finish(self) -> Result<()> {
        let mut file = match self.sink {
            Sink::Plain(file) => file,
            Sink::Zlib(z) => z.finish().map_err(carried)?.0,
            Sink::Gzip(z) => z.finish().map_err(carried)?.0,
            Sink::Snappy(z) => z.finish().map_err(carried)?.0,
        };
        file.sync()
    }
}

/// Whether `status` says that a file ended inside a record, as one still being written does.
pub fn is_truncation(status: &Status) -> bool {
    status.code == Code::DataLoss && status.message.starts_with("truncated record at ")
}

#[cfg(test)]
#[path = "record_tests.rs"]
mod tests;
