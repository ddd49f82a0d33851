//! Checkpoints against real TensorFlow: the files in `fixtures/bundle` and `fixtures/v1` were
//! written by `fixtures/make.py`; ours must equal them byte for byte, and we must read theirs.
#![allow(clippy::disallowed_methods, reason = "tests make files")]
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod common;

use bytes::Bytes;
use common::{TempDir, assert_same_file, fixture};
use downpour_formats::LocalStorage;
use downpour_formats::bundle::{
    BundleReader, SaveTensor, TensorSlice, merge_v2, restore_v2, save_v2,
};
use downpour_tensor::{Complex32, Complex64, DType, Element, Shape, Tensor, bf16, f16};

fn ramp<T: Element>(shape: impl Into<Shape>, value: impl Fn(usize) -> T) -> Tensor {
    let shape = shape.into();
    Tensor::from_vec((0..shape.num_elements()).map(value).collect(), shape).unwrap()
}

fn strings(values: &[&'static [u8]], shape: impl Into<Shape>) -> Tensor {
    Tensor::strings(
        values.iter().map(|s| Bytes::from_static(s)).collect(),
        shape,
    )
    .unwrap()
}

fn floats(shape: impl Into<Shape>) -> Tensor {
    ramp(shape, |i| i as f32)
}

type Item<'a> = (&'a str, &'a str, Tensor);

fn save(prefix: &str, items: &[Item<'_>]) {
    let tensors: Vec<_> = items
        .iter()
        .map(|(name, shape_and_slice, tensor)| SaveTensor {
            name,
            shape_and_slice,
            tensor: tensor.clone(),
        })
        .collect();
    save_v2(&LocalStorage::new(), prefix, &tensors).unwrap();
}

static LONG: [u8; 300] = [b'x'; 300];

fn mixed() -> Vec<Item<'static>> {
    let s = [2, 3];
    vec![
        ("t/float32", "", ramp(s, |i| i as f32)),
        ("t/float64", "", ramp(s, |i| i as f64)),
        ("t/int32", "", ramp(s, |i| i as i32)),
        ("t/uint8", "", ramp(s, |i| i as u8)),
        ("t/int16", "", ramp(s, |i| i as i16)),
        ("t/int8", "", ramp(s, |i| i as i8)),
        (
            "t/complex64",
            "",
            ramp(s, |i| Complex32::new(i as f32, 0.0)),
        ),
        ("t/int64", "", ramp(s, |i| i as i64)),
        ("t/uint16", "", ramp(s, |i| i as u16)),
        (
            "t/complex128",
            "",
            ramp(s, |i| Complex64::new(i as f64, 0.0)),
        ),
        ("t/float16", "", ramp(s, |i| f16::from_f32(i as f32))),
        ("t/uint32", "", ramp(s, |i| i as u32)),
        ("t/uint64", "", ramp(s, |i| i as u64)),
        ("t/bfloat16", "", ramp(s, |i| bf16::from_f32(i as f32))),
        ("t/bool", "", Tensor::vector(vec![true, false, true])),
        (
            "s/vector",
            "",
            strings(&[b"hello", b"", &LONG, b"\x00\xff"], [4]),
        ),
        ("s/scalar", "", Tensor::string("scalar")),
        ("s/empty", "", strings(&[], [0, 2])),
        ("zero", "", Tensor::scalar(0i64)),
        ("empty", "", floats([0])),
        ("empty/deep", "", ramp([3, 0, 2], |i| i as f64)),
        ("a", "", Tensor::scalar(3.5f32)),
        ("global_step", "", Tensor::scalar(1_234_567_890_123i64)),
        ("utf8/äö", "", Tensor::scalar(1.0f32)),
    ]
}

/// The 10 by 4 ramp that is cut up, and its parts.
fn w() -> Tensor {
    floats([10, 4])
}

fn rows(start: usize, end: usize) -> Tensor {
    w().rows(start, end - start).unwrap()
}

fn columns(start: usize, end: usize) -> Tensor {
    let width = end - start;
    ramp([10, width], |i| (i / width * 4 + start + i % width) as f32)
}

fn sliced() -> Vec<Item<'static>> {
    vec![
        ("w", "10 4 0,4:-", rows(0, 4)),
        ("w", "10 4 4,3:-", rows(4, 7)),
        ("w", "10 4 7,3:-", rows(7, 10)),
        ("v/part", "10 4 0,5:0,4", rows(0, 5)),
        ("v/part", "10 4 5,5:0,4", rows(5, 10)),
        ("columns", "10 4 -:0,1", columns(0, 1)),
        ("columns", "10 4 -:1,3", columns(1, 4)),
        ("whole", "10 4 -:-", w()),
        ("spelled", "10 4 0,10:0,4", w()),
        ("far", "3000000 2000000,7", ramp([7], |i| i as i8)),
        ("s", "4 0,2", strings(&[b"p", b"qq"], [2])),
        ("s", "4 2,2", strings(&[b"r", b""], [2])),
        ("lone", "", floats([4])),
    ]
}

