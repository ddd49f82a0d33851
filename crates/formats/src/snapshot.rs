//! Snapshots of datasets, as `tf.data`'s `save`, `load` and `snapshot` keep them: a folder with a file of metadata, and
//! below a folder of the run that wrote it one for each shard, with numbered files of elements.
//!
//! ```text
//! path/snapshot.metadata
//! path/<run>/00000000.shard/00000000.snapshot
//! ```
//!
//! Files of version 2 are TFRecords, a record for each component. Versions 0 and 1 have a framing of their own: a length
//! of eight bytes and a message with all components, or with Snappy a message with their sizes and one block.

use crate::record::{Compression, RecordOptions, RecordReader, RecordWriter};
use crate::snappy;
use crate::storage::{Storage, StreamFile, join, read_bounded};
use crate::stream::{FileSource, carry, stream_status};
use crate::tensor_proto;
use bytes::Bytes;
use downpour_graph::{Code, Result, Status};
use downpour_tensor::{Buffer, DType, Shape, Tensor};
use downpour_wire::proto::{TensorShapeProto, tensor_shape_proto};
use downpour_wire::snapshot::{Record, Size, Sizes};
use downpour_wire::{MessageBytes as _, encode_tensor};
use std::io::{self, Read, Write};

pub use downpour_wire::snapshot::Metadata;

/// The version that is written.
pub const VERSION: i64 = 2;

/// The version that the first snapshot op writes.
pub const OLD_VERSION: i64 = 1;

const METADATA: &str = "snapshot.metadata";
const MAX_METADATA: u64 = 1 << 20;

/// The metadata in folder `dir`; `None` if there is none.
pub fn read_metadata(storage: &dyn Storage, dir: &str) -> Result<Option<Metadata>> {
    let path = join(dir, METADATA);
    if !storage.exists(&path)? {
        return Ok(None);
    }
    let bytes = read_bounded(storage, &path, MAX_METADATA)?;
    let parsed = Metadata::from_bytes(bytes.as_slice());
    parsed
        .map(Some)
        .map_err(|_| Status::data_loss(format!("Can't parse {path} as binary proto")))
}

/// Writes the metadata of folder `dir`, in place of any there was.
pub fn write_metadata(storage: &dyn Storage, dir: &str, metadata: &Metadata) -> Result<()> {
    let mut file = storage.create(&join(dir, METADATA))?;
    file.write(&metadata.to_bytes())?;
    file.publish()
}

/// The folder of shard `number` of a run.
pub fn shard_dir(run: &str, number: i64) -> String {
    join(run, &format!("{:08}.shard", number as u64))
}

/// File `number` of a shard.
pub fn chunk(shard: &str, number: u64) -> String {
    join(shard, &format!("{number:08}.snapshot"))
}

/// The compression that an op's attribute names; `AUTO` is Snappy.
pub fn compression(name: &str) -> Result<Compression> {
    match name {
        "" => Ok(Compression::None),
        "GZIP" => Ok(Compression::Gzip),
        "SNAPPY" | "AUTO" => Ok(Compression::Snappy),
        other => Err(Status::invalid_argument(format!(
            "snapshots are compressed with GZIP, SNAPPY or not at all, not with {other}"
        ))),
    }
}

/// Writes elements into one file.
pub struct Writer {
    sink: Sink,
}

enum Sink {
    Records(RecordWriter),
    /// Version 1: the stream around the framing, and whether each element is a block.
    Framed(Box<dyn Finish>, bool),
}

/// A stream with an end to be written.
trait Finish: Write + Send {
    fn finish(self: Box<Self>) -> Result<()>;
}

struct Plain(Box<dyn StreamFile>);

impl Write for Plain {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.0.write(data).map_err(carry)?;
        Ok(data.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(carry)
    }
}

impl Finish for Plain {
    fn finish(mut self: Box<Self>) -> Result<()> {
        self.0.sync()
    }
}

impl Finish for flate2::write::GzEncoder<Plain> {
    fn finish(self: Box<Self>) -> Result<()> {
        let mut file = (*self).finish().map_err(|e| stream_status(e, false))?;
        file.0.sync()
    }
}

