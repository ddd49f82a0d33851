//! `.meta` files beside checkpoints: a `MetaGraphDef`, which is a graph with the names that a
//! program needs to go on with it: its saver's, its variables', its collections'.
//!
//! A file is taken for hostile: its graph is paid from a budget, and the rest is never larger in
//! memory than a small multiple of the file.

use crate::storage::{Storage, read_bounded};
use bytes::Bytes;
use downpour_graph::{Code, GraphDef, Result, Status};
use downpour_wire::MessageBytes as _;
use downpour_wire::{Budget, Meter, decode_graph, encode_graph_def, proto};
use std::collections::BTreeMap;

/// The largest message that protobuf can hold.
const LIMIT: usize = i32::MAX as usize;

/// TensorFlow's version, as it writes it itself; readers show it and nothing else.
const VERSION: &str = "2.21.0";

/// A graph with what is known of it beside its nodes.
#[derive(Clone, Debug, Default)]
pub struct MetaGraph {
    /// The graph.
    pub graph: GraphDef,
    /// What saves and restores its variables, if something does.
    pub saver: Option<SaverDef>,
    /// What else is known, by name.
    pub collections: BTreeMap<String, Collection>,
}

/// The operations of a saver, and how it keeps checkpoints.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SaverDef {
    /// The tensor that is fed a checkpoint's name.
    pub filename: String,
    /// The tensor whose value is wanted to save; it is the checkpoint's name.
    pub save: String,
    /// The operation that restores.
    pub restore: String,
    /// How many checkpoints stay; 0 keeps all.
    pub max_to_keep: i32,
    /// Whether each device writes its own part.
    pub sharded: bool,
    /// For each such time one checkpoint stays for good.
    pub keep_every_hours: f32,
}

/// What a collection holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Collection {
    /// Names of tensors and operations.
    Nodes(Vec<String>),
    /// Messages, of a kind that the collection's name tells.
    Bytes(Vec<Bytes>),
    /// Whole numbers.
    Ints(Vec<i64>),
    /// Numbers.
    Floats(Vec<f32>),
    /// Messages of kinds that each of them names.
    Any(Vec<(String, Bytes)>),
}

/// A variable: the names of what it is made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VariableDef {
    /// Its handle, a tensor.
    pub variable: String,
    /// The operation that gives it its first value.
    pub initializer: String,
    /// A tensor that is its value.
    pub snapshot: String,
    /// The tensor that is its first value.
    pub initial_value: String,
    /// Which part of a larger whole it is, if it is one.
    pub slice: Option<SliceDef>,
    /// Whether it is a resource, as all new variables are.
    pub is_resource: bool,
    /// Whether optimizers change it.
    pub trainable: bool,
    /// Whether only one of several replicas changes it, as with the count of steps.
    pub only_first_replica: bool,
}

/// A part of a larger variable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SliceDef {
    /// Name of the whole.
    pub full_name: String,
    /// Shape of the whole.
    pub full_shape: Vec<i64>,
    /// Where the part begins.
    pub offset: Vec<i64>,
    /// Shape of the part.
    pub shape: Vec<i64>,
}

/// What fills a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueRunnerDef {
    /// The queue's operation.
    pub queue: String,
    /// Operations that put elements in.
    pub enqueue: Vec<String>,
    /// The operation that closes the queue.
    pub close: String,
    /// The operation that closes it also to what waits.
    pub cancel: String,
    /// Errors that mean that the data has ended.
    pub closed_by: Vec<Code>,
}

impl MetaGraph {
    /// As bytes; `RESOURCE_EXHAUSTED` if protobuf cannot hold them.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let collections = self.collections.iter();
        let message = proto::MetaGraphDef {
            meta_info_def: Some(proto::meta_graph_def::MetaInfoDef {
                tensorflow_version: VERSION.to_owned(),
                ..Default::default()
            }),
            graph_def: Some(encode_graph_def(&self.graph)?),
            saver_def: self.saver.as_ref().map(SaverDef::encode),
            collection_def: collections
                .map(|(name, c)| (name.clone(), c.encode()))
                .collect(),
            ..Default::default()
        };
        let size = message.byte_len();
        if size > LIMIT {
            return Err(Status::resource_exhausted(format!(
                "a meta graph of {size} bytes is larger than a message can be"
            )));
        }
        Ok(message.to_bytes())
    }

    /// From bytes.
    pub fn decode(data: impl Into<Bytes>) -> Result<MetaGraph> {
        let message = proto::MetaGraphDef::from_bytes(data.into())
            .map_err(|e| Status::data_loss(format!("this is no meta graph: {e}")))?;
        let mut meter = Meter::from(&Budget::default());
        let collections = message.collection_def.into_iter();
        Ok(MetaGraph {
            graph: decode_graph(message.graph_def.unwrap_or_default(), &mut meter)?,
            saver: message.saver_def.map(SaverDef::decode),
            collections: collections
                .filter_map(|(name, c)| Some((name, Collection::decode(c.kind?))))
                .collect(),
        })
    }

    /// Reads a file.
    pub fn read(storage: &dyn Storage, path: &str) -> Result<MetaGraph> {
        MetaGraph::decode(read_bounded(storage, path, LIMIT as u64)?)
    }

    /// Writes a file, which is there as a whole or not at all.
    pub fn write(&self, storage: &dyn Storage, path: &str) -> Result<()> {
        let data = self.encode()?;
        let mut file = storage.create(path)?;
        file.write(&data)?;
        file.publish()
    }
}

