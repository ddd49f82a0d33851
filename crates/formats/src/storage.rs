//! The one door to files: [`Storage`], its local implementation, and the durable write protocol.
//!
//! A [`PendingFile`] is invisible under its name until [`PendingFile::publish`], which fsyncs it,
//! renames it and fsyncs the directory: after a crash the name holds the whole old or the whole
//! new file. A write or sync that failed is never retried on the same handle (the kernel may have
//! marked the lost pages clean): the file is thrown away and the caller starts anew.
//! No other file of the project may rename or sync.

mod files;
mod glob;
mod local;

pub use files::{Files, install};
pub use local::LocalStorage;

use bytes::Bytes;
use downpour_graph::{Code, Result, Status};
use std::fmt;
use std::io;
use std::sync::Arc;

/// Reads anywhere in one open file.
pub trait ReadAt: Send + Sync + fmt::Debug {
    /// Bytes the file has now (it may grow while it is read).
    fn len(&self) -> Result<u64>;

    /// Whether the file is empty now.
    fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Fills the front of `buf` from `offset`; fewer bytes than asked for means the end of file.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize>;

    /// Fills all of `buf` from `offset` or fails as TensorFlow's file systems do.
    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        if self.read_at(offset, buf)? == buf.len() {
            Ok(())
        } else {
            Err(Status::out_of_range("Read less bytes than requested"))
        }
    }
}

/// Bytes in memory read as a file.
impl ReadAt for Bytes {
    fn len(&self) -> Result<u64> {
        Ok(Bytes::len(self) as u64)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let rest = self.get(start..).unwrap_or_default();
        let n = rest.len().min(buf.len());
        if let (Some(to), Some(from)) = (buf.get_mut(..n), rest.get(..n)) {
            to.copy_from_slice(from);
        }
        Ok(n)
    }
}

/// A file under construction, visible to nobody before [`PendingFile::publish`]. Dropping it
/// throws it away.
pub trait PendingFile: Send + fmt::Debug {
    /// Appends bytes. After an error the file can only be dropped.
    fn write(&mut self, data: &[u8]) -> Result<()>;

    /// Brings everything written onto the disk, still invisible.
    fn seal(&mut self) -> Result<()>;

    /// Seals, gives the file its name (replacing what was there) and makes the name durable.
    fn publish(self: Box<Self>) -> Result<()>;

    /// As [`PendingFile::publish`] where the caller has just seen to it that nothing has the name: storages that
    /// several machines write to refuse (`ALREADY_EXISTS`) if something has it by now. A local one replaces it.
    fn publish_new(self: Box<Self>) -> Result<()> {
        self.publish()
    }
}

/// A file that readers may watch while it grows, as event files and TFRecords are written.
pub trait StreamFile: Send + fmt::Debug {
    /// Appends bytes; they may wait in a buffer.
    fn write(&mut self, data: &[u8]) -> Result<()>;

    /// Makes everything written visible to readers.
    fn flush(&mut self) -> Result<()>;

    /// Flushes and brings everything onto the disk.
    fn sync(&mut self) -> Result<()>;
}

/// A file system. Paths are TensorFlow's strings; errors carry TensorFlow's codes and read
/// `<path>; <reason>`.
pub trait Storage: Send + Sync + fmt::Debug {
    /// Opens a regular file for reading.
    fn open(&self, path: &str) -> Result<Box<dyn ReadAt>>;

    /// Starts a file that will replace `path` when published.
    fn create(&self, path: &str) -> Result<Box<dyn PendingFile>>;

    /// Creates or empties `path` and writes to it in place.
    fn create_stream(&self, path: &str) -> Result<Box<dyn StreamFile>>;

    /// Opens `path` for appending in place, creating it if missing.
    fn append_stream(&self, path: &str) -> Result<Box<dyn StreamFile>>;

    /// Moves a file over `to`, durably.
    fn rename(&self, from: &str, to: &str) -> Result<()>;

    /// Removes a file, durably.
    fn delete(&self, path: &str) -> Result<()>;

    /// Whether anything is at `path`.
    fn exists(&self, path: &str) -> Result<bool>;

    /// Bytes of the file at `path`.
    fn size(&self, path: &str) -> Result<u64>;

    /// Creates one directory; `ALREADY_EXISTS` if something is there.
    fn create_dir(&self, path: &str) -> Result<()>;

    /// Removes an empty directory.
    fn remove_dir(&self, path: &str) -> Result<()>;

    /// Names in a directory, sorted.
    fn list(&self, dir: &str) -> Result<Vec<String>>;

    /// Paths that match a pattern of `*`, `?` and `[…]` (none crosses a `/`), sorted.
    fn glob(&self, pattern: &str) -> Result<Vec<String>> {
        let rooted = pattern.split_once("://");
        let (mut found, rest) = match (rooted, pattern.strip_prefix('/')) {
            (Some((scheme, rest)), _) => {
                let (host, rest) = rest.split_once('/').unwrap_or((rest, ""));
                (vec![format!("{scheme}://{host}")], rest)
            }
            (None, Some(rest)) => (vec!["/".to_owned()], rest),
            (None, None) => (vec![String::new()], pattern),
        };
        let mut is_listed = false;
        for component in rest.split('/').filter(|c| !c.is_empty()) {
            is_listed = glob::is_pattern(component);
            let mut next = Vec::new();
            for dir in found {
                if !is_listed {
                    next.push(join(&dir, component));
                    continue;
                }
                let names = match self.list(&dir) {
                    // A storage that does not answer is no empty directory.
                    Err(status) if rooted.is_some() && status.code != Code::NotFound => {
                        return Err(status);
                    }
                    names => names.unwrap_or_default(),
                };
                let hits = names.iter().filter(|name| glob::matches(component, name));
                next.extend(hits.map(|name| join(&dir, name)));
            }
            found = next;
        }
        // What a listing of a remote storage named is there; a local name may be a link to nothing.
        if !is_listed || rooted.is_none() {
            found.retain(|path| matches!(self.exists(path), Ok(true)));
        }
        Ok(found)
    }
}

