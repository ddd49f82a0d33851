//! `DecodeProtoV2`: fields of messages as tensors, one row a message, as wide as its field has values anywhere. What
//! TensorFlow's decoder does with fields that are not written as their type says, this one does too.

use super::schema::{Field, Kind, Pool};
use super::value::Dynamic;
use super::wire::{BYTES, END_GROUP, Input, VARINT, put_tag, unzigzag32, unzigzag64};
use super::{message_type, pool, text};
use crate::parse::invalid;
use bytes::Bytes;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext};
use downpour_tensor::{DType, Shape, Tensor};
use std::borrow::Cow;
use std::sync::Arc;

/// A field to decode.
struct Wanted {
    field: Field,
    dtype: DType,
    /// Which output is its.
    output: usize,
    default: Default,
}

/// What fills a row.
#[derive(Clone)]
enum Default {
    Number(u64),
    Bytes(Bytes),
}

struct Decoder {
    pool: Arc<Pool>,
    message: String,
    /// By number.
    wanted: Vec<Wanted>,
    is_text: bool,
    sanitize: bool,
}

pub(super) fn build(b: &KernelBuilder<'_>) -> Result<Built> {
    let pool = pool(b)?;
    let message = message_type(b, &pool)?;
    let (names, types) = (
        b.attrs().byte_strings("field_names")?,
        b.attrs().dtypes("output_types")?,
    );
    if names.len() != types.len() {
        return invalid("field_names and output_types attributes must have the same length");
    }
    let mut wanted = Vec::with_capacity(names.len());
    for (output, (name, &dtype)) in names.iter().zip(types).enumerate() {
        let name = String::from_utf8_lossy(name);
        let field = pool.message(&message).and_then(|m| m.field(&name));
        let Some(field) = field.or_else(|| pool.extension(&message, &name)) else {
            return invalid(format!("Unknown field: {name} in message type {message}"));
        };
        if !field.kind.fits(dtype) {
            return invalid(format!(
                "Unexpected output type for {}: {} to {}",
                field.full_name,
                field.kind.cpp_type(),
                dtype.enum_name()
            ));
        }
        let default = match dtype {
            DType::String => Default::Bytes(field.default_bytes().into()),
            _ => Default::Number(pool.default_bits(field)),
        };
        wanted.push(Wanted {
            field: field.clone(),
            dtype,
            output,
            default,
        });
    }
    wanted.sort_by_key(|w| w.field.number);
    let is_text = match b.attrs().bytes("message_format")?.as_ref() {
        b"binary" => false,
        b"text" => true,
        _ => return invalid("format must be one of binary or text"),
    };
    let decoder = Decoder {
        pool,
        message,
        wanted,
        is_text,
        sanitize: b.attrs().bool("sanitize")?,
    };
    Built::costly(move |ctx| decoder.run(ctx))
}

/// The values of one field in one message.
#[derive(Default)]
struct Row {
    numbers: Vec<u64>,
    strings: Vec<Bytes>,
    /// How many there are, as the first output says.
    count: usize,
    /// How many were there at most when values written as one began.
    before_packed: Option<usize>,
}

impl Row {
    fn len(&self) -> usize {
        self.numbers.len() + self.strings.len()
    }

    fn set_number(&mut self, field: &Field, v: u64) {
        if !field.is_repeated {
            self.numbers.clear();
        }
        self.numbers.push(v);
        self.count(field);
    }

    fn set_bytes(&mut self, field: &Field, bytes: Bytes) {
        if !field.is_repeated {
            self.strings.clear();
        }
        self.strings.push(bytes);
        self.count(field);
    }

    fn count(&mut self, field: &Field) {
        if self.count == 0 || field.is_repeated {
            self.count += 1;
        }
    }
}

fn data_loss<T>(text: impl Into<String>) -> Result<T> {
    Err(Status::data_loss(text))
}

