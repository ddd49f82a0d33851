//! Message types that are given at run time, as a `FileDescriptorSet`: what `DecodeProtoV2` and `EncodeProto` know of the
//! messages they read and write. Names are resolved once; a set that does not fit together is refused.

use super::wire::{BYTES, FIXED32, FIXED64, Input, START_GROUP, VARINT};
use downpour_tensor::DType;
use std::collections::{BTreeMap, HashMap, HashSet};

/// A field's type, by its number in `FieldDescriptorProto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Double = 1,
    Float,
    Int64,
    Uint64,
    Int32,
    Fixed64,
    Fixed32,
    Bool,
    String,
    Group,
    Message,
    Bytes,
    Uint32,
    Enum,
    Sfixed32,
    Sfixed64,
    Sint32,
    Sint64,
}

impl Kind {
    fn from_number(number: u64) -> Option<Kind> {
        use Kind::*;
        const ALL: [Kind; 18] = [
            Double, Float, Int64, Uint64, Int32, Fixed64, Fixed32, Bool, String, Group, Message,
            Bytes, Uint32, Enum, Sfixed32, Sfixed64, Sint32, Sint64,
        ];
        ALL.get((number as usize).checked_sub(1)?).copied()
    }

    /// How a value is written.
    pub(super) fn wire(self) -> u8 {
        use Kind::*;
        match self {
            Double | Fixed64 | Sfixed64 => FIXED64,
            Float | Fixed32 | Sfixed32 => FIXED32,
            String | Bytes | Message => BYTES,
            Group => START_GROUP,
            _ => VARINT,
        }
    }

    /// Whether several values may be written as one.
    pub(super) fn is_packable(self) -> bool {
        !matches!(
            self,
            Kind::String | Kind::Bytes | Kind::Message | Kind::Group
        )
    }

    /// Whether tensors of `dtype` can hold its values.
    pub(super) fn fits(self, dtype: DType) -> bool {
        use Kind::*;
        match self {
            Double => dtype == DType::Double,
            Float => matches!(dtype, DType::Float | DType::Double),
            Int64 | Sfixed64 | Sint64 => dtype == DType::Int64,
            Uint64 | Fixed64 => dtype == DType::UInt64,
            Int32 | Sfixed32 | Sint32 => matches!(dtype, DType::Int32 | DType::Int64),
            Fixed32 | Uint32 => matches!(dtype, DType::UInt32 | DType::UInt64),
            Bool => dtype == DType::Bool,
            Enum => dtype == DType::Int32,
            String | Group | Message | Bytes => dtype == DType::String,
        }
    }

    /// The name in a `.proto` file.
    pub(super) fn name(self) -> &'static str {
        use Kind::*;
        match self {
            Double => "double",
            Float => "float",
            Int64 => "int64",
            Uint64 => "uint64",
            Int32 => "int32",
            Fixed64 => "fixed64",
            Fixed32 => "fixed32",
            Bool => "bool",
            String => "string",
            Group => "group",
            Message => "message",
            Bytes => "bytes",
            Uint32 => "uint32",
            Enum => "enum",
            Sfixed32 => "sfixed32",
            Sfixed64 => "sfixed64",
            Sint32 => "sint32",
            Sint64 => "sint64",
        }
    }

    /// Its C++ type, as errors show it.
    pub(super) fn cpp_type(self) -> &'static str {
        use Kind::*;
        match self {
            Int32 | Sfixed32 | Sint32 => "int32",
            Int64 | Sfixed64 | Sint64 => "int64",
            Uint32 | Fixed32 => "uint32",
            Uint64 | Fixed64 => "uint64",
            String | Bytes => "string",
            Message | Group => "message",
            Double | Float | Bool | Enum => self.name(),
        }
    }
}

/// A field of a message, or an extension of one.
#[derive(Clone, Debug)]
pub(super) struct Field {
    pub(super) name: String,
    pub(super) full_name: String,
    pub(super) number: u32,
    pub(super) kind: Kind,
    pub(super) is_repeated: bool,
    pub(super) is_required: bool,
    /// Whether all its values are written as one.
    pub(super) is_packed: bool,
    /// Whether zero is the same as not there.
    pub(super) is_implicit: bool,
    /// Strings must be UTF-8.
    pub(super) is_utf8: bool,
    /// Which of the message's `oneof`s it belongs to.
    pub(super) oneof: Option<u64>,
    /// The message or the enum of its values.
    pub(super) type_name: String,
    default: Option<Vec<u8>>,
}

/// A message type.
#[derive(Clone, Debug, Default)]
pub(super) struct Message {
    pub(super) fields: BTreeMap<u32, Field>,
    by_name: HashMap<String, u32>,
    pub(super) is_map_entry: bool,
}

