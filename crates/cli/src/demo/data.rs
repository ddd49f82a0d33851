//! The MNIST files that ship with the project, inside the program: 11 MB that are only touched by
//! the demo, so that an installed `downpour` needs nothing beside it. They are written to the run's
//! directory, where the workers read them as they would read any other data.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

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

/// Writes the files to a directory, unless they are there.
pub(crate) fn unpack(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    for (name, bytes) in FILES {
        let path = dir.join(name);
        let is_there = path.metadata().is_ok_and(|m| m.len() == bytes.len() as u64);
        if !is_there {
            std::fs::write(path, bytes)?;
        }
    }
    Ok(())
}
