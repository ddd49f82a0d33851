//! Stable text forms of attributes and nodes, as TensorFlow prints them in errors.

use crate::{AttrList, AttrValue, Node};
use std::fmt::Write as _;

/// An attribute as TensorFlow's `SummarizeAttrValue` prints it.
pub fn attr_text(value: &AttrValue) -> String {
    match value {
        AttrValue::Str(s) => format!("{:?}", String::from_utf8_lossy(s)),
        AttrValue::Int(i) => i.to_string(),
        AttrValue::Float(f) => f.to_string(),
        AttrValue::Bool(b) => b.to_string(),
        AttrValue::Type(t) => t.enum_name().to_owned(),
        AttrValue::Shape(s) => s.to_string(),
        AttrValue::Tensor(t) => {
            format!(
                "Tensor<type: {} shape: {} values: {}>",
                t.dtype(),
                t.shape(),
                t.summarize(3)
            )
        }
        AttrValue::Func(f) => f.name.clone(),
        AttrValue::Placeholder(p) => format!("${p}"),
        AttrValue::List(list) => {
            let parts: Vec<String> = match list {
                AttrList::Empty => Vec::new(),
                AttrList::Str(v) => v
                    .iter()
                    .map(|s| format!("{:?}", String::from_utf8_lossy(s)))
                    .collect(),
                AttrList::Int(v) => v.iter().map(i64::to_string).collect(),
                AttrList::Float(v) => v.iter().map(f32::to_string).collect(),
                AttrList::Bool(v) => v.iter().map(bool::to_string).collect(),
                AttrList::Type(v) => v.iter().map(|t| t.enum_name().to_owned()).collect(),
                AttrList::Shape(v) => v.iter().map(ToString::to_string).collect(),
                AttrList::Tensor(v) => v
                    .iter()
                    .map(|t| attr_text(&AttrValue::Tensor(t.clone())))
                    .collect(),
                AttrList::Func(v) => v.iter().map(|f| f.name.clone()).collect(),
            };
            format!("[{}]", parts.join(", "))
        }
    }
}

/// The kind of an attribute value, as op signatures spell it.
pub(crate) fn attr_kind(value: &AttrValue) -> &'static str {
    match value {
        AttrValue::Str(_) => "string",
        AttrValue::Int(_) => "int",
        AttrValue::Float(_) => "float",
        AttrValue::Bool(_) => "bool",
        AttrValue::Type(_) => "type",
        AttrValue::Shape(_) => "shape",
        AttrValue::Tensor(_) => "tensor",
        AttrValue::Func(_) => "func",
        AttrValue::Placeholder(_) => "placeholder",
        AttrValue::List(list) => match list {
            AttrList::Empty => "list(any)",
            AttrList::Str(_) => "list(string)",
            AttrList::Int(_) => "list(int)",
            AttrList::Float(_) => "list(float)",
            AttrList::Bool(_) => "list(bool)",
            AttrList::Type(_) => "list(type)",
            AttrList::Shape(_) => "list(shape)",
            AttrList::Tensor(_) => "list(tensor)",
            AttrList::Func(_) => "list(func)",
        },
    }
}

impl Node {
    /// The attributes the signature declares, as `T=DT_FLOAT, N=2`, for errors.
    pub fn attrs_text(&self) -> String {
        let mut out = String::new();
        for (name, value) in &self.attrs.0 {
            if name.starts_with('_') {
                continue;
            }
            if !out.is_empty() {
                out.push_str(", ");
            }
            let _ = write!(out, "{name}={}", attr_text(value));
        }
        out
    }
}
