//! Files, checkpoints, and the ops that check or print what flows by.
//!
//! Kernels reach files only through the [`Storage`] lent to their device; without one they use
//! the local file system.

mod check;
mod checkpoint;
mod checkpoint_v1;
pub(crate) mod file;
mod immutable_const;
pub(crate) mod lmdb;
mod print;
mod reader;
mod record_input;

use downpour_formats::{LocalStorage, Storage, StorageHandle};
use downpour_graph::{Result, Status};
use downpour_runtime::{Device, Registry};
use std::sync::{Arc, LazyLock};

pub(crate) use file::path;

pub(crate) fn register(registry: &mut Registry) {
    check::register(registry);
    checkpoint::register(registry);
    checkpoint_v1::register(registry);
    file::register(registry);
    immutable_const::register(registry);
    print::register(registry);
    reader::register(registry);
    record_input::register(registry);
}

/// The file system of a device.
pub(crate) fn storage(device: &Device) -> &dyn Storage {
    static LOCAL: LazyLock<LocalStorage> = LazyLock::new(LocalStorage::new);
    match device.extensions.get::<StorageHandle>() {
        Some(handle) => &*handle.0,
        None => &*LOCAL,
    }
}

/// The file system of a device, for something that outlives a step.
pub(crate) fn shared_storage(device: &Device) -> Arc<dyn Storage> {
    match device.extensions.get::<StorageHandle>() {
        Some(handle) => handle.0.clone(),
        None => Arc::new(LocalStorage::new()),
    }
}

/// The last column of each line of a vocabulary file, as a candidate sampler wants it.
pub(crate) fn read_vocabulary(device: &Device, path: &str) -> Result<Vec<f32>> {
    let bytes = file::read_file(device, path)?;
    let text = String::from_utf8_lossy(&bytes);
    let weight = |line: &str| {
        let last = line.rsplit(',').next().unwrap_or(line).trim();
        last.parse().map_err(|_| {
            Status::invalid_argument(format!("Wrong vocabulary format at line: {line}"))
        })
    };
    text.lines().map(weight).collect()
}
