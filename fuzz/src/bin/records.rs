//! TFRecord files (plain and compressed), examples, the checkpoint state file, cluster texts.

use bytes::Bytes;
use downpour_cluster::{ClusterSpec, Definition, parse_duration};
use downpour_formats::checkpoint_state::CheckpointState;
use downpour_formats::example::fast::{
    Sink, read_example, read_feature_list, read_sequence_example,
};
use downpour_formats::example::json::json_to_example;
use downpour_formats::example::{FeatureKind, parse_example, parse_sequence_example};
use downpour_formats::record::{Compression, RecordOptions, RecordReader};
use downpour_graph::DeviceName;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut seeds = downpour_fuzz::files("crates/formats/tests/fixtures", |n| {
        matches!(
            n,
            "plain" | "gzip" | "zlib" | "example" | "sequence" | "odd" | "relative"
        )
    });
    seeds.push(br#"{"features":{"feature":{"a":{"int64List":{"value":["1",-2.0,[]]}}}}}"#.to_vec());
    seeds.push(br#"{"ps": ["a:1", "b:2"], "worker": {"7": "[::1]:3"}}"#.to_vec());
    seeds.push(br#"{"cluster": {"ps": ["a:1"]}, "task": {"type": "ps", "index": 0}}"#.to_vec());
    seeds.push(b"drain = '2m'\n[cluster]\nps = ['a:1']\n".to_vec());
    seeds.push(b"/job:ps/replica:0/task:1/device:CPU:0".to_vec());
    downpour_fuzz::fuzz("records", seeds, |input| {
        let bytes = Bytes::copy_from_slice(input);
        for kind in ["", "GZIP", "ZLIB"] {
            let options = RecordOptions {
                compression: Compression::from_option(kind),
                ..Default::default()
            };
            let mut reader = RecordReader::new(Box::new(bytes.clone()), options);
            for _ in 0..100 {
                match reader.read() {
                    Ok(Some(_)) => {}
                    _ => break,
                }
            }
        }
        let _ = parse_example(input);
        let _ = parse_sequence_example(input);
        quick(input);
        let _ = json_to_example(input);
        let _ = CheckpointState::parse(input);
        if let Ok(text) = std::str::from_utf8(input) {
            let _ = ClusterSpec::from_json(text);
            let _ = Definition::from_tf_config(text);
            let _ = Definition::from_file(text);
            let _ = parse_duration(text);
            if let Ok(name) = DeviceName::parse(text) {
                assert_eq!(DeviceName::parse(&name.to_string()).as_ref(), Ok(&name));
            }
        }
    })
}

/// Counts values, so that reading is not left out.
#[derive(Default)]
struct Count(usize);

impl<'a> Sink<'a> for Count {
    fn float(&mut self, _: f32) {
        self.0 += 1;
    }
    fn int(&mut self, _: i64) {
        self.0 += 1;
    }
    fn bytes(&mut self, value: &'a [u8]) {
        self.0 += value.len();
    }
}

/// Everything the quick parser of examples reads.
fn quick(input: &[u8]) {
    let kinds = [FeatureKind::Bytes, FeatureKind::Float, FeatureKind::Int64];
    let mut count = Count::default();
    for (_, feature) in read_example(input).unwrap_or_default() {
        if let Ok(Some(kind)) = feature.kind() {
            let _ = feature.read(kind, &mut count);
        }
    }
    let _ = read_sequence_example(input, |_, _, value| {
        for kind in kinds {
            let _ = read_feature_list(value, kind, &mut count, |_| ());
        }
    });
}
