//! The local file system. Owns every `std::fs` call of the project, the names of temporary files
//! and the order of sync and rename.
#![allow(clippy::disallowed_methods, reason = "the one place that opens files")]

use super::{PendingFile, ReadAt, Storage, StreamFile, dirname, io_status};
use downpour_graph::{Result, Status};
use std::collections::hash_map::RandomState;
use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, Hasher};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Small writes are gathered to this size before they reach the kernel.
const WRITE_BUFFER: usize = 1 << 20;

/// The machine's own file system; understands plain paths and `file://` URLs.
#[derive(Debug, Clone, Default)]
pub struct LocalStorage {
    roots: Option<Roots>,
}

#[derive(Debug, Clone)]
struct Roots {
    read: Vec<PathBuf>,
    write: Vec<PathBuf>,
}

impl LocalStorage {
    /// All the files that the process may reach.
    pub fn new() -> LocalStorage {
        LocalStorage { roots: None }
    }

    /// Only files below the given directories (readable: both lists). A path is judged by where
    /// its directory really is, links resolved; a link at the end of the path is refused.
    /// The directories must exist.
    pub fn confined(read: &[&str], write: &[&str]) -> Result<LocalStorage> {
        let resolve = |dirs: &[&str]| {
            dirs.iter()
                .map(|dir| fs::canonicalize(dir).map_err(|e| io_status(dir, &e)))
                .collect::<Result<Vec<_>>>()
        };
        let write = resolve(write)?;
        let mut read = resolve(read)?;
        read.extend(write.iter().cloned());
        Ok(LocalStorage {
            roots: Some(Roots { read, write }),
        })
    }

    fn readable(&self, path: &str) -> Result<PathBuf> {
        self.admit(path, |roots| &roots.read)
    }

    fn writable(&self, path: &str) -> Result<PathBuf> {
        self.admit(path, |roots| &roots.write)
    }

    /// The local path behind `path`, if it lies below an allowed root.
    fn admit(&self, path: &str, allowed: impl Fn(&Roots) -> &Vec<PathBuf>) -> Result<PathBuf> {
        let local = path.strip_prefix("file://").unwrap_or(path);
        if let Some((scheme, _)) = local.split_once("://") {
            return Err(Status::unimplemented(format!(
                "File system scheme '{scheme}' not implemented (file: '{path}')"
            )));
        }
        if local.contains('\0') {
            return Err(Status::invalid_argument(format!(
                "{}; file name contains a NUL byte",
                path.replace('\0', "\\0")
            )));
        }
        let local = PathBuf::from(local);
        let Some(roots) = &self.roots else {
            return Ok(local);
        };
        let denied =
            || Status::permission_denied(format!("{path} is outside the allowed directories"));
        let place = match local.symlink_metadata() {
            Ok(meta) if meta.is_symlink() => return Err(denied()),
            Ok(meta) if meta.is_dir() => fs::canonicalize(&local).map_err(|_| denied())?,
            _ => {
                let name = local.file_name().ok_or_else(denied)?;
                let parent = match local.parent() {
                    Some(dir) if !dir.as_os_str().is_empty() => dir,
                    _ => Path::new("."),
                };
                // A missing directory must still be told from a forbidden one, but only inside
                // the roots; elsewhere its existence is nobody's business.
                match fs::canonicalize(parent) {
                    Ok(dir) => dir.join(name),
                    Err(e) if allowed(roots).iter().any(|r| stays_below(&local, r)) => {
                        return Err(io_status(path, &e));
                    }
                    Err(_) => return Err(denied()),
                }
            }
        };
        if allowed(roots).iter().any(|root| place.starts_with(root)) {
            Ok(place)
        } else {
            Err(denied())
        }
    }
}

/// Whether `path` is below `root` by its letters alone, without `..`.
fn stays_below(path: &Path, root: &Path) -> bool {
    path.starts_with(root)
        && !path
            .components()
            .any(|c| matches!(c, std::path::Component::ParentDir))
}

