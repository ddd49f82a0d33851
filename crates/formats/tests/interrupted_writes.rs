//! Saves and merges that stop anywhere: a storage that fails, or dies, at its n-th operation, for
//! every n. What was a checkpoint before stays one, what is visible is whole, and the next save
//! succeeds over whatever was left behind.
#![allow(clippy::disallowed_methods, reason = "tests make files")]
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod common;

use common::TempDir;
use downpour_formats::bundle::{BundleReader, SaveTensor, merge_v2, save_v2};
use downpour_formats::checkpoint_state::{CheckpointState, latest_complete};
use downpour_formats::{LocalStorage, PendingFile, ReadAt, Storage, StreamFile};
use downpour_graph::{Result, Status};
use downpour_tensor::Tensor;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How the storage stops.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Stop {
    /// One operation fails, as on a full disk; the program goes on and tidies up.
    Fail,
    /// The process is gone: nothing after this happens, not even cleaning up.
    Die,
}

/// Lets `budget` operations through, then stops.
#[derive(Debug)]
struct Faulty {
    inner: LocalStorage,
    fuse: Arc<Fuse>,
}

#[derive(Debug)]
struct Fuse {
    stop: Stop,
    at: usize,
    done: AtomicUsize,
}

impl Fuse {
    fn spend(&self) -> Result<()> {
        let n = self.done.fetch_add(1, Ordering::SeqCst);
        let stopped = match self.stop {
            Stop::Fail => n == self.at,
            Stop::Die => n >= self.at,
        };
        if stopped {
            return Err(Status::resource_exhausted("x; No space left on device"));
        }
        Ok(())
    }

    fn dead(&self) -> bool {
        self.stop == Stop::Die && self.done.load(Ordering::SeqCst) > self.at
    }
}

#[derive(Debug)]
struct FaultyFile {
    inner: Option<Box<dyn PendingFile>>,
    fuse: Arc<Fuse>,
}

impl PendingFile for FaultyFile {
    fn write(&mut self, data: &[u8]) -> Result<()> {
        self.fuse.spend()?;
        self.inner.as_mut().unwrap().write(data)
    }

    fn seal(&mut self) -> Result<()> {
        self.fuse.spend()?;
        self.inner.as_mut().unwrap().seal()
    }

    fn publish(mut self: Box<Self>) -> Result<()> {
        self.fuse.spend()?;
        self.inner.take().unwrap().publish()
    }
}

impl Drop for FaultyFile {
    fn drop(&mut self) {
        // The dead do not remove their temporary files.
        if self.fuse.dead() {
            std::mem::forget(self.inner.take());
        }
    }
}

impl Storage for Faulty {
    fn open(&self, path: &str) -> Result<Box<dyn ReadAt>> {
        self.fuse.spend()?;
        self.inner.open(path)
    }
    fn create(&self, path: &str) -> Result<Box<dyn PendingFile>> {
        self.fuse.spend()?;
        Ok(Box::new(FaultyFile {
            inner: Some(self.inner.create(path)?),
            fuse: self.fuse.clone(),
        }))
    }
    fn create_stream(&self, path: &str) -> Result<Box<dyn StreamFile>> {
        self.inner.create_stream(path)
    }
    fn append_stream(&self, path: &str) -> Result<Box<dyn StreamFile>> {
        self.inner.append_stream(path)
    }
    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.fuse.spend()?;
        self.inner.rename(from, to)
    }
    fn delete(&self, path: &str) -> Result<()> {
        self.fuse.spend()?;
        self.inner.delete(path)
    }
    fn exists(&self, path: &str) -> Result<bool> {
        self.fuse.spend()?;
        self.inner.exists(path)
    }
    fn size(&self, path: &str) -> Result<u64> {
        self.inner.size(path)
    }
    fn create_dir(&self, path: &str) -> Result<()> {
        self.fuse.spend()?;
        self.inner.create_dir(path)
    }
    fn remove_dir(&self, path: &str) -> Result<()> {
        self.fuse.spend()?;
        self.inner.remove_dir(path)
    }
    fn list(&self, dir: &str) -> Result<Vec<String>> {
        self.inner.list(dir)
    }
    fn glob(&self, pattern: &str) -> Result<Vec<String>> {
        self.inner.glob(pattern)
    }
}

fn save(storage: &dyn Storage, prefix: &str, value: f32) -> Result<()> {
    let part = |spec: &'static str| SaveTensor {
        name: "w",
        shape_and_slice: spec,
        tensor: Tensor::vector(vec![value; 2]),
    };
    let whole = SaveTensor {
        name: "b",
        shape_and_slice: "",
        tensor: Tensor::scalar(value),
    };
    save_v2(storage, prefix, &[part("4 0,2"), whole, part("4 2,2")])
}

