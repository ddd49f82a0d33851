//! Checkpoints that lie. Every case must be a typed error, never a panic, a wrong value, or memory
//! for what is not there; texts are TensorFlow 2.21's where it answers at all.
#![allow(clippy::disallowed_methods, reason = "tests make files")]
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod common;

use common::{Noise, TempDir, fixture};
use downpour_formats::LocalStorage;
use downpour_formats::bundle::{BundleReader, restore_v2};
use downpour_formats::crc32c::masked;
use downpour_formats::table::TableWriter;
use downpour_graph::{Code, Result};
use downpour_tensor::{DType, Tensor};
use downpour_wire::proto;
use downpour_wire::proto::tensor_slice_proto::{Extent, extent::HasLengthHack};
use prost::Message;

/// Data file of two floats.
const DATA: [u8; 8] = [0, 0, 0x80, 0x3f, 0, 0, 0, 0x40];

fn header() -> proto::BundleHeaderProto {
    let version = proto::VersionDef {
        producer: 1,
        ..Default::default()
    };
    proto::BundleHeaderProto {
        num_shards: 1,
        endianness: 0,
        version: Some(version),
    }
}

/// The entry of a vector over all of [`DATA`].
fn entry() -> proto::BundleEntryProto {
    proto::BundleEntryProto {
        dtype: 1,
        shape: Some(shape(&[2])),
        size: 8,
        crc32c: masked(&DATA),
        ..Default::default()
    }
}

fn shape(dims: &[i64]) -> proto::TensorShapeProto {
    let dim = |&size: &i64| proto::tensor_shape_proto::Dim {
        size,
        name: String::new(),
    };
    proto::TensorShapeProto {
        dim: dims.iter().map(dim).collect(),
        unknown_rank: false,
    }
}

fn slice(extents: &[(i64, i64)]) -> proto::TensorSliceProto {
    let extent = |&(start, length): &(i64, i64)| Extent {
        start,
        has_length_hack: Some(HasLengthHack::Length(length)),
    };
    proto::TensorSliceProto {
        extent: extents.iter().map(extent).collect(),
    }
}

/// Key of a slice of vector `a`, for small numbers.
fn key(start: u8, length: u8) -> Vec<u8> {
    vec![0, b'a', 0, 1, 1, 1, 0x80 + start, 0x80 + length]
}

struct Bundle(TempDir);

impl Bundle {
    fn new(header: &[u8], entries: &[(&[u8], Vec<u8>)], data: &[u8]) -> Bundle {
        let bundle = Bundle(TempDir::new());
        let mut table = TableWriter::new(Vec::new());
        table.add(b"", header).unwrap();
        for (key, value) in entries {
            table.add(key, value).unwrap();
        }
        bundle.write(&table.finish().unwrap(), data);
        bundle
    }

    fn write(&self, index: &[u8], data: &[u8]) {
        std::fs::write(self.0.file("p.index"), index).unwrap();
        std::fs::write(self.0.file("p.data-00000-of-00001"), data).unwrap();
    }

    fn restore(&self, name: &str, spec: &str, dtype: DType) -> Result<Tensor> {
        let storage = LocalStorage::new();
        let read = restore_v2(&storage, &self.0.file("p"), &[name], &[spec], &[dtype]);
        read.map(|mut tensors| tensors.remove(0))
    }

    /// The failure of reading float vector `a`, without the directory in its text.
    fn failure(&self) -> (Code, String) {
        let status = self.restore("a", "", DType::Float).unwrap_err();
        let text = status.message.replace(&self.0.file("p"), "P");
        (status.code, text)
    }

    fn verify(&self) -> Result<()> {
        BundleReader::open(&LocalStorage::new(), &self.0.file("p"))?.verify()
    }
}

fn with_header(change: impl Fn(&mut proto::BundleHeaderProto)) -> Bundle {
    let mut header = header();
    change(&mut header);
    Bundle::new(
        &header.encode_to_vec(),
        &[(b"a", entry().encode_to_vec())],
        &DATA,
    )
}

