//! Tests of [`super`]: round trips, and every way a table can lie.

use super::*;
use crate::testing::Noise;
use downpour_graph::Code;

fn build(entries: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let mut writer = TableWriter::new(Vec::new());
    for (key, value) in entries {
        writer.add(key, value).unwrap();
    }
    writer.finish().unwrap()
}

fn open(data: &[u8]) -> Result<Table> {
    Table::open(Box::new(bytes::Bytes::copy_from_slice(data)))
}

fn collect(table: &Table) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut all = Vec::new();
    table.scan(|key, value| {
        all.push((key.to_vec(), value.to_vec()));
        Ok(())
    })?;
    Ok(all)
}

fn sample(n: usize, value: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    (0..n)
        .map(|i| (format!("layer/{i:06}").into_bytes(), vec![i as u8; value]))
        .collect()
}

/// A table around one raw block, with right checksums everywhere.
fn around(block: &[u8], kind: u8) -> Vec<u8> {
    let mut out = Vec::new();
    let mut put = |block: &[u8], kind: u8| {
        let mut handle = Vec::new();
        crate::coding::put_varint(&mut handle, out.len() as u64);
        crate::coding::put_varint(&mut handle, block.len() as u64);
        let mut checked = block.to_vec();
        checked.push(kind);
        out.extend(&checked);
        out.extend(crc32c::masked(&checked).to_le_bytes());
        handle
    };
    let data = put(block, kind);
    let mut index = vec![0, 1, data.len() as u8, b'z'];
    index.extend(&data);
    index.extend([0, 0, 0, 0, 1, 0, 0, 0]);
    let mut footer = put(&[0, 0, 0, 0, 1, 0, 0, 0], 0);
    footer.extend(put(&index, 0));
    footer.resize(40, 0);
    footer.extend(MAGIC.to_le_bytes());
    out.extend(footer);
    out
}

fn failure(data: &[u8]) -> Status {
    match open(data).and_then(|table| collect(&table)) {
        Ok(entries) => panic!("read {} entries", entries.len()),
        Err(status) => status,
    }
}

#[test]
fn what_was_written_is_read() {
    for (n, value) in [(0, 0), (1, 0), (15, 3), (16, 3), (17, 3), (40_000, 20)] {
        let entries = sample(n, value);
        let table = open(&build(&entries)).unwrap();
        assert_eq!(collect(&table).unwrap(), entries);
        for (key, value) in entries.iter().step_by(37) {
            assert_eq!(table.get(key).unwrap().as_ref(), Some(value));
        }
        for missing in ["", "layer", "layer/000000x", "zzz"] {
            assert_eq!(table.get(missing.as_bytes()).unwrap(), None);
        }
    }
}

#[test]
fn compressed_blocks_are_read() {
    let mut block = vec![0, 1, 100, b'k'];
    block.extend([7; 100]);
    block.extend([0, 0, 0, 0, 1, 0, 0, 0]);
    let packed = snap::raw::Encoder::new().compress_vec(&block).unwrap();
    assert!(packed.len() < block.len());
    let table = open(&around(&packed, 1)).unwrap();
    assert_eq!(table.get(b"k").unwrap(), Some(vec![7; 100]));
}

#[test]
fn frames_that_lie_are_tensorflows_errors() {
    let good = build(&sample(3, 3));
    let patched = |handles: &[u8]| {
        let mut data = good.clone();
        let at = data.len() - FOOTER;
        data[at..at + 40].fill(0);
        data[at..at + handles.len()].copy_from_slice(handles);
        data
    };
    let text = |data: &[u8]| {
        let status = failure(data);
        (status.code, status.message)
    };
    let loss = |message: &str| (Code::DataLoss, message.to_owned());
    assert_eq!(text(&[]), loss("file is too short to be an sstable"));
    assert_eq!(text(&[7]), loss("file is too short to be an sstable"));
    assert_eq!(text(&[7; 99]), loss("not an sstable (bad magic number)"));
    assert_eq!(text(&patched(&[0xff; 20])), loss("bad block handle"));
    let mut huge = vec![0, 0, 0];
    crate::coding::put_varint(&mut huge, u64::MAX);
    assert_eq!(text(&patched(&huge)), loss("handle.size() too big"));
    let short = (
        Code::OutOfRange,
        "Read less bytes than requested".to_owned(),
    );
    assert_eq!(text(&patched(&[0, 0, 0x80, 0x80, 0x40, 5])), short);
    let mut far = vec![0, 0];
    crate::coding::put_varint(&mut far, u64::MAX);
    far.push(5);
    assert_eq!(text(&patched(&far)), short);
}

#[test]
fn blocks_that_lie_are_tensorflows_errors() {
    let text = |block: &[u8], kind| failure(&around(block, kind)).message;
    assert_eq!(text(b"x", 9), "bad block type");
    assert_eq!(text(b"", 0), "bad block contents");
    assert_eq!(text(&[0xff; 4], 0), "bad block contents");
    assert_eq!(text(&[9; 10], 1), "corrupted compressed block contents");
    // Ten bytes that claim to unpack to 4 GiB.
    let bomb = [0xff, 0xff, 0xff, 0xff, 0x0f, 0, 0, 0, 0, 0];
    assert_eq!(text(&bomb, 1), "corrupted compressed block contents");
    let restarts = [0, 0, 0, 0, 1, 0, 0, 0];
    let block = |entries: &[u8]| [entries, &restarts].concat();
    // A prefix longer than the key before it; lengths past the end; a varint without end.
    assert_eq!(
        text(&block(&[0, 1, 0, b'a', 5, 1, 0, b'b']), 0),
        "bad entry in block"
    );
    assert_eq!(text(&block(&[1, 0, 0]), 0), "bad entry in block");
    assert_eq!(text(&block(&[0, 200, 1, 0]), 0), "bad entry in block");
    assert_eq!(text(&block(&[0, 0, 9, 1]), 0), "bad entry in block");
    assert_eq!(text(&block(&[0xff; 9]), 0), "bad entry in block");
    let disorder = "keys of the table are out of order";
    assert_eq!(text(&block(&[0, 1, 0, b'b', 0, 1, 0, b'a']), 0), disorder);
    assert_eq!(text(&block(&[0, 1, 0, b'b', 0, 1, 0, b'b']), 0), disorder);
}

#[test]
fn restarts_past_the_entries_cannot_mislead_a_lookup() {
    let mut block = vec![0, 1, 0, b'a', 0, 1, 0, b'c'];
    for restart in [0u32, 0xffff_ffff, 3] {
        block.extend(restart.to_le_bytes());
    }
    let table = open(&around(&block, 0)).unwrap();
    assert_eq!(table.get(b"b").unwrap_err().code, Code::DataLoss);
}

#[test]
fn truncation_at_every_byte_is_an_error() {
    let good = build(&sample(40, 5));
    for cut in 0..good.len() {
        assert!(matches!(
            failure(&good[..cut]).code,
            Code::DataLoss | Code::OutOfRange
        ));
    }
}

#[test]
fn flipped_bits_never_change_what_is_read() {
    let entries = sample(40, 5);
    let good = build(&entries);
    let mut noise = Noise(42);
    for _ in 0..2000 {
        let mut bad = good.clone();
        bad[noise.below(good.len())] ^= 1 << noise.below(8);
        if let Ok(read) = open(&bad).and_then(|table| collect(&table)) {
            assert_eq!(read, entries);
        }
    }
}
