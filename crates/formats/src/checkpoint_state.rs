//! The `checkpoint` file of a directory: which checkpoints it holds and which is the latest.
//! It is text that people edit and that anybody may have put there: its size is bounded, and a
//! relative path in it may not leave the directory. Rewriting it is atomic and durable.

mod text;

use crate::bundle::{BundleReader, index_path};
use crate::storage::{Storage, join, read_bounded};
use downpour_graph::{Code, Result, Status};

/// Largest state file that is read: room for a hundred thousand checkpoints.
const MAX_BYTES: u64 = 16 << 20;

/// What a `checkpoint` file says.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CheckpointState {
    /// The latest checkpoint's prefix, as written in the file.
    pub model_checkpoint_path: String,
    /// All that are kept, oldest first, the latest included.
    pub all_model_checkpoint_paths: Vec<String>,
    /// When each was written, in seconds since 1970; empty where the writer did not say.
    pub all_model_checkpoint_timestamps: Vec<f64>,
    /// When the last one was set aside for good; 0 if never.
    pub last_preserved_timestamp: f64,
}

impl CheckpointState {
    /// Parses the text form.
    pub fn parse(data: &[u8]) -> Result<CheckpointState> {
        text::parse(data)
    }

    /// The text form, as python's `text_format` prints it.
    pub fn to_text(&self) -> String {
        text::print(self)
    }

    /// Reads `dir/filename`; `None` if there is no such file.
    pub fn read(
        storage: &dyn Storage,
        dir: &str,
        filename: &str,
    ) -> Result<Option<CheckpointState>> {
        match read_bounded(storage, &join(dir, filename), MAX_BYTES) {
            Ok(data) => CheckpointState::parse(&data).map(Some),
            Err(status) if status.code == Code::NotFound => Ok(None),
            Err(status) => Err(status),
        }
    }

    /// Replaces `dir/filename`, durably.
    pub fn write(&self, storage: &dyn Storage, dir: &str, filename: &str) -> Result<()> {
        let mut file = storage.create(&join(dir, filename))?;
        file.write(self.to_text().as_bytes())?;
        file.publish()
    }

    /// The prefixes in the order in which they should be tried: the latest, then the others,
    /// newest first. Each is resolved against `dir`, or is why it cannot be.
    pub fn candidates(&self, dir: &str) -> Vec<(String, Result<String>)> {
        let mut paths = Vec::new();
        let others = self.all_model_checkpoint_paths.iter().rev();
        for path in std::iter::once(&self.model_checkpoint_path).chain(others) {
            if !path.is_empty() && paths.last() != Some(path) {
                paths.push(path.clone());
            }
        }
        let resolved = |path: String| {
            let result = resolve(dir, &path);
            (path, result)
        };
        paths.into_iter().map(resolved).collect()
    }
}

/// A path from a state file in `dir`: absolute ones stand, relative ones are below `dir`.
pub fn resolve(dir: &str, path: &str) -> Result<String> {
    if path.starts_with('/') || path.contains("://") {
        return Ok(path.to_owned());
    }
    if path.split('/').any(|part| part == "..") {
        return Err(Status::invalid_argument(format!(
            "the checkpoint state in {dir} names {path}, which is outside that directory"
        )));
    }
    Ok(join(dir, path))
}

/// The checkpoint to restore from a directory, and what was passed over on the way to it.
#[derive(Debug, Clone, PartialEq)]
pub struct Latest {
    /// Prefix of the newest complete checkpoint, if there is one.
    pub prefix: Option<String>,
    /// What looked newer but is missing, torn or damaged, and why; for a warning.
    pub skipped: Vec<(String, Status)>,
}

/// Finds the newest complete checkpoint: what the state file names, then what else it lists, then
/// whatever lies in the directory. Complete means that index and data files agree about every
/// size; checksums are left to the restore.
pub fn latest_complete(storage: &dyn Storage, dir: &str, filename: &str) -> Result<Latest> {
    let mut latest = Latest {
        prefix: None,
        skipped: Vec::new(),
    };
    let state = match CheckpointState::read(storage, dir, filename) {
        Ok(state) => state,
        Err(status) if is_silence(&status) => return Err(status),
        Err(status) => {
            latest.skipped.push((join(dir, filename), status));
            None
        }
    };
    let listed = state.map(|state| state.candidates(dir)).unwrap_or_default();
    for (path, prefix) in listed {
        match prefix.and_then(|prefix| complete(storage, &prefix).map(|()| prefix)) {
            Ok(prefix) => {
                latest.prefix = Some(prefix);
                return Ok(latest);
            }
            Err(status) if is_silence(&status) => return Err(status),
            Err(status) => latest.skipped.push((path, status)),
        }
    }
    // A directory without state file and without any file of ours is simply empty.
    let names = match storage.list(dir) {
        Ok(names) => names,
        Err(status) if status.code == Code::NotFound => return Ok(latest),
        Err(status) => return Err(status),
    };
    let mut found: Vec<&str> = names
        .iter()
        .filter_map(|n| n.strip_suffix(".index"))
        .collect();
    found.sort_by_key(|name| (step_of(name), *name));
    for name in found.into_iter().rev() {
        let prefix = join(dir, name);
        if latest
            .skipped
            .iter()
            .any(|(path, _)| *path == prefix || path == name)
        {
            continue;
        }
        match complete(storage, &prefix) {
            Ok(()) => {
                latest.prefix = Some(prefix);
                return Ok(latest);
            }
            Err(status) if is_silence(&status) => return Err(status),
            Err(status) => latest.skipped.push((prefix, status)),
        }
    }
    Ok(latest)
}