impl Writer {
    /// Starts the file `path` in a version.
    pub fn create(
        storage: &dyn Storage,
        path: &str,
        compression: Compression,
        version: i64,
    ) -> Result<Writer> {
        let file = storage.create_stream(path)?;
        let sink = match version {
            VERSION => Sink::Records(RecordWriter::new(file, compression)),
            _ if compression == Compression::Gzip => {
                let level = flate2::Compression::default();
                let stream = flate2::write::GzEncoder::new(Plain(file), level);
                Sink::Framed(Box::new(stream), false)
            }
            _ => Sink::Framed(Box::new(Plain(file)), compression == Compression::Snappy),
        };
        Ok(Writer { sink })
    }

    /// Appends an element; gives the bytes it took before any compression of the whole.
    pub fn write(&mut self, element: &[Tensor]) -> Result<u64> {
        let mut bytes = 0;
        match &mut self.sink {
            Sink::Records(records) => {
                for tensor in element {
                    let record = tensor_proto::serialize(tensor)?;
                    bytes += record.len() as u64;
                    records.write(&record)?;
                }
            }
            Sink::Framed(stream, false) => {
                let tensor = element.iter().map(encode_tensor);
                let tensor = tensor.collect::<Result<_, _>>()?;
                bytes += frame(stream, &Record { tensor }.to_bytes())?;
            }
            Sink::Framed(stream, true) => {
                let (sizes, plain) = packed(element)?;
                bytes += frame(stream, &sizes.to_bytes())?;
                bytes += frame(stream, &snappy::compress(&plain)?)?;
            }
        }
        Ok(bytes)
    }

    /// Ends the file and brings it onto the disk.
    pub fn finish(self) -> Result<()> {
        match self.sink {
            Sink::Records(records) => records.finish(),
            Sink::Framed(stream, _) => stream.finish(),
        }
    }
}

fn frame(stream: &mut Box<dyn Finish>, data: &[u8]) -> Result<u64> {
    let length = (data.len() as u64).to_le_bytes();
    let mut put = |data: &[u8]| stream.write_all(data).map_err(|e| stream_status(e, false));
    put(&length)?;
    put(data)?;
    Ok(8 + data.len() as u64)
}

/// The components one after the other: plain ones as they are in memory, others as messages.
fn packed(element: &[Tensor]) -> Result<(Sizes, Vec<u8>)> {
    let (mut sizes, mut plain) = (Sizes::default(), Vec::new());
    for tensor in element {
        let start = plain.len();
        match tensor.buffer() {
            Some(buffer) => plain.extend_from_slice(buffer.as_bytes()),
            None => plain.extend_from_slice(&tensor_proto::serialize(tensor)?),
        }
        let dim = |size: &usize| tensor_shape_proto::Dim {
            size: *size as i64,
            ..Default::default()
        };
        sizes.tensor_metadata.push(Size {
            tensor_shape: Some(TensorShapeProto {
                dim: tensor.dims().iter().map(dim).collect(),
                ..Default::default()
            }),
            tensor_size_bytes: (plain.len() - start) as i64,
        });
    }
    Ok((sizes, plain))
}

/// Reads elements out of one file.
pub struct Reader {
    source: Source,
    dtypes: Vec<DType>,
    limit: u64,
}

enum Source {
    Records(RecordReader),
    Framed(Box<dyn Read + Send>, bool),
}