impl Message {
    pub(super) fn field(&self, name: &str) -> Option<&Field> {
        self.fields.get(self.by_name.get(name)?)
    }
}

/// An enum's values; numbers outside it are unknown fields where it is closed.
#[derive(Clone, Debug, Default)]
pub(super) struct Enum {
    pub(super) values: Vec<(String, i32)>,
    pub(super) is_open: bool,
}

/// All types of a descriptor source.
#[derive(Clone, Debug, Default)]
pub(super) struct Pool {
    messages: HashMap<String, Message>,
    enums: HashMap<String, Enum>,
    extensions: HashMap<String, Vec<Field>>,
}

/// Why a descriptor set was refused.
#[derive(Debug, PartialEq)]
pub(super) enum Refused {
    /// The bytes are no `FileDescriptorSet`.
    Malformed,
    /// This file does not fit with those before it.
    File(String),
}

/// What a file's syntax says of its fields.
#[derive(Clone, Copy, Default)]
struct Rules {
    implicit: bool,
    packed: bool,
    open: bool,
}

/// One value of a message that is read field by field.
enum Item<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The fields of a message of numbers and bytes, one after the other.
fn items<'a>(
    bytes: &'a [u8],
    mut each: impl FnMut(u32, Item<'a>) -> Option<()>,
) -> Result<(), Refused> {
    let mut input = Input::new(bytes);
    let mut read = || -> Option<()> {
        while !input.is_done() {
            let tag = input.tag()?;
            match tag.wire {
                VARINT => each(tag.number, Item::Number(input.varint()?))?,
                BYTES => each(tag.number, Item::Bytes(input.bytes()?))?,
                _ => input.skip(tag, 0)?,
            }
        }
        Some(())
    };
    read().ok_or(Refused::Malformed)
}

fn text(bytes: &[u8]) -> Option<String> {
    String::from_utf8(bytes.to_vec()).ok()
}

fn join(scope: &str, name: &str) -> String {
    match scope {
        "" => name.to_owned(),
        scope => format!("{scope}.{name}"),
    }
}

/// A field as its file has it, before names are resolved.
struct Raw {
    field: Field,
    scope: String,
    extendee: Option<String>,
    has_kind: bool,
}

/// What is read of a file before its names are resolved.
#[derive(Default)]
struct Draft {
    messages: Vec<(String, Message, Vec<Raw>)>,
    enums: Vec<(String, Enum)>,
    extensions: Vec<Raw>,
}

impl Pool {
    /// The types of a serialized `FileDescriptorSet`.
    pub(super) fn parse(bytes: &[u8]) -> Result<Pool, Refused> {
        let (mut pool, mut files) = (Pool::default(), HashSet::new());
        let mut refused = None;
        items(bytes, |number, item| {
            if let (1, Item::Bytes(file), None) = (number, item, &refused) {
                refused = pool.add(file, &mut files).err();
            }
            Some(())
        })?;
        match refused {
            Some(why) => Err(why),
            None => Ok(pool),
        }
    }

    pub(super) fn message(&self, name: &str) -> Option<&Message> {
        self.messages.get(name)
    }

    pub(super) fn enumeration(&self, name: &str) -> Option<&Enum> {
        self.enums.get(name)
    }

    /// The extension of `message` that is called `name` in full.
    pub(super) fn extension(&self, message: &str, name: &str) -> Option<&Field> {
        let mut known = self.extensions.get(message)?.iter();
        known.find(|f| f.full_name == name)
    }

    /// The field or extension with a number.
    pub(super) fn numbered(&self, name: &str, number: u32) -> Option<&Field> {
        if let Some(field) = self.messages.get(name)?.fields.get(&number) {
            return Some(field);
        }
        let mut known = self.extensions.get(name)?.iter();
        known.find(|f| f.number == number)
    }

