//! `downpour inspect events`: what TensorBoard would show of an event file or of the runs below a
//! directory. A file that is still being written is read as far as it is whole.

use super::event_tags::{Seen, Tag};
use super::output::{Align, Output, Table, bytes, count, json_number, number, thousands};
use super::unreadable;
use crate::refusal::Found;
use anyhow::{Result, anyhow, bail};
use clap::Args;
use downpour_formats::event::EventReader;
use downpour_formats::{Files, Storage};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Shown below the flags.
pub(super) const EXAMPLES: &str = "\
PATH is an event file, or a directory: every file below it whose name contains 'tfevents' is read, as TensorBoard does.

  downpour inspect events logs                  tags, steps, first and last values
  downpour inspect events logs --tag loss       the series: step, time, value
  downpour inspect events logs --json           for another program";

/// Flags of `downpour inspect events`.
#[derive(Args)]
pub(crate) struct Events {
    /// A file or directory
    #[arg(value_name = "PATH")]
    path: PathBuf,

    /// Print the scalars of this tag, one step a line
    #[arg(long, value_name = "TAG")]
    tag: Option<String>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// How deep and how many files are looked for below a directory.
const MAX_DEPTH: usize = 16;
const MAX_FILES: usize = 10_000;

/// One event file.
struct File {
    path: String,
    seen: Seen,
    /// Bytes behind the last whole event.
    torn: u64,
    /// Why reading ended early.
    damage: Option<String>,
}

impl Events {
    pub(super) fn run(self) -> Result<ExitCode> {
        let storage = Files::new();
        let paths = self.files()?;
        let mut files = Vec::new();
        for path in paths {
            files.push(read(&storage, path)?);
        }
        if let Some(tag) = &self.tag {
            return self.series(&files, tag);
        }
        let mut out = Output::new();
        match self.json {
            true => {
                let each: Vec<Value> = files.iter().map(File::json).collect();
                out.json(&json!({"files": each}))?;
            }
            false => {
                for (i, file) in files.iter().enumerate() {
                    if i > 0 {
                        out.line("")?;
                    }
                    file.print(&mut out)?;
                }
            }
        }
        out.finish()?;
        damage(&files)
    }

    /// The event files that are meant.
    fn files(&self) -> Result<Vec<String>> {
        let shown = self.path.display();
        let text = |p: &Path| {
            let text = p.to_str().map(str::to_owned);
            text.ok_or_else(|| anyhow!("'{}' is not UTF-8", p.display()))
        };
        if let Some(url) = self.path.to_str().filter(|path| Files::is_remote(path)) {
            return below(url);
        }
        if !self.path.is_dir() {
            return Ok(vec![text(&self.path)?]);
        }
        let mut found = Vec::new();
        let mut folders = vec![(self.path.clone(), 0)];
        while let Some((folder, depth)) = folders.pop() {
            let entries =
                std::fs::read_dir(&folder).map_err(|e| anyhow!("{}: {e}", folder.display()))?;
            for entry in entries.flatten() {
                // What a link points to may be outside, or above.
                let Ok(kind) = entry.file_type() else {
                    continue;
                };
                let name = entry.file_name();
                if kind.is_dir() && depth < MAX_DEPTH {
                    folders.push((entry.path(), depth + 1));
                } else if kind.is_file() && name.to_string_lossy().contains("tfevents") {
                    found.push(text(&entry.path())?);
                }
            }
            if found.len() > MAX_FILES {
                bail!(
                    "{shown} holds more than {MAX_FILES} event files; give a directory further down"
                );
            }
        }
        if found.is_empty() {
            bail!("{shown} holds no event files: none below it has 'tfevents' in its name");
        }
        found.sort();
        Ok(found)
    }

