//! `cargo xtask docs`: every command of the README and the book is run as a reader would run it: page by page in one
//! shell, in a home where nothing is yet and, with `--all`, a second time in the same home. The pages run in namespaces of their own, with
//! their own loopback interface and `/tmp`, so that fixed ports and paths meet nobody, and what is left over ends with them.
//!
//! A code block is run if it is marked `sh`. A comment on the line before it says what is special:
//!
//! - `<!-- docs: until WORDS -->`: each command goes on until it is stopped; it is, once it has said these words.
//! - `<!-- docs: whole -->`: takes long, or needs TensorFlow; only with `--all`.
//! - `<!-- docs: not run, REASON -->`: what cannot be run here.
//! - `<!-- docs: ready COMMAND -->`: what starts tasks in the background is done when this succeeds.
//! - `<!-- docs: beside COMMAND -->`: a server that has to be there; it is stopped afterwards.
//! - `<!-- docs: fails -->`: the last command is to end with another code than 0.
//!
//! Blocks in TOML that begin with `# NAME.toml` are files that later commands read.

use crate::process::{build_server, cargo, root, run, server_binary, target_dir};
use crate::venv;
use anyhow::{Context as _, Result, bail};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Longest that one page may take on a machine that does much else.
const PATIENCE: &str = "900";

/// How a mark with its argument becomes a kind.
type MakeKind = fn(String) -> Kind;

/// What a block is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Script,
    Until(String),
    Ready(String),
    Beside(String),
    Fails,
    NotRun(String),
    File(String),
}

/// A code block of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Block {
    line: usize,
    kind: Kind,
    is_long: bool,
    text: String,
}

/// Runs the pages; with `--all` also what takes long, with names only those.
pub(crate) fn test(args: &[String]) -> Result<String> {
    let is_all = args.iter().any(|a| a == "--all");
    if args.iter().any(|a| a == "--newcomer") {
        return newcomer();
    }
    let wanted: Vec<&String> = args.iter().filter(|a| !a.starts_with("--")).collect();
    if let Some(other) = args.iter().find(|a| a.starts_with("--") && *a != "--all") {
        bail!("docs: unknown argument '{other}'");
    }
    build_server()?;
    let place = target_dir().join("docs");
    let _ = fs::remove_dir_all(&place);
    prepare(&place, is_all)?;
    let (mut ran, mut left_out) = (0, 0);
    for page in pages()? {
        let text = fs::read_to_string(root().join(&page))
            .with_context(|| format!("cannot read {page}"))?;
        let blocks = blocks(&text).with_context(|| page.clone())?;
        if !wanted.is_empty() && !wanted.contains(&&page) {
            continue;
        }
        let now = |b: &&Block| (is_all || !b.is_long) && !matches!(b.kind, Kind::NotRun(_));
        let chosen: Vec<&Block> = blocks.iter().filter(now).collect();
        left_out += blocks.len() - chosen.len();
        let scripts = chosen
            .iter()
            .filter(|b| !matches!(b.kind, Kind::File(_)))
            .count();
        if scripts == 0 {
            continue;
        }
        let rounds = ["in a fresh home", "again"];
        for round in rounds.into_iter().take(if is_all { 2 } else { 1 }) {
            let began = Instant::now();
            shell(&place, &script(&chosen)).with_context(|| format!("{page}, {round}"))?;
            println!(
                "docs: {page}: {scripts} blocks {round}, {:.0} s",
                began.elapsed().as_secs_f64()
            );
        }
        ran += scripts;
    }
    let times = if is_all { "twice" } else { "once" };
    Ok(format!(
        "docs: {ran} blocks of commands ran {times}, {left_out} left out"
    ))
}

/// The front page, then the book in its order.
fn pages() -> Result<Vec<String>> {
    let summary =
        fs::read_to_string(root().join("docs/SUMMARY.md")).context("cannot read the book")?;
    let names = summary
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next());
    let mut pages = vec!["README.md".to_owned()];
    pages.extend(
        names
            .filter(|n| n.ends_with(".md") && !n.contains('/'))
            .map(|n| format!("docs/{n}")),
    );
    Ok(pages)
}

