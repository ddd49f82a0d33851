//! The house rules a compiler does not know: which crate may use which, how a file opens, how long
//! it may grow. The picture of the arrows is `ARROWS`; ARCHITECTURE.md explains it.

use crate::process::{cargo, output, root};
use crate::{features, manifests, rooms};
use anyhow::{Context as _, Result, bail};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Crate → crates it may use directly. What those reach counts as allowed too; nothing else does.
const ARROWS: &[(&str, &[&str])] = &[
    ("tensor", &[]),
    ("graph", &["tensor"]),
    ("wire", &["graph", "tensor"]),
    ("formats", &["wire", "tensor"]),
    ("cluster", &[]),
    ("net", &["cluster", "wire"]),
    ("runtime", &["graph", "tensor"]),
    ("executor", &["runtime"]),
    ("kernels", &["runtime", "formats"]),
    ("plan", &["graph"]),
    ("worker", &["executor", "net"]),
    ("master", &["plan", "net"]),
    ("build", &["graph"]),
    ("client", &["net", "build", "plan"]),
    ("coordination", &[]),
    ("train", &["client", "formats", "coordination"]),
    ("yarn", &[]),
    ("launch", &["cluster", "yarn"]),
    ("dashboard", &["net", "formats"]),
    ("stores", &["formats"]),
    (
        "downpour",
        &["master", "worker", "kernels", "train", "client", "stores"],
    ),
    ("cli", &["downpour", "launch", "dashboard"]),
];

/// Past this a source file gets a warning: it holds a second thing.
const LONG_FILE: usize = 800;

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    kind: Option<String>,
    path: Option<PathBuf>,
}

/// Runs every tidy rule and reports all violations at once. With `--write`, files that follow from a list are written first.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let write = match args {
        [] => false,
        [flag] if flag == "--write" => true,
        other => bail!(
            "tidy takes no argument but --write, not {}",
            other.join(" ")
        ),
    };
    let metadata = output(cargo().args(["metadata", "--format-version", "1", "--no-deps"]))?;
    let metadata: Metadata =
        serde_json::from_slice(&metadata).context("cannot read cargo metadata")?;
    let mut problems = wrong_arrows(&metadata);
    problems.extend(features::problems()?);
    problems.extend(rooms::problems(write)?);
    let (wrong, mut warnings) = manifests::problems()?;
    problems.extend(wrong);
    for file in rust_files(&root())? {
        let text =
            fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let shown = file.strip_prefix(root()).unwrap_or(&file).display();
        if !is_generated(&file) {
            if !text.starts_with("//!") {
                problems.push(format!(
                    "{shown}: a file opens with `//!` saying what it owns"
                ));
            }
            let lines = text.lines().count();
            if lines > LONG_FILE {
                warnings.push(format!(
                    "{shown}: {lines} lines; what is the second thing in it?"
                ));
            }
        }
    }
    problems.extend(book()?);
    for line in &warnings {
        eprintln!("warning: {line}");
    }
    if !problems.is_empty() {
        bail!("tidy:\n  {}", problems.join("\n  "));
    }
    eprintln!("tidy: {} crates, arrows as drawn", metadata.packages.len());
    Ok(())
}

/// Pages of the book that its summary leaves out, and links between pages that lead nowhere.
fn book() -> Result<Vec<String>> {
    let folder = root().join("docs");
    let summary = fs::read_to_string(folder.join("SUMMARY.md")).context("cannot read the book")?;
    let mut problems = Vec::new();
    for entry in fs::read_dir(&folder).context("cannot list the book")? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if !name.ends_with(".md") {
            continue;
        }
        if name != "SUMMARY.md" && !summary.contains(&format!("({name})")) {
            problems.push(format!("docs/{name}: SUMMARY.md does not list it"));
        }
        let text = fs::read_to_string(folder.join(&name))
            .with_context(|| format!("cannot read docs/{name}"))?;
        for link in text.split("](").skip(1) {
            let target = link.split([')', '#']).next().unwrap_or_default();
            let is_page = !target.is_empty() && !target.contains("://");
            if is_page && !folder.join(target).exists() {
                problems.push(format!("docs/{name}: there is no '{target}'"));
            }
        }
    }
    Ok(problems)
}