impl Storage for LocalStorage {
    fn open(&self, path: &str) -> Result<Box<dyn ReadAt>> {
        let local = self.readable(path)?;
        // Non-blocking, so that a FIFO planted in place of a file cannot hold us in `open`.
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(local)
            .map_err(|e| io_status(path, &e))?;
        let meta = file.metadata().map_err(|e| io_status(path, &e))?;
        if meta.is_dir() {
            return Err(io_status(path, &io::Error::from_raw_os_error(libc::EISDIR)));
        }
        if !meta.is_file() {
            return Err(Status::failed_precondition(format!(
                "{path}; Not a regular file"
            )));
        }
        Ok(Box::new(LocalFile {
            file,
            path: path.to_owned(),
        }))
    }

    fn create(&self, path: &str) -> Result<Box<dyn PendingFile>> {
        let target = self.writable(path)?;
        let temp_path = format!("{path}.tempstate{}", random());
        let mut temp = target.clone().into_os_string();
        temp.push(temp_path.get(path.len()..).unwrap_or_default());
        let temp = PathBuf::from(temp);
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&temp)
            .map_err(|e| io_status(&temp_path, &e))?;
        Ok(Box::new(LocalPending {
            file: Some(BufWriter::with_capacity(WRITE_BUFFER, file)),
            temp,
            temp_path,
            target,
            sealed: false,
        }))
    }

    fn create_stream(&self, path: &str) -> Result<Box<dyn StreamFile>> {
        self.stream(
            path,
            OpenOptions::new().write(true).create(true).truncate(true),
        )
    }

    fn append_stream(&self, path: &str) -> Result<Box<dyn StreamFile>> {
        self.stream(path, OpenOptions::new().append(true).create(true))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let source = self.writable(from)?;
        let target = self.writable(to)?;
        fs::rename(&source, &target).map_err(|e| io_status(from, &e))?;
        sync_parent(&target).map_err(|e| io_status(dirname(to), &e))?;
        if source.parent() != target.parent() {
            sync_parent(&source).map_err(|e| io_status(dirname(from), &e))?;
        }
        Ok(())
    }

    fn delete(&self, path: &str) -> Result<()> {
        let local = self.writable(path)?;
        fs::remove_file(&local).map_err(|e| io_status(path, &e))?;
        sync_parent(&local).map_err(|e| io_status(dirname(path), &e))
    }

    fn exists(&self, path: &str) -> Result<bool> {
        fs::exists(self.readable(path)?).map_err(|e| io_status(path, &e))
    }

    fn size(&self, path: &str) -> Result<u64> {
        let meta = fs::metadata(self.readable(path)?).map_err(|e| io_status(path, &e))?;
        Ok(meta.len())
    }

    fn create_dir(&self, path: &str) -> Result<()> {
        let local = self.writable(path)?;
        fs::create_dir(&local).map_err(|e| io_status(path, &e))?;
        sync_parent(&local).map_err(|e| io_status(path, &e))
    }

    fn remove_dir(&self, path: &str) -> Result<()> {
        fs::remove_dir(self.writable(path)?).map_err(|e| io_status(path, &e))
    }

    fn list(&self, dir: &str) -> Result<Vec<String>> {
        let local = self.readable(if dir.is_empty() { "." } else { dir })?;
        let mut names = Vec::new();
        for entry in fs::read_dir(local).map_err(|e| io_status(dir, &e))? {
            let entry = entry.map_err(|e| io_status(dir, &e))?;
            // A name that is no UTF-8 cannot be asked for either.
            if let Ok(name) = entry.file_name().into_string() {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }
}

impl LocalStorage {
    fn stream(&self, path: &str, options: &OpenOptions) -> Result<Box<dyn StreamFile>> {
        let local = self.writable(path)?;
        let file = options.open(local).map_err(|e| io_status(path, &e))?;
        Ok(Box::new(LocalStream {
            file: BufWriter::with_capacity(WRITE_BUFFER, file),
            path: path.to_owned(),
        }))
    }
}

#[derive(Debug)]
struct LocalFile {
    file: File,
    path: String,
}

impl ReadAt for LocalFile {
    fn len(&self) -> Result<u64> {
        let meta = self
            .file
            .metadata()
            .map_err(|e| io_status(&self.path, &e))?;
        Ok(meta.len())
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        while let Some(rest) = buf.get_mut(done..)
            && !rest.is_empty()
        {
            match self.file.read_at(rest, offset.saturating_add(done as u64)) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(io_status(&self.path, &e)),
            }
        }
        Ok(done)
    }
}