impl Reader {
    /// Opens the file `path`, whose elements have components of `dtypes` and at most `limit` bytes each.
    pub fn open(
        storage: &dyn Storage,
        path: &str,
        compression: Compression,
        version: i64,
        dtypes: Vec<DType>,
        limit: u64,
    ) -> Result<Reader> {
        let options = RecordOptions {
            compression,
            max_record: usize::try_from(limit).unwrap_or(usize::MAX),
            ..Default::default()
        };
        let file = |buffer| Ok::<_, Status>(FileSource::new(storage.open(path)?, buffer));
        let source = match (version, compression) {
            (2, _) => Source::Records(RecordReader::open(storage, path, options)?),
            (0 | 1, Compression::Gzip) => {
                let stream = flate2::read::MultiGzDecoder::new(file(options.buffer_size)?);
                Source::Framed(Box::new(stream), false)
            }
            (0, Compression::Snappy) => {
                let stream = snappy::Stream::new(file(options.buffer_size)?, options.max_record);
                Source::Framed(Box::new(stream), false)
            }
            (0 | 1, _) => {
                let blocks = compression == Compression::Snappy;
                Source::Framed(Box::new(file(options.buffer_size)?), blocks)
            }
            _ => {
                return Err(Status::invalid_argument(format!(
                    "Snapshot reader version: {version} is not supported."
                )));
            }
        };
        Ok(Reader {
            source,
            dtypes,
            limit,
        })
    }

    /// The next element, or `None` at the end.
    pub fn read(&mut self) -> Result<Option<Vec<Tensor>>> {
        let limit = self.limit;
        let element = match &mut self.source {
            Source::Records(records) => {
                let mut element = Vec::with_capacity(self.dtypes.len());
                for _ in 0..self.dtypes.len() {
                    let Some(record) = records.read()? else {
                        if element.is_empty() {
                            return Ok(None);
                        }
                        return Err(Status::data_loss("a snapshot ends inside an element"));
                    };
                    element.push(parse(&record, limit)?);
                }
                element
            }
            Source::Framed(stream, false) => {
                let Some(record) = framed(stream, limit)? else {
                    return Ok(None);
                };
                let record = Record::from_bytes(Bytes::from(record)).map_err(|_| no_record())?;
                let tensors = record.tensor.into_iter();
                let tensors = tensors.map(|t| tensor_proto::decode(t, limit));
                tensors.collect::<Result<_, _>>().map_err(|_| unparsed())?
            }
            Source::Framed(stream, true) => {
                let Some(sizes) = framed(stream, limit)? else {
                    return Ok(None);
                };
                let sizes = Sizes::from_bytes(Bytes::from(sizes))
                    .map_err(|_| Status::data_loss("Could not parse SnapshotTensorMetadata"))?;
                let block = framed(stream, limit)?.ok_or_else(no_record)?;
                unpacked(&sizes, &block, &self.dtypes, limit)?
            }
        };
        let types: Vec<DType> = element.iter().map(Tensor::dtype).collect();
        if types != self.dtypes {
            return Err(Status::data_loss(format!(
                "a snapshot's element has components of types {types:?}, but {:?} were asked for",
                self.dtypes
            )));
        }
        Ok(Some(element))
    }
}

fn parse(record: &Bytes, limit: u64) -> Result<Tensor> {
    tensor_proto::parse(record, limit).map_err(|_| unparsed())
}

fn unparsed() -> Status {
    Status::data_loss("Unable to parse tensor from stored proto.")
}

fn no_record() -> Status {
    Status::data_loss("a snapshot's record is no message")
}

/// The next frame, or `None` at the end.
fn framed(stream: &mut Box<dyn Read + Send>, limit: u64) -> Result<Option<Vec<u8>>> {
    let mut header = [0; 8];
    let mut have = 0;
    while let Some(rest) = header.get_mut(have..).filter(|rest| !rest.is_empty()) {
        match stream.read(rest).map_err(|e| stream_status(e, false))? {
            0 if have == 0 => return Ok(None),
            0 => return Err(no_record()),
            n => have += n,
        }
    }
    let length = u64::from_le_bytes(header);
    if length > limit {
        return Err(Status::new(
            Code::ResourceExhausted,
            format!("a snapshot's record claims {length} bytes, more than the limit of {limit}"),
        ));
    }
    // Memory is asked for as bytes arrive.
    let mut data = Vec::new();
    let mut part = stream.take(length);
    part.read_to_end(&mut data)
        .map_err(|e| stream_status(e, false))?;
    if data.len() as u64 != length {
        return Err(no_record());
    }
    Ok(Some(data))
}

