//! What the program says of its own build (`--version`), and whether MNIST is at hand to be put into it:
//! a package of a registry is too small for that.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    println!("cargo::rustc-env=BUILD_TARGET={}", variable("TARGET"));
    let is_debug = variable("PROFILE") == "debug";
    let commit = match is_debug {
        // Debug builds would be made anew for every commit.
        true => None,
        false => packaged(&variable("CARGO_MANIFEST_DIR")).or_else(checked_out),
    };
    let kind = if is_debug { " (debug build)" } else { "" };
    let commit = commit.unwrap_or_else(|| format!("unknown{kind}"));
    println!("cargo::rustc-env=BUILD_COMMIT={commit}");

    let images = "../../data/mnist/train-images-idx3-ubyte.gz";
    println!("cargo::rustc-check-cfg=cfg(mnist)");
    if Path::new(images).is_file() {
        println!("cargo::rustc-cfg=mnist");
    }
}

/// The commit that `cargo package` noted.
fn packaged(dir: &str) -> Option<String> {
    let text = std::fs::read_to_string(Path::new(dir).join(".cargo_vcs_info.json")).ok()?;
    let (_, rest) = text.split_once("\"sha1\"")?;
    let hash = rest.split('"').nth(1)?;
    Some(hash.chars().take(12).collect())
}

/// The commit that is checked out, with its day.
fn checked_out() -> Option<String> {
    let git = |args: &[&str]| {
        let out = Command::new("git").args(args).output().ok()?;
        let text = String::from_utf8(out.stdout).ok()?;
        out.status.success().then(|| text.trim().to_owned())
    };
    // Files that change with the commit; only those that are there, or cargo would build every time.
    let branch = git(&["symbolic-ref", "--quiet", "HEAD"]);
    let names = ["HEAD", "packed-refs"].into_iter().chain(branch.as_deref());
    for name in names {
        let path = git(&["rev-parse", "--git-path", name])?;
        if Path::new(&path).is_file() {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    git(&["log", "-1", "--format=%h %cs", "--abbrev=12"])
}
