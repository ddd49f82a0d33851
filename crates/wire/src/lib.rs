//! The border: bytes of TensorFlow's protocol in, checked values out, and back.
//!
//! No other crate sees protobuf, except where a service trait of [`proto`] is implemented: there
//! the first call is [`WireMessage::decode`] and the last [`WireMessage::encode`]. Everything that
//! comes in is paid from a [`Budget`]: no count, size or depth written by a peer is believed
//! before it was compared with a limit. Past this crate nothing is checked for that again.
#![cfg_attr(not(test), warn(clippy::indexing_slicing))]

mod budget;
pub mod codec;
mod graph_def;
mod int_fields;
pub mod lane;
mod list_metadata;
mod message_bytes;
pub mod messages;
mod op_def;
mod pieces;
pub mod replicas;
mod scan;
mod shape_proto;
pub mod snapshot;
mod status;
mod tensor_head;
mod tensor_proto;

/// The messages and services, generated from `proto/*.proto` by `cargo xtask proto`.
#[allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    clippy::all,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "generated code"
)]
#[rustfmt::skip]
#[path = "proto/tensorflow.rs"]
pub mod proto;

/// Downpour's own messages and services, generated likewise.
#[allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    clippy::all,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "generated code"
)]
#[rustfmt::skip]
#[path = "proto/downpour.rs"]
pub mod control;

pub use budget::{Budget, Exhausted, Meter};
pub use graph_def::{decode_graph, encode_graph, encode_graph_def, to_graph_def};
pub use int_fields::IntFields;
pub use list_metadata::ListMetadata;
pub use message_bytes::{MessageBytes, NoMessage, put_bytes, take_field};
pub use messages::WireMessage;
pub use pieces::{InPieces, Pieces};
pub use shape_proto::{
    decode_partial_shape, decode_shape, encode_dims, encode_partial_shape, encode_shape,
};
pub use status::{from_tonic, to_tonic};
pub use tensor_head::TensorHead;
pub use tensor_proto::{
    TensorProtoError, decode_handle, decode_tensor, decode_variant, encode_handle, encode_tensor,
    encode_variant,
};
