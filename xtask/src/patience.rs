//! A step of `cargo xtask test` that hangs is ended and named, instead of eating the time of all others.

use anyhow::Result;
use std::fmt::Write as _;
use std::process::Command;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Runs `body`; if it takes longer than `limit`, says which of the processes that it started are still running and kills them,
/// whereupon it fails by itself.
pub(crate) fn within<T>(
    limit: Duration,
    name: &str,
    body: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let (done, is_done) = channel::<()>();
    std::thread::scope(|scope| {
        let watch = scope.spawn(move || {
            if is_done.recv_timeout(limit) != Err(RecvTimeoutError::Timeout) {
                return false;
            }
            let running = descendants(std::process::id());
            eprintln!(
                "{name} has not ended after {} s; killed:{}",
                limit.as_secs(),
                shown(&running)
            );
            let ids = running.iter().map(u32::to_string);
            // One that has ended meanwhile is no loss.
            let _ = Command::new("kill").arg("-9").args(ids).status();
            true
        });
        let outcome = body();
        drop(done);
        match watch.join() {
            Ok(true) => {
                let hung = format!("it hung: not ended after {} s", limit.as_secs());
                Err(outcome
                    .err()
                    .map_or_else(|| anyhow::anyhow!("{hung}"), |e| e.context(hung.clone())))
            }
            _ => outcome,
        }
    })
}

/// The processes that `root` started, and those that they started.
fn descendants(root: u32) -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let parents: Vec<(u32, u32)> = entries
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.parse().ok())
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

    #[test]
    fn what_ends_in_time_gives_its_result() {
        let minute = Duration::from_secs(60);
        assert_eq!(within(minute, "quick", || Ok(7)).unwrap(), 7);
        let e = within::<()>(minute, "failing", || anyhow::bail!("a reason")).unwrap_err();
        assert_eq!(e.to_string(), "a reason");
    }

    #[test]
    fn what_hangs_is_killed_with_all_that_it_started() {
        let e = within(Duration::from_millis(300), "hanging", || {
            let status = Command::new("sh")
                .args(["-c", "sleep 600; true"])
                .status()?;
            assert!(!status.success());
            Ok(())
        });
        assert!(e.unwrap_err().to_string().contains("it hung"));
        let e = within::<()>(Duration::from_millis(300), "hanging", || {
            Command::new("sleep").arg("600").status()?;
            anyhow::bail!("still running: flow::loops")
        });
        let shown = format!("{:#}", e.unwrap_err());
        assert!(shown.ends_with("s: still running: flow::loops"), "{shown}");
    }
}
