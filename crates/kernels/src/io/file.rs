//! Whole files: `ReadFile`, `WriteFile`, `MatchingFiles`, and names of shards.

use super::storage;
use crate::args::int;
use bytes::Bytes;
use downpour_formats::storage::{dirname, read_bounded};
use downpour_graph::{Code, Result, Status};
use downpour_runtime::{Built, Device, OpContext, Registry};
use downpour_tensor::Tensor;

pub(super) fn register(r: &mut Registry) {
    r.add("ReadFile", |_| Built::costly(read));
    r.add("WriteFile", |_| Built::costly(write));
    r.add("MatchingFiles", |_| Built::costly(matching_files));
    r.add("ShardedFilename", |_| Built::cheap(sharded_filename));
    r.add("ShardedFilespec", |_| Built::cheap(sharded_filespec));
}

/// The contents of a file no larger than a tensor may be.
pub(crate) fn read_file(device: &Device, path: &str) -> Result<Vec<u8>> {
    read_bounded(storage(device), path, device.room() as u64)
}

/// A path out of a string element; file names are UTF-8 here.
pub(crate) fn path(bytes: &[u8]) -> Result<&str> {
    std::str::from_utf8(bytes).map_err(|_| {
        let text = String::from_utf8_lossy(bytes);
        Status::invalid_argument(format!("{text} is no valid file name"))
    })
}

/// The string scalar at input `i`, or TensorFlow's error for any other shape.
fn scalar<'a>(ctx: &'a OpContext<'_>, i: usize, message: &str) -> Result<&'a Bytes> {
    let tensor = ctx.input(i)?;
    match (tensor.rank(), tensor.as_strings()?) {
        (0, [value]) => Ok(value),
        _ => Err(Status::invalid_argument(format!(
            "{message}{}",
            tensor.shape()
        ))),
    }
}

fn read(ctx: &mut OpContext<'_>) -> Result<()> {
    let name = scalar(
        ctx,
        0,
        "Input filename tensor must be scalar, but had shape: ",
    )?;
    let contents = read_file(ctx.device(), path(name)?)?;
    ctx.set_output(0, Tensor::string(contents));
    Ok(())
}

fn write(ctx: &mut OpContext<'_>) -> Result<()> {
    let name = scalar(
        ctx,
        0,
        "Input filename tensor must be scalar, but had shape: ",
    )?;
    let contents = scalar(ctx, 1, "Contents tensor must be scalar, but had shape: ")?;
    let (storage, name) = (storage(ctx.device()), path(name)?);
    create_dirs(storage, dirname(name))?;
    let mut file = storage.create(name)?;
    file.write(contents)?;
    // TensorFlow writes in place, so its error names the file, not the temporary one.
    file.publish()
        .map_err(|e| match e.message.split_once("; ") {
            Some((_, reason)) => Status::new(e.code, format!("{name}; {reason}")),
            None => e,
        })
}

/// Creates a directory with those above it.
pub(crate) fn create_dirs(storage: &dyn downpour_formats::Storage, dir: &str) -> Result<()> {
    if dir.is_empty() || dir == "/" || storage.exists(dir)? {
        return Ok(());
    }
    create_dirs(storage, dirname(dir))?;
    match storage.create_dir(dir) {
        // Another step may have been quicker.
        Err(e) if e.code == Code::AlreadyExists => Ok(()),
        other => other,
    }
}

fn matching_files(ctx: &mut OpContext<'_>) -> Result<()> {
    let patterns = ctx.input(0)?;
    if patterns.rank() > 1 {
        return Err(Status::invalid_argument(format!(
            "Input patterns tensor must be scalar or vector, but had shape: {}",
            patterns.shape()
        )));
    }
    let mut names = Vec::new();
    for pattern in patterns.as_strings()? {
        names.extend(storage(ctx.device()).glob(path(pattern)?)?);
    }
    names.sort();
    let names: Vec<Bytes> = names.into_iter().map(Bytes::from).collect();
    let shape = [names.len()];
    ctx.set_output(0, Tensor::strings(names, shape)?);
    Ok(())
}

fn sharded_filename(ctx: &mut OpContext<'_>) -> Result<()> {
    let names = ["basename", "shard", "num_shards"];
    let parts = scalars(ctx, &names)?;
    let base = ctx
        .input(0)?
        .as_strings()?
        .first()
        .cloned()
        .unwrap_or_default();
    let mut out = base.to_vec();
    out.extend_from_slice(format!("-{:05}-of-{:05}", parts[0], parts[1]).as_bytes());
    ctx.set_output(0, Tensor::string(out));
    Ok(())
}

fn sharded_filespec(ctx: &mut OpContext<'_>) -> Result<()> {
    let parts = scalars(ctx, &["basename", "num_shards"])?;
    let base = ctx
        .input(0)?
        .as_strings()?
        .first()
        .cloned()
        .unwrap_or_default();
    let mut out = base.to_vec();
    out.extend_from_slice(format!("-?????-of-{:05}", parts[0]).as_bytes());
    ctx.set_output(0, Tensor::string(out));
    Ok(())
}

/// The integer scalars after the base name; all inputs must be scalars.
fn scalars(ctx: &OpContext<'_>, names: &[&str]) -> Result<Vec<i64>> {
    for (i, name) in names.iter().enumerate() {
        let tensor = ctx.input(i)?;
        if tensor.rank() != 0 {
            return Err(Status::invalid_argument(format!(
                "{name} must be a scalar, got shape {}",
                tensor.shape()
            )));
        }
    }
    (1..names.len()).map(|i| int(ctx.input(i)?)).collect()
}