/// Whether a storage did not answer. That says nothing about the checkpoint, and passing over it would let training
/// go on from an older one, or begin anew.
fn is_silence(status: &Status) -> bool {
    matches!(
        status.code,
        Code::Unavailable | Code::DeadlineExceeded | Code::Unauthenticated
    )
}

/// The global step at the end of a prefix (`model.ckpt-100`).
fn step_of(prefix: &str) -> Option<u64> {
    prefix
        .rsplit_once('-')
        .and_then(|(_, step)| step.parse().ok())
}

fn complete(storage: &dyn Storage, prefix: &str) -> Result<()> {
    if storage.exists(&index_path(prefix))? {
        return BundleReader::open(storage, prefix)?.verify();
    }
    // The first format is one file, which says nothing about its size.
    storage.open(prefix).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bundle::{SaveTensor, save_v2};
    use crate::storage::LocalStorage;
    use crate::testing::TempDir;
    use downpour_tensor::Tensor;

    fn save(dir: &TempDir, name: &str) {
        let tensors = [SaveTensor {
            name: "x",
            shape_and_slice: "",
            tensor: Tensor::vector(vec![1.0f32; 100]),
        }];
        save_v2(&LocalStorage::new(), &dir.file(name), &tensors).unwrap();
    }

    fn point(dir: &TempDir, paths: &[&str]) {
        let state = CheckpointState {
            model_checkpoint_path: paths.last().unwrap().to_string(),
            all_model_checkpoint_paths: paths.iter().map(ToString::to_string).collect(),
            ..CheckpointState::default()
        };
        state
            .write(&LocalStorage::new(), dir.path(), "checkpoint")
            .unwrap();
    }

    fn latest(dir: &TempDir) -> (Option<String>, usize) {
        let found = latest_complete(&LocalStorage::new(), dir.path(), "checkpoint").unwrap();
        let name = found
            .prefix
            .map(|p| p.strip_prefix(dir.path()).unwrap()[1..].to_owned());
        (name, found.skipped.len())
    }

    #[test]
    fn the_pointer_is_followed() {
        let dir = TempDir::new();
        save(&dir, "m-50");
        save(&dir, "m-100");
        point(&dir, &["m-100", "m-50"]);
        assert_eq!(latest(&dir), (Some("m-50".into()), 0));
    }

    #[test]
    fn damaged_and_missing_checkpoints_are_passed_over() {
        let dir = TempDir::new();
        for name in ["m-9", "m-50", "m-100"] {
            save(&dir, name);
        }
        let data = dir.file("m-100.data-00000-of-00001");
        std::fs::write(&data, [0; 399]).unwrap();
        point(&dir, &["m-50", "m-100", "m-200"]);
        assert_eq!(latest(&dir), (Some("m-50".into()), 2));
        std::fs::remove_file(dir.file("m-50.data-00000-of-00001")).unwrap();
        // Not listed, but complete, and not fooled by "m-9" > "m-50" as text.
        assert_eq!(latest(&dir), (Some("m-9".into()), 3));
        std::fs::remove_file(dir.file("m-9.index")).unwrap();
        assert_eq!(latest(&dir).0, None);
    }

    #[test]
    fn a_hostile_pointer_is_survived() {
        let dir = TempDir::new();
        save(&dir, "m-1");
        for hostile in [
            &b"model_checkpoint_path: \"../../etc/passwd\"\n"[..],
            b"model_checkpoint_path: \"checkpoint\"\n",
            b"model_checkpoint_path: \"\xff\xfe\"\n",
            b"model_checkpoint_path: \"m-1",
            b"\x00\x01\x02",
        ] {
            dir.write("checkpoint", hostile);
            let (prefix, skipped) = latest(&dir);
            let own = hostile.ends_with(b"\"checkpoint\"\n");
            let expected = if own { "checkpoint" } else { "m-1" };
            assert_eq!(prefix.as_deref(), Some(expected));
            assert_eq!(skipped, usize::from(!own));
        }
        std::fs::remove_file(dir.file("checkpoint")).unwrap();
        std::fs::create_dir(dir.file("checkpoint")).unwrap();
        assert_eq!(latest(&dir), (Some("m-1".into()), 1));
    }

    #[test]
    fn an_oversized_state_is_not_read() {
        let dir = TempDir::new();
        let file = std::fs::File::create(dir.file("checkpoint")).unwrap();
        file.set_len(1 << 30).unwrap();
        let status =
            CheckpointState::read(&LocalStorage::new(), dir.path(), "checkpoint").unwrap_err();
        assert_eq!(status.code, Code::ResourceExhausted);
    }

    #[test]
    fn nothing_is_no_error() {
        let dir = TempDir::new();
        assert_eq!(latest(&dir), (None, 0));
        let none = latest_complete(&LocalStorage::new(), &dir.file("no"), "checkpoint").unwrap();
        assert_eq!(none.prefix, None);
    }
}
