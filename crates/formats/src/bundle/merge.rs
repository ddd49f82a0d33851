//! Joins the bundles that several tasks wrote into one: data files are renamed, their indexes
//! merged. Everything is checked before the first rename, and the merged index is the commit.

use super::entry::{decode_header, decode_proto, key_text};
use super::writer::{create_dir_of, hide_old_index, write_index};
use super::{data_path, index_path};
use crate::storage::{Storage, dirname};
use crate::table::Table;
use downpour_graph::{Result, Status};
use downpour_wire::proto;
use std::collections::{BTreeMap, HashMap};

/// What `MergeV2Checkpoints` does: moves the checkpoints at `prefixes` into one at `destination`,
/// then removes their indexes and, with `delete_old_dirs`, their directories if empty.
/// A missing prefix is an error unless `allow_missing`.
pub fn merge_v2(
    storage: &dyn Storage,
    prefixes: &[&str],
    destination: &str,
    delete_old_dirs: bool,
    allow_missing: bool,
) -> Result<()> {
    let mut present = Vec::new();
    for prefix in prefixes {
        if storage.exists(&index_path(prefix))? {
            present.push(*prefix);
        } else if !allow_missing {
            return Err(Status::invalid_argument(format!(
                "allow_missing_files was set to false and {prefix} did not exist.NOT_FOUND: \
                 {prefix} not found"
            )));
        }
    }
    if present.is_empty() {
        return Err(Status::invalid_argument(
            "At least one prefix checkpoint file must exist, but none existed.",
        ));
    }
    create_dir_of(storage, destination)?;
    let mut merge = Merge::default();
    for prefix in &present {
        merge.add(storage, prefix)?;
    }
    merge.finish(storage, destination)?;
    // The checkpoint is complete: what cannot be tidied up now is litter, not a failure.
    for prefix in present {
        if prefix != destination {
            let _ = storage.delete(&index_path(prefix));
        }
        if delete_old_dirs && dirname(prefix) != dirname(destination) {
            let _ = storage.remove_dir(dirname(prefix));
        }
    }
    Ok(())
}

#[derive(Default)]
struct Merge {
    header: Option<proto::BundleHeaderProto>,
    entries: BTreeMap<Vec<u8>, proto::BundleEntryProto>,
    /// Data files in the order of their new numbers.
    files: Vec<String>,
    numbers: HashMap<String, i32>,
}

impl Merge {
    /// Takes in the index at `prefix`.
    fn add(&mut self, storage: &dyn Storage, prefix: &str) -> Result<()> {
        let path = index_path(prefix);
        let table = Table::open(storage.open(&path)?)?;
        let mut shards = None;
        table.scan(|key, value| {
            let Some(shards) = shards else {
                if !key.is_empty() {
                    return Err(Status::data_loss(format!("{path} has no header entry")));
                }
                let header = decode_header(&path, value)?;
                shards = Some(header.num_shards);
                return self.add_header(header);
            };
            self.add_entry(prefix, shards, key, decode_proto(key, value)?)
        })?;
        match shards {
            Some(_) => Ok(()),
            None => Err(Status::data_loss(format!("{path} has no header entry"))),
        }
    }

    fn add_header(&mut self, header: proto::BundleHeaderProto) -> Result<()> {
        let first = self.header.get_or_insert_with(|| header.clone());
        if first.version != header.version {
            return Err(Status::invalid_argument(format!(
                "Merging bundles with different format versions: merged {:?} vs. curr {:?}",
                first.version, header.version
            )));
        }
        Ok(())
    }

    fn add_entry(
        &mut self,
        prefix: &str,
        shards: i32,
        key: &[u8],
        mut entry: proto::BundleEntryProto,
    ) -> Result<()> {
        if let Some(known) = self.entries.get_mut(key) {
            if known.slices.is_empty() {
                return Err(Status::invalid_argument(format!(
                    "Duplicate tensor keyed by {} encountered, when merging prefix: {prefix}",
                    key_text(key)
                )));
            }
            // TensorFlow aborts here.
            if known.dtype != entry.dtype || known.shape != entry.shape {
                return Err(Status::invalid_argument(format!(
                    "Slices of tensor {} disagree about its type or shape, when merging prefix: \
                     {prefix}",
                    key_text(key)
                )));
            }
            known.slices.append(&mut entry.slices);
            return Ok(());
        }
        let file = data_path(prefix, entry.shard_id, shards);
        let next = i32::try_from(self.files.len())
            .map_err(|_| Status::invalid_argument("Too many data files to merge"))?;
        entry.shard_id = *self.numbers.entry(file.clone()).or_insert_with(|| {
            self.files.push(file);
            next
        });
        self.entries.insert(key.to_vec(), entry);
        Ok(())
    }

    fn finish(self, storage: &dyn Storage, destination: &str) -> Result<()> {
        for file in &self.files {
            // Opening, not asking whether it exists: the status then names what is wrong.
            storage.open(file)?;
        }
        let shards = i32::try_from(self.files.len())
            .map_err(|_| Status::invalid_argument("Too many data files to merge"))?;
        let mut header = self.header.unwrap_or_default();
        header.num_shards = shards;
        let index = write_index(storage, destination, &header, &self.entries)?;
        hide_old_index(storage, destination)?;
        for (number, file) in (0..).zip(&self.files) {
            storage.rename(file, &data_path(destination, number, shards))?;
        }
        index.publish_new()
    }
}
