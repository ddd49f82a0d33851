//! Tests of [`super`]: TensorFlow's own messages, protobuf's odder encodings, hostile bytes.

use super::*;
use crate::testing::Noise;

fn fixture(name: &str) -> Bytes {
    let path = format!(
        "{}/tests/fixtures/example/{name}",
        env!("CARGO_MANIFEST_DIR")
    );
    Bytes::from(std::fs::read(path).unwrap())
}

/// A length-delimited field.
fn delimited(number: u8, data: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    crate::coding::put_varint(&mut out, data.len() as u64);
    out.extend(data);
    out
}

/// An example with one feature `f` of these bytes.
fn example(feature: &[u8]) -> Bytes {
    let entry = [delimited(1, b"f"), delimited(2, feature)].concat();
    delimited(1, &delimited(1, &entry)).into()
}

fn values(feature: &[u8]) -> Option<FeatureValues> {
    let data = example(feature);
    let features = parse_example(&data)?;
    features.get(b"f").unwrap().values(&data)
}

#[test]
fn tensorflows_example_is_understood() {
    let data = fixture("example");
    let features = parse_example(&data).unwrap();
    assert_eq!(features.iter().count(), 5);
    let get = |name: &str| {
        features
            .get(name.as_bytes())
            .unwrap()
            .values(&data)
            .unwrap()
    };
    assert_eq!(get("floats"), FeatureValues::Floats(vec![1.5, -2.0]));
    assert_eq!(get("ints"), FeatureValues::Int64s(vec![1, -1, 1 << 40]));
    let strings = vec![Bytes::new(), Bytes::from_static(b"xyz")];
    assert_eq!(get("bytes"), FeatureValues::Bytes(strings));
    assert_eq!(get("no ints"), FeatureValues::Int64s(vec![]));
    assert_eq!(get("nothing"), FeatureValues::None);
    assert!(features.get(b"absent").is_none());
}

#[test]
fn tensorflows_sequence_example_is_understood() {
    let data = fixture("sequence");
    let (context, lists) = parse_sequence_example(&data).unwrap();
    let id = context.get(b"id").unwrap().values(&data).unwrap();
    assert_eq!(id, FeatureValues::Int64s(vec![9]));
    let words = &lists.iter().find(|(name, _)| *name == b"words").unwrap().1;
    assert_eq!(words.len(), 2);
    let second = words[1].values(&data).unwrap();
    assert_eq!(second, FeatureValues::Bytes(vec!["b".into(), "c".into()]));
    let none = &lists.iter().find(|(name, _)| *name == b"none").unwrap().1;
    assert!(none.is_empty());
}

#[test]
fn unpacked_split_and_replaced_lists_follow_protobuf() {
    // Two unpacked integers, then a packed list: all belong together.
    let list = [&[1 << 3, 5, 1 << 3, 6][..], &delimited(1, &[7, 8])].concat();
    let feature = delimited(3, &list);
    assert_eq!(
        values(&feature),
        Some(FeatureValues::Int64s(vec![5, 6, 7, 8]))
    );
    let twice = [
        delimited(3, &delimited(1, &[1])),
        delimited(3, &delimited(1, &[2])),
    ]
    .concat();
    assert_eq!(values(&twice), Some(FeatureValues::Int64s(vec![1, 2])));
    let both = [feature, delimited(1, &delimited(1, b"x"))].concat();
    assert_eq!(values(&both), Some(FeatureValues::Bytes(vec!["x".into()])));
    let unpacked = [&[1 << 3 | 5][..], &1.5f32.to_le_bytes()].concat();
    assert_eq!(
        values(&delimited(2, &unpacked)),
        Some(FeatureValues::Floats(vec![1.5]))
    );
    // Unknown fields of every kind are passed over.
    let odd = [
        &[9 << 3, 1, 9 << 3 | 1][..],
        &[0; 8],
        &[9 << 3 | 5, 0, 0, 0, 0],
    ]
    .concat();
    assert_eq!(values(&odd), Some(FeatureValues::None));
}

#[test]
fn the_last_of_equal_names_counts() {
    let one = example(&delimited(3, &delimited(1, &[1])));
    let two = example(&delimited(3, &delimited(1, &[2])));
    let data = Bytes::from([one, two].concat());
    let features = parse_example(&data).unwrap();
    let value = features.get(b"f").unwrap().values(&data).unwrap();
    assert_eq!(value, FeatureValues::Int64s(vec![2]));
}

#[test]
fn malformed_lists_are_noticed() {
    assert_eq!(values(&delimited(2, &delimited(1, &[0; 7]))), None);
    assert_eq!(values(&delimited(3, &delimited(1, &[0xff; 3]))), None);
    assert_eq!(
        values(&delimited(3, &[0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f])),
        None
    );
    assert_eq!(values(&[0x0b]), None);
    assert_eq!(values(&[0x00, 0x00]), None);
}

#[test]
fn damaged_examples_never_panic() {
    let mut noise = Noise(7);
    for name in ["example", "sequence"] {
        let good = fixture(name);
        let read = |data: Bytes| {
            let mut seen = 0;
            if let Some(features) = parse_example(&data) {
                seen += features.iter().filter_map(|(_, f)| f.values(&data)).count();
            }
            if let Some((context, lists)) = parse_sequence_example(&data) {
                seen += context.iter().filter_map(|(_, f)| f.values(&data)).count();
                seen += lists.len();
            }
            seen
        };
        assert!(read(good.clone()) > 0);
        for cut in 0..good.len() {
            read(good.slice(..cut));
        }
        for _ in 0..5000 {
            let mut bad = good.to_vec();
            for _ in 0..=noise.below(3) {
                let at = noise.below(bad.len());
                bad[at] = noise.next() as u8;
            }
            read(bad.into());
        }
    }
}

#[test]
fn a_million_features_cost_linear_time() {
    let one = delimited(1, &[]);
    let data = Bytes::from(delimited(1, &one.repeat(1_000_000)));
    assert_eq!(parse_example(&data).unwrap().iter().count(), 1_000_000);
}
