//! The MNIST files that ship with the project, inside the program: 11 MB that are only touched by
//! the demo, so that an installed `downpour` needs nothing beside it. They are written once to the
//! user's cache, where the workers of all runs read them as they would read any other data; where there
//! is no such place, to the run's own directory. A package of a registry has no room for them (`cfg(mnist)` is
//! not set there): then `--data` says where they are.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

#[cfg(mnist)]
macro_rules! files {
    ($($name:literal),*) => {
        [$(($name, include_bytes!(concat!("../../../../data/mnist/", $name)).as_slice())),*]
    };
}

#[cfg(mnist)]
const FILES: [(&str, &[u8]); 4] = files![
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz"
];

#[cfg(not(mnist))]
const FILES: [(&str, &[u8]); 0] = [];

/// Where the files are for all runs of this user, if there is such a place and they could be put there.
pub(crate) fn keep() -> Option<PathBuf> {
    let absolute = |name: &str| {
        let path = PathBuf::from(std::env::var_os(name)?);
        path.is_absolute().then_some(path)
    };
    let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    let dir = cache.join("downpour/mnist");
    // What a command fills in is written in braces.
    let is_plain = dir.to_str().is_some_and(|path| !path.contains(['{', '}']));
    (is_plain && unpack(&dir).is_ok()).then_some(dir)
}

/// Writes the files to a directory, unless they are there.
pub(crate) fn unpack(dir: &Path) -> io::Result<()> {
    if FILES.is_empty() {
        let reason = "this build has no MNIST in it, because a package of a registry is too small for that; \
                      say with --data where its four files are, or build from a checkout";
        return Err(io::Error::new(io::ErrorKind::NotFound, reason));
    }
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    for (name, bytes) in FILES {
        let path = dir.join(name);
        let is_there = path.metadata().is_ok_and(|m| m.len() == bytes.len() as u64);
        if !is_there {
            // Another run may write or read them at this moment.
            let new = dir.join(format!("{name}.{}", std::process::id()));
            std::fs::write(&new, bytes)?;
            std::fs::rename(&new, path)?;
        }
    }
    Ok(())
}

/// The directory of `--data`, as the tasks' commands can name it.
pub(crate) fn given(dir: &Path) -> anyhow::Result<PathBuf> {
    let whole = std::path::absolute(dir)?;
    let images = "train-images-idx3-ubyte.gz";
    if !whole.join(images).is_file() {
        anyhow::bail!("--data: '{}' has no {images}", dir.display());
    }
    if whole.to_str().is_none_or(|path| path.contains(['{', '}'])) {
        anyhow::bail!("--data: '{}' is not UTF-8, or has braces", dir.display());
    }
    Ok(whole)
}
