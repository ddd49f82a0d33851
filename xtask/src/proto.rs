//! Generates the Rust code of the protobuf messages and services in `crates/wire`. The result is
//! committed, so that building needs no protobuf compiler; `check` proves that it is current.

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};

/// Regenerates the committed code.
pub(crate) fn run() -> Result<()> {
    for (path, code) in generate()? {
        std::fs::write(&path, code).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Fails if the committed code is not what `run` would write.
pub(crate) fn check() -> Result<()> {
    for (path, code) in generate()? {
        let committed = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        if committed != code {
            bail!(
                "{} is out of date: run `cargo xtask proto` and commit the result",
                path.display()
            );
        }
    }
    Ok(())
}

fn wire_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/wire")
}

/// One file per protobuf package.
const GENERATED: [&str; 2] = ["tensorflow.rs", "downpour.rs"];

/// Where each file belongs, and what should be in it.
fn generate() -> Result<Vec<(PathBuf, String)>> {
    let protos = wire_dir().join("proto");
    let mut files = Vec::new();
    for entry in
        std::fs::read_dir(&protos).with_context(|| format!("cannot list {}", protos.display()))?
    {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "proto") {
            files.push(path);
        }
    }
    // The order of a directory listing is the file system's; the output must not depend on it.
    files.sort();
    let descriptors = protox::compile(&files, [&protos])?;

    let out = std::env::temp_dir().join(format!("downpour-proto-{}", std::process::id()));
    std::fs::create_dir_all(&out)?;
    let generated = tonic_prost_build::configure()
        .out_dir(&out)
        // `Bytes` everywhere: a decoded tensor is a window on the message it came in.
        .bytes(".")
        // Ordered maps: equal messages have equal encodings.
        .btree_map(".")
        // Attributes are many and mostly small; without this each would take half a kilobyte.
        .boxed(".tensorflow.AttrValue.value.list")
        .boxed(".tensorflow.AttrValue.value.tensor")
        .codec_path("crate::codec::Codec")
        .emit_rerun_if_changed(false)
        .compile_fds(descriptors)
        .context("cannot generate code")
        .and_then(|()| {
            GENERATED
                .iter()
                .map(|name| {
                    let code = std::fs::read_to_string(out.join(name))?;
                    Ok((wire_dir().join("src/proto").join(name), code))
                })
                .collect()
        });
    std::fs::remove_dir_all(&out)?;
    generated
}
