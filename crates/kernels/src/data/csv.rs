//! `CSVDataset`: the records of CSV files, each field converted to its column's type. A record
//! that cannot be read is passed over to its end, so that the walk goes on behind it.

use super::dataset::{Dataset, Element, Got, Next, Place, Recipe, Stream};
use super::define::{self, declared, now};
use super::files::filenames;
use crate::io::file::path;
use crate::io::storage;
use crate::strings::number::Parse;
use bytes::Bytes;
use downpour_formats::record::Compression;
use downpour_formats::stream::ByteStream;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, Device, KernelBuilder, OpContext, Registry};
use downpour_tensor::{DType, Tensor};
use std::sync::Arc;

pub(super) fn register(r: &mut Registry) {
    for op in ["CSVDataset", "ExperimentalCSVDataset"] {
        r.add(op, |b| csv(b, false));
    }
    r.add("CSVDatasetV2", |b| csv(b, true));
}

fn csv(b: &KernelBuilder<'_>, v2: bool) -> Result<Built> {
    let spec = declared(b)?;
    define::dataset(move |ctx| {
        let form = form(ctx, &spec.types, v2)?;
        let recipe = Csv {
            files: filenames(ctx, 0)?.into(),
            form: Arc::new(form),
        };
        let kind = if v2 { "CSVV2" } else { "CSV" };
        Dataset::new((kind, "CSV"), spec.clone(), vec![], recipe)
    })
}

/// How records are read.
struct Form {
    types: Vec<DType>,
    defaults: Vec<Tensor>,
    compression: Compression,
    header: bool,
    delimiter: u8,
    quotes: bool,
    missing: Bytes,
    /// Columns to take, ascending; none means all.
    select: Vec<i64>,
    /// Columns to leave out, ascending.
    exclude: Vec<i64>,
}

fn form(ctx: &OpContext<'_>, types: &[DType], v2: bool) -> Result<Form> {
    let refused = |text: String| Err(Status::invalid_argument(text));
    filenames(ctx, 0)?;
    let compression = define::text(ctx, 1, "compression_type")?;
    let defaults = (0..types.len()).map(|i| ctx.input(8 + i).cloned());
    let defaults = defaults.collect::<Result<Vec<_>>>()?;
    for (i, default) in defaults.iter().enumerate() {
        if default.rank() > 1 {
            return refused("Each record default should be at most rank 1".into());
        }
        if default.num_elements() >= 2 {
            return refused(format!(
                "There should only be 1 default per field but field {i} has {}",
                default.num_elements()
            ));
        }
    }
    let columns = |i: usize, name: &str| -> Result<Vec<i64>> {
        let tensor = ctx.input(i)?;
        if tensor.rank() != 1 {
            let text = format!("`{name}` must be a vector.");
            return Err(Status::invalid_argument(text));
        }
        crate::args::ints(tensor)
    };
    let select = columns(7, "select_cols")?;
    let exclude = match v2 {
        true => columns(8 + types.len(), "exclude_cols")?,
        false => vec![],
    };
    if define::int(ctx, 2, "buffer_size")? <= 0 {
        return refused("buffer_size should be positive".into());
    }
    let delimiter = define::string(ctx, 4, "field_delim")?;
    let &[delimiter] = &delimiter[..] else {
        return refused("field_delim should be only 1 char".into());
    };
    if !select.is_empty() && !exclude.is_empty() {
        return refused("Either select_cols or exclude_cols should be empty".into());
    }
    if !["", "ZLIB", "GZIP"].contains(&compression.as_str()) {
        return refused(format!("Unsupported compression_type: {compression}."));
    }
    if !select.is_empty() && select.len() != types.len() {
        return refused("select_cols should match output size".into());
    }
    for (name, columns) in [("select_cols", &select), ("exclude_cols", &exclude)] {
        if columns.windows(2).any(|pair| pair[0] >= pair[1]) {
            return refused(format!("{name} should be strictly increasing indices"));
        }
        if columns.first().is_some_and(|first| *first < 0) {
            return refused(format!("{name} should be non-negative indices"));
        }
    }
    Ok(Form {
        types: types.to_vec(),
        defaults,
        compression: Compression::from_option(&compression),
        header: define::boolean(ctx, 3, "header")?,
        delimiter,
        quotes: define::boolean(ctx, 5, "use_quote_delim")?,
        missing: define::string(ctx, 6, "na_value")?,
        select,
        exclude,
    })
}