fn same_tensor(a: &Tensor, b: &Tensor) -> bool {
    let bytes = |t: &Tensor| t.buffer().map(|b| b.as_bytes().to_vec());
    a.dtype() == b.dtype()
        && a.shape() == b.shape()
        && bytes(a) == bytes(b)
        && a.as_strings().ok() == b.as_strings().ok()
}

#[test]
fn plain_checkpoints_equal_tensorflows() {
    let dir = TempDir::new();
    save(&dir.file("mixed"), &mixed());
    for suffix in [".data-00000-of-00001", ".index"] {
        let name = format!("mixed{suffix}");
        assert_same_file(&dir.file(&name), &fixture(&format!("bundle/{name}")));
    }
    assert_eq!(dir.names().len(), 2);
}

#[test]
fn partitioned_checkpoints_equal_tensorflows() {
    let dir = TempDir::new();
    save(&dir.file("sliced"), &sliced());
    for suffix in [".data-00000-of-00001", ".index"] {
        let name = format!("sliced{suffix}");
        assert_same_file(&dir.file(&name), &fixture(&format!("bundle/{name}")));
    }
}

#[test]
fn an_index_of_many_blocks_equals_tensorflows() {
    let dir = TempDir::new();
    let names: Vec<String> = (0..6000)
        .map(|i| format!("layer_{i:05}/{}", "x".repeat(i % 97)))
        .collect();
    let items: Vec<_> = names
        .iter()
        .enumerate()
        .map(|(i, name)| (name.as_str(), "", Tensor::scalar(i as i32)))
        .collect();
    save(&dir.file("many"), &items);
    let sums = std::fs::read_to_string(fixture("bundle/many.sums")).unwrap();
    assert_eq!(sums.lines().count(), 2);
    for line in sums.lines() {
        let [suffix, len, sum] = line.split(' ').collect::<Vec<_>>().try_into().unwrap();
        let data = std::fs::read(dir.file(&format!("many{suffix}"))).unwrap();
        let mut crc = flate2::Crc::new();
        crc.update(&data);
        assert_eq!(data.len().to_string(), len);
        assert_eq!(crc.sum().to_string(), sum);
    }
    let storage = LocalStorage::new();
    let reader = BundleReader::open(&storage, &dir.file("many")).unwrap();
    reader.verify_data().unwrap();
    assert_eq!(reader.list().unwrap().len(), 6000);
    let last = reader.read(&names[5999]).unwrap();
    assert_eq!(last.scalar_value::<i32>().unwrap(), 5999);
}

/// Writes the three parts of the merge fixture; returns their prefixes.
fn parts(dir: &TempDir, sub: &str) -> Vec<String> {
    let prefix = |i| dir.file(&format!("{sub}/part-{i:05}-of-00003"));
    save(
        &prefix(0),
        &[
            ("b", "", Tensor::scalar(1.0f32)),
            ("w", "10 4 0,4:0,4", rows(0, 4)),
        ],
    );
    save(
        &prefix(1),
        &[
            ("w", "10 4 4,6:0,4", rows(4, 10)),
            ("a", "", strings(&[b"x", b"yy"], [2])),
        ],
    );
    save(&prefix(2), &[("c", "", floats([5]))]);
    (0..3).map(prefix).collect()
}

fn merge(prefixes: &[&String], destination: &str) {
    let prefixes: Vec<&str> = prefixes.iter().map(|p| p.as_str()).collect();
    merge_v2(&LocalStorage::new(), &prefixes, destination, true, false).unwrap();
}

#[test]
fn merged_checkpoints_equal_tensorflows() {
    let dir = TempDir::new();
    let p = parts(&dir, "tmp");
    merge(&[&p[0], &p[1], &p[2]], &dir.file("merged"));
    let p = parts(&dir, "tmp");
    merge(&[&p[1], &p[2]], &dir.file("left"));
    merge(&[&dir.file("left"), &p[0]], &dir.file("twice"));
    let mut expected = Vec::new();
    for name in ["merged", "twice"] {
        for i in 0..3 {
            expected.push(format!("{name}.data-{i:05}-of-00003"));
        }
        expected.push(format!("{name}.index"));
    }
    for name in &expected {
        assert_same_file(&dir.file(name), &fixture(&format!("bundle/{name}")));
    }
    // Parts, their indexes and their directory are gone.
    assert_eq!(dir.names(), expected);
    let storage = LocalStorage::new();
    for name in ["merged", "twice"] {
        let reader = BundleReader::open(&storage, &fixture(&format!("bundle/{name}"))).unwrap();
        reader.verify_data().unwrap();
        assert!(same_tensor(&reader.read("w").unwrap(), &w()));
        assert!(same_tensor(&reader.read("c").unwrap(), &floats([5])));
    }
}

