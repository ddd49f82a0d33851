//! Summaries as their ops hand them on: plain values in, serialised `Summary` messages out.

use crate::histogram::Histogram;
use bytes::Bytes;
use downpour_graph::Result;
use downpour_tensor::Tensor;
use downpour_wire::proto::{self, SummaryMetadata, TensorProto, summary};
use downpour_wire::{MessageBytes as _, encode_shape, encode_tensor, put_bytes, take_field};

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
    /// Tag, empty for `TensorSummary`. Not always text: the ops that write summaries do not look.
    pub tag: Bytes,
    /// Node that made it; only `TensorSummary` says.
    pub node_name: String,
    /// A serialised `SummaryMetadata`, if there is to be one. What does not parse counts as empty.
    pub metadata: Option<Bytes>,
    /// What it shows.
    pub content: SummaryContent,
}

impl SummaryValue {
    /// An entry with a tag and no metadata.
    pub fn new(tag: Bytes, content: SummaryContent) -> SummaryValue {
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
    let mut out = Vec::new();
    for value in values {
        put_bytes(VALUES, &encode_value(value)?, &mut out);
    }
    Ok(out)
}

/// The values of a serialised `Summary`: the tags, and the message without what else it holds.
/// `None` if it does not parse.
pub fn summary_values(bytes: &[u8]) -> Option<(Vec<String>, Vec<u8>)> {
    let summary = proto::Summary::from_bytes(bytes).ok()?;
    let (mut rest, mut values) = (bytes, Vec::with_capacity(bytes.len()));
    while !rest.is_empty() {
        let (number, field) = take_field(&mut rest)?;
        if number == VALUES {
            values.extend_from_slice(field);
        }
    }
    Some((summary.value.into_iter().map(|v| v.tag).collect(), values))
}

/// Numbers of the fields that are written one by one.
const VALUES: u32 = 1;
const TAG: u32 = 1;
const NODE_NAME: u32 = 7;
const METADATA: u32 = 9;

/// One `Summary.Value`, its fields in the order of their numbers as TensorFlow writes them. The
/// generated code would put `node_name` after the tensor, and take no tag that is not UTF-8.
fn encode_value(value: SummaryValue) -> Result<Vec<u8>> {
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
    let is_tensor = matches!(content, Value::Tensor(_));
    let content = summary::Value {
        value: Some(content),
        ..Default::default()
    }
    .to_bytes();
    let mut out = Vec::with_capacity(content.len() + value.tag.len() + 16);
    if !value.tag.is_empty() {
        put_bytes(TAG, &value.tag, &mut out);
    }
    if !is_tensor {
        out.extend_from_slice(&content);
    }
    if !value.node_name.is_empty() {
        put_bytes(NODE_NAME, value.node_name.as_bytes(), &mut out);
    }
    if is_tensor {
        out.extend_from_slice(&content);
    }
    if let Some(metadata) = value.metadata {
        // Fields this program does not know are kept.
        let parses = SummaryMetadata::from_bytes(metadata.clone()).is_ok();
        put_bytes(METADATA, if parses { &metadata } else { b"" }, &mut out);
    }
    Ok(out)
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
        let with_more = [&bytes[..], b"\x98\x06\x07"].concat();
        let (tags, values) = summary_values(&with_more).unwrap();
        assert_eq!((tags, values), (vec!["a".into(), "a".into()], bytes));
        assert!(summary_values(b"bogus").is_none());
    }

    #[test]
    fn strings_stay_readable_and_bad_metadata_is_empty() {
        let value = SummaryValue {
            tag: "t".into(),
            node_name: String::new(),
            metadata: Some(Bytes::from_static(b"bogus")),
            content: SummaryContent::Tensor(Tensor::string(Bytes::from_static(b"x"))),
        };
        let bytes = encode_summary(vec![value.clone()]).unwrap();
        let parsed = proto::Summary::from_bytes(bytes.as_slice()).unwrap();
        assert_eq!(parsed.value[0].metadata, Some(SummaryMetadata::default()));
        let Some(summary::value::Value::Tensor(t)) = &parsed.value[0].value else {
            panic!("no tensor: {parsed:?}");
        };
        assert_eq!(t.string_val, ["x"]);
        // A node's name comes before the tensor; bytes that are no text stay what they are.
        let named = SummaryValue {
            tag: Bytes::from_static(b"\xff"),
            node_name: "n".into(),
            metadata: Some(Bytes::from_static(b"\x98\x06\x07")),
            ..value
        };
        let expect = b"\x0a\x14\x0a\x01\xff:\x01nB\x07\x08\x07\x12\0B\x01xJ\x03\x98\x06\x07";
        assert_eq!(encode_summary(vec![named]).unwrap(), expect);
    }
}
