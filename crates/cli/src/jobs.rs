//! `downpour ps`, `logs`, `clean`: the runs of this user on this machine, by the records that launchers keep in the
//! runs' directories (`run.json`) and the list of those directories in the user's home.

use crate::refusal::clean;
use crate::run::conduct::list;
use crate::serve::duration;
use anyhow::{Context as _, Result, bail};
use clap::Args;
use downpour_launch::{RECORD, process_start};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How often `logs -f` looks for more.
const FOLLOW_EVERY: Duration = Duration::from_millis(200);

/// A run by its record.
pub(crate) struct Known {
    pub(crate) dir: PathBuf,
    record: Value,
}

impl Known {
    fn read(dir: &Path) -> Option<Known> {
        let text = std::fs::read_to_string(dir.join(RECORD)).ok()?;
        let record: Value = serde_json::from_str(&text).ok()?;
        record.get("job")?;
        Some(Known {
            dir: dir.canonicalize().ok()?,
            record,
        })
    }

    fn is_running(&self) -> bool {
        let pid = self.record["pid"]
            .as_u64()
            .and_then(|p| u32::try_from(p).ok());
        let then = self.record["pid_started"].as_u64();
        self.record["outcome"].is_null() && then.is_some() && pid.and_then(process_start) == then
    }

    fn status(&self) -> String {
        match self.record["outcome"].as_str() {
            Some(outcome) => clean(outcome),
            None if self.is_running() => "running".to_owned(),
            None => "lost".to_owned(),
        }
    }

    /// Seconds since 1970.
    fn started(&self) -> f64 {
        self.record["job"]["started"].as_f64().unwrap_or(0.0)
    }

    /// Seconds since it started.
    pub(crate) fn age(&self) -> f64 {
        now() - self.started()
    }

    /// The last part of its directory's path: what people call it.
    pub(crate) fn name(&self) -> String {
        let name = self.dir.file_name().unwrap_or_default();
        clean(&name.to_string_lossy())
    }

    pub(crate) fn tasks(&self) -> impl Iterator<Item = &Value> {
        self.record["job"]["tasks"].as_array().into_iter().flatten()
    }
}

/// All runs that are known, newest first: those on the user's list and those below the working directory.
fn known() -> Vec<Known> {
    let below = |dir: &Path| {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        entries.map(|e| e.path()).collect::<Vec<_>>()
    };
    let mut dirs = list().map(|list| below(&list)).unwrap_or_default();
    dirs.extend(below(Path::new(downpour_launch::RUNS)));
    let mut seen = BTreeSet::new();
    let mut runs: Vec<Known> = dirs.iter().filter_map(|dir| Known::read(dir)).collect();
    runs.retain(|run| seen.insert(run.dir.clone()));
    runs.sort_by(|a, b| b.started().total_cmp(&a.started()));
    runs
}

/// Those that run.
pub(crate) fn running() -> Vec<Known> {
    let mut runs = known();
    runs.retain(Known::is_running);
    runs
}

fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0.0, |d| d.as_secs_f64())
}

/// `12 s`, `3 min`, `5 h`, `9 d`.
pub(crate) fn span(seconds: f64) -> String {
    let s = seconds.max(0.0);
    match s {
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.0} h", s / 3600.0),
        s => format!("{:.0} d", s / 86_400.0),
    }
}

/// Flags of `downpour ps`.
#[derive(Args)]
pub(crate) struct Ps {
    /// Those that are over, too
    #[arg(long, short)]
    all: bool,

    /// One JSON document for programs
    #[arg(long)]
    json: bool,
}

impl Ps {
    /// Prints the list.
    pub(crate) fn run(self) -> Result<()> {
        let mut runs = known();
        runs.retain(|run| self.all || run.is_running());
        let mut out = std::io::stdout().lock();
        if self.json {
            let rows = runs.iter().map(|run| {
                serde_json::json!({
                    "name": run.name(), "status": run.status(), "dir": run.dir, "started": run.started(),
                    "pid": run.record["pid"], "tasks": run.tasks().count(), "dashboard": run.record["dashboard"],
                })
            });
            writeln!(out, "{}", Value::Array(rows.collect()))?;
            return Ok(());
        }
        if runs.is_empty() {
            writeln!(out, "no jobs; downpour ps --all lists those that are over")?;
            return Ok(());
        }
        let mut rows =
            vec![["JOB", "STATUS", "AGE", "TASKS", "PID", "DIRECTORY"].map(str::to_owned)];
        for run in &runs {
            let pid = match run.is_running() {
                true => run.record["pid"].to_string(),
                false => "-".to_owned(),
            };
            let dir = clean(&run.dir.to_string_lossy());
            let age = span(run.age());
            rows.push([
                run.name(),
                run.status(),
                age,
                run.tasks().count().to_string(),
                pid,
                dir,
            ]);
        }
        for row in &rows {
            let widths =
                (0..5).map(|i| rows.iter().map(|r| r[i].chars().count()).max().unwrap_or(0));
            let cells = row
                .iter()
                .zip(widths)
                .map(|(cell, width)| format!("{cell:width$}  "));
            writeln!(out, "{}{}", cells.collect::<String>(), row[5])?;
        }
        Ok(())
    }
}

/// The run that is meant: by its name or directory, or the newest.
fn meant(run: Option<&str>) -> Result<Known> {
    if let Some(found) = run.and_then(|run| Known::read(Path::new(run))) {
        return Ok(found);
    }
    let mut runs = known();
    let place = match run {
        None => (!runs.is_empty()).then_some(0),
        Some(name) => runs.iter().position(|run| run.name() == name),
    };
    match (place, run) {
        (Some(place), _) => Ok(runs.swap_remove(place)),
        (None, Some(name)) => bail!(
            "there is no run '{}'; downpour ps --all lists them",
            clean(name)
        ),
        (None, None) => bail!("there are no runs yet: downpour run or downpour demo make one"),
    }
}

