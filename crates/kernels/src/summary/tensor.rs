//! `TensorSummary` and `TensorSummaryV2`.

use super::scalar;
use crate::types::WITH_HANDLES;
use bytes::Bytes;
use downpour_formats::summary::{SummaryContent, SummaryValue, encode_summary};
use downpour_graph::Result;
use downpour_runtime::{Built, OpContext, Registry};
use downpour_tensor::Tensor;

pub(super) fn register(r: &mut Registry) {
    r.add_typed("TensorSummary", &[("T", WITH_HANDLES)], |_| {
        Built::cheap(by_node)
    });
    r.add_typed("TensorSummaryV2", &[("T", WITH_HANDLES)], |_| {
        Built::cheap(by_tag)
    });
}

/// The old form carries the node's name; its other attributes are for readers of the graph.
fn by_node(ctx: &mut OpContext<'_>) -> Result<()> {
    let value = SummaryValue {
        tag: Bytes::new(),
        node_name: ctx.name().to_owned(),
        metadata: None,
        content: SummaryContent::Tensor(ctx.input(0)?.clone()),
    };
    let bytes = encode_summary(vec![value])?;
    ctx.set_output(0, Tensor::string(bytes));
    Ok(())
}

fn by_tag(ctx: &mut OpContext<'_>) -> Result<()> {
    let tag = scalar(ctx, 0, "tag must be scalar")?;
    let metadata = scalar(ctx, 2, "serialized_summary_metadata must be scalar")?;
    let value = SummaryValue {
        tag,
        node_name: String::new(),
        metadata: Some(metadata),
        content: SummaryContent::Tensor(ctx.input(1)?.clone()),
    };
    let bytes = encode_summary(vec![value])?;
    ctx.set_output(0, Tensor::string(bytes));
    Ok(())
}
