//! Which checkpoint is meant: people give a prefix, one of its files, a directory, the `checkpoint`
//! file in it, or a saved model. What cannot be found is answered with what lies nearby.

use super::unreadable;
use anyhow::{Result, anyhow};
use downpour_formats::bundle::index_path;
use downpour_formats::checkpoint_state::{CheckpointState, latest_complete};
use downpour_formats::storage::{dirname, join};
use downpour_formats::{Files, Storage};
use std::path::Path;

/// A checkpoint to look at.
pub(super) struct Located {
    /// Its prefix; for the first format, its file.
    pub(super) prefix: String,
    /// Whether it is a single file of the first format.
    pub(super) is_v1: bool,
    /// What to say about how it was found.
    pub(super) notes: Vec<String>,
}

/// Most neighbours that a hint names.
const MAX_NAMED: usize = 5;

/// Finds the checkpoint that `path` means.
pub(super) fn checkpoint(storage: &Files, path: &Path) -> Result<Located> {
    let text = path
        .to_str()
        .ok_or_else(|| anyhow!("'{}' is not UTF-8", path.display()))?;
    if text.is_empty() {
        return Err(anyhow!(
            "the path is empty; give a checkpoint's prefix or directory"
        ));
    }
    // A storage that does not answer is told of, rather than what is not found in it.
    storage.exists(text).map_err(|e| unreadable(text, &e))?;
    if storage.is_dir(text) {
        return in_directory(storage, text);
    }
    let name = text.rsplit('/').next().unwrap_or(text);
    if storage.is_file(text) && name == "checkpoint" {
        let dir = match dirname(text) {
            "" => ".",
            dir => dir,
        };
        return in_directory(storage, dir);
    }
    let prefix = prefix_of(text);
    if storage.is_file(&index_path(prefix)) {
        return Ok(whole(prefix));
    }
    if storage.is_file(text) {
        if prefix != text {
            return Err(anyhow!(
                "{text} belongs to a checkpoint whose index {} is missing: without it nothing can be read; copy it beside the data",
                index_path(prefix)
            ));
        }
        // Perhaps one of the first format: its reader will say.
        return Ok(Located {
            prefix: text.to_owned(),
            is_v1: true,
            notes: Vec::new(),
        });
    }
    Err(anyhow!(
        "there is no checkpoint '{text}'{}",
        neighbours(storage, text)
    ))
}

fn whole(prefix: &str) -> Located {
    Located {
        prefix: prefix.to_owned(),
        is_v1: false,
        notes: Vec::new(),
    }
}

/// The prefix in the path of one of a checkpoint's files.
fn prefix_of(text: &str) -> &str {
    for suffix in [".index", ".meta"] {
        if let Some(prefix) = text.strip_suffix(suffix) {
            return prefix;
        }
    }
    let is_numbers = |rest: &str| {
        rest.split_once("-of-").is_some_and(|(a, b)| {
            [a, b]
                .iter()
                .all(|n| n.len() >= 5 && n.bytes().all(|c| c.is_ascii_digit()))
        })
    };
    match text.rsplit_once(".data-") {
        Some((prefix, rest)) if is_numbers(rest) => prefix,
        _ => text,
    }
}

fn in_directory(storage: &Files, dir: &str) -> Result<Located> {
    for model in ["variables/variables", "variables"] {
        let prefix = join(dir, model);
        if storage.is_file(&index_path(&prefix)) {
            return Ok(whole(&prefix));
        }
    }
    let latest = latest_complete(storage, dir, "checkpoint").map_err(|e| unreadable(dir, &e))?;
    let mut notes = Vec::new();
    for (path, why) in &latest.skipped {
        notes.push(format!("passed over {path}: {}", why.message));
    }
    if let Ok(Some(state)) = CheckpointState::read(storage, dir, "checkpoint") {
        let kept = state.all_model_checkpoint_paths.len();
        if kept > 1 {
            notes.push(format!(
                "{dir} keeps {kept} checkpoints; this is the latest that is whole"
            ));
        }
    }
    match latest.prefix {
        Some(prefix) => Ok(Located {
            notes,
            ..whole(&prefix)
        }),
        None if notes.is_empty() => Err(anyhow!(
            "{dir} holds no checkpoint: no file there ends in .index"
        )),
        None => Err(anyhow!(
            "{dir} holds no whole checkpoint: {}",
            notes.join("; ")
        )),
    }
}

/// What else lies in the directory of a path that does not exist.
fn neighbours(storage: &Files, text: &str) -> String {
    let dir = match dirname(text) {
        "" => ".",
        dir => dir,
    };
    let Ok(names) = storage.list(dir) else {
        return format!("; {dir} is not a directory that can be read");
    };
    let found: Vec<&str> = names
        .iter()
        .filter_map(|n| n.strip_suffix(".index"))
        .collect();
    match found.len() {
        0 => format!("; {dir} holds none at all"),
        n => {
            let more = if n > MAX_NAMED { ", …" } else { "" };
            let found: Vec<&str> = found.into_iter().rev().take(MAX_NAMED).collect();
            format!("; {dir} holds {}{more}", found.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::prefix_of;

    #[test]
    fn files_lead_to_their_prefix() {
        for (file, prefix) in [
            ("a/m-1.index", "a/m-1"),
            ("m-1.meta", "m-1"),
            ("m-1.data-00000-of-00002", "m-1"),
            ("m-1", "m-1"),
            ("m.data-x-of-y", "m.data-x-of-y"),
        ] {
            assert_eq!(prefix_of(file), prefix);
        }
    }
}
