//! A run's directory as its launcher left it: `run.json` (a run of an older launcher: `summary.json`) and
//! `dashboard.json`, the last figures that a dashboard saw. Both come from outside: sizes are bounded, and
//! a field that is missing or of another type is as if it said nothing.

use crate::subject::{JobEvent, JobTask, JobView, Subject};
use downpour_formats::{LocalStorage, Storage as _};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Bytes of a file that is read.
const MAX_FILE: u64 = 32 << 20;
/// Flags that are taken for hyperparameters.
const MAX_FLAGS: usize = 40;
/// Characters of a text that is shown.
const MAX_TEXT: usize = 300;

/// What a dashboard saw last, in the run's directory.
pub(crate) const MEMORY: &str = "dashboard.json";

/// A run as its record tells it.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunFile {
    pub(crate) dir: PathBuf,
    record: Value,
}

/// A file as JSON, if it is some.
pub(crate) fn read_json(path: &Path) -> Option<Value> {
    let file = LocalStorage::new().open(path.to_str()?).ok()?;
    let len = file.len().ok().filter(|len| *len <= MAX_FILE)?;
    let mut bytes = vec![0; usize::try_from(len).ok()?];
    let n = file.read_at(0, &mut bytes).ok()?;
    serde_json::from_slice(bytes.get(..n)?).ok()
}

fn text(value: &Value) -> Option<String> {
    let text = value.as_str()?;
    Some(text.chars().take(MAX_TEXT).collect())
}

fn words(value: &Value) -> Vec<String> {
    let words = value.as_array().into_iter().flatten();
    words.take(200).filter_map(text).collect()
}

impl RunFile {
    /// Reads a run's record; nothing if the directory is none of a run.
    pub(crate) fn read(dir: &Path) -> Option<RunFile> {
        let record = read_json(&dir.join("run.json")).or_else(|| {
            let mut old = read_json(&dir.join("summary.json"))?;
            old.get("job")?;
            old["job"]["phase"] = "ended".into();
            Some(old)
        })?;
        record.get("job")?;
        Some(RunFile {
            dir: dir.to_owned(),
            record,
        })
    }

    fn job(&self) -> &Value {
        &self.record["job"]
    }

    pub(crate) fn name(&self) -> String {
        text(&self.job()["name"]).unwrap_or_default()
    }

    /// `running`, `done`, `failed`, `interrupted`, or `lost`: its launcher is gone without a word.
    pub(crate) fn status(&self) -> String {
        if let Some(outcome) = text(&self.record["outcome"]) {
            return outcome;
        }
        let pid = self.record["pid"].as_u64();
        let then = self.record["pid_started"].as_u64();
        let now = pid.and_then(start_of);
        let lives = then.is_some() && now == then;
        if lives { "running" } else { "lost" }.to_owned()
    }

    pub(crate) fn started(&self) -> Option<f64> {
        self.job()["started"].as_f64()
    }

    /// Seconds from start to end, if it has ended.
    pub(crate) fn took(&self) -> Option<f64> {
        self.job()["ended"].as_f64()
    }

    pub(crate) fn why(&self) -> Option<String> {
        text(&self.record["why"])
    }

    pub(crate) fn cause(&self) -> Option<String> {
        let cause = self.record["cause"].as_str()?;
        Some(cause.chars().take(4000).collect())
    }

    pub(crate) fn version(&self) -> Option<String> {
        text(&self.record["version"])
    }

    pub(crate) fn code(&self) -> Option<String> {
        text(&self.record["code"])
    }

    pub(crate) fn command(&self) -> Vec<String> {
        words(&self.record["command"])
    }

    fn tasks(&self) -> impl Iterator<Item = &Value> {
        self.job()["tasks"].as_array().into_iter().flatten()
    }

    /// The flags of the program that trains: `--rate=0.1`, `--rate 0.1`, `--sync`.
    pub(crate) fn hyperparameters(&self) -> BTreeMap<String, String> {
        let trainer = self.tasks().find(|t| t["role"] == "trainer");
        let command = trainer.map(|t| words(&t["command"])).unwrap_or_default();
        let mut found = flags(&command);
        for (role, key) in [("server", "servers"), ("trainer", "trainers")] {
            let n = self.tasks().filter(|t| t["role"] == role).count();
            found.insert(key.to_owned(), n.to_string());
        }
        found
    }

    /// What a dashboard of this run watches.
    pub(crate) fn subject(&self) -> Subject {
        let name = |t: &Value| Some(full_name(t["name"].as_str()?));
        let mut tasks: Vec<(String, String)> = Vec::new();
        for task in self.tasks() {
            if let (Some(name), Some(address)) = (name(task), text(&task["address"]))
                && tasks.iter().all(|(known, _)| *known != name)
            {
                tasks.push((name, address));
            }
        }
        let log = |t: &Value| Some((text(&t["name"])?, PathBuf::from(t["log"].as_str()?)));
        let train = self.job()["train_dir"].as_str().map(PathBuf::from);
        Subject {
            title: self.name(),
            tasks,
            dirs: vec![train.unwrap_or_else(|| self.dir.clone())],
            logs: self.tasks().filter_map(log).collect(),
            ..Subject::default()
        }
    }