impl Decoder {
    fn run(&self, ctx: &mut OpContext<'_>) -> Result<()> {
        let input = ctx.input(0)?.clone();
        let messages = input.as_strings()?;
        if messages.is_empty() {
            return invalid("Bufs argument must contain at least one value");
        }
        let fields = self.wanted.len();
        let mut rows = Vec::with_capacity(messages.len() * fields);
        for message in messages {
            let bytes = self.in_binary(message)?;
            self.collect(&bytes, &mut rows)?;
        }
        let mut sizes = vec![0i32; rows.len()];
        for (i, row) in rows.iter().enumerate() {
            let at = i - i % fields + self.wanted[i % fields].output;
            sizes[at] = i32::try_from(row.count).unwrap_or(i32::MAX);
        }
        let with = |last: usize| -> Result<Shape> {
            let dims = input.dims().iter().chain([&last]);
            Ok(Shape::checked(dims.map(|&d| d as i64))?)
        };
        ctx.set_output(0, Tensor::from_vec(sizes, with(fields)?)?);
        for (i, wanted) in self.wanted.iter().enumerate() {
            let own = || rows.iter().skip(i).step_by(fields);
            let width = own().map(|r| r.count).max().unwrap_or(0).max(1);
            if own().any(|r| r.before_packed.is_some_and(|n| n >= width)) {
                return data_loss(format!(
                    "ReadPackedValues: Tried to write more entries than allowed.  Field tag: {}, Max entries allowed: {width}",
                    wanted.field.number
                ));
            }
            let shape = with(width)?;
            ctx.check_alloc(wanted.dtype, &shape)?;
            ctx.set_output(wanted.output + 1, wanted.tensor(own(), width, shape)?);
        }
        Ok(())
    }

    /// A message as bytes that can be read field by field.
    fn in_binary<'a>(&self, message: &'a [u8]) -> Result<Cow<'a, [u8]>> {
        let dynamic = if self.is_text {
            match text::parse(&self.pool, &self.message, message) {
                Some(dynamic) => dynamic,
                None => return data_loss("Unable to parse text protobuf"),
            }
        } else if self.sanitize {
            match Dynamic::parse(&self.pool, &self.message, message) {
                Some(dynamic) => dynamic,
                None => return data_loss("Unable to parse binary protobuf"),
            }
        } else {
            return Ok(Cow::Borrowed(message));
        };
        let mut out = Vec::new();
        dynamic.write(&self.pool, &self.message, &mut out);
        Ok(Cow::Owned(out))
    }

    /// Appends a row for each field of a message.
    fn collect(&self, bytes: &[u8], rows: &mut Vec<Row>) -> Result<()> {
        let first = rows.len();
        rows.resize_with(first + self.wanted.len(), Row::default);
        let mut input = Input::new(bytes);
        while let Some(tag) = input.tag() {
            if tag.wire == END_GROUP {
                return data_loss("CountFields: Failed to consume entire buffer");
            }
            let of_number = |w: &Wanted| w.field.number == tag.number;
            let Some(i) = self.wanted.iter().position(of_number) else {
                if input.skip(tag, 0).is_none() {
                    return data_loss("Failed skipping unrequested field");
                }
                continue;
            };
            let field = &self.wanted[i].field;
            let row = &mut rows[first + i];
            if tag.wire == BYTES && field.kind.wire() != BYTES {
                packed(&mut input, field, self.wanted[i].dtype, row)?;
            } else if tag.wire != field.kind.wire() {
                if input.skip(tag, 0).is_none() {
                    return data_loss("CollectField: Failed skipping malformed field");
                }
            } else if single(&mut input, field, row).is_none() {
                return data_loss("ReadValue: Failed skipping field when counting");
            }
        }
        if !input.is_done() {
            return data_loss("CountFields: Failed to consume entire buffer");
        }
        Ok(())
    }
}

fn number(input: &mut Input<'_>, kind: Kind) -> Option<u64> {
    match kind {
        Kind::Double | Kind::Fixed64 | Kind::Sfixed64 => input.fixed64(),
        Kind::Float | Kind::Fixed32 | Kind::Sfixed32 => input.fixed32().map(u64::from),
        _ => input.varint(),
    }
}

/// Reads one value.
fn single(input: &mut Input<'_>, field: &Field, row: &mut Row) -> Option<()> {
    match field.kind {
        Kind::String | Kind::Bytes | Kind::Message => {
            let bytes = Bytes::copy_from_slice(input.bytes()?);
            row.set_bytes(field, bytes);
        }
        Kind::Group => {
            let start = input.at;
            let tag = super::wire::Tag {
                number: field.number,
                wire: super::wire::START_GROUP,
            };
            input.skip(tag, 0)?;
            // A group is given with its own beginning and end.
            let mut bytes = Vec::new();
            put_tag(&mut bytes, tag.number, tag.wire);
            bytes.extend_from_slice(&input.bytes[start..input.at]);
            row.set_bytes(field, bytes.into());
        }
        kind => {
            let v = signed(kind, number(input, kind)?);
            row.set_number(field, v);
        }
    }
    Some(())
}