/// Generated sources are committed but not written by hand, so form rules do not apply to them.
fn is_generated(file: &Path) -> bool {
    file.components()
        .any(|c| matches!(c.as_os_str().to_str(), Some("proto" | "generated")))
}

fn wrong_arrows(metadata: &Metadata) -> Vec<String> {
    let reach = closure();
    let mut problems = Vec::new();
    for package in &metadata.packages {
        let Some(from) = room(&package.name) else {
            continue;
        };
        let Some(allowed) = reach.get(from) else {
            problems.push(format!(
                "crate `{from}` is not in the picture: add it to ARROWS and ARCHITECTURE.md"
            ));
            continue;
        };
        for dependency in package.dependencies.iter().filter(|d| d.path.is_some()) {
            let to = room(&dependency.name).unwrap_or(&dependency.name);
            let is_dev = dependency.kind.as_deref() == Some("dev");
            // Tests may look sideways for fixtures, never up to the program or the tools.
            let is_fine = if is_dev {
                !matches!(to, "cli" | "xtask")
            } else {
                allowed.contains(to)
            };
            if !is_fine {
                problems.push(format!("crate `{from}` may not use `{to}`"));
            }
        }
    }
    problems
}

/// The room a package name stands for; `None` for developers' tools, which may use anything.
fn room(package: &str) -> Option<&str> {
    match package {
        "xtask"
        | "downpour-bench"
        | "downpour-fuzz"
        | "downpour-sim"
        | "downpour-script"
        | "downpour-graph-tool" => None,
        "downpour" => Some("downpour"),
        other => Some(other.strip_prefix("downpour-").unwrap_or(other)),
    }
}

fn closure() -> BTreeMap<&'static str, BTreeSet<&'static str>> {
    // ARROWS is in topological order except for the crates of the top, so iterate to a fixed point.
    let mut reach: BTreeMap<&str, BTreeSet<&str>> = ARROWS
        .iter()
        .map(|(from, to)| (*from, to.iter().copied().collect()))
        .collect();
    loop {
        let mut grown = reach.clone();
        for set in grown.values_mut() {
            let more: BTreeSet<&str> = set
                .iter()
                .filter_map(|to| reach.get(to))
                .flatten()
                .copied()
                .collect();
            set.extend(more);
        }
        if grown == reach {
            return reach;
        }
        reach = grown;
    }
}

fn rust_files(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for folder in ["benches", "crates", "xtask", "fuzz"] {
        found.extend(rust_files_in(&root.join(folder))?);
    }
    found.sort();
    Ok(found)
}

/// The Rust files of a folder and those below it.
pub(crate) fn rust_files_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        if !folder.is_dir() || folder.ends_with("target") {
            continue;
        }
        for entry in
            fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?
        {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                found.push(path);
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::{Dependency, Metadata, Package, closure, wrong_arrows};
    use std::path::PathBuf;

    fn package(name: &str, uses: &[(&str, Option<&str>)]) -> Metadata {
        let dependencies = uses
            .iter()
            .map(|(name, kind)| Dependency {
                name: (*name).to_owned(),
                kind: kind.map(str::to_owned),
                path: Some(PathBuf::from("x")),
            })
            .collect();
        Metadata {
            packages: vec![Package {
                name: name.to_owned(),
                dependencies,
            }],
        }
    }

    #[test]
    fn arrows_reach_through_other_crates() {
        let reach = closure();
        assert!(reach["cli"].contains("tensor"));
        assert!(reach["kernels"].contains("wire"));
        assert!(!reach["worker"].contains("kernels"));
        assert!(!reach["plan"].contains("wire"));
    }

    #[test]
    fn upward_arrow_is_named() {
        let found = wrong_arrows(&package("downpour-worker", &[("downpour-kernels", None)]));
        assert_eq!(found, ["crate `worker` may not use `kernels`"]);
    }

    #[test]
    fn tests_may_look_sideways_but_not_at_the_program() {
        let dev = Some("dev");
        assert!(wrong_arrows(&package("downpour-worker", &[("downpour-kernels", dev)])).is_empty());
        assert_eq!(
            wrong_arrows(&package("downpour-worker", &[("downpour-cli", dev)])).len(),
            1
        );
    }

    #[test]
    fn unknown_crate_must_enter_the_picture() {
        assert_eq!(wrong_arrows(&package("downpour-misc", &[])).len(), 1);
    }
}