    /// The launcher's view, as far as it was written down.
    pub(crate) fn view(&self) -> JobView {
        let status = self.status();
        let started = self.started().unwrap_or(0.0);
        let tasks = self.tasks().filter_map(|t| {
            let phase = text(&t["phase"])?;
            Some(JobTask {
                name: full_name(t["name"].as_str()?),
                is_over: matches!(phase.as_str(), "done" | "stopped"),
                restarts: t["starts"].as_u64().unwrap_or(0).saturating_sub(1) as u32,
                exit: exit(&t["exit"]),
                phase,
            })
        });
        let events = self.job()["happenings"].as_array().into_iter().flatten();
        let events = events.filter_map(|e| {
            Some(JobEvent {
                time: started + e["at"].as_f64()?,
                task: text(&e["task"]),
                kind: text(&e["kind"])?,
                text: text(&e["text"])?,
            })
        });
        JobView {
            name: self.name(),
            phase: match status.as_str() {
                "running" => text(&self.job()["phase"]).unwrap_or_default(),
                _ => status.clone(),
            },
            tasks: tasks.collect(),
            events: events.collect(),
            forgotten: self.job()["forgotten"].as_u64().unwrap_or(0),
            ended: (status != "running").then(|| crate::subject::Ending {
                outcome: status,
                why: self.why().unwrap_or_default(),
                cause: self.cause(),
                seconds: self.took().unwrap_or(0.0),
            }),
        }
    }
}

fn exit(value: &Value) -> Option<String> {
    if let Some(code) = value["code"].as_i64() {
        return Some(format!("exit code {code}"));
    }
    let signal = value["signal"].as_i64()?;
    Some(format!("signal {signal}"))
}

/// `/job:J/replica:0/task:N` of `J:N`; a server beside a client is its task.
fn full_name(short: &str) -> String {
    let short = short.split([' ', '.', '/']).next().unwrap_or(short);
    match short.split_once(':') {
        Some((job, task)) => format!("/job:{job}/replica:0/task:{task}"),
        None => short.to_owned(),
    }
}

fn start_of(pid: u64) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(19)?.parse().ok()
}

fn flags(command: &[String]) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut words = command.iter().peekable();
    while let Some(word) = words.next() {
        let Some(flag) = word.strip_prefix("--").filter(|f| !f.is_empty()) else {
            continue;
        };
        let (name, value) = match flag.split_once('=') {
            Some((name, value)) => (name, value.to_owned()),
            None => match words.peek().filter(|next| !next.starts_with("--")) {
                Some(next) => (flag, (*next).clone()),
                None => (flag, "yes".to_owned()),
            },
        };
        // Where things are says nothing about what was trained.
        if !matches!(name, "dir" | "data" | "train-dir") && found.len() < MAX_FLAGS {
            found.insert(name.to_owned(), value);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn flags_of_the_trainer_are_hyperparameters() {
        let command = [
            "train.py",
            "--rate=0.1",
            "--layers",
            "3",
            "--sync",
            "--dir",
            "/x",
        ];
        let found = flags(&command.map(str::to_owned));
        let found: Vec<(&str, &str)> = found.iter().map(|(k, v)| (&**k, &**v)).collect();
        assert_eq!(found, [("layers", "3"), ("rate", "0.1"), ("sync", "yes")]);
    }

    #[test]
    fn a_run_whose_launcher_is_gone_without_a_word_is_lost() {
        let dir = tempfile::tempdir().unwrap();
        let write = |record: Value| {
            std::fs::write(dir.path().join("run.json"), record.to_string()).unwrap();
            RunFile::read(dir.path()).map(|run| run.status())
        };
        let own = u64::from(std::process::id());
        let started = start_of(own).unwrap();
        let job = json!({"name": "a", "phase": "running"});
        let record = |at: u64| json!({"pid": own, "pid_started": at, "job": job});
        assert_eq!(write(record(started)).unwrap(), "running");
        assert_eq!(write(record(started + 1)).unwrap(), "lost");
        let ended = json!({"pid": own, "pid_started": started, "outcome": "done", "job": job});
        assert_eq!(write(ended).unwrap(), "done");
        assert_eq!(write(json!([1, 2])), None);
        assert_eq!(write(json!({"job": 7, "pid": "x"})).unwrap(), "lost");
    }

    #[test]
    fn names_of_processes_are_those_of_their_tasks() {
        assert_eq!(full_name("ps:3"), "/job:ps/replica:0/task:3");
        assert_eq!(full_name("odd"), "odd");
    }
}
