//! All file systems of the process behind one [`Storage`]: which one a path belongs to is decided by its scheme.
//! Plain paths and `file:` are local; for every other scheme there is at most one storage, which the program's
//! outermost crate installs before anything is opened. Nothing here knows which schemes exist.

use super::{LocalStorage, PendingFile, ReadAt, Storage, StreamFile};
use downpour_graph::{Result, Status};
use std::sync::{Arc, OnceLock};

/// Where paths with a scheme other than `file` lead.
static REMOTE: OnceLock<Arc<dyn Storage>> = OnceLock::new();

/// Makes `remote` the storage of all URLs that are not local, for the life of the process. The first one stays.
pub fn install(remote: Arc<dyn Storage>) {
    // A second server of the same process brings the same.
    let _ = REMOTE.set(remote);
}

/// The file systems of this process.
#[derive(Debug, Clone, Default)]
pub struct Files {
    local: LocalStorage,
}

/// A local path, out of which `file:/x` and `file:///x` have become `/x`; nothing if it has another scheme.
fn as_local(path: &str) -> Option<&str> {
    match path.strip_prefix("file:") {
        Some(rest) => Some(rest.strip_prefix("//").unwrap_or(rest)),
        None if is_url(path) => None,
        None => Some(path),
    }
}

/// Whether a path begins with `SCHEME://`.
fn is_url(path: &str) -> bool {
    let in_scheme = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
    let scheme = path.split_once("://").map(|(scheme, _)| scheme);
    scheme.is_some_and(|scheme| !scheme.is_empty() && scheme.chars().all(in_scheme))
}

impl Files {
    /// All that is installed, and the machine's own files.
    pub fn new() -> Files {
        Files::default()
    }

    /// Whether a path is a URL of a storage that is not this machine's own.
    pub fn is_remote(path: &str) -> bool {
        as_local(path).is_none()
    }

    /// Whether anything is at `path` that has entries, which in an object store is a matter of names.
    pub fn is_dir(&self, path: &str) -> bool {
        match as_local(path) {
            Some(local) => std::path::Path::new(local).is_dir(),
            None => self.list(path).is_ok_and(|names| !names.is_empty()),
        }
    }

    /// Whether a file is at `path`.
    pub fn is_file(&self, path: &str) -> bool {
        match as_local(path) {
            Some(local) => std::path::Path::new(local).is_file(),
            None => self.open(path).is_ok(),
        }
    }

    /// The storage of a path, and the path as that storage knows it.
    fn of<'a>(&'a self, path: &'a str) -> (&'a dyn Storage, &'a str) {
        match (as_local(path), REMOTE.get()) {
            (Some(local), _) => (&self.local, local),
            (None, Some(remote)) => (&**remote, path),
            // It says that there is no such scheme.
            (None, None) => (&self.local, path),
        }
    }
}

impl Storage for Files {
    fn open(&self, path: &str) -> Result<Box<dyn ReadAt>> {
        let (storage, path) = self.of(path);
        storage.open(path)
    }

    fn create(&self, path: &str) -> Result<Box<dyn PendingFile>> {
        let (storage, path) = self.of(path);
        storage.create(path)
    }

    fn create_stream(&self, path: &str) -> Result<Box<dyn StreamFile>> {
        let (storage, path) = self.of(path);
        storage.create_stream(path)
    }

    fn append_stream(&self, path: &str) -> Result<Box<dyn StreamFile>> {
        let (storage, path) = self.of(path);
        storage.append_stream(path)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        match (as_local(from), as_local(to)) {
            (Some(from), Some(to)) => self.local.rename(from, to),
            (None, None) => self.of(from).0.rename(from, to),
            _ => Err(Status::unimplemented(format!(
                "Renaming {from} to {to} not implemented: they are in different file systems"
            ))),
        }
    }

    fn delete(&self, path: &str) -> Result<()> {
        let (storage, path) = self.of(path);
        storage.delete(path)
    }

    fn exists(&self, path: &str) -> Result<bool> {
        let (storage, path) = self.of(path);
        storage.exists(path)
    }

    fn size(&self, path: &str) -> Result<u64> {
        let (storage, path) = self.of(path);
        storage.size(path)
    }

    fn create_dir(&self, path: &str) -> Result<()> {
        let (storage, path) = self.of(path);
        storage.create_dir(path)
    }

    fn remove_dir(&self, path: &str) -> Result<()> {
        let (storage, path) = self.of(path);
        storage.remove_dir(path)
    }

    fn list(&self, dir: &str) -> Result<Vec<String>> {
        let (storage, dir) = self.of(dir);
        storage.list(dir)
    }

    fn glob(&self, pattern: &str) -> Result<Vec<String>> {
        let (storage, pattern) = self.of(pattern);
        storage.glob(pattern)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scheme_decides() {
        for (path, expected) in [
            ("/a/b", Some("/a/b")),
            ("a://b", None),
            ("s3://b/k", None),
            ("file:///a", Some("/a")),
            ("file:/a", Some("/a")),
            ("file://a", Some("a")),
            ("a b://c", Some("a b://c")),
            ("dir/x://y", Some("dir/x://y")),
            ("://x", Some("://x")),
        ] {
            assert_eq!(as_local(path), expected, "{path}");
        }
    }

    #[test]
    fn without_a_storage_for_it_a_scheme_is_not_implemented() {
        let files = Files::new();
        let status = files.exists("nosuch://b/k").unwrap_err();
        assert_eq!(
            status.message,
            "File system scheme 'nosuch' not implemented (file: 'nosuch://b/k')"
        );
        let status = files.rename("/a", "nosuch://b/k").unwrap_err();
        assert!(
            status.message.contains("different file systems"),
            "{status}"
        );
    }
}
