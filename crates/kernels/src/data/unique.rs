//! `UniqueDataset`: elements that were not given before.

use super::dataset::{Dataset, Iter, Next, Place, Recipe, Stream};
use super::define;
use bytes::Bytes;
use downpour_graph::{Result, Status};
use downpour_runtime::{OpContext, Registry};
use downpour_tensor::DType;
use std::collections::HashSet;

pub(super) fn register(r: &mut Registry) {
    for op in ["UniqueDataset", "ExperimentalUniqueDataset"] {
        r.add(op, |_| define::dataset(unique));
    }
}

fn unique(ctx: &mut OpContext<'_>) -> Result<Dataset> {
    let input = define::input(ctx, 0)?;
    let [dtype] = input.spec().types.as_slice() else {
        return Err(Status::invalid_argument(
            "UniqueDataset only supports inputs with a single component.",
        ));
    };
    if !matches!(dtype, DType::Int32 | DType::Int64 | DType::String) {
        return Err(Status::invalid_argument(
            "UniqueDataset only supports inputs with a single `tf.int32`, `tf.int64`, or `tf.string` component.",
        ));
    }
    let recipe = Unique(input.clone());
    Dataset::new("Unique", input.spec().clone(), vec![input], recipe)
}

struct Unique(Dataset);

impl Recipe for Unique {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        Ok(Box::new(UniqueStream {
            input: self.0.iterate(place)?,
            seen: HashSet::new(),
        }))
    }
}

struct UniqueStream {
    input: Iter,
    seen: HashSet<(Vec<usize>, Vec<Bytes>)>,
}

impl Stream for UniqueStream {
    fn next(&mut self) -> Next<'_> {
        Box::pin(async move {
            while let Some(element) = self.input.next().await? {
                let Some(tensor) = element.first() else {
                    return Ok(Some(element));
                };
                let value = match tensor.buffer() {
                    Some(buffer) => vec![Bytes::copy_from_slice(buffer.as_bytes())],
                    None => tensor.as_strings()?.to_vec(),
                };
                if self.seen.insert((tensor.dims().to_vec(), value)) {
                    return Ok(Some(element));
                }
            }
            Ok(None)
        })
    }
}
