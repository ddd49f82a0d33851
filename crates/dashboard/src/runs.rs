//! The runs below some directories, running and past: one [`Collector`] for each, made when the run is first
//! seen. A running one is watched like a job of this process; a past one is read once.

use crate::collector::Collector;
use crate::run_file::RunFile;
use parking_lot::Mutex;
use serde::Serialize;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Runs that are shown; the newest.
const MAX_RUNS: usize = 200;
/// How often directories are looked through.
const EVERY: Duration = Duration::from_secs(2);

/// All runs that are shown.
pub(crate) struct Runs {
    dirs: Vec<PathBuf>,
    known: Mutex<BTreeMap<String, Known>>,
}

struct Known {
    file: RunFile,
    status: String,
    collector: Arc<Collector>,
    watching: Option<tokio::task::JoinHandle<()>>,
}

impl Drop for Known {
    fn drop(&mut self) {
        if let Some(watching) = &self.watching {
            watching.abort();
        }
    }
}

/// A run in the list.
#[derive(Debug, Serialize)]
pub(crate) struct RunShown {
    id: String,
    name: String,
    dir: String,
    status: String,
    why: Option<String>,
    started: Option<f64>,
    seconds: Option<f64>,
    step: Option<i64>,
    command: Vec<String>,
    version: Option<String>,
    code: Option<String>,
    hyperparameters: BTreeMap<String, String>,
    /// The last value of every curve.
    results: BTreeMap<String, f32>,
}

impl Runs {
    pub(crate) fn new(dirs: Vec<PathBuf>) -> Runs {
        Runs {
            dirs,
            known: Mutex::default(),
        }
    }

    /// Looks for runs for ever.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let this = self.clone();
            let look = tokio::task::spawn_blocking(move || this.look());
            // A look that failed is made again.
            let _ = look.await;
        }
    }

    /// Takes over what changed on the disk. Inside a runtime.
    pub(crate) fn look(&self) {
        let found = found(&self.dirs);
        let mut past = Vec::new();
        {
            let mut known = self.known.lock();
            known.retain(|id, _| found.iter().any(|(other, _)| other == id));
            for (id, file) in found {
                let status = file.status();
                match known.get_mut(&id) {
                    Some(run) if run.status == status => run.file = file,
                    // A run that ended is read anew: what its launcher said last is in its record.
                    _ => {
                        let collector = Arc::new(Collector::of_run(&file));
                        let watching =
                            (status == "running").then(|| tokio::spawn(collector.clone().run()));
                        if watching.is_none() {
                            past.push(collector.clone());
                        }
                        let run = Known {
                            file,
                            status,
                            collector,
                            watching,
                        };
                        known.insert(id, run);
                    }
                }
            }
        }
        // Nothing is locked while files are read.
        for collector in past {
            collector.read_past();
        }
    }

    /// The collector of a run.
    pub(crate) fn collector(&self, id: &str) -> Option<Arc<Collector>> {
        self.known.lock().get(id).map(|run| run.collector.clone())
    }

    /// `/api/runs`: newest first.
    pub(crate) fn shown(&self) -> Vec<RunShown> {
        let known = self.known.lock();
        let mut shown: Vec<RunShown> = known
            .iter()
            .map(|(id, run)| RunShown {
                id: id.clone(),
                name: run.file.name(),
                dir: run.file.dir.to_string_lossy().into_owned(),
                status: run.status.clone(),
                why: run.file.why(),
                started: run.file.started(),
                seconds: run.file.took(),
                step: run.collector.step(),
                command: run.file.command(),
                version: run.file.version(),
                code: run.file.code(),
                hyperparameters: run.file.hyperparameters(),
                results: run.collector.results(),
            })
            .collect();
        shown.sort_by(|a, b| {
            b.started
                .unwrap_or(0.0)
                .total_cmp(&a.started.unwrap_or(0.0))
        });
        shown
    }
}

/// The runs in directories and directly below them, newest first, by id.
fn found(dirs: &[PathBuf]) -> Vec<(String, RunFile)> {
    let mut files: Vec<RunFile> = Vec::new();
    for dir in dirs {
        let below = std::fs::read_dir(dir).into_iter().flatten().flatten();
        let places = std::iter::once(dir.clone()).chain(below.map(|entry| entry.path()));
        for place in places {
            let place = place.canonicalize().unwrap_or(place);
            if files.iter().all(|f| f.dir != place) {
                files.extend(RunFile::read(&place));
            }
        }
    }
    files.sort_by(|a, b| {
        let at = |f: &RunFile| f.started().unwrap_or(0.0);
        at(b).total_cmp(&at(a))
    });
    files.truncate(MAX_RUNS);
    files.into_iter().map(|f| (id(&f.dir), f)).collect()
}

