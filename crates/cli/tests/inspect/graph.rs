//! Graphs: what they are made of, and drawings that any viewer can open.

use crate::streams::framed;
use crate::{json, refused, text};
use std::path::Path;

/// A graph that TensorFlow wrote.
fn graph() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../wire/tests/fixtures/graph.pb");
    path.to_str().unwrap().to_owned()
}

#[test]
fn figures_add_up() {
    let found = json(&["graph", &graph()], 0);
    assert_eq!(found["kind"], "GraphDef");
    let one = &found["graphs"][0];
    let sum = |list: &str, field: &str| -> u64 {
        let each = one[list].as_array().unwrap().iter();
        each.map(|entry| entry[field].as_u64().unwrap()).sum()
    };
    let nodes = one["nodes"].as_u64().unwrap();
    assert!(nodes > 0);
    assert_eq!(sum("ops", "count"), nodes);
    assert_eq!(sum("devices", "nodes"), nodes);
    assert_eq!(sum("variables", "bytes"), one["parameter_bytes"]);
    let told = text(&["graph", &graph(), "--limit", "1"], 0);
    assert!(told.contains("--limit 0 shows all"), "{told}");
}

#[test]
fn text_and_binary_say_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("graph.pbtxt");
    let text = r#"
        node { name: "a/w" op: "VariableV2" device: "/job:ps/task:0"
               attr { key: "dtype" value { type: DT_FLOAT } }
               attr { key: "shape" value { shape { dim { size: 3 } dim { size: 4 } } } } }
        node { name: "b" op: "Identity" input: "a/w" input: "^a/w" }
        versions { producer: 26 }"#;
    std::fs::write(&path, text).unwrap();
    // A directory with such a file stands for it.
    for path in [path.as_path(), dir.path()] {
        let found = json(&["graph", path.to_str().unwrap()], 0);
        let one = &found["graphs"][0];
        assert_eq!(
            (&one["parameters"], &one["parameter_bytes"]),
            (&12.into(), &48.into())
        );
        assert_eq!(
            (&one["edges"], &one["control_edges"]),
            (&1.into(), &1.into())
        );
    }
    std::fs::write(&path, "node {\n name: 5 }").unwrap();
    let why = refused(&["graph", path.to_str().unwrap()], 2);
    assert!(why.contains("line 2: expected a quoted string"), "{why}");
}

#[test]
fn drawings_are_written_where_asked() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("g.svg");
    let told = text(&["graph", &graph(), "--svg", path.to_str().unwrap()], 0);
    assert!(told.contains("boxes for"), "{told}");
    let drawn = std::fs::read_to_string(&path).unwrap();
    assert!(drawn.starts_with("<svg ") && drawn.trim_end().ends_with("</svg>"));
    assert_eq!(text(&["graph", &graph(), "--svg", "-"], 0), drawn);
    let dot = text(&["graph", &graph(), "--dot", "-", "--depth", "1"], 0);
    assert!(dot.starts_with("digraph") && dot.trim_end().ends_with('}'));
    let why = refused(&["graph", &graph(), "--svg", "/nowhere/g.svg"], 2);
    assert!(why.starts_with("cannot write '/nowhere/g.svg'"), "{why}");
    refused(&["graph", &graph(), "--svg", "-", "--depth", "0"], 2);
    refused(&["graph", &graph(), "--scope", "no_such_scope"], 2);
    refused(&["graph", &graph(), "--function", "no_such_function"], 2);
}

/// An event file that holds a graph, as a training leaves it.
fn event_file(graph: &[u8]) -> Vec<u8> {
    let version = b"\x09\0\0\0\0\0\0\xf0\x3f\x1a\x0dbrain.Event:2";
    let mut event = b"\x09\0\0\0\0\0\0\xf0\x3f\x22".to_vec();
    let mut length = graph.len();
    while length >= 128 {
        event.push(length as u8 | 128);
        length >>= 7;
    }
    event.push(length as u8);
    event.extend(graph);
    [framed(version), framed(&event)].concat()
}

#[test]
fn several_event_files_or_their_folder_stand_for_the_graph_in_them() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = event_file(&std::fs::read(graph()).unwrap());
    let files = [1, 2].map(|i| {
        let path = dir.path().join(format!("events.out.tfevents.{i}.host"));
        std::fs::write(&path, &bytes).unwrap();
        path.to_str().unwrap().to_owned()
    });
    let wanted = &json(&["graph", &graph()], 0)["graphs"][0]["nodes"];
    for paths in [
        vec![files[0].as_str()],
        vec![files[0].as_str(), files[1].as_str()],
        vec![dir.path().to_str().unwrap()],
    ] {
        let found = json(&[&["graph"], &paths[..]].concat(), 0);
        assert_eq!(&found["graphs"][0]["nodes"], wanted, "{paths:?}");
    }
}
