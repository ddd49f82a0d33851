//! Gradients of single ops, as functions: the table `gradients.txt` read into [`FunctionDef`]s.

use crate::op_table::parse_arg;
use crate::{
    ArgDef, ArgKind, AttrValue, Attrs, FunctionDef, NodeDef, OpDef, Result, Status, find_op,
};
use downpour_tensor::{DType, Tensor};
use std::collections::HashMap;
use std::sync::LazyLock;

const TABLE: &str = include_str!("gradients.txt");

/// Rules by op: head line and body lines.
static RULES: LazyLock<HashMap<&'static str, (&'static str, &'static str)>> = LazyLock::new(|| {
    let mut rules = HashMap::new();
    let paragraphs = TABLE.split("\n\n").filter(|p| !p.starts_with('#'));
    for paragraph in paragraphs {
        let (head, body) = paragraph.trim_start().split_once('\n').unwrap_or_default();
        let (ops, signature) = head.split_once(": ").unwrap_or_default();
        for op in ops.split(' ') {
            rules.insert(op, (signature, body));
        }
    }
    rules
});

/// Ends of rules that several share.
const BROADCAST: &str = "sx = Shape(x)\nsy = Shape(y)\n\
    rx, ry = BroadcastGradientArgs{T=int32}(sx, sy)\n\
    sum_gx = Sum(gx, rx)\ndx = Reshape(sum_gx, sx)\n\
    sum_gy = Sum(gy, ry)\ndy = Reshape(sum_gy, sy)";
const BATCHES: &str = "sx = Shape(x)\nsy = Shape(y)\nb0 = i32 [0]\nb1 = i32 [1]\nb2 = i32 [-2]\n\
    bx = StridedSlice{T=int32,Index=int32}(sx, b0, b2, b1)\n\
    by = StridedSlice{T=int32,Index=int32}(sy, b0, b2, b1)\n\
    rx, ry = BroadcastGradientArgs{T=int32}(bx, by)\n\
    sum_gx = Sum(gx, rx)\ndx = Reshape(sum_gx, sx)\n\
    sum_gy = Sum(gy, ry)\ndy = Reshape(sum_gy, sy)";
const REDUCTION: &str = "i32 = Cast{SrcT=$Tidx,DstT=int32}(i)\n\
    x_shape = Shape(x)\nx_rank = Rank(x)\ni_shape = Shape{T=int32}(i32)\n\
    zero = i32 0\none = i32 1\nall = Range{Tidx=int32}(zero, x_rank, one)\n\
    ones = Fill{T=int32}(i_shape, one)\nwrapped = FloorMod{T=int32}(i32, x_rank)\n\
    y_shape = DynamicStitch{T=int32,N=2}(all, wrapped, x_shape, ones)\n\
    scaling = Div{T=int32}(x_shape, y_shape)\ndi = ZerosLike{T=$Tidx}(i)";
const EXTREMUM: &str = "mask = Equal(x, y)\nm = Cast{SrcT=bool,DstT=$T}(mask)\n\
    sum = Sum{Tidx=$Tidx,keep_dims=true}(m, i)\nsy = Shape(y)\nr = Reshape(dy, sy)\n\
    norm = Div(r, sum)\ndx = Mul(m, norm)\ndi = ZerosLike{T=$Tidx}(i)";

/// Ops whose inputs have no gradients.
pub(crate) fn has_no_gradient(op: &str) -> bool {
    matches!(
        op,
        "Shape"
            | "Rank"
            | "Size"
            | "ZerosLike"
            | "OnesLike"
            | "Const"
            | "EditDistance"
            | "StopGradient"
            | "Less"
            | "LessEqual"
            | "Greater"
            | "GreaterEqual"
            | "Equal"
            | "NotEqual"
            | "LogicalAnd"
            | "LogicalOr"
            | "LogicalNot"
            | "Range"
            | "LinSpace"
            | "Floor"
            | "FloorDiv"
            | "TruncateDiv"
            | "RandomUniform"
            | "StatelessRandomUniform"
            | "StatelessRandomNormal"
            | "StatelessTruncatedNormal"
            | "StatelessMultinomial"
    )
}

/// The gradient of `op` with these attributes: a function of its inputs and of the gradients of
/// its outputs.
pub(crate) fn op_gradient(op: &OpDef, attrs: &Attrs) -> Result<FunctionDef> {
    let none = || Status::not_found(format!("No gradient defined for op: {}", op.name));
    let flag = |name: &str| u8::from(matches!(attrs.bool(name), Ok(true)));
    let complex = attrs.dtype("T").is_ok_and(|t| t.is_complex());
    let name = match op.name.as_str() {
        name @ ("Mul" | "Pow") if complex => format!("{name}/complex"),
        "MatMul" => format!("MatMul/{}{}", flag("transpose_a"), flag("transpose_b")),
        name @ ("BatchMatMul" | "BatchMatMulV2") => {
            format!("{name}/{}{}", flag("adj_x"), flag("adj_y"))
        }
        "Concat" | "ConcatV2" => return concat_gradient(op, attrs),
        name => name.to_owned(),
    };
    let (signature, body) = RULES.get(name.as_str()).ok_or_else(none)?;
    read_rule(op, signature, body)
}

