//! What each task gets of a small graph, as text: one line a node, in the order in which they were added.

use super::*;
use downpour_graph::{GraphDef, NodeDef};

/// A graph of lines `name op device inputs…`; `^name` waits.
fn graph(text: &str) -> Graph {
    let node = |line: &str| {
        let mut words = line.split_whitespace().map(str::to_owned);
        let mut word = || words.next().unwrap();
        let mut def = NodeDef {
            name: word(),
            op: word(),
            device: device(&word()),
            ..Default::default()
        };
        def.inputs = words.collect();
        match def.op.as_str() {
            "NoOp" => {}
            "VariableV2" | "Placeholder" => {
                def.attrs.set("dtype", DType::Float);
                def.attrs
                    .set("shape", downpour_tensor::PartialShape::unknown());
            }
            "AssignAdd" | "Identity" | "Add" | "Merge" => def.attrs.set("T", DType::Float),
            other => panic!("no attributes known for {other}"),
        }
        if def.op == "Merge" {
            def.attrs.set("N", def.inputs.len() as i64);
        }
        def
    };
    let nodes = text.lines().map(str::trim).filter(|l| !l.is_empty());
    Graph::new(GraphDef {
        nodes: nodes.map(node).collect(),
        ..Default::default()
    })
    .unwrap()
}

fn device(task: &str) -> String {
    format!("/job:{task}/replica:0/task:0/device:CPU:0")
}

/// The parts of a graph over tasks `ps` and `worker`; nodes that were added are named by what they transfer.
fn parts(text: &str) -> String {
    let devices: Vec<DeviceRef> = ["ps", "worker"]
        .into_iter()
        .enumerate()
        .map(|(task, name)| DeviceRef {
            name: device(name).into(),
            incarnation: 7,
            task,
            pushes: true,
        })
        .collect();
    let mut out = String::new();
    for part in partition(&graph(text), &devices, &mut 0).unwrap() {
        let graph = &part.graph;
        let name = |id: NodeId| match graph.node(id).op_name() {
            "_Send" | "_Recv" => graph.node(id).attrs.str("tensor_name").unwrap().to_owned(),
            _ => graph.node(id).name.to_string(),
        };
        for (id, node) in graph.nodes() {
            let inputs = node.inputs.iter().map(|e| name(e.node));
            let waits = node.control_inputs.iter().map(|c| format!("^{}", name(*c)));
            let inputs: Vec<String> = inputs.chain(waits).collect();
            let (task, op) = (["ps", "worker"][part.task], node.op_name());
            out += &format!("{task}: {} = {op}({})\n", name(id), inputs.join(", "));
        }
    }
    out
}

#[test]
fn a_reference_is_sent_once_everything_else_that_its_reader_waits_for_has_happened() {
    // The update is on the sender's own task: nothing more travels.
    assert_eq!(
        parts(
            "one Placeholder ps
             v VariableV2 ps
             update AssignAdd ps v one
             read Identity worker v ^update"
        ),
        "ps: one = Placeholder()\n\
         ps: v = VariableV2()\n\
         ps: update = AssignAdd(v, one)\n\
         ps: edge_0_v = _Send(v, ^update)\n\
         ps: update/ctrl_S2 = Const(^update)\n\
         ps: edge_3_update = _Send(update/ctrl_S2)\n\
         worker: read = Identity(edge_0_v, ^update/ctrl_S5)\n\
         worker: edge_0_v = _Recv()\n\
         worker: edge_3_update = _Recv()\n\
         worker: update/ctrl_S5 = Identity(edge_3_update)\n"
    );
    // What happened on the reader's task is told to the sender first.
    let told = parts(
        "one Placeholder ps
         v VariableV2 ps
         w VariableV2 worker
         other AssignAdd worker w one
         read Identity worker v ^other",
    );
    assert!(
        told.contains("edge_3_other = _Send(other/ctrl_S2)"),
        "{told}"
    );
    assert!(
        told.contains("ps: edge_6_v = _Send(v, ^other/ctrl_S5)"),
        "{told}"
    );
}

#[test]
fn a_value_waits_for_nothing_and_a_reader_of_feeds_alone_makes_no_reference_wait() {
    // `Identity` on the ps has read the variable: what follows is a value.
    let value = parts(
        "one Placeholder ps
         v VariableV2 ps
         snapshot Identity ps v
         update AssignAdd ps v one
         read Identity worker snapshot ^update",
    );
    assert!(
        value.contains("ps: edge_0_snapshot = _Send(snapshot)\n"),
        "{value}"
    );
    let fed = parts(
        "x Placeholder worker
         v VariableV2 ps
         a Add worker x v
         b Add worker v x",
    );
    // One transfer serves both readers.
    assert_eq!(fed.matches("_Send(v)").count(), 1, "{fed}");
    // Once an input is ordered after an effect, so is the read, and readers that wait for different things read apart.
    let ordered = parts(
        "x Placeholder worker
         w VariableV2 worker
         y AssignAdd worker w x
         v VariableV2 ps
         a Add worker y v
         b Add worker x v",
    );
    assert_eq!(ordered.matches("_Send(v)").count(), 1, "{ordered}");
    assert_eq!(ordered.matches("_Send(v, ^y/ctrl").count(), 1, "{ordered}");
}

#[test]
fn a_merge_reads_a_reference_without_waiting_for_its_other_input() {
    let merged = parts(
        "x Placeholder worker
         w VariableV2 worker
         y AssignAdd worker w x
         v VariableV2 ps
         m Merge worker y v",
    );
    assert!(merged.contains("_Send(v)\n"), "{merged}");
}

#[test]
fn edges_are_numbered_by_the_task_that_receives_them() {
    let text = "v VariableV2 ps
         w VariableV2 ps
         sum Add worker v w
         add AssignAdd ps v sum";
    for (pushes, expected) in [
        (
            true,
            "ps: 0 _Recv, 0 _Send, 1 _Send\nworker: 0 _Recv, 0 _Send, 1 _Recv",
        ),
        (false, "ps: \nworker: "),
    ] {
        let devices = [(0, "ps"), (1, "worker")].map(|(task, name)| DeviceRef {
            name: device(name).into(),
            incarnation: 7,
            task,
            pushes,
        });
        let mut numbers = Vec::new();
        for part in partition(&graph(text), &devices, &mut 0).unwrap() {
            let edges = part.graph.nodes().filter_map(|(_, node)| {
                let number = node.attrs.int("_edge").ok()?;
                Some(format!("{number} {}", node.op_name()))
            });
            let mut edges: Vec<String> = edges.collect();
            edges.sort();
            numbers.push(format!(
                "{}: {}",
                ["ps", "worker"][part.task],
                edges.join(", ")
            ));
        }
        numbers.sort();
        assert_eq!(numbers.join("\n"), expected);
    }
}