struct Csv {
    files: Arc<[Bytes]>,
    form: Arc<Form>,
}

impl Recipe for Csv {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        Ok(Box::new(CsvStream {
            files: self.files.clone(),
            form: self.form.clone(),
            device: place.device.clone(),
            at: 0,
            stream: None,
        }))
    }
}

struct CsvStream {
    files: Arc<[Bytes]>,
    form: Arc<Form>,
    device: Arc<Device>,
    at: usize,
    stream: Option<ByteStream>,
}

impl Stream for CsvStream {
    fn next(&mut self) -> Next<'_> {
        now(self.record())
    }
}

impl CsvStream {
    fn record(&mut self) -> Got {
        loop {
            if let Some(stream) = &mut self.stream {
                let mut wanted = Wanted::new(&self.form);
                if let Some(outcome) = self.form.read(stream, &mut |field| wanted.take(field))? {
                    outcome?;
                    return wanted.element().map(Some);
                }
                self.stream = None;
                self.at += 1;
            }
            let Some(name) = self.files.get(self.at) else {
                return Ok(None);
            };
            let limit = self.device.room();
            let (storage, name) = (storage(&self.device), path(name)?);
            let mut stream = ByteStream::open(storage, name, self.form.compression, limit)?;
            if self.form.header {
                let header = self.form.read(&mut stream, &mut |_| Ok(()))?;
                if !matches!(header, Some(Ok(()))) {
                    return Err(Status::invalid_argument("Can't read header of file"));
                }
            }
            self.stream = Some(stream);
        }
    }
}

/// What is made of a record's fields.
struct Wanted<'a> {
    form: &'a Form,
    column: i64,
    out: Element,
}

impl<'a> Wanted<'a> {
    fn new(form: &'a Form) -> Wanted<'a> {
        Wanted {
            form,
            column: 0,
            out: Vec::with_capacity(form.types.len()),
        }
    }

    fn includes(&self, column: i64) -> bool {
        if self.form.select.is_empty() {
            self.form.exclude.binary_search(&column).is_err()
        } else {
            self.form.select.binary_search(&column).is_ok()
        }
    }

    /// The next field; `None` is one that was broken.
    fn take(&mut self, field: Option<&[u8]>) -> Result<()> {
        let column = self.column;
        self.column += 1;
        if !self.includes(column) {
            return Ok(());
        }
        let Some(field) = field else {
            return Ok(());
        };
        let i = self.out.len();
        let Some(dtype) = self.form.types.get(i) else {
            return Err(Status::invalid_argument(format!(
                "Expect {i} fields but have more in record"
            )));
        };
        let missing = field.is_empty() || field == &self.form.missing[..];
        let value = match missing {
            true => self.form.default(i),
            false => convert(*dtype, field, i),
        };
        // A field that fails still has its place: what follows is for the next column.
        let (value, outcome) = match value {
            Ok(value) => (value, Ok(())),
            Err(e) => (Tensor::scalar(0i32), Err(e)),
        };
        self.out.push(value);
        outcome
    }

    fn element(self) -> Result<Element> {
        if self.out.len() != self.form.types.len() {
            return Err(Status::invalid_argument(format!(
                "Expect {} fields but have {} in record",
                self.form.types.len(),
                self.out.len()
            )));
        }
        Ok(self.out)
    }
}

fn convert(dtype: DType, field: &[u8], i: usize) -> Result<Tensor> {
    fn number<T: Parse + downpour_tensor::Element>(field: &[u8]) -> Option<Tensor> {
        T::parse(field).map(Tensor::scalar)
    }
    let value = match dtype {
        DType::Int32 => number::<i32>(field),
        DType::Int64 => number::<i64>(field),
        DType::Float => number::<f32>(field),
        DType::Double => number::<f64>(field),
        _ => return Ok(Tensor::string(field.to_vec())),
    };
    value.ok_or_else(|| {
        Status::invalid_argument(format!(
            "Field {i} in record is not a valid {dtype}: {}",
            String::from_utf8_lossy(field)
        ))
    })
}

impl Form {
    fn default(&self, i: usize) -> Result<Tensor> {
        match self.defaults.get(i) {
            Some(default) if default.num_elements() == 1 => Ok(default.clone().reshaped([])?),
            _ => Err(Status::invalid_argument(format!(
                "Field {i} is required but missing in record!"
            ))),
        }
    }

