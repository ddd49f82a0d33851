//! That what is shipped runs where it is to run: the tarball by its installer, the Debian package by dpkg and the image as a
//! root file system of its own, each through the demo. The quick form does it on this machine; the whole one on a
//! fresh Debian 12 and on the system with the oldest C library that can still be had (Ubuntu 16.04, glibc 2.23).

use crate::process::{output, target_dir};
use anyhow::{Context as _, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A system made from its distribution's packages.
struct System {
    name: &'static str,
    suite: &'static str,
    /// What its packages are signed with. Debian has no package of Ubuntu's keys; what is fetched without them is
    /// used for this trial only.
    keyring: Option<&'static str>,
    include: &'static str,
    components: &'static str,
}

const SYSTEMS: [System; 2] = [
    System {
        name: "Debian 12",
        suite: "bookworm",
        keyring: Some("/usr/share/keyrings/debian-archive-keyring.gpg"),
        // What other hosts look up names with, and what reads the unit.
        include: "systemd,libnss-myhostname,libnss-mdns",
        components: "main",
    },
    System {
        name: "Ubuntu 16.04",
        suite: "xenial",
        keyring: None,
        include: "libnss-mdns",
        components: "main,universe",
    },
];

/// Steps of the demo, and the accuracy that they must give.
const STEPS: &str = "1500";
const MIN_ACCURACY: f64 = 0.85;
/// Longest that a demo may take on a machine that does much else.
const PATIENCE: &str = "180";

/// Runs what lies in `out`.
pub(super) fn run_packages(out: &Path, is_quick: bool) -> Result<String> {
    sums(out)?;
    let work = target_dir().join("dist-trial");
    let _ = std::fs::remove_dir_all(&work);
    std::fs::create_dir_all(&work).context("cannot make a folder for the trials")?;
    let mut figures = vec![format!("image {:.1} %", image(out, &work)?)];
    if is_quick {
        let place = work.join("installed");
        install(out, &place)?;
        figures.push(format!(
            "tarball {:.1} %",
            demo(&place.join("bin/downpour"), &work)?
        ));
        let unpacked = work.join("deb");
        crate::process::run(
            Command::new("dpkg-deb")
                .arg("-x")
                .arg(package(out)?)
                .arg(&unpacked),
        )?;
        let version = output(Command::new(unpacked.join("usr/bin/downpour")).arg("-V"))?;
        figures.push(format!("deb {}", String::from_utf8_lossy(&version).trim()));
    } else {
        for system in &SYSTEMS {
            figures.push(on(system, out)?);
        }
    }
    Ok(figures.join(", "))
}

/// Every file is what the list of checksums says.
fn sums(out: &Path) -> Result<()> {
    crate::process::run(
        Command::new("sha256sum")
            .args(["--check", "--quiet", "--strict", "SHA256SUMS"])
            .current_dir(out),
    )
}

fn found(out: &Path, end: &str) -> Result<PathBuf> {
    let entries = std::fs::read_dir(out).context("cannot list the packages")?;
    let mut paths = entries.filter_map(|e| Some(e.ok()?.path()));
    let found = paths.find(|p| p.to_string_lossy().ends_with(end));
    found.with_context(|| format!("there is no *{end} in {}", out.display()))
}

fn package(out: &Path) -> Result<PathBuf> {
    found(out, ".deb")
}

/// By the shell installer, from this folder; one whose tarball was changed is refused.
fn install(out: &Path, place: &Path) -> Result<()> {
    let installer = |from: &Path| {
        let mut command = Command::new("sh");
        command
            .arg(out.join("install.sh"))
            .arg("--from")
            .arg(from)
            .arg("--prefix")
            .arg(place);
        command
    };
    let damaged = place.with_extension("damaged");
    std::fs::create_dir_all(&damaged)?;
    let tarball = found(out, "linux.tar.gz")?;
    let name = tarball.file_name().unwrap_or_default();
    let mut bytes = std::fs::read(&tarball)?;
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(damaged.join(name), bytes)?;
    std::fs::copy(out.join("SHA256SUMS"), damaged.join("SHA256SUMS"))?;
    let refused = installer(&damaged).output().context("cannot start sh")?;
    let said = String::from_utf8_lossy(&refused.stderr);
    if refused.status.success()
        || !said.contains("is not what SHA256SUMS says")
        || place.join("bin").exists()
    {
        bail!("the installer took a damaged tarball: {said}");
    }
    crate::process::run(&mut installer(out))
}

/// The accuracy that a demo's line of JSON tells, in percent.
fn accuracy(out: &std::process::Output, what: &str) -> Result<f64> {
    let text = String::from_utf8_lossy(&out.stdout);
    if !out.status.success() {
        bail!("{what} ended with {}: {text}", out.status);
    }
    let line = text.lines().last().unwrap_or_default();
    let said: serde_json::Value =
        serde_json::from_str(line).with_context(|| format!("{what} printed {text:?}"))?;
    let accuracy = said["test_accuracy"]
        .as_f64()
        .with_context(|| format!("{what} reports no accuracy: {text}"))?;
    match accuracy >= MIN_ACCURACY {
        true => Ok(accuracy * 100.0),
        false => bail!("{what} reached only {accuracy}"),
    }
}

/// On this machine, in a home of its own.
fn demo(binary: &Path, work: &Path) -> Result<f64> {
    let home = work.join("home");
    std::fs::create_dir_all(&home)?;
    let out = Command::new("timeout")
        .args(["--kill-after=5", PATIENCE])
        .arg(binary)
        .args(["demo", "mnist", "--json", "--steps", STEPS])
        .current_dir(&home)
        .env_clear()
        .env("HOME", &home)
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start the demo")?;
    accuracy(&out, "the demo")
}

/// A command in another root, with its own processes and `/proc`; what is mounted goes with it.
fn inside(root: &Path, user: Option<&str>, home: &str, command: &[&str]) -> Command {
    let is_root = is_root_here();
    let mut made = Command::new("unshare");
    if !is_root {
        made.arg("--map-root-user");
    }
    made.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-c"]);
    // Devices are the machine's, as an engine would give them.
    made.arg(
        "set -e; root=$1; user=$2; shift 2; mkdir -p $root/proc $root/dev; mount -t proc proc $root/proc; \
         mount --rbind /dev $root/dev; exec timeout --kill-after=5 PATIENCE env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin:/ HOME=$HOME chroot $user $root \"$@\""
            .replace("PATIENCE", PATIENCE),
    );
    made.arg("sh").arg(root);
    made.arg(
        user.filter(|_| is_root)
            .map_or("--groups=".to_owned(), |user| format!("--userspec={user}")),
    );
    made.args(command).env("HOME", home);
    made
}

fn is_root_here() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|id| id.stdout == b"0\n")
}

