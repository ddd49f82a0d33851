//! Getting a service's program without changing the machine: Debian packages that are unpacked, jars
//! by Maven, python packages in an environment of their own.

use crate::process::{output, run};
use anyhow::{Context as _, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Downloads a Debian package and unpacks it into a folder; `program` is what is wanted of it.
pub(super) fn debian(package: &str, folder: &Path, program: &str) -> Result<PathBuf> {
    let program = folder.join(program);
    if program.exists() {
        return Ok(program);
    }
    let fetch = |package: &str| {
        run(Command::new("apt-get")
            .current_dir(folder)
            .args(["download", "--quiet", package]))
    };
    if fetch(package).is_err() {
        // A fresh machine has no lists of packages.
        run(Command::new("apt-get").args(["update", "--quiet"]))?;
        fetch(package)?;
    }
    for entry in std::fs::read_dir(folder).context("cannot list what was downloaded")? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "deb") {
            run(Command::new("dpkg-deb").arg("-x").arg(&path).arg(folder))?;
            std::fs::remove_file(&path).context("cannot remove a package")?;
        }
    }
    if !program.exists() {
        anyhow::bail!("package {package} has no {}", program.display());
    }
    Ok(program)
}

/// The same with all that the packages need and the machine has not installed; their maintainers' scripts do not run.
pub(super) fn debian_all(packages: &[&str], folder: &Path, program: &str) -> Result<PathBuf> {
    let program = folder.join(program);
    let done = folder.join("complete");
    let wanted = packages.join("\n");
    if std::fs::read_to_string(&done).is_ok_and(|had| had == wanted) {
        return Ok(program);
    }
    std::fs::create_dir_all(folder).context("cannot make a folder for packages")?;
    let list = || {
        let mut list = Command::new("apt-get");
        list.args([
            "install",
            "--print-uris",
            "-qq",
            "--yes",
            "--no-install-recommends",
        ]);
        output(list.args(packages))
    };
    let listed = match list() {
        Ok(listed) => listed,
        Err(_) => {
            // A fresh machine has no lists of packages.
            run(Command::new("apt-get").args(["update", "--quiet"]))?;
            list()?
        }
    };
    // 'URI' NAME_VERSION_ARCHITECTURE.deb SIZE HASH
    let listed = String::from_utf8_lossy(&listed).into_owned();
    let files = listed.lines().filter_map(|line| line.split(' ').nth(1));
    let names: Vec<&str> = files.filter_map(|file| file.split('_').next()).collect();
    if names.is_empty() {
        // They are installed on the machine already.
        return Ok(Path::new("/").join(program.strip_prefix(folder).unwrap_or(&program)));
    }
    run(Command::new("apt-get")
        .current_dir(folder)
        .args(["download", "--quiet"])
        .args(&names))?;
    for entry in std::fs::read_dir(folder).context("cannot list what was downloaded")? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "deb") {
            run(Command::new("dpkg-deb").arg("-x").arg(&path).arg(folder))?;
            std::fs::remove_file(&path).context("cannot remove a package")?;
        }
    }
    if !program.exists() {
        anyhow::bail!("packages {wanted} have no {}", program.display());
    }
    std::fs::write(done, wanted).context("cannot note that all packages are there")?;
    Ok(program)
}

/// Copies artifacts (`group:name:version`) of Maven's repository, and all that they need, into `lib`.
pub(super) fn maven(artifacts: &[&str], folder: &Path) -> Result<PathBuf> {
    let lib = folder.join("lib");
    let done = lib.join("complete");
    // Another version, or a download that was broken off, is fetched anew.
    let wanted = artifacts.join("\n");
    if std::fs::read_to_string(&done).is_ok_and(|had| had == wanted) {
        return Ok(lib);
    }
    let dependencies: String = artifacts
        .iter()
        .map(|artifact| {
            let mut parts = artifact.split(':');
            let mut part = || parts.next().unwrap_or_default();
            format!(
                "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>",
                part(), part(), part()
            )
        })
        .collect();
    let pom = format!(
        "<project xmlns=\"http://maven.apache.org/POM/4.0.0\"><modelVersion>4.0.0</modelVersion>\
         <groupId>engines</groupId><artifactId>daemons</artifactId><version>1</version>\
         <packaging>pom</packaging><dependencies>{dependencies}</dependencies></project>"
    );
    std::fs::write(folder.join("pom.xml"), pom).context("cannot write pom.xml")?;
    run(Command::new("mvn").current_dir(folder).args([
        "--quiet",
        "--batch-mode",
        "dependency:copy-dependencies",
        "-DincludeScope=runtime",
        "-DoutputDirectory=lib",
    ]))
    .context("needed: `mvn`, a Java runtime and Maven's central repository")?;
    std::fs::write(done, wanted).context("cannot note that all jars are there")?;
    Ok(lib)
}

/// Makes a python environment with these packages.
pub(super) fn python(packages: &[&str], folder: &Path) -> Result<PathBuf> {
    let venv = folder.join("venv");
    let done = venv.join("complete");
    let wanted = packages.join("\n");
    let bin = venv.join("bin");
    if std::fs::read_to_string(&done).is_ok_and(|had| had == wanted) {
        return Ok(bin);
    }
    run(Command::new("python3")
        .args(["-m", "venv", "--clear"])
        .arg(&venv))?;
    run(Command::new(bin.join("python"))
        .args(["-m", "pip", "install", "--quiet"])
        .args(packages))
    .context("needed: a package index of python's")?;
    std::fs::write(done, wanted).context("cannot note that all packages are there")?;
    Ok(bin)
}
