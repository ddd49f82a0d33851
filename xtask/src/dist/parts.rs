//! What is inside the program: every crate that is linked, by `cargo metadata`, as a CycloneDX list and with the texts of
//! its licences.

use super::archive::sha256;
use super::image::date;
use crate::process::{cargo, output, root};
use anyhow::{Context as _, Result, bail};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

const PROGRAM: &str = "downpour-cli";

/// What cargo says of the workspace and all that it uses, reduced to what the program is made of.
pub(super) struct Metadata {
    pub(super) version: String,
    parts: Vec<Part>,
    /// Positions of those that a part uses.
    uses: Vec<Vec<usize>>,
    program: usize,
}

#[derive(Deserialize)]
struct Said {
    packages: Vec<Part>,
    resolve: Resolve,
}

#[derive(Deserialize, Clone)]
struct Part {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    repository: Option<String>,
    description: Option<String>,
    source: Option<String>,
    manifest_path: PathBuf,
    targets: Vec<Target>,
    /// From the lock file.
    #[serde(skip)]
    checksum: Option<String>,
}

#[derive(Deserialize, Clone)]
struct Target {
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Use>,
}

#[derive(Deserialize)]
struct Use {
    pkg: String,
    dep_kinds: Vec<Kind>,
}

#[derive(Deserialize)]
struct Kind {
    kind: Option<String>,
}

impl Part {
    fn is_macro(&self) -> bool {
        self.targets
            .iter()
            .any(|t| t.kind.iter().any(|k| k == "proc-macro"))
    }

    fn purl(&self) -> String {
        format!("pkg:cargo/{}@{}", self.name, self.version)
    }
}

impl Metadata {
    pub(super) fn read(target: &str) -> Result<Metadata> {
        let args = [
            "metadata",
            "--format-version",
            "1",
            "--locked",
            "--filter-platform",
            target,
        ];
        let said = output(
            cargo()
                .args(args)
                .args(["--manifest-path", "crates/cli/Cargo.toml"]),
        )?;
        let said: Said = serde_json::from_slice(&said).context("cannot read cargo metadata")?;
        let lock =
            std::fs::read_to_string(root().join("Cargo.lock")).context("there is no Cargo.lock")?;
        Metadata::of(said, &checksums(&lock))
    }

    fn of(said: Said, sums: &BTreeMap<(String, String), String>) -> Result<Metadata> {
        let by_id: BTreeMap<&str, &Part> =
            said.packages.iter().map(|p| (p.id.as_str(), p)).collect();
        let nodes: BTreeMap<&str, &Node> = said
            .resolve
            .nodes
            .iter()
            .map(|n| (n.id.as_str(), n))
            .collect();
        let program = said
            .packages
            .iter()
            .find(|p| p.name == PROGRAM && p.source.is_none());
        let program = program.with_context(|| format!("there is no package {PROGRAM}"))?;
        let used = |id: &str| -> BTreeSet<&str> {
            let deps = nodes.get(id).into_iter().flat_map(|n| &n.deps);
            let linked = deps.filter(|d| d.dep_kinds.iter().any(|k| k.kind.is_none()));
            linked
                .map(|d| d.pkg.as_str())
                .filter(|id| nodes.contains_key(id))
                .collect()
        };
        let mut seen = BTreeSet::from([program.id.as_str()]);
        let mut todo = vec![program.id.as_str()];
        while let Some(id) = todo.pop() {
            // What a macro is made of is not in the program.
            if by_id.get(id).is_some_and(|p| p.is_macro()) {
                continue;
            }
            todo.extend(used(id).into_iter().filter(|id| seen.insert(id)));
        }
        let mut parts: Vec<Part> = seen
            .iter()
            .filter_map(|id| by_id.get(id))
            .map(|p| (*p).clone())
            .collect();
        parts.retain(|p| !p.is_macro());
        parts.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
        let place: BTreeMap<&str, usize> = parts
            .iter()
            .enumerate()
            .map(|(i, p)| (p.id.as_str(), i))
            .collect();
        let uses = parts.iter().map(|p| {
            used(&p.id)
                .into_iter()
                .filter_map(|id| place.get(id).copied())
                .collect()
        });
        let uses: Vec<Vec<usize>> = uses.collect();
        let program_at = place[program.id.as_str()];
        for part in &mut parts {
            part.checksum = sums
                .get(&(part.name.clone(), part.version.clone()))
                .cloned();
        }
        Ok(Metadata {
            version: program.version.clone(),
            parts,
            uses,
            program: program_at,
        })
    }