/// Flags of `downpour logs`.
#[derive(Args)]
pub(crate) struct Logs {
    /// A run, by its name as in `downpour ps` or by its directory [default: the newest]
    #[arg(value_name = "RUN")]
    run: Option<String>,

    /// Go on until the job has ended
    #[arg(long, short)]
    follow: bool,

    /// Only this task, as in ps:0
    #[arg(long, value_name = "TASK")]
    task: Option<String>,
}

struct Tail {
    name: String,
    path: PathBuf,
    offset: u64,
    rest: Vec<u8>,
}

impl Tail {
    /// Prints the whole lines that came since; a file that is not there has none.
    fn print(&mut self, width: usize, out: &mut impl std::io::Write) -> Result<bool> {
        let Ok(mut file) = std::fs::File::open(&self.path) else {
            return Ok(false);
        };
        // A log that has become too long began anew.
        if file.metadata()?.len() < self.offset {
            (self.offset, self.rest) = (0, Vec::new());
        }
        file.seek(SeekFrom::Start(self.offset))?;
        let before = self.rest.len();
        self.offset += file.read_to_end(&mut self.rest)? as u64;
        let grew = self.rest.len() > before;
        while let Some(end) = self.rest.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            writeln!(out, "{:width$} | {}", self.name, line.trim_end())?;
        }
        Ok(grew)
    }
}

impl Logs {
    /// Prints the lines, task by task, and with `--follow` those that come.
    pub(crate) fn run(self) -> Result<()> {
        let run = meant(self.run.as_deref())?;
        let mut tails = Vec::new();
        for task in run.tasks() {
            let (Some(name), Some(log)) = (task["name"].as_str(), task["log"].as_str()) else {
                continue;
            };
            if self.task.as_deref().is_none_or(|wanted| wanted == name) {
                tails.push(Tail {
                    name: clean(name),
                    path: log.into(),
                    offset: 0,
                    rest: Vec::new(),
                });
            }
        }
        if let (true, Some(task)) = (tails.is_empty(), &self.task) {
            let names: Vec<&str> = run.tasks().filter_map(|t| t["name"].as_str()).collect();
            bail!(
                "{} has no task '{}'; it has {}",
                run.name(),
                clean(task),
                names.join(", ")
            );
        }
        let width = tails.iter().map(|t| t.name.len()).max().unwrap_or(0);
        let mut out = std::io::stdout().lock();
        loop {
            // Looked at first: what was printed before the end is read after it.
            let is_over =
                !self.follow || !Known::read(&run.dir).is_some_and(|run| run.is_running());
            let mut grew = false;
            for tail in &mut tails {
                grew |= tail.print(width, &mut out)?;
            }
            out.flush()?;
            if is_over {
                return Ok(());
            }
            if !grew {
                std::thread::sleep(FOLLOW_EVERY);
            }
        }
    }
}

/// Flags of `downpour clean`.
#[derive(Args)]
pub(crate) struct Clean {
    /// Only runs that began so long ago, as in 7d or 12h [default: 7d]
    #[arg(long, value_name = "TIME", value_parser = days)]
    older_than: Option<Duration>,

    /// Keep the newest so many in any case
    #[arg(long, value_name = "N", default_value_t = 0)]
    keep: usize,

    /// Remove; without it, only what would be removed is printed
    #[arg(long)]
    yes: bool,
}

/// A time as elsewhere, or days: `7d`.
fn days(text: &str) -> Result<Duration, String> {
    match text.strip_suffix('d').map(str::parse::<u64>) {
        Some(Ok(days)) => Ok(Duration::from_secs(days.saturating_mul(86_400))),
        _ => duration(text),
    }
}

impl Clean {
    /// Removes runs that are over, with all that is in their directories.
    pub(crate) fn run(self) -> Result<()> {
        let age = self.older_than.unwrap_or(Duration::from_secs(7 * 86_400));
        let mut out = std::io::stdout().lock();
        let old = known().into_iter().skip(self.keep);
        let old = old.filter(|run| !run.is_running() && now() - run.started() >= age.as_secs_f64());
        let mut count = 0;
        for run in old {
            let shown = clean(&run.dir.to_string_lossy());
            // A directory that was named with --dir may hold other things.
            let parent = run.dir.parent().and_then(Path::file_name);
            if parent.is_none_or(|name| name != downpour_launch::RUNS) {
                writeln!(out, "kept {shown}: its place was named with --dir")?;
                continue;
            }
            count += 1;
            if self.yes {
                std::fs::remove_dir_all(&run.dir)
                    .with_context(|| format!("cannot remove '{shown}'"))?;
            }
            let verb = if self.yes { "removed" } else { "would remove" };
            writeln!(out, "{verb} {shown}, {} ago", span(run.age()))?;
        }
        if let (true, Some(list)) = (self.yes, list()) {
            // Links to what is gone.
            for entry in std::fs::read_dir(list).into_iter().flatten().flatten() {
                if !entry.path().exists() {
                    let _ = std::fs::remove_file(entry.path());
                }
            }
        }
        match (count, self.yes) {
            (0, _) => writeln!(out, "no run is that old")?,
            (_, false) => writeln!(out, "nothing was removed; --yes removes them")?,
            (_, true) => {}
        }
        Ok(())
    }
}