fn with_entry(change: impl Fn(&mut proto::BundleEntryProto)) -> Bundle {
    let mut entry = entry();
    change(&mut entry);
    Bundle::new(
        &header().encode_to_vec(),
        &[(b"a", entry.encode_to_vec())],
        &DATA,
    )
}

/// Vector `a` of `len` elements in these slices, with the stored ones under their keys.
fn with_slices(
    len: i64,
    slices: &[(i64, i64)],
    stored: &[(Vec<u8>, proto::BundleEntryProto)],
) -> Bundle {
    let whole = proto::BundleEntryProto {
        shape: Some(shape(&[len])),
        slices: slices.iter().map(|s| slice(&[*s])).collect(),
        size: 0,
        crc32c: 0,
        ..entry()
    };
    let mut entries: Vec<(&[u8], Vec<u8>)> = stored
        .iter()
        .map(|(k, e)| (k.as_slice(), e.encode_to_vec()))
        .collect();
    entries.push((b"a", whole.encode_to_vec()));
    Bundle::new(&header().encode_to_vec(), &entries, &DATA)
}

#[test]
fn the_honest_one_is_read() {
    let tensor = with_entry(|_| {}).restore("a", "", DType::Float).unwrap();
    assert_eq!(tensor.as_slice::<f32>().unwrap(), [1.0, 2.0]);
    let tensor = with_slices(2, &[(0, 2)], &[(key(0, 2), entry())]).restore("a", "", DType::Float);
    assert_eq!(tensor.unwrap().as_slice::<f32>().unwrap(), [1.0, 2.0]);
}

#[test]
fn headers_that_lie_are_refused() {
    use Code::{DataLoss, InvalidArgument, NotFound, Unimplemented};
    let missing = |text: &str| {
        (
            NotFound,
            format!("P.data-{text}; No such file or directory"),
        )
    };
    let shards = |n| with_header(|h| h.num_shards = n).failure();
    assert_eq!(shards(0), missing("00000-of-00000"));
    assert_eq!(shards(2), missing("00000-of-00002"));
    assert_eq!(shards(-1), missing("00000-of--0001"));
    assert_eq!(shards(i32::MAX), missing("00000-of-2147483647"));
    assert_eq!(with_header(|h| h.endianness = 1).failure().0, Unimplemented);
    let version = |change: fn(&mut proto::VersionDef)| {
        with_header(|h| change(h.version.as_mut().unwrap())).failure()
    };
    let bad = |text: &str| (InvalidArgument, text.to_owned());
    assert_eq!(
        version(|v| v.producer = -1),
        bad(
            "Checkpoint producer version -1 below min producer 0 supported by TensorFlow 2.21.0.  \
             Please regenerate your checkpoint."
        )
    );
    assert_eq!(
        version(|v| v.min_consumer = 2),
        bad(
            "Checkpoint min consumer version 2 above current version 1 for TensorFlow 2.21.0.  \
             Please upgrade TensorFlow."
        )
    );
    assert_eq!(
        version(|v| v.bad_consumers = vec![1]),
        bad(
            "Checkpoint disallows consumer version 1.  Please upgrade TensorFlow: this version is \
             likely buggy."
        )
    );
    let broken = Bundle::new(b"\xff\xff", &[], &DATA);
    assert_eq!(
        broken.failure(),
        (
            DataLoss,
            "Unable to read file (P.index). Perhaps the file is corrupt or was produced by a newer \
             version of TensorFlow with format changes (unable to parse header): Entry for key  \
             not parseable."
                .to_owned()
        )
    );
    let mut table = TableWriter::new(Vec::new());
    table.add(b"a", &entry().encode_to_vec()).unwrap();
    broken.write(&table.finish().unwrap(), &DATA);
    assert_eq!(broken.failure().0, DataLoss);
}

