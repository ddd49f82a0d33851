//! `GraphDef` ⇄ the plain graph of `downpour-graph`. Decoding pays for nodes, functions, tensors
//! and the depth of attributes; whether nodes fit together is `Graph`'s to check. Attributes whose
//! name begins with `_` are nobody's contract: one that cannot be understood is dropped.

use crate::budget::{Exhausted, Meter};
use crate::op_def::{decode_op_def, encode_op_def};
use crate::proto::{self, attr_value};
use crate::tensor_proto::{TensorProtoError, decode_tensor, encode_tensor};
use crate::{decode_partial_shape, encode_partial_shape};
use bytes::Bytes;
use downpour_graph::{
    AttrList, AttrValue, Attrs, FunctionDef, FunctionRef, Graph, GraphDef, NodeDef, Result, Status,
    Versions, find_op,
};
use downpour_tensor::DType;
use std::collections::BTreeMap;

/// Constants below this size are copied out of the message they came in. A window would keep the
/// whole message alive for as long as the session.
const DETACH_BELOW: usize = 64 << 10;

/// Takes over a graph.
pub fn decode_graph(proto: proto::GraphDef, meter: &mut Meter) -> Result<GraphDef> {
    let mut graph = GraphDef {
        nodes: decode_nodes(proto.node, meter)?,
        versions: match proto.versions {
            Some(v) => Versions {
                producer: v.producer,
                min_consumer: v.min_consumer,
                bad_consumers: v.bad_consumers,
            },
            // Graphs older than `versions` have a single number.
            None => Versions {
                producer: proto.version,
                ..Default::default()
            },
        },
        ..Default::default()
    };
    if let Some(library) = proto.library {
        for function in library.function {
            meter.function()?;
            graph.functions.push(decode_function(function, meter)?);
        }
        graph.gradients = library
            .gradient
            .into_iter()
            .map(|g| (g.function_name, g.gradient_func))
            .collect();
    }
    Ok(graph)
}

fn decode_nodes(nodes: Vec<proto::NodeDef>, meter: &mut Meter) -> Result<Vec<NodeDef>> {
    let mut out = Vec::with_capacity(nodes.len());
    for node in nodes {
        meter.node()?;
        let attrs = decode_attrs(node.attr, 1, meter)
            .map_err(|(attr, e)| e.in_node(&attr, &node.name, &node.op))?;
        out.push(NodeDef {
            name: node.name,
            op: node.op,
            inputs: node.input,
            device: node.device,
            attrs,
        });
    }
    Ok(out)
}

fn decode_function(proto: proto::FunctionDef, meter: &mut Meter) -> Result<FunctionDef> {
    let signature = decode_op_def(proto.signature.unwrap_or_default(), meter)?;
    let mut attrs = |attrs: BTreeMap<String, proto::AttrValue>| {
        decode_attrs(attrs, 1, meter)
            .map_err(|(attr, e)| e.in_node(&attr, &signature.name, &signature.name))
    };
    let own = attrs(proto.attr)?;
    let arg_attrs = proto
        .arg_attr
        .into_iter()
        .map(|(i, a)| Ok((i, attrs(a.attr)?)))
        .collect::<Result<_>>()?;
    Ok(FunctionDef {
        nodes: decode_nodes(proto.node_def, meter)?,
        ret: proto.ret,
        control_ret: proto.control_ret,
        attrs: own,
        arg_attrs,
        signature,
    })
}

/// Why an attribute cannot be taken over.
#[derive(Debug)]
pub(crate) enum AttrError {
    /// No kind of value is set.
    Missing,
    /// The value is wrong.
    Invalid(String),
    Tensor(TensorProtoError),
    Exhausted(Exhausted),
}

impl From<Exhausted> for AttrError {
    fn from(e: Exhausted) -> AttrError {
        AttrError::Exhausted(e)
    }
}

impl From<AttrError> for Status {
    fn from(e: AttrError) -> Status {
        match e {
            AttrError::Missing => Status::invalid_argument("AttrValue missing value"),
            AttrError::Invalid(text) => Status::invalid_argument(text),
            AttrError::Tensor(e) => e.into(),
            AttrError::Exhausted(e) => e.into(),
        }
    }
}