/// Slices of the result's gradient, as many as there were inputs.
fn concat_gradient(op: &OpDef, attrs: &Attrs) -> Result<FunctionDef> {
    let n = attrs.size("N")?;
    let v2 = op.name == "ConcatV2";
    let (signature, dim) = match v2 {
        true => ("x:N*T dim:Tidx dy:T -> dx:N*T ddim:Tidx", "$Tidx"),
        false => ("dim:int32 x:N*T dy:T -> ddim:int32 dx:N*T", "int32"),
    };
    let mut body = format!(
        "shapes = ShapeN{{N=$N}}(x)\nd32 = Cast{{SrcT={dim},DstT=int32}}(dim)\n\
         offsets = ConcatOffset{{N=$N}}(d32, shapes)\nddim = ZerosLike{{T={dim}}}(dim)\n"
    );
    let mut parts = Vec::new();
    for i in 0..n {
        body += &format!("d{i}_ = Slice{{Index=int32}}(dy, offsets:{i}, shapes:{i})\n");
        parts.push(format!("d{i}_"));
    }
    body += &format!("dx = _ListToArray{{N=$N,Tin=$T}}({})", parts.join(", "));
    let mut rule = read_rule(op, signature, &body)?;
    let types = vec![attrs.dtype("T")?; n];
    for node in rule.nodes.iter_mut().filter(|n| n.op == "_ListToArray") {
        node.attrs.set("Tin", types.clone());
    }
    Ok(rule)
}

fn read_rule(op: &OpDef, signature: &str, body: &str) -> Result<FunctionDef> {
    let bad = |what: &str| Status::internal(format!("the gradient of {}: {what}", op.name));
    let (args, rets) = signature.split_once(" -> ").ok_or_else(|| bad(signature))?;
    let parse =
        |text: &str| -> Vec<ArgDef> { text.split(' ').map(|a| parse_arg(a, &op.attrs)).collect() };
    let mut rule = FunctionDef {
        signature: OpDef {
            name: format!("_gradient_of_{}", op.name),
            inputs: parse(args),
            outputs: parse(rets),
            attrs: op.attrs.clone(),
            ..Default::default()
        },
        ..Default::default()
    };
    // What each name of the body is called as an input.
    let mut names: HashMap<String, String> = HashMap::new();
    for arg in &rule.signature.inputs {
        names.insert(arg.name.clone(), arg.name.clone());
    }
    let expand = |line: &'_ str| -> Vec<String> {
        let shared = match line.trim() {
            "broadcast" => BROADCAST,
            "batches" => BATCHES,
            "reduction" => REDUCTION,
            "extremum" => EXTREMUM,
            line => line,
        };
        shared.lines().map(|l| l.trim().to_owned()).collect()
    };
    for line in body.lines().flat_map(expand).filter(|l| !l.is_empty()) {
        let (results, value) = line.split_once(" = ").ok_or_else(|| bad(&line))?;
        let results: Vec<&str> = results.split(", ").collect();
        let node = match value.split_once(['{', '(']) {
            None => constant(results[0], value).ok_or_else(|| bad(&line))?,
            Some(_) => call(results[0], value, &names).ok_or_else(|| bad(&line))?,
        };
        let made = find_op(&node.op).ok_or_else(|| bad(&line))?;
        for (result, output) in results.iter().zip(&made.outputs) {
            let whole = format!("{}:{}", node.name, output.name);
            let full = match output.kind {
                ArgKind::Single(_) => format!("{whole}:0"),
                _ => whole,
            };
            names.insert((*result).to_owned(), full);
        }
        rule.nodes.push(node);
    }
    for ret in &rule.signature.outputs {
        let from = names.get(&ret.name).ok_or_else(|| bad(&ret.name))?;
        rule.ret.insert(ret.name.clone(), from.clone());
    }
    Ok(rule)
}