#[test]
fn entries_that_lie_are_refused() {
    use Code::{DataLoss, InvalidArgument, NotFound, OutOfRange};
    type Change = fn(&mut proto::BundleEntryProto);
    let short = "Read less bytes than requested; tensor a at offset";
    let type_is = "tensor_name = a; expected dtype float does not equal original dtype ";
    let cases: [(Change, Code, String); 17] = [
        (
            |e| e.shard_id = 1,
            NotFound,
            "P.data-00001-of-00001; No such file or directory".into(),
        ),
        (
            |e| e.shard_id = -1,
            NotFound,
            "P.data--0001-of-00001; No such file or directory".into(),
        ),
        (
            |e| e.size = 4,
            DataLoss,
            "Invalid size in bundle entry: key a; stored size 4; expected size 8".into(),
        ),
        (
            |e| e.size = -8,
            DataLoss,
            "Invalid size in bundle entry: key a; stored size -8; expected size 8".into(),
        ),
        (
            |e| e.offset = 4,
            OutOfRange,
            format!("{short} 4 of P.data-00000-of-00001"),
        ),
        (
            |e| e.offset = i64::MAX,
            OutOfRange,
            format!("{short} {} of P.data-00000-of-00001", i64::MAX),
        ),
        (
            |e| e.offset = -4,
            InvalidArgument,
            "Seeking to a negative position: -4".into(),
        ),
        (
            |e| e.dtype = 0,
            InvalidArgument,
            format!("{type_is}INVALID"),
        ),
        (
            |e| e.dtype = 99,
            InvalidArgument,
            format!("{type_is}unknown dtype enum (99)"),
        ),
        (
            |e| e.dtype = 101,
            InvalidArgument,
            format!("{type_is}float_ref"),
        ),
        (
            |e| e.shape = Some(shape(&[-2])),
            DataLoss,
            "Invalid tensor shape: a dim { size: -2 }".into(),
        ),
        (
            |e| e.shape = Some(shape(&[1 << 62, 4])),
            DataLoss,
            "Invalid tensor shape: a dim { size: 4611686018427387904 } dim { size: 4 }".into(),
        ),
        (
            |e| e.shape = Some(shape(&[1; 300])),
            DataLoss,
            format!("Invalid tensor shape: a{}", " dim { size: 1 }".repeat(300)),
        ),
        // A terabyte that is not there, with a size that agrees.
        (
            |e| {
                e.shape = Some(shape(&[1 << 40]));
                e.size = 4 << 40;
            },
            OutOfRange,
            format!("{short} 0 of P.data-00000-of-00001"),
        ),
        (
            |e| e.shape = Some(shape(&[1 << 40])),
            DataLoss,
            format!(
                "Invalid size in bundle entry: key a; stored size 8; expected size {}",
                4u64 << 40
            ),
        ),
        (
            |e| e.shape = Some(shape(&[i64::MAX])),
            DataLoss,
            "Invalid size in bundle entry: key a; stored size 8; expected size unknown".into(),
        ),
        (
            |e| e.slices = vec![slice(&[(-1, 2)])],
            DataLoss,
            "Invalid slice in bundle entry: Extent { start: -1, has_length_hack: Some(Length(2)) }"
                .into(),
        ),
    ];
    for (change, code, text) in cases {
        let bundle = with_entry(change);
        assert_eq!(bundle.failure(), (code, text));
        // Seen without reading any data, too.
        assert!(bundle.verify().is_err());
    }
    let contents = with_entry(|e| e.crc32c ^= 1);
    let (code, text) = contents.failure();
    assert_eq!(code, DataLoss);
    let front = "TensorBundle at P shard 0 (8 bytes): Checksum does not match: stored ";
    assert!(text.starts_with(front), "{text}");
    assert!(
        text.ends_with("; tensor a at offset 0 of P.data-00000-of-00001"),
        "{text}"
    );
    assert!(contents.verify().is_ok());
    let unparseable = Bundle::new(&header().encode_to_vec(), &[(b"a", vec![0xff; 2])], &DATA);
    let expected = (DataLoss, "Entry for key a not parseable.".to_owned());
    assert_eq!(unparseable.failure(), expected);
}

