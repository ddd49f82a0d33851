//! The files of TensorFlow, byte-compatible both ways: checkpoints ([`bundle`]), TFRecords
//! ([`record`]), event files ([`event`]), the `checkpoint` state file and `tf.Example`s.
//!
//! This is the only crate that opens data files, always through a [`Storage`]; nothing here
//! prints, reads a clock or the environment. Every byte read is taken for hostile: lengths are
//! compared with what the file holds before memory is asked for, and errors are [`Status`] with
//! TensorFlow's codes and texts.
//!
//! [`Status`]: downpour_graph::Status
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        reason = "tests make files and read a clock"
    )
)]
#![cfg_attr(not(test), warn(clippy::indexing_slicing))]

pub mod bundle;
pub mod checkpoint_state;
mod coding;
pub mod crc32c;
mod damage;
pub mod data_options;
pub mod event;
pub mod example;
pub mod graph_def;
pub mod graph_file;
pub mod histogram;
pub mod meta_graph;
pub mod reader_state;
pub mod record;
pub mod resource_handle;
pub mod snappy;
pub mod snapshot;
pub mod storage;
pub mod stream;
pub mod summary;
pub mod table;
pub mod tensor_proto;
mod text_proto;

pub use damage::{DamageKind, Fault};
pub use storage::{Files, LocalStorage, PendingFile, ReadAt, Storage, StorageHandle, StreamFile};

#[cfg(test)]
mod testing;
