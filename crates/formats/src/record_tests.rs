//! Tests of [`super`]: TensorFlow's bytes and error texts, hostile lengths, compressed files.

use super::*;
use crate::storage::LocalStorage;
use crate::testing::TempDir;

const HELLO: [u8; 21] = [
    5, 0, 0, 0, 0, 0, 0, 0, 0xea, 0xb2, 0x04, 0x3e, b'h', b'e', b'l', b'l', b'o', 0xbb, 0x1f, 0x1c,
    0x19,
];

fn write(dir: &TempDir, records: &[&[u8]], compression: Compression) -> String {
    let path = dir.file("records");
    let file = LocalStorage::new().create_stream(&path).unwrap();
    let mut writer = RecordWriter::new(file, compression);
    for record in records {
        writer.write(record).unwrap();
    }
    writer.finish().unwrap();
    path
}

fn read(path: &str, options: RecordOptions) -> (Vec<Bytes>, Option<Status>) {
    collect(RecordReader::open(&LocalStorage::new(), path, options).unwrap())
}

fn collect(mut reader: RecordReader) -> (Vec<Bytes>, Option<Status>) {
    let mut records = Vec::new();
    loop {
        match reader.read() {
            Ok(Some(record)) => records.push(record),
            Ok(None) => return (records, None),
            Err(status) => return (records, Some(status)),
        }
    }
}

fn read_bytes(data: &[u8], compression: Compression) -> (Vec<Bytes>, Option<Status>) {
    let options = RecordOptions {
        compression,
        ..RecordOptions::default()
    };
    collect(RecordReader::new(
        Box::new(Bytes::copy_from_slice(data)),
        options,
    ))
}

/// A record whose length field (with the right checksum) claims `length`.
fn claims(length: u64, data: &[u8]) -> Vec<u8> {
    let length = length.to_le_bytes();
    let mut out = length.to_vec();
    out.extend(crc32c::masked(&length).to_le_bytes());
    out.extend(data);
    out
}

#[test]
fn bytes_are_tensorflows() {
    let dir = TempDir::new();
    let path = write(&dir, &[b"hello"], Compression::None);
    assert_eq!(std::fs::read(path).unwrap(), HELLO);
}

#[test]
fn records_come_back_under_every_compression() {
    let long = vec![b'x'; 3 << 20];
    let records: [&[u8]; 4] = [b"hello", b"", &long, b"end"];
    for compression in [Compression::None, Compression::Zlib, Compression::Gzip] {
        let dir = TempDir::new();
        let path = write(&dir, &records, compression);
        let options = RecordOptions {
            compression,
            ..RecordOptions::default()
        };
        let (back, error) = read(&path, options);
        assert_eq!(error, None);
        assert_eq!(back, records);
    }
}

#[test]
fn damage_reads_as_in_tensorflow() {
    let mut file = HELLO.to_vec();
    file.extend(HELLO);
    let text = |data: &[u8]| {
        let (records, error) = read_bytes(data, Compression::None);
        (records.len(), error.map(|e| (e.code, e.message)))
    };
    let loss = |message: &str| Some((Code::DataLoss, message.to_owned()));
    let flipped = |at: usize| {
        let mut data = file.clone();
        data[at] ^= 1;
        data
    };
    let not_one = "corrupted record at 0 (Is this even a TFRecord file?)";
    assert_eq!(text(&flipped(0)), (0, loss(not_one)));
    assert_eq!(text(&flipped(8)), (0, loss(not_one)));
    assert_eq!(text(&flipped(13)), (0, loss("corrupted record at 12")));
    assert_eq!(text(&flipped(17)), (0, loss("corrupted record at 12")));
    assert_eq!(text(&flipped(34)), (1, loss("corrupted record at 33")));
    for cut in 0..=file.len() {
        let expected = match cut {
            0..12 => (0, None),
            12..21 => (
                0,
                loss("truncated record at 0' failed with Read less bytes than requested"),
            ),
            21..33 => (1, None),
            33..42 => (
                1,
                loss("truncated record at 21' failed with Read less bytes than requested"),
            ),
            _ => (2, None),
        };
        assert_eq!(text(&file[..cut]), expected, "cut at {cut}");
    }
}

