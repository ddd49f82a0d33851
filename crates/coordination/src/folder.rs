//! Registers in a folder that all members see: one file a version, made by a hard link, which fails
//! if another was quicker. For one machine, or a file system with links that is shared.

use crate::record::Version;
use crate::register::{Error, Register, Result};
use std::fs;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// So many old versions are kept, for members that read one while it is replaced.
const KEPT: u64 = 8;

/// Registers in a folder.
///
/// ```
/// use downpour_coordination::{Folder, Register, Version};
/// # let dir = tempfile::tempdir()?;
/// let folder = Folder::open(dir.path())?;
/// let first = folder.swap("chief", Version::NONE, b"me")?.expect("nobody else swaps");
/// assert_eq!(folder.swap("chief", Version::NONE, b"you")?, None);
/// assert_eq!(folder.read("chief")?, (first, b"me".to_vec()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Registers in this folder, which is made if it is missing.
    pub fn open(folder: &Path) -> Result<Folder> {
        let opened = Folder(folder.to_owned());
        fs::create_dir_all(folder).map_err(|e| opened.refused(&e))?;
        Ok(opened)
    }

    fn refused(&self, why: &io::Error) -> Error {
        Error::Refused {
            service: self.0.display().to_string(),
            reason: why.to_string(),
        }
    }

    fn path(&self, name: &str, version: u64) -> PathBuf {
        self.0.join(format!("{name}.{version:020}"))
    }

    fn newest(&self, name: &str) -> io::Result<u64> {
        let mut newest = 0;
        for entry in fs::read_dir(&self.0)? {
            let file = entry?.file_name();
            let number = file
                .to_str()
                .and_then(|f| f.strip_prefix(name)?.strip_prefix('.')?.parse().ok());
            newest = newest.max(number.unwrap_or(0));
        }
        Ok(newest)
    }

    fn try_read(&self, name: &str) -> io::Result<(Version, Vec<u8>)> {
        loop {
            let version = self.newest(name)?;
            if version == 0 {
                return Ok((Version::NONE, Vec::new()));
            }
            match fs::read(self.path(name, version)) {
                // Many have swapped since it was listed.
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                value => return Ok((Version(version), value?)),
            }
        }
    }

    fn try_swap(&self, name: &str, expected: u64, value: &[u8]) -> io::Result<Option<Version>> {
        if self.newest(name)? != expected {
            return Ok(None);
        }
        // Members on other hosts may have the same process id.
        let unique = format!(".{name}-{:016x}", RandomState::new().hash_one(value));
        let temporary = self.0.join(unique);
        let mut file = fs::File::create(&temporary)?;
        file.write_all(value)?;
        file.sync_all()?;
        let linked = fs::hard_link(&temporary, self.path(name, expected + 1));
        fs::remove_file(&temporary)?;
        match linked {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => return Ok(None),
            linked => linked?,
        }
        // Who was stopped between looking and linking may have made a version that was removed long
        // ago. Versions are removed only when they are older than this.
        if self.newest(name)? - (expected + 1) >= KEPT / 2 {
            let _ = fs::remove_file(self.path(name, expected + 1));
            return Ok(None);
        }
        if let Some(old) = expected.checked_sub(KEPT) {
            // It may be gone already.
            let _ = fs::remove_file(self.path(name, old));
        }
        Ok(Some(Version(expected + 1)))
    }
}

impl Register for Folder {
    fn read(&self, name: &str) -> Result<(Version, Vec<u8>)> {
        self.try_read(name).map_err(|e| self.refused(&e))
    }

    fn swap(&self, name: &str, expected: Version, value: &[u8]) -> Result<Option<Version>> {
        self.try_swap(name, expected.0, value)
            .map_err(|e| self.refused(&e))
    }
}
