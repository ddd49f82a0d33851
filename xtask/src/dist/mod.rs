//! `cargo xtask dist`: what is shipped, in `target/dist`: one static binary, and that binary as a tarball, a Debian
//! package and a container image, with a list of what is in it, licences, checksums and an installer.
//!
//! Packages are made of bytes in memory, with the commit's time and sorted names: the same binary gives the same files.

mod archive;
mod deb;
mod elf;
mod image;
mod parts;
mod publish;
pub(crate) mod spark;
mod trial;

use crate::process::{cargo, output, root, run, target_dir};
use anyhow::{Context as _, Result, bail};
use archive::{Entry, gzip, sha256, tar};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What is built for.
const TARGET: &str = "x86_64-unknown-linux-gnu";
const ARCH: &str = "x86_64-linux";

/// What was asked for.
struct Args {
    profile: String,
    out: PathBuf,
    is_dirty_fine: bool,
    is_made: bool,
    check: Option<bool>,
    publish: bool,
    verify: bool,
    spark: bool,
}

/// A release: what all packages are made of.
pub(crate) struct Release {
    version: String,
    commit: String,
    /// Seconds since 1970: the commit's.
    time: u64,
    binary: Vec<u8>,
    /// Pages of the manual and scripts for shells, printed by the binary: path below `share`, content.
    share: Vec<Entry>,
    sbom: Vec<u8>,
    licences: Vec<u8>,
}

impl Release {
    /// As in `downpour-0.1.0-x86_64-linux`.
    fn name(&self) -> String {
        format!("downpour-{}-{ARCH}", self.version)
    }
}

/// Makes everything; with `--check`, also runs it.
pub(crate) fn run_command(args: &[String]) -> Result<String> {
    let args = read(args)?;
    if args.publish {
        return publish::dry_run(args.is_dirty_fine, args.verify);
    }
    if args.spark {
        let wheel = spark::wheel(&args.profile, &args.out)?;
        return Ok(format!("dist: {}", wheel.display()));
    }
    if args.is_made {
        return trial::run_packages(&args.out, args.check.unwrap_or_default());
    }
    let made = make(&args)?;
    match args.check {
        None => Ok(made),
        Some(is_quick) => Ok(format!(
            "{made}; {}",
            trial::run_packages(&args.out, is_quick)?
        )),
    }
}

fn read(args: &[String]) -> Result<Args> {
    let mut read = Args {
        profile: "dist".to_owned(),
        out: target_dir().join("dist"),
        is_dirty_fine: false,
        is_made: false,
        check: None,
        publish: false,
        verify: false,
        spark: false,
    };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--profile" => args
                .next()
                .context("--profile needs a name")?
                .clone_into(&mut read.profile),
            "--out" => read.out = args.next().context("--out needs a directory")?.into(),
            "--allow-dirty" => read.is_dirty_fine = true,
            "--check" => read.check = Some(false),
            "--check-quick" => read.check = Some(true),
            "--made" => read.is_made = true,
            "--publish-dry-run" => read.publish = true,
            "--verify" => read.verify = true,
            "--spark" => read.spark = true,
            other => bail!("dist: unknown argument '{other}'"),
        }
    }
    Ok(read)
}

fn git(args: &[&str]) -> Result<String> {
    let out = output(Command::new("git").current_dir(root()).args(args))?;
    Ok(String::from_utf8_lossy(&out).trim().to_owned())
}

fn make(args: &Args) -> Result<String> {
    let changed = git(&["status", "--porcelain"])?;
    if !changed.is_empty() && !args.is_dirty_fine {
        bail!(
            "there are changes that are not committed; a release names its commit (--allow-dirty makes one all the same):\n{changed}"
        );
    }
    let binary = build(&args.profile)?;
    elf::check_static(&binary)?;
    let bytes = std::fs::read(&binary).context("cannot read what was built")?;
    let metadata = parts::Metadata::read(TARGET)?;
    let release = Release {
        version: metadata.version.clone(),
        commit: git(&["rev-parse", "HEAD"])?,
        time: git(&["log", "-1", "--format=%ct"])?
            .parse()
            .context("git told no time")?,
        share: share(&binary)?,
        sbom: metadata.sbom()?,
        licences: metadata.licences()?,
        binary: bytes,
    };
    let said =
        String::from_utf8_lossy(&output(Command::new(&binary).arg("--version"))?).into_owned();
    if !said.contains("static") || !said.contains(&release.commit[..12]) {
        bail!("the binary says of itself: {said}");
    }
    std::fs::create_dir_all(&args.out).context("cannot make the folder")?;
    let name = release.name();
    let installer = installer(&release)?;
    let files = [
        (format!("{name}.tar.gz"), tarball(&release)?),
        (
            format!("downpour_{}_amd64.deb", release.version),
            deb::make(&release)?,
        ),
        (format!("{name}-image.tar"), image::make(&release)?),
        (format!("{name}.cdx.json"), release.sbom.clone()),
        ("install.sh".to_owned(), installer.into_bytes()),
    ];
    let mut sums = String::new();
    let mut sizes = Vec::new();
    for (name, bytes) in &files {
        std::fs::write(args.out.join(name), bytes)
            .with_context(|| format!("cannot write {name}"))?;
        sums += &format!("{}  {name}\n", sha256(bytes));
        sizes.push(format!("{name} {:.1} MB", bytes.len() as f64 / 1e6));
    }
    std::fs::write(args.out.join("SHA256SUMS"), sums).context("cannot write SHA256SUMS")?;
    let binary = release.binary.len() as f64 / 1e6;
    Ok(format!("dist: binary {binary:.1} MB, {}", sizes.join(", ")))
}

