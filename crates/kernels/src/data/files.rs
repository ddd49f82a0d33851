//! Datasets of what files hold: `TextLine`, `FixedLengthRecord`, `TFRecord`. Files are read one
//! after the other, each opened when the walk gets there.

use super::dataset::{Dataset, Got, Next, Place, Recipe, Spec, Stream};
use super::define::{self, now};
use super::state::{Restoring, Saving, State, misfit};
use crate::io::file::path;
use crate::io::storage;
use bytes::Bytes;
use downpour_formats::record::{Compression, RecordOptions, RecordReader};
use downpour_formats::stream::ByteStream;
use downpour_graph::{Code, Result, Status};
use downpour_runtime::{Device, OpContext, Registry};
use downpour_tensor::{DType, PartialShape, Tensor};
use std::sync::Arc;

pub(super) fn register(r: &mut Registry) {
    r.add("TextLineDataset", |_| define::dataset(text_line));
    r.add("FixedLengthRecordDataset", |_| {
        define::dataset(|ctx| fixed_length(ctx, false))
    });
    r.add("FixedLengthRecordDatasetV2", |_| {
        define::dataset(|ctx| fixed_length(ctx, true))
    });
    r.add("TFRecordDataset", |_| {
        define::dataset(|ctx| tf_record(ctx, false))
    });
    r.add("TFRecordDatasetV2", |_| {
        define::dataset(|ctx| tf_record(ctx, true))
    });
}

/// The strings of the scalar or vector at input `i`.
pub(super) fn filenames(ctx: &OpContext<'_>, i: usize) -> Result<Vec<Bytes>> {
    let names = ctx.input(i)?;
    if names.rank() > 1 {
        return Err(Status::invalid_argument(
            "`filenames` must be a scalar or a vector.",
        ));
    }
    Ok(names.as_strings()?.to_vec())
}

/// The compression that the string at input `i` names.
pub(super) fn compression(ctx: &OpContext<'_>, i: usize) -> Result<Compression> {
    let name = define::text(ctx, i, "compression_type")?;
    match name.as_str() {
        "" | "ZLIB" | "GZIP" => Ok(Compression::from_option(&name)),
        _ => Err(Status::invalid_argument("Unsupported compression_type.")),
    }
}

fn buffer_size(ctx: &OpContext<'_>, i: usize, text: &str) -> Result<usize> {
    let size = define::int(ctx, i, "buffer_size")?;
    usize::try_from(size).map_err(|_| Status::invalid_argument(text))
}

fn one_string() -> Spec {
    Spec {
        types: vec![DType::String],
        shapes: vec![PartialShape::from_dims([])],
    }
}

fn text_line(ctx: &mut OpContext<'_>) -> Result<Dataset> {
    let files = filenames(ctx, 0)?;
    let compression = compression(ctx, 1)?;
    buffer_size(ctx, 2, "`buffer_size` must be >= 0 (0 == default)")?;
    let format = Format::TextLine(compression);
    Dataset::new(
        "TextLine",
        one_string(),
        vec![],
        Files {
            files: files.into(),
            format,
        },
    )
}

fn tf_record(ctx: &mut OpContext<'_>, v2: bool) -> Result<Dataset> {
    let files = filenames(ctx, 0)?;
    let name = define::text(ctx, 1, "compression_type")?;
    // -1 leaves it to us.
    let buffer = match define::int(ctx, 2, "buffer_size")? {
        -1 => RecordOptions::default().buffer_size,
        _ => buffer_size(ctx, 2, "`buffer_size` must be >= 0 (0 == no buffering)")?,
    };
    let mut offsets = Vec::new();
    if v2 {
        offsets = define::ints(ctx, 3, "byte_offsets")?;
        if !offsets.is_empty() && offsets.len() != files.len() {
            return Err(Status::invalid_argument(
                "`byte_offsets` must be of same size as `filenames`",
            ));
        }
    }
    let options = RecordOptions {
        compression: Compression::from_option(&name),
        buffer_size: buffer,
        max_record: ctx.device().memory.max_tensor_bytes,
    };
    let format = Format::Records(options, offsets.into());
    let kind = if v2 { "TFRecordV2" } else { "TFRecord" };
    Dataset::new(
        kind,
        one_string(),
        vec![],
        Files {
            files: files.into(),
            format,
        },
    )
}

