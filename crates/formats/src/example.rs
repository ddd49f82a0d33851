//! `tf.Example` and `tf.SequenceExample` without building protobuf objects: one pass finds the
//! features, and their values are decoded only when asked for. Memory stays within a small
//! multiple of the input. `None` everywhere means "these bytes are no such message".

pub mod fast;
pub mod json;

use crate::coding::Cursor;
use bytes::Bytes;

/// Which list a feature holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeatureKind {
    /// Byte strings.
    Bytes,
    /// `f32` values.
    Float,
    /// `i64` values.
    Int64,
}

/// A feature found in an example; its values are still encoded.
#[derive(Debug, Clone, Default)]
pub struct Feature<'a> {
    kind: Option<FeatureKind>,
    list: &'a [u8],
    /// More encoded lists of the same kind, which protobuf joins to the first. Nobody writes it so.
    more: Vec<&'a [u8]>,
}

/// The values of a feature.
#[derive(Debug, Clone, PartialEq)]
pub enum FeatureValues {
    /// No list at all: the feature counts as missing.
    None,
    /// Byte strings, sharing the memory of the example.
    Bytes(Vec<Bytes>),
    /// `f32` values.
    Floats(Vec<f32>),
    /// `i64` values.
    Int64s(Vec<i64>),
}

/// Features by name, in the order of the message.
#[derive(Debug, Clone, Default)]
pub struct Features<'a>(Vec<(&'a [u8], Feature<'a>)>);

/// Lists of features by name, in the order of the message.
pub type FeatureLists<'a> = Vec<(&'a [u8], Vec<Feature<'a>>)>;

/// The features of a serialized `Example`.
pub fn parse_example(data: &[u8]) -> Option<Features<'_>> {
    let mut features = Features::default();
    for field in fields(data) {
        if let (1, Value::Bytes(data)) = field? {
            features.merge(data)?;
        }
    }
    Some(features)
}

/// Context and feature lists of a serialized `SequenceExample`.
pub fn parse_sequence_example(data: &[u8]) -> Option<(Features<'_>, FeatureLists<'_>)> {
    let mut context = Features::default();
    let mut lists = FeatureLists::new();
    for field in fields(data) {
        match field? {
            (1, Value::Bytes(data)) => context.merge(data)?,
            (2, Value::Bytes(data)) => {
                for field in fields(data) {
                    if let (1, Value::Bytes(entry)) = field? {
                        lists.push(feature_list(entry)?);
                    }
                }
            }
            _ => {}
        }
    }
    Some((context, lists))
}

fn feature_list(entry: &[u8]) -> Option<(&[u8], Vec<Feature<'_>>)> {
    let (name, list) = map_entry(entry)?;
    let mut features = Vec::new();
    for field in fields(list) {
        if let (1, Value::Bytes(feature)) = field? {
            features.push(Feature::parse(feature)?);
        }
    }
    Some((name, features))
}

impl<'a> Features<'a> {
    fn merge(&mut self, features: &'a [u8]) -> Option<()> {
        for field in fields(features) {
            if let (1, Value::Bytes(entry)) = field? {
                let (name, feature) = map_entry(entry)?;
                self.0.push((name, Feature::parse(feature)?));
            }
        }
        Some(())
    }

    /// The feature called `name`; of several, the last, as in any protobuf map.
    pub fn get(&self, name: &[u8]) -> Option<&Feature<'a>> {
        let mut found = self.0.iter().rev().filter(|(n, _)| *n == name);
        found.next().map(|(_, feature)| feature)
    }

    /// All features in the order of the message, names that come twice included.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&'a [u8], &Feature<'a>)> {
        self.0.iter().map(|(name, feature)| (*name, feature))
    }
}

impl<'a> Feature<'a> {
    fn parse(data: &'a [u8]) -> Option<Feature<'a>> {
        let mut feature = Feature::default();
        for field in fields(data) {
            let (kind, list) = match field? {
                (1, Value::Bytes(list)) => (FeatureKind::Bytes, list),
                (2, Value::Bytes(list)) => (FeatureKind::Float, list),
                (3, Value::Bytes(list)) => (FeatureKind::Int64, list),
                _ => continue,
            };
            if feature.kind == Some(kind) {
                feature.more.push(list);
            } else {
                // Another kind replaces what was there.
                feature = Feature {
                    kind: Some(kind),
                    list,
                    more: Vec::new(),
                };
            }
        }
        Some(feature)
    }

    /// Which list the feature holds; `None` means that it counts as missing.
    pub fn kind(&self) -> Option<FeatureKind> {
        self.kind
    }

    fn lists(&self) -> impl Iterator<Item = &'a [u8]> {
        std::iter::once(self.list).chain(self.more.iter().copied())
    }

