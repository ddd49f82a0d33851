//! The container image, FROM scratch and without Docker: an OCI layout in a tar, with the manifest that `docker load`
//! of any version reads beside it.

use super::Release;
use super::archive::{Entry, sha256, tar};
use anyhow::Result;
use serde_json::{Value, json};

/// Nobody: the program needs no rights.
const USER: u64 = 65_534;

pub(super) fn make(release: &Release) -> Result<Vec<u8>> {
    let text = |path: &str, text: &str| Entry::file(path, text.into());
    let layer = tar(
        vec![
            Entry::program("downpour", release.binary.clone()),
            text(
                "etc/passwd",
                "root:x:0:0:root:/:/\nnobody:x:65534:65534:nobody:/work:/\n",
            ),
            text("etc/group", "root:x:0:\nnobody:x:65534:\n"),
            // Names come from /etc/hosts and the engine's DNS and from no plug-ins.
            text("etc/nsswitch.conf", "hosts: files dns\n"),
            Entry::file("licences.txt", release.licences.clone()),
            Entry::folder("tmp", 0o1777, 0),
            Entry::folder("work", 0o755, USER),
        ],
        release.time,
    )?;
    let layer_digest = sha256(&layer);
    let labels = json!({
        "org.opencontainers.image.title": "downpour",
        "org.opencontainers.image.version": release.version,
        "org.opencontainers.image.revision": release.commit,
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.source": "https://github.com/downpour-rs/downpour",
    });
    let config = bytes(&json!({
        "architecture": "amd64",
        "os": "linux",
        "created": date(release.time),
        "config": {
            "User": format!("{USER}:{USER}"),
            "Entrypoint": ["/downpour"],
            "Cmd": ["--help"],
            "WorkingDir": "/work",
            "Env": ["PATH=/", "HOME=/work"],
            "StopSignal": "SIGTERM",
            "Labels": labels,
        },
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{layer_digest}")]},
        "history": [{"created": date(release.time), "created_by": "cargo xtask dist"}],
    }));
    let config_digest = sha256(&config);
    let manifest = bytes(&json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
        "layers": [descriptor("application/vnd.oci.image.layer.v1.tar", &layer)],
    }));
    let mut of = descriptor("application/vnd.oci.image.manifest.v1+json", &manifest);
    of["annotations"] = json!({
        "org.opencontainers.image.ref.name": release.version,
        "io.containerd.image.name": format!("docker.io/library/downpour:{}", release.version),
    });
    of["platform"] = json!({"architecture": "amd64", "os": "linux"});
    let index = bytes(&json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [of],
    }));
    let docker = bytes(&json!([{
        "Config": format!("blobs/sha256/{config_digest}"),
        "RepoTags": [format!("downpour:{}", release.version)],
        "Layers": [format!("blobs/sha256/{layer_digest}")],
    }]));
    let blob = |bytes: Vec<u8>| Entry::file(&format!("blobs/sha256/{}", sha256(&bytes)), bytes);
    tar(
        vec![
            blob(layer),
            blob(config),
            blob(manifest),
            Entry::file("index.json", index),
            Entry::file("manifest.json", docker),
            text("oci-layout", "{\"imageLayoutVersion\": \"1.0.0\"}"),
        ],
        release.time,
    )
}

fn bytes(value: &Value) -> Vec<u8> {
    value.to_string().into_bytes()
}

fn descriptor(kind: &str, bytes: &[u8]) -> Value {
    json!({"mediaType": kind, "digest": format!("sha256:{}", sha256(bytes)), "size": bytes.len()})
}

/// As RFC 3339 has it, from seconds since 1970.
pub(super) fn date(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Civil from days, with years that begin in March, in eras of 400 years.
    let z = days + 719_468;
    let (era, of_era) = (z / 146_097, z % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z",
        rest / 3600,
        rest / 60 % 60,
        rest % 60
    )
}

#[cfg(test)]
mod tests {
    use super::date;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), "1970-01-01T00:00:00Z");
        assert_eq!(date(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(date(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(date(1_763_500_000), "2025-11-18T21:06:40Z");
    }
}