fn fixed_length(ctx: &mut OpContext<'_>, v2: bool) -> Result<Dataset> {
    let files = filenames(ctx, 0)?;
    let mut sizes = [0u64; 3];
    for (i, name) in ["header_bytes", "record_bytes", "footer_bytes"]
        .iter()
        .enumerate()
    {
        let size = define::int(ctx, i + 1, name)?;
        let (least, text) = match i {
            1 => (1, format!("`{name}` must be > 0")),
            _ => (0, format!("`{name}` must be >= 0")),
        };
        if size < least {
            return Err(Status::invalid_argument(text));
        }
        sizes[i] = size as u64;
    }
    buffer_size(ctx, 4, "`buffer_size` must be >= 0 (0 == default)")?;
    let compression = if v2 {
        compression(ctx, 5)?
    } else {
        Compression::None
    };
    let [header, record, footer] = sizes;
    let format = Format::FixedLength(Layout {
        header,
        record,
        footer,
        compression,
    });
    let kind = if v2 {
        "FixedLengthRecordV2"
    } else {
        "FixedLengthRecord"
    };
    Dataset::new(
        kind,
        one_string(),
        vec![],
        Files {
            files: files.into(),
            format,
        },
    )
}

/// Where the records of a file lie.
#[derive(Clone, Copy)]
struct Layout {
    header: u64,
    record: u64,
    footer: u64,
    compression: Compression,
}

#[derive(Clone)]
enum Format {
    TextLine(Compression),
    FixedLength(Layout),
    /// Where in each file to begin; empty for the start.
    Records(RecordOptions, Arc<[i64]>),
}

struct Files {
    files: Arc<[Bytes]>,
    format: Format,
}

impl Recipe for Files {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        Ok(Box::new(FilesStream {
            files: self.files.clone(),
            format: self.format.clone(),
            device: place.device.clone(),
            at: 0,
            current: None,
            count: 0,
        }))
    }
}

struct FilesStream {
    files: Arc<[Bytes]>,
    format: Format,
    device: Arc<Device>,
    at: usize,
    current: Option<Open>,
    /// Records read of the current file.
    count: u64,
}

/// A file being read.
enum Open {
    Lines(ByteStream),
    Records(RecordReader),
    /// Whole records, of which the last byte read lies `footer` bytes before the end.
    Fixed {
        stream: ByteStream,
        layout: Layout,
        left: u64,
    },
    /// A compressed stream, whose end is known only when it comes.
    FixedAhead {
        stream: ByteStream,
        layout: Layout,
        ahead: Vec<u8>,
        read: u64,
    },
}

impl Stream for FilesStream {
    fn save(&mut self) -> Saving<'_> {
        Box::pin(async move {
            let (open, offset) = match &self.current {
                Some(Open::Records(reader)) => (true, reader.offset() as i64),
                other => (other.is_some(), -1),
            };
            Ok(Some(State::of([
                self.at as i64,
                open.into(),
                offset,
                self.count as i64,
            ])))
        })
    }

    fn restore(&mut self, state: State) -> Restoring<'_> {
        Box::pin(async move {
            self.at = state.size(0)?;
            if state.number(1)? == 0 {
                return Ok(());
            }
            let name = self.files.get(self.at).cloned().ok_or_else(misfit)?;
            let mut file = self.open_file(&name)?;
            self.count = state.option(3)?.unwrap_or(0);
            let mut entered = false;
            if let (Open::Records(reader), Some(offset)) = (&mut file, state.option(2)?) {
                entered = reader.seek(offset).is_ok();
            }
            if !entered {
                // What is compressed cannot be entered in the middle.
                for _ in 0..self.count {
                    if file.record(&name)?.is_none() {
                        return Err(misfit());
                    }
                }
            }
            self.current = Some(file);
            Ok(())
        })
    }

    fn next(&mut self) -> Next<'_> {
        now(self.record())
    }
}

impl FilesStream {
    fn record(&mut self) -> Got {
        loop {
            let Some(name) = self.files.get(self.at).cloned() else {
                return Ok(None);
            };
            let read = match &mut self.current {
                Some(file) => file.record(&name),
                None => {
                    self.current = Some(self.open_file(&name)?);
                    self.count = 0;
                    continue;
                }
            };
            match read {
                Ok(Some(record)) => {
                    self.count += 1;
                    return Ok(Some(vec![Tensor::string(record)]));
                }
                Ok(None) => {
                    self.current = None;
                    self.at += 1;
                }
                Err(e) => {
                    // A record file that is broken is left, so that whoever passes over errors
                    // gets to the next one.
                    if matches!(self.format, Format::Records(..)) {
                        self.current = None;
                        self.at += 1;
                    }
                    return Err(e);
                }
            }
        }
    }

