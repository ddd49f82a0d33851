//! Graphs from text, one node a line:
//!
//! ```text
//! v = VariableV2() dtype=float shape=[2] @ps
//! x = Const() value=[1.0, 2.0]
//! sum = AddV2(v, x, ^other) @worker:1
//! twice = Double(sum)
//! func Double(x: float) -> (y: float = m:z:0)
//!   m = AddV2(x, x)
//! end
//! ```
//!
//! Type attributes that the inputs decide, and the number of inputs, are filled in. A loop's `Merge` needs its `T`, for
//! one of its inputs stands below it.

use crate::value::parse_tensor;
use downpour_graph::{
    ArgDef, ArgKind, AttrList, AttrValue, Attrs, ElementType, FunctionDef, FunctionRef, Graph,
    GraphDef, NodeDef, OpDef, find_op,
};
use downpour_tensor::{DType, PartialShape};
use std::collections::HashMap;
use std::sync::Arc;

/// Reads and checks a graph.
pub fn parse(text: &str) -> Result<Graph, String> {
    let mut def = GraphDef::default();
    let mut lines = text.lines().map(str::trim).filter(|l| !l.is_empty());
    while let Some(line) = lines.next() {
        if let Some(header) = line.strip_prefix("func ") {
            let body: Vec<&str> = lines.by_ref().take_while(|l| *l != "end").collect();
            def.functions.push(function(header, &body)?);
        } else {
            def.nodes.push(node(line)?);
        }
    }
    let mut signatures: HashMap<String, Arc<OpDef>> = HashMap::new();
    for function in &def.functions {
        let signature = function.signature.clone();
        signatures.insert(signature.name.clone(), Arc::new(signature));
    }
    for function in &mut def.functions {
        let mut types = Types::default();
        for arg in &function.signature.inputs {
            if let ArgKind::Single(ElementType::Fixed(t)) = arg.kind {
                types.0.insert(arg.name.clone(), t);
            }
        }
        complete(&mut function.nodes, &signatures, types)?;
    }
    complete(&mut def.nodes, &signatures, Types::default())?;
    Graph::new(def).map_err(|e| format!("{}: {}", e.code.name(), e.message))
}

/// The type of every output by what an input may call it: `node`, `node:1`, in functions `argument` and `node:out:0`.
#[derive(Default)]
struct Types(HashMap<String, DType>);

impl Types {
    fn add(&mut self, node: &NodeDef, op: &OpDef) {
        let Ok(types) = op.output_types(&node.attrs) else {
            return;
        };
        for (i, (t, _)) in types.iter().enumerate() {
            self.0.insert(format!("{}:{i}", node.name), *t);
        }
        if let Some((t, _)) = types.first() {
            self.0.insert(node.name.clone(), *t);
        }
        for (name, range) in op.output_ranges(&node.attrs).unwrap_or_default() {
            for (i, at) in range.enumerate() {
                self.0
                    .insert(format!("{}:{name}:{i}", node.name), types[at].0);
            }
        }
    }
}

/// Fills in attributes that the inputs decide, as long as something new comes out of it.
fn complete(
    nodes: &mut [NodeDef],
    signatures: &HashMap<String, Arc<OpDef>>,
    mut types: Types,
) -> Result<(), String> {
    let mut known = 0;
    loop {
        for node in &mut *nodes {
            let Some(op) = signatures
                .get(&node.op)
                .cloned()
                .or_else(|| find_op(&node.op))
            else {
                // The check of the graph says so.
                continue;
            };
            for attr in &op.attrs {
                if let (None, Some(value)) = (node.attrs.find(&attr.name), &attr.default) {
                    node.attrs.set(&attr.name, value.clone());
                }
            }
            infer(node, &op, &types);
            spell_attrs(node, &op)?;
            types.add(node, &op);
        }
        if types.0.len() == known {
            return Ok(());
        }
        known = types.0.len();
    }
}

fn infer(node: &mut NodeDef, op: &OpDef, types: &Types) {
    let inputs: Vec<&String> = node.inputs.iter().filter(|i| !i.starts_with('^')).collect();
    let given: Vec<Option<DType>> = inputs.iter().map(|i| types.0.get(*i).copied()).collect();
    let singles = (op.inputs.iter()).filter(|a| matches!(a.kind, ArgKind::Single(_)));
    let many = given.len().saturating_sub(singles.count());
    let mut at = 0;
    let mut found: Vec<(&str, AttrValue)> = Vec::new();
    for arg in &op.inputs {
        let (len, t) = match &arg.kind {
            ArgKind::Single(t) => (1, Some(t)),
            ArgKind::Repeated(number, t) => {
                found.push((number, AttrValue::Int(many as i64)));
                (many, Some(t))
            }
            ArgKind::List(list) => {
                let part = given.iter().skip(at).take(many).copied();
                if let Some(part) = part.collect::<Option<Vec<_>>>() {
                    found.push((list, AttrValue::List(AttrList::Type(part))));
                }
                (many, None)
            }
        };
        let dtype = given.get(at).copied().flatten();
        if let (Some(ElementType::Attr(name)), Some(dtype)) = (t, dtype) {
            found.push((name, AttrValue::Type(dtype)));
        }
        at += len;
    }
    for (name, value) in found {
        // What is written stands.
        if matches!(
            node.attrs.find(name),
            None | Some(AttrValue::List(AttrList::Empty))
        ) {
            node.attrs.set(name, value);
        }
    }
}

