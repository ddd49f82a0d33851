//! The MNIST files that ship with the project, inside the program: 11 MB that are only touched by
//! the demo, so that an installed `downpour` needs nothing beside it. They are written once to the
//! user's cache, where the workers of all runs read them as they would read any other data; where there
//! is no such place, to the run's own directory.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

macro_rules! files {
    ($($name:literal),*) => {
        [$(($name, include_bytes!(concat!("../../../../data/mnist/", $name)).as_slice())),*]
    };
}

const FILES: [(&str, &[u8]); 4] = files![
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz"
];

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