impl SaverDef {
    fn encode(&self) -> proto::SaverDef {
        proto::SaverDef {
            filename_tensor_name: self.filename.clone(),
            save_tensor_name: self.save.clone(),
            restore_op_name: self.restore.clone(),
            max_to_keep: self.max_to_keep,
            sharded: self.sharded,
            keep_checkpoint_every_n_hours: self.keep_every_hours,
            version: proto::saver_def::CheckpointFormatVersion::V2.into(),
        }
    }

    fn decode(message: proto::SaverDef) -> SaverDef {
        SaverDef {
            filename: message.filename_tensor_name,
            save: message.save_tensor_name,
            restore: message.restore_op_name,
            max_to_keep: message.max_to_keep,
            sharded: message.sharded,
            keep_every_hours: message.keep_checkpoint_every_n_hours,
        }
    }
}

impl Collection {
    fn encode(&self) -> proto::CollectionDef {
        use proto::collection_def as def;
        let kind = match self {
            Collection::Nodes(value) => def::Kind::NodeList(def::NodeList {
                value: value.clone(),
            }),
            Collection::Bytes(value) => def::Kind::BytesList(def::BytesList {
                value: value.clone(),
            }),
            Collection::Ints(value) => def::Kind::Int64List(def::Int64List {
                value: value.clone(),
            }),
            Collection::Floats(value) => def::Kind::FloatList(def::FloatList {
                value: value.clone(),
            }),
            Collection::Any(value) => {
                let any = |(type_url, value): &(String, Bytes)| proto::Any {
                    type_url: type_url.clone(),
                    value: value.clone(),
                };
                def::Kind::AnyList(def::AnyList {
                    value: value.iter().map(any).collect(),
                })
            }
        };
        proto::CollectionDef { kind: Some(kind) }
    }

    fn decode(kind: proto::collection_def::Kind) -> Collection {
        use proto::collection_def::Kind;
        match kind {
            Kind::NodeList(list) => Collection::Nodes(list.value),
            Kind::BytesList(list) => Collection::Bytes(list.value),
            Kind::Int64List(list) => Collection::Ints(list.value),
            Kind::FloatList(list) => Collection::Floats(list.value),
            Kind::AnyList(list) => {
                let each = list.value.into_iter();
                Collection::Any(each.map(|any| (any.type_url, any.value)).collect())
            }
        }
    }
}

impl VariableDef {
    /// As an element of a collection.
    pub fn encode(&self) -> Bytes {
        use proto::VariableAggregation::{None, OnlyFirstReplica};
        let aggregation = match self.only_first_replica {
            true => OnlyFirstReplica,
            false => None,
        };
        let slice = self.slice.as_ref().map(|slice| proto::SaveSliceInfoDef {
            full_name: slice.full_name.clone(),
            full_shape: slice.full_shape.clone(),
            var_offset: slice.offset.clone(),
            var_shape: slice.shape.clone(),
        });
        let message = proto::VariableDef {
            variable_name: self.variable.clone(),
            initializer_name: self.initializer.clone(),
            snapshot_name: self.snapshot.clone(),
            initial_value_name: self.initial_value.clone(),
            save_slice_info_def: slice,
            is_resource: self.is_resource,
            trainable: self.trainable,
            aggregation: aggregation.into(),
            ..Default::default()
        };
        message.to_bytes().into()
    }

    /// From an element of a collection.
    pub fn decode(data: &Bytes) -> Result<VariableDef> {
        let message = proto::VariableDef::from_bytes(data.clone())
            .map_err(|e| Status::data_loss(format!("this is no variable: {e}")))?;
        let only_first = proto::VariableAggregation::OnlyFirstReplica;
        Ok(VariableDef {
            only_first_replica: message.aggregation() == only_first,
            variable: message.variable_name,
            initializer: message.initializer_name,
            snapshot: message.snapshot_name,
            initial_value: message.initial_value_name,
            slice: message.save_slice_info_def.map(|slice| SliceDef {
                full_name: slice.full_name,
                full_shape: slice.full_shape,
                offset: slice.var_offset,
                shape: slice.var_shape,
            }),
            is_resource: message.is_resource,
            trainable: message.trainable,
        })
    }
}

