//! Messages of a type made here, decoded and encoded.

use super::wire::{put_bytes, put_tag, put_varint};
use crate::testing::{run_op, text};
use downpour_graph::{AttrList, AttrValue, Result};
use downpour_tensor::{DType, Tensor};

fn bytes_field(out: &mut Vec<u8>, number: u32, bytes: &[u8]) {
    put_tag(out, number, 2);
    put_bytes(out, bytes);
}

fn number_field(out: &mut Vec<u8>, number: u32, value: u64) {
    put_tag(out, number, 0);
    put_varint(out, value);
}

/// A `FieldDescriptorProto`.
fn field(name: &str, number: u32, label: u64, kind: u64, type_name: &str, packed: bool) -> Vec<u8> {
    let mut out = Vec::new();
    bytes_field(&mut out, 1, name.as_bytes());
    number_field(&mut out, 3, number.into());
    number_field(&mut out, 4, label);
    number_field(&mut out, 5, kind);
    if !type_name.is_empty() {
        bytes_field(&mut out, 6, type_name.as_bytes());
    }
    if packed {
        bytes_field(&mut out, 8, &[0x10, 1]);
    }
    out
}

/// `t.M`: an int32 with a default, many int32, many packed, a string, a message of its own type, a float.
fn source(syntax: &str) -> Vec<u8> {
    let mut message = Vec::new();
    bytes_field(&mut message, 1, b"M");
    let mut first = field("a", 1, 1, 5, "", false);
    if syntax == "proto2" {
        bytes_field(&mut first, 7, b"42");
    }
    let fields = [
        first,
        field("many", 2, 3, 5, "", false),
        field("packed", 3, 3, 5, "", true),
        field("text", 4, 1, 9, "", false),
        field("inner", 5, 1, 11, "M", false),
        field("f", 6, 1, 2, "", false),
    ];
    for f in fields {
        bytes_field(&mut message, 2, &f);
    }
    let mut file = Vec::new();
    bytes_field(&mut file, 1, b"t.proto");
    bytes_field(&mut file, 2, b"t");
    bytes_field(&mut file, 4, &message);
    bytes_field(&mut file, 12, syntax.as_bytes());
    let mut set = b"bytes://".to_vec();
    bytes_field(&mut set, 1, &file);
    set
}

fn strings(values: &[&str]) -> AttrValue {
    let values = values.iter().map(|v| v.to_string().into()).collect();
    AttrValue::List(AttrList::Str(values))
}

fn types(values: &[DType]) -> AttrValue {
    AttrValue::List(AttrList::Type(values.to_vec()))
}

fn attrs(fields: &[&str], of: &[DType], which: &str, source: Vec<u8>) -> Vec<(String, AttrValue)> {
    vec![
        ("message_type".to_owned(), "t.M".into()),
        ("field_names".to_owned(), strings(fields)),
        (which.to_owned(), types(of)),
        (
            "descriptor_source".to_owned(),
            AttrValue::Str(source.into()),
        ),
    ]
}

fn run(op: &str, inputs: Vec<Tensor>, attrs: &[(String, AttrValue)]) -> Result<Vec<Tensor>> {
    let attrs: Vec<(&str, AttrValue)> =
        attrs.iter().map(|(n, v)| (n.as_str(), v.clone())).collect();
    run_op(op, inputs, &attrs)
}

fn messages(values: &[&[u8]]) -> Tensor {
    let values: Vec<_> = values.iter().map(|v| v.to_vec().into()).collect();
    let count = values.len();
    Tensor::strings(values, [count]).unwrap()
}

fn decode(message: &[u8], fields: &[&str], of: &[DType]) -> Result<Vec<Tensor>> {
    let attrs = attrs(fields, of, "output_types", source("proto2"));
    run("DecodeProtoV2", vec![messages(&[message])], &attrs)
}

#[test]
fn rows_are_as_wide_as_the_widest_and_filled_with_defaults() {
    // many: 7 and -1 in the first message, nothing in the second; packed: 1 2 3 in the second.
    let minus = [255, 255, 255, 255, 255, 255, 255, 255, 255, 1];
    let first = [&[0x10, 7, 0x10][..], &minus].concat();
    let second = [0x1a, 3, 1, 2, 3];
    let fields = ["packed", "many", "a", "text"];
    let of = [DType::Int64, DType::Int32, DType::Int32, DType::String];
    let attrs = attrs(&fields, &of, "output_types", source("proto2"));
    let input = messages(&[&first, &second]);
    let out = run("DecodeProtoV2", vec![input], &attrs).unwrap();
    assert_eq!(out[0].as_slice::<i32>().unwrap(), [0, 2, 0, 0, 3, 0, 0, 0]);
    assert_eq!(out[1].as_slice::<i64>().unwrap(), [0, 0, 0, 1, 2, 3]);
    assert_eq!(out[2].as_slice::<i32>().unwrap(), [7, -1, 0, 0]);
    assert_eq!(out[3].as_slice::<i32>().unwrap(), [42, 42]);
    assert_eq!(out[4].as_strings().unwrap(), ["", ""]);
}

#[test]
fn what_is_no_message_is_data_loss() {
    let a = (&["a"][..], &[DType::Int32][..]);
    let refused = |bytes: &[u8]| text(decode(bytes, a.0, a.1));
    assert!(refused(&[0x08]).starts_with("ReadValue: Failed skipping field when counting"));
    assert!(refused(&[0x0c]).starts_with("CountFields: Failed to consume entire buffer"));
    assert!(refused(&[0x40]).starts_with("Failed skipping unrequested field"));
    assert!(refused(&[0x0a, 9]).starts_with("ReadPackedValues: Skipping packed field failed"));
    let other = text(decode(&[], &["b"], &[DType::Int32]));
    assert!(
        other.starts_with("Unknown field: b in message type t.M"),
        "{other}"
    );
    let other = text(decode(&[], &["a"], &[DType::Float]));
    assert!(
        other.starts_with("Unexpected output type for t.M.a: int32 to DT_FLOAT"),
        "{other}"
    );
}