/// The file system lent to kernels through their device's extensions.
#[derive(Clone, Debug)]
pub struct StorageHandle(pub Arc<dyn Storage>);

/// A file system borrowed for a call, or shared by something that outlives one.
#[derive(Clone, Debug)]
pub(crate) enum StorageRef<'a> {
    Borrowed(&'a dyn Storage),
    Shared(Arc<dyn Storage>),
}

impl<'a> std::ops::Deref for StorageRef<'a> {
    type Target = dyn Storage + 'a;
    fn deref(&self) -> &Self::Target {
        match self {
            StorageRef::Borrowed(storage) => *storage,
            StorageRef::Shared(storage) => &**storage,
        }
    }
}

/// Everything before the last `/` (`/` itself for a path in the root, empty without a `/`), as
/// TensorFlow's `Dirname`.
pub fn dirname(path: &str) -> &str {
    match path.rsplit_once('/') {
        Some(("", _)) => "/",
        Some((dir, _)) => dir,
        None => "",
    }
}

/// `dir/name`, with the one slash between them.
pub fn join(dir: &str, name: &str) -> String {
    if dir.is_empty() {
        name.to_owned()
    } else {
        format!("{}/{name}", dir.trim_end_matches('/'))
    }
}

/// Reads a whole small file; `RESOURCE_EXHAUSTED` if it has more than `limit` bytes.
pub fn read_bounded(storage: &dyn Storage, path: &str, limit: u64) -> Result<Vec<u8>> {
    let file = storage.open(path)?;
    let len = file.len()?;
    if len > limit {
        return Err(Status::resource_exhausted(format!(
            "{path} has {len} bytes, more than the {limit} that such a file may have"
        )));
    }
    let mut data = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
    file.read_exact_at(0, &mut data)?;
    Ok(data)
}

/// An operating system error as TensorFlow reports it: `<context>; <strerror>`.
pub fn io_status(context: &str, error: &io::Error) -> Status {
    let text = error.to_string();
    let reason = match text.rfind(" (os error ") {
        Some(end) => text.get(..end).unwrap_or(&text),
        None => &text,
    };
    Status::new(io_code(error), format!("{context}; {reason}"))
}

fn io_code(error: &io::Error) -> Code {
    let Some(errno) = error.raw_os_error() else {
        return match error.kind() {
            io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData => Code::InvalidArgument,
            io::ErrorKind::UnexpectedEof => Code::OutOfRange,
            _ => Code::Unknown,
        };
    };
    match errno {
        libc::EINVAL
        | libc::ENAMETOOLONG
        | libc::E2BIG
        | libc::EFAULT
        | libc::EILSEQ
        | libc::ENOTTY
        | libc::ESPIPE => Code::InvalidArgument,
        libc::ETIMEDOUT => Code::DeadlineExceeded,
        libc::ENOENT | libc::ENODEV | libc::ENXIO | libc::ESRCH => Code::NotFound,
        libc::EEXIST => Code::AlreadyExists,
        libc::EPERM | libc::EACCES | libc::EROFS => Code::PermissionDenied,
        libc::ENOTEMPTY
        | libc::EISDIR
        | libc::ENOTDIR
        | libc::EBADF
        | libc::EBUSY
        | libc::EPIPE
        | libc::ETXTBSY
        | libc::ELOOP => Code::FailedPrecondition,
        libc::ENOSPC
        | libc::EDQUOT
        | libc::EMFILE
        | libc::EMLINK
        | libc::ENFILE
        | libc::ENOBUFS
        | libc::ENOMEM => Code::ResourceExhausted,
        libc::EFBIG | libc::EOVERFLOW | libc::ERANGE => Code::OutOfRange,
        libc::ENOSYS | libc::ENOTSUP | libc::EXDEV => Code::Unimplemented,
        libc::EAGAIN | libc::EINTR | libc::ENOLCK => Code::Unavailable,
        libc::EDEADLK | libc::ESTALE => Code::Aborted,
        libc::ECANCELED => Code::Cancelled,
        _ => Code::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_read_as_tensorflows() {
        let cases = [
            (libc::ENOENT, Code::NotFound, "p; No such file or directory"),
            (libc::EISDIR, Code::FailedPrecondition, "p; Is a directory"),
            (
                libc::ENOSPC,
                Code::ResourceExhausted,
                "p; No space left on device",
            ),
            (libc::EACCES, Code::PermissionDenied, "p; Permission denied"),
            (libc::EIO, Code::Unknown, "p; Input/output error"),
        ];
        for (errno, code, text) in cases {
            let status = io_status("p", &io::Error::from_raw_os_error(errno));
            assert_eq!((status.code, status.message.as_str()), (code, text));
        }
    }

    #[test]
    fn directories_are_what_tensorflow_calls_them() {
        assert_eq!(
            ["/a/b", "/a", "a", "a/b/", ""].map(dirname),
            ["/a", "/", "", "a/b", ""]
        );
        assert_eq!(join("", "x"), "x");
        assert_eq!(join("/", "x"), "/x");
        assert_eq!(join("a/", "x"), "a/x");
    }
}
