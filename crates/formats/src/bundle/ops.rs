//! What the ops `SaveV2` and `RestoreV2` do, with TensorFlow's checks in TensorFlow's order.

use super::entry::dtype_text;
use super::reader::BundleReader;
use super::slice::ShapeAndSlice;
use super::writer::BundleWriter;
use super::{index_path, v1};
use crate::storage::Storage;
use downpour_graph::{Result, Status};
use downpour_tensor::{DType, Tensor};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Restoring at least this much spreads over threads, as it does in TensorFlow.
const PARALLEL_BYTES: usize = 16 << 20;
const MAX_THREADS: usize = 8;

/// One tensor to save.
#[derive(Debug, Clone)]
pub struct SaveTensor<'a> {
    /// Name in the checkpoint.
    pub name: &'a str,
    /// Empty for a whole tensor, else the whole shape and which part this is.
    pub shape_and_slice: &'a str,
    /// The tensor or part.
    pub tensor: Tensor,
}

/// Writes a one-shard checkpoint at `prefix`, durably; nothing is visible unless all succeeds.
pub fn save_v2(storage: &dyn Storage, prefix: &str, tensors: &[SaveTensor<'_>]) -> Result<()> {
    let mut writer = BundleWriter::create(storage, prefix)?;
    for save in tensors {
        if save.shape_and_slice.is_empty() {
            writer.add(save.name, &save.tensor)?;
            continue;
        }
        let spec = ShapeAndSlice::parse(save.shape_and_slice)?;
        if spec.slice_shape != *save.tensor.shape() {
            return Err(Status::invalid_argument(format!(
                "Slice in shape_and_slice specification does not match the shape of the tensor to  \
                 save: {}, tensor: {}",
                save.shape_and_slice,
                save.tensor.shape()
            )));
        }
        writer.add_slice(save.name, &spec.shape, &spec.slice, &save.tensor)?;
    }
    writer.finish()
}

/// Reads `names[i]` (the part `shape_and_slices[i]` of it, or all if that is empty), which must
/// be of type `dtypes[i]`, from the checkpoint at `prefix`, of either format.
pub fn restore_v2(
    storage: &dyn Storage,
    prefix: &str,
    names: &[&str],
    shape_and_slices: &[&str],
    dtypes: &[DType],
) -> Result<Vec<Tensor>> {
    if names.len() != shape_and_slices.len() {
        return Err(Status::invalid_argument(format!(
            "tensor_names and shape_and_slices have different number of elements: {} vs. {}",
            names.len(),
            shape_and_slices.len()
        )));
    }
    if names.len() != dtypes.len() {
        return Err(Status::invalid_argument(format!(
            "Got {} tensor names, but {} expected dtypes.",
            names.len(),
            dtypes.len()
        )));
    }
    let requests: Vec<_> = names.iter().zip(shape_and_slices).zip(dtypes).collect();
    let index = index_path(prefix);
    if !storage.exists(&index)? && storage.glob(&index)?.is_empty() {
        let reader = v1::Reader::open(storage, prefix)?;
        let read =
            |((name, spec), dtype): &((&&str, &&str), &DType)| reader.restore(name, spec, **dtype);
        return requests.iter().map(read).collect();
    }
    let reader = BundleReader::open(storage, prefix)?;
    // Names in order: neighbours in the index, and the order in which TensorFlow finds errors.
    let mut order: Vec<usize> = (0..requests.len()).collect();
    order.sort_by_key(|&i| names.get(i));
    let mut mismatches = Vec::new();
    let mut bytes = 0usize;
    for &i in &order {
        let Some(((name, _), dtype)) = requests.get(i) else {
            continue;
        };
        let (found, shape) = reader.lookup(name)?;
        if found != dtype.number() {
            mismatches.push(format!(
                "tensor_name = {name}; expected dtype {dtype} does not equal original dtype {}",
                dtype_text(found)
            ));
        }
        let size = shape
            .num_elements()
            .saturating_mul(dtype.size().unwrap_or(1));
        bytes = bytes.saturating_add(size);
    }
    if !mismatches.is_empty() {
        return Err(Status::invalid_argument(mismatches.join("\n")));
    }
    let read = |i: usize| match requests.get(i) {
        Some(((name, spec), _)) => restore_one(&reader, name, spec),
        None => Err(Status::internal("a request vanished")),
    };
    let mut results = read_all(&order, bytes >= PARALLEL_BYTES, read)?;
    results.sort_by_key(|(i, _)| *i);
    Ok(results.into_iter().map(|(_, tensor)| tensor).collect())
}

/// Reads what `order` lists; reports the error that comes first in that order.
fn read_all(
    order: &[usize],
    parallel: bool,
    read: impl Fn(usize) -> Result<Tensor> + Sync,
) -> Result<Vec<(usize, Tensor)>> {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let threads = cores.min(MAX_THREADS).min(order.len());
    if !parallel || threads < 2 {
        return order.iter().map(|&i| Ok((i, read(i)?))).collect();
    }
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        while let Some(&i) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
            let result = read(i);
            let failed = result.is_err();
            done.push((i, result));
            if failed {
                next.fetch_add(order.len(), Ordering::Relaxed);
            }
        }
        done
    };
    let mut all = std::thread::scope(|scope| {
        let workers: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let mut all = work();
        for worker in workers {
            match worker.join() {
                Ok(done) => all.extend(done),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        all
    });
    let place = |i: usize| order.iter().position(|&o| o == i);
    all.sort_by_key(|(i, result)| {
        (
            result.is_ok(),
            if result.is_ok() { None } else { place(*i) },
        )
    });
    all.into_iter()
        .map(|(i, result)| Ok((i, result?)))
        .collect()
}

fn restore_one(reader: &BundleReader<'_>, name: &str, spec: &str) -> Result<Tensor> {
    if spec.is_empty() {
        return reader.read(name);
    }
    let spec = ShapeAndSlice::parse(spec)?;
    let (_, shape) = reader.lookup(name)?;
    if shape != spec.shape {
        return Err(Status::invalid_argument(format!(
            "tensor_name = {name}; shape in shape_and_slice spec {} does not match the shape \
             stored in checkpoint: {shape}",
            spec.shape
        )));
    }
    reader.read_slice(name, &spec.slice)
}
