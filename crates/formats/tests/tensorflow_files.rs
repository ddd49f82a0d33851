//! Records, events, histograms and the `checkpoint` file against real TensorFlow's
//! (`fixtures/make.py`).
#![allow(clippy::disallowed_methods, reason = "tests make files")]
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod common;

use common::{TempDir, assert_same_file, fixture};
use downpour_formats::checkpoint_state::CheckpointState;
use downpour_formats::event::{EventReader, EventWriter};
use downpour_formats::histogram::Histogram;
use downpour_formats::record::{Compression, RecordOptions, RecordReader, RecordWriter};
use downpour_formats::{LocalStorage, Storage};
use downpour_wire::proto;
use prost::Message;

fn records() -> Vec<Vec<u8>> {
    (0..20usize)
        .map(|i| i.to_string().into_bytes().repeat(i * i))
        .collect()
}

#[test]
fn records_are_read_under_every_compression() {
    for (name, compression) in [
        ("plain", Compression::None),
        ("zlib", Compression::Zlib),
        ("gzip", Compression::Gzip),
    ] {
        let options = RecordOptions {
            compression,
            ..RecordOptions::default()
        };
        let path = fixture(&format!("records/{name}"));
        let mut reader = RecordReader::open(&LocalStorage::new(), &path, options).unwrap();
        for expected in records() {
            assert_eq!(reader.read().unwrap().unwrap(), expected);
        }
        assert_eq!(reader.read().unwrap(), None);
    }
}

#[test]
fn plain_records_equal_tensorflows() {
    let dir = TempDir::new();
    let path = dir.file("plain");
    let file = LocalStorage::new().create_stream(&path).unwrap();
    let mut writer = RecordWriter::new(file, Compression::None);
    for record in records() {
        writer.write(&record).unwrap();
    }
    writer.finish().unwrap();
    assert_same_file(&path, &fixture("records/plain"));
}

#[test]
fn event_files_equal_tensorflows() {
    let storage = LocalStorage::new();
    let theirs = fixture("events/two");
    let mut reader = EventReader::open(&storage, &theirs).unwrap();
    let first = reader.read().unwrap().unwrap();
    let version = proto::event::What::FileVersion("brain.Event:2".to_owned());
    assert_eq!(first.what, Some(version));
    let dir = TempDir::new();
    let ours = dir.file("two");
    let mut writer = EventWriter::create(&storage, &ours, first.wall_time).unwrap();
    let mut steps = Vec::new();
    while let Some(event) = reader.read().unwrap() {
        steps.push((event.wall_time, event.step));
        writer.write(&event).unwrap();
    }
    writer.finish().unwrap();
    assert_eq!(steps, [(100.5, 7), (101.5, 0)]);
    assert_same_file(&ours, &theirs);
}

fn unhex(text: &str) -> Vec<u8> {
    let digit = |c: char| c.to_digit(16).unwrap() as u8;
    let digits: Vec<u8> = text.chars().map(digit).collect();
    digits
        .chunks(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect()
}

#[test]
fn histograms_equal_tensorflows() {
    let cases = std::fs::read_to_string(fixture("histogram/cases")).unwrap();
    assert_eq!(cases.lines().count(), 10);
    for case in cases.lines() {
        let [name, values, expected] = case.split(' ').collect::<Vec<_>>().try_into().unwrap();
        let values = unhex(values.trim_matches('-'));
        let values = values
            .chunks(8)
            .map(|v| f64::from_le_bytes(v.try_into().unwrap()));
        let ours = values.collect::<Histogram>().to_proto();
        let theirs = proto::HistogramProto::decode(unhex(expected).as_slice()).unwrap();
        assert_eq!(ours, theirs, "{name}");
        assert_eq!(ours.encode_to_vec(), unhex(expected), "{name}");
    }
}

#[test]
fn state_files_equal_tensorflows() {
    let dir = TempDir::new();
    let storage = LocalStorage::new();
    for name in ["odd", "relative"] {
        let read = CheckpointState::read(&storage, &fixture("state"), name);
        let state = read.unwrap().unwrap();
        state.write(&storage, &dir.file(""), name).unwrap();
        assert_same_file(&dir.file(name), &fixture(&format!("state/{name}")));
        if name == "relative" {
            assert_eq!(state.model_checkpoint_path, "model.ckpt-100");
            let order = state.candidates("/d");
            let order: Vec<_> = order.into_iter().map(|(_, path)| path.unwrap()).collect();
            assert_eq!(order, ["/d/model.ckpt-100", "/d/model.ckpt-50"]);
        } else {
            assert_eq!(state.model_checkpoint_path, "mü\"ll'er\\\n\t-1");
            assert_eq!(state.all_model_checkpoint_timestamps.len(), 5);
            assert_eq!(state.last_preserved_timestamp, -1.5);
        }
    }
}
