//! The messages in snapshots of datasets, which `formats` reads and writes: TensorFlow's `snapshot.proto`.

use crate::proto::{TensorProto, TensorShapeProto};
use prost::Message;

/// What a snapshot says of itself.
#[derive(Clone, PartialEq, Message)]
pub struct Metadata {
    /// Of the pipeline that was written.
    #[prost(string, tag = "1")]
    pub graph_hash: String,
    /// The folder that holds the elements.
    #[prost(string, tag = "2")]
    pub run_id: String,
    /// Microseconds since 1970.
    #[prost(int64, tag = "3")]
    pub creation_timestamp: i64,
    /// Of the files.
    #[prost(int64, tag = "4")]
    pub version: i64,
    /// Types of the components, by TensorFlow's numbers.
    #[prost(int32, repeated, tag = "5")]
    pub dtype: Vec<i32>,
    /// How many elements there are.
    #[prost(int64, tag = "6")]
    pub num_elements: i64,
    /// Whether all of them are there.
    #[prost(bool, tag = "1000")]
    pub finalized: bool,
}

/// The components of an element.
#[derive(Clone, PartialEq, Message)]
pub struct Record {
    /// Each as a message.
    #[prost(message, repeated, tag = "1")]
    pub tensor: Vec<TensorProto>,
}

/// What is told of the components before a block that holds them.
#[derive(Clone, PartialEq, Message)]
pub struct Sizes {
    /// One for each component.
    #[prost(message, repeated, tag = "1")]
    pub tensor_metadata: Vec<Size>,
}

/// The shape of a component and its bytes within the block.
#[derive(Clone, PartialEq, Message)]
pub struct Size {
    /// Its shape.
    #[prost(message, optional, tag = "2")]
    pub tensor_shape: Option<TensorShapeProto>,
    /// How many bytes it takes.
    #[prost(int64, tag = "3")]
    pub tensor_size_bytes: i64,
}
