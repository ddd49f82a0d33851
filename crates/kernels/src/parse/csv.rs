//! `DecodeCSV`: records into columns, in RFC 4180 as TensorFlow reads it. A record's fields are
//! cut first, then converted; the first record with an error is the one reported.

use super::{invalid, shown};
use crate::strings::number::Parse;
use bytes::Bytes;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, Registry, parallel_for};
use downpour_tensor::{DType, Shape, Tensor};
use parking_lot::Mutex;
use std::borrow::Cow;

/// Bytes of records that are worth another thread.
const WORTH_SPLITTING: usize = 64 << 10;

pub(super) fn register(r: &mut Registry) {
    r.add("DecodeCSV", decode_csv);
}

/// The op's attributes.
struct Format {
    types: Vec<DType>,
    delimiter: u8,
    quotes: bool,
    missing: Bytes,
    /// Columns to take, in ascending order; none means all.
    columns: Vec<i64>,
}

fn decode_csv(b: &KernelBuilder<'_>) -> Result<Built> {
    let attrs = b.attrs();
    let format = Format {
        types: attrs.dtypes("OUT_TYPE")?.to_vec(),
        delimiter: attrs.bytes("field_delim")?.first().copied().unwrap_or(0),
        quotes: attrs.bool("use_quote_delim")?,
        missing: attrs.bytes("na_value")?.clone(),
        columns: attrs.ints("select_cols")?.to_vec(),
    };
    let columns = &format.columns;
    if !columns.is_empty() && columns.len() != format.types.len() {
        return invalid("select_cols should match output size");
    }
    if columns.windows(2).any(|pair| pair[0] >= pair[1]) {
        return invalid("select_cols should be strictly increasing indices");
    }
    if columns.first().is_some_and(|first| *first < 0) {
        return invalid("select_cols should be non-negative indices");
    }
    if attrs.bytes("field_delim")?.len() != 1 {
        return invalid("field_delim should be only 1 char");
    }
    Built::costly(move |ctx| {
        let defaults = ctx.inputs(1..1 + format.types.len())?;
        for (i, default) in defaults.iter().enumerate() {
            if default.rank() > 1 {
                return invalid("Each record default should be at most rank 1");
            }
            if default.num_elements() >= 2 {
                return invalid(format!(
                    "There should only be 1 default per field but field {i} has {}",
                    default.num_elements()
                ));
            }
        }
        let records = ctx.input(0)?;
        for dtype in &format.types {
            ctx.check_alloc(*dtype, records.shape())?;
        }
        let columns = decode(&format, &defaults, records.as_strings()?)?;
        let shape = records.shape().clone();
        let tensors: Result<Vec<Tensor>> = columns.into_iter().map(|c| c.tensor(&shape)).collect();
        for (i, tensor) in tensors?.into_iter().enumerate() {
            ctx.set_output(i, tensor);
        }
        Ok(())
    })
}

/// All records, in parts side by side when they are many.
fn decode(format: &Format, defaults: &[&Tensor], records: &[Bytes]) -> Result<Vec<Column>> {
    let bytes: usize = records.iter().map(Bytes::len).sum();
    let parts = (bytes / WORTH_SPLITTING)
        .clamp(1, 64)
        .min(records.len().max(1));
    let results: Vec<Mutex<Option<Result<Vec<Column>>>>> =
        (0..parts).map(|_| Mutex::default()).collect();
    parallel_for(parts, 1, |range| {
        for i in range {
            let rows = records.len() * i / parts..records.len() * (i + 1) / parts;
            *results[i].lock() = Some(decode_rows(format, defaults, records, rows));
        }
    });
    let mut whole = columns(format)?;
    for result in results {
        let Some(part) = result.into_inner() else {
            return Err(Status::internal("a part of the records was not decoded"));
        };
        for (column, more) in whole.iter_mut().zip(part?) {
            column.append(more);
        }
    }
    Ok(whole)
}

fn columns(format: &Format) -> Result<Vec<Column>> {
    format.types.iter().map(|t| Column::new(*t)).collect()
}

fn decode_rows(
    format: &Format,
    defaults: &[&Tensor],
    records: &[Bytes],
    rows: std::ops::Range<usize>,
) -> Result<Vec<Column>> {
    let mut columns = columns(format)?;
    let mut fields = Vec::with_capacity(format.types.len());
    for row in rows {
        let record = &records[row];
        fields.clear();
        format.cut(record, &mut fields)?;
        if fields.len() != format.types.len() {
            return invalid(format!(
                "Expect {} fields but have {} in record {row}",
                format.types.len(),
                fields.len()
            ));
        }
        for (f, (field, column)) in fields.iter().zip(&mut columns).enumerate() {
            if field.is_empty() || field.as_ref() == format.missing.as_ref() {
                if defaults[f].num_elements() != 1 {
                    return invalid(format!(
                        "Field {f} is required but missing in record {row}!"
                    ));
                }
                column.push_default(defaults[f])?;
            } else if !column.push(field, record) {
                return invalid(format!(
                    "Field {f} in record {row} is not a valid {}: {}",
                    format.types[f],
                    shown(field)
                ));
            }
        }
    }
    Ok(columns)
}