    /// Appends the values of a float list to `out`.
    pub fn floats(&self, out: &mut Vec<f32>) -> Option<()> {
        for list in self.lists() {
            for field in fields(list) {
                match field? {
                    (1, Value::Bytes(packed)) => {
                        let (values, []) = packed.as_chunks::<4>() else {
                            return None;
                        };
                        out.extend(values.iter().map(|v| f32::from_le_bytes(*v)));
                    }
                    (1, Value::Fixed32(value)) => out.push(f32::from_le_bytes(value)),
                    _ => {}
                }
            }
        }
        Some(())
    }

    /// Appends the values of an integer list to `out`.
    pub fn int64s(&self, out: &mut Vec<i64>) -> Option<()> {
        for list in self.lists() {
            for field in fields(list) {
                match field? {
                    (1, Value::Bytes(packed)) => {
                        let mut cursor = Cursor(packed);
                        while !cursor.is_empty() {
                            out.push(cursor.varint64()? as i64);
                        }
                    }
                    (1, Value::Varint(value)) => out.push(value as i64),
                    _ => {}
                }
            }
        }
        Some(())
    }

    /// Calls `each` with the values of a bytes list.
    pub fn bytes(&self, mut each: impl FnMut(&'a [u8])) -> Option<()> {
        for list in self.lists() {
            for field in fields(list) {
                if let (1, Value::Bytes(value)) = field? {
                    each(value);
                }
            }
        }
        Some(())
    }

    /// The values, whatever their kind. Strings share the memory of `source`, the message from
    /// which this feature was parsed.
    pub fn values(&self, source: &Bytes) -> Option<FeatureValues> {
        Some(match self.kind {
            None => FeatureValues::None,
            Some(FeatureKind::Bytes) => {
                let mut values = Vec::new();
                self.bytes(|value| values.push(within(source, value)))?;
                FeatureValues::Bytes(values)
            }
            Some(FeatureKind::Float) => {
                let mut values = Vec::new();
                self.floats(&mut values)?;
                FeatureValues::Floats(values)
            }
            Some(FeatureKind::Int64) => {
                let mut values = Vec::new();
                self.int64s(&mut values)?;
                FeatureValues::Int64s(values)
            }
        })
    }
}

/// `part` as a window on `source` if it lies there, else as a copy.
fn within(source: &Bytes, part: &[u8]) -> Bytes {
    let start = (part.as_ptr() as usize).wrapping_sub(source.as_ptr() as usize);
    let end = start.checked_add(part.len());
    if end.is_some_and(|end| end <= source.len()) {
        source.slice_ref(part)
    } else {
        Bytes::copy_from_slice(part)
    }
}

/// Key and value of a map entry; either may be left out when empty.
fn map_entry(entry: &[u8]) -> Option<(&[u8], &[u8])> {
    let (mut key, mut value): (&[u8], &[u8]) = (&[], &[]);
    for field in fields(entry) {
        match field? {
            (1, Value::Bytes(data)) => key = data,
            (2, Value::Bytes(data)) => value = data,
            _ => {}
        }
    }
    Some((key, value))
}

/// The value of a protobuf field.
enum Value<'a> {
    Varint(u64),
    Fixed64,
    Bytes(&'a [u8]),
    Fixed32([u8; 4]),
}

/// The fields of a message; an inner `None` ends it where it is malformed.
fn fields<'a>(data: &'a [u8]) -> impl Iterator<Item = Option<(u64, Value<'a>)>> {
    let mut cursor = Cursor(data);
    let mut broken = false;
    std::iter::from_fn(move || {
        if broken || cursor.is_empty() {
            return None;
        }
        let field = field(&mut cursor);
        broken = field.is_none();
        Some(field)
    })
}

fn field<'a>(cursor: &mut Cursor<'a>) -> Option<(u64, Value<'a>)> {
    let tag = cursor.varint32()?;
    let number = u64::from(tag >> 3);
    if number == 0 {
        return None;
    }
    let value = match tag & 7 {
        0 => Value::Varint(cursor.varint64()?),
        1 => {
            cursor.array::<8>()?;
            Value::Fixed64
        }
        2 => {
            let length = cursor.length()?;
            Value::Bytes(cursor.take(length)?)
        }
        5 => Value::Fixed32(cursor.array()?),
        // Groups: nobody has put one into an example.
        _ => return None,
    };
    Some((number, value))
}

#[cfg(test)]
#[path = "example_tests.rs"]
mod tests;