impl AttrError {
    /// The error of a node's attribute, in TensorFlow's words.
    fn in_node(self, attr: &str, node: &str, op: &str) -> Status {
        let short = |text: &str| text.chars().take(200).collect::<String>();
        let (attr, node, op) = (short(attr), short(node), short(op));
        if let AttrError::Tensor(e) = self {
            let status = Status::from(e);
            let message = format!("{}\n\t [[{{{{node {node}}}}}]]", status.message);
            return Status::new(status.code, message);
        }
        let missing = matches!(self, AttrError::Missing);
        let status = Status::from(self);
        let mut message = status.message;
        if missing && let Some(declared) = find_op(&op).and_then(|o| o.attr(&attr).cloned()) {
            message += &format!(" with expected type '{}'", declared.kind);
        }
        Status::new(
            status.code,
            format!(
                "{message}\n\t for attr '{attr}'\n\t; NodeDef: {{{{node {node}}}}}; Op<name={op}>"
            ),
        )
    }
}

fn decode_attrs(
    attrs: BTreeMap<String, proto::AttrValue>,
    depth: u32,
    meter: &mut Meter,
) -> Result<Attrs, (String, AttrError)> {
    let mut out = Attrs::default();
    for (name, value) in attrs {
        match decode_attr(value, depth, meter) {
            Ok(value) => out.set(name, value),
            Err(AttrError::Exhausted(e) | AttrError::Tensor(TensorProtoError::Exhausted(e))) => {
                return Err((name, e.into()));
            }
            Err(_) if name.starts_with('_') => {}
            Err(e) => return Err((name, e)),
        }
    }
    Ok(out)
}

pub(crate) fn decode_attr(
    proto: proto::AttrValue,
    depth: u32,
    meter: &mut Meter,
) -> Result<AttrValue, AttrError> {
    use attr_value::Value;
    meter.depth(depth)?;
    Ok(match proto.value.ok_or(AttrError::Missing)? {
        Value::S(s) => AttrValue::Str(detached(s)),
        Value::I(i) => AttrValue::Int(i),
        Value::F(f) => AttrValue::Float(f),
        Value::B(b) => AttrValue::Bool(b),
        Value::Type(t) => AttrValue::Type(decode_type(t)?),
        Value::Shape(s) => AttrValue::Shape(shape(&s)?),
        Value::Tensor(t) => AttrValue::Tensor(tensor(*t, meter)?),
        Value::Placeholder(p) => AttrValue::Placeholder(p),
        Value::Func(f) => AttrValue::Func(func(f, depth, meter)?),
        Value::List(list) => AttrValue::List(decode_list(*list, depth, meter)?),
    })
}

fn decode_list(
    list: attr_value::ListValue,
    depth: u32,
    meter: &mut Meter,
) -> Result<AttrList, AttrError> {
    let kinds = [
        !list.s.is_empty(),
        !list.i.is_empty(),
        !list.f.is_empty(),
        !list.b.is_empty(),
        !list.r#type.is_empty(),
        !list.shape.is_empty(),
        !list.tensor.is_empty(),
        !list.func.is_empty(),
    ];
    if kinds.into_iter().filter(|set| *set).count() > 1 {
        return Err(AttrError::Invalid(
            "AttrValue had a list with values of more than one type".into(),
        ));
    }
    Ok(match kinds.into_iter().position(|set| set) {
        None => AttrList::Empty,
        Some(0) => AttrList::Str(list.s.into_iter().map(detached).collect()),
        Some(1) => AttrList::Int(list.i),
        Some(2) => AttrList::Float(list.f),
        Some(3) => AttrList::Bool(list.b),
        Some(4) => AttrList::Type(
            list.r#type
                .into_iter()
                .map(decode_type)
                .collect::<Result<_, _>>()?,
        ),
        Some(5) => AttrList::Shape(list.shape.iter().map(shape).collect::<Result<_, _>>()?),
        Some(6) => AttrList::Tensor(
            list.tensor
                .into_iter()
                .map(|t| tensor(t, meter))
                .collect::<Result<_, _>>()?,
        ),
        Some(_) => AttrList::Func(
            list.func
                .into_iter()
                .map(|f| func(f, depth, meter))
                .collect::<Result<_, _>>()?,
        ),
    })
}

fn decode_type(number: i32) -> Result<DType, AttrError> {
    DType::from_number(number).map_err(|_| {
        AttrError::Invalid(match number {
            0 => "AttrValue has invalid DataType".into(),
            _ => match DType::from_number(number.saturating_sub(100)) {
                Ok(t) => format!("AttrValue must not have reference type value of {t}_ref"),
                Err(_) => format!("AttrValue has invalid DataType enum: {number}"),
            },
        })
    })
}

fn shape(proto: &proto::TensorShapeProto) -> Result<downpour_tensor::PartialShape, AttrError> {
    decode_partial_shape(proto).map_err(|e| AttrError::Invalid(e.to_string()))
}

