//! An image from scratch: one program and the libraries that it loads, in the form that `ctr images import` and `docker
//! load` take. Made by `tar`, without Docker.

use crate::process::{output, run};
use anyhow::{Context as _, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Writes the image of a program, which runs as `/PLACE` of it.
pub(super) fn write(archive: &Path, name: &str, program: &Path, place: &str) -> Result<()> {
    let folder = archive.with_extension("image");
    let (files, layer) = (folder.join("files"), folder.join("layer.tar"));
    let _ = std::fs::remove_dir_all(&folder);
    for path in ["tmp", "etc", "bin"] {
        std::fs::create_dir_all(files.join(path)).context("cannot make the image's folders")?;
    }
    for (from, to) in libraries(program)?
        .into_iter()
        .chain([(program.to_owned(), PathBuf::from(place))])
    {
        let to = files.join(to);
        if let Some(folder) = to.parent() {
            std::fs::create_dir_all(folder).context("cannot make the image's folders")?;
        }
        std::fs::copy(&from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    }
    run(Command::new("tar")
        .arg("--create")
        .arg("--file")
        .arg(&layer)
        .arg("--directory")
        .arg(&files)
        .arg("."))?;
    let hash = hash(&layer)?;
    let config = serde_json::json!({
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": ["PATH=/bin:/usr/bin"], "Entrypoint": [format!("/{place}")], "Cmd": ["1000000"]},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{hash}")]},
    });
    let manifest =
        serde_json::json!([{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]);
    std::fs::write(folder.join("config.json"), config.to_string())
        .context("cannot write config.json")?;
    std::fs::write(folder.join("manifest.json"), manifest.to_string())
        .context("cannot write manifest.json")?;
    let mut pack = Command::new("tar");
    pack.arg("--create")
        .arg("--file")
        .arg(archive)
        .arg("--directory")
        .arg(&folder);
    run(pack.args(["config.json", "layer.tar", "manifest.json"]))?;
    std::fs::remove_dir_all(&folder).context("cannot remove what the image was made from")
}

fn hash(file: &Path) -> Result<String> {
    let said = output(Command::new("sha256sum").arg(file))?;
    let said = String::from_utf8_lossy(&said);
    let hash = said
        .split_whitespace()
        .next()
        .context("sha256sum says nothing")?;
    Ok(hash.to_owned())
}

/// What `ldd` names: where it lies, and under which path it is looked for.
fn libraries(program: &Path) -> Result<Vec<(PathBuf, PathBuf)>> {
    let said = output(Command::new("ldd").arg(program)).unwrap_or_default();
    let said = String::from_utf8_lossy(&said).into_owned();
    let path = |line: &str| {
        let place = line.split_once("=>").map_or(line, |(_, place)| place);
        let place = place.split_whitespace().next()?;
        let below = place.strip_prefix('/')?;
        Some((PathBuf::from(place), PathBuf::from(below)))
    };
    Ok(said.lines().filter_map(path).collect())
}
