//! A step of `cargo xtask test` that hangs is ended and named, instead of eating the time of all others.

use anyhow::{Context as _, Result, bail};
use std::fmt::Write as _;
use std::process::Command;
use std::time::{Duration, Instant};

/// How often a child is asked whether it has ended.
const POLL: Duration = Duration::from_millis(50);

/// The variable by which the processes of a step are known, also those that have left their parent.
const MARK: &str = "DOWNPOUR_TEST_STEP";

/// Runs a program to its end and says whether it ended well. After `limit` it is killed with all that it started; what it
/// leaves behind is killed, too.
pub(crate) fn run(command: &mut Command, limit: Duration, name: &str) -> Result<bool> {
    let start = Instant::now();
    let mark = format!("{}-{:x}", std::process::id(), start_of_day());
    let mut child = command
        .env(MARK, &mark)
        .spawn()
        .with_context(|| format!("cannot start {name}"))?;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if start.elapsed() > limit {
            break None;
        }
        std::thread::sleep(POLL);
    };
    let mut running = marked(&mark);
    match status {
        None => running.extend(descendants(child.id())),
        Some(_) => running.retain(|id| *id != child.id()),
    }
    running.sort_unstable();
    running.dedup();
    if !running.is_empty() {
        let what = if status.is_none() {
            "is still running"
        } else {
            "left behind"
        };
        eprintln!(
            "{name}, after {} s: what {what} is killed:{}",
            start.elapsed().as_secs(),
            shown(&running)
        );
        let ids = running.iter().map(u32::to_string);
        // One that has ended meanwhile is no loss.
        let _ = Command::new("kill").arg("-9").args(ids).status();
    }
    let Some(status) = status else {
        child.kill()?;
        child.wait()?;
        bail!("it hung: not ended after {} s", limit.as_secs());
    };
    Ok(status.success())
}

/// Nanoseconds of the clock, to tell one run from another.
fn start_of_day() -> u128 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.unwrap_or_default().as_nanos()
}

fn processes() -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let names = entries.flatten().map(|e| e.file_name());
    names.filter_map(|n| n.to_str()?.parse().ok()).collect()
}

/// The processes whose environment has the mark.
fn marked(mark: &str) -> Vec<u32> {
    let wanted = format!("{MARK}={mark}");
    let has = |id: &u32| {
        let environ = std::fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
        environ.split(|b| *b == 0).any(|v| v == wanted.as_bytes())
    };
    processes().into_iter().filter(has).collect()
}

/// The processes that `root` started, and those that they started.
fn descendants(root: u32) -> Vec<u32> {
    let parents: Vec<(u32, u32)> = processes()
        .into_iter()
        .filter_map(|id| Some((id, parent(id)?)))
        .collect();
    let mut found = vec![root];
    let mut next = 0;
    while let Some(of) = found.get(next).copied() {
        found.extend(parents.iter().filter(|(_, p)| *p == of).map(|(id, _)| *id));
        next += 1;
    }
    found.remove(0);
    found
}

fn parent(process: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // Behind the name, which may hold anything: state and parent.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(1)?.parse().ok()
}

fn shown(processes: &[u32]) -> String {
    let mut text = String::new();
    for id in processes {
        let line = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        let _ = write!(text, "\n  {id}: {}", line.trim());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    /// A script that starts one that leaves its parent and writes its id to `file`.
    fn starts_daemon(file: &std::path::Path, then: &str) -> Command {
        sh(&format!(
            "setsid sh -c 'echo $$ > {}; exec sleep 600' & while ! [ -s {} ]; do sleep 0.01; done; {then}",
            file.display(),
            file.display()
        ))
    }

    fn is_gone(file: &std::path::Path) -> bool {
        let id: u32 = std::fs::read_to_string(file)
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        let until = Instant::now() + Duration::from_secs(10);
        // A killed process may be seen until its parent has asked after it.
        let runs =
            || std::fs::read(format!("/proc/{id}/cmdline")).is_ok_and(|line| !line.is_empty());
        while runs() && Instant::now() < until {
            std::thread::sleep(POLL);
        }
        !runs()
    }

    #[test]
    fn what_ends_in_time_says_how() {
        let minute = Duration::from_secs(60);
        assert!(run(&mut sh("true"), minute, "quick").unwrap());
        assert!(!run(&mut sh("exit 3"), minute, "failing").unwrap());
    }

    #[test]
    fn what_hangs_is_killed_with_all_that_it_started() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("id");
        let mut hangs = starts_daemon(&file, "sleep 600");
        let e = run(&mut hangs, Duration::from_secs(2), "hanging").unwrap_err();
        assert!(e.to_string().contains("it hung"));
        assert!(is_gone(&file));
    }

    #[test]
    fn what_is_left_behind_is_killed() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("id");
        let mut leaves = starts_daemon(&file, "true");
        assert!(run(&mut leaves, Duration::from_secs(60), "leaving").unwrap());
        assert!(is_gone(&file));
    }
}
