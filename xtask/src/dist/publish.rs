//! That the crates could be published: `cargo publish --dry-run` of all of them, and none larger than a registry takes.

use crate::process::{cargo, run, target_dir};
use anyhow::{Context as _, Result, bail};

/// What crates.io takes.
const MAX_BYTES: u64 = 10 << 20;

/// Packs every crate as a registry would get it. With `verify`, builds each from what was packed.
pub(super) fn dry_run(is_dirty_fine: bool, verify: bool) -> Result<String> {
    let packed = target_dir().join("package");
    let _ = std::fs::remove_dir_all(&packed);
    let mut command = cargo();
    command.args(["publish", "--workspace", "--dry-run", "--locked"]);
    if !verify {
        command.arg("--no-verify");
    }
    if is_dirty_fine {
        command.arg("--allow-dirty");
    }
    run(&mut command)?;
    let (mut count, mut largest) = (0, (0, String::new()));
    for entry in std::fs::read_dir(&packed).context("nothing was packed")? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.ends_with(".crate") {
            count += 1;
            largest = largest.max((entry.metadata()?.len(), name));
        }
    }
    let (bytes, name) = largest;
    if bytes > MAX_BYTES {
        bail!("{name} has {bytes} bytes, more than a registry takes");
    }
    let how = if verify { "packed and built" } else { "packed" };
    Ok(format!(
        "{count} crates {how}, the largest {name} with {:.1} MB",
        bytes as f64 / 1e6
    ))
}