    /// CycloneDX 1.5, as JSON.
    pub(super) fn sbom(&self) -> Result<Vec<u8>> {
        let component = |part: &Part| {
            let mut one = json!({
                "type": if part.name == PROGRAM { "application" } else { "library" },
                "bom-ref": part.purl(),
                "name": part.name,
                "version": part.version,
                "purl": part.purl(),
            });
            if let Some(licence) = &part.license {
                // Some older manifests have a stroke where `OR` is meant.
                one["licenses"] = json!([{"expression": licence.replace('/', " OR ")}]);
            }
            if let Some(sum) = &part.checksum {
                one["hashes"] = json!([{"alg": "SHA-256", "content": sum}]);
            }
            if let Some(description) = &part.description {
                one["description"] = json!(description.trim());
            }
            if let Some(repository) = &part.repository {
                one["externalReferences"] = json!([{"type": "vcs", "url": repository}]);
            }
            one
        };
        let others = self
            .parts
            .iter()
            .enumerate()
            .filter(|(i, _)| *i != self.program);
        let components: Vec<Value> = others.map(|(_, part)| component(part)).collect();
        let dependencies: Vec<Value> = self
            .parts
            .iter()
            .zip(&self.uses)
            .map(|(part, uses)| {
                let on: Vec<String> = uses.iter().map(|i| self.parts[*i].purl()).collect();
                json!({"ref": part.purl(), "dependsOn": on})
            })
            .collect();
        let time = output(std::process::Command::new("git").current_dir(root()).args([
            "log",
            "-1",
            "--format=%ct",
        ]))?;
        let time: u64 = String::from_utf8_lossy(&time)
            .trim()
            .parse()
            .context("git told no time")?;
        let bom = json!({
            "bomFormat": "CycloneDX",
            "specVersion": "1.5",
            "version": 1,
            "metadata": {
                "timestamp": date(time),
                "tools": {"components": [{"type": "application", "name": "cargo xtask dist"}]},
                "component": component(&self.parts[self.program]),
            },
            "components": components,
            "dependencies": dependencies,
        });
        let mut text = serde_json::to_vec_pretty(&bom)?;
        text.push(b'\n');
        Ok(text)
    }

    /// The project's licence, then every other part with the texts that its package has; equal texts once.
    pub(super) fn licences(&self) -> Result<Vec<u8>> {
        let own = std::fs::read_to_string(root().join("LICENSE")).context("there is no LICENSE")?;
        let mut out = format!("Downpour {}: Apache-2.0\n\n{own}\n", self.version);
        out += "This program also contains Rust's standard library (MIT OR Apache-2.0) and, linked statically, the GNU C library\n\
                (LGPL-2.1-or-later); `cargo xtask dist` in the sources named above links it anew with another. The crates below are in it\n\
                under the licences named with them.\n\n";
        let mut texts: BTreeMap<String, (String, Vec<String>)> = BTreeMap::new();
        for part in self.parts.iter().filter(|p| p.source.is_some()) {
            let Some(licence) = &part.license else {
                bail!("{} {} names no licence", part.name, part.version);
            };
            let name = format!("{} {}", part.name, part.version);
            out += &format!("{name}: {licence}\n");
            for text in texts_of(&part.manifest_path)? {
                let known = texts
                    .entry(sha256(text.as_bytes()))
                    .or_insert_with(|| (text, Vec::new()));
                known.1.push(name.clone());
            }
        }
        let mut texts: Vec<_> = texts.into_values().collect();
        texts.sort_by(|a, b| a.1.cmp(&b.1));
        for (text, names) in texts {
            out += &format!(
                "\n{}\n{}:\n\n{}\n",
                "-".repeat(100),
                names.join(", "),
                text.trim_end()
            );
        }
        Ok(out.into_bytes())
    }
}

