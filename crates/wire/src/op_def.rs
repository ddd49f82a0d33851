//! `OpDef` ⇄ the signature of a function. Descriptions and what only registered ops have are
//! dropped.

use crate::budget::Meter;
use crate::graph_def::{decode_attr, encode_attr, encode_list};
use crate::proto::{self, attr_value, op_def};
use downpour_graph::{
    ArgDef, ArgKind, AttrDef, AttrList, AttrValue, ElementType, OpDef, Result, Status,
};
use downpour_tensor::DType;

pub(crate) fn decode_op_def(proto: proto::OpDef, meter: &mut Meter) -> Result<OpDef> {
    let name = proto.name;
    let args = |args: Vec<op_def::ArgDef>| {
        args.into_iter()
            .map(|a| decode_arg(&name, a))
            .collect::<Result<Vec<_>>>()
    };
    Ok(OpDef {
        inputs: args(proto.input_arg)?,
        outputs: args(proto.output_arg)?,
        attrs: proto
            .attr
            .into_iter()
            .map(|a| decode_attr_def(&name, a, meter))
            .collect::<Result<_>>()?,
        stateful: proto.is_stateful,
        commutative: proto.is_commutative,
        allows_uninitialized_input: proto.allows_uninitialized_input,
        control_outputs: proto.control_output,
        name,
    })
}

