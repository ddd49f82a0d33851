//! What objects do as files, on a store in memory.

use super::*;
use downpour_formats::bundle::{SaveTensor, restore_v2, save_v2};
use downpour_formats::storage::read_bounded;
use downpour_tensor::{DType, Tensor};
use object_store::memory::InMemory;

fn objects() -> Objects {
    Objects {
        bucket: Arc::new(InMemory::new()),
        caller: Caller::new(Patience::default()),
        words: Words::new("b", &Environment::new()),
    }
}

fn put(objects: &Objects, path: &str, data: &[u8]) {
    let mut file = objects.create(path).unwrap();
    file.write(data).unwrap();
    file.publish().unwrap();
}

fn read(objects: &Objects, path: &str) -> Vec<u8> {
    read_bounded(objects, path, 1 << 30).unwrap()
}

#[test]
fn names_are_directories_while_something_is_below_them() {
    let objects = objects();
    assert!(!objects.exists("s3://b/d").unwrap());
    objects.create_dir("s3://b/d").unwrap();
    put(&objects, "s3://b/d/x", b"1");
    put(&objects, "s3://b/d/e/y", b"2");
    put(&objects, "s3://b/dx", b"3");
    assert!(objects.exists("s3://b/d").unwrap());
    assert_eq!(objects.list("s3://b/d").unwrap(), ["e", "x"]);
    assert_eq!(objects.list("s3://b").unwrap(), ["d", "dx"]);
    assert_eq!(
        objects.list("s3://b/none").unwrap_err().code,
        Code::NotFound
    );
    let removed = objects.remove_dir("s3://b/d").unwrap_err();
    assert_eq!(removed.code, Code::FailedPrecondition);
    let opened = objects.open("s3://b/d").unwrap_err();
    assert_eq!(opened.message, "s3://b/d; Is a directory");
    assert_eq!(
        objects.glob("s3://b/d*").unwrap(),
        ["s3://b/d", "s3://b/dx"]
    );
    assert_eq!(
        objects.glob("s3://b/*/?").unwrap(),
        ["s3://b/d/e", "s3://b/d/x"]
    );
}

#[test]
fn nothing_is_there_before_it_is_published() {
    let objects = objects();
    // Small, of exactly one part, and of several.
    for size in [0, 100, PART, PART + 1, 3 * PART] {
        let data: Vec<u8> = (0..size).map(|i| (i >> 4) as u8).collect();
        let mut file = objects.create("s3://b/x").unwrap();
        for piece in data.chunks(1 << 20) {
            file.write(piece).unwrap();
        }
        file.seal().unwrap();
        assert!(!objects.exists("s3://b/x").unwrap());
        file.publish().unwrap();
        assert!(read(&objects, "s3://b/x") == data);
        objects.delete("s3://b/x").unwrap();
    }
}

#[test]
fn a_new_file_is_refused_where_one_is() {
    let objects = objects();
    let mut late = objects.create("s3://b/x").unwrap();
    late.write(b"late").unwrap();
    put(&objects, "s3://b/x", b"first");
    let refused = late.publish_new().unwrap_err();
    assert_eq!(refused.code, Code::AlreadyExists);
    assert_eq!(read(&objects, "s3://b/x"), b"first");
}

#[test]
fn a_file_that_grows_is_seen_as_of_its_last_sync() {
    let objects = objects();
    let mut stream = objects.create_stream("s3://b/e").unwrap();
    assert_eq!(objects.size("s3://b/e").unwrap(), 0);
    let mut all = Vec::new();
    for i in 0..3u8 {
        let data = vec![i; PART / 2 + 7];
        all.extend_from_slice(&data);
        stream.write(&data).unwrap();
        stream.sync().unwrap();
        assert!(read(&objects, "s3://b/e") == all);
    }
    drop(stream);
    let mut more = objects.append_stream("s3://b/e").unwrap();
    more.write(b"end").unwrap();
    drop(more);
    all.extend_from_slice(b"end");
    assert!(read(&objects, "s3://b/e") == all);
}

#[test]
fn a_renamed_object_has_its_new_name_only() {
    let objects = objects();
    put(&objects, "s3://b/x", b"1");
    put(&objects, "s3://b/y", b"2");
    objects.rename("s3://b/x", "s3://b/y").unwrap();
    assert_eq!(objects.list("s3://b").unwrap(), ["y"]);
    objects.copy_through("s3://b/y", "s3://b/z", 1).unwrap();
    assert_eq!(read(&objects, "s3://b/z"), b"1");
}

#[test]
fn checkpoints_are_saved_and_restored() {
    let objects = objects();
    for value in [1.0f32, 2.0] {
        let tensors = [SaveTensor {
            name: "x",
            shape_and_slice: "",
            tensor: Tensor::vector(vec![value; 3 << 20]),
        }];
        save_v2(&objects, "s3://b/m/ckpt-1", &tensors).unwrap();
        let read = restore_v2(&objects, "s3://b/m/ckpt-1", &["x"], &[""], &[DType::Float]);
        let read = read.unwrap().remove(0);
        assert!(read.as_slice::<f32>().unwrap().iter().all(|v| *v == value));
    }
}
