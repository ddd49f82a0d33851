//! Writes a one-shard bundle. Data and index grow under temporary names; [`BundleWriter::finish`]
//! brings both onto the disk before either gets its name, the index last.

use super::entry::{header, key_text, shape_proto};
use super::ordered_code::slice_key;
use super::slice::TensorSlice;
use super::{data_path, encode, index_path};
use crate::storage::{PendingFile, Storage, StorageRef, dirname};
use crate::table::TableWriter;
use downpour_graph::{Code, Result, Status};
use downpour_tensor::{Shape, Tensor};
use downpour_wire::MessageBytes as _;
use downpour_wire::proto;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A checkpoint being written.
#[derive(Debug)]
pub struct BundleWriter<'a> {
    storage: StorageRef<'a>,
    prefix: String,
    data: Box<dyn PendingFile>,
    offset: i64,
    entries: BTreeMap<Vec<u8>, proto::BundleEntryProto>,
}

impl<'a> BundleWriter<'a> {
    /// Starts a checkpoint at `prefix`; creates its directory if only that is missing.
    pub fn create(storage: &'a dyn Storage, prefix: &str) -> Result<BundleWriter<'a>> {
        BundleWriter::start(StorageRef::Borrowed(storage), prefix)
    }

    /// As [`BundleWriter::create`], for a writer that outlives the call.
    pub fn create_shared(storage: Arc<dyn Storage>, prefix: &str) -> Result<BundleWriter<'static>> {
        BundleWriter::start(StorageRef::Shared(storage), prefix)
    }

    fn start(storage: StorageRef<'a>, prefix: &str) -> Result<BundleWriter<'a>> {
        create_dir_of(&*storage, prefix)?;
        let data = storage.create(&data_path(prefix, 0, 1))?;
        Ok(BundleWriter {
            storage,
            prefix: prefix.to_owned(),
            data,
            offset: 0,
            entries: BTreeMap::new(),
        })
    }

    /// Adds a whole tensor.
    pub fn add(&mut self, name: &str, tensor: &Tensor) -> Result<()> {
        if name.is_empty() {
            // TensorFlow aborts: the empty key is the header's.
            return Err(Status::invalid_argument(
                "Cannot save a tensor with an empty name",
            ));
        }
        self.put(name.as_bytes().to_vec(), tensor)
    }

    /// Adds the part `slice` of tensor `name`, which has shape `shape` as a whole.
    pub fn add_slice(
        &mut self,
        name: &str,
        shape: &Shape,
        slice: &TensorSlice,
        part: &Tensor,
    ) -> Result<()> {
        if slice.slice_shape(shape)? != *part.shape() {
            return Err(Status::invalid_argument(format!(
                "Slice {slice} of shape {shape} does not match the tensor to save: {}",
                part.shape()
            )));
        }
        if slice.covers(shape) {
            return self.add(name, part);
        }
        if name.is_empty() {
            return Err(Status::invalid_argument(
                "Cannot save a tensor with an empty name",
            ));
        }
        let fresh = proto::BundleEntryProto {
            dtype: part.dtype().number(),
            shape: shape_proto(shape),
            ..Default::default()
        };
        let known = self.entries.get(name.as_bytes());
        if known.is_some_and(|whole| whole.slices.is_empty()) {
            return Err(duplicate(name.as_bytes()));
        }
        // TensorFlow aborts where the parts disagree.
        if known.is_some_and(|whole| whole.dtype != fresh.dtype || whole.shape != fresh.shape) {
            return Err(Status::invalid_argument(format!(
                "Slices of tensor {name} disagree about its type or shape: {} {shape}",
                part.dtype()
            )));
        }
        let whole = self.entries.entry(name.as_bytes().to_vec());
        let whole = whole.or_insert(fresh);
        whole.slices.push(slice.to_proto());
        self.put(slice_key(name.as_bytes(), slice), part)
    }

    fn put(&mut self, key: Vec<u8>, tensor: &Tensor) -> Result<()> {
        if self.entries.contains_key(&key) {
            return Err(duplicate(&key));
        }
        let (size, crc) = encode::write_tensor(tensor, |data| self.data.write(data))?;
        let entry = proto::BundleEntryProto {
            dtype: tensor.dtype().number(),
            shape: shape_proto(tensor.shape()),
            shard_id: 0,
            offset: self.offset,
            size,
            crc32c: crc,
            slices: Vec::new(),
        };
        self.offset += size;
        self.entries.insert(key, entry);
        Ok(())
    }

    /// Makes the checkpoint durable and visible.
    pub fn finish(mut self) -> Result<()> {
        self.data.seal()?;
        let index = write_index(&*self.storage, &self.prefix, &header(1), &self.entries)?;
        hide_old_index(&*self.storage, &self.prefix)?;
        self.data.publish()?;
        index.publish_new()
    }
}

fn duplicate(key: &[u8]) -> Status {
    Status::invalid_argument(format!("Adding duplicate key: {}", key_text(key)))
}

/// Writes and seals the index of a bundle, not yet under its name.
pub(super) fn write_index(
    storage: &dyn Storage,
    prefix: &str,
    header: &proto::BundleHeaderProto,
    entries: &BTreeMap<Vec<u8>, proto::BundleEntryProto>,
) -> Result<Box<dyn PendingFile>> {
    let mut table = TableWriter::new(storage.create(&index_path(prefix))?);
    table.add(b"", &header.to_bytes())?;
    for (key, entry) in entries {
        table.add(key, &entry.to_bytes())?;
    }
    let mut file = table.finish()?;
    file.seal()?;
    Ok(file)
}

/// Takes away the index of an older checkpoint of the same prefix. Its data file is about to be
/// replaced under its feet: after a crash in between, "no checkpoint" is the truth, while the old
/// index over new data would look like one.
pub(super) fn hide_old_index(storage: &dyn Storage, prefix: &str) -> Result<()> {
    match storage.delete(&index_path(prefix)) {
        Err(status) if status.code != Code::NotFound => Err(status),
        _ => Ok(()),
    }
}

/// Creates the directory of `prefix` unless it exists.
pub(super) fn create_dir_of(storage: &dyn Storage, prefix: &str) -> Result<()> {
    let dir = dirname(prefix);
    if dir.is_empty() {
        return Ok(());
    }
    match storage.create_dir(dir) {
        Err(status) if status.code != Code::AlreadyExists => Err(status),
        _ => Ok(()),
    }
}