/// `i32 [-1]` and the like.
fn constant(name: &str, text: &str) -> Option<NodeDef> {
    let (kind, value) = text.split_once(' ')?;
    let tensor = match (
        kind,
        value.strip_prefix('[').and_then(|v| v.strip_suffix(']')),
    ) {
        ("i32", None) => Tensor::scalar::<i32>(value.parse().ok()?),
        ("i32", Some(value)) => Tensor::vector::<i32>(vec![value.parse().ok()?]),
        ("i64", None) => Tensor::scalar::<i64>(value.parse().ok()?),
        ("f32", None) => Tensor::scalar::<f32>(value.parse().ok()?),
        _ => return None,
    };
    let mut node = NodeDef {
        name: format!("{name}_"),
        op: "Const".to_owned(),
        ..Default::default()
    };
    node.attrs.set("dtype", tensor.dtype());
    node.attrs.set("value", tensor);
    Some(node)
}

/// `Op{attr=value,…}(input, …)`.
fn call(name: &str, text: &str, names: &HashMap<String, String>) -> Option<NodeDef> {
    let (head, inputs) = text.strip_suffix(')')?.split_once('(')?;
    let (op, attrs) = match head.split_once('{') {
        Some((op, attrs)) => (op, attrs.strip_suffix('}')?),
        None => (head, ""),
    };
    let mut node = NodeDef {
        name: format!("{name}_"),
        op: op.to_owned(),
        ..Default::default()
    };
    for input in inputs.split(", ") {
        let (var, index) = match input.split_once(':') {
            Some((var, index)) => (var, Some(index)),
            None => (input, None),
        };
        let full = names.get(var)?;
        node.inputs.push(match index {
            Some(index) => format!("{full}:{index}"),
            None => full.clone(),
        });
    }
    for attr in attrs.split(',').filter(|a| !a.is_empty()) {
        let (name, value) = attr.split_once('=')?;
        node.attrs.set(name, attr_value(value)?);
    }
    let declared = find_op(op)?;
    if declared.attr("T").is_some() && node.attrs.find("T").is_none() {
        node.attrs.set("T", AttrValue::Placeholder("T".to_owned()));
    }
    Some(node)
}

fn attr_value(text: &str) -> Option<AttrValue> {
    Some(match text {
        "true" => AttrValue::Bool(true),
        "false" => AttrValue::Bool(false),
        _ => match (text.strip_prefix('$'), text.parse::<i64>()) {
            (Some(name), _) => AttrValue::Placeholder(name.to_owned()),
            (None, Ok(number)) => AttrValue::Int(number),
            (None, Err(_)) => AttrValue::Type(DType::from_name(text).ok()?),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Functions;
    use std::sync::Arc;

    /// Attributes that make sense for any op of the table.
    fn attrs_of(op: &OpDef) -> Attrs {
        let mut attrs = Attrs::default();
        for declared in &op.attrs {
            let value = match (&declared.default, declared.kind.as_str()) {
                (_, "type") if declared.name == "Tout" || op.name == "Complex" => {
                    let real =
                        matches!(op.name.as_str(), "Real" | "Imag") == (declared.name == "Tout");
                    let t = if real { DType::Float } else { DType::Complex64 };
                    t.into()
                }
                (_, "type") if matches!(op.name.as_str(), "Real" | "Imag" | "Conj") => {
                    DType::Complex64.into()
                }
                (Some(default), _) => default.clone(),
                (None, "type") => match declared.name.as_str() {
                    "T" | "Tparams" | "SrcT" | "DstT" => DType::Float.into(),
                    _ => DType::Int32.into(),
                },
                (None, "int") => 2i64.into(),
                (None, "list(type)") => vec![DType::Float; 2].into(),
                (None, "list(int)") => vec![1i64; 4].into(),
                (None, "string") => "VALID".into(),
                (None, kind) => panic!("{kind}"),
            };
            attrs.set(declared.name.clone(), value);
        }
        attrs
    }

    #[test]
    fn every_rule_is_a_function_that_fits_its_op() {
        let names: Vec<&str> = RULES.keys().map(|n| n.split('/').next().unwrap()).collect();
        assert!(names.len() > 70);
        for name in names.into_iter().chain(["Concat", "ConcatV2"]) {
            let op = find_op(name).unwrap_or_else(|| panic!("no op {name}"));
            let attrs = attrs_of(&op);
            let rule = op_gradient(&op, &attrs).unwrap_or_else(|e| panic!("{name}: {e}"));
            let inputs = op.input_types(&attrs).unwrap();
            let outputs = op.output_types(&attrs).unwrap();
            let given = rule.signature.input_types(&attrs).unwrap();
            assert_eq!(given, [inputs.clone(), outputs].concat(), "{name}");
            assert_eq!(
                rule.signature.output_types(&attrs).unwrap(),
                inputs,
                "{name}"
            );
            let library = Functions::default();
            let mut library = Arc::new(library);
            let function = rule.signature.name.clone();
            Arc::make_mut(&mut library)
                .definitions
                .insert(function.clone(), Arc::new(rule));
            let body = library.instantiate(&function, &attrs);
            assert!(body.is_ok(), "{name}: {}", body.unwrap_err());
        }
    }
}