/// Licences and notices beside a manifest.
fn texts_of(manifest: &Path) -> Result<Vec<String>> {
    let folder = manifest.parent().unwrap_or(manifest);
    let mut paths = Vec::new();
    for entry in
        std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?
    {
        let path = entry?.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .to_uppercase();
        let is_text = ["LICENSE", "LICENCE", "NOTICE", "COPYING", "COPYRIGHT"]
            .iter()
            .any(|word| name.starts_with(word));
        if is_text && path.is_file() {
            paths.push(path);
        }
    }
    paths.sort();
    let read = |path: &PathBuf| {
        std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
    };
    paths
        .iter()
        .map(|path| Ok(String::from_utf8_lossy(&read(path)?).into_owned()))
        .collect()
}

/// Name and version to checksum, from a lock file.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let value = |block: &str, key: &str| {
        let line = block
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "));
        line.map(|line| line.trim_matches('"').to_owned())
    };
    let blocks = lock.split("[[package]]");
    blocks
        .filter_map(|block| {
            Some((
                (value(block, "name")?, value(block, "version")?),
                value(block, "checksum")?,
            ))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(id: &str, kind: &str, source: bool) -> Value {
        json!({"id": id, "name": id, "version": "1.0.0", "license": "MIT/Apache-2.0", "repository": null, "description": null,
               "source": source.then_some("registry"), "manifest_path": "/nowhere/Cargo.toml", "targets": [{"kind": [kind]}]})
    }

    #[test]
    fn only_what_is_linked_is_listed() {
        let node = |id: &str, deps: &[(&str, Option<&str>)]| {
            let deps: Vec<Value> = deps
                .iter()
                .map(|(id, kind)| json!({"pkg": id, "dep_kinds": [{"kind": kind}]}))
                .collect();
            json!({"id": id, "deps": deps})
        };
        let said = json!({
            "packages": [part(PROGRAM, "bin", false), part("a", "lib", true), part("m", "proc-macro", true), part("syn", "lib", true),
                         part("b", "lib", true), part("t", "lib", true)],
            "resolve": {"nodes": [
                node(PROGRAM, &[("a", None), ("m", None), ("t", Some("dev"))]), node("a", &[("b", None), ("t", Some("build"))]),
                node("m", &[("syn", None)]), node("syn", &[]), node("b", &[]), node("t", &[]),
            ]},
        });
        let lock = "[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nchecksum = \"12ab\"\n\n[[package]]\nname = \"b\"\nversion = \"1.0.0\"\n";
        let metadata =
            Metadata::of(serde_json::from_value(said).unwrap(), &checksums(lock)).unwrap();
        let names: Vec<&str> = metadata.parts.iter().map(|p| p.name.as_str()).collect();
        assert_eq!(names, ["a", "b", PROGRAM]);
        let bom: Value = serde_json::from_slice(&metadata.sbom().unwrap()).unwrap();
        assert_eq!(bom["components"][0]["hashes"][0]["content"], "12ab");
        assert_eq!(
            bom["components"][0]["licenses"][0]["expression"],
            "MIT OR Apache-2.0"
        );
        assert_eq!(
            bom["dependencies"][2],
            json!({"ref": format!("pkg:cargo/{PROGRAM}@1.0.0"), "dependsOn": ["pkg:cargo/a@1.0.0"]})
        );
    }
}