#[test]
fn everything_tensorflow_wrote_is_read_back() {
    let storage = LocalStorage::new();
    let prefix = fixture("bundle/mixed");
    let items = mixed();
    let names: Vec<&str> = items.iter().map(|i| i.0).collect();
    let dtypes: Vec<DType> = items.iter().map(|i| i.2.dtype()).collect();
    let empty = vec![""; names.len()];
    let read = restore_v2(&storage, &prefix, &names, &empty, &dtypes).unwrap();
    for (read, (name, _, tensor)) in read.iter().zip(&items) {
        assert!(same_tensor(read, tensor), "{name}");
    }
    let reader = BundleReader::open(&storage, &prefix).unwrap();
    reader.verify_data().unwrap();
    let mut sorted = names.clone();
    sorted.sort();
    let listed: Vec<String> = reader.list().unwrap().into_iter().map(|e| e.name).collect();
    assert_eq!(listed, sorted);
}

#[test]
fn any_part_comes_back_from_any_partitioning() {
    let storage = LocalStorage::new();
    let prefix = fixture("bundle/sliced");
    let reader = BundleReader::open(&storage, &prefix).unwrap();
    reader.verify_data().unwrap();
    for name in ["w", "v/part", "columns", "whole", "spelled"] {
        assert!(same_tensor(&reader.read(name).unwrap(), &w()), "{name}");
        for start in 0..10 {
            for end in start + 1..=10 {
                for (left, right) in [(0, 4), (1, 3), (3, 4)] {
                    let (rows, cols) = (end - start, right - left);
                    let text = format!("{start},{rows}:{left},{cols}");
                    let slice = TensorSlice::parse(&text).unwrap();
                    let part = reader.read_slice(name, &slice).unwrap();
                    let expected = ramp([rows, cols], |i| {
                        ((start + i / cols) * 4 + left + i % cols) as f32
                    });
                    assert!(same_tensor(&part, &expected), "{name} {text}");
                }
            }
        }
    }
    let info = reader.info("w").unwrap();
    assert_eq!(
        (info.dtype, info.shape),
        (DType::Float, Shape::from([10, 4]))
    );
    assert_eq!(info.slices.len(), 3);
    let far = TensorSlice::parse("2000001,2").unwrap();
    let far = reader.read_slice("far", &far).unwrap();
    assert_eq!(far.as_slice::<i8>().unwrap(), [1, 2]);
    let exact = TensorSlice::parse("2,2").unwrap();
    let exact = reader.read_slice("s", &exact).unwrap();
    assert_eq!(exact.as_strings().unwrap(), ["r", ""]);
    let status = reader.read("s").unwrap_err();
    assert_eq!(status.message, "Dtype string not supported.");
}

#[test]
fn first_format_checkpoints_are_read() {
    let storage = LocalStorage::new();
    let expected = [
        ("float", floats([2, 3])),
        ("double", ramp([3], |i| i as f64)),
        ("int32", ramp([3], |i| i as i32 - 1)),
        ("int64", ramp([3], |i| i as i64 - 1)),
        ("uint8", Tensor::vector(vec![0u8, 255])),
        ("int8", Tensor::vector(vec![-128i8, 127])),
        ("int16", Tensor::vector(vec![-5i16, 5])),
        ("bool", Tensor::vector(vec![true, false])),
        (
            "half",
            Tensor::vector(vec![f16::from_f32(1.5), f16::from_f32(-2.0)]),
        ),
        ("complex", Tensor::vector(vec![Complex32::new(1.0, 2.0)])),
        ("string", strings(&[b"a", b"bc"], [2])),
        ("scalar", Tensor::scalar(7.0f32)),
        ("big", ramp([2000], |_| 0.0f32)),
    ];
    for (name, tensor) in &expected {
        let prefix = fixture("v1/whole");
        let read = restore_v2(&storage, &prefix, &[name], &[""], &[tensor.dtype()]).unwrap();
        assert!(same_tensor(&read[0], tensor), "{name}");
    }
    let pattern = fixture("v1/sliced-?-of-2");
    let read = |name: &str, spec: &str| {
        restore_v2(&storage, &pattern, &[name], &[spec], &[DType::Float]).map(|mut t| t.remove(0))
    };
    assert!(same_tensor(&read("w", "").unwrap(), &w()));
    assert!(same_tensor(&read("w", "10 4 3,4:-").unwrap(), &rows(3, 7)));
    assert_eq!(
        read("only1", "").unwrap().scalar_value::<f32>().unwrap(),
        1.0
    );
    let one = fixture("v1/sliced-0-of-2");
    let status = restore_v2(&storage, &one, &["w"], &[""], &[DType::Float]).unwrap_err();
    assert_eq!(status.message, "Error copying slice data");
}