    fn open_file(&mut self, name: &Bytes) -> Result<Open> {
        let (storage, name) = (storage(&self.device), path(name)?);
        let limit = self.device.room();
        match &self.format {
            Format::TextLine(compression) => {
                let stream = ByteStream::open(storage, name, *compression, limit)?;
                Ok(Open::Lines(stream))
            }
            Format::Records(options, offsets) => {
                let mut reader = match RecordReader::open(storage, name, *options) {
                    // TensorFlow can open a directory, it only cannot read it.
                    Err(e) if e.code == Code::FailedPrecondition => {
                        self.at += 1;
                        return Err(e);
                    }
                    other => other?,
                };
                if let Some(&offset) = offsets.get(self.at) {
                    let offset = u64::try_from(offset)
                        .map_err(|_| Status::invalid_argument("`byte_offsets` must be >= 0"))?;
                    reader.seek(offset)?;
                }
                Ok(Open::Records(reader))
            }
            Format::FixedLength(layout) => {
                let open = |compression| ByteStream::open(storage, name, compression, limit);
                let layout = *layout;
                if layout.compression == Compression::None {
                    let size = storage.size(name)?;
                    let body = size.wrapping_sub(layout.header.wrapping_add(layout.footer));
                    if body % layout.record != 0 {
                        return Err(layout.uneven(Code::InvalidArgument, name, body));
                    }
                    let mut stream = open(Compression::None)?;
                    stream.skip(layout.header)?;
                    let left = if body > size { 0 } else { body / layout.record };
                    return Ok(Open::Fixed {
                        stream,
                        layout,
                        left,
                    });
                }
                let mut stream = open(layout.compression)?;
                let end = || Status::out_of_range("reached end of file");
                if stream.skip(layout.header)? < layout.header {
                    return Err(end());
                }
                let mut ahead = Vec::new();
                let footer = usize::try_from(layout.footer).unwrap_or(usize::MAX);
                if stream.read_onto(footer, &mut ahead)? < footer {
                    return Err(end());
                }
                let read = layout.header + layout.footer;
                Ok(Open::FixedAhead {
                    stream,
                    layout,
                    ahead,
                    read,
                })
            }
        }
    }
}

impl Layout {
    fn uneven(&self, code: Code, name: &str, body: u64) -> Status {
        let Layout {
            header,
            record,
            footer,
            ..
        } = self;
        Status::new(
            code,
            format!(
                "Excluding the header ({header} bytes) and footer ({footer} bytes), input file \"{name}\" has body length {body} bytes, which is not an exact multiple of the record length ({record} bytes)."
            ),
        )
    }
}

impl Open {
    fn record(&mut self, name: &Bytes) -> Result<Option<Bytes>> {
        match self {
            Open::Lines(stream) => Ok(stream.read_line()?.map(Bytes::from)),
            Open::Records(reader) => reader.read(),
            Open::Fixed {
                stream,
                layout,
                left,
            } => {
                if *left == 0 {
                    return Ok(None);
                }
                *left -= 1;
                let wanted = usize::try_from(layout.record).unwrap_or(usize::MAX);
                let mut record = Vec::new();
                if stream.read_onto(wanted, &mut record)? < wanted {
                    return Err(Status::out_of_range("reached end of file"));
                }
                Ok(Some(record.into()))
            }
            Open::FixedAhead {
                stream,
                layout,
                ahead,
                read,
            } => {
                let wanted = usize::try_from(layout.record).unwrap_or(usize::MAX);
                let mut more = Vec::new();
                let got = stream.read_onto(wanted, &mut more)?;
                *read += got as u64;
                if got < wanted {
                    if got == 0 {
                        return Ok(None);
                    }
                    let body = *read - layout.header - layout.footer;
                    return Err(layout.uneven(Code::DataLoss, path(name)?, body));
                }
                ahead.extend_from_slice(&more);
                let rest = ahead.split_off(wanted);
                Ok(Some(std::mem::replace(ahead, rest).into()))
            }
        }
    }
}