#[test]
fn slices_that_lie_are_refused() {
    use Code::{DataLoss, Internal, InvalidArgument, NotFound};
    let failure = |len, slices: &[_], stored: &[_]| with_slices(len, slices, stored).failure();
    let missing = failure(2, &[(0, 2)], &[]);
    assert_eq!(missing.0, NotFound);
    assert!(missing.1.starts_with("Key \0a"));
    assert_eq!(failure(2, &[(-1, 2)], &[(key(0, 2), entry())]).0, DataLoss);
    assert_eq!(failure(2, &[(0, -2)], &[(key(0, 2), entry())]).0, DataLoss);
    let text = "Extent in dimension 0 out of bounds: shape = [2], slice = 1,2";
    assert_eq!(
        failure(2, &[(1, 2)], &[(key(1, 2), entry())]),
        (Internal, text.into())
    );
    assert_eq!(failure(2, &[(i64::MAX, i64::MAX)], &[]).0, Internal);
    let text = "Overlapping slices: existing slice = 0,2, new slice = 1,2";
    let stored = [(key(0, 2), entry()), (key(1, 2), entry())];
    assert_eq!(
        failure(3, &[(0, 2), (1, 2)], &stored),
        (Internal, text.into())
    );
    let text = "Overlapping slices: existing slice = 0,2, new slice = 0,2";
    assert_eq!(
        failure(2, &[(0, 2), (0, 2)], &stored[..1]),
        (Internal, text.into())
    );
    let text =
        "Does not have sufficient slices for partitioned tensor a to restore in slice_spec: -";
    assert_eq!(
        failure(3, &[(0, 2)], &stored[..1]),
        (InvalidArgument, text.into())
    );
    // TensorFlow reads past the stored slice here, and takes the wrong type below.
    let mut small = entry();
    small.shape = Some(shape(&[1]));
    small.size = 4;
    assert_eq!(failure(2, &[(0, 2)], &[(key(0, 2), small)]).0, DataLoss);
    let mut int = entry();
    int.dtype = 3;
    assert_eq!(failure(2, &[(0, 2)], &[(key(0, 2), int)]).0, DataLoss);
    // A slice that is itself only slices would be a way round in circles.
    let mut nested = entry();
    nested.slices = vec![slice(&[(0, 2)])];
    assert_eq!(failure(2, &[(0, 2)], &[(key(0, 2), nested)]).0, DataLoss);
}

#[test]
fn one_piece_of_data_cannot_pose_as_many() {
    let slices: Vec<(i64, i64)> = (0..20).map(|i| (2 * i, 2)).collect();
    let stored: Vec<_> = slices
        .iter()
        .map(|(s, _)| (key(*s as u8, 2), entry()))
        .collect();
    let (code, text) = with_slices(40, &slices, &stored).failure();
    assert_eq!(code, Code::DataLoss);
    assert_eq!(
        text,
        "The slices of tensor a claim 160 bytes but the data files have 8"
    );
}

#[test]
fn a_terabyte_of_slices_is_refused_unread() {
    let mut huge = entry();
    huge.shape = Some(shape(&[1 << 38]));
    huge.size = 4 << 38;
    let key = b"\x00a\x00\x01\x01\x01\x80\xfc\x40\x00\x00\x00\x00".to_vec();
    let failure = with_slices(1 << 39, &[(0, 1 << 38)], &[(key, huge)]).restore(
        "a",
        &format!("{} 5,{}", 1u64 << 39, 1u64 << 37),
        DType::Float,
    );
    assert!(matches!(
        failure.unwrap_err().code,
        Code::OutOfRange | Code::NotFound
    ));
}

#[test]
fn sparse_files_do_not_buy_string_elements() {
    let bundle = with_entry(|e| {
        e.dtype = 7;
        e.shape = Some(shape(&[1 << 30]));
    });
    let status = bundle.restore("a", "", DType::String).unwrap_err();
    assert_eq!(status.code, Code::OutOfRange);
}