/// The image's layer as a root file system in which there is nothing else.
fn image(out: &Path, work: &Path) -> Result<f64> {
    let (layout, root) = (work.join("layout"), work.join("image"));
    for folder in [&layout, &root] {
        std::fs::create_dir_all(folder)?;
    }
    crate::process::run(
        Command::new("tar")
            .arg("-xf")
            .arg(found(out, "-image.tar")?)
            .arg("-C")
            .arg(&layout),
    )?;
    let json = |path: PathBuf| -> Result<serde_json::Value> {
        let text =
            std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(serde_json::from_slice(&text)?)
    };
    // The way of every reader of such a layout: index, manifest, layers.
    let blob = |digest: &serde_json::Value| {
        let digest = digest.as_str().unwrap_or_default().replace(':', "/");
        layout.join("blobs").join(digest)
    };
    let index = json(layout.join("index.json"))?;
    let manifest = json(blob(&index["manifests"][0]["digest"]))?;
    let config = json(blob(&manifest["config"]["digest"]))?;
    if json(layout.join("manifest.json"))?[0]["Layers"]
        .as_array()
        .map(Vec::len)
        != Some(1)
    {
        bail!("manifest.json names no layer");
    }
    let layer = blob(&manifest["layers"][0]["digest"]);
    let unpack = ["--same-owner", "-xpf"];
    let unpack = if is_root_here() {
        &unpack[..]
    } else {
        &unpack[1..]
    };
    crate::process::run(
        Command::new("tar")
            .args(unpack)
            .arg(layer)
            .arg("-C")
            .arg(&root),
    )?;
    let entry = config["config"]["Entrypoint"][0]
        .as_str()
        .context("the image has no entry point")?;
    let user = config["config"]["User"].as_str();
    let command = [
        entry, "demo", "mnist", "--json", "--steps", STEPS, "--dir", "run",
    ];
    let ended = inside(&root, user, "/work", &command)
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start the image")?;
    accuracy(&ended, "the demo in the image")
}