/// Gives the attributes that were read as plain words the kinds their op declares.
fn spell_attrs(node: &mut NodeDef, op: &OpDef) -> Result<(), String> {
    for attr in &op.attrs {
        if let Some(AttrValue::Placeholder(word)) = node.attrs.find(&attr.name) {
            let word = word.clone();
            let value = attr_value(&attr.kind, &word)
                .map_err(|e| format!("{}: {}={word}: {e}", node.name, attr.name))?;
            node.attrs.set(&attr.name, value);
        }
    }
    if op.name == "Const"
        && let Ok(value) = node.attrs.tensor("value")
    {
        let dtype = value.dtype();
        node.attrs.set("dtype", dtype);
    }
    // The op declares nothing of these.
    for value in node.attrs.0.values_mut() {
        if let AttrValue::Placeholder(word) = value {
            *value = match (word.as_str(), word.parse::<i64>()) {
                ("true", _) => AttrValue::Bool(true),
                ("false", _) => AttrValue::Bool(false),
                (_, Ok(number)) => AttrValue::Int(number),
                (text, _) if text.starts_with("[\"") => attr_value("list(string)", text)?,
                (text, _) => AttrValue::from(text.trim_matches('"')),
            };
        }
    }
    Ok(())
}

fn attr_value(kind: &str, word: &str) -> Result<AttrValue, String> {
    let items = || {
        let inner = word.trim_start_matches('[').trim_end_matches(']');
        inner.split(',').map(str::trim).filter(|w| !w.is_empty())
    };
    let dtype = |name: &str| DType::from_name(name).map_err(|e| e.to_string());
    let number = |w: &str| w.parse::<i64>().map_err(|e| e.to_string());
    let function = |name: &str| FunctionRef {
        name: name.to_owned(),
        attrs: Attrs::default(),
    };
    Ok(match kind {
        "type" => AttrValue::Type(dtype(word)?),
        "int" => AttrValue::Int(number(word)?),
        "float" => AttrValue::Float(word.parse().map_err(|_| "no number")?),
        "bool" => AttrValue::Bool(word.parse().map_err(|_| "neither true nor false")?),
        "shape" if word == "?" => AttrValue::Shape(PartialShape::unknown()),
        "shape" => {
            let dims = items().map(|d| match d {
                "?" => Ok(-1),
                d => number(d),
            });
            let dims = dims.collect::<Result<Vec<_>, _>>()?;
            AttrValue::Shape(PartialShape::checked(dims).map_err(|e| e.to_string())?)
        }
        "tensor" => AttrValue::Tensor(parse_tensor(word)?),
        "func" => AttrValue::Func(function(word)),
        "list(type)" => {
            let types = items().map(dtype).collect::<Result<Vec<_>, _>>()?;
            AttrValue::List(AttrList::Type(types))
        }
        "list(int)" => {
            let numbers = items().map(number).collect::<Result<Vec<_>, _>>()?;
            AttrValue::List(AttrList::Int(numbers))
        }
        "list(func)" => AttrValue::List(AttrList::Func(items().map(function).collect())),
        "list(string)" => {
            let strings = items().map(|s| s.trim_matches('"').to_owned().into());
            AttrValue::List(AttrList::Str(strings.collect()))
        }
        "list(shape)" if word == "[]" => AttrValue::List(AttrList::Empty),
        "string" => AttrValue::from(word.trim_matches('"')),
        other => return Err(format!("no text form for an attribute of kind {other}")),
    })
}

/// Cuts at `separator` outside brackets and quotes; empty parts are left out.
fn split(text: &str, separator: char) -> Vec<&str> {
    let (mut depth, mut quoted, mut start) = (0, false, 0);
    let mut parts = Vec::new();
    for (i, c) in text.char_indices() {
        match c {
            '"' => quoted = !quoted,
            '[' | '(' if !quoted => depth += 1,
            ']' | ')' if !quoted => depth -= 1,
            c if c == separator && depth == 0 && !quoted => {
                parts.push(text[start..i].trim());
                start = i + c.len_utf8();
            }
            _ => {}
        }
    }
    parts.push(text[start..].trim());
    parts.retain(|p| !p.is_empty());
    parts
}