    fn add(&mut self, file: &[u8], files: &mut HashSet<String>) -> Result<(), Refused> {
        let (mut name, mut package, mut rules) = (String::new(), String::new(), Rules::default());
        let (mut missing, mut parts) = (false, Vec::new());
        items(file, |number, item| {
            match (number, item) {
                (1, Item::Bytes(b)) => name = text(b)?,
                (2, Item::Bytes(b)) => package = text(b)?,
                (3, Item::Bytes(b)) => missing |= !files.contains(&text(b)?),
                (4 | 5 | 7, Item::Bytes(b)) => parts.push((number, b)),
                (12, Item::Bytes(b)) => {
                    rules = Rules {
                        implicit: b == b"proto3",
                        packed: b == b"proto3" || b == b"editions",
                        open: b == b"proto3" || b == b"editions",
                    }
                }
                _ => (),
            }
            Some(())
        })?;
        let refuse = || Refused::File(format!("name: \"{name}\"\n"));
        if missing || !files.insert(name.clone()) {
            return Err(refuse());
        }
        let mut draft = Draft::default();
        for (number, bytes) in parts {
            match number {
                4 => draft.message(bytes, &package, rules, 0)?,
                5 => draft.enumeration(bytes, &package, rules)?,
                _ => draft
                    .extensions
                    .push(draft_field(bytes, &package, &package, rules)?),
            }
        }
        self.take_in(draft, rules).ok_or_else(refuse)
    }

    /// Resolves the names of a file's fields; `None` if one is unknown or something is there already.
    fn take_in(&mut self, draft: Draft, rules: Rules) -> Option<()> {
        for (name, values) in draft.enums {
            if self.messages.contains_key(&name) || self.enums.insert(name, values).is_some() {
                return None;
            }
        }
        for (name, message, _) in &draft.messages {
            let taken = self.enums.contains_key(name);
            if taken
                || self
                    .messages
                    .insert(name.clone(), message.clone())
                    .is_some()
            {
                return None;
            }
        }
        for (name, mut message, raws) in draft.messages {
            for raw in raws {
                let mut field = self.resolve(raw, rules)?.0;
                // Keys and values are always written.
                field.is_implicit &= !message.is_map_entry;
                message.by_name.insert(field.name.clone(), field.number);
                if message.fields.insert(field.number, field).is_some() {
                    return None;
                }
            }
            self.messages.insert(name, message);
        }
        for raw in draft.extensions {
            let (field, extendee) = self.resolve(raw, rules)?;
            self.extensions.entry(extendee?).or_default().push(field);
        }
        Some(())
    }

    fn resolve(&self, raw: Raw, rules: Rules) -> Option<(Field, Option<String>)> {
        let Raw {
            mut field,
            scope,
            extendee,
            has_kind,
        } = raw;
        let known = |n: &str| self.messages.contains_key(n) || self.enums.contains_key(n);
        let find = |name: &str| match name.strip_prefix('.') {
            Some(full) => known(full).then(|| full.to_owned()),
            None => {
                let mut scope = scope.as_str();
                loop {
                    let full = join(scope, name);
                    if known(&full) {
                        return Some(full);
                    }
                    if scope.is_empty() {
                        return None;
                    }
                    scope = scope.rsplit_once('.').map_or("", |(outer, _)| outer);
                }
            }
        };
        if !field.type_name.is_empty() {
            field.type_name = find(&field.type_name)?;
            let is_enum = self.enums.contains_key(&field.type_name);
            if !has_kind {
                field.kind = if is_enum { Kind::Enum } else { Kind::Message };
            }
            if is_enum != (field.kind == Kind::Enum) {
                return None;
            }
        } else if matches!(field.kind, Kind::Message | Kind::Group | Kind::Enum) || !has_kind {
            return None;
        }
        let is_single = !field.is_repeated && !field.is_required && field.oneof.is_none();
        let is_message = matches!(field.kind, Kind::Message | Kind::Group);
        field.is_packed &= field.is_repeated && field.kind.is_packable();
        field.is_implicit = rules.implicit && is_single && !is_message;
        field.is_utf8 = field.kind == Kind::String && rules.open;
        let extendee = match extendee {
            Some(name) => Some(find(&name)?),
            None => None,
        };
        Some((field, extendee))
    }

    /// The number that a field has which is not there: its bits as on the wire, before they are shortened.
    pub(super) fn default_bits(&self, field: &Field) -> u64 {
        let given = field.default.as_deref();
        let given = given.and_then(|d| std::str::from_utf8(d).ok());
        let Some(d) = given else {
            let values = self.enums.get(&field.type_name);
            let first = values.and_then(|e| e.values.first());
            return match field.kind {
                Kind::Enum => first.map_or(0, |v| i64::from(v.1) as u64),
                _ => 0,
            };
        };
        let float = || match d {
            "inf" => f64::INFINITY,
            "-inf" => f64::NEG_INFINITY,
            "nan" => f64::NAN,
            d => d.parse().unwrap_or(0.0),
        };
        match field.kind {
            Kind::Double => float().to_bits(),
            Kind::Float => u64::from((float() as f32).to_bits()),
            Kind::Bool => u64::from(d == "true"),
            Kind::Uint64 | Kind::Fixed64 => d.parse().unwrap_or(0),
            Kind::Enum => {
                let values = self.enums.get(&field.type_name);
                let mut values = values.into_iter().flat_map(|e| &e.values);
                values
                    .find(|v| v.0 == d)
                    .map_or(0, |v| i64::from(v.1) as u64)
            }
            _ => d.parse::<i64>().unwrap_or(0) as u64,
        }
    }
}