#[test]
fn unordered_indexes_are_found_by_verification() {
    let bundle = with_entry(|_| {});
    let mut index = std::fs::read(bundle.0.file("p.index")).unwrap();
    // Cut at every byte, the whole of it is read only whole.
    for cut in 0..index.len() {
        bundle.write(&index[..cut], &DATA);
        assert!(matches!(
            bundle.failure().0,
            Code::DataLoss | Code::OutOfRange
        ));
    }
    index[0] ^= 1;
    bundle.write(&index, &DATA);
    let (code, text) = bundle.failure();
    assert_eq!(code, Code::DataLoss);
    assert!(text.ends_with("(failed to seek to header entry): block checksum mismatch"));
}

#[test]
fn every_flipped_bit_of_data_is_detected() {
    let storage = LocalStorage::new();
    let dir = TempDir::new();
    for name in ["mixed", "sliced"] {
        let index = std::fs::read(fixture(&format!("bundle/{name}.index"))).unwrap();
        let data = std::fs::read(fixture(&format!("bundle/{name}.data-00000-of-00001"))).unwrap();
        std::fs::write(dir.file("p.index"), &index).unwrap();
        let data_file = dir.file("p.data-00000-of-00001");
        let verify = || BundleReader::open(&storage, &dir.file("p"))?.verify_data();
        std::fs::write(&data_file, &data).unwrap();
        verify().unwrap();
        let mut noise = Noise(99);
        for _ in 0..1000 {
            let mut bad = data.clone();
            bad[noise.below(data.len())] ^= 1 << noise.below(8);
            std::fs::write(&data_file, &bad).unwrap();
            let status = verify().unwrap_err();
            assert!(matches!(status.code, Code::DataLoss | Code::OutOfRange));
            assert!(status.message.contains("; tensor "), "{status}");
        }
        for cut in (0..data.len()).step_by(7) {
            std::fs::write(&data_file, &data[..cut]).unwrap();
            let reader = BundleReader::open(&storage, &dir.file("p")).unwrap();
            assert!(matches!(
                reader.verify().unwrap_err().code,
                Code::OutOfRange | Code::DataLoss
            ));
        }
    }
}

#[test]
fn flipped_bits_of_the_index_never_change_a_value() {
    let storage = LocalStorage::new();
    let dir = TempDir::new();
    let index = std::fs::read(fixture("bundle/sliced.index")).unwrap();
    let data = std::fs::read(fixture("bundle/sliced.data-00000-of-00001")).unwrap();
    std::fs::write(dir.file("p.data-00000-of-00001"), &data).unwrap();
    let read = || {
        let reader = BundleReader::open(&storage, &dir.file("p"))?;
        reader.verify()?;
        reader.read("w")
    };
    std::fs::write(dir.file("p.index"), &index).unwrap();
    let expected = read().unwrap();
    let expected = expected.as_slice::<f32>().unwrap();
    let mut noise = Noise(5);
    let mut refused = 0;
    for _ in 0..2000 {
        let mut bad = index.clone();
        bad[noise.below(index.len())] ^= 1 << noise.below(8);
        std::fs::write(dir.file("p.index"), &bad).unwrap();
        match read() {
            Ok(tensor) => assert_eq!(tensor.as_slice::<f32>().unwrap(), expected),
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 1500, "{refused}");
}

#[test]
fn litter_and_directories_do_not_confuse() {
    let bundle = with_entry(|_| {});
    std::fs::write(bundle.0.file("p.index.tempstate123"), b"junk").unwrap();
    std::fs::write(bundle.0.file("p.data-00000-of-00001.tempstate5"), b"junk").unwrap();
    bundle.restore("a", "", DType::Float).unwrap();
    std::fs::remove_file(bundle.0.file("p.index")).unwrap();
    std::fs::create_dir(bundle.0.file("p.index")).unwrap();
    let expected = (
        Code::FailedPrecondition,
        "P.index; Is a directory".to_owned(),
    );
    assert_eq!(bundle.failure(), expected);
}
