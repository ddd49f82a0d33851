//! One unit of a reader's work under way: an open file, or the name of the work itself.

use crate::io::file::{path, read_file};
use crate::io::lmdb;
use crate::io::storage;
use bytes::Bytes;
use downpour_formats::record::{Compression, RecordOptions, RecordReader};
use downpour_formats::stream::ByteStream;
use downpour_graph::{Code, Result, Status};
use downpour_runtime::Device;
use std::sync::Arc;

/// Key and value.
pub(super) type Record = (Bytes, Bytes);

/// What kind of reader, with its attributes.
#[derive(Clone, Debug)]
pub(super) enum Spec {
    /// The name of the work is the record.
    Identity,
    /// The file is the record.
    WholeFile,
    /// Lines, after some that are passed over.
    TextLine { skip: u64 },
    /// Records of equal length.
    FixedLength(Layout),
    /// TFRecords.
    Records(Compression),
    /// Databases; their keys are the records'.
    Lmdb,
}

/// Where the records of a file of equal records lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) header: u64,
    pub(super) record: usize,
    pub(super) footer: usize,
    /// From the start of one record to the start of the next.
    pub(super) hop: u64,
    pub(super) compression: Compression,
}

/// A unit of work under way.
pub(super) enum Source {
    Identity,
    WholeFile(Arc<Device>),
    TextLine(ByteStream, u64),
    FixedLength {
        stream: ByteStream,
        layout: Layout,
        /// Bytes read beyond the start of the last record.
        ahead: Vec<u8>,
        number: u64,
    },
    Records(RecordReader),
    Lmdb(lmdb::Records),
    /// A file that opens but cannot be read, like a directory: it fails at each read.
    Unreadable(Status),
}

impl Source {
    pub(super) fn open(spec: &Spec, work: &Bytes, device: &Arc<Device>) -> Result<Source> {
        let limit = device.room();
        let stream =
            |compression| ByteStream::open(storage(device), path(work)?, compression, limit);
        let opened = match spec {
            Spec::Identity => Ok(Source::Identity),
            Spec::WholeFile => Ok(Source::WholeFile(device.clone())),
            Spec::TextLine { skip } => stream(Compression::None).and_then(|s| text(s, *skip)),
            Spec::FixedLength(layout) => {
                stream(layout.compression).and_then(|s| fixed_length(s, *layout))
            }
            Spec::Records(compression) => {
                let options = RecordOptions {
                    compression: *compression,
                    max_record: limit,
                    ..Default::default()
                };
                RecordReader::open(storage(device), path(work)?, options).map(Source::Records)
            }
            Spec::Lmdb => lmdb::Records::open(storage(device), path(work)?).map(Source::Lmdb),
        };
        match opened {
            Err(e) if e.code == Code::FailedPrecondition => Ok(Source::Unreadable(e)),
            other => other,
        }
    }

    /// The next record, if there is one, and whether the work is done.
    pub(super) fn next(&mut self, work: &Bytes) -> Result<(Option<Record>, bool)> {
        let key = |number: u64| {
            let mut key = work.to_vec();
            key.extend_from_slice(format!(":{number}").as_bytes());
            Bytes::from(key)
        };
        Ok(match self {
            Source::Identity => (Some((work.clone(), work.clone())), true),
            Source::WholeFile(device) => {
                let contents = read_file(device, path(work)?)?;
                (Some((work.clone(), contents.into())), true)
            }
            Source::TextLine(stream, number) => {
                let line = stream.read_line()?;
                *number += 1;
                let at_end = line.is_none();
                (line.map(|line| (key(*number), line.into())), at_end)
            }
            Source::Records(reader) => {
                let at = reader.offset();
                match reader.read()? {
                    Some(record) => (Some((key(at), record)), false),
                    None => (None, true),
                }
            }
            Source::Lmdb(records) => match records.next()? {
                Some(record) => (Some(record), false),
                None => (None, true),
            },
            Source::FixedLength {
                stream,
                layout,
                ahead,
                number,
            } => match next_fixed(stream, *layout, ahead, *number)? {
                Some(record) => {
                    *number += 1;
                    (Some((key(*number - 1), record)), false)
                }
                None => (None, true),
            },
            Source::Unreadable(status) => return Err(status.clone()),
        })
    }
}

fn text(mut stream: ByteStream, skip: u64) -> Result<Source> {
    let mut number = 0;
    while number < skip && stream.read_line()?.is_some() {
        number += 1;
    }
    Ok(Source::TextLine(stream, number))
}

fn fixed_length(mut stream: ByteStream, layout: Layout) -> Result<Source> {
    if stream.skip(layout.header)? < layout.header {
        return Err(Status::out_of_range("reached end of file"));
    }
    Ok(Source::FixedLength {
        stream,
        layout,
        ahead: Vec::new(),
        number: 0,
    })
}

/// The next record: it needs a whole footer behind it, and may overlap the one before.
fn next_fixed(
    stream: &mut ByteStream,
    layout: Layout,
    ahead: &mut Vec<u8>,
    number: u64,
) -> Result<Option<Bytes>> {
    if number > 0 {
        let kept = usize::try_from(layout.hop)
            .unwrap_or(usize::MAX)
            .min(ahead.len());
        ahead.drain(..kept);
        let rest = layout.hop - kept as u64;
        if stream.skip(rest)? < rest {
            return Ok(None);
        }
    }
    let missing = (layout.record + layout.footer).saturating_sub(ahead.len());
    if stream.read_onto(missing, ahead)? < missing {
        return Ok(None);
    }
    Ok(ahead.get(..layout.record).map(Bytes::copy_from_slice))
}
