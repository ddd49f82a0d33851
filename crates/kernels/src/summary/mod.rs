//! Summaries: serialised `Summary` messages for event files.

mod audio;
mod image;
mod tensor;
mod value;
mod writer;
mod writer_ops;

use bytes::Bytes;
use downpour_graph::{Result, Status};
use downpour_runtime::{OpContext, Registry};
pub(crate) use writer::{SummaryWriter, WRITER_TYPE};

pub(crate) fn register(registry: &mut Registry) {
    audio::register(registry);
    image::register(registry);
    tensor::register(registry);
    value::register(registry);
    writer_ops::register(registry);
}

/// The string scalar in input `i`; `message` is the error if it is none.
fn scalar(ctx: &OpContext<'_>, i: usize, message: &str) -> Result<Bytes> {
    let tensor = ctx.input(i)?;
    match (tensor.rank(), tensor.as_strings()?) {
        (0, [value]) => Ok(value.clone()),
        _ => Err(Status::invalid_argument(message)),
    }
}

/// A tag as text for a message; bytes that are none are replaced.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The tag of output number `i` of at most `most`: numbered only if there may be several.
fn numbered(tag: &[u8], kind: &str, i: usize, most: i64) -> Bytes {
    let end = match most {
        ..=1 => format!("/{kind}"),
        _ => format!("/{kind}/{i}"),
    };
    [tag, end.as_bytes()].concat().into()
}