impl Field {
    /// The bytes that a string field has which is not there.
    pub(super) fn default_bytes(&self) -> Vec<u8> {
        let given = self.default.clone().unwrap_or_default();
        match self.kind {
            Kind::Bytes => super::text::unescape(&given).unwrap_or_default(),
            Kind::String => given,
            _ => Vec::new(),
        }
    }
}

impl Draft {
    fn message(
        &mut self,
        bytes: &[u8],
        scope: &str,
        rules: Rules,
        depth: usize,
    ) -> Result<(), Refused> {
        if depth > super::wire::MAX_DEPTH {
            return Err(Refused::Malformed);
        }
        let (mut name, mut message, mut parts) = (String::new(), Message::default(), Vec::new());
        items(bytes, |number, item| {
            match (number, item) {
                (1, Item::Bytes(b)) => name = text(b)?,
                (2 | 3 | 4 | 6, Item::Bytes(b)) => parts.push((number, b)),
                (7, Item::Bytes(b)) => items(b, |number, item| {
                    if let (7, Item::Number(v)) = (number, item) {
                        message.is_map_entry = v != 0;
                    }
                    Some(())
                })
                .ok()?,
                _ => (),
            }
            Some(())
        })?;
        let name = join(scope, &name);
        let mut fields = Vec::new();
        for (number, bytes) in parts {
            match number {
                2 => fields.push(draft_field(bytes, &name, &name, rules)?),
                3 => self.message(bytes, &name, rules, depth + 1)?,
                4 => self.enumeration(bytes, &name, rules)?,
                _ => self
                    .extensions
                    .push(draft_field(bytes, &name, &name, rules)?),
            }
        }
        self.messages.push((name, message, fields));
        Ok(())
    }

    fn enumeration(&mut self, bytes: &[u8], scope: &str, rules: Rules) -> Result<(), Refused> {
        let (mut name, mut values) = (String::new(), Vec::new());
        items(bytes, |number, item| {
            match (number, item) {
                (1, Item::Bytes(b)) => name = text(b)?,
                (2, Item::Bytes(b)) => {
                    let mut value = (String::new(), 0);
                    items(b, |number, item| {
                        match (number, item) {
                            (1, Item::Bytes(b)) => value.0 = text(b)?,
                            (2, Item::Number(v)) => value.1 = v as i32,
                            _ => (),
                        }
                        Some(())
                    })
                    .ok()?;
                    values.push(value);
                }
                _ => (),
            }
            Some(())
        })?;
        let is_open = rules.open;
        self.enums
            .push((join(scope, &name), Enum { values, is_open }));
        Ok(())
    }
}

fn draft_field(bytes: &[u8], scope: &str, owner: &str, rules: Rules) -> Result<Raw, Refused> {
    let mut field = Field {
        name: String::new(),
        full_name: String::new(),
        number: 0,
        kind: Kind::Message,
        is_repeated: false,
        is_required: false,
        is_packed: false,
        is_implicit: false,
        is_utf8: false,
        oneof: None,
        type_name: String::new(),
        default: None,
    };
    let (mut extendee, mut has_kind, mut packed) = (None, false, None);
    items(bytes, |number, item| {
        match (number, item) {
            (1, Item::Bytes(b)) => field.name = text(b)?,
            (2, Item::Bytes(b)) => extendee = Some(text(b)?),
            (3, Item::Number(v)) => field.number = u32::try_from(v).ok()?,
            (4, Item::Number(v)) => (field.is_required, field.is_repeated) = (v == 2, v == 3),
            (5, Item::Number(v)) => (field.kind, has_kind) = (Kind::from_number(v)?, true),
            (6, Item::Bytes(b)) => field.type_name = text(b)?,
            (7, Item::Bytes(b)) => field.default = Some(b.to_vec()),
            (8, Item::Bytes(b)) => items(b, |number, item| {
                if let (2, Item::Number(v)) = (number, item) {
                    packed = Some(v != 0);
                }
                Some(())
            })
            .ok()?,
            (9, Item::Number(v)) => field.oneof = Some(v),
            _ => (),
        }
        Some(())
    })?;
    field.full_name = join(owner, &field.name);
    field.is_packed = packed.unwrap_or(rules.packed);
    Ok(Raw {
        field,
        scope: scope.to_owned(),
        extendee,
        has_kind,
    })
}
