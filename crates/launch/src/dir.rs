//! A run's directory: where it is, whether it may be used, and the log files in it. Files are the
//! user's alone, and a link put in their place is not followed.

use crate::launcher::LaunchError;
use rustix::fs::OFlags;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Below which a run's directory is made if none is named.
pub const RUNS: &str = "downpour-runs";
/// Most runs of one name beside each other.
const MAX_RUNS: u32 = 100_000;

/// Makes a run's directory: the one named, which may exist, or a new one `downpour-runs/NAME-N`.
/// Returns it as an absolute path.
pub(crate) fn make(named: Option<&Path>, name: &str) -> Result<PathBuf, LaunchError> {
    let made = match named {
        Some(dir) => existing(dir)
            .map(|()| dir.to_owned())
            .map_err(|e| (dir.to_owned(), e)),
        None => fresh(Path::new(RUNS), name).map_err(|e| (PathBuf::from(RUNS), e)),
    };
    let made = made.and_then(|dir| match dir.canonicalize() {
        Ok(whole) => check(&whole).map(|()| whole).map_err(|e| (dir, e)),
        Err(e) => Err((dir, e)),
    });
    made.map_err(|(path, source)| LaunchError::Dir { path, source })
}

fn existing(dir: &Path) -> io::Result<()> {
    if dir.as_os_str().is_empty() {
        return Err(io::Error::other("its name is empty"));
    }
    let logs = dir.join("logs");
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    match logs.symlink_metadata() {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(io::Error::other("'logs' in it is no directory")),
        Err(_) => DirBuilder::new().mode(0o700).create(logs),
    }
}

fn fresh(runs: &Path, name: &str) -> io::Result<PathBuf> {
    DirBuilder::new().recursive(true).mode(0o700).create(runs)?;
    let numbers = std::fs::read_dir(runs)?.filter_map(|entry| {
        let found = entry.ok()?.file_name();
        let number = found.to_str()?.strip_prefix(name)?.strip_prefix('-')?;
        number.parse::<u32>().ok()
    });
    let last = numbers.filter(|n| *n < MAX_RUNS).max().unwrap_or(0);
    for number in last + 1..=MAX_RUNS {
        let dir = runs.join(format!("{name}-{number}"));
        match DirBuilder::new().mode(0o700).create(&dir) {
            // Another run of the same name began at the same moment.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            outcome => {
                outcome?;
                existing(&dir)?;
                return Ok(dir);
            }
        }
    }
    Err(io::Error::other("it holds too many runs; remove some"))
}

/// Whether logs may be kept here.
fn check(dir: &Path) -> io::Result<()> {
    if dir.parent().is_none() {
        return Err(io::Error::other("a job needs a directory of its own"));
    }
    let found = dir.metadata()?;
    let own = rustix::process::geteuid().as_raw();
    if found.uid() != own && found.mode() & 0o002 != 0 {
        return Err(io::Error::other(
            "it is another user's, and everybody may write there",
        ));
    }
    // Finds out now what would else fail with the first task.
    append(&dir.join("job.log")).map(drop)
}

/// Opens a log to write at its end.
pub(crate) fn append(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(i32::try_from(flags.bits()).unwrap_or(0))
        .open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is no ordinary file")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_one_name_are_numbered() {
        let dir = tempfile::tempdir().unwrap();
        let runs = dir.path().join("runs");
        for n in 1..=3 {
            let made = fresh(&runs, "mnist").unwrap();
            assert_eq!(made, runs.join(format!("mnist-{n}")));
            assert_eq!(made.metadata().unwrap().mode() & 0o777, 0o700);
        }
        assert_eq!(fresh(&runs, "mnist-3").unwrap(), runs.join("mnist-3-1"));
    }

    #[test]
    fn what_cannot_be_a_runs_directory_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("file"), "").unwrap();
        std::os::unix::fs::symlink(at("loop"), at("loop")).unwrap();
        std::fs::create_dir_all(at("linked")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", at("linked").join("job.log")).unwrap();
        std::fs::create_dir_all(at("odd")).unwrap();
        std::fs::write(at("odd").join("logs"), "").unwrap();
        for path in ["/", "", "/dev/null/x"].iter().map(PathBuf::from) {
            assert!(make(Some(&path), "x").is_err(), "{path:?}");
        }
        for name in ["file", "loop", "linked", "odd", "file/below"] {
            assert!(make(Some(&at(name)), "x").is_err(), "{name}");
        }
        // One that exists is used again.
        for _ in 0..2 {
            make(Some(&at("new/deep")), "x").unwrap();
        }
    }
}
