//! Ops that read a model's input inside the graph: examples, CSV lines, serialized tensors,
//! compressed strings. Bytes are a stranger's: what they ask for is counted before it is made,
//! and errors name the example, the key and the place in TensorFlow's words.

pub(crate) mod batch;
mod compressed;
pub(crate) mod config;
mod csv;
mod example;
mod json;
pub(crate) mod proto;
mod sequence;
mod sequence_ops;
mod single_sequence;
mod tensor;
mod values;

use downpour_graph::{Result, Status};
use downpour_runtime::Registry;

pub(crate) fn register(registry: &mut Registry) {
    compressed::register(registry);
    csv::register(registry);
    example::register(registry);
    json::register(registry);
    proto::register(registry);
    sequence_ops::register(registry);
    single_sequence::register(registry);
    tensor::register(registry);
}

fn invalid<T>(text: impl Into<String>) -> Result<T> {
    Err(Status::invalid_argument(text))
}

/// Bytes as an error shows them. A message is cut on its way to the client, so no more is kept.
fn shown(bytes: &[u8]) -> String {
    const MOST: usize = 4096;
    String::from_utf8_lossy(&bytes[..bytes.len().min(MOST)]).into_owned()
}
