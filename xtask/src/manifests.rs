//! What the manifests say and no compiler checks: dependencies that nothing uses, crates without the workspace's lints,
//! protobuf outside of the crates that may see it, licences and sources of what is linked.

use crate::process::{cargo, output, root};
use anyhow::{Context as _, Result};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Crates that may see protobuf's library: `wire`, which decodes; `net`, whose gRPC services are made with it; `coordination`,
/// which speaks etcd's protocol and uses no crate of ours.
const SEES_PROTOBUF: &[&str] = &["downpour-wire", "downpour-net", "downpour-coordination"];

/// Licences that may be linked, as in deny.toml, which says the same to `cargo deny`.
const LICENCES: &[&str] = &[
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Zlib",
];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_members: BTreeSet<String>,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    license_file: Option<String>,
    source: Option<String>,
    manifest_path: PathBuf,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    rename: Option<String>,
    kind: Option<String>,
    req: String,
    path: Option<PathBuf>,
}

/// Everything that is wrong, and what is only worth a look.
pub(crate) fn problems() -> Result<(Vec<String>, Vec<String>)> {
    let metadata = output(cargo().args(["metadata", "--format-version", "1", "--locked"]))?;
    let metadata: Metadata =
        serde_json::from_slice(&metadata).context("cannot read cargo metadata")?;
    let (own, foreign): (Vec<&Package>, Vec<&Package>) =
        (metadata.packages.iter()).partition(|p| metadata.workspace_members.contains(&p.id));
    let mut problems = unused_in_workspace(&own)?;
    for package in &own {
        problems.extend(unused(package)?);
        problems.extend(lints(package)?);
        let is_product = package.manifest_path.starts_with(root().join("crates"));
        for dependency in &package.dependencies {
            let is_shipped = dependency.kind.is_none() && is_product;
            if is_shipped
                && dependency.name.starts_with("prost")
                && !SEES_PROTOBUF.contains(&package.name.as_str())
            {
                let name = &package.name;
                problems.push(format!(
                    "{name}: only `wire` decodes, so only it uses prost"
                ));
            }
            if dependency.req == "*" && dependency.path.is_none() {
                let (name, of) = (&package.name, &dependency.name);
                problems.push(format!(
                    "{name}: any version of {of} will do, says its manifest"
                ));
            }
        }
    }
    problems.extend(foreign.iter().filter_map(|p| refused(p)));
    Ok((problems, twice(&foreign)))
}

/// Dependencies that a crate names and none of its files does.
fn unused(package: &Package) -> Result<Vec<String>> {
    let folder = package.manifest_path.parent().unwrap_or(Path::new("."));
    let mut words = BTreeSet::new();
    for file in crate::tidy::rust_files_in(folder)? {
        let text = fs::read_to_string(&file)?;
        let found = text.split(|c: char| !(c.is_alphanumeric() || c == '_'));
        words.extend(found.filter(|w| !w.is_empty()).map(str::to_owned));
    }
    let names = package.dependencies.iter().filter_map(|d| {
        let name = d.rename.as_ref().unwrap_or(&d.name);
        (!words.contains(&name.replace('-', "_"))).then_some(name)
    });
    let name = &package.name;
    Ok(names
        .map(|unused| format!("{name}: nothing uses its dependency {unused}"))
        .collect())
}

/// Entries of the workspace's table that no member uses.
fn unused_in_workspace(own: &[&Package]) -> Result<Vec<String>> {
    let text = fs::read_to_string(root().join("Cargo.toml")).context("no Cargo.toml")?;
    let table = text
        .split("[workspace.dependencies]")
        .nth(1)
        .unwrap_or_default();
    let table = table.split("\n[").next().unwrap_or_default();
    let used: BTreeSet<&str> = (own.iter())
        .flat_map(|p| p.dependencies.iter().map(|d| d.name.as_str()))
        .collect();
    let entries = table.lines().filter_map(|l| l.split_once(" = "));
    Ok(entries
        .filter(|(name, _)| !used.contains(name))
        .map(|(name, _)| format!("Cargo.toml: no crate uses {name}"))
        .collect())
}

fn lints(package: &Package) -> Result<Option<String>> {
    let text = fs::read_to_string(&package.manifest_path)?;
    let has = text.contains("[lints]\nworkspace = true");
    let name = &package.name;
    Ok((!has).then(|| format!("{name}: its manifest lacks the workspace's lints")))
}

/// A package that must not be linked: from elsewhere than the registry, or under a licence that is not listed.
fn refused(package: &Package) -> Option<String> {
    let (name, version) = (&package.name, &package.version);
    let is_registry = |s: &String| s.starts_with("registry+");
    if !package.source.as_ref().is_some_and(is_registry) {
        return Some(format!("{name} {version} does not come from the registry"));
    }
    let Some(licence) = &package.license else {
        let file = package.license_file.as_deref().unwrap_or("none");
        return Some(format!(
            "{name} {version} names no licence (its file: {file})"
        ));
    };
    (!admits(licence)).then(|| format!("{name} {version} is under {licence}"))
}

/// Whether an SPDX expression can be met with the licences listed. `OR` binds less than `AND`; brackets are read.
fn admits(expression: &str) -> bool {
    let (mut depth, mut start, mut parts) = (0, 0, Vec::new());
    let text = expression.replace('/', " OR ");
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ if depth == 0 && text[at..].starts_with(" OR ") => {
                parts.push(&text[start..at]);
                start = at + 4;
            }
            _ => {}
        }
    }
    parts.push(&text[start.min(text.len())..]);
    if parts.len() > 1 {
        return parts.into_iter().any(admits);
    }
    let one = text.trim();
    if let Some(inner) = one.strip_prefix('(').and_then(|t| t.strip_suffix(')'))
        && !inner.contains(") AND (")
    {
        return admits(inner);
    }
    match one.split_once(" AND ") {
        Some((left, right)) => admits(left) && admits(right),
        None => LICENCES.contains(&one),
    }
}

/// Packages that are linked in two versions.
fn twice(foreign: &[&Package]) -> Vec<String> {
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in foreign {
        versions
            .entry(&package.name)
            .or_default()
            .insert(&package.version);
    }
    let several = versions.iter().filter(|(_, v)| v.len() > 1);
    several
        .map(|(name, v)| {
            let list: Vec<&str> = v.iter().copied().collect();
            format!("{name} is there in versions {}", list.join(" and "))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::admits;

    #[test]
    fn licences_are_read_as_expressions() {
        for good in [
            "MIT",
            "MIT OR Apache-2.0",
            "MIT/Apache-2.0",
            "GPL-3.0 OR MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR GPL-2.0",
            "(MIT AND ISC) OR GPL-3.0",
        ] {
            assert!(admits(good), "{good}");
        }
        for bad in [
            "GPL-3.0",
            "MIT AND GPL-3.0",
            "(GPL-3.0 OR AGPL-3.0) AND MIT",
            "",
        ] {
            assert!(!admits(bad), "{bad}");
        }
    }
}