fn tensor(
    mut proto: proto::TensorProto,
    meter: &mut Meter,
) -> Result<downpour_tensor::Tensor, AttrError> {
    proto.tensor_content = detached(proto.tensor_content);
    for s in &mut proto.string_val {
        *s = detached(std::mem::take(s));
    }
    decode_tensor(proto, meter).map_err(AttrError::Tensor)
}

fn func(
    proto: proto::NameAttrList,
    depth: u32,
    meter: &mut Meter,
) -> Result<FunctionRef, AttrError> {
    Ok(FunctionRef {
        attrs: decode_attrs(proto.attr, depth + 1, meter).map_err(|(_, e)| e)?,
        name: proto.name,
    })
}

fn detached(bytes: Bytes) -> Bytes {
    if bytes.len() < DETACH_BELOW {
        Bytes::copy_from_slice(&bytes)
    } else {
        bytes
    }
}

/// A graph as written.
pub fn encode_graph_def(graph: &GraphDef) -> Result<proto::GraphDef> {
    Ok(proto::GraphDef {
        node: graph.nodes.iter().map(encode_node).collect::<Result<_>>()?,
        library: Some(proto::FunctionDefLibrary {
            function: graph
                .functions
                .iter()
                .map(encode_function)
                .collect::<Result<_>>()?,
            gradient: graph
                .gradients
                .iter()
                .map(|(function, gradient)| proto::GradientDef {
                    function_name: function.clone(),
                    gradient_func: gradient.clone(),
                })
                .collect(),
            ..Default::default()
        }),
        versions: Some(proto::VersionDef {
            producer: graph.versions.producer,
            min_consumer: graph.versions.min_consumer,
            bad_consumers: graph.versions.bad_consumers.clone(),
        }),
        ..Default::default()
    })
}

/// A checked graph, with its attributes complete.
pub fn encode_graph(graph: &Graph) -> Result<proto::GraphDef> {
    encode_graph_def(&to_graph_def(graph))
}

/// A checked graph in the unchecked form: edges are names again.
pub fn to_graph_def(graph: &Graph) -> GraphDef {
    let nodes = graph
        .nodes()
        .map(|(_, node)| {
            let data = node.inputs.iter().map(|edge| {
                let source = &graph.node(edge.node).name;
                match edge.output {
                    0 => source.to_string(),
                    output => format!("{source}:{output}"),
                }
            });
            let control = node
                .control_inputs
                .iter()
                .map(|id| format!("^{}", graph.node(*id).name));
            NodeDef {
                name: node.name.to_string(),
                op: node.op_name().to_owned(),
                inputs: data.chain(control).collect(),
                device: node.device.to_string(),
                attrs: node.attrs.clone(),
            }
        })
        .collect();
    // The library is a hash map: sorted, equal graphs have equal encodings.
    let functions: BTreeMap<_, _> = graph.functions().iter().collect();
    GraphDef {
        nodes,
        gradients: functions
            .keys()
            .filter_map(|name| Some(((*name).clone(), graph.gradient_of(name)?.to_owned())))
            .collect(),
        functions: functions.values().map(|f| (***f).clone()).collect(),
        versions: graph.versions().clone(),
    }
}

fn encode_node(node: &NodeDef) -> Result<proto::NodeDef> {
    Ok(proto::NodeDef {
        name: node.name.clone(),
        op: node.op.clone(),
        input: node.inputs.clone(),
        device: node.device.clone(),
        attr: encode_attrs(&node.attrs)?,
    })
}

fn encode_function(function: &FunctionDef) -> Result<proto::FunctionDef> {
    Ok(proto::FunctionDef {
        signature: Some(encode_op_def(&function.signature)?),
        node_def: function
            .nodes
            .iter()
            .map(encode_node)
            .collect::<Result<_>>()?,
        ret: function.ret.clone(),
        attr: encode_attrs(&function.attrs)?,
        control_ret: function.control_ret.clone(),
        arg_attr: function
            .arg_attrs
            .iter()
            .map(|(i, attrs)| {
                let attr = encode_attrs(attrs)?;
                Ok((*i, proto::function_def::ArgAttrs { attr }))
            })
            .collect::<Result<_>>()?,
    })
}

fn encode_attrs(attrs: &Attrs) -> Result<BTreeMap<String, proto::AttrValue>> {
    attrs
        .0
        .iter()
        .map(|(name, value)| Ok((name.clone(), encode_attr(value)?)))
        .collect()
}