#[derive(Debug)]
struct LocalPending {
    /// `None` once published.
    file: Option<BufWriter<File>>,
    temp: PathBuf,
    temp_path: String,
    target: PathBuf,
    sealed: bool,
}

impl LocalPending {
    fn gone() -> io::Error {
        io::Error::other("the file was published already")
    }
}

impl PendingFile for LocalPending {
    fn write(&mut self, data: &[u8]) -> Result<()> {
        self.sealed = false;
        let file = self.file.as_mut().ok_or_else(LocalPending::gone);
        file.and_then(|file| file.write_all(data))
            .map_err(|e| io_status(&self.temp_path, &e))
    }

    fn seal(&mut self) -> Result<()> {
        if self.sealed {
            return Ok(());
        }
        let file = self.file.as_mut().ok_or_else(LocalPending::gone);
        file.and_then(|file| {
            file.flush()?;
            file.get_ref().sync_all()
        })
        .map_err(|e| io_status(&self.temp_path, &e))?;
        self.sealed = true;
        Ok(())
    }

    fn publish(mut self: Box<Self>) -> Result<()> {
        self.seal()?;
        fs::rename(&self.temp, &self.target).map_err(|e| io_status(&self.temp_path, &e))?;
        self.file = None;
        sync_parent(&self.target).map_err(|e| io_status(dirname(&self.temp_path), &e))
    }
}

impl Drop for LocalPending {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            // The bytes are unwanted: do not let the buffer write them on its way out.
            drop(file.into_parts().0);
            // Best effort: what stays behind carries a temporary name that no reader looks at.
            let _ = fs::remove_file(&self.temp);
        }
    }
}

#[derive(Debug)]
struct LocalStream {
    file: BufWriter<File>,
    path: String,
}

impl StreamFile for LocalStream {
    fn write(&mut self, data: &[u8]) -> Result<()> {
        self.file
            .write_all(data)
            .map_err(|e| io_status(&self.path, &e))
    }

    fn flush(&mut self) -> Result<()> {
        self.file.flush().map_err(|e| io_status(&self.path, &e))
    }

    fn sync(&mut self) -> Result<()> {
        self.flush()?;
        let file = self.file.get_ref();
        file.sync_all().map_err(|e| io_status(&self.path, &e))
    }
}

/// Makes the names in the directory of `path` durable.
fn sync_parent(path: &Path) -> io::Result<()> {
    let dir = match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    File::open(dir)?.sync_all()
}

