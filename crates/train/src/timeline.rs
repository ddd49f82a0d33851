//! What a traced step did, as a picture: the JSON that Chrome's trace viewer and Perfetto open,
//! drawn as TensorFlow's `timeline` draws it.

use downpour_wire::messages::{NodeExecStats, StepStats};
use serde_json::{Value, json};
use std::collections::HashMap;

/// The trace of a step, with arrows from each tensor's producer to its consumers on other threads.
///
/// ```
/// use downpour_train::chrome_trace;
/// use downpour_wire::messages::{DeviceStepStats, NodeExecStats, StepStats};
/// let node = NodeExecStats {
///     node_name: "sum".to_owned(),
///     timeline_label: "sum = Add(a, b)".to_owned(),
///     all_start_nanos: 5_000,
///     all_end_rel_nanos: 2_000,
///     ..Default::default()
/// };
/// let device = DeviceStepStats { device: "/cpu:0".to_owned(), nodes: vec![node], ..Default::default() };
/// let trace = chrome_trace(&StepStats { devices: vec![device] });
/// assert!(trace.contains(r#""name":"Add""#) && trace.contains("/cpu:0 Compute"), "{trace}");
/// ```
pub fn chrome_trace(stats: &StepStats) -> String {
    let mut events = Vec::new();
    let mut made: HashMap<&str, Origin> = HashMap::new();
    for (pid, device) in stats.devices.iter().enumerate() {
        events.push(json!({
            "name": "process_name", "ph": "M", "pid": pid,
            "args": {"name": format!("{} Compute", device.device)},
        }));
        for (tid, name) in &device.thread_names {
            events.push(json!({
                "name": "thread_name", "ph": "M", "pid": pid, "tid": tid, "args": {"name": name},
            }));
        }
        for node in &device.nodes {
            let origin = Origin {
                time: micros(node.all_start_nanos + node.all_end_rel_nanos),
                pid,
                tid: node.thread_id,
            };
            made.insert(node.node_name.as_str(), origin);
        }
    }
    let mut flows = 0;
    for (pid, device) in stats.devices.iter().enumerate() {
        for node in &device.nodes {
            let (op, inputs) = read_label(node);
            events.push(region(node, pid, op, &inputs));
            for input in inputs {
                let producer = input.split(':').next().unwrap_or(input);
                let Some(from) = made.get(producer) else {
                    continue;
                };
                if (from.pid, from.tid) == (pid, node.thread_id) {
                    continue;
                }
                events.extend(arrow(input, flows, from, node, pid));
                flows += 1;
            }
        }
    }
    json!({ "traceEvents": events }).to_string()
}

/// Where and when a tensor was made.
struct Origin {
    time: f64,
    pid: usize,
    tid: u32,
}

/// The viewer counts in microseconds.
fn micros(nanos: i64) -> f64 {
    nanos as f64 / 1000.0
}

/// Op and data inputs of a label `name = op(input, input)`.
fn read_label(node: &NodeExecStats) -> (&str, Vec<&str>) {
    let parts = node.timeline_label.split_once(" = ");
    let parts = parts.and_then(|(_, call)| call.strip_suffix(')')?.split_once('('));
    match parts {
        Some((op, inputs)) => {
            let inputs = inputs.split(", ").filter(|i| !i.is_empty());
            (op, inputs.filter(|i| !i.starts_with('^')).collect())
        }
        // Transfers between tasks are labelled by what they carried.
        None if node.node_name == "RecvTensor" => ("RecvTensor", Vec::new()),
        None => ("unknown", Vec::new()),
    }
}

/// The bar of one node.
fn region(node: &NodeExecStats, pid: usize, op: &str, inputs: &[&str]) -> Value {
    let mut args = serde_json::Map::new();
    args.insert("name".to_owned(), json!(node.node_name));
    args.insert("op".to_owned(), json!(op));
    for (i, input) in inputs.iter().enumerate() {
        args.insert(format!("input{i}"), json!(input));
    }
    if op == "RecvTensor" {
        args.insert("label".to_owned(), json!(node.timeline_label));
    }
    json!({
        "ph": "X", "cat": "Op", "name": op, "pid": pid, "tid": node.thread_id,
        "ts": micros(node.all_start_nanos), "dur": micros(node.all_end_rel_nanos), "args": args,
    })
}

/// The arrow from a tensor's producer to a consumer.
fn arrow(name: &str, id: u64, from: &Origin, to: &NodeExecStats, pid: usize) -> [Value; 2] {
    [
        json!({
            "ph": "s", "cat": "DataFlow", "name": name, "id": id,
            "pid": from.pid, "tid": from.tid, "ts": from.time,
        }),
        json!({
            "ph": "t", "cat": "DataFlow", "name": name, "id": id,
            "pid": pid, "tid": to.thread_id, "ts": micros(to.all_start_nanos),
        }),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use downpour_wire::messages::DeviceStepStats;

    fn node(label: &str, thread_id: u32, start: i64) -> NodeExecStats {
        NodeExecStats {
            node_name: label.split(' ').next().unwrap().to_owned(),
            timeline_label: label.to_owned(),
            all_start_nanos: start,
            all_end_rel_nanos: 10,
            thread_id,
            ..Default::default()
        }
    }

    #[test]
    fn arrows_join_threads_and_devices_but_not_a_thread_with_itself() {
        let device = |device: &str, nodes| DeviceStepStats {
            device: device.to_owned(),
            nodes,
            ..Default::default()
        };
        let stats = StepStats {
            devices: vec![
                device(
                    "a",
                    vec![node("x = Const()", 1, 0), node("y = Neg(x)", 1, 20)],
                ),
                device("b", vec![node("z = Add(x:0, y, ^x)", 1, 40)]),
            ],
        };
        let trace: Value = serde_json::from_str(&chrome_trace(&stats)).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let of = |ph: &str| events.iter().filter(|e| e["ph"] == ph).count();
        assert_eq!((of("M"), of("X"), of("s"), of("t")), (2, 3, 2, 2));
        let z = events.iter().find(|e| e["args"]["name"] == "z").unwrap();
        assert_eq!(
            (&z["name"], &z["args"]["input1"]),
            (&json!("Add"), &json!("y"))
        );
        assert!(z["args"]["input2"].is_null(), "a control input is no data");
    }

    #[test]
    fn a_label_that_says_nothing_is_unknown() {
        let stats = StepStats {
            devices: vec![DeviceStepStats {
                nodes: vec![node("no label", 0, 0)],
                ..Default::default()
            }],
        };
        assert!(chrome_trace(&stats).contains("\"op\":\"unknown\""));
    }
}
