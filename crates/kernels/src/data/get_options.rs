//! `GetOptions`: all that was said about how a pipeline is to run. Options are protobuf messages, which are merged by
//! writing them one after the other: what comes later wins.

use super::dataset::Dataset;
use super::define;
use bytes::Bytes;
use downpour_runtime::{Built, Registry};
use downpour_tensor::Tensor;
use std::collections::HashMap;

pub(super) fn register(r: &mut Registry) {
    r.add("GetOptions", |_| {
        Built::cheap(|ctx| {
            let dataset = define::input(ctx, 0)?;
            let merged = options(&dataset, &mut HashMap::new()).concat();
            ctx.set_output(0, Tensor::string(merged));
            Ok(())
        })
    });
}

/// The options of a dataset and of those below it, in the order in which they are merged.
fn options(dataset: &Dataset, known: &mut HashMap<usize, Vec<Bytes>>) -> Vec<Bytes> {
    if let Some(known) = known.get(&dataset.identity()) {
        return known.clone();
    }
    let mut all = Vec::new();
    for input in dataset.inputs() {
        for more in options(input, known) {
            add(&mut all, more);
        }
    }
    if let Some(origin) = dataset.origin()
        && origin.node.op_name() == "OptionsDataset"
        && let Ok(own) = origin.node.attrs.bytes("serialized_options")
    {
        add(&mut all, own.clone());
    }
    known.insert(dataset.identity(), all.clone());
    all
}

/// What is said again at the end need not be said before.
fn add(all: &mut Vec<Bytes>, more: Bytes) {
    all.retain(|o| *o != more);
    all.push(more);
}
