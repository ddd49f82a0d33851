//! Serialized `GraphDef`s outside of messages: what datasets are written down as.

use bytes::Bytes;
use downpour_graph::{GraphDef, Status};
use downpour_wire::MessageBytes as _;
use downpour_wire::{Budget, Meter, decode_graph, encode_graph_def, proto};

/// The graph as bytes.
pub fn serialize(graph: &GraphDef) -> Result<Bytes, Status> {
    Ok(encode_graph_def(graph)?.to_bytes().into())
}

/// The graph in a serialized `GraphDef`; `None` where the bytes are none.
pub fn parse(bytes: &Bytes) -> Option<Result<GraphDef, Status>> {
    let message = proto::GraphDef::from_bytes(bytes.clone()).ok()?;
    Some(decode_graph(message, &mut Meter::from(&Budget::default())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use downpour_graph::NodeDef;

    #[test]
    fn graphs_survive_and_junk_is_refused() {
        let node = NodeDef {
            name: "n".into(),
            op: "NoOp".into(),
            ..Default::default()
        };
        let graph = GraphDef {
            nodes: vec![node],
            ..Default::default()
        };
        let back = parse(&serialize(&graph).unwrap()).unwrap().unwrap();
        assert_eq!(back.nodes[0].name, "n");
        assert!(parse(&Bytes::from_static(b"junk")).is_none());
    }
}