impl Format {
    /// The fields of a record that are to be taken. Only what is taken is kept, so a record costs
    /// no more than its own size.
    fn cut<'a>(&self, record: &'a [u8], fields: &mut Vec<Cow<'a, [u8]>>) -> Result<()> {
        let wanted = |column: i64, taken: usize| match self.columns.get(taken) {
            Some(next) => *next == column,
            None => self.columns.is_empty(),
        };
        let (mut at, mut column) = (0, 0);
        while let Some(&byte) = record.get(at) {
            if byte == b'\n' || byte == b'\r' {
                at += 1;
                continue;
            }
            let field;
            (field, at) = if self.quotes && byte == b'"' {
                self.quoted(record, at + 1)?
            } else {
                self.plain(record, at)?
            };
            if wanted(column, fields.len()) {
                fields.push(field);
                if fields.len() == self.columns.len() {
                    return Ok(());
                }
            }
            column += 1;
        }
        if record.last() == Some(&self.delimiter) && wanted(column, fields.len()) {
            fields.push(Cow::Borrowed(&[]));
        }
        Ok(())
    }

    /// A field without quotes from `start` on, and where the next one begins.
    fn plain<'a>(&self, record: &'a [u8], start: usize) -> Result<(Cow<'a, [u8]>, usize)> {
        let rest = &record[start..];
        let length = rest.iter().position(|b| *b == self.delimiter);
        let field = &rest[..length.unwrap_or(rest.len())];
        let forbidden = |b: &u8| matches!(b, b'\n' | b'\r') || (self.quotes && *b == b'"');
        if field.iter().any(forbidden) {
            return invalid("Unquoted fields cannot have quotes/CRLFs inside");
        }
        Ok((Cow::Borrowed(field), start + field.len() + 1))
    }

    /// A field whose opening quote ended before `start`, and where the next one begins.
    fn quoted<'a>(&self, record: &'a [u8], start: usize) -> Result<(Cow<'a, [u8]>, usize)> {
        let mut field: Cow<'a, [u8]> = Cow::Borrowed(&record[start..start]);
        let mut at = start;
        // The last byte can only be the closing quote.
        while let &[byte, next, ..] = &record[at..] {
            if byte != b'"' {
                let run = record[at..record.len() - 1].iter();
                let run = run.take_while(|b| **b != b'"').count();
                match &mut field {
                    Cow::Borrowed(f) => *f = &record[at - f.len()..at + run],
                    Cow::Owned(f) => f.extend_from_slice(&record[at..at + run]),
                }
                at += run;
            } else if next == self.delimiter {
                return Ok((field, at + 2));
            } else if next == b'"' {
                field.to_mut().push(b'"');
                at += 2;
            } else {
                return invalid("Quote inside a string has to be escaped by another quote");
            }
        }
        match record.get(at) {
            Some(b'"') => Ok((field, at + 2)),
            _ => invalid("Quoted field has to end with quote followed by delim or end"),
        }
    }
}

/// One output while it is filled.
enum Column {
    Floats(Vec<f32>),
    Doubles(Vec<f64>),
    Ints(Vec<i32>),
    Longs(Vec<i64>),
    Strings(Vec<Bytes>),
}

impl Column {
    fn new(dtype: DType) -> Result<Column> {
        Ok(match dtype {
            DType::Float => Column::Floats(Vec::new()),
            DType::Double => Column::Doubles(Vec::new()),
            DType::Int32 => Column::Ints(Vec::new()),
            DType::Int64 => Column::Longs(Vec::new()),
            DType::String => Column::Strings(Vec::new()),
            other => return invalid(format!("csv: data type {other} not supported")),
        })
    }

    /// Whether the field is a value of this column.
    fn push(&mut self, field: &[u8], record: &Bytes) -> bool {
        fn number<T: Parse>(values: &mut Vec<T>, field: &[u8]) -> bool {
            T::parse(field).map(|v| values.push(v)).is_some()
        }
        match self {
            Column::Floats(v) => number(v, field),
            Column::Doubles(v) => number(v, field),
            Column::Ints(v) => number(v, field),
            Column::Longs(v) => number(v, field),
            Column::Strings(v) => {
                // A long field stays where it is; a short one must not keep its record alive.
                const SHARED: usize = 128;
                let inside = record.as_ptr_range().contains(&field.as_ptr());
                v.push(if inside && field.len() >= SHARED {
                    record.slice_ref(field)
                } else {
                    Bytes::copy_from_slice(field)
                });
                true
            }
        }
    }