/// The blocks of a page that matter here.
fn blocks(text: &str) -> Result<Vec<Block>> {
    let mut blocks = Vec::new();
    let mut lines = text.lines().enumerate();
    let mut note = "";
    while let Some((at, line)) = lines.next() {
        if let Some(said) = line
            .strip_prefix("<!-- docs: ")
            .and_then(|l| l.strip_suffix(" -->"))
        {
            note = said;
            continue;
        }
        let Some(language) = line.strip_prefix("```") else {
            if !note.is_empty() {
                bail!("line {}: '{note}' stands before no code block", at + 1);
            }
            continue;
        };
        let body: Vec<&str> = lines
            .by_ref()
            .map(|(_, l)| l)
            .take_while(|l| !l.starts_with("```"))
            .collect();
        let text = body.join("\n") + "\n";
        let said = std::mem::take(&mut note);
        let (said, is_long) = match said.strip_prefix("whole") {
            Some(rest) => (rest.trim_start_matches([',', ' ']), true),
            None => (said, false),
        };
        let kind = match (language, said) {
            ("sh", "") => Kind::Script,
            ("sh", "fails") => Kind::Fails,
            ("sh", said) => {
                let marks: [(&str, MakeKind); 4] = [
                    ("until ", Kind::Until),
                    ("ready ", Kind::Ready),
                    ("beside ", Kind::Beside),
                    ("not run, ", Kind::NotRun),
                ];
                let found = marks
                    .iter()
                    .find_map(|(mark, kind)| Some(kind(said.strip_prefix(mark)?.to_owned())));
                found.with_context(|| {
                    format!("line {}: '{said}' is no mark of a code block", at + 1)
                })?
            }
            ("toml", _) => match body
                .first()
                .and_then(|l| l.strip_prefix("# ")?.split(": ").next())
            {
                Some(name) if name.ends_with(".toml") => Kind::File(name.to_owned()),
                _ => continue,
            },
            ("", _)
                if body
                    .iter()
                    .any(|l| l.starts_with("downpour ") || l.starts_with("cargo ")) =>
            {
                bail!(
                    "line {}: commands without the mark `sh`: nobody would run them",
                    at + 1
                )
            }
            _ => continue,
        };
        blocks.push(Block {
            line: at + 1,
            kind,
            is_long,
            text,
        });
    }
    Ok(blocks)
}