fn id(dir: &Path) -> String {
    let mut hash = DefaultHasher::new();
    dir.hash(&mut hash);
    format!("{:016x}", hash.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn write(dir: &Path, name: &str, record: &Value) {
        std::fs::create_dir_all(dir).unwrap();
        std::fs::write(dir.join(name), record.to_string()).unwrap();
    }

    /// Runs `f` on a thread of its own and fails when it does not come back.
    fn in_time<T: Send + 'static>(what: &str, f: impl FnOnce() -> T + Send + 'static) -> T {
        let (send, back) = std::sync::mpsc::channel();
        std::thread::spawn(move || send.send(f()));
        let answer = back.recv_timeout(Duration::from_secs(60));
        answer.unwrap_or_else(|e| panic!("{what} does not come back: {e}"))
    }

    #[test]
    fn a_past_run_is_listed_with_its_end_and_its_page_shows_what_was_kept() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("a-1");
        let task = json!({"name": "worker:0", "role": "trainer", "phase": "done", "starts": 2,
            "command": ["t", "--rate=0.1"], "log": dir.join("w.log"), "exit": {"code": 0}});
        let record = json!({"outcome": "done", "why": "done after 9 s", "command": ["downpour", "run"], "code": "c0ffee",
            "job": {"name": "a", "started": 1000.0, "ended": 9.0, "phase": "ended", "tasks": [task]}});
        write(&dir, "run.json", &record);
        let memory = json!({"state": {"global_step": {"value": 77}, "tasks": [{"short": "worker:0"}], "results": {"old": 1}}, "rows": [{"odd": 1}]});
        write(&dir, "dashboard.json", &memory);
        for step in [70, 81] {
            std::fs::write(dir.join(format!("model.ckpt-{step}.index")), "").unwrap();
        }
        let saved = "model_checkpoint_path: \"model.ckpt-81\"\nall_model_checkpoint_paths: \"model.ckpt-70\"\n\
                     all_model_checkpoint_paths: \"model.ckpt-81\"\n";
        std::fs::write(dir.join("checkpoint"), saved).unwrap();
        write(&place.path().join("none"), "other.json", &json!({}));
        let dirs = vec![place.path().to_owned()];
        let (shown, state) = in_time("the state of a run", move || {
            let runs = Runs::new(dirs);
            runs.look();
            let shown = serde_json::to_value(runs.shown()).unwrap();
            let id = shown[0]["id"].as_str().unwrap().to_owned();
            (
                shown,
                runs.collector(&id).unwrap().state_for_page(None, false),
            )
        });
        assert_eq!(shown.as_array().unwrap().len(), 1);
        let run = &shown[0];
        for (key, wanted) in [
            ("status", json!("done")),
            ("why", json!("done after 9 s")),
            ("seconds", json!(9.0)),
            ("step", json!(81)),
            ("code", json!("c0ffee")),
            (
                "hyperparameters",
                json!({"rate": "0.1", "servers": "0", "trainers": "1"}),
            ),
        ] {
            assert_eq!(run[key], wanted, "{key}");
        }
        let state: Value = serde_json::from_str(&state).unwrap();
        assert_eq!(state["global_step"]["value"], 81, "what was saved last");
        assert_eq!(state["tasks"][0]["short"], "worker:0");
        assert_eq!(
            state["results"],
            json!({}),
            "the files say it, not the memory"
        );
        assert_eq!(state["job"]["ended"]["outcome"], "done");
    }

    #[test]
    fn a_run_that_is_removed_is_listed_no_more() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("a");
        let job = json!({"name": "a", "started": 1.0});
        write(&dir, "run.json", &json!({"outcome": "failed", "job": job}));
        let runs = Runs::new(vec![dir.clone(), place.path().to_owned()]);
        runs.look();
        assert_eq!(runs.shown().len(), 1, "named twice, listed once");
        std::fs::remove_dir_all(dir).unwrap();
        runs.look();
        assert!(runs.shown().is_empty());
    }
}
