//! What real TensorFlow wrote (`fixtures/generate.py` made the files) must be understood, and what
//! we write instead must mean the same; broken copies of it must be refused without a panic.

use bytes::Bytes;
use downpour_graph::{Code, Graph};
use downpour_tensor::{DType, Tensor};
use downpour_wire::codec::ServiceMessage as _;
use downpour_wire::messages::{
    CreateSessionResponse, GetStatusResponse, ListDevicesResponse, RunStepResponse,
};
use downpour_wire::{
    Budget, Meter, WireMessage, decode_graph, decode_tensor, encode_graph, encode_graph_def,
    encode_tensor, proto,
};
use prost::Message as _;
use std::collections::BTreeMap;

const TENSORS: &str = include_str!("fixtures/tensors.txt");
const RESPONSES: &str = include_str!("fixtures/responses.txt");
const GRAPH: &[u8] = include_bytes!("fixtures/graph.pb");

fn from_hex(text: &str) -> Bytes {
    let digits: Vec<u8> = text
        .bytes()
        .map(|b| char::from(b).to_digit(16).expect("hex") as u8)
        .collect();
    digits.chunks(2).map(|d| d[0] << 4 | d[1]).collect()
}

fn budget() -> Budget {
    Budget::default()
}

fn response(name: &str) -> Bytes {
    let line = RESPONSES
        .lines()
        .find_map(|l| l.strip_prefix(&format!("{name}\t")));
    from_hex(line.expect("a reply of that name"))
}

fn parse_graph() -> proto::GraphDef {
    proto::GraphDef::from_wire(Bytes::from_static(GRAPH), &budget()).expect("a graph")
}

/// Bytes of a tensor whatever its type.
fn elements(tensor: &Tensor) -> String {
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    match tensor.buffer() {
        Some(buffer) => hex(buffer.as_bytes()),
        None => {
            let strings = tensor.as_strings().expect("strings");
            strings.iter().map(|s| hex(s)).collect::<Vec<_>>().join(",")
        }
    }
}

#[test]
fn every_form_of_every_type_is_read() {
    let mut seen = 0;
    for line in TENSORS.lines() {
        let columns: Vec<&str> = line.split('\t').collect();
        let [name, message, dtype, dims, expected] = columns[..] else {
            panic!("{line}");
        };
        let message = proto::TensorProto::from_wire(from_hex(message), &budget()).unwrap();
        let tensor = decode_tensor(message, &mut Meter::from(&budget())).unwrap();
        assert_eq!(tensor.dtype().number().to_string(), dtype, "{name}");
        let shape: Vec<String> = tensor.dims().iter().map(usize::to_string).collect();
        assert_eq!(shape.join(","), dims, "{name}");
        assert_eq!(elements(&tensor), expected, "{name}");
        // What we write is read as the same.
        let again = decode_tensor(encode_tensor(&tensor).unwrap(), &mut Meter::from(&budget()));
        assert_eq!(elements(&again.unwrap()), expected, "{name}");
        seen += 1;
    }
    assert!(seen > 120, "only {seen} tensors");
}

#[test]
fn a_real_graph_is_taken_over_whole() {
    let plain = decode_graph(parse_graph(), &mut Meter::from(&budget())).unwrap();
    assert!(plain.functions.len() >= 3);
    let ours = encode_graph_def(&plain).unwrap();
    let theirs = parse_graph();
    assert_eq!(ours.versions, theirs.versions);
    assert_eq!(ours.node.len(), theirs.node.len());
    for (ours, theirs) in ours.node.into_iter().zip(theirs.node) {
        assert_same_node(ours, theirs);
    }
    let sorted = |library: Option<proto::FunctionDefLibrary>| -> BTreeMap<_, _> {
        library
            .unwrap()
            .function
            .into_iter()
            .map(|f| (f.signature.clone().unwrap().name, f))
            .collect()
    };
    let (ours, theirs) = (sorted(ours.library), sorted(theirs.library));
    assert!(ours.keys().eq(theirs.keys()));
    for (ours, theirs) in ours.into_values().zip(theirs.into_values()) {
        assert_eq!(ours.signature, theirs.signature);
        assert_eq!(ours.ret, theirs.ret);
        assert_eq!(ours.control_ret, theirs.control_ret);
        assert_eq!(ours.attr, theirs.attr);
        assert_eq!(ours.arg_attr, theirs.arg_attr);
        for (ours, theirs) in ours.node_def.into_iter().zip(theirs.node_def) {
            assert_same_node(ours, theirs);
        }
    }
}

/// Equal, where tensors are equal when their elements are.
fn assert_same_node(mut ours: proto::NodeDef, mut theirs: proto::NodeDef) {
    use proto::attr_value::Value;
    for attr in ours.attr.values_mut().chain(theirs.attr.values_mut()) {
        if let Some(Value::Tensor(t)) = &mut attr.value {
            let tensor = decode_tensor(std::mem::take(t), &mut Meter::from(&budget()));
            **t = encode_tensor(&tensor.expect("a tensor")).expect("a message");
        }
    }
    assert_eq!(ours, theirs);
}

