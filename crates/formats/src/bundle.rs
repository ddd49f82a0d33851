//! Checkpoints as TensorFlow writes them since 0.12: a sorted index `<prefix>.index` and raw tensor
//! bytes in `<prefix>.data-<shard>-of-<shards>`. The index is the commit point: a prefix is a
//! checkpoint if and only if its index exists, and it is published after all data is on the disk.
//!
//! [`save_v2`], [`restore_v2`] and [`merge_v2`] are what the ops of those names do, with
//! TensorFlow's checks and texts; [`BundleWriter`] and [`BundleReader`] are the layer below.
//! Single-file checkpoints of the first format are read and written too ([`save_v1`],
//! [`restore_v1`]).

mod cover;
mod encode;
mod entry;
mod merge;
mod ops;
mod ordered_code;
mod reader;
mod slice;
mod survey;
mod v1;
mod v1_writer;
mod writer;

pub use merge::merge_v2;
pub use ops::{SaveTensor, restore_v2, save_v2};
pub use reader::{BundleReader, EntryInfo};
pub use slice::{Extent, ShapeAndSlice, TensorSlice};
pub use survey::{Damage, StoredPart, StoredTensor, Survey};
pub use v1::{list_v1, restore_v1};
pub use v1_writer::save_v1;
pub use writer::BundleWriter;

/// Version of the format that we write and read.
const VERSION: i32 = 1;

/// Path of a bundle's index.
pub fn index_path(prefix: &str) -> String {
    format!("{prefix}.index")
}

/// Path of one of a bundle's data files.
pub fn data_path(prefix: &str, shard: i32, shards: i32) -> String {
    // As C's %05d, which counts the sign of the hostile negative in its five characters.
    format!("{prefix}.data-{shard:05}-of-{shards:05}")
}
