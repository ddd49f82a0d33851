//! Tables from text files: one key and one value a line, from columns, the line or its number.

use super::Table;
use crate::io::storage;
use crate::strings::number::Parse;
use bytes::Bytes;
use downpour_formats::record::Compression;
use downpour_formats::stream::ByteStream;
use downpour_graph::{Code, Result, Status};
use downpour_runtime::Device;
use downpour_tensor::{DType, Tensor};

const LINE_NUMBER: i64 = -1;
const WHOLE_LINE: i64 = -2;

/// What a node says of its file.
#[derive(Clone, Debug)]
pub(super) struct Spec {
    pub(super) key_index: i64,
    pub(super) value_index: i64,
    /// How many lines there are; -1 if that is for the file to say.
    pub(super) vocab_size: i64,
    pub(super) delimiter: u8,
    /// Added to line numbers, and to int32 columns but no others, as TensorFlow does.
    pub(super) offset: i64,
}

/// Initialises a table from a file. A table that is initialised already stays as it is.
pub(super) fn initialize(table: &Table, device: &Device, path: &str, spec: &Spec) -> Result<()> {
    check_types(table, spec)?;
    let read = read(table, device, path, spec)?;
    let total = match spec.vocab_size {
        -1 => read.lines,
        n => usize::try_from(n).unwrap_or(0),
    };
    match table.initialize(
        &read.keys.tensor()?,
        &read.values.tensor()?,
        total,
        read.end,
    ) {
        Err(e) if e.code == Code::FailedPrecondition && table.is_initialized() => Ok(()),
        other => other,
    }
}

fn check_types(table: &Table, spec: &Spec) -> Result<()> {
    let (key, value) = (table.key_dtype, table.value_dtype);
    let refuse = |text: String| Err(Status::invalid_argument(text));
    let words = |t: DType| t.is_integer() || t == DType::String;
    if spec.key_index == LINE_NUMBER && key != DType::Int64 {
        return refuse(format!(
            "Key index for line number requires table key dtype of int64, got {key}"
        ));
    }
    if spec.key_index == WHOLE_LINE && !words(key) {
        return refuse(format!(
            "Key index for whole line requires string or integer table key, got {key}"
        ));
    }
    if spec.value_index == LINE_NUMBER && value != DType::Int64 {
        return refuse(format!(
            "Value index for line number requires table value dtype of int64, got {value}"
        ));
    }
    if spec.value_index == WHOLE_LINE && !words(value) {
        return refuse(format!(
            "Value index for whole line requires table value dtype of integer or string, got {value}"
        ));
    }
    Ok(())
}

struct Read {
    keys: Column,
    values: Column,
    lines: usize,
    /// Whether the file came to its end, and if not, why.
    end: Result<()>,
}

/// Reads lines up to the first that is wrong. An error at the very first is the outcome.
fn read(table: &Table, device: &Device, path: &str, spec: &Spec) -> Result<Read> {
    let limit = device.room();
    let mut file = ByteStream::open(storage(device), path, Compression::None, limit)?;
    let mut read = Read {
        keys: Column::new(table.key_dtype),
        values: Column::new(table.value_dtype),
        lines: 0,
        end: Ok(()),
    };
    let mut bytes = 0usize;
    loop {
        let outcome = next(&mut file, path, spec, &mut read);
        let taken = match outcome {
            Ok(Some(taken)) => taken,
            Ok(None) if read.lines > 0 => return Ok(read),
            Ok(None) => return Err(Status::out_of_range("Read less bytes than requested")),
            Err(e) if e.code == Code::OutOfRange && read.lines > 0 => return Ok(read),
            Err(e) if read.lines > 0 => {
                // A key without a value is not there.
                read.keys.truncate(read.lines);
                read.end = Err(e);
                return Ok(read);
            }
            Err(e) => return Err(e),
        };
        read.lines += 1;
        bytes = bytes.saturating_add(taken).saturating_add(32);
        if bytes > limit {
            return Err(Status::resource_exhausted(format!(
                "{path} has more than the {limit} bytes that a table may have"
            )));
        }
    }
}