    /// Reads one record and gives its fields to `take`; `None` at the end of the file. The inner
    /// result is the first thing wrong with the record, the outer one what is wrong with the file.
    fn read(
        &self,
        stream: &mut ByteStream,
        take: &mut dyn FnMut(Option<&[u8]>) -> Result<()>,
    ) -> Result<Option<Result<()>>> {
        if stream.peek()?.is_none() {
            return Ok(None);
        }
        let mut outcome = Ok(());
        let mut field = Vec::new();
        loop {
            field.clear();
            let quoted = self.quotes && stream.peek()? == Some(b'"');
            let end = match quoted {
                true => self.quoted(stream, &mut field)?,
                false => self.unquoted(stream, &mut field)?,
            };
            let (broken, last) = match end {
                End::Field(broken) => (broken, false),
                End::Record(broken) => (broken, true),
            };
            // A broken quoted field is not looked at, a broken plain one is.
            let seen = broken.is_none() || !quoted;
            let taken = take(seen.then_some(&field[..]));
            outcome = outcome.and(broken.map_or(Ok(()), Err)).and(taken);
            if last {
                return Ok(Some(outcome));
            }
        }
    }

    fn unquoted(&self, stream: &mut ByteStream, field: &mut Vec<u8>) -> Result<End> {
        let mut broken = None;
        loop {
            match stream.byte()? {
                None => return Ok(End::Record(broken)),
                Some(b) if b == self.delimiter => return Ok(End::Field(broken)),
                Some(b @ (b'\n' | b'\r')) => {
                    skip_newline(stream, b)?;
                    return Ok(End::Record(broken));
                }
                Some(b) => {
                    if self.quotes && b == b'"' {
                        broken.get_or_insert_with(|| {
                            Status::invalid_argument("Unquoted fields cannot have quotes inside")
                        });
                    }
                    stream.push_within(b, field)?;
                }
            }
        }
    }

    fn quoted(&self, stream: &mut ByteStream, field: &mut Vec<u8>) -> Result<End> {
        let mut broken = None;
        stream.byte()?;
        loop {
            let b = match stream.byte()? {
                None => {
                    return Ok(End::Record(Some(Status::invalid_argument(
                        "Reached end of file without closing quoted field in record",
                    ))));
                }
                Some(b'"') => match stream.byte()? {
                    None => return Ok(End::Record(broken)),
                    Some(b) if b == self.delimiter => return Ok(End::Field(broken)),
                    Some(b @ (b'\n' | b'\r')) => {
                        skip_newline(stream, b)?;
                        return Ok(End::Record(broken));
                    }
                    Some(b'"') => b'"',
                    Some(b) => {
                        broken.get_or_insert_with(|| {
                            Status::invalid_argument(
                                "Quote inside a string has to be escaped by another quote",
                            )
                        });
                        b
                    }
                },
                Some(b) => b,
            };
            stream.push_within(b, field)?;
        }
    }
}

/// What a field ended with, and what was wrong with it.
enum End {
    Field(Option<Status>),
    Record(Option<Status>),
}

/// Passes over the `\n` of a `\r\n`.
fn skip_newline(stream: &mut ByteStream, ended_by: u8) -> Result<()> {
    if ended_by == b'\r' && stream.peek()? == Some(b'\n') {
        stream.byte()?;
    }
    Ok(())
}