    fn series(&self, files: &[File], name: &str) -> Result<ExitCode> {
        let having: Vec<(&File, &Tag)> = files
            .iter()
            .filter_map(|f| Some((f, f.seen.tags.get(name)?)))
            .collect();
        if having.is_empty() {
            let mut near: Vec<&str> = Vec::new();
            for file in files {
                near.extend(file.seen.tags.keys().map(String::as_str));
            }
            near.sort_unstable();
            near.dedup();
            let list = near.iter().take(8).copied().collect::<Vec<_>>().join(", ");
            let more = if near.len() > 8 { ", …" } else { "" };
            bail!(
                "there is no tag '{name}' in {}; there is {list}{more}",
                self.path.display()
            );
        }
        if having.iter().all(|(_, tag)| tag.points.is_empty()) {
            bail!("tag '{name}' holds {}, not scalars", having[0].1.kind);
        }
        let mut out = Output::new();
        if self.json {
            let each = having.iter().map(|(file, tag)| {
                let points = tag.points.iter().map(|p| {
                    json!({"step": p.step, "wall_time": json_number(p.wall_time), "value": json_number(p.value)})
                });
                json!({"path": file.path, "tag": name, "points": points.collect::<Vec<_>>()})
            });
            out.json(&each.collect())?;
        } else {
            for (file, tag) in &having {
                if having.len() > 1 {
                    out.line(&format!("# {}", file.path))?;
                }
                for point in &tag.points {
                    // Numbers only: tabs may stay what they are.
                    out.raw(&format!(
                        "{}	{:.3}	{}
",
                        point.step, point.wall_time, point.value
                    ))?;
                }
            }
        }
        out.finish()?;
        damage(files)
    }
}

/// The exit code for what was found.
fn damage(files: &[File]) -> Result<ExitCode> {
    let bad: Vec<&File> = files.iter().filter(|f| f.damage.is_some()).collect();
    match bad.as_slice() {
        [] => Ok(ExitCode::SUCCESS),
        [one] => Err(Found(format!(
            "{}: {}",
            one.path,
            one.damage.as_deref().unwrap_or_default()
        ))
        .into()),
        many => Err(Found(format!("{} are damaged", count(many.len(), "file"))).into()),
    }
}

/// The event files that a URL means: itself, or those below it.
fn below(url: &str) -> Result<Vec<String>> {
    let storage = Files::new();
    if !storage.is_dir(url) {
        return Ok(vec![url.to_owned()]);
    }
    let mut found = Vec::new();
    let mut folders = vec![(url.trim_end_matches('/').to_owned(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        let names = storage.list(&folder).map_err(|e| unreadable(&folder, &e))?;
        for name in names {
            let path = format!("{folder}/{name}");
            if name.contains("tfevents") {
                found.push(path);
            } else if depth < MAX_DEPTH && !name.contains('.') && storage.is_dir(&path) {
                // What has a dot is a file of a checkpoint.
                folders.push((path, depth + 1));
            }
        }
        if found.len() > MAX_FILES {
            bail!("{url} holds more than {MAX_FILES} event files; give a directory further down");
        }
    }
    if found.is_empty() {
        bail!("{url} holds no event files: none below it has 'tfevents' in its name");
    }
    found.sort();
    Ok(found)
}

fn read(storage: &Files, path: String) -> Result<File> {
    let wrong = |e: &downpour_graph::Status| unreadable(&path, e);
    let mut reader = EventReader::open(storage, &path).map_err(|e| wrong(&e))?;
    let mut seen = Seen::default();
    let mut damage = None;
    loop {
        match reader.read() {
            Ok(Some(event)) => seen.add(event),
            Ok(None) => break,
            Err(e) => {
                if seen.events == 0 && e.message.contains("Is this even a TFRecord file?") {
                    bail!(
                        "{path} is no event file; for others see inspect checkpoint, record and graph"
                    );
                }
                damage = Some(format!(
                    "{}; the {} before it are whole, what lies behind is lost",
                    e.message,
                    count(seen.events as usize, "event")
                ));
                break;
            }
        }
    }
    let size = storage.size(&path).map_err(|e| wrong(&e))?;
    let torn = match damage.is_some() {
        true => 0,
        false => size.saturating_sub(reader.offset()),
    };
    if seen.events > 0 && seen.version.is_empty() {
        damage.get_or_insert_with(|| {
            "it does not begin as an event file does (no file_version)".to_owned()
        });
    }
    Ok(File {
        path,
        seen,
        torn,
        damage,
    })
}

impl File {
    fn print(&self, out: &mut Output) -> Result<()> {
        let seen = &self.seen;
        out.line(&format!(
            "{}  ({}, {})",
            self.path,
            count(seen.events as usize, "event"),
            seen.version
        ))?;
        if let Some((from, to)) = seen.times {
            out.line(&format!(
                "written from {} to {} ({} s)",
                time(from),
                time(to),
                number(to - from)
            ))?;
        }
        for (n, what) in [(seen.graphs, "graph"), (seen.meta_graphs, "meta graph")] {
            if n > 0 {
                out.line(&format!(
                    "{}: see `downpour inspect graph`",
                    count(n as usize, what)
                ))?;
            }
        }
        for (status, step, detail) in &seen.sessions {
            out.line(&format!("session {status} at step {step} {detail}"))?;
        }
        if !seen.traces.is_empty() {
            out.line(&format!(
                "{}: {}",
                count(seen.traces.len(), "traced step"),
                seen.traces.join(", ")
            ))?;
        }
        for message in &seen.messages {
            out.line(&format!("message: {message}"))?;
        }
        if !seen.tags.is_empty() {
            out.table(&self.table())?;
        }
        if seen.more_tags > 0 {
            out.line(&format!(
                "and {} values under more tags",
                thousands(seen.more_tags)
            ))?;
        }
        if seen.steps_back > 0 {
            out.line(&format!(
                "steps go back {}: the training was restarted",
                count(seen.steps_back as usize, "time")
            ))?;
        }
        if self.torn > 0 {
            out.line(&format!("{} at the end are no whole event yet: it is being written, or its writer was stopped", bytes(self.torn)))?;
        }
        if let Some(damage) = &self.damage {
            out.line(&format!("DAMAGED {damage}"))?;
        }
        Ok(())
    }

    fn table(&self) -> Table {
        use Align::{Left, Right};
        let columns = [
            ("TAG", Left),
            ("KIND", Left),
            ("COUNT", Right),
            ("STEPS", Right),
            ("FIRST", Right),
            ("LAST", Right),
            ("MIN", Right),
            ("MAX", Right),
        ];
        let mut table = Table::new(&columns);
        for (name, tag) in &self.seen.tags {
            let figure = |x: Option<f64>| x.map_or(String::new(), number);
            let (min, max) = range(tag);
            table.row(vec![
                name.clone(),
                tag.kind.to_owned(),
                thousands(tag.count),
                format!("{}-{}", tag.first_step, tag.last_step),
                figure(tag.points.first().map(|p| p.value)),
                figure(tag.points.last().map(|p| p.value)),
                figure(min),
                figure(max),
            ]);
        }
        table
    }

    fn json(&self) -> Value {
        let seen = &self.seen;
        let tags = seen.tags.iter().map(|(name, tag)| {
            let (min, max) = range(tag);
            let figure = |x: Option<f64>| x.map_or(Value::Null, json_number);
            json!({
                "tag": name, "kind": tag.kind, "count": tag.count,
                "first_step": tag.first_step, "last_step": tag.last_step,
                "first": figure(tag.points.first().map(|p| p.value)),
                "last": figure(tag.points.last().map(|p| p.value)),
                "min": figure(min), "max": figure(max),
            })
        });
        let sessions = seen.sessions.iter();
        let sessions = sessions.map(
            |(status, step, detail)| json!({"status": status, "step": step, "detail": detail}),
        );
        json!({
            "path": self.path, "events": seen.events, "file_version": seen.version,
            "from": seen.times.map(|t| t.0), "to": seen.times.map(|t| t.1),
            "graphs": seen.graphs, "meta_graphs": seen.meta_graphs, "traces": seen.traces,
            "messages": seen.messages, "steps_back": seen.steps_back, "torn_bytes": self.torn,
            "damage": self.damage, "tags": tags.collect::<Vec<_>>(), "sessions": sessions.collect::<Vec<_>>(),
        })
    }
}

/// Smallest and largest of a tag's scalars, those that are no numbers left out.
fn range(tag: &Tag) -> (Option<f64>, Option<f64>) {
    let values = || tag.points.iter().map(|p| p.value).filter(|v| !v.is_nan());
    (values().reduce(f64::min), values().reduce(f64::max))
}

/// A time of day in UTC, as `2026-11-15 21:05:09`.
fn time(seconds: f64) -> String {
    if !(0.0..=253_402_300_799.0).contains(&seconds) {
        return format!("{seconds}");
    }
    let seconds = seconds as i64;
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Days since 1970 to year, month, day: the calendar repeats every 400 years of 146,097 days,
    // counted from a 1 March so that leap days come last.
    let z = days + 719_468;
    let era = z / 146_097;
    let day_of_era = z % 146_097;
    let year = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

#[cfg(test)]
mod tests {
    use super::time;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0.0, "1970-01-01 00:00:00"),
            (951_782_400.0, "2000-02-29 00:00:00"),
            (1_709_251_199.5, "2024-02-29 23:59:59"),
            (4_107_542_400.0, "2100-03-01 00:00:00"),
            (-1.0, "-1"),
            (f64::NAN, "NaN"),
        ] {
            assert_eq!(time(seconds), text);
        }
    }
}
