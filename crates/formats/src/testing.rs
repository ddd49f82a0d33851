//! What the tests of this crate share: a directory that cleans up after itself, fixture paths,
//! and a small generator of repeatable noise.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

/// A directory that lives as long as this value.
pub(crate) struct TempDir(PathBuf);

impl TempDir {
    pub(crate) fn new() -> TempDir {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let unique = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("downpour-formats-{}-{unique}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).unwrap();
        TempDir(path.canonicalize().unwrap())
    }

    pub(crate) fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    pub(crate) fn file(&self, name: &str) -> String {
        format!("{}/{name}", self.path())
    }

    pub(crate) fn write(&self, name: &str, data: &[u8]) -> String {
        std::fs::write(self.0.join(name), data).unwrap();
        self.file(name)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Repeatable noise (xorshift).
pub(crate) struct Noise(pub(crate) u64);

impl Noise {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}