impl QueueRunnerDef {
    /// As an element of a collection.
    pub fn encode(&self) -> Bytes {
        let message = proto::QueueRunnerDef {
            queue_name: self.queue.clone(),
            enqueue_op_name: self.enqueue.clone(),
            close_op_name: self.close.clone(),
            cancel_op_name: self.cancel.clone(),
            queue_closed_exception_types: self.closed_by.iter().map(|c| *c as i32).collect(),
        };
        message.to_bytes().into()
    }

    /// From an element of a collection.
    pub fn decode(data: &Bytes) -> Result<QueueRunnerDef> {
        let message = proto::QueueRunnerDef::from_bytes(data.clone())
            .map_err(|e| Status::data_loss(format!("this is no queue runner: {e}")))?;
        let codes = message.queue_closed_exception_types.iter();
        Ok(QueueRunnerDef {
            queue: message.queue_name,
            enqueue: message.enqueue_op_name,
            close: message.close_op_name,
            cancel: message.cancel_op_name,
            closed_by: codes.map(|c| Code::from_number(*c)).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::LocalStorage;
    use crate::testing::TempDir;
    use downpour_graph::NodeDef;

    fn example() -> MetaGraph {
        let node = NodeDef {
            name: "n".into(),
            op: "NoOp".into(),
            ..Default::default()
        };
        let variable = VariableDef {
            variable: "w:0".to_owned(),
            slice: Some(SliceDef {
                full_name: "whole".to_owned(),
                full_shape: vec![4, 2],
                offset: vec![2, 0],
                shape: vec![2, 2],
            }),
            only_first_replica: true,
            ..Default::default()
        };
        let runner = QueueRunnerDef {
            queue: "q".to_owned(),
            enqueue: vec!["put".to_owned()],
            closed_by: vec![Code::OutOfRange],
            ..Default::default()
        };
        let collections = [
            ("nodes", Collection::Nodes(vec!["n".to_owned()])),
            ("variables", Collection::Bytes(vec![variable.encode()])),
            ("queue_runners", Collection::Bytes(vec![runner.encode()])),
            ("ints", Collection::Ints(vec![1, -2])),
            ("floats", Collection::Floats(vec![0.5])),
            (
                "any",
                Collection::Any(vec![("t".to_owned(), Bytes::from_static(b"v"))]),
            ),
        ];
        MetaGraph {
            graph: GraphDef {
                nodes: vec![node],
                ..Default::default()
            },
            saver: Some(SaverDef {
                filename: "f:0".to_owned(),
                max_to_keep: 5,
                sharded: true,
                ..Default::default()
            }),
            collections: collections.map(|(n, c)| (n.to_owned(), c)).into(),
        }
    }

    #[test]
    fn files_hold_all_of_a_meta_graph() {
        let (dir, storage) = (TempDir::new(), LocalStorage::new());
        let (path, meta) = (dir.file("m.meta"), example());
        meta.write(&storage, &path).unwrap();
        let back = MetaGraph::read(&storage, &path).unwrap();
        assert_eq!(back.graph.nodes[0].name, "n");
        assert_eq!(
            (&back.saver, &back.collections),
            (&meta.saver, &meta.collections)
        );
        let Collection::Bytes(variables) = &back.collections["variables"] else {
            panic!("no variables");
        };
        let variable = VariableDef::decode(&variables[0]).unwrap();
        assert!(variable.only_first_replica && !variable.trainable);
        assert_eq!(variable.slice.unwrap().offset, [2, 0]);
        let Collection::Bytes(runners) = &back.collections["queue_runners"] else {
            panic!("no runners");
        };
        let runner = QueueRunnerDef::decode(&runners[0]).unwrap();
        assert_eq!(runner.closed_by, [Code::OutOfRange]);
    }

    #[test]
    fn a_torn_file_is_an_error_at_every_byte_or_a_smaller_graph() {
        let whole = example().encode().unwrap();
        for cut in 0..whole.len() {
            // Fields that are missing altogether are as if they were empty.
            let _ = MetaGraph::decode(whole[..cut].to_vec());
        }
        assert!(MetaGraph::decode(b"\xff\xff".to_vec()).is_err());
        assert!(VariableDef::decode(&Bytes::from_static(b"\xff")).is_err());
        assert!(QueueRunnerDef::decode(&Bytes::from_static(b"\xff")).is_err());
    }
}
