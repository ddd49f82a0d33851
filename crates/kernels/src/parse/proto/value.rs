//! A message as values by field, whatever its type: what a text or untrusted bytes become before they are written anew.
//! It is read, merged and written as protobuf's own dynamic messages are.

use super::schema::{Field, Kind, Pool};
use super::wire::{
    BYTES, END_GROUP, FIXED32, FIXED64, Input, MAX_DEPTH, START_GROUP, VARINT, put_bytes, put_tag,
    put_varint,
};
use std::collections::{BTreeMap, HashMap};

/// One value of a field.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    /// A number, as it is written.
    Number(u64),
    Bytes(Vec<u8>),
    Message(Dynamic),
}

/// A message.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Dynamic {
    pub(super) fields: BTreeMap<u32, Vec<Value>>,
    /// Fields that the type does not have, as they came.
    unknown: Vec<u8>,
}

/// A number as its field's type has it: cut to 32 bits, or to one.
fn as_kind(kind: Kind, v: u64) -> u64 {
    match kind {
        Kind::Int32 | Kind::Enum => i64::from(v as i32) as u64,
        Kind::Uint32 | Kind::Sint32 => u64::from(v as u32),
        Kind::Bool => u64::from(v != 0),
        _ => v,
    }
}

fn number(input: &mut Input<'_>, kind: Kind) -> Option<u64> {
    match kind.wire() {
        FIXED64 => input.fixed64(),
        FIXED32 => input.fixed32().map(u64::from),
        _ => input.varint().map(|v| as_kind(kind, v)),
    }
}

impl Dynamic {
    /// Reads a message of the type `name`; `None` if the bytes are none.
    pub(super) fn parse(pool: &Pool, name: &str, bytes: &[u8]) -> Option<Dynamic> {
        let mut message = Dynamic::default();
        message.read(pool, name, &mut Input::new(bytes), None, 0)?;
        message.is_whole(pool, name).then_some(message)
    }

    fn read(
        &mut self,
        pool: &Pool,
        name: &str,
        input: &mut Input<'_>,
        group: Option<u32>,
        depth: usize,
    ) -> Option<()> {
        if depth > MAX_DEPTH {
            return None;
        }
        loop {
            let start = input.at;
            let Some(tag) = input.tag() else {
                return (group.is_none() && input.is_done()).then_some(());
            };
            if tag.wire == END_GROUP {
                return (group == Some(tag.number)).then_some(());
            }
            let field = pool.numbered(name, tag.number);
            match field {
                Some(field) if tag.wire == field.kind.wire() => {
                    self.read_value(pool, name, field, input, depth)?;
                }
                Some(field)
                    if tag.wire == BYTES && field.is_repeated && field.kind.is_packable() =>
                {
                    let mut packed = Input::new(input.bytes()?);
                    while !packed.is_done() {
                        let v = number(&mut packed, field.kind)?;
                        self.set_number(pool, name, field, v);
                    }
                }
                _ => {
                    input.skip(tag, depth)?;
                    self.unknown
                        .extend_from_slice(&input.bytes[start..input.at]);
                }
            }
        }
    }

    fn read_value(
        &mut self,
        pool: &Pool,
        name: &str,
        field: &Field,
        input: &mut Input<'_>,
        depth: usize,
    ) -> Option<()> {
        match field.kind {
            Kind::Message | Kind::Group => {
                let inner = self.open(pool, name, field);
                let (mut bytes, group) = match field.kind {
                    Kind::Group => (*input, Some(field.number)),
                    _ => (Input::new(input.bytes()?), None),
                };
                inner.read(pool, &field.type_name, &mut bytes, group, depth + 1)?;
                if group.is_some() {
                    *input = bytes;
                }
                self.end_entry(pool, field);
            }
            Kind::String | Kind::Bytes => {
                let bytes = input.bytes()?;
                if field.is_utf8 && std::str::from_utf8(bytes).is_err() {
                    return None;
                }
                self.set(pool, name, field, Value::Bytes(bytes.to_vec()));
            }
            kind => {
                let v = number(input, kind)?;
                self.set_number(pool, name, field, v);
            }
        }
        Some(())
    }

    /// Sets a number; one that a closed enum does not have is as good as unknown.
    fn set_number(&mut self, pool: &Pool, name: &str, field: &Field, v: u64) {
        let values = pool.enumeration(&field.type_name);
        if values.is_some_and(|e| !e.is_open && e.values.iter().all(|n| n.1 != v as i32)) {
            put_tag(&mut self.unknown, field.number, VARINT);
            put_varint(&mut self.unknown, v);
        } else {
            self.set(pool, name, field, Value::Number(v));
        }
    }

    /// Sets a field that has one value, adds to one that has many.
    pub(super) fn set(&mut self, pool: &Pool, name: &str, field: &Field, value: Value) {
        self.leave_oneof(pool, name, field);
        let values = self.fields.entry(field.number).or_default();
        if !field.is_repeated {
            values.clear();
        }
        values.push(value);
    }

