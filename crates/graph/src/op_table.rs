//! Every op signature of TensorFlow 2.21, as one text table in the binary. A line is parsed when
//! its op is first used. Having all of them, not only those with a kernel, lets us check any
//! client's graph and say, as TensorFlow does, which *kernel* is missing.

use crate::{ArgDef, ArgKind, AttrDef, AttrList, AttrValue, ElementType, OpDef};
use downpour_tensor::{DType, PartialShape, Tensor};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, OnceLock};

/// Tab-separated: op, inputs, outputs, attributes, flags.
const TABLE: &str = include_str!("ops.tsv");

type Line = (&'static str, OnceLock<Arc<OpDef>>);

static INDEX: LazyLock<HashMap<&'static str, Line>> = LazyLock::new(|| {
    TABLE
        .lines()
        .filter_map(|line| Some((line.split('\t').next()?, (line, OnceLock::new()))))
        .collect()
});

/// The signature of op `name`.
pub fn find_op(name: &str) -> Option<Arc<OpDef>> {
    let (line, parsed) = INDEX.get(name)?;
    Some(parsed.get_or_init(|| Arc::new(parse_line(line))).clone())
}

/// Names of all known ops.
pub fn op_names() -> impl Iterator<Item = &'static str> {
    TABLE.lines().filter_map(|line| line.split('\t').next())
}

fn parse_line(line: &str) -> OpDef {
    let mut columns = line.split('\t');
    let mut next = || columns.next().unwrap_or_default();
    let (name, inputs, outputs, attrs, flags) = (next(), next(), next(), next(), next());
    let attrs: Vec<AttrDef> = split_top(attrs, ';')
        .into_iter()
        .map(|a| parse_attr(a.trim()))
        .collect();
    let args = |text: &str| -> Vec<ArgDef> {
        split_top(text, ',')
            .into_iter()
            .map(|a| parse_arg(a.trim(), &attrs))
            .collect()
    };
    let has = |flag: &str| flags.split(',').any(|f| f == flag);
    OpDef {
        name: name.to_owned(),
        inputs: args(inputs),
        outputs: args(outputs),
        stateful: has("is_stateful"),
        commutative: has("is_commutative"),
        allows_uninitialized_input: has("allows_uninitialized_input"),
        control_outputs: Vec::new(),
        attrs,
    }
}