#[test]
fn a_real_graph_passes_the_checks_and_comes_back() {
    let plain = decode_graph(parse_graph(), &mut Meter::from(&budget())).unwrap();
    let graph = Graph::new(plain).unwrap();
    let back = encode_graph(&graph).unwrap();
    let inputs = |g: &proto::GraphDef| -> Vec<(String, Vec<String>)> {
        g.node
            .iter()
            .map(|n| {
                // `a:0` and `a` are the same; so is any order of control inputs.
                let mut input: Vec<String> = n
                    .input
                    .iter()
                    .map(|i| i.strip_suffix(":0").unwrap_or(i).to_owned())
                    .collect();
                input.sort_by_key(|i| i.starts_with('^').then(|| i.clone()));
                (n.name.clone(), input)
            })
            .collect()
    };
    assert_eq!(inputs(&back), inputs(&parse_graph()));
    let again = decode_graph(back, &mut Meter::from(&budget())).unwrap();
    assert_eq!(Graph::new(again).unwrap().len(), graph.len());
}

#[test]
fn replies_of_a_real_server_are_read_and_written_alike() {
    fn same<M: WireMessage>(bytes: Bytes) -> M {
        let read = || M::from_bytes(bytes.clone(), &budget()).unwrap();
        assert_eq!(read().to_bytes().unwrap(), bytes);
        read()
    }
    let session: CreateSessionResponse = same(response("CreateSession"));
    assert_eq!(session.session_handle.len(), 16);
    let devices: ListDevicesResponse = same(response("ListDevices"));
    let device = &devices.local_device[0];
    assert_eq!(device.name, "/job:localhost/replica:0/task:0/device:CPU:0");
    assert_eq!((device.memory_limit, device.xla_global_id), (1 << 28, -1));
    let status: GetStatusResponse = same(response("GetStatus"));
    assert_eq!(status.devices, devices.local_device);

    let step: RunStepResponse = same(response("RunStep"));
    let tensors: BTreeMap<_, _> = step.tensors.into_iter().collect();
    assert_eq!(tensors["q:0"].as_slice::<f32>().unwrap(), [2.0, 4.0]);
    assert_eq!(tensors["s:0"].as_strings().unwrap()[2], &b"\xff\x00"[..]);
    assert_eq!(tensors["scalar:0"].scalar_value::<i32>().unwrap(), 3);
    assert_eq!(tensors["empty:0"].dims(), [2, 0]);
    let handle = &tensors["v:0"].as_resources().unwrap()[0];
    assert_eq!(handle.name, "v");
    assert_eq!(handle.dtypes_and_shapes[0].0, DType::Float);
}

#[test]
fn a_failed_step_tells_why() {
    let failed = RunStepResponse::from_bytes(response("RunStep_error"), &budget()).unwrap();
    let error = failed.error.unwrap();
    assert_eq!(error.code, Code::InvalidArgument);
    assert!(
        error
            .message
            .contains("You must feed a value for placeholder")
    );
    let ours = RunStepResponse::reply(Err(error), true).unwrap();
    assert_eq!(ours.encode_to_vec(), response("RunStep_error"));
}

#[test]
fn a_traced_step_tells_when_and_what_ran() {
    let traced = RunStepResponse::from_bytes(response("RunStep_traced"), &budget()).unwrap();
    let stats = traced.metadata.step_stats.unwrap();
    let nodes = &stats.devices[0].nodes;
    let mul = nodes.iter().find(|n| n.node_name == "mul").unwrap();
    assert!(mul.timeline_label.starts_with("mul = Mul("));
    assert!(mul.scheduled_nanos <= mul.all_start_nanos);
    assert_eq!(mul.outputs[0].tensor.dtype, Some(DType::Float));
    let graph = &traced.metadata.partition_graphs[0];
    assert!(graph.nodes.iter().any(|n| n.op == "_Send"));
}

#[test]
fn a_truncated_graph_is_refused_or_smaller() {
    for end in 0..GRAPH.len() {
        let bytes = Bytes::from_static(&GRAPH[..end]);
        if let Ok(graph) = proto::GraphDef::from_wire(bytes, &budget()) {
            // The cut was between two nodes.
            assert!(graph.node.len() <= parse_graph().node.len());
            let _ = decode_graph(graph, &mut Meter::from(&budget()));
        }
    }
}

#[test]
fn damaged_messages_never_panic() {
    // A fixed sequence, so that a failure can be repeated.
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as usize
    };
    // Small enough that no damage can make the test slow.
    let budget = Budget {
        tensor_bytes: 1 << 20,
        elements: 1 << 12,
        ..Budget::default()
    };
    let replies: Vec<Bytes> = RESPONSES
        .lines()
        .filter(|l| l.starts_with("RunStep"))
        .map(|l| from_hex(l.split('\t').nth(1).unwrap()))
        .collect();
    let (mut read, mut refused) = (0, 0);
    for _ in 0..3000 {
        let mut bytes = GRAPH.to_vec();
        let mut reply = replies[random() % replies.len()].to_vec();
        for _ in 0..=random() % 4 {
            let (i, j) = (random() % bytes.len(), random() % reply.len());
            bytes[i] = random() as u8;
            reply[j] = random() as u8;
        }
        let graph = proto::GraphDef::from_wire(bytes.into(), &budget)
            .and_then(|g| decode_graph(g, &mut Meter::from(&budget)))
            .and_then(Graph::new);
        let step = RunStepResponse::from_bytes(reply.into(), &budget);
        for outcome in [graph.is_ok(), step.is_ok()] {
            if outcome {
                read += 1;
            } else {
                refused += 1;
            }
        }
    }
    assert!(read > 0 && refused > 0);
}
