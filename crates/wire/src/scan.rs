//! A look at a message's bytes before protobuf decodes them: counts and depths are compared with
//! the budget while nothing has been allocated yet. A message of a few megabytes can otherwise
//! make the decoder allocate a hundred times as much (empty nodes, empty strings).
//!
//! Only the structure that can be large or deep is followed; the rest is counted and skipped.

use crate::budget::{Exhausted, Meter};

/// Why a message was refused before decoding.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ScanError {
    /// The bytes are no protobuf message.
    #[error("the bytes are not a protobuf message")]
    Malformed,
    /// A limit was reached.
    #[error(transparent)]
    Exhausted(#[from] Exhausted),
}

/// Which message the bytes at hand are, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Counted, not followed.
    Leaf,
    /// A message of which one or two fields are followed.
    Fields(&'static [(u32, Kind)]),
    Graph,
    Library,
    Function,
    OpDef,
    AttrDef,
    ArgAttrsEntry,
    ArgAttrs,
    Node,
    AttrEntry,
    Attr,
    AttrList,
    Func,
    NamedTensor,
    Tensor,
    Variant,
}

impl Kind {
    /// What the field `number` of this message holds.
    fn field(self, number: u32) -> Kind {
        match (self, number) {
            (Kind::Fields(fields), _) => fields
                .iter()
                .find(|f| f.0 == number)
                .map_or(Kind::Leaf, |f| f.1),
            (Kind::Graph, 1) | (Kind::Function, 3) => Kind::Node,
            (Kind::Graph, 2) => Kind::Library,
            (Kind::Library, 1) => Kind::Function,
            (Kind::Function, 1) => Kind::OpDef,
            (Kind::Function, 5) | (Kind::Node, 5) | (Kind::Func, 2) | (Kind::ArgAttrs, 1) => {
                Kind::AttrEntry
            }
            (Kind::Function, 7) => Kind::ArgAttrsEntry,
            (Kind::ArgAttrsEntry, 2) => Kind::ArgAttrs,
            (Kind::OpDef, 4) => Kind::AttrDef,
            (Kind::AttrDef, 3 | 7) | (Kind::AttrEntry, 2) => Kind::Attr,
            (Kind::Attr, 1) => Kind::AttrList,
            (Kind::Attr, 8) | (Kind::AttrList, 8) => Kind::Tensor,
            (Kind::Attr, 10) | (Kind::AttrList, 9) => Kind::Func,
            (Kind::NamedTensor, 2) | (Kind::Variant, 3) => Kind::Tensor,
            (Kind::Tensor, 15) => Kind::Variant,
            // Dimensions of shapes are not followed: a shape's own entry was counted, and its
            // dimensions take as much on the wire as in memory.
            _ => Kind::Leaf,
        }
    }
}

/// Follows `bytes`, which should be a message of this kind, and pays for what it holds.
pub(crate) fn scan(bytes: &[u8], kind: Kind, meter: &mut Meter) -> Result<(), ScanError> {
    message(bytes, kind, 0, meter)
}

fn message(mut rest: &[u8], kind: Kind, depth: u32, meter: &mut Meter) -> Result<(), ScanError> {
    match kind {
        Kind::Node => meter.node()?,
        Kind::Function => meter.function()?,
        _ => {}
    }
    while !rest.is_empty() {
        let key = varint(&mut rest)?;
        let number = u32::try_from(key >> 3).map_err(|_| ScanError::Malformed)?;
        match key & 7 {
            0 => {
                varint(&mut rest)?;
            }
            1 => rest = rest.get(8..).ok_or(ScanError::Malformed)?,
            2 => {
                let len = usize::try_from(varint(&mut rest)?).map_err(|_| ScanError::Malformed)?;
                let (field, after) = rest.split_at_checked(len).ok_or(ScanError::Malformed)?;
                rest = after;
                meter.entry()?;
                let inner = kind.field(number);
                if inner != Kind::Leaf {
                    // Attributes and variants are the only messages that may hold themselves.
                    let deeper = matches!(inner, Kind::Attr | Kind::Variant);
                    let depth = depth + u32::from(deeper);
                    meter.depth(depth)?;
                    message(field, inner, depth, meter)?;
                }
            }
            5 => rest = rest.get(4..).ok_or(ScanError::Malformed)?,
            // Groups: proto3 has none.
            _ => return Err(ScanError::Malformed),
        }
    }
    Ok(())
}

