//! Attribute values and typed access to them.

use crate::{Result, Status};
use bytes::Bytes;
use downpour_tensor::{DType, PartialShape, Tensor};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// One attribute.
#[derive(Clone, Debug)]
#[allow(
    missing_docs,
    reason = "each variant is the kind of the same name in AttrValue"
)]
pub enum AttrValue {
    Str(Bytes),
    Int(i64),
    Float(f32),
    Bool(bool),
    Type(DType),
    Shape(PartialShape),
    Tensor(Tensor),
    Func(FunctionRef),
    /// The name of the enclosing function's attribute that gives the value.
    Placeholder(String),
    List(AttrList),
}

/// A list attribute. The wire cannot tell lists of no element apart, so `Empty` is its own kind.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "each variant is a list of that kind")]
pub enum AttrList {
    Empty,
    Str(Vec<Bytes>),
    Int(Vec<i64>),
    Float(Vec<f32>),
    Bool(Vec<bool>),
    Type(Vec<DType>),
    Shape(Vec<PartialShape>),
    Tensor(Vec<Tensor>),
    Func(Vec<FunctionRef>),
}

impl AttrList {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            AttrList::Empty => 0,
            AttrList::Str(v) => v.len(),
            AttrList::Int(v) => v.len(),
            AttrList::Float(v) => v.len(),
            AttrList::Bool(v) => v.len(),
            AttrList::Type(v) => v.len(),
            AttrList::Shape(v) => v.len(),
            AttrList::Tensor(v) => v.len(),
            AttrList::Func(v) => v.len(),
        }
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A function by name, with the attributes to instantiate it with.
#[derive(Clone, Debug, Default)]
pub struct FunctionRef {
    /// Name in the function library.
    pub name: String,
    /// Values of the function's own attributes.
    pub attrs: Attrs,
}

/// A node's attributes by name.
#[derive(Clone, Debug, Default)]
pub struct Attrs(pub BTreeMap<String, AttrValue>);

macro_rules! getters {
    ($($(#[$doc:meta])* $name:ident -> $t:ty, $pattern:pat => $value:expr;)*) => {
        $(
            $(#[$doc])*
            pub fn $name(&self, name: &str) -> Result<$t> {
                match self.get(name)? {
                    $pattern => Ok($value),
                    _ => Err(self.wrong_kind(name, stringify!($name))),
                }
            }
        )*
    };
}

macro_rules! list_getters {
    ($($(#[$doc:meta])* $name:ident -> $t:ty, $variant:ident, $kind:literal;)*) => {
        $(
            $(#[$doc])*
            pub fn $name(&self, name: &str) -> Result<&[$t]> {
                match self.get(name)? {
                    AttrValue::List(AttrList::$variant(v)) => Ok(v),
                    AttrValue::List(AttrList::Empty) => Ok(&[]),
                    _ => Err(self.wrong_kind(name, $kind)),
                }
            }
        )*
    };
}

impl Attrs {
    /// The attribute called `name`.
    pub fn get(&self, name: &str) -> Result<&AttrValue> {
        self.0
            .get(name)
            .ok_or_else(|| Status::not_found(format!("No attr named '{name}' in NodeDef:")))
    }

    /// The attribute called `name`, if there is one.
    pub fn find(&self, name: &str) -> Option<&AttrValue> {
        self.0.get(name)
    }

    fn wrong_kind(&self, name: &str, wanted: &str) -> Status {
        let actual = self
            .0
            .get(name)
            .map(crate::print::attr_kind)
            .unwrap_or("nothing");
        Status::invalid_argument(format!(
            "AttrValue had value with type '{actual}' when '{wanted}' expected for attr '{name}'"
        ))
    }

    getters! {
        /// A `bool` attribute.
        bool -> bool, AttrValue::Bool(v) => *v;
        /// An `int` attribute.
        int -> i64, AttrValue::Int(v) => *v;
        /// A `float` attribute.
        float -> f32, AttrValue::Float(v) => *v;
        /// A `string` attribute.
        bytes -> &Bytes, AttrValue::Str(v) => v;
        /// A `type` attribute.
        dtype -> DType, AttrValue::Type(v) => *v;
        /// A `shape` attribute.
        shape -> &PartialShape, AttrValue::Shape(v) => v;
        /// A `tensor` attribute.
        tensor -> &Tensor, AttrValue::Tensor(v) => v;
        /// A `func` attribute.
        func -> &FunctionRef, AttrValue::Func(v) => v;
    }

    list_getters! {
        /// A `list(int)` attribute.
        ints -> i64, Int, "list(int)";
        /// A `list(float)` attribute.
        floats -> f32, Float, "list(float)";
        /// A `list(string)` attribute.
        byte_strings -> Bytes, Str, "list(string)";
        /// A `list(type)` attribute.
        dtypes -> DType, Type, "list(type)";
        /// A `list(shape)` attribute.
        shapes -> PartialShape, Shape, "list(shape)";
        /// A `list(func)` attribute.
        funcs -> FunctionRef, Func, "list(func)";
        /// A `list(bool)` attribute.
        bools -> bool, Bool, "list(bool)";
        /// A `list(tensor)` attribute.
        tensors -> Tensor, Tensor, "list(tensor)";
    }

    /// A `string` attribute that must be UTF-8.
    pub fn str(&self, name: &str) -> Result<&str> {
        std::str::from_utf8(self.bytes(name)?)
            .map_err(|_| Status::invalid_argument(format!("attr '{name}' is not valid UTF-8")))
    }

    /// A `string` attribute that names something. TensorFlow takes any bytes; those that are no UTF-8 are
    /// spelled out after a replacement character, so that different names stay different.
    pub fn name(&self, name: &str) -> Result<Cow<'_, str>> {
        let bytes = self.bytes(name)?;
        if let Ok(text) = std::str::from_utf8(bytes) {
            return Ok(Cow::Borrowed(text));
        }
        let mut out = String::with_capacity(bytes.len() * 2);
        for chunk in bytes.utf8_chunks() {
            out.push_str(chunk.valid());
            for byte in chunk.invalid() {
                out.push(char::REPLACEMENT_CHARACTER);
                out.push_str(&format!("{byte:02x}"));
            }
        }
        Ok(Cow::Owned(out))
    }

    /// An `int` attribute that must not be negative.
    pub fn size(&self, name: &str) -> Result<usize> {
        let value = self.int(name)?;
        usize::try_from(value).map_err(|_| {
            Status::invalid_argument(format!(
                "attr '{name}' must not be negative, but is {value}"
            ))
        })
    }

    /// Sets an attribute.
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<AttrValue>) {
        self.0.insert(name.into(), value.into());
    }
}

macro_rules! from_values {
    ($($t:ty, $v:ident => $e:expr;)*) => {
        $(impl From<$t> for AttrValue {
            fn from($v: $t) -> AttrValue { $e }
        })*
    };
}

from_values! {
    bool, v => AttrValue::Bool(v);
    i64, v => AttrValue::Int(v);
    f32, v => AttrValue::Float(v);
    &str, v => AttrValue::Str(Bytes::copy_from_slice(v.as_bytes()));
    String, v => AttrValue::Str(v.into());
    DType, v => AttrValue::Type(v);
    PartialShape, v => AttrValue::Shape(v);
    Tensor, v => AttrValue::Tensor(v);
    FunctionRef, v => AttrValue::Func(v);
    Vec<DType>, v => AttrValue::List(AttrList::Type(v));
    Vec<i64>, v => AttrValue::List(AttrList::Int(v));
}