#[test]
fn texts_are_read_and_checked() {
    let read = |message: &str| {
        let fields = ["a", "many", "text", "f"];
        let of = [DType::Int32, DType::Int32, DType::String, DType::Float];
        let mut attrs = attrs(&fields, &of, "output_types", source("proto2"));
        attrs.push(("message_format".to_owned(), "text".into()));
        run(
            "DecodeProtoV2",
            vec![messages(&[message.as_bytes()])],
            &attrs,
        )
    };
    let out = read("a: -0x10, many: [1, 010] # ten\nmany: 3; text: 'x' \"\\141\\n\" inner { a: 5 inner <> } f: 2.5e1").unwrap();
    assert_eq!(out[1].as_slice::<i32>().unwrap(), [-16]);
    assert_eq!(out[2].as_slice::<i32>().unwrap(), [1, 8, 3]);
    assert_eq!(out[3].as_strings().unwrap(), ["xa\n"]);
    assert_eq!(out[4].as_slice::<f32>().unwrap(), [25.0]);
    for wrong in [
        "a: 1 a: 2",
        "b: 1",
        "a: x",
        "inner { a: 1",
        "a 1",
        "text: 5",
        "a: 3000000000",
    ] {
        let refused = text(read(wrong));
        assert!(
            refused.starts_with("Unable to parse text protobuf"),
            "{wrong}: {refused}"
        );
    }
}

#[test]
fn sanitized_messages_are_merged_and_zeros_of_proto3_are_gone() {
    let inner = [0x2a, 2, 0x08, 1, 0x2a, 2, 0x10, 2];
    let mut out_attrs = attrs(
        &["inner"],
        &[DType::String],
        "output_types",
        source("proto2"),
    );
    out_attrs.push(("sanitize".to_owned(), true.into()));
    let out = run("DecodeProtoV2", vec![messages(&[&inner])], &out_attrs).unwrap();
    assert_eq!(out[1].as_strings().unwrap(), [&[0x08, 1, 0x10, 2][..]]);
    let mut third = attrs(&["a"], &[DType::Int32], "output_types", source("proto3"));
    third.push(("sanitize".to_owned(), true.into()));
    let out = run("DecodeProtoV2", vec![messages(&[&[0x08, 0]])], &third).unwrap();
    assert_eq!(out[0].as_slice::<i32>().unwrap(), [0]);
}

#[test]
fn fields_are_encoded_by_their_numbers() {
    let attrs = attrs(
        &["text", "packed", "many"],
        &[DType::String, DType::Int32, DType::Int64],
        "Tinput_types",
        source("proto2"),
    );
    let sizes = Tensor::from_vec(vec![1i32, 2, 1], [1, 3]).unwrap();
    let inputs = vec![
        sizes,
        Tensor::strings(vec!["hi".into()], [1, 1]).unwrap(),
        Tensor::from_vec(vec![1i32, 2], [1, 2]).unwrap(),
        Tensor::from_vec(vec![300i64, 9], [1, 2]).unwrap(),
    ];
    let out = run("EncodeProto", inputs.clone(), &attrs).unwrap();
    let want = [0x10, 0xac, 2, 0x1a, 2, 1, 2, 0x22, 2, b'h', b'i'];
    assert_eq!(out[0].as_strings().unwrap(), [&want[..]]);
    let mut more = inputs;
    more[0] = Tensor::from_vec(vec![1i32, 3, 1], [1, 3]).unwrap();
    let refused = text(run("EncodeProto", more, &attrs));
    assert!(refused.starts_with(
        "Size to write must not be larger than value tensor; but saw: 3 > 2 at message 0 field 1"
    ));
}

#[test]
fn descriptors_that_do_not_fit_together_are_refused() {
    let with = |source: Vec<u8>| {
        let attrs = attrs(&["a"], &[DType::Int32], "output_types", source);
        text(run("DecodeProtoV2", vec![messages(&[b""])], &attrs))
    };
    assert!(with(b"bytes://\xff".to_vec()).starts_with("Source does not represent"));
    assert!(with(b"/no/such/file".to_vec()).starts_with("Source does not represent"));
    assert!(with(b"bytes://".to_vec()).starts_with("No descriptor found for message type t.M"));
    let mut broken = source("proto2");
    let at = broken
        .windows(3)
        .position(|w| w == [b'M', b'2', 1])
        .unwrap_or(0);
    assert_eq!(at, 0);
    // The type of `inner` is made one that is not there.
    let at = broken
        .windows(3)
        .rposition(|w| w == [0x32, 1, b'M'])
        .unwrap();
    broken[at + 2] = b'N';
    assert!(with(broken).starts_with("Failed to load FileDescriptorProto: name: \"t.proto\""));
}

#[test]
fn examples_are_known_without_descriptors() {
    let attrs = [
        ("message_type", "tensorflow.Example".into()),
        ("field_names", strings(&["features"])),
        ("output_types", types(&[DType::String])),
    ];
    let out = run_op("DecodeProtoV2", vec![messages(&[&[0x0a, 1, 7]])], &attrs).unwrap();
    assert_eq!(out[1].as_strings().unwrap(), [&[7][..]]);
}