/// One shell for the whole page, as a reader has.
fn script(blocks: &[&Block]) -> String {
    let mut out = String::from(
        "set -eu\n\
         begin() {\n\
           words=$1\n\
           setsid sh -c \"$2\" > ../said 2>&1 &\n\
           task=$!\n\
           i=0\n\
           while ! grep -qF -- \"$words\" ../said; do\n\
             i=$((i + 1))\n\
             if [ $i -gt 600 ] || ! kill -0 $task 2>/dev/null; then\n\
               grep -qF -- \"$words\" ../said && break\n\
               cat ../said; echo \"'$2' did not say '$words'\"; exit 1\n\
             fi\n\
             sleep 0.1\n\
           done\n\
         }\n\
         end() {\n\
           kill -TERM -- -$task 2>/dev/null || true\n\
           code=0; wait $task || code=$?\n\
           case $code in 0|130|143) ;; *) cat ../said; echo \"'$1' ended with $code\"; exit 1 ;; esac\n\
         }\n\
         retry() {\n\
           i=0\n\
           while ! sh -c \"$1\" > ../said 2>&1; do\n\
             i=$((i + 1))\n\
             if [ $i -gt 300 ]; then cat ../said; echo \"'$1' goes on failing\"; exit 1; fi\n\
             sleep 0.2\n\
           done\n\
         }\n",
    );
    // Files first: pages show them after the commands that read them.
    for block in blocks {
        if let Kind::File(name) = &block.kind {
            let _ = writeln!(
                out,
                "cat > {name} <<'END_OF_FILE'\n{}END_OF_FILE",
                block.text
            );
        }
    }
    for block in blocks {
        let _ = writeln!(out, "echo '--- line {}'", block.line);
        match &block.kind {
            Kind::Script => out += &block.text,
            Kind::Fails => {
                let _ = writeln!(
                    out,
                    "if (\n{}); then echo 'this was to fail'; exit 1; fi",
                    block.text
                );
            }
            Kind::Until(words) => {
                for line in block.text.lines().filter(|l| !l.trim().is_empty()) {
                    let line = quoted(line);
                    let _ = writeln!(out, "begin {} {line}\nend {line}", quoted(words));
                }
            }
            Kind::Ready(command) => {
                let _ = writeln!(out, "{}retry {}", block.text, quoted(command));
            }
            Kind::Beside(command) => {
                let command = quoted(command);
                let _ = writeln!(
                    out,
                    "begin 'listens on' {command}\n{}end {command}",
                    block.text
                );
            }
            Kind::File(_) | Kind::NotRun(_) => {}
        }
    }
    // Servers that a page starts in the background and does not stop end with the namespace.
    out
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// A home with nothing in it, and beside it a folder that looks like a checkout and has what readers bring: a program of
/// theirs, a script, a file of records.
fn prepare(place: &Path, is_all: bool) -> Result<()> {
    let (bin, work) = (place.join("bin"), place.join("work"));
    for folder in [&bin, &work, &place.join("home")] {
        fs::create_dir_all(folder).context("cannot make a folder")?;
    }
    run(cargo().args([
        "build",
        "--release",
        "--package",
        "downpour",
        "--example",
        "mnist_softmax",
    ]))?;
    symlink(server_binary(), bin.join("downpour"))?;
    for name in ["examples", "data", "deploy", "docs", "crates"] {
        symlink(root().join(name), work.join(name))?;
    }
    symlink(target_dir(), work.join("target"))?;
    let program = |path: &Path, text: &str| -> Result<()> {
        fs::write(path, text)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
        Ok(())
    };
    let softmax = target_dir().join("release/examples/mnist_softmax");
    program(
        &work.join("my-trainer"),
        &format!(
            "#!/bin/sh\ncase \"$*\" in *--steps*) ;; *) set -- --steps 300 \"$@\" ;; esac\nexec {} \"$@\"\n",
            softmax.display()
        ),
    )?;
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    program(
        &bin.join("cargo"),
        &format!(
            "#!/bin/sh\ncd {} && exec {cargo} --offline \"$@\"\n",
            root().display()
        ),
    )?;
    let record = root().join("crates/formats/tests/fixtures/records/plain");
    fs::copy(record, work.join("train.tfrecord")).context("there is no file of records")?;
    fs::copy(
        root().join("xtask/src/docs_train.py"),
        work.join("train.py"),
    )?;
    if is_all {
        let python = venv::ensure()?;
        program(
            &bin.join("python3"),
            &format!("#!/bin/sh\nexec {} \"$@\"\n", python.display()),
        )?;
        let board = venv::ensure_tensorboard()?;
        program(
            &bin.join("tensorboard"),
            &format!(
                "#!/bin/sh\nexec {} -m tensorboard.main \"$@\"\n",
                board.display()
            ),
        )?;
    }
    Ok(())
}

/// Runs a script in a namespace of its own.
fn shell(place: &Path, script: &str) -> Result<()> {
    let file = place.join("page.sh");
    fs::write(&file, script)?;
    let is_root = Command::new("id")
        .arg("-u")
        .output()
        .is_ok_and(|id| id.stdout == b"0\n");
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", PATIENCE, "unshare"]);
    if !is_root {
        command.arg("--map-root-user");
    }
    command.args([
        "--mount",
        "--net",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "sh",
        "-c",
    ]);
    command.arg("mount -t tmpfs tmpfs /tmp && ip link set lo up && cd \"$1\" && exec sh \"$2\"");
    command.arg("sh").arg(place.join("work")).arg(&file);
    let home = place.join("home");
    let path = format!(
        "{}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        place.join("bin").display()
    );
    command
        .env_clear()
        .env("PATH", path)
        .env("HOME", &home)
        .stdin(Stdio::null());
    for name in ["CARGO_HOME", "RUSTUP_HOME", "CARGO_TARGET_DIR"] {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    // How this build is configured, or the page's `cargo build` would make another one.
    command.envs(
        std::env::vars_os()
            .filter(|(name, _)| name.to_string_lossy().starts_with("CARGO_PROFILE_")),
    );
    // The tools of whoever runs this; a reader has them in their own home.
    if let Some(own) = std::env::var_os("HOME") {
        let own = Path::new(&own);
        for (name, folder) in [("CARGO_HOME", ".cargo"), ("RUSTUP_HOME", ".rustup")] {
            if std::env::var_os(name).is_none() && own.join(folder).is_dir() {
                command.env(name, own.join(folder));
            }
        }
    }
    run(&mut command)
}

/// A newcomer's first minutes: clone, build, first command, each timed.
fn newcomer() -> Result<String> {
    let place = target_dir().join("newcomer");
    let _ = fs::remove_dir_all(&place);
    fs::create_dir_all(place.join("home"))?;
    let clone = place.join("downpour");
    let begin = Instant::now();
    run(Command::new("git")
        .args(["clone", "--quiet", "--depth", "1"])
        .arg(format!("file://{}", root().display()))
        .arg(&clone))?;
    let cloned = begin.elapsed();
    let mut build = cargo();
    run(build
        .args(["build", "--release"])
        .current_dir(&clone)
        .env_remove("CARGO_TARGET_DIR"))?;
    let built = begin.elapsed();
    let demo = Command::new(clone.join("target/release/downpour"))
        .args(["demo", "mnist", "--json"])
        .current_dir(&clone)
        .env("HOME", place.join("home"))
        .output()
        .context("cannot start the demo")?;
    let trained = begin.elapsed();
    let said: serde_json::Value =
        serde_json::from_slice(&demo.stdout).context("the demo printed no JSON")?;
    let accuracy = said["test_accuracy"]
        .as_f64()
        .context("the demo reports no accuracy")?
        * 100.0;
    let _ = fs::remove_dir_all(&place);
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    Ok(format!(
        "newcomer, {cores} cores: cloned after {:.0} s, built after {:.0} s, {accuracy:.1} % after {:.0} s",
        cloned.as_secs_f64(),
        built.as_secs_f64(),
        trained.as_secs_f64()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_what_their_marks_say() {
        let page = "text\n```sh\nls\n```\n<!-- docs: until listens on -->\n```sh\na\nb\n```\n<!-- docs: whole -->\n```sh\nc\n```\n\
                    ```toml\n# x.toml: a file\nk = 1\n```\n```toml\nk = 2\n```\n<!-- docs: whole, not run, why -->\n```sh\nd\n```\n```rust\nfn\n```\n";
        let found = blocks(page).unwrap();
        let kinds: Vec<(Kind, bool)> = found.iter().map(|b| (b.kind.clone(), b.is_long)).collect();
        assert_eq!(
            kinds,
            [
                (Kind::Script, false),
                (Kind::Until("listens on".into()), false),
                (Kind::Script, true),
                (Kind::File("x.toml".into()), false),
                (Kind::NotRun("why".into()), true)
            ]
        );
        assert_eq!((found[0].line, found[1].text.as_str()), (2, "a\nb\n"));
    }

    #[test]
    fn commands_that_nobody_would_run_are_refused() {
        assert!(blocks("```\ndownpour serve\n```\n").is_err());
        assert!(blocks("<!-- docs: whole -->\ntext\n").is_err());
        assert!(blocks("<!-- docs: sometimes -->\n```sh\nls\n```\n").is_err());
    }

    #[test]
    fn every_page_is_understood() {
        for page in pages().unwrap() {
            let text = fs::read_to_string(root().join(&page)).unwrap();
            if let Err(e) = blocks(&text) {
                panic!("{page}: {e}");
            }
        }
    }

    #[test]
    fn a_script_keeps_quotes() {
        assert_eq!(quoted("a 'b'"), "'a '\\''b'\\'''");
    }
}