fn decode_arg(op: &str, proto: op_def::ArgDef) -> Result<ArgDef> {
    let element = |proto: &op_def::ArgDef| {
        if !proto.type_attr.is_empty() {
            return Ok(ElementType::Attr(proto.type_attr.clone()));
        }
        DType::from_number(proto.r#type)
            .map(ElementType::Fixed)
            .map_err(|_| {
                Status::invalid_argument(format!(
                    "argument '{}' of '{op}' has no type (type number {})",
                    proto.name, proto.r#type
                ))
            })
    };
    let kind = if !proto.type_list_attr.is_empty() {
        ArgKind::List(proto.type_list_attr.clone())
    } else if !proto.number_attr.is_empty() {
        ArgKind::Repeated(proto.number_attr.clone(), element(&proto)?)
    } else {
        ArgKind::Single(element(&proto)?)
    };
    Ok(ArgDef {
        name: proto.name,
        kind,
        is_ref: proto.is_ref,
    })
}

fn decode_attr_def(op: &str, proto: op_def::AttrDef, meter: &mut Meter) -> Result<AttrDef> {
    let name = proto.name;
    let mut value = |value: Option<proto::AttrValue>| match value {
        None => Ok(None),
        Some(value) => decode_attr(value, 1, meter).map(Some).map_err(|e| {
            let e = Status::from(e);
            let message = format!("{}\n\t for attr '{name}' of '{op}'", e.message);
            Status::new(e.code, message)
        }),
    };
    let default = value(proto.default_value)?;
    let allowed = match value(proto.allowed_values)? {
        None | Some(AttrValue::List(AttrList::Empty)) => Vec::new(),
        Some(AttrValue::List(AttrList::Type(types))) => {
            types.into_iter().map(AttrValue::Type).collect()
        }
        Some(AttrValue::List(AttrList::Str(strings))) => {
            strings.into_iter().map(AttrValue::Str).collect()
        }
        Some(_) => {
            return Err(Status::invalid_argument(format!(
                "the allowed values of attr '{name}' of '{op}' are neither types nor strings"
            )));
        }
    };
    Ok(AttrDef {
        name,
        kind: proto.r#type,
        default,
        minimum: proto.has_minimum.then_some(proto.minimum),
        allowed,
    })
}

pub(crate) fn encode_op_def(op: &OpDef) -> Result<proto::OpDef> {
    Ok(proto::OpDef {
        name: op.name.clone(),
        input_arg: op.inputs.iter().map(encode_arg).collect(),
        output_arg: op.outputs.iter().map(encode_arg).collect(),
        attr: op
            .attrs
            .iter()
            .map(encode_attr_def)
            .collect::<Result<_>>()?,
        is_stateful: op.stateful,
        is_commutative: op.commutative,
        allows_uninitialized_input: op.allows_uninitialized_input,
        control_output: op.control_outputs.clone(),
        ..Default::default()
    })
}

fn encode_arg(arg: &ArgDef) -> op_def::ArgDef {
    let mut out = op_def::ArgDef {
        name: arg.name.clone(),
        is_ref: arg.is_ref,
        ..Default::default()
    };
    let mut set = |element: &ElementType| match element {
        ElementType::Fixed(t) => out.r#type = t.number(),
        ElementType::Attr(name) => out.type_attr = name.clone(),
    };
    match &arg.kind {
        ArgKind::Single(element) => set(element),
        ArgKind::Repeated(number, element) => {
            set(element);
            out.number_attr = number.clone();
        }
        ArgKind::List(list) => out.type_list_attr = list.clone(),
    }
    out
}

fn encode_attr_def(attr: &AttrDef) -> Result<op_def::AttrDef> {
    let types = attr.allowed.iter().map(|a| match a {
        AttrValue::Type(t) => Some(*t),
        _ => None,
    });
    let strings = attr.allowed.iter().map(|a| match a {
        AttrValue::Str(s) => Some(s.clone()),
        _ => None,
    });
    let allowed = if let Some(types) = types.collect() {
        AttrList::Type(types)
    } else if let Some(strings) = strings.collect() {
        AttrList::Str(strings)
    } else {
        return Err(Status::internal(format!(
            "the allowed values of attr '{}' are neither types nor strings",
            attr.name
        )));
    };
    let allowed_values = if allowed.is_empty() {
        None
    } else {
        Some(proto::AttrValue {
            value: Some(attr_value::Value::List(Box::new(encode_list(&allowed)?))),
        })
    };
    Ok(op_def::AttrDef {
        name: attr.name.clone(),
        r#type: attr.kind.clone(),
        default_value: attr.default.as_ref().map(encode_attr).transpose()?,
        has_minimum: attr.minimum.is_some(),
        minimum: attr.minimum.unwrap_or_default(),
        allowed_values,
        ..Default::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Budget;

    fn round_trip(op: &OpDef) -> OpDef {
        let mut meter = Meter::from(&Budget::default());
        decode_op_def(encode_op_def(op).unwrap(), &mut meter).unwrap()
    }

    #[test]
    fn every_registered_signature_survives_the_round_trip() {
        for name in downpour_graph::op_names() {
            let op = downpour_graph::find_op(name).unwrap();
            assert_eq!(format!("{:?}", round_trip(&op)), format!("{op:?}"));
        }
    }

    #[test]
    fn arguments_need_a_type() {
        for number in [0, 99, 101] {
            let e = decode_arg(
                "f",
                op_def::ArgDef {
                    name: "x".into(),
                    r#type: number,
                    ..Default::default()
                },
            )
            .unwrap_err();
            assert!(e.message.contains("argument 'x' of 'f' has no type"));
        }
    }

    #[test]
    fn bad_attribute_declarations_are_named() {
        let declare = |value: attr_value::Value, allowed: bool| {
            let value = Some(proto::AttrValue { value: Some(value) });
            let mut proto = op_def::AttrDef {
                name: "T".into(),
                r#type: "type".into(),
                ..Default::default()
            };
            if allowed {
                proto.allowed_values = value;
            } else {
                proto.default_value = value;
            }
            decode_attr_def("f", proto, &mut Meter::from(&Budget::default())).unwrap_err()
        };
        assert_eq!(
            declare(attr_value::Value::Type(101), false).message,
            "AttrValue must not have reference type value of float_ref\n\t for attr 'T' of 'f'"
        );
        assert!(
            declare(attr_value::Value::I(1), true)
                .message
                .contains("neither types nor strings")
        );
    }
}