fn unpacked(sizes: &Sizes, block: &[u8], dtypes: &[DType], limit: u64) -> Result<Vec<Tensor>> {
    let size = |s: &Size| u64::try_from(s.tensor_size_bytes).ok();
    let total = sizes
        .tensor_metadata
        .iter()
        .try_fold(0u64, |sum, s| sum.checked_add(size(s)?));
    let total = total.filter(|t| *t <= limit).ok_or_else(no_record)?;
    let total = usize::try_from(total).map_err(|_| no_record())?;
    if sizes.tensor_metadata.len() != dtypes.len() {
        return Err(no_record());
    }
    let mut rest = Bytes::from(snappy::uncompress(block, total)?);
    let mut element = Vec::with_capacity(dtypes.len());
    for (size, dtype) in sizes.tensor_metadata.iter().zip(dtypes) {
        let bytes = rest.split_to(size.tensor_size_bytes as usize);
        if *dtype == DType::String || *dtype == DType::Variant {
            element.push(parse(&bytes, limit)?);
            continue;
        }
        let dims = size.tensor_shape.iter().flat_map(|s| &s.dim);
        let shape = Shape::checked(dims.map(|d| d.size)).map_err(|_| no_record())?;
        let buffer = Buffer::copy_from(&bytes);
        let tensor = Tensor::from_buffer(*dtype, shape, buffer).map_err(|_| no_record())?;
        element.push(tensor);
    }
    Ok(element)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LocalStorage;
    use crate::testing::TempDir;

    fn elements() -> Vec<Vec<Tensor>> {
        let words = |w: &[&'static str]| {
            let n = w.len();
            Tensor::strings(w.iter().map(|w| Bytes::from(*w)).collect(), [n]).unwrap()
        };
        vec![
            vec![Tensor::vector(vec![1i64, 2, 3]), words(&["a", ""])],
            vec![Tensor::vector(vec![7i64; 5000]), words(&[])],
        ]
    }

    fn shown(element: &[Tensor]) -> Vec<String> {
        let each = element
            .iter()
            .map(|t| format!("{} {}", t.shape(), t.summarize(9)));
        each.collect()
    }

    #[test]
    fn elements_come_back_in_every_version_and_compression() {
        let dir = TempDir::new();
        let storage = LocalStorage::new();
        for version in [OLD_VERSION, VERSION] {
            for name in ["", "GZIP", "SNAPPY"] {
                let path = dir.file(&format!("{version}{name}"));
                let path = path.as_str();
                let compression = compression(name).unwrap();
                let mut writer = Writer::create(&storage, path, compression, version).unwrap();
                for element in elements() {
                    assert!(writer.write(&element).unwrap() > 0);
                }
                writer.finish().unwrap();
                let types = vec![DType::Int64, DType::String];
                let open = |types: Vec<DType>, limit| {
                    Reader::open(&storage, path, compression, version, types, limit).unwrap()
                };
                let mut reader = open(types.clone(), 1 << 20);
                for element in elements() {
                    let got = reader.read().unwrap().unwrap();
                    assert_eq!(shown(&got), shown(&element));
                }
                assert!(reader.read().unwrap().is_none());
                // What claims other types, or does not fit, is refused.
                assert!(
                    open(vec![DType::Int32, DType::String], 1 << 20)
                        .read()
                        .is_err()
                );
                assert!(open(types, 16).read().is_err());
            }
        }
    }

    #[test]
    fn metadata_comes_back_and_rubbish_is_refused() {
        let dir = TempDir::new();
        let dir = dir.path();
        let storage = LocalStorage::new();
        assert_eq!(read_metadata(&storage, dir).unwrap(), None);
        let metadata = Metadata {
            run_id: "17".into(),
            version: VERSION,
            dtype: vec![9, 7],
            num_elements: 3,
            finalized: true,
            ..Default::default()
        };
        write_metadata(&storage, dir, &metadata).unwrap();
        assert_eq!(read_metadata(&storage, dir).unwrap(), Some(metadata));
        let mut file = storage.create(&join(dir, METADATA)).unwrap();
        file.write(b"\xff\xff\xff").unwrap();
        file.publish().unwrap();
        assert_eq!(
            read_metadata(&storage, dir).unwrap_err().code,
            Code::DataLoss
        );
    }
}