/// Takes one line, and gives its length; `None` at the end of the file.
fn next(file: &mut ByteStream, path: &str, spec: &Spec, read: &mut Read) -> Result<Option<usize>> {
    let number = read.lines as i64;
    let Some(line) = file.read_line()? else {
        if spec.vocab_size != -1 && number != spec.vocab_size {
            return Err(Status::invalid_argument(format!(
                "Invalid vocab_size in {path}: expected {} but got {number}",
                spec.vocab_size
            )));
        }
        return Ok(None);
    };
    if spec.vocab_size != -1 && number >= spec.vocab_size {
        return Err(Status::out_of_range(format!(
            "Finished reading {} of lines from {path}",
            spec.vocab_size
        )));
    }
    if line.is_empty() {
        return Err(Status::invalid_argument(format!(
            "Invalid content in {path}: empty line found at position {}.",
            file.position()
        )));
    }
    let needed = spec.key_index.max(spec.value_index) + 1;
    let line = Bytes::from(line);
    let fields: Vec<Bytes> = if needed > 0 {
        let parts = line.split(|&b| b == spec.delimiter);
        parts.map(|part| line.slice_ref(part)).collect()
    } else {
        Vec::new()
    };
    if (fields.len() as i64) < needed {
        return Err(Status::invalid_argument(format!(
            "Invalid number of columns in {path} line {number} ({}) : expected at least {needed} got {}",
            String::from_utf8_lossy(&line),
            fields.len()
        )));
    }
    let field = |index: i64| match usize::try_from(index) {
        Ok(i) => fields.get(i).unwrap_or(&line),
        Err(_) => &line,
    };
    for (column, index) in [
        (&mut read.keys, spec.key_index),
        (&mut read.values, spec.value_index),
    ] {
        if index == LINE_NUMBER {
            column.push_number(number.wrapping_add(spec.offset));
        } else {
            column.push(field(index), number, spec.offset)?;
        }
    }
    Ok(Some(line.len()))
}

/// The keys or the values of a file.
enum Column {
    Int32(Vec<i32>),
    Int64(Vec<i64>),
    Float(Vec<f32>),
    Double(Vec<f64>),
    Strings(Vec<Bytes>),
    Other(DType),
}

impl Column {
    fn new(dtype: DType) -> Column {
        match dtype {
            DType::Int32 => Column::Int32(Vec::new()),
            DType::Int64 => Column::Int64(Vec::new()),
            DType::Float => Column::Float(Vec::new()),
            DType::Double => Column::Double(Vec::new()),
            DType::String => Column::Strings(Vec::new()),
            other => Column::Other(other),
        }
    }

    /// Adds a number that is no text; only an int64 column is asked to.
    fn push_number(&mut self, value: i64) {
        if let Column::Int64(values) = self {
            values.push(value);
        }
    }

    fn push(&mut self, text: &Bytes, line: i64, offset: i64) -> Result<()> {
        fn number<T: Parse>(text: &Bytes, line: i64, kind: &str) -> Result<T> {
            T::parse(text).ok_or_else(|| {
                Status::invalid_argument(format!(
                    "Field {} in line {line} is not a valid {kind}.",
                    String::from_utf8_lossy(text)
                ))
            })
        }
        match self {
            Column::Int32(values) => {
                let value = number::<i32>(text, line, "int32")?;
                values.push(value.wrapping_add(offset as i32));
            }
            Column::Int64(values) => values.push(number(text, line, "int64")?),
            Column::Float(values) => values.push(number(text, line, "float")?),
            Column::Double(values) => values.push(number(text, line, "double")?),
            Column::Strings(values) => values.push(text.clone()),
            Column::Other(dtype) => {
                return Err(Status::invalid_argument(format!(
                    "Data type {dtype} not supported."
                )));
            }
        }
        Ok(())
    }

    fn truncate(&mut self, length: usize) {
        match self {
            Column::Int32(values) => values.truncate(length),
            Column::Int64(values) => values.truncate(length),
            Column::Float(values) => values.truncate(length),
            Column::Double(values) => values.truncate(length),
            Column::Strings(values) => values.truncate(length),
            Column::Other(_) => {}
        }
    }

    fn tensor(self) -> Result<Tensor> {
        Ok(match self {
            Column::Int32(values) => Tensor::vector(values),
            Column::Int64(values) => Tensor::vector(values),
            Column::Float(values) => Tensor::vector(values),
            Column::Double(values) => Tensor::vector(values),
            Column::Strings(values) => {
                let length = values.len();
                Tensor::strings(values, [length])?
            }
            Column::Other(dtype) => Tensor::zeros(dtype, [0])?,
        })
    }
}