/// Splits at `separator` outside quotes and brackets; an empty text has no parts.
fn split_top(text: &str, separator: char) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut depth, mut quoted, mut start) = (0i32, false, 0);
    for (i, c) in text.char_indices() {
        match c {
            '\'' => quoted = !quoted,
            '(' | '[' | '{' if !quoted => depth += 1,
            ')' | ']' | '}' if !quoted => depth -= 1,
            c if c == separator && depth == 0 && !quoted => {
                parts.push(&text[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    if !text[start..].trim().is_empty() {
        parts.push(&text[start..]);
    }
    parts
}

pub(crate) fn parse_arg(text: &str, attrs: &[AttrDef]) -> ArgDef {
    let (name, kind) = text.split_once(':').unwrap_or((text, ""));
    let (kind, is_ref) = match kind.strip_prefix("Ref(").and_then(|k| k.strip_suffix(')')) {
        Some(inner) => (inner, true),
        None => (kind, false),
    };
    // An attribute may be called like a type only in the signature's own scope, so it wins.
    let element = |t: &str| match attrs.iter().any(|a| a.name == t) {
        true => ElementType::Attr(t.to_owned()),
        false => {
            DType::from_name(t).map_or_else(|_| ElementType::Attr(t.to_owned()), ElementType::Fixed)
        }
    };
    let kind = if let Some(list) = kind.strip_prefix("list(").and_then(|k| k.strip_suffix(')')) {
        ArgKind::List(list.to_owned())
    } else if let Some((number, t)) = kind.split_once('*') {
        ArgKind::Repeated(number.to_owned(), element(t))
    } else {
        ArgKind::Single(element(kind))
    };
    ArgDef {
        name: name.to_owned(),
        kind,
        is_ref,
    }
}

/// `name:kind=default{allowed}>=minimum`.
fn parse_attr(text: &str) -> AttrDef {
    let (name, rest) = text.split_once(':').unwrap_or((text, ""));
    let kind_end = rest.find(['=', '{', '>']).unwrap_or(rest.len());
    let kind = &rest[..kind_end];
    let mut rest = &rest[kind_end..];
    let mut default = None;
    if let Some(after) = rest.strip_prefix('=') {
        let end = default_end(after);
        default = Some(parse_value(kind, &after[..end]));
        rest = &after[end..];
    }
    let mut allowed = Vec::new();
    if let Some(after) = rest.strip_prefix('{') {
        let end = after.find('}').unwrap_or(after.len());
        let element = kind
            .strip_prefix("list(")
            .and_then(|k| k.strip_suffix(')'))
            .unwrap_or(kind);
        allowed = split_top(&after[..end], ',')
            .iter()
            .map(|v| parse_value(element, v))
            .collect();
        rest = after.get(end + 1..).unwrap_or_default();
    }
    let minimum = rest.strip_prefix(">=").and_then(|m| m.parse().ok());
    AttrDef {
        name: name.to_owned(),
        kind: kind.to_owned(),
        default,
        minimum,
        allowed,
    }
}

fn default_end(text: &str) -> usize {
    if let Some(inner) = text.strip_prefix('\'') {
        return inner.find('\'').map_or(text.len(), |i| i + 2);
    }
    if text.starts_with('[') {
        return text.find(']').map_or(text.len(), |i| i + 1);
    }
    text.find(['{', '>']).unwrap_or(text.len())
}

fn parse_value(kind: &str, text: &str) -> AttrValue {
    if let Some(element) = kind.strip_prefix("list(").and_then(|k| k.strip_suffix(')')) {
        let inner = text.trim_start_matches('[').trim_end_matches(']');
        let parts = split_top(inner, ',');
        if parts.is_empty() {
            return AttrValue::List(AttrList::Empty);
        }
        return AttrValue::List(match element {
            "int" => AttrList::Int(parts.iter().filter_map(|p| p.parse().ok()).collect()),
            "float" => AttrList::Float(parts.iter().filter_map(|p| p.parse().ok()).collect()),
            "type" => AttrList::Type(
                parts
                    .iter()
                    .filter_map(|p| DType::from_name(p).ok())
                    .collect(),
            ),
            "string" => AttrList::Str(parts.iter().map(|p| unquote(p).into()).collect()),
            _ => AttrList::Empty,
        });
    }
    match kind {
        "bool" => AttrValue::Bool(text == "true"),
        "int" => AttrValue::Int(text.parse().unwrap_or_default()),
        "float" => AttrValue::Float(text.parse().unwrap_or_default()),
        "type" => AttrValue::Type(DType::from_name(text).unwrap_or(DType::Float)),
        "shape" if text == "?" => AttrValue::Shape(PartialShape::unknown()),
        "shape" => AttrValue::Shape(PartialShape::from_dims([])),
        "tensor" => AttrValue::Tensor(parse_tensor(text)),
        _ => AttrValue::Str(unquote(text).into()),
    }
}

/// The bytes of a vector: no op has another tensor for a default but one of TensorFlow's own tests.
fn parse_tensor(text: &str) -> Tensor {
    let inner = text.trim_start_matches('[').trim_end_matches(']');
    let bytes: Vec<u8> = inner.split(',').filter_map(|b| b.parse().ok()).collect();
    let length = bytes.len();
    Tensor::from_vec(bytes, [length]).unwrap_or_else(|_| Tensor::scalar(0u8))
}

fn unquote(text: &str) -> String {
    text.trim_matches('\'')
        .replace("\\t", "\t")
        .replace("\\n", "\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Attrs;

    #[test]
    fn every_line_parses_to_a_signature_whose_attributes_exist() {
        for name in op_names() {
            let op = find_op(name).unwrap();
            for arg in op.inputs.iter().chain(&op.outputs) {
                let attr = match &arg.kind {
                    ArgKind::Single(ElementType::Attr(a)) | ArgKind::List(a) => Some(a),
                    ArgKind::Repeated(n, ElementType::Attr(a)) => {
                        assert!(op.attr(n).is_some(), "{name}: {n}");
                        Some(a)
                    }
                    _ => None,
                };
                if let Some(a) = attr {
                    assert!(
                        op.attr(a).is_some(),
                        "{name}: argument {} needs attr {a}",
                        arg.name
                    );
                }
            }
        }
        assert!(op_names().count() > 1700);
    }

    #[test]
    fn defaults_minima_and_allowed_values_are_read() {
        let conv = find_op("Conv2D").unwrap();
        let d = conv.attr("dilations").unwrap();
        assert!(
            matches!(&d.default, Some(AttrValue::List(AttrList::Int(v))) if v == &[1, 1, 1, 1])
        );
        assert_eq!(conv.attr("padding").unwrap().allowed.len(), 3);
        let pack = find_op("Pack").unwrap();
        assert_eq!(pack.attr("N").unwrap().minimum, Some(1));
        let mut attrs = Attrs::default();
        attrs.set("N", 3i64);
        attrs.set("T", DType::Int32);
        assert_eq!(
            pack.input_types(&attrs).unwrap(),
            vec![(DType::Int32, false); 3]
        );
        let v = find_op("Assign").unwrap();
        assert!(v.inputs[0].is_ref && !v.inputs[1].is_ref && v.allows_uninitialized_input);
        let csv = find_op("DecodeCSV").unwrap();
        assert!(
            matches!(&find_op("ImageSummary").unwrap().attr("bad_color").unwrap().default,
                Some(AttrValue::Tensor(t)) if t.as_slice::<u8>().unwrap() == [255, 0, 0, 255])
        );
        assert!(
            matches!(&csv.attr("field_delim").unwrap().default, Some(AttrValue::Str(s)) if &s[..] == b",")
        );
        assert_eq!(csv.attr("OUT_TYPE").unwrap().allowed.len(), 5);
    }
}
