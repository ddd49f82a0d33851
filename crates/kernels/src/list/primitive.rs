//! Variants that are plain C++ numbers, as a client may write them into a graph.

use crate::strings::printf;
use bytes::Bytes;
use downpour_tensor::{Encoded, VariantValue};
use std::any::Any;

/// A number inside a variant. Written down it is its bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Primitive {
    Int(i32),
    Float(f32),
    Double(f64),
    Bool(bool),
}

impl Primitive {
    /// The number of type `type_name` in `bytes`; `None` if they are none.
    pub(super) fn decode(type_name: &str, bytes: &[u8]) -> Option<Primitive> {
        Some(match type_name {
            "int" => Primitive::Int(i32::from_le_bytes(bytes.try_into().ok()?)),
            "float" => Primitive::Float(f32::from_le_bytes(bytes.try_into().ok()?)),
            "double" => Primitive::Double(f64::from_le_bytes(bytes.try_into().ok()?)),
            "bool" => match bytes {
                [byte @ (0 | 1)] => Primitive::Bool(*byte == 1),
                _ => return None,
            },
            _ => return None,
        })
    }

    pub(super) fn zero(self) -> Primitive {
        match self {
            Primitive::Int(_) => Primitive::Int(0),
            Primitive::Float(_) => Primitive::Float(0.0),
            Primitive::Double(_) => Primitive::Double(0.0),
            Primitive::Bool(_) => Primitive::Bool(false),
        }
    }

    /// The sum of two numbers of one type.
    pub(super) fn sum(&self, other: &Primitive) -> Option<Primitive> {
        Some(match (self, other) {
            (Primitive::Int(a), Primitive::Int(b)) => Primitive::Int(a.wrapping_add(*b)),
            (Primitive::Float(a), Primitive::Float(b)) => Primitive::Float(a + b),
            (Primitive::Double(a), Primitive::Double(b)) => Primitive::Double(a + b),
            (Primitive::Bool(a), Primitive::Bool(b)) => Primitive::Bool(*a || *b),
            _ => return None,
        })
    }
}

impl VariantValue for Primitive {
    fn type_name(&self) -> &str {
        match self {
            Primitive::Int(_) => "int",
            Primitive::Float(_) => "float",
            Primitive::Double(_) => "double",
            Primitive::Bool(_) => "bool",
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn summary(&self) -> String {
        let float = |v| printf::float(v, printf::Notation::Shortest, printf::Spec::default());
        match *self {
            Primitive::Int(v) => v.to_string(),
            Primitive::Float(v) => float(f64::from(v)),
            Primitive::Double(v) => float(v),
            Primitive::Bool(v) => u8::from(v).to_string(),
        }
    }

    fn encoded(&self) -> Option<Encoded> {
        let bytes = match self {
            Primitive::Int(v) => v.to_le_bytes().to_vec(),
            Primitive::Float(v) => v.to_le_bytes().to_vec(),
            Primitive::Double(v) => v.to_le_bytes().to_vec(),
            Primitive::Bool(v) => vec![u8::from(*v)],
        };
        Some(Encoded {
            type_name: self.type_name().to_owned(),
            metadata: Bytes::from(bytes),
            tensors: vec![],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive_being_written_down_and_add_up() {
        for (a, b, sum, text) in [
            (Primitive::Int(3), Primitive::Int(4), Primitive::Int(7), "7"),
            (
                Primitive::Float(1.5),
                Primitive::Float(-8.0),
                Primitive::Float(-6.5),
                "-6.5",
            ),
            (
                Primitive::Bool(false),
                Primitive::Bool(true),
                Primitive::Bool(true),
                "1",
            ),
        ] {
            let got = a.sum(&b).unwrap();
            assert_eq!((got, got.summary().as_str()), (sum, text));
            let written = got.encoded().unwrap();
            let back = Primitive::decode(&written.type_name, &written.metadata);
            assert_eq!(back, Some(got));
            assert!(a.sum(&Primitive::Double(1.0)).is_none());
        }
        for (kind, bytes) in [("int", &b"abc"[..]), ("bool", b"\x02"), ("no", b"")] {
            assert_eq!(Primitive::decode(kind, bytes), None);
        }
    }
}
