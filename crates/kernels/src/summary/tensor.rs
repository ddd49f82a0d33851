//! `TensorSummary` and `TensorSummaryV2`.

use super::scalar;
use bytes::Bytes;
use downpour_formats::summary::{SummaryContent, SummaryValue, encode_summary};
use downpour_graph::Result;
use downpour_runtime::{Built, OpContext, Registry};
use downpour_tensor::{DType, Tensor};

const TYPES: &[DType] = &[
    DType::Float,
    DType::Double,
    DType::Half,
    DType::BFloat16,
    DType::Int8,
    DType::Int16,
    DType::Int32,
    DType::Int64,
    DType::UInt8,
    DType::UInt16,
    DType::UInt32,
    DType::UInt64,
    DType::Bool,
    DType::Complex64,
    DType::Complex128,
    DType::String,
    DType::Resource,
    DType::Variant,
];

pub(super) fn register(r: &mut Registry) {
    r.add_typed("TensorSummary", &[("T", TYPES)], |_| Built::cheap(by_node));
    r.add_typed("TensorSummaryV2", &[("T", TYPES)], |_| Built::cheap(by_tag));
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