fn node(line: &str) -> Result<NodeDef, String> {
    let bad = || format!("not `name = Op(inputs) attribute=value @device`: {line}");
    let (name, rest) = line.split_once('=').ok_or_else(bad)?;
    let (op, rest) = rest.split_once('(').ok_or_else(bad)?;
    let (inputs, rest) = rest.split_once(')').ok_or_else(bad)?;
    let mut def = NodeDef {
        name: name.trim().to_owned(),
        op: op.trim().to_owned(),
        inputs: split(inputs, ',').into_iter().map(str::to_owned).collect(),
        ..Default::default()
    };
    for word in split(rest, ' ') {
        if let Some(device) = word.strip_prefix('@') {
            def.device = full_device(device);
        } else {
            let (attr, value) = word.split_once('=').ok_or_else(bad)?;
            def.attrs
                .set(attr, AttrValue::Placeholder(value.to_owned()));
        }
    }
    Ok(def)
}

fn full_device(text: &str) -> String {
    if text.starts_with('/') {
        return text.to_owned();
    }
    let (job, task) = text.split_once(':').unwrap_or((text, "0"));
    format!("/job:{job}/replica:0/task:{task}/device:CPU:0")
}

/// `Name(x: float, …) -> (y: float = m:z:0, …)` and the lines of its body.
fn function(header: &str, body: &[&str]) -> Result<FunctionDef, String> {
    let bad = || format!("not `func Name(x: type) -> (y: type = node:out:0)`: {header}");
    let (call, results) = header.split_once("->").ok_or_else(bad)?;
    let (name, args) = call.trim().split_once('(').ok_or_else(bad)?;
    let mut def = FunctionDef::default();
    def.signature.name = name.trim().to_owned();
    let arg = |text: &str| -> Result<ArgDef, String> {
        let (name, dtype) = text.split_once(':').ok_or_else(bad)?;
        let dtype = DType::from_name(dtype.trim()).map_err(|e| e.to_string())?;
        Ok(ArgDef {
            name: name.trim().to_owned(),
            kind: ArgKind::Single(ElementType::Fixed(dtype)),
            is_ref: false,
        })
    };
    let args = args.trim().strip_suffix(')').ok_or_else(bad)?;
    for text in split(args, ',') {
        def.signature.inputs.push(arg(text)?);
    }
    let results = results.trim();
    let results = results.strip_prefix('(').and_then(|r| r.strip_suffix(')'));
    for text in split(results.ok_or_else(bad)?, ',') {
        let (result, from) = text.split_once('=').ok_or_else(bad)?;
        let result = arg(result)?;
        def.ret.insert(result.name.clone(), from.trim().to_owned());
        def.signature.outputs.push(result);
    }
    def.nodes = body
        .iter()
        .map(|line| node(line))
        .collect::<Result<_, _>>()?;
    Ok(def)
}

#[cfg(test)]
mod tests {
    use super::parse;
    use crate::show;

    #[test]
    fn what_is_printed_is_read_as_the_same() {
        let text = "\
v = VariableV2() dtype=float shape=[2,?] @ps
x = Const() value=float:[1,2]
sum = AddN(v, x, x) @worker:1
wait = NoOp(^sum)
parts = Split(axis, sum, ^wait) num_split=2
axis = Const() value=int32:0
back = AddV2(parts, parts:1)
";
        let graph = parse(text).unwrap();
        assert_eq!(show(&graph), text);
        assert_eq!(show(&parse(&show(&graph)).unwrap()), text);
    }

    #[test]
    fn functions_and_calls_of_them_are_read() {
        let graph = parse(
            "x = Placeholder() dtype=float
             y = Twice(x)
             z = PartitionedCall(x) f=Twice Tout=[float]
             func Twice(x: float) -> (y: float = m:z:0)
               m = AddV2(x, x)
             end",
        );
        let graph = graph.unwrap();
        assert!(graph.function("Twice").is_some());
        assert_eq!(
            show(&graph).lines().last(),
            Some("z = PartitionedCall(x) Tout=[float] f=Twice")
        );
    }

    #[test]
    fn mistakes_are_named() {
        for (text, part) in [
            ("x Placeholder", "not `name = Op"),
            ("x = Placeholder() dtype=number", "x: dtype=number"),
            ("x = Nonsense()", "Nonsense"),
            ("x = Identity(y)", "y"),
        ] {
            let e = parse(text).unwrap_err();
            assert!(e.contains(part), "{text}: {e}");
        }
    }
}
