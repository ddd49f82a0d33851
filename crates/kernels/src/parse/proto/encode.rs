//! `EncodeProto`: messages of tensors, one a row, fields in the order of their numbers.

use super::schema::{Field, Kind};
use super::wire::{
    BYTES, END_GROUP, FIXED32, FIXED64, START_GROUP, put_bytes, put_tag, put_varint, zigzag,
};
use super::{message_type, pool};
use crate::parse::invalid;
use bytes::Bytes;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext};
use downpour_tensor::{DType, Shape, Tensor};

pub(super) fn build(b: &KernelBuilder<'_>) -> Result<Built> {
    let pool = pool(b)?;
    let message = message_type(b, &pool)?;
    let mut fields = Vec::new();
    for (i, name) in b.attrs().byte_strings("field_names")?.iter().enumerate() {
        let name = String::from_utf8_lossy(name);
        match pool.message(&message).and_then(|m| m.field(&name)) {
            Some(field) => fields.push((i, field.clone())),
            None => return invalid(format!("Unknown field: {name} in message type {message}")),
        }
    }
    Built::costly(move |ctx| run(ctx, &fields))
}

fn run(ctx: &mut OpContext<'_>, fields: &[(usize, Field)]) -> Result<()> {
    let inputs: Vec<Tensor> = ctx
        .inputs(0..ctx.num_inputs())?
        .into_iter()
        .cloned()
        .collect();
    let (sizes, values) = (&inputs[0], &inputs[1..]);
    if fields.len() != values.len() {
        return invalid("Length of inputs list must match field_names");
    }
    let prefix = prefix(fields, values)?;
    let expected: Vec<usize> = prefix.iter().copied().chain([fields.len()]).collect();
    if sizes.dims() != expected.as_slice() {
        let expected = Shape::checked(expected.iter().map(|&d| d as i64))?;
        return invalid(format!(
            "sizes should be batch_size + [len(field_names)].  Saw: {} but expected: {expected}",
            sizes.shape()
        ));
    }
    let count: usize = prefix.iter().product();
    let sizes = sizes.as_slice::<i32>()?;
    for (i, v) in values.iter().enumerate() {
        let most = v.dims().last().copied().unwrap_or(0);
        for message in 0..count {
            let size = sizes[message * fields.len() + i];
            if i64::from(size) > most as i64 {
                return invalid(format!(
                    "Size to write must not be larger than value tensor; but saw: {size} > {most} at message {message} field {i}"
                ));
            }
        }
    }
    let mut order: Vec<usize> = (0..fields.len()).collect();
    order.sort_by_key(|&i| fields[i].1.number);
    let mut out = Vec::with_capacity(count);
    for message in 0..count {
        let mut bytes = Vec::new();
        for &i in &order {
            let size = sizes[message * fields.len() + i];
            // A negative one writes nothing either.
            let size = usize::try_from(size).unwrap_or(0);
            if size > 0 {
                let width = values[i].dims().last().copied().unwrap_or(0);
                let from = message * width;
                write(&fields[i].1, &values[i], from, size, &mut bytes)?;
            }
        }
        out.push(Bytes::from(bytes));
    }
    let shape = Shape::checked(prefix.iter().map(|&d| d as i64))?;
    ctx.set_output(0, Tensor::strings(out, shape)?);
    Ok(())
}

/// The dimensions of the batch, which all values share.
fn prefix(fields: &[(usize, Field)], values: &[Tensor]) -> Result<Vec<usize>> {
    let mut common: Option<&[usize]> = None;
    for ((_, field), v) in fields.iter().zip(values) {
        let name = &field.name;
        if !field.kind.fits(v.dtype()) {
            return invalid(format!(
                "Incompatible type for field {name}.  Saw dtype: {} but field type is: {}",
                v.dtype(),
                field.kind.name()
            ));
        }
        let [prefix @ .., _] = v.dims() else {
            return invalid(format!(
                "Invalid shape for field {name}.  Saw shape {} but it should be at least a matrix.",
                v.shape()
            ));
        };
        if prefix.is_empty() {
            return invalid(format!(
                "Invalid shape for field {name}.  Saw shape {} but it should be at least a matrix.",
                v.shape()
            ));
        }
        if common.is_some_and(|c| c != prefix) {
            return invalid("Values must match up to the last dimension");
        }
        common = Some(prefix);
    }
    Ok(common.unwrap_or_default().to_vec())
}

/// Appends `size` values of a field, from the element `from` on.
fn write(field: &Field, v: &Tensor, from: usize, size: usize, out: &mut Vec<u8>) -> Result<()> {
    let range = from..from + size;
    if v.dtype() == DType::String {
        for bytes in &v.as_strings()?[range] {
            if field.kind == Kind::Group {
                put_tag(out, field.number, START_GROUP);
                out.extend_from_slice(bytes);
                put_tag(out, field.number, END_GROUP);
            } else {
                put_tag(out, field.number, BYTES);
                put_bytes(out, bytes);
            }
        }
        return Ok(());
    }
    let wire = field.kind.wire();
    let mut packed = Vec::new();
    for i in range {
        let value = number(field.kind, v, i)?;
        let to = if field.is_packed {
            &mut packed
        } else {
            put_tag(out, field.number, wire);
            &mut *out
        };
        match wire {
            FIXED64 => to.extend(value.to_le_bytes()),
            FIXED32 => to.extend((value as u32).to_le_bytes()),
            _ => put_varint(to, value),
        }
    }
    if field.is_packed {
        put_tag(out, field.number, BYTES);
        put_bytes(out, &packed);
    }
    Ok(())
}

/// Element `i` as its field writes it.
fn number(kind: Kind, v: &Tensor, i: usize) -> Result<u64> {
    Ok(match (v.dtype(), kind) {
        (DType::Double, Kind::Float) => u64::from((v.as_slice::<f64>()?[i] as f32).to_bits()),
        (DType::Double, _) => v.as_slice::<f64>()?[i].to_bits(),
        (DType::Float, _) => u64::from(v.as_slice::<f32>()?[i].to_bits()),
        (DType::Bool, _) => u64::from(v.as_slice::<bool>()?[i]),
        (DType::UInt32, _) => u64::from(v.as_slice::<u32>()?[i]),
        (DType::UInt64, Kind::Uint32 | Kind::Fixed32) => u64::from(v.as_slice::<u64>()?[i] as u32),
        (DType::UInt64, _) => v.as_slice::<u64>()?[i],
        (DType::Int32 | DType::Int64, _) => {
            let value = match v.dtype() {
                DType::Int32 => i64::from(v.as_slice::<i32>()?[i]),
                _ => v.as_slice::<i64>()?[i],
            };
            // What has 32 bits loses the others.
            let short = i64::from(value as i32);
            match kind {
                Kind::Int32 | Kind::Sfixed32 | Kind::Enum => short as u64,
                Kind::Sint32 => zigzag(short),
                Kind::Sint64 => zigzag(value),
                _ => value as u64,
            }
        }
        (other, _) => return Err(Status::internal(format!("no field is encoded of {other}"))),
    })
}
