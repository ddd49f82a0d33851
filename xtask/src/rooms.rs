//! What a crate may not do, as `clippy.toml` in its folder, so that the compiler's linter says it: read a clock, the environment,
//! files, or end the process. `ROOMS` is the one list; `cargo xtask tidy --write` writes the files, `tidy` compares them.
//!
//! Code of tests may do all of it: the crates whose tests do say so with `cfg_attr(test, allow(…))`.

use crate::process::root;
use anyhow::{Context as _, Result};
use std::fs;

/// What may be forbidden.
struct Ban {
    methods: &'static [&'static str],
    reason: &'static str,
}

const CLOCK: Ban = Ban {
    methods: &["std::time::Instant::now", "std::time::SystemTime::now"],
    reason: "time is an argument here",
};
const ENVIRONMENT: Ban = Ban {
    methods: &[
        "std::env::args",
        "std::env::args_os",
        "std::env::current_dir",
        "std::env::current_exe",
        "std::env::set_current_dir",
        "std::env::set_var",
        "std::env::temp_dir",
        "std::env::var",
        "std::env::var_os",
        "std::env::vars",
    ],
    reason: "the program reads arguments and environment, and hands in what they say",
};
const FILES: Ban = Ban {
    methods: &[
        "std::fs::File::create",
        "std::fs::File::open",
        "std::fs::OpenOptions::open",
        "std::fs::canonicalize",
        "std::fs::copy",
        "std::fs::create_dir",
        "std::fs::create_dir_all",
        "std::fs::hard_link",
        "std::fs::metadata",
        "std::fs::read",
        "std::fs::read_dir",
        "std::fs::read_to_string",
        "std::fs::remove_dir",
        "std::fs::remove_dir_all",
        "std::fs::remove_file",
        "std::fs::rename",
        "std::fs::write",
    ],
    reason: "files are opened through `formats::storage`",
};
const END: Ban = Ban {
    methods: &["std::process::abort", "std::process::exit"],
    reason: "only the program ends itself",
};

/// Values and machines: nothing of the world.
const PURE: &[Ban] = &[CLOCK, ENVIRONMENT, FILES, END];
/// Those who reach the world through others.
const NO_FILES: &[Ban] = &[ENVIRONMENT, FILES, END];
/// Libraries: the user's environment is not theirs to read.
const LIBRARY: &[Ban] = &[ENVIRONMENT, END];

/// Crate → what it may not do. Those that are not listed may do everything.
const ROOMS: &[(&str, &[Ban])] = &[
    ("tensor", PURE),
    ("graph", PURE),
    ("wire", PURE),
    ("formats", PURE),
    ("runtime", PURE),
    ("executor", PURE),
    ("kernels", PURE),
    ("plan", PURE),
    ("cluster", PURE),
    ("build", PURE),
    ("client", PURE),
    ("worker", PURE),
    ("master", PURE),
    ("net", NO_FILES),
    ("train", LIBRARY),
    ("coordination", LIBRARY),
    ("yarn", LIBRARY),
    ("launch", LIBRARY),
    ("dashboard", LIBRARY),
];

/// The `clippy.toml` of a crate: clippy reads the nearest one only, so the workspace's settings come first.
fn text(settings: &str, bans: &[Ban]) -> String {
    let mut out =
        format!("# Written by `cargo xtask tidy --write` from xtask/src/rooms.rs.\n{settings}");
    out += "disallowed-methods = [\n";
    for ban in bans {
        for method in ban.methods {
            out += &format!(
                "    {{ path = \"{method}\", reason = \"{}\" }},\n",
                ban.reason
            );
        }
    }
    out + "]\n"
}

/// Compares the files with the list, or writes them.
pub(crate) fn problems(write: bool) -> Result<Vec<String>> {
    let settings = fs::read_to_string(root().join("clippy.toml")).context("no clippy.toml")?;
    let mut problems = Vec::new();
    for (room, bans) in ROOMS {
        let path = root().join("crates").join(room).join("clippy.toml");
        let wanted = text(&settings, bans);
        if write {
            fs::write(&path, &wanted)
                .with_context(|| format!("cannot write {}", path.display()))?;
        } else if fs::read_to_string(&path).ok().as_deref() != Some(wanted.as_str()) {
            problems.push(format!(
                "crates/{room}/clippy.toml is not what xtask/src/rooms.rs says: `cargo xtask tidy --write` writes it"
            ));
        }
    }
    Ok(problems)
}