#[test]
fn huge_lengths_with_right_checksums_cost_no_memory() {
    for length in [1 << 20, 1 << 40, 1 << 63, u64::MAX] {
        let (_, error) = read_bytes(&claims(length, b"abc"), Compression::None);
        assert!(is_truncation(&error.unwrap()), "{length}");
    }
}

#[test]
fn empty_records_forever_end_with_the_file() {
    let mut file = claims(0, &crc32c::masked(b"").to_le_bytes());
    file = file.repeat(10_000);
    let (records, error) = read_bytes(&file, Compression::None);
    assert_eq!((records.len(), error), (10_000, None));
}

#[test]
fn a_compressed_bomb_stops_at_the_limit() {
    let dir = TempDir::new();
    let zeros = vec![0; 8 << 20];
    let path = write(&dir, &[&zeros], Compression::Gzip);
    assert!(std::fs::metadata(&path).unwrap().len() < 20_000);
    let options = RecordOptions {
        compression: Compression::Gzip,
        max_record: 1 << 20,
        ..RecordOptions::default()
    };
    let (_, error) = read(&path, options);
    assert_eq!(error.unwrap().code, Code::ResourceExhausted);
}

#[test]
fn damaged_compressed_files_are_typed_errors() {
    let dir = TempDir::new();
    for compression in [Compression::Zlib, Compression::Gzip] {
        let path = write(&dir, &[b"hello", b"world"], compression);
        let good = std::fs::read(&path).unwrap();
        for cut in 0..good.len() {
            let (records, error) = read_bytes(&good[..cut], compression);
            assert!(records.len() <= 2);
            if let Some(error) = error {
                assert_eq!(error.code, Code::DataLoss);
            }
        }
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            let (records, error) = read_bytes(&bad, compression);
            // Some header bits (time, name) carry nothing; everything else is noticed.
            if error.is_none() && records.len() == 2 {
                assert_eq!(records, ["hello", "world"]);
            }
        }
        let (_, error) = read_bytes(&HELLO, compression);
        assert_eq!(
            error.unwrap().message,
            "inflate() failed with error -3: incorrect header check"
        );
    }
}

#[test]
fn gzip_members_concatenate() {
    let dir = TempDir::new();
    let path = write(&dir, &[b"hello"], Compression::Gzip);
    let one = std::fs::read(&path).unwrap();
    let (records, error) = read_bytes(&one.repeat(2), Compression::Gzip);
    assert_eq!((records.len(), error), (2, None));
    let mut junk = one.clone();
    junk.extend(b"junkjunkjunkjunk");
    let (records, error) = read_bytes(&junk, Compression::Gzip);
    assert_eq!(records.len(), 1);
    assert_eq!(error.unwrap().code, Code::DataLoss);
}

#[test]
fn a_growing_file_can_be_read_on_from_any_cut() {
    let dir = TempDir::new();
    let whole = HELLO.repeat(2);
    for cut in HELLO.len()..whole.len() {
        let path = dir.write("x", &whole[..cut]);
        let mut reader =
            RecordReader::open(&LocalStorage::new(), &path, RecordOptions::default()).unwrap();
        assert_eq!(reader.read().unwrap().unwrap(), "hello");
        for _ in 0..2 {
            match reader.read() {
                Ok(record) => assert_eq!(record, None),
                Err(status) => assert!(is_truncation(&status)),
            }
        }
        std::fs::write(&path, &whole).unwrap();
        assert_eq!(reader.read().unwrap().unwrap(), "hello", "{cut}");
        assert_eq!(reader.offset(), 42);
        reader.seek(0).unwrap();
        assert_eq!(reader.read().unwrap().unwrap(), "hello");
    }
}