/// The static binary. Only the last crate is compiled with the flag that makes it static, so that all others are those of an
/// ordinary build; glibc's own parts for static programs are chosen when it is linked.
fn build(profile: &str) -> Result<PathBuf> {
    run(cargo()
        .args([
            "rustc",
            "--locked",
            "--profile",
            profile,
            "--package",
            "downpour-cli",
        ])
        .args([
            "--bin",
            "downpour",
            "--",
            "-Ctarget-feature=+crt-static",
            "-Cstrip=symbols",
        ]))?;
    Ok(target_dir().join(profile).join("downpour"))
}

/// What the binary writes about itself.
fn share(binary: &Path) -> Result<Vec<Entry>> {
    let pages = target_dir().join("dist-man");
    let _ = std::fs::remove_dir_all(&pages);
    run(Command::new(binary).args(["man", "--out"]).arg(&pages))?;
    let mut share = Vec::new();
    for page in std::fs::read_dir(&pages).context("there are no manual pages")? {
        let page = page?;
        let name = page.file_name().to_string_lossy().into_owned();
        let text = std::fs::read(page.path())?;
        share.push(Entry::file(&format!("man/man1/{name}.gz"), gzip(&text)?));
    }
    for (shell, path) in [
        ("bash", "bash-completion/completions/downpour"),
        ("zsh", "zsh/vendor-completions/_downpour"),
        ("fish", "fish/vendor_completions.d/downpour.fish"),
    ] {
        let script = output(Command::new(binary).args(["completions", shell]))?;
        share.push(Entry::file(path, script));
    }
    share.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(share)
}

fn file(path: &str) -> Result<Vec<u8>> {
    std::fs::read(root().join(path)).with_context(|| format!("cannot read {path}"))
}

/// Binary, manual, completions, unit, example configuration, texts, below one folder.
fn tarball(release: &Release) -> Result<Vec<u8>> {
    let top = release.name();
    let mut entries = vec![Entry::program(
        &format!("{top}/bin/downpour"),
        release.binary.clone(),
    )];
    for entry in &release.share {
        entries.push(Entry::file(
            &format!("{top}/share/{}", entry.path),
            entry.bytes.clone(),
        ));
    }
    for (to, from) in [
        ("README.md", "README.md"),
        ("CHANGELOG.md", "CHANGELOG.md"),
        ("LICENSE", "LICENSE"),
        ("deploy/downpour@.service", "deploy/downpour@.service"),
        ("deploy/local.toml", "deploy/local.toml"),
        ("deploy/prometheus.yml", "deploy/prometheus.yml"),
        ("deploy/alerts.yml", "deploy/alerts.yml"),
        ("deploy/grafana.json", "deploy/grafana.json"),
    ] {
        entries.push(Entry::file(&format!("{top}/{to}"), file(from)?));
    }
    entries.push(Entry::file(
        &format!("{top}/licences.txt"),
        release.licences.clone(),
    ));
    entries.push(Entry::file(
        &format!("{top}/downpour.cdx.json"),
        release.sbom.clone(),
    ));
    gzip(&tar(entries, release.time)?)
}

/// The installer, which knows the release it came with.
fn installer(release: &Release) -> Result<String> {
    let text = String::from_utf8(file("deploy/install.sh")?).context("the installer is no text")?;
    let known = text.replace("@VERSION@", &release.version);
    match known == text {
        true => bail!("deploy/install.sh has no @VERSION@"),
        false => Ok(known),
    }
}