    /// The message of a field to read into: a further one, or the one that is there.
    pub(super) fn open(&mut self, pool: &Pool, name: &str, field: &Field) -> &mut Dynamic {
        self.leave_oneof(pool, name, field);
        let values = self.fields.entry(field.number).or_default();
        if field.is_repeated || !matches!(values.last(), Some(Value::Message(_))) {
            values.push(Value::Message(Dynamic::default()));
        }
        match values.last_mut() {
            Some(Value::Message(inner)) => inner,
            _ => unreachable!("a message was put there"),
        }
    }

    /// Gives a map's entry the key and the value that it was not given.
    pub(super) fn end_entry(&mut self, pool: &Pool, field: &Field) {
        let Some(entry) = pool.message(&field.type_name).filter(|m| m.is_map_entry) else {
            return;
        };
        let values = self.fields.get_mut(&field.number);
        if let Some(Value::Message(last)) = values.and_then(|v| v.last_mut()) {
            for part in entry.fields.values() {
                last.fields.entry(part.number).or_insert_with(|| {
                    vec![match part.kind {
                        Kind::String | Kind::Bytes => Value::Bytes(Vec::new()),
                        Kind::Message | Kind::Group => Value::Message(Dynamic::default()),
                        _ => Value::Number(pool.default_bits(part)),
                    }]
                });
            }
        }
    }

    /// The field of the same `oneof` that was set before, if it is another.
    pub(super) fn other_of_oneof(&self, pool: &Pool, name: &str, field: &Field) -> Option<u32> {
        let oneof = field.oneof?;
        let message = pool.message(name)?;
        let mut set = self.fields.keys().copied();
        set.find(|n| {
            *n != field.number
                && message
                    .fields
                    .get(n)
                    .is_some_and(|f| f.oneof == Some(oneof))
        })
    }

    fn leave_oneof(&mut self, pool: &Pool, name: &str, field: &Field) {
        if let Some(other) = self.other_of_oneof(pool, name, field) {
            self.fields.remove(&other);
        }
    }

    /// Whether all fields are there that must be, in the messages within too.
    pub(super) fn is_whole(&self, pool: &Pool, name: &str) -> bool {
        let Some(message) = pool.message(name) else {
            return true;
        };
        let mut required = message.fields.values().filter(|f| f.is_required);
        required.all(|f| self.fields.contains_key(&f.number))
            && self.fields.iter().all(|(number, values)| {
                let Some(field) = pool.numbered(name, *number) else {
                    return true;
                };
                values.iter().all(|v| match v {
                    Value::Message(inner) => inner.is_whole(pool, &field.type_name),
                    _ => true,
                })
            })
    }

    /// Appends the message as bytes: known fields by their numbers, then what is unknown.
    pub(super) fn write(&self, pool: &Pool, name: &str, out: &mut Vec<u8>) {
        for (number, values) in &self.fields {
            let Some(field) = pool.numbered(name, *number) else {
                continue;
            };
            if field.is_packed && !values.is_empty() {
                let mut packed = Vec::new();
                for v in values {
                    put_value(pool, field, v, &mut packed);
                }
                put_tag(out, *number, BYTES);
                put_bytes(out, &packed);
                continue;
            }
            let is_map = pool
                .message(&field.type_name)
                .is_some_and(|m| m.is_map_entry);
            for v in last_of_each_key(values, is_map) {
                let is_zero = match v {
                    Value::Number(v) => *v == 0,
                    Value::Bytes(b) => b.is_empty(),
                    Value::Message(_) => false,
                };
                if field.is_implicit && is_zero {
                    continue;
                }
                put_tag(out, *number, field.kind.wire());
                put_value(pool, field, v, out);
                if field.kind == Kind::Group {
                    put_tag(out, *number, END_GROUP);
                }
            }
        }
        out.extend_from_slice(&self.unknown);
    }
}

/// A map has one entry for a key: the last.
fn last_of_each_key(values: &[Value], is_map: bool) -> Vec<&Value> {
    if !is_map {
        return values.iter().collect();
    }
    let (mut places, mut kept) = (HashMap::new(), Vec::new());
    for v in values {
        let key = match v {
            Value::Message(entry) => match entry.fields.get(&1).and_then(|k| k.last()) {
                Some(Value::Number(n)) => n.to_le_bytes().to_vec(),
                Some(Value::Bytes(b)) => b.clone(),
                _ => Vec::new(),
            },
            _ => Vec::new(),
        };
        let at = *places.entry(key).or_insert(kept.len());
        if at == kept.len() {
            kept.push(v);
        } else {
            kept[at] = v;
        }
    }
    kept
}

fn put_value(pool: &Pool, field: &Field, value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Number(v) => match field.kind.wire() {
            FIXED64 => out.extend(v.to_le_bytes()),
            FIXED32 => out.extend((*v as u32).to_le_bytes()),
            _ => put_varint(out, *v),
        },
        Value::Bytes(b) => put_bytes(out, b),
        Value::Message(inner) => {
            let mut bytes = Vec::new();
            inner.write(pool, &field.type_name, &mut bytes);
            match field.kind.wire() {
                START_GROUP => out.extend(bytes),
                _ => put_bytes(out, &bytes),
            }
        }
    }
}
