//! One set of features for every program of the workspace: a dependency below `kernels` that one program compiles with
//! another feature makes cargo compile `kernels` once more for it, which takes minutes.

use crate::process::{cargo, output};
use anyhow::Result;
use std::collections::BTreeMap;

/// What is built in release mode by README, tests and benchmarks, each with its own command.
const PROGRAMS: [&str; 3] = ["downpour-cli", "downpour", "downpour-bench"];

/// A crate and its version, as cargo prints them.
type Crate = String;

/// Dependencies of the programs that would be compiled in more than one way.
pub(crate) fn problems() -> Result<Vec<String>> {
    let mut seen: BTreeMap<Crate, (&str, String)> = BTreeMap::new();
    let mut problems = Vec::new();
    for program in PROGRAMS {
        let tree = output(cargo().args([
            "tree",
            "--edges=normal,build",
            "--prefix=none",
            "--format={p}|{f}",
            "--no-dedupe",
            "--package",
            program,
        ]))?;
        for (name, features) in String::from_utf8_lossy(&tree).lines().filter_map(parse) {
            let (first, known) = seen
                .entry(name.clone())
                .or_insert_with(|| (program, features.clone()));
            if *known != features {
                let problem = format!(
                    "{name} has features [{known}] in {first} and [{features}] in {program}: name them all in [workspace.dependencies]"
                );
                if !problems.contains(&problem) {
                    problems.push(problem);
                }
            }
        }
    }
    Ok(problems)
}

/// Reads `name v1.2.3|feature,feature`; `None` for crates of the workspace, which have none.
fn parse(line: &str) -> Option<(Crate, String)> {
    let (name, features) = line.split_once('|')?;
    (!name.contains(" (/")).then(|| (name.to_owned(), features.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn a_line_of_the_tree_is_a_crate_and_its_features() {
        assert_eq!(
            parse("rustix v1.1.6|fs,std"),
            Some(("rustix v1.1.6".to_owned(), "fs,std".to_owned()))
        );
        assert_eq!(parse("downpour-net v0.1.0 (/src/crates/net)|"), None);
    }
}
