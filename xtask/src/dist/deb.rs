//! The Debian package: program, manual, completions, a systemd template unit and one example of its settings. It starts
//! nothing by itself, because a task runs whatever graph it is sent.

use super::archive::{Entry, ar, gzip, tar};
use super::{Release, file};
use anyhow::Result;

/// Told to systemd where that runs.
const POSTINST: &str =
    "#!/bin/sh\nset -e\nif [ -d /run/systemd/system ]; then systemctl daemon-reload || true; fi\n";
const PRERM: &str = "#!/bin/sh\nset -e\nif [ \"$1\" = remove ] && [ -d /run/systemd/system ]; then systemctl stop 'downpour@*.service' || true; fi\n";

pub(super) fn make(release: &Release) -> Result<Vec<u8>> {
    let mut entries = vec![Entry::program("usr/bin/downpour", release.binary.clone())];
    for entry in &release.share {
        entries.push(Entry::file(
            &format!("usr/share/{}", entry.path),
            entry.bytes.clone(),
        ));
    }
    let doc = "usr/share/doc/downpour";
    entries.extend([
        Entry::file(
            "lib/systemd/system/downpour@.service",
            file("deploy/downpour@.service")?,
        ),
        Entry::file("etc/downpour/local.toml", file("deploy/local.toml")?),
        Entry::file(&format!("{doc}/copyright"), release.licences.clone()),
        Entry::file(
            &format!("{doc}/changelog.gz"),
            gzip(&file("CHANGELOG.md")?)?,
        ),
        Entry::file(&format!("{doc}/downpour.cdx.json"), release.sbom.clone()),
    ]);
    let size = entries
        .iter()
        .map(|e| e.bytes.len())
        .sum::<usize>()
        .div_ceil(1024);
    let version = &release.version;
    let control = format!(
        "Package: downpour\nVersion: {version}\nArchitecture: amd64\nMaintainer: The Downpour developers <downpour@example.org>\n\
         Installed-Size: {size}\nSection: science\nPriority: optional\nHomepage: https://github.com/downpour-rs/downpour\n\
         Description: distributed TensorFlow, rebuilt in Rust\n \
         Parameter servers and workers that speak TensorFlow's wire protocol and file\n \
         formats. A TensorFlow client connects with grpc://HOST:PORT. One static program,\n \
         without Python or TensorFlow.\n"
    );
    let control = tar(
        vec![
            Entry::file("control", control.into_bytes()),
            Entry::file("conffiles", b"/etc/downpour/local.toml\n".to_vec()),
            Entry::program("postinst", POSTINST.into()),
            Entry::program("prerm", PRERM.into()),
        ],
        release.time,
    )?;
    let data = tar(entries, release.time)?;
    let members = [
        ("debian-binary", b"2.0\n".to_vec()),
        ("control.tar.gz", gzip(&control)?),
        ("data.tar.gz", gzip(&data)?),
    ];
    Ok(ar(&members, release.time))
}
