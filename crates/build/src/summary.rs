//! Summaries: what TensorBoard shows of a step, computed by the step itself. Each is kept in the
//! graph's collection `summaries`; [`merge_all`] joins them into one tensor to fetch.

use crate::{Graph, Output};

/// The collection that summaries are kept in.
const COLLECTION: &str = "summaries";

impl Graph {
    #[track_caller]
    fn summary(&self, op: &str, tag: &str, value: &Output) -> Output {
        let tag = self.summary_tag(tag);
        let op = self.op(op).input(&self.constant(tag));
        let summary = op.input(value).output();
        self.add_to_collection(COLLECTION, &summary);
        summary
    }

    /// A tag within the scope.
    fn summary_tag(&self, tag: &str) -> String {
        match self.scope().as_str() {
            "" => tag.to_owned(),
            scope => format!("{scope}/{tag}"),
        }
    }
}

/// A number over time.
#[track_caller]
pub fn scalar(tag: &str, value: &Output) -> Output {
    value.graph().summary("ScalarSummary", tag, value)
}

/// The distribution of a tensor's values over time.
#[track_caller]
pub fn histogram(tag: &str, value: &Output) -> Output {
    value.graph().summary("HistogramSummary", tag, value)
}

/// Images `[batch, height, width, channels]`, the first three of a batch.
#[track_caller]
pub fn image(tag: &str, images: &Output) -> Output {
    images.graph().summary("ImageSummary", tag, images)
}

/// Sounds `[batch, frames, channels]` of samples between -1 and 1, the first three of a batch.
#[track_caller]
pub fn audio(tag: &str, samples: &Output, rate: f32) -> Output {
    let g = samples.graph();
    let tag = g.summary_tag(tag);
    let op = g.op("AudioSummaryV2").input(&g.constant(tag));
    let summary = op.input(samples).input(&g.constant(rate)).output();
    g.add_to_collection(COLLECTION, &summary);
    summary
}

/// Text: a string or several.
#[track_caller]
pub fn text(tag: &str, value: &Output) -> Output {
    // A serialized SummaryMetadata whose plugin_data names the plugin `text`.
    const METADATA: &[u8] = b"\x0a\x06\x0a\x04text";
    let g = value.graph();
    let tag = g.summary_tag(tag);
    let metadata = crate::Tensor::string(METADATA);
    let op = g.op("TensorSummaryV2").input(&g.constant(tag)).input(value);
    let summary = op.input(&g.constant(metadata)).output();
    g.add_to_collection(COLLECTION, &summary);
    summary
}

/// All summaries of a graph as one, if it has any.
#[track_caller]
pub fn merge_all(graph: &Graph) -> Option<Output> {
    let all = graph.collection(COLLECTION);
    match all.is_empty() {
        true => None,
        false => Some(graph.op("MergeSummary").inputs(&all).output()),
    }
}
