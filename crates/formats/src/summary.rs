//! Summaries as their ops hand them on: plain values in, serialised `Summary` messages out.

use crate::histogram::Histogram;
use bytes::Bytes;
use downpour_graph::Result;
use downpour_tensor::Tensor;
use downpour_wire::proto::{self, SummaryMetadata, TensorProto, summary};
use downpour_wire::{encode_shape, encode_tensor};
use prost::Message;

/// What one entry of a summary shows.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum SummaryContent {
    /// A number.
    Scalar(f32),
    /// A distribution.
    Histogram(Histogram),
    /// A PNG image.
    Image {
        /// Rows.
        height: i32,
        /// Columns.
        width: i32,
        /// Bytes of a pixel: 1 grey, 3 RGB, 4 RGBA.
        colorspace: i32,
        /// The PNG file.
        encoded: Bytes,
    },
    /// A WAV file.
    Audio {
        /// Frames a second.
        sample_rate: f32,
        /// Samples in a frame.
        num_channels: i64,
        /// Frames.
        length_frames: i64,
        /// The WAV file.
        encoded: Bytes,
    },
    /// Any tensor.
    Tensor(Tensor),
}

/// One entry of a summary.
#[derive(Debug, Clone)]
pub struct SummaryValue {
    /// Tag, empty for `TensorSummary`.
    pub tag: String,
    /// Node that made it; only `TensorSummary` says.
    pub node_name: String,
    /// A serialised `SummaryMetadata`, if there is to be one. What does not parse counts as empty.
    pub metadata: Option<Bytes>,
    /// What it shows.
    pub content: SummaryContent,
}

impl SummaryValue {
    /// An entry with a tag and no metadata.
    pub fn new(tag: String, content: SummaryContent) -> SummaryValue {
        SummaryValue {
            tag,
            node_name: String::new(),
            metadata: None,
            content,
        }
    }
}

/// A serialised `Summary` of `values`. Only tensors of variants cannot be encoded.
pub fn encode_summary(values: Vec<SummaryValue>) -> Result<Vec<u8>> {
    let value = values
        .into_iter()
        .map(to_proto)
        .collect::<Result<Vec<_>>>()?;
    Ok(proto::Summary { value }.encode_to_vec())
}

/// The tags in a serialised `Summary`, or `None` if it does not parse.
pub fn summary_tags(bytes: &[u8]) -> Option<Vec<String>> {
    let summary = proto::Summary::decode(bytes).ok()?;
    Some(summary.value.into_iter().map(|v| v.tag).collect())
}

fn to_proto(value: SummaryValue) -> Result<summary::Value> {
    use summary::value::Value;
    let content = match value.content {
        SummaryContent::Scalar(v) => Value::SimpleValue(v),
        SummaryContent::Histogram(h) => Value::Histo(h.to_proto()),
        SummaryContent::Image {
            height,
            width,
            colorspace,
            encoded,
        } => Value::Image(summary::Image {
            height,
            width,
            colorspace,
            encoded_image_string: encoded,
        }),
        SummaryContent::Audio {
            sample_rate,
            num_channels,
            length_frames,
            encoded,
        } => Value::Audio(summary::Audio {
            sample_rate,
            num_channels,
            length_frames,
            encoded_audio_string: encoded,
            content_type: "audio/wav".into(),
        }),
        SummaryContent::Tensor(t) => Value::Tensor(tensor_proto(&t)?),
    };
    let parse = |bytes: Bytes| SummaryMetadata::decode(bytes).unwrap_or_default();
    Ok(summary::Value {
        tag: value.tag,
        node_name: value.node_name,
        metadata: value.metadata.map(parse),
        value: Some(content),
    })
}

/// Numbers as raw content, strings in the field that every reader of summaries knows.
fn tensor_proto(tensor: &Tensor) -> Result<TensorProto> {
    match tensor.as_strings() {
        Ok(strings) => Ok(TensorProto {
            dtype: tensor.dtype().number(),
            tensor_shape: Some(encode_shape(tensor.shape())),
            string_val: strings.to_vec(),
            ..Default::default()
        }),
        Err(_) => encode_tensor(tensor),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scalar_takes_tensorflows_bytes_even_when_zero() {
        let value = |v| SummaryValue::new("a".into(), SummaryContent::Scalar(v));
        let bytes = encode_summary(vec![value(1.5), value(0.0)]).unwrap();
        let expect = b"\x0a\x08\x0a\x01a\x15\0\0\xc0\x3f\x0a\x08\x0a\x01a\x15\0\0\0\0";
        assert_eq!(bytes, expect);
        assert_eq!(summary_tags(&bytes).unwrap(), ["a", "a"]);
        assert!(summary_tags(b"bogus").is_none());
    }

    #[test]
    fn strings_stay_readable_and_bad_metadata_is_empty() {
        let value = SummaryValue {
            tag: "t".into(),
            node_name: String::new(),
            metadata: Some(Bytes::from_static(b"bogus")),
            content: SummaryContent::Tensor(Tensor::string(Bytes::from_static(b"x"))),
        };
        let bytes = encode_summary(vec![value]).unwrap();
        let parsed = proto::Summary::decode(bytes.as_slice()).unwrap();
        assert_eq!(parsed.value[0].metadata, Some(SummaryMetadata::default()));
        let Some(summary::value::Value::Tensor(t)) = &parsed.value[0].value else {
            panic!("no tensor: {parsed:?}");
        };
        assert_eq!(t.string_val, ["x"]);
    }
}