pub(crate) fn encode_attr(value: &AttrValue) -> Result<proto::AttrValue> {
    use attr_value::Value;
    let value = match value {
        AttrValue::Str(s) => Value::S(s.clone()),
        AttrValue::Int(i) => Value::I(*i),
        AttrValue::Float(f) => Value::F(*f),
        AttrValue::Bool(b) => Value::B(*b),
        AttrValue::Type(t) => Value::Type(t.number()),
        AttrValue::Shape(s) => Value::Shape(encode_partial_shape(s)),
        AttrValue::Tensor(t) => Value::Tensor(Box::new(encode_tensor(t)?)),
        AttrValue::Func(f) => Value::Func(encode_func(f)?),
        AttrValue::Placeholder(p) => Value::Placeholder(p.clone()),
        AttrValue::List(list) => Value::List(Box::new(encode_list(list)?)),
    };
    Ok(proto::AttrValue { value: Some(value) })
}

pub(crate) fn encode_list(list: &AttrList) -> Result<attr_value::ListValue> {
    let mut out = attr_value::ListValue::default();
    match list {
        AttrList::Empty => {}
        AttrList::Str(v) => out.s = v.clone(),
        AttrList::Int(v) => out.i = v.clone(),
        AttrList::Float(v) => out.f = v.clone(),
        AttrList::Bool(v) => out.b = v.clone(),
        AttrList::Type(v) => out.r#type = v.iter().map(|t| t.number()).collect(),
        AttrList::Shape(v) => out.shape = v.iter().map(encode_partial_shape).collect(),
        AttrList::Tensor(v) => out.tensor = v.iter().map(encode_tensor).collect::<Result<_>>()?,
        AttrList::Func(v) => out.func = v.iter().map(encode_func).collect::<Result<_>>()?,
    }
    Ok(out)
}

