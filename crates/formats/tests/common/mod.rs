//! Shared by the tests of this crate: scratch directories, fixtures, repeatable noise.
#![allow(dead_code, reason = "every test binary uses a part of this")]
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot reach its files must fail"
)]

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

/// A directory that lives as long as this value.
pub(crate) struct TempDir(PathBuf);

impl TempDir {
    pub(crate) fn new() -> TempDir {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let unique = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("downpour-formats-it-{}-{unique}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).unwrap();
        TempDir(path)
    }

    pub(crate) fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        let mut names: Vec<String> = entries
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Path of a fixture made by `tests/fixtures/make.py`.
pub(crate) fn fixture(name: &str) -> String {
    format!("{}/tests/fixtures/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Asserts that two files hold the same bytes.
pub(crate) fn assert_same_file(ours: &str, theirs: &str) {
    let ours_data = std::fs::read(ours).unwrap();
    let theirs_data = std::fs::read(theirs).unwrap();
    if let Some(at) = (0..ours_data.len().max(theirs_data.len()))
        .find(|&i| ours_data.get(i) != theirs_data.get(i))
    {
        panic!(
            "{ours} ({} bytes) differs from {theirs} ({} bytes) at {at}",
            ours_data.len(),
            theirs_data.len()
        );
    }
}

/// Repeatable noise (xorshift).
pub(crate) struct Noise(pub(crate) u64);

impl Noise {
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}
