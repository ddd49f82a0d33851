//! `DecodeProtoV2` and `EncodeProto`: messages whose types are given as descriptors when the kernel is built. Nothing here
//! trusts a message's bytes or a descriptor's: what does not fit is an error in TensorFlow's words.

mod decode;
mod encode;
mod schema;
mod text;
mod value;
pub(crate) mod wire;

use super::invalid;
use crate::io::file::read_file;
use downpour_graph::{Result, Status};
use downpour_runtime::{KernelBuilder, Registry};
use schema::{Pool, Refused};
use std::sync::{Arc, LazyLock};

pub(super) fn register(r: &mut Registry) {
    r.add("DecodeProtoV2", decode::build);
    r.add("EncodeProto", encode::build);
}

/// TensorFlow's own types that a program is likely to name: `tensorflow.Example` and its kin.
const LOCAL: &[u8] = include_bytes!("local.bin");

/// The types that the attribute `descriptor_source` names.
fn pool(b: &KernelBuilder<'_>) -> Result<Arc<Pool>> {
    static POOL: LazyLock<Arc<Pool>> =
        LazyLock::new(|| Arc::new(Pool::parse(LOCAL).unwrap_or_default()));
    let source = b.attrs().bytes("descriptor_source")?;
    if source.is_empty() || source.as_ref() == b"local://" {
        return Ok(POOL.clone());
    }
    let shown = String::from_utf8_lossy(source);
    let (parsed, malformed) = match std::str::from_utf8(source).map(|p| read_file(b.device, p)) {
        Ok(Ok(contents)) => (
            Pool::parse(&contents),
            format!("descriptor_source contains invalid FileDescriptorSet: {shown}"),
        ),
        _ => (
            match source.strip_prefix(b"bytes://") {
                Some(set) => Pool::parse(set),
                None => Err(Refused::Malformed),
            },
            format!(
                "Source does not represent serialized file descriptor set proto. This may be due to a missing dependency on the file containing REGISTER_DESCRIPTOR_POOL(\"{shown}\", ...);"
            ),
        ),
    };
    parsed.map(Arc::new).map_err(|why| {
        Status::invalid_argument(match why {
            Refused::Malformed => malformed,
            Refused::File(file) => format!("Failed to load FileDescriptorProto: {file}"),
        })
    })
}

/// The message type of the attribute `message_type`, by its name.
fn message_type(b: &KernelBuilder<'_>, pool: &Pool) -> Result<String> {
    let name = String::from_utf8_lossy(b.attrs().bytes("message_type")?).into_owned();
    match pool.message(&name) {
        Some(_) => Ok(name),
        None => invalid(format!("No descriptor found for message type {name}")),
    }
}

#[cfg(test)]
mod tests;