/// A number that no other writer draws: the hash keys of the standard library are random.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;
    use downpour_graph::Code;

    fn names(dir: &TempDir) -> Vec<String> {
        LocalStorage::new().list(dir.path()).unwrap()
    }

    #[test]
    fn nothing_is_visible_before_publishing() {
        let dir = TempDir::new();
        let storage = LocalStorage::new();
        let path = dir.file("x");
        let mut file = storage.create(&path).unwrap();
        file.write(b"new").unwrap();
        file.seal().unwrap();
        assert!(!storage.exists(&path).unwrap());
        file.publish().unwrap();
        assert_eq!(read_bounded_string(&storage, &path), "new");
        assert_eq!(names(&dir), ["x"]);
    }

    #[test]
    fn a_dropped_file_leaves_the_old_one_and_no_litter() {
        let dir = TempDir::new();
        let storage = LocalStorage::new();
        let path = dir.file("x");
        let mut old = storage.create(&path).unwrap();
        old.write(b"old").unwrap();
        old.publish().unwrap();
        let mut new = storage.create(&path).unwrap();
        new.write(&vec![7; 3 * WRITE_BUFFER]).unwrap();
        assert_eq!(names(&dir).len(), 2);
        drop(new);
        assert_eq!(names(&dir), ["x"]);
        assert_eq!(read_bounded_string(&storage, &path), "old");
    }

    fn read_bounded_string(storage: &LocalStorage, path: &str) -> String {
        String::from_utf8(crate::storage::read_bounded(storage, path, 100).unwrap()).unwrap()
    }

    #[test]
    fn special_files_are_refused_without_waiting() {
        let dir = TempDir::new();
        let storage = LocalStorage::new();
        let status = storage.open(dir.path()).unwrap_err();
        assert_eq!(status.code, Code::FailedPrecondition);
        assert!(status.message.ends_with("; Is a directory"));
        let status = storage.open("/dev/zero").unwrap_err();
        assert_eq!(status.message, "/dev/zero; Not a regular file");
        let fifo = dir.file("fifo");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status();
        if made.is_ok_and(|s| s.success()) {
            assert_eq!(
                storage.open(&fifo).unwrap_err().code,
                Code::FailedPrecondition
            );
        }
        let status = storage.open("hdfs://x/y").unwrap_err();
        assert_eq!(status.code, Code::Unimplemented);
        assert!(storage.open("a\0b").is_err());
    }

    #[test]
    fn patterns_find_paths_across_directories() {
        let dir = TempDir::new();
        let storage = LocalStorage::new();
        storage.create_dir(&dir.file("s1")).unwrap();
        storage.create_dir(&dir.file("s2")).unwrap();
        for name in ["s1/a", "s2/a", "s2/b", ".h"] {
            storage.create_stream(&dir.file(name)).unwrap();
        }
        let glob = |pattern: &str| {
            let found = storage.glob(&dir.file(pattern)).unwrap();
            let strip = |p: &String| p.strip_prefix(dir.path()).unwrap().to_owned();
            found.iter().map(strip).collect::<Vec<_>>()
        };
        assert_eq!(glob("s?/a"), ["/s1/a", "/s2/a"]);
        assert_eq!(glob("*"), ["/.h", "/s1", "/s2"]);
        assert_eq!(glob("s2/b"), ["/s2/b"]);
        assert!(glob("nope/*").is_empty());
        assert!(glob("s1/nope").is_empty());
        let status = storage.create_dir(&dir.file("s1")).unwrap_err();
        assert_eq!(status.code, Code::AlreadyExists);
    }

    #[test]
    fn a_confined_storage_stays_below_its_roots() {
        let dir = TempDir::new();
        let free = LocalStorage::new();
        for name in ["in", "out"] {
            free.create_dir(&dir.file(name)).unwrap();
            let mut file = free.create_stream(&dir.file(&format!("{name}/f"))).unwrap();
            file.write(b"x").unwrap();
        }
        std::os::unix::fs::symlink(dir.file("out"), dir.file("in/link")).unwrap();
        std::os::unix::fs::symlink(dir.file("out/f"), dir.file("in/flink")).unwrap();
        let storage = LocalStorage::confined(&[], &[&dir.file("in")]).unwrap();
        assert!(storage.open(&dir.file("in/f")).is_ok());
        let missing = storage.open(&dir.file("in/no/f")).unwrap_err();
        assert_eq!(missing.code, Code::NotFound);
        for path in ["out/f", "in/../out/f", "in/link/f", "in/flink", "out/no/f"] {
            let status = storage.open(&dir.file(path)).unwrap_err();
            assert_eq!(status.code, Code::PermissionDenied, "{path}");
            let status = storage.create(&dir.file(path)).unwrap_err();
            assert_eq!(status.code, Code::PermissionDenied, "{path}");
        }
        let reader = LocalStorage::confined(&[&dir.file("in")], &[]).unwrap();
        assert!(reader.open(&dir.file("in/f")).is_ok());
        assert!(reader.create(&dir.file("in/g")).is_err());
    }
}