/// The value of the checkpoint at `prefix`, `None` if there is none; whatever is there is whole.
fn value(prefix: &str) -> Option<f32> {
    if !std::fs::exists(format!("{prefix}.index")).unwrap() {
        return None;
    }
    let storage = LocalStorage::new();
    let reader = BundleReader::open(&storage, prefix).unwrap();
    reader.verify_data().unwrap();
    let b = reader.read("b").unwrap().scalar_value::<f32>().unwrap();
    let w = reader.read("w").unwrap();
    assert_eq!(w.as_slice::<f32>().unwrap(), [b; 4]);
    Some(b)
}

/// Runs `work` with the storage stopping at its 0th, 1st, … operation until it no longer does;
/// `check` sees the outcome each time.
fn interrupt(
    stop: Stop,
    prepare: impl Fn(&TempDir),
    work: impl Fn(&dyn Storage, &TempDir) -> Result<()>,
    check: impl Fn(&TempDir, bool),
) {
    for at in 0..500 {
        let dir = TempDir::new();
        prepare(&dir);
        let fuse = Arc::new(Fuse {
            stop,
            at,
            done: AtomicUsize::new(0),
        });
        let storage = Faulty {
            inner: LocalStorage::new(),
            fuse: fuse.clone(),
        };
        let result = work(&storage, &dir);
        check(&dir, result.is_ok());
        if stop == Stop::Fail {
            let litter = dir.names().into_iter().find(|n| n.contains("tempstate"));
            assert_eq!(litter, None, "after operation {at}");
        }
        if fuse.done.load(Ordering::SeqCst) <= at {
            assert!(result.is_ok() && at > 8);
            return;
        }
    }
    panic!("the work never ended");
}

#[test]
fn an_interrupted_save_is_invisible_or_whole() {
    for stop in [Stop::Fail, Stop::Die] {
        interrupt(
            stop,
            |dir| save(&LocalStorage::new(), &dir.file("m-1"), 1.0).unwrap(),
            |storage, dir| save(storage, &dir.file("m-2"), 2.0),
            |dir, finished| {
                assert_eq!(value(&dir.file("m-1")), Some(1.0));
                let new = value(&dir.file("m-2"));
                assert!(new == Some(2.0) || (new.is_none() && !finished));
                save(&LocalStorage::new(), &dir.file("m-2"), 3.0).unwrap();
                assert_eq!(value(&dir.file("m-2")), Some(3.0));
            },
        );
    }
}

#[test]
fn an_interrupted_overwrite_never_mixes_old_and_new() {
    for stop in [Stop::Fail, Stop::Die] {
        interrupt(
            stop,
            |dir| save(&LocalStorage::new(), &dir.file("m"), 1.0).unwrap(),
            |storage, dir| save(storage, &dir.file("m"), 2.0),
            |dir, finished| {
                let now = value(&dir.file("m"));
                assert!(now == Some(2.0) || !finished);
                save(&LocalStorage::new(), &dir.file("m"), 3.0).unwrap();
                assert_eq!(value(&dir.file("m")), Some(3.0));
            },
        );
    }
}

#[test]
fn an_interrupted_sharded_save_leaves_the_older_checkpoint() {
    let work = |storage: &dyn Storage, dir: &TempDir| {
        let part = |i| dir.file(&format!("m-2_temp/part-0000{i}-of-00002"));
        let tensor = |name, spec, n| SaveTensor {
            name,
            shape_and_slice: spec,
            tensor: if n == 0 {
                Tensor::scalar(2.0f32)
            } else {
                Tensor::vector(vec![2.0f32; n])
            },
        };
        save_v2(
            storage,
            &part(0),
            &[tensor("b", "", 0), tensor("w", "4 0,2", 2)],
        )?;
        save_v2(storage, &part(1), &[tensor("w", "4 2,2", 2)])?;
        let parts = [part(0), part(1)];
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        merge_v2(storage, &parts, &dir.file("m-2"), true, false)?;
        let state = CheckpointState {
            model_checkpoint_path: "m-2".to_owned(),
            all_model_checkpoint_paths: vec!["m-1".to_owned(), "m-2".to_owned()],
            ..CheckpointState::default()
        };
        state.write(storage, &dir.file(""), "checkpoint")
    };
    for stop in [Stop::Fail, Stop::Die] {
        interrupt(
            stop,
            |dir| save(&LocalStorage::new(), &dir.file("m-1"), 1.0).unwrap(),
            work,
            |dir, finished| {
                assert_eq!(value(&dir.file("m-1")), Some(1.0));
                let new = value(&dir.file("m-2"));
                assert!(new == Some(2.0) || (new.is_none() && !finished));
                let latest = latest_complete(&LocalStorage::new(), &dir.file(""), "checkpoint");
                let latest = latest.unwrap().prefix.unwrap();
                assert_eq!(value(&latest), Some(new.unwrap_or(1.0)));
            },
        );
    }
}
