//! What Debian does not have of Kubernetes, built from Go's module proxy: the cluster's parts in one binary, and a small
//! CoreDNS. Ten minutes of two cores the first time; what was built from the same sources stays.

use crate::process::{root, run};
use anyhow::{Context as _, Result};
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

/// What the binaries say that they are; go.mod has the same.
const VERSION: &str = "v1.34.4";

/// Builds what is missing.
pub(super) fn all(home: &Path) -> Result<()> {
    let base = "k8s.io/component-base/version";
    let version =
        format!("-s -w -X {base}.gitVersion={VERSION} -X {base}.gitMajor=1 -X {base}.gitMinor=34");
    one(home, "cluster", "kube", &version)?;
    one(home, "dns", "coredns", "-s -w")
}

fn one(home: &Path, sources: &str, name: &str, flags: &str) -> Result<()> {
    let folder = root().join("xtask/engines/kubernetes").join(sources);
    let bin = home.join("bin");
    std::fs::create_dir_all(&bin).context("cannot make a folder for programs")?;
    let mut wanted = flags.to_owned();
    for file in ["go.mod", "go.sum", "main.go"] {
        let text = std::fs::read_to_string(folder.join(file));
        let _ = write!(
            wanted,
            "\n{}",
            text.with_context(|| format!("cannot read {file}"))?
        );
    }
    let done = bin.join(format!("{name}.sources"));
    let program = bin.join(name);
    if program.exists() && std::fs::read_to_string(&done).is_ok_and(|had| had == wanted) {
        return Ok(());
    }
    run(Command::new("go")
        .current_dir(&folder)
        .args([
            "build",
            "-buildvcs=false",
            "-mod=readonly",
            "-trimpath",
            "-ldflags",
            flags,
            "-o",
        ])
        .arg(&program)
        .arg(".")
        .env("GOTOOLCHAIN", "local")
        .env("CGO_ENABLED", "0")
        .env("GOMODCACHE", home.join("modules"))
        .env("GOCACHE", home.join("cache")))
    .context("needed: Go 1.24 or newer, and its module proxy")?;
    std::fs::write(done, wanted).context("cannot note what was built")
}
