//! The files of a training: event files that grow, checkpoints that come and go. Looked for in the
//! directories of the subject and those inside them, to a bounded depth and number.

use downpour_formats::checkpoint_state::CheckpointState;
use downpour_formats::event::EventReader;
use downpour_formats::storage::join;
use downpour_formats::{Files as AllFiles, Storage};
use downpour_wire::proto::Event;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Directories inside directories.
const MAX_DEPTH: usize = 3;
/// Directories in all.
const MAX_DIRS: usize = 200;
/// Event files that are followed.
const MAX_FILES: usize = 200;
/// Events that are read of one file at once.
const MAX_EVENTS: usize = 5000;
/// Checkpoints that are shown.
const MAX_CHECKPOINTS: usize = 20;
/// How often directories are looked for, counted in looks at files.
const LOOK_AROUND: u64 = 5;

/// A checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Checkpoint {
    /// Its prefix, without the directory.
    pub(crate) name: String,
    pub(crate) run: String,
    pub(crate) step: Option<i64>,
    /// Seconds since 1970, if its writer said.
    pub(crate) time: Option<f64>,
}

/// What is known of the files.
pub(crate) struct Files {
    storage: AllFiles,
    roots: Vec<String>,
    /// Directory and what it is called.
    dirs: Vec<(String, String)>,
    readers: BTreeMap<String, Option<EventReader>>,
    looks: u64,
    pub(crate) checkpoints: Vec<Checkpoint>,
    known: BTreeSet<(String, String)>,
}

impl Files {
    pub(crate) fn new(roots: Vec<String>) -> Files {
        Files {
            storage: AllFiles::new(),
            roots: roots.iter().map(|r| plain(r)).collect(),
            dirs: Vec::new(),
            readers: BTreeMap::new(),
            looks: 0,
            checkpoints: Vec::new(),
            known: BTreeSet::new(),
        }
    }

    /// Reads what is new: `take` gets the events, by run; returns the new checkpoints.
    pub(crate) fn look(&mut self, mut take: impl FnMut(&str, &Event)) -> Vec<Checkpoint> {
        if self.looks.is_multiple_of(LOOK_AROUND) {
            self.dirs.clear();
            for root in self.roots.clone() {
                self.walk(&root, String::new(), 0);
            }
        }
        self.looks += 1;
        let mut checkpoints = Vec::new();
        for (dir, run) in self.dirs.clone() {
            let names = self.storage.list(&dir).unwrap_or_default();
            for name in names.iter().filter(|n| n.contains(".tfevents.")) {
                self.read_events(&join(&dir, name), &run, &mut take);
            }
            if names.iter().any(|n| n == "checkpoint") {
                let state = CheckpointState::read(&self.storage, &dir, "checkpoint");
                // One that is being replaced, or not ours, is looked at again.
                if let Ok(Some(state)) = state {
                    checkpoints.extend(listed(&state, &run));
                }
            }
        }
        checkpoints.sort_by(|a, b| b.time.unwrap_or(0.0).total_cmp(&a.time.unwrap_or(0.0)));
        checkpoints.truncate(MAX_CHECKPOINTS);
        let key = |c: &Checkpoint| (c.run.clone(), c.name.clone());
        let new = checkpoints.iter().filter(|c| !self.known.contains(&key(c)));
        let new: Vec<Checkpoint> = new.cloned().collect();
        self.known = checkpoints.iter().map(key).collect();
        self.checkpoints = checkpoints;
        new
    }

    fn walk(&mut self, dir: &str, run: String, depth: usize) {
        let Ok(names) = self.storage.list(dir) else {
            return;
        };
        if self.dirs.len() >= MAX_DIRS {
            return;
        }
        // One directory may be reached by several ways.
        if self.dirs.iter().any(|(known, _)| known == dir) {
            return;
        }
        self.dirs.push((dir.to_owned(), run.clone()));
        if depth == MAX_DEPTH {
            return;
        }
        // What has a dot is a file of a checkpoint, an event file or a log.
        for name in names.iter().filter(|n| !n.contains('.')) {
            let inside = match run.is_empty() {
                true => name.clone(),
                false => format!("{run}/{name}"),
            };
            self.walk(&join(dir, name), inside, depth + 1);
        }
    }

    fn read_events(&mut self, path: &str, run: &str, take: &mut impl FnMut(&str, &Event)) {
        if !self.readers.contains_key(path) {
            if self.readers.len() >= MAX_FILES {
                return;
            }
            let reader = EventReader::open(&self.storage, path).ok();
            self.readers.insert(path.to_owned(), reader);
        }
        let Some(slot) = self.readers.get_mut(path) else {
            return;
        };
        let Some(reader) = slot else {
            return;
        };
        for _ in 0..MAX_EVENTS {
            match reader.read() {
                Ok(Some(event)) => take(run, &event),
                Ok(None) => return,
                Err(e) => {
                    tracing::warn!("{path} is not read any further: {e}");
                    *slot = None;
                    return;
                }
            }
        }
    }
}

