//! What the checkpoint ops answer to wrong requests: TensorFlow 2.21's codes and texts, observed
//! by running the same requests through it. Where it aborts the process, we answer.
#![allow(clippy::disallowed_methods, reason = "tests make files")]
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod common;

use common::TempDir;
use downpour_formats::LocalStorage;
use downpour_formats::bundle::{SaveTensor, merge_v2, restore_v2, save_v2};
use downpour_graph::{Code, Result, Status};
use downpour_tensor::{DType, Tensor, f16};

type Item<'a> = (&'a str, &'a str, Tensor);

fn save(prefix: &str, items: &[Item<'_>]) -> Result<()> {
    let tensors: Vec<_> = items
        .iter()
        .map(|(name, shape_and_slice, tensor)| SaveTensor {
            name,
            shape_and_slice,
            tensor: tensor.clone(),
        })
        .collect();
    save_v2(&LocalStorage::new(), prefix, &tensors)
}

fn restore(prefix: &str, requests: &[(&str, &str, DType)]) -> Result<Vec<Tensor>> {
    let names: Vec<_> = requests.iter().map(|r| r.0).collect();
    let specs: Vec<_> = requests.iter().map(|r| r.1).collect();
    let dtypes: Vec<_> = requests.iter().map(|r| r.2).collect();
    restore_v2(&LocalStorage::new(), prefix, &names, &specs, &dtypes)
}

fn ones(n: usize) -> Tensor {
    Tensor::vector(vec![1.0f32; n])
}

fn matrix(rows: usize, columns: usize, value: f32) -> Tensor {
    Tensor::from_vec(vec![value; rows * columns], [rows, columns]).unwrap()
}

fn check<T: std::fmt::Debug>(result: Result<T>, code: Code, message: &str) {
    let Status {
        code: c,
        message: m,
        ..
    } = result.unwrap_err();
    assert_eq!((c, m.as_str()), (code, message));
}

#[test]
fn wrong_saves_are_refused_and_leave_nothing() {
    use Code::{Internal, InvalidArgument};
    let dir = TempDir::new();
    let p = dir.file("x");
    let int = Tensor::vector(vec![1i32; 2]);
    let cases: Vec<(Vec<Item<'_>>, Code, &str)> = vec![
        (
            vec![("x", "", ones(1)), ("x", "", ones(1))],
            InvalidArgument,
            "Adding duplicate key: x",
        ),
        (
            vec![("x", "4 0,1", ones(2))],
            InvalidArgument,
            "Slice in shape_and_slice specification does not match the shape of the tensor to  \
             save: 4 0,1, tensor: [2]",
        ),
        (
            vec![("x", "4 0,5", ones(5))],
            Internal,
            "Extent in dimension 0 out of bounds: shape = [4], slice = 0,5",
        ),
        (
            vec![("x", "4 0,2", ones(2)), ("x", "", ones(2))],
            InvalidArgument,
            "Adding duplicate key: x",
        ),
        (
            vec![("x", "", ones(2)), ("x", "4 0,2", ones(2))],
            InvalidArgument,
            "Adding duplicate key: x",
        ),
        (
            vec![("x", "4 0,2", ones(2)), ("x", "5 2,2", ones(2))],
            InvalidArgument,
            "Slices of tensor x disagree about its type or shape: float [5]",
        ),
        (
            vec![("x", "4 0,2", ones(2)), ("x", "4 2,2", int)],
            InvalidArgument,
            "Slices of tensor x disagree about its type or shape: int32 [4]",
        ),
        (
            vec![("", "", ones(2))],
            InvalidArgument,
            "Cannot save a tensor with an empty name",
        ),
    ];
    for (items, code, message) in cases {
        check(save(&p, &items), code, message);
        assert!(dir.names().is_empty());
    }
    let status = save(&p, &[("x", "4 0,2", ones(2)), ("x", "4 0,2", ones(2))]).unwrap_err();
    assert!(status.message.starts_with("Adding duplicate key: \0x"));
}

#[test]
fn only_the_last_directory_is_created() {
    let dir = TempDir::new();
    save(&dir.file("one/x"), &[("x", "", ones(1))]).unwrap();
    let missing = dir.file("a/b");
    check(
        save(&dir.file("a/b/x"), &[("x", "", ones(1))]),
        Code::NotFound,
        &format!("{missing}; No such file or directory"),
    );
    std::fs::write(dir.file("file"), "").unwrap();
    let status = save(&dir.file("file/x"), &[("x", "", ones(1))]).unwrap_err();
    assert_eq!(status.code, Code::FailedPrecondition);
    assert!(status.message.ends_with("; Not a directory"));
    std::fs::create_dir(dir.file("e.data-00000-of-00001")).unwrap();
    let status = save(&dir.file("e"), &[("x", "", ones(1))]).unwrap_err();
    assert_eq!(status.code, Code::FailedPrecondition);
    assert!(status.message.ends_with("; Is a directory"));
}

#[test]
fn wrong_restores_read_as_in_tensorflow() {
    use Code::{Internal, InvalidArgument, NotFound};
    use DType::{BFloat16, Float, Half, Int32, String};
    let dir = TempDir::new();
    let q = dir.file("q");
    save(
        &q,
        &[
            ("a", "", matrix(2, 2, 1.0)),
            ("h", "", Tensor::scalar(f16::from_f32(1.0))),
            (
                "s",
                "",
                Tensor::strings(vec!["x".into(), "yy".into()], [2]).unwrap(),
            ),
            ("v", "4 3 0,2:-", matrix(2, 3, 1.0)),
            ("i", "4 3 0,2:-", matrix(2, 3, 1.0)),
            ("v", "4 3 2,2:-", matrix(2, 3, 0.0)),
        ],
    )
    .unwrap();
    let missing = "Key zz not found in checkpoint";
    check(restore(&q, &[("zz", "", Float)]), NotFound, missing);
    // Missing names are reported before wrong types, in order of names.
    check(
        restore(&q, &[("a", "", Int32), ("zz", "", Float)]),
        NotFound,
        missing,
    );
    check(
        restore(&q, &[("", "", Float)]),
        NotFound,
        "Key  not found in checkpoint",
    );
    let both = "tensor_name = a; expected dtype int32 does not equal original dtype float\n\
                tensor_name = h; expected dtype float does not equal original dtype half";
    check(
        restore(&q, &[("h", "", Float), ("a", "", Int32)]),
        InvalidArgument,
        both,
    );
    check(
        restore(&q, &[("h", "", BFloat16)]),
        InvalidArgument,
        "tensor_name = h; expected dtype bfloat16 does not equal original dtype half",
    );
    for spec in ["3 2 1,1:-", "3 2 -:-"] {
        check(
            restore(&q, &[("a", spec, Float)]),
            InvalidArgument,
            "tensor_name = a; shape in shape_and_slice spec [3,2] does not match the shape stored \
             in checkpoint: [2,2]",
        );
    }
    check(
        restore(&q, &[("a", "2 2 1,2:-", Float)]),
        Internal,
        "Extent in dimension 0 out of bounds: shape = [2,2], slice = 1,2:-",
    );
    check(
        restore(&q, &[("a", "2 2 junk", Float)]),
        InvalidArgument,
        "Expected a pair of numbers or '-' but got 'junk': string = junk",
    );
    check(
        restore(&q, &[("s", "2 1,1", String)]),
        InvalidArgument,
        "Dtype string not supported.",
    );
    assert!(restore(&q, &[("s", "2 -", String), ("h", "", Half)]).is_ok());
    let gap = "Does not have sufficient slices for partitioned tensor i to restore in slice_spec: ";
    check(
        restore(&q, &[("i", "", Float)]),
        InvalidArgument,
        &format!("{gap}-:-"),
    );
    check(
        restore(&q, &[("i", "4 3 1,2:-", Float)]),
        InvalidArgument,
        &format!("{gap}1,2:-"),
    );
    assert!(restore(&q, &[("i", "4 3 0,1:-", Float)]).is_ok());
    let nope = dir.file("nope");
    check(
        restore(&nope, &[("a", "", Float)]),
        NotFound,
        &format!(
            "Unsuccessful TensorSliceReader constructor: Failed to find any matching files for \
             {nope}"
        ),
    );
    let storage = LocalStorage::new();
    check(
        restore_v2(&storage, &q, &["a", "v"], &[""], &[Float, Float]),
        InvalidArgument,
        "tensor_names and shape_and_slices have different number of elements: 2 vs. 1",
    );
    check(
        restore_v2(&storage, &q, &["a", "v"], &["", ""], &[Float]),
        InvalidArgument,
        "Got 2 tensor names, but 1 expected dtypes.",
    );
}

#[test]
fn wrong_restores_of_the_first_format_read_as_in_tensorflow() {
    let whole = common::fixture("v1/whole");
    check(
        restore(&whole, &[("zz", "", DType::Float)]),
        Code::NotFound,
        &format!("Tensor name \"zz\" not found in checkpoint files {whole}"),
    );
    check(
        restore(&whole, &[("float", "", DType::Int32)]),
        Code::InvalidArgument,
        "Expected to restore a tensor of type int32, got a tensor of type float instead: \
         tensor_name = float",
    );
    check(
        restore(&whole, &[("int64", "4 1,1", DType::Int64)]),
        Code::InvalidArgument,
        "Shape in shape_and_slice spec does not match the shape in the save file: [4], save file \
         shape: [3]",
    );
    let dir = TempDir::new();
    for (data, cause) in [
        (vec![b'x'; 100], "not an sstable (bad magic number)"),
        (vec![b'x'; 10], "file is too short to be an sstable"),
    ] {
        let junk = dir.file("junk");
        std::fs::write(&junk, data).unwrap();
        check(
            restore(&junk, &[("a", "", DType::Float)]),
            Code::DataLoss,
            &format!(
                "Unable to open table file {junk}: DATA_LOSS: {cause}: perhaps your file is in a \
                 different file format and you need to use a different restore operator?"
            ),
        );
    }
}

#[test]
fn wrong_merges_read_as_in_tensorflow_and_move_nothing() {
    let dir = TempDir::new();
    let (p0, p1, zz, m) = (
        dir.file("t/p0"),
        dir.file("t/p1"),
        dir.file("t/zz"),
        dir.file("m"),
    );
    let storage = LocalStorage::new();
    let merge = |prefixes: &[&str], allow| merge_v2(&storage, prefixes, &m, true, allow);
    save(&p0, &[("a", "", ones(1)), ("v", "4 0,2", ones(2))]).unwrap();
    check(
        merge(&[&p0, &zz], false),
        Code::InvalidArgument,
        &format!(
            "allow_missing_files was set to false and {zz} did not exist.NOT_FOUND: {zz} not found"
        ),
    );
    let none = "At least one prefix checkpoint file must exist, but none existed.";
    check(merge(&[], false), Code::InvalidArgument, none);
    check(merge(&[&zz], true), Code::InvalidArgument, none);
    save(&p1, &[("a", "", ones(1))]).unwrap();
    check(
        merge(&[&p0, &p1], false),
        Code::InvalidArgument,
        &format!("Duplicate tensor keyed by a encountered, when merging prefix: {p1}"),
    );
    for other in [
        ("v", "5 2,2", ones(2)),
        ("v", "4 2,2", Tensor::vector(vec![1i32; 2])),
    ] {
        save(&p1, &[other]).unwrap();
        check(
            merge(&[&p0, &p1], false),
            Code::InvalidArgument,
            &format!(
                "Slices of tensor v disagree about its type or shape, when merging prefix: {p1}"
            ),
        );
    }
    // Data that went away is noticed before anything is moved.
    save(&p1, &[("c", "", ones(2))]).unwrap();
    std::fs::remove_file(format!("{p1}.data-00000-of-00001")).unwrap();
    assert_eq!(merge(&[&p0, &p1], false).unwrap_err().code, Code::NotFound);
    assert_eq!(dir.names(), ["t"]);
    assert!(restore(&p0, &[("a", "", DType::Float)]).is_ok());
    // What is missing may be left out.
    merge(&[&p0, &zz], true).unwrap();
    assert!(restore(&m, &[("a", "", DType::Float)]).is_ok());
}