    fn push_default(&mut self, default: &Tensor) -> Result<()> {
        match self {
            Column::Floats(v) => v.push(default.scalar_value()?),
            Column::Doubles(v) => v.push(default.scalar_value()?),
            Column::Ints(v) => v.push(default.scalar_value()?),
            Column::Longs(v) => v.push(default.scalar_value()?),
            Column::Strings(v) => v.extend_from_slice(default.as_strings()?),
        }
        Ok(())
    }

    fn append(&mut self, other: Column) {
        match (self, other) {
            (Column::Floats(a), Column::Floats(mut b)) => a.append(&mut b),
            (Column::Doubles(a), Column::Doubles(mut b)) => a.append(&mut b),
            (Column::Ints(a), Column::Ints(mut b)) => a.append(&mut b),
            (Column::Longs(a), Column::Longs(mut b)) => a.append(&mut b),
            (Column::Strings(a), Column::Strings(mut b)) => a.append(&mut b),
            _ => debug_assert!(false, "parts have the same columns"),
        }
    }

    fn tensor(self, shape: &Shape) -> Result<Tensor> {
        let shape = shape.clone();
        Ok(match self {
            Column::Floats(v) => Tensor::from_vec(v, shape)?,
            Column::Doubles(v) => Tensor::from_vec(v, shape)?,
            Column::Ints(v) => Tensor::from_vec(v, shape)?,
            Column::Longs(v) => Tensor::from_vec(v, shape)?,
            Column::Strings(v) => Tensor::strings(v, shape)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{run_op, text};
    use downpour_graph::AttrValue;

    fn run(records: &[&[u8]], types: &[DType]) -> Result<Vec<Tensor>> {
        let records: Vec<Bytes> = records.iter().map(|r| Bytes::copy_from_slice(r)).collect();
        let n = records.len();
        let mut inputs = vec![Tensor::strings(records, [n]).unwrap()];
        inputs.extend(types.iter().map(|t| Tensor::zeros(*t, [0]).unwrap()));
        let attrs: [(&str, AttrValue); 1] = [("OUT_TYPE", types.to_vec().into())];
        run_op("DecodeCSV", inputs, &attrs)
    }

    #[test]
    fn quotes_and_ends_follow_tensorflow() {
        let string = [DType::String, DType::String];
        for (record, expect) in [
            (&b"a,b"[..], [&b"a"[..], b"b"]),
            (b"\"a\"\"b\",\"c,d\"", [b"a\"b", b"c,d"]),
            (b"\r\na,\nb", [b"a", b"b"]),
            (b"\"\"\"x\",\"y\nz\"", [b"\"x", b"y\nz"]),
        ] {
            let out = run(&[record], &string).unwrap();
            assert_eq!(out[0].as_strings().unwrap(), [expect[0]]);
            assert_eq!(out[1].as_strings().unwrap(), [expect[1]]);
        }
        for (record, expect) in [
            (
                &b"\""[..],
                "Quoted field has to end with quote followed by delim or end",
            ),
            (
                b"\"a\"b,c",
                "Quote inside a string has to be escaped by another quote",
            ),
            (b"a\"b,c", "Unquoted fields cannot have quotes/CRLFs inside"),
            (b"a,b,c", "Expect 2 fields but have 3 in record 0"),
            (b"", "Expect 2 fields but have 0 in record 0"),
            (b"a,", "Field 1 is required but missing in record 0!"),
        ] {
            assert_eq!(text(run(&[record], &string)), expect);
        }
    }

    #[test]
    fn hostile_numbers_are_refused_or_infinite() {
        let digits = vec![b'9'; 10_000];
        let e = run(&[&digits], &[DType::Int64]).unwrap_err();
        assert!(
            e.message
                .starts_with("Field 0 in record 0 is not a valid int64: 999")
        );
        let out = run(&[b"1e999999"], &[DType::Double]).unwrap();
        assert_eq!(out[0].as_slice::<f64>().unwrap(), [f64::INFINITY]);
        assert!(run(&[b"1\x002"], &[DType::Int32]).is_err());
        assert!(run(&[b"\xff"], &[DType::Float]).is_err());
    }

    #[test]
    fn many_records_keep_their_order_and_the_first_error() {
        let mut records: Vec<Vec<u8>> =
            (0..20_000).map(|i| format!("{i},x").into_bytes()).collect();
        let types = [DType::Int32, DType::String];
        let refs: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
        let out = run(&refs, &types).unwrap();
        assert!(
            out[0]
                .as_slice::<i32>()
                .unwrap()
                .iter()
                .copied()
                .eq(0..20_000)
        );
        records[19_000] = b"x,".to_vec();
        records[7_000] = b"y,z".to_vec();
        let refs: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
        assert_eq!(
            text(run(&refs, &types)),
            "Field 0 in record 7000 is not a valid int32: y"
        );
    }
}