/// A number with its sign, as 64 bits.
fn signed(kind: Kind, v: u64) -> u64 {
    match kind {
        Kind::Int32 | Kind::Sfixed32 | Kind::Enum => i64::from(v as i32) as u64,
        Kind::Sint32 => i64::from(unzigzag32(v as u32)) as u64,
        Kind::Sint64 => unzigzag64(v) as u64,
        Kind::Uint32 | Kind::Fixed32 => u64::from(v as u32),
        _ => v,
    }
}

/// Reads values that are written as one.
fn packed(input: &mut Input<'_>, field: &Field, dtype: DType, row: &mut Row) -> Result<()> {
    let mut length =
        || -> Option<usize> { usize::try_from(i32::try_from(input.varint()?).ok()?).ok() };
    let Some(length) = length() else {
        return data_loss("CollectField: Failed reading packed size");
    };
    let Some(bytes) = input.take(length) else {
        return data_loss("ReadPackedValues: Skipping packed field failed");
    };
    row.before_packed = row.before_packed.max(Some(row.len()));
    if bytes.is_empty() {
        return Ok(());
    }
    let size = match field.kind {
        Kind::Group => return data_loss("TYPE_GROUP encountered as packed"),
        Kind::Double | Kind::Fixed64 | Kind::Sfixed64 => 8,
        Kind::Float | Kind::Fixed32 | Kind::Sfixed32 => 4,
        _ => 1,
    };
    if length % size != 0 {
        return data_loss(format!(
            "Illegal data length for packed fixed-size type: {length}"
        ));
    }
    let mut values = Input::new(bytes);
    while !values.is_done() {
        let Some(v) = number(&mut values, field.kind) else {
            return data_loss("Corrupt packed varint");
        };
        if field.is_repeated {
            let v = match (field.kind, dtype) {
                // TensorFlow forgets the sign here.
                (Kind::Int32, DType::Int64) => u64::from(v as u32),
                (kind, _) => signed(kind, v),
            };
            row.set_number(field, v);
        } else {
            // A field of one value: it counts, and is not taken.
            row.count = 1;
        }
    }
    debug_assert!(size != 1 || field.kind.wire() == VARINT);
    Ok(())
}

impl Wanted {
    /// The rows as one tensor, filled up with the field's default.
    fn tensor<'a>(
        &self,
        rows: impl Iterator<Item = &'a Row>,
        width: usize,
        shape: Shape,
    ) -> Result<Tensor> {
        if let Default::Bytes(fill) = &self.default {
            let mut values = Vec::with_capacity(shape.num_elements());
            for row in rows {
                values.extend(row.strings.iter().cloned());
                values.resize(values.len() + width - row.strings.len(), fill.clone());
            }
            return Ok(Tensor::strings(values, shape)?);
        }
        let Default::Number(fill) = self.default else {
            return Err(Status::internal("a field of numbers has no default"));
        };
        let mut values = Vec::with_capacity(shape.num_elements());
        for row in rows {
            values.extend_from_slice(&row.numbers);
            values.resize(values.len() + width - row.numbers.len(), fill);
        }
        let float = |v: u64| f32::from_bits(v as u32);
        let tensor = match (self.dtype, self.field.kind) {
            (DType::Double, Kind::Float) => {
                Tensor::from_vec::<f64>(values.iter().map(|&v| float(v).into()).collect(), shape)
            }
            (DType::Double, _) => {
                Tensor::from_vec::<f64>(values.iter().map(|&v| f64::from_bits(v)).collect(), shape)
            }
            (DType::Float, _) => {
                Tensor::from_vec::<f32>(values.iter().map(|&v| float(v)).collect(), shape)
            }
            (DType::Int64, _) => {
                Tensor::from_vec::<i64>(values.iter().map(|&v| v as i64).collect(), shape)
            }
            (DType::Int32, _) => {
                Tensor::from_vec::<i32>(values.iter().map(|&v| v as i32).collect(), shape)
            }
            (DType::UInt64, _) => Tensor::from_vec::<u64>(values, shape),
            (DType::UInt32, _) => {
                Tensor::from_vec::<u32>(values.iter().map(|&v| v as u32).collect(), shape)
            }
            (DType::Bool, _) => {
                Tensor::from_vec::<bool>(values.iter().map(|&v| v != 0).collect(), shape)
            }
            (other, _) => return Err(Status::internal(format!("no field is decoded to {other}"))),
        };
        Ok(tensor?)
    }
}
