//! `.meta` files: bytes → a meta graph → its variables and queue runners.

use downpour_formats::meta_graph::{
    Collection, MetaGraph, QueueRunnerDef, SaverDef, SliceDef, VariableDef,
};
use std::collections::BTreeMap;
use std::process::ExitCode;

/// A file with something of everything.
fn seed() -> Vec<u8> {
    let variable = VariableDef {
        variable: "w:0".to_owned(),
        slice: Some(SliceDef {
            full_name: "whole".to_owned(),
            full_shape: vec![4],
            offset: vec![2],
            shape: vec![2],
        }),
        ..Default::default()
    };
    let runner = QueueRunnerDef {
        enqueue: vec!["put".to_owned()],
        ..Default::default()
    };
    let collections = [
        ("variables", Collection::Bytes(vec![variable.encode()])),
        ("queue_runners", Collection::Bytes(vec![runner.encode()])),
        ("train_op", Collection::Nodes(vec!["train".to_owned()])),
        ("ints", Collection::Ints(vec![1, -2])),
    ];
    let collections = collections.map(|(name, c)| (name.to_owned(), c));
    let meta = MetaGraph {
        saver: Some(SaverDef::default()),
        collections: BTreeMap::from(collections),
        ..Default::default()
    };
    meta.encode().unwrap_or_default()
}

fn main() -> ExitCode {
    downpour_fuzz::fuzz("meta_graph", vec![seed()], |input| {
        let Ok(meta) = MetaGraph::decode(input.to_vec()) else {
            return;
        };
        for collection in meta.collections.values() {
            if let Collection::Bytes(members) = collection {
                for member in members {
                    let _ = VariableDef::decode(member);
                    let _ = QueueRunnerDef::decode(member);
                }
            }
        }
        assert!(meta.encode().is_ok(), "what was read can be written again");
    })
}