/// A path without what says nothing: `a//b/./` is `a/b`.
fn plain(path: &str) -> String {
    if AllFiles::is_remote(path) {
        return path.trim_end_matches('/').to_owned();
    }
    let path: std::path::PathBuf = std::path::Path::new(path).components().collect();
    path.to_string_lossy().into_owned()
}

fn listed(state: &CheckpointState, run: &str) -> Vec<Checkpoint> {
    let times = &state.all_model_checkpoint_timestamps;
    let paths = state.all_model_checkpoint_paths.iter().enumerate();
    let newest = paths.rev().take(MAX_CHECKPOINTS);
    newest
        .map(|(i, path)| {
            let name = path.rsplit('/').next().unwrap_or(path);
            let step = name.rsplit_once('-').and_then(|(_, n)| n.parse().ok());
            Checkpoint {
                name: name.chars().take(200).collect(),
                run: run.to_owned(),
                step,
                time: times.get(i).copied().filter(|t| t.is_finite() && *t > 0.0),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use downpour_formats::event::EventWriter;
    use downpour_wire::proto;

    fn scalar(step: i64) -> Event {
        let value = proto::summary::Value {
            tag: "loss".into(),
            value: Some(proto::summary::value::Value::SimpleValue(0.5)),
            ..Default::default()
        };
        Event {
            wall_time: 1.0,
            step,
            what: Some(proto::event::What::Summary(proto::Summary {
                value: vec![value],
            })),
            ..Default::default()
        }
    }

    #[test]
    fn growing_event_files_and_new_checkpoints_are_seen() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().to_str().unwrap().to_owned();
        std::fs::create_dir(dir.path().join("eval")).unwrap();
        let storage = AllFiles::new();
        let path = join(&root, "eval/events.out.tfevents.1.h");
        let mut writer = EventWriter::create(&storage, &path, 1.0).unwrap();
        let mut files = Files::new(vec![root.clone()]);
        let mut seen = Vec::new();
        files.look(|run, event| seen.push((run.to_owned(), event.step)));
        seen.clear();
        writer.write(&scalar(1)).unwrap();
        writer.flush().unwrap();
        let new = files.look(|run, event| seen.push((run.to_owned(), event.step)));
        assert!(new.is_empty());
        assert_eq!(seen, [("eval".to_owned(), 1)]);
        let state = CheckpointState {
            model_checkpoint_path: "model.ckpt-7".into(),
            all_model_checkpoint_paths: vec!["model.ckpt-7".into()],
            all_model_checkpoint_timestamps: vec![5.0],
            last_preserved_timestamp: 0.0,
        };
        state.write(&storage, &root, "checkpoint").unwrap();
        let new = files.look(|_, _| ());
        assert_eq!((new[0].step, new[0].time), (Some(7), Some(5.0)));
        assert!(files.look(|_, _| ()).is_empty());
        assert_eq!(files.checkpoints.len(), 1);
    }

    #[test]
    fn a_directory_that_is_named_twice_is_shown_once() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().to_str().unwrap().to_owned();
        let train = format!("{root}/train");
        std::fs::create_dir(&train).unwrap();
        let state = CheckpointState {
            model_checkpoint_path: "model.ckpt-7".into(),
            all_model_checkpoint_paths: vec!["model.ckpt-7".into()],
            all_model_checkpoint_timestamps: vec![5.0],
            last_preserved_timestamp: 0.0,
        };
        let storage = AllFiles::new();
        state.write(&storage, &train, "checkpoint").unwrap();
        let again = format!("{root}//./train/");
        let mut files = Files::new(vec![train.clone(), again, root, train]);
        assert_eq!(files.look(|_, _| ()).len(), 1);
        assert_eq!(files.checkpoints.len(), 1);
    }

    #[test]
    fn files_that_are_not_what_their_names_say_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().to_str().unwrap().to_owned();
        std::fs::write(
            dir.path().join("events.out.tfevents.9.h"),
            "no events here at all",
        )
        .unwrap();
        std::fs::write(dir.path().join("checkpoint"), "\u{0}{{{").unwrap();
        std::os::unix::fs::symlink(dir.path(), dir.path().join("loop")).unwrap();
        let mut files = Files::new(vec![root, "/nowhere".into()]);
        for _ in 0..3 {
            let new = files.look(|run, event| panic!("{run}: {event:?}"));
            assert!(new.is_empty());
        }
    }
}