fn encode_func(func: &FunctionRef) -> Result<proto::NameAttrList> {
    Ok(proto::NameAttrList {
        name: func.name.clone(),
        attr: encode_attrs(&func.attrs)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Budget;
    use attr_value::{ListValue, Value};
    use downpour_graph::Code;

    fn node(attrs: &[(&str, Option<Value>)]) -> proto::GraphDef {
        let attr = attrs
            .iter()
            .map(|(k, v)| (k.to_string(), proto::AttrValue { value: v.clone() }))
            .collect();
        proto::GraphDef {
            node: vec![proto::NodeDef {
                name: "c".into(),
                op: "Const".into(),
                attr,
                ..Default::default()
            }],
            ..Default::default()
        }
    }

    fn decode(proto: proto::GraphDef) -> Result<GraphDef> {
        decode_graph(proto, &mut Meter::from(&Budget::default()))
    }

    #[test]
    fn bad_attributes_are_named_as_tensorflow_names_them() {
        let context = |attr: &str| {
            format!("\n\t for attr '{attr}'\n\t; NodeDef: {{{{node c}}}}; Op<name=Const>")
        };
        let mixed = ListValue {
            i: vec![1],
            f: vec![1.0],
            ..Default::default()
        };
        let broken = proto::TensorProto {
            dtype: 1,
            tensor_content: Bytes::from_static(b"123"),
            ..Default::default()
        };
        for (attr, value, text) in [
            (
                "dtype",
                Some(Value::Type(0)),
                "AttrValue has invalid DataType".to_owned() + &context("dtype"),
            ),
            (
                "dtype",
                Some(Value::Type(99)),
                "AttrValue has invalid DataType enum: 99".to_owned() + &context("dtype"),
            ),
            (
                "dtype",
                Some(Value::Type(i32::MIN)),
                "AttrValue has invalid DataType enum: -2147483648".to_owned() + &context("dtype"),
            ),
            (
                "dtype",
                Some(Value::Type(101)),
                "AttrValue must not have reference type value of float_ref".to_owned()
                    + &context("dtype"),
            ),
            (
                "value",
                None,
                "AttrValue missing value with expected type 'tensor'".to_owned()
                    + &context("value"),
            ),
            (
                "value",
                Some(Value::Tensor(Box::new(broken))),
                "Cannot parse tensor from proto: 3 bytes are given for 4 bytes of float[]\n\t [[{{node c}}]]".into(),
            ),
            (
                "x",
                Some(Value::List(Box::new(mixed))),
                "AttrValue had a list with values of more than one type".to_owned()
                    + &context("x"),
            ),
        ] {
            let e = decode(node(&[(attr, value)])).unwrap_err();
            assert_eq!((e.code, e.message), (Code::InvalidArgument, text));
        }
    }

    #[test]
    fn private_attributes_that_make_no_sense_are_dropped() {
        let g = decode(node(&[
            ("_a", None),
            ("_b", Some(Value::Type(101))),
            ("_c", Some(Value::I(1))),
        ]))
        .unwrap();
        assert_eq!(g.nodes[0].attrs.0.keys().collect::<Vec<_>>(), ["_c"]);
    }

    #[test]
    fn private_attributes_are_paid_for_as_well() {
        let bomb = proto::TensorProto {
            dtype: 1,
            tensor_shape: Some(crate::encode_dims(&[1 << 40])),
            ..Default::default()
        };
        let e = decode(node(&[("_a", Some(Value::Tensor(Box::new(bomb))))])).unwrap_err();
        assert_eq!(e.code, Code::ResourceExhausted);
    }

    #[test]
    fn tensors_of_one_graph_share_one_budget() {
        let half = || {
            Some(Value::Tensor(Box::new(proto::TensorProto {
                dtype: 1,
                tensor_shape: Some(crate::encode_dims(&[150])),
                ..Default::default()
            })))
        };
        let budget = Budget {
            tensor_bytes: 1000,
            ..Budget::default()
        };
        let one = node(&[("a", half())]);
        assert!(decode_graph(one, &mut Meter::from(&budget)).is_ok());
        let two = node(&[("a", half()), ("b", half())]);
        let e = decode_graph(two, &mut Meter::from(&budget)).unwrap_err();
        assert_eq!(e.code, Code::ResourceExhausted);
    }

    #[test]
    fn deep_attributes_nodes_and_functions_are_limited() {
        let mut value = Value::I(1);
        for _ in 0..24 {
            value = Value::Func(proto::NameAttrList {
                name: "f".into(),
                attr: [("a".to_owned(), proto::AttrValue { value: Some(value) })].into(),
            });
        }
        let e = decode(node(&[("x", Some(value))])).unwrap_err();
        assert!(e.message.contains("levels of attributes"), "{e}");

        let tight = Budget {
            nodes: 1,
            functions: 1,
            ..Budget::default()
        };
        let mut two = node(&[]);
        two.node.push(Default::default());
        assert!(decode_graph(two, &mut Meter::from(&tight)).is_err());
        let functions = proto::GraphDef {
            library: Some(proto::FunctionDefLibrary {
                function: vec![Default::default(); 2],
                ..Default::default()
            }),
            ..Default::default()
        };
        let e = decode_graph(functions, &mut Meter::from(&tight)).unwrap_err();
        assert!(e.message.contains("more functions"), "{e}");
    }

    #[test]
    fn small_constants_do_not_keep_the_message_alive() {
        let message = Bytes::from(vec![b'x'; 100]);
        let g = decode(node(&[("s", Some(Value::S(message.clone())))])).unwrap();
        let kept = g.nodes[0].attrs.bytes("s").unwrap();
        assert_ne!(kept.as_ptr(), message.as_ptr());
    }

    #[test]
    fn an_old_graph_has_one_version_number() {
        let old = proto::GraphDef {
            version: 21,
            ..Default::default()
        };
        assert_eq!(decode(old).unwrap().versions.producer, 21);
    }

    #[test]
    fn a_checked_graph_keeps_its_edges() {
        let float = || Some(Value::Type(1));
        let node = |name: &str, op: &str, input: &[&str], attr: &str| proto::NodeDef {
            name: name.into(),
            op: op.into(),
            input: input.iter().map(|s| s.to_string()).collect(),
            attr: [(attr.to_owned(), proto::AttrValue { value: float() })].into(),
            ..Default::default()
        };
        let def = proto::GraphDef {
            node: vec![
                node("p", "Placeholder", &[], "dtype"),
                node("u", "Unique", &["p"], "T"),
                node("n", "Neg", &["u", "^p"], "T"),
                proto::NodeDef {
                    attr: [(
                        "T".to_owned(),
                        proto::AttrValue {
                            value: Some(Value::Type(3)),
                        },
                    )]
                    .into(),
                    ..node("m", "Neg", &["u:1"], "T")
                },
            ],
            ..Default::default()
        };
        let graph = Graph::new(decode(def).unwrap()).unwrap();
        let back = encode_graph(&graph).unwrap();
        let inputs: Vec<_> = back.node.iter().map(|n| n.input.clone()).collect();
        assert_eq!(inputs, [vec![], vec!["p"], vec!["u", "^p"], vec!["u:1"]]);
        // Defaults are written out.
        assert!(back.node[1].attr.contains_key("out_idx"));
        assert!(Graph::new(decode(back).unwrap()).is_ok());
    }
}