fn varint(rest: &mut &[u8]) -> Result<u64, ScanError> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, after) = rest.split_first().ok_or(ScanError::Malformed)?;
        *rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(ScanError::Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Budget, proto};
    use prost::Message as _;

    fn graph(bytes: &[u8], budget: Budget) -> Result<Meter, ScanError> {
        let mut meter = Meter::from(&budget);
        scan(bytes, Kind::Graph, &mut meter)?;
        Ok(meter)
    }

    /// `levels` attributes, each the argument of a function that is the value of the next.
    pub(crate) fn nested_attr(levels: usize) -> Vec<u8> {
        fn wrap(tag: u8, inner: &[u8]) -> Vec<u8> {
            let mut out = vec![tag];
            prost::encoding::encode_varint(inner.len() as u64, &mut out);
            out.extend_from_slice(inner);
            out
        }
        let mut attr = vec![];
        for _ in 0..levels {
            // AttrValue.func { attr entry { value: attr } }
            attr = wrap(0x52, &wrap(0x12, &wrap(0x12, &attr)));
        }
        // GraphDef.node { attr entry { value: attr } }
        wrap(0x0a, &wrap(0x2a, &wrap(0x12, &attr)))
    }

    #[test]
    fn ten_million_small_nodes_are_refused_before_anything_is_decoded() {
        let node = [&[0x0a, 20, 0x0a, 18][..], &[b'n'; 18]].concat();
        let bytes = node.repeat(10_000_000);
        let e = graph(&bytes, Budget::default()).unwrap_err();
        assert!(matches!(e, ScanError::Exhausted(e) if e.what == "more nodes"));
    }

    #[test]
    fn deep_attributes_are_refused_before_protobuf_gives_up() {
        assert!(graph(&nested_attr(20), Budget::default()).is_ok());
        for levels in [30, 10_000] {
            let e = graph(&nested_attr(levels), Budget::default()).unwrap_err();
            assert!(matches!(e, ScanError::Exhausted(e) if e.what == "levels of attributes"));
        }
        // Whatever passes here, protobuf can decode.
        let bytes = nested_attr(Budget::default().attr_depth as usize - 1);
        assert!(graph(&bytes, Budget::default()).is_ok());
        assert!(proto::GraphDef::decode(bytes.as_slice()).is_ok());
    }

    #[test]
    fn empty_strings_are_counted() {
        let tensor = proto::TensorProto {
            string_val: vec![Default::default(); 100],
            ..Default::default()
        };
        let mut meter = Meter::from(&Budget {
            entries: 99,
            ..Budget::default()
        });
        assert!(scan(&tensor.encode_to_vec(), Kind::Tensor, &mut meter).is_err());
    }

    #[test]
    fn function_bodies_count_as_nodes() {
        let function = proto::FunctionDef {
            node_def: vec![Default::default(); 3],
            ..Default::default()
        };
        let def = proto::GraphDef {
            node: vec![Default::default(); 2],
            library: Some(proto::FunctionDefLibrary {
                function: vec![function; 2],
                ..Default::default()
            }),
            ..Default::default()
        };
        let left = graph(&def.encode_to_vec(), Budget::default())
            .unwrap()
            .remaining();
        assert_eq!(Budget::default().nodes - left.nodes, 8);
        assert_eq!(Budget::default().functions - left.functions, 2);
    }

    #[test]
    fn broken_bytes_are_malformed() {
        for bytes in [
            &[0xff; 11][..],
            &[0x0a],
            &[0x0a, 5, 1],
            &[0x09, 1, 2],
            &[0x0d, 1],
            &[0x0b],
            &[
                0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1,
            ],
        ] {
            assert_eq!(
                graph(bytes, Budget::default()).unwrap_err(),
                ScanError::Malformed
            );
        }
        assert!(graph(&[], Budget::default()).is_ok());
    }
}
