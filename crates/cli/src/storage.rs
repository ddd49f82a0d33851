//! Directories that are URLs: told from paths, and tried before a job begins, so that a wrong one is one line at once
//! and not an error of every task later.

use anyhow::{Result, anyhow, bail};
use downpour_formats::storage::{dirname, join};
use downpour_formats::{Files, Storage as _};
use downpour_graph::{Code, Status};
use std::path::Path;

/// What is written to a directory to see that it can be, and removed.
const PROBE: &str = ".downpour-probe";

/// Whether a directory is a URL of a storage other than this machine's.
pub(crate) fn is_url(dir: &Path) -> bool {
    dir.to_str().is_some_and(Files::is_remote)
}

/// Makes a directory and those above it.
fn make(files: &Files, dir: &str) -> Result<(), Status> {
    if files.exists(dir)? {
        return Ok(());
    }
    make(files, dirname(dir))?;
    match files.create_dir(dir) {
        Err(e) if e.code != Code::AlreadyExists => Err(e),
        _ => Ok(()),
    }
}

/// Sees that a directory that is a URL can be written to.
pub(crate) fn check(dir: &Path) -> Result<()> {
    let Some(url) = dir.to_str().filter(|_| is_url(dir)) else {
        return Ok(());
    };
    if !cfg!(feature = "stores") {
        bail!(
            "{url}: this program was built without storages by URL; build it with `--features stores`"
        );
    }
    let files = Files::new();
    let probe = join(url, &format!("{PROBE}-{}", std::process::id()));
    let written = make(&files, url).and_then(|()| {
        let mut file = files.create(&probe)?;
        file.write(b"")?;
        file.publish()?;
        files.delete(&probe)
    });
    written.map_err(|e| anyhow!("cannot keep anything in {}", e.message.replace(&probe, url)))
}
