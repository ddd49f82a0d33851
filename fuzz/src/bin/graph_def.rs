//! GraphDef bytes → decoded within a budget → checked graph.

use bytes::Bytes;
use downpour_graph::Graph;
use downpour_wire::codec::ServiceMessage;
use downpour_wire::{Budget, Meter, decode_graph, encode_graph, proto};
use std::process::ExitCode;

fn main() -> ExitCode {
    let seeds = downpour_fuzz::files("crates/wire/tests/fixtures", |n| n.ends_with(".pb"));
    let budget = Budget {
        tensor_bytes: 64 << 20,
        ..Budget::default()
    };
    downpour_fuzz::fuzz("graph_def", seeds, |input| {
        let bytes = Bytes::copy_from_slice(input);
        let Ok(message) = proto::GraphDef::from_wire(bytes, &budget) else {
            return;
        };
        let Ok(def) = decode_graph(message, &mut Meter::from(&budget)) else {
            return;
        };
        let Ok(graph) = Graph::new(def) else { return };
        assert!(
            encode_graph(&graph).is_ok(),
            "a checked graph can be written again"
        );
    })
}