/// A fresh copy of a system; its packages are fetched once.
fn root_of(system: &System) -> Result<PathBuf> {
    let roots = target_dir().join("dist-roots");
    let (kept, fresh) = (
        roots.join(system.suite),
        roots.join(format!("{}-fresh", system.suite)),
    );
    std::fs::create_dir_all(&roots)?;
    let debootstrap = Path::new("/usr/sbin/debootstrap");
    if !debootstrap.is_file() {
        crate::process::run(
            Command::new("apt-get")
                .args(["install", "--yes", "--no-install-recommends", "debootstrap"])
                .env("DEBIAN_FRONTEND", "noninteractive"),
        )?;
    }
    if !kept.is_dir() {
        let begun = roots.join(format!("{}-begun", system.suite));
        let _ = std::fs::remove_dir_all(&begun);
        crate::process::run(
            Command::new(debootstrap)
                .arg("--variant=minbase")
                .arg(system.keyring.map_or("--no-check-gpg".to_owned(), |keys| {
                    format!("--keyring={keys}")
                }))
                .arg(format!("--include={}", system.include))
                .arg(format!("--components={}", system.components))
                .arg(system.suite)
                // From the distribution's own mirror, which debootstrap knows.
                .arg(&begun),
        )?;
        std::fs::rename(&begun, &kept)?;
    }
    let _ = std::fs::remove_dir_all(&fresh);
    crate::process::run(Command::new("cp").arg("--archive").arg(&kept).arg(&fresh))?;
    Ok(fresh)
}

/// Tarball and package on another system; a line.
fn on(system: &System, out: &Path) -> Result<String> {
    let root = root_of(system)?;
    let from = root.join("root/dist");
    std::fs::create_dir_all(&from)?;
    for end in ["linux.tar.gz", ".deb", "install.sh", "SHA256SUMS"] {
        let path = found(out, end)?;
        std::fs::copy(&path, from.join(path.file_name().unwrap_or_default()))?;
    }
    let run = |command: &[&str]| crate::process::run(&mut inside(&root, None, "/root", command));
    let train = |what: &str, binary: &str| {
        let command = [
            binary, "demo", "mnist", "--json", "--steps", STEPS, "--dir", what,
        ];
        let ended = inside(&root, None, "/root", &command)
            .stderr(Stdio::inherit())
            .output()
            .context("cannot start")?;
        accuracy(&ended, &format!("{what} on {}", system.name))
    };
    run(&[
        "sh",
        "/root/dist/install.sh",
        "--from",
        "/root/dist",
        "--prefix",
        "/opt/downpour",
    ])?;
    let tarball = train("/root/tarball", "/opt/downpour/bin/downpour")?;
    let package = package(out)?;
    let package = format!(
        "/root/dist/{}",
        package.file_name().unwrap_or_default().to_string_lossy()
    );
    run(&["dpkg", "--install", &package])?;
    let deb = train("/root/deb", "/usr/bin/downpour")?;
    names(&root)?;
    if system.include.contains("systemd") {
        run(&[
            "systemd-analyze",
            "--man=no",
            "verify",
            "/lib/systemd/system/downpour@.service",
        ])?;
    }
    run(&["dpkg", "--purge", "downpour"])?;
    if root.join("usr/bin/downpour").exists() || root.join("etc/downpour").exists() {
        bail!("dpkg --purge left something of the package");
    }
    let _ = std::fs::remove_dir_all(&root);
    Ok(format!(
        "{}: tarball {tarball:.1} %, deb {deb:.1} %",
        system.name
    ))
}

/// Names are looked up by a static program too, where the system asks plug-ins of its own C library for them: a task of
/// a cluster listens at a name and is asked by it.
fn names(root: &Path) -> Result<()> {
    std::fs::write(
        root.join("etc/nsswitch.conf"),
        "hosts: files mdns4_minimal [NOTFOUND=return] myhostname dns\n",
    )?;
    std::fs::write(
        root.join("etc/hosts"),
        "127.0.0.1 localhost\n127.0.0.1 ps-zero.test\n",
    )?;
    let script = "set -e; downpour serve --ps-hosts ps-zero.test:22401 --job ps --task 0 > /root/said & task=$!; \
                  for i in $(seq 100); do grep -q listens /root/said && break; sleep 0.1; done; \
                  downpour inspect cluster ps-zero.test:22401 | grep -q ps:0; \
                  if downpour inspect cluster no-such-name.test:22401 2> /root/refused; then exit 1; fi; \
                  kill $task; wait $task; cat /root/refused";
    crate::process::run(&mut inside(root, None, "/root", &["sh", "-c", script]))
}
