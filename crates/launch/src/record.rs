//! `run.json`: what is known of a run, in its directory, from its first moment to after its end. The launcher
//! writes it anew with every change; `downpour ps`, `logs`, `clean` and the dashboard of past runs read it.
//! A reader never sees half of it: it is written beside its place and renamed.

use crate::job::Outcome;
use crate::state::JobState;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// Its name in the run's directory.
pub const RECORD: &str = "run.json";

/// What a run was made from.
#[derive(Clone, Debug, Default)]
pub struct Origin {
    /// The launcher's command line.
    pub command: Vec<String>,
    /// The launcher's version.
    pub version: String,
    /// The commit of the directory it was started in, if that is a git checkout.
    pub code: Option<String>,
    /// Where its dashboard is, while it runs.
    pub dashboard: Option<String>,
}

/// Writes the record. `outcome` is none until the job has ended.
pub fn write_record(
    origin: &Origin,
    state: &JobState,
    outcome: Option<&Outcome>,
) -> io::Result<()> {
    let why = outcome.map(|outcome| {
        let text = crate::summary(outcome, state);
        text.lines().next().unwrap_or_default().to_owned()
    });
    let record = serde_json::json!({
        "format": 1,
        "pid": std::process::id(),
        "pid_started": process_start(std::process::id()),
        "command": origin.command,
        "version": origin.version,
        "code": origin.code,
        "dashboard": origin.dashboard,
        "outcome": outcome.map(Outcome::word),
        "exit_code": outcome.map(Outcome::code),
        "why": why,
        "cause": outcome.and_then(|outcome| crate::cause::block(outcome, state)),
        "job": state,
    });
    let place = state.dir.join(RECORD);
    let new = state.dir.join(format!("{RECORD}.new"));
    let _ = std::fs::remove_file(&new);
    let mut file = crate::dir::append(&new)?;
    writeln!(file, "{record:#}")?;
    std::fs::rename(new, place)
}

/// The launcher of a run, if it is there and the run has not ended.
pub(crate) fn launcher(dir: &Path) -> Option<u32> {
    let text = std::fs::read_to_string(dir.join(RECORD)).ok()?;
    let record: serde_json::Value = serde_json::from_str(&text).ok()?;
    let pid = u32::try_from(record["pid"].as_u64()?).ok()?;
    let is_there = process_start(pid) == Some(record["pid_started"].as_u64()?);
    (is_there && record["outcome"].is_null()).then_some(pid)
}

/// When a process started, in the system's ticks: with its number it names one process for good.
pub fn process_start(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold spaces; what follows it is counted from field 3.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(19)?.parse().ok()
}

/// The commit that is checked out around a directory, read from git's own files.
pub fn checked_out(dir: &Path) -> Option<String> {
    let git = dir
        .ancestors()
        .map(|d| d.join(".git"))
        .find(|g| g.is_dir())?;
    let head = std::fs::read_to_string(git.join("HEAD")).ok()?;
    let commit = match head.trim().strip_prefix("ref: ") {
        None => head.trim().to_owned(),
        Some(name) => match std::fs::read_to_string(git.join(name)) {
            Ok(commit) => commit.trim().to_owned(),
            Err(_) => {
                let packed = std::fs::read_to_string(git.join("packed-refs")).ok()?;
                let mut lines = packed.lines().filter_map(|l| l.split_once(' '));
                lines.find(|(_, n)| *n == name)?.0.to_owned()
            }
        },
    };
    let is_commit = commit.len() >= 12 && commit.bytes().all(|b| b.is_ascii_hexdigit());
    is_commit.then(|| commit.chars().take(12).collect())
}

/// Where the runs of this user are listed: a directory of links to their directories.
pub fn list_dir(home: Option<&Path>, state_home: Option<&Path>) -> Option<PathBuf> {
    let state = state_home.filter(|p| p.is_absolute()).map(Path::to_owned);
    let state = state.or_else(|| Some(home.filter(|p| p.is_absolute())?.join(".local/state")))?;
    Some(state.join("downpour/runs"))
}

/// Adds a run to the list.
pub fn enlist(list: &Path, run: &Path) -> io::Result<()> {
    use std::hash::{DefaultHasher, Hash as _, Hasher as _};
    use std::os::unix::fs::DirBuilderExt as _;
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(0o700).create(list)?;
    let mut hash = DefaultHasher::new();
    run.hash(&mut hash);
    let link = list.join(format!("{:016x}", hash.finish()));
    match std::os::unix::fs::symlink(run, link) {
        // The same directory was used before.
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_told_from_a_later_one_of_the_same_number() {
        let own = process_start(std::process::id());
        assert!(own.is_some_and(|ticks| ticks > 0));
        assert_eq!(own, process_start(std::process::id()));
        assert_eq!(process_start(u32::MAX), None);
    }

    #[test]
    fn the_commit_is_read_loose_packed_and_detached() {
        let dir = tempfile::tempdir().unwrap();
        let git = dir.path().join(".git");
        std::fs::create_dir_all(git.join("refs/heads")).unwrap();
        let commit = "0123456789abcdef0123456789abcdef01234567";
        let below = dir.path().join("a/b");
        std::fs::create_dir_all(&below).unwrap();
        let write = |name: &str, text: &str| std::fs::write(git.join(name), text).unwrap();
        write("HEAD", "ref: refs/heads/main\n");
        assert_eq!(checked_out(&below), None);
        write(
            "packed-refs",
            &format!("# pack-refs\n{commit} refs/heads/main\n"),
        );
        assert_eq!(checked_out(&below).as_deref(), Some("0123456789ab"));
        write(
            "refs/heads/main",
            &format!("{}\n", commit.replace('0', "f")),
        );
        assert_eq!(checked_out(&below).as_deref(), Some("f123456789ab"));
        write("HEAD", &format!("{commit}\n"));
        assert_eq!(checked_out(&below).as_deref(), Some("0123456789ab"));
        write("HEAD", "../../etc\n");
        assert_eq!(checked_out(&below), None);
    }

    #[test]
    fn a_run_is_listed_once() {
        let dir = tempfile::tempdir().unwrap();
        let list = list_dir(Some(dir.path()), None).unwrap();
        for _ in 0..2 {
            enlist(&list, dir.path()).unwrap();
        }
        let links: Vec<_> = std::fs::read_dir(&list).unwrap().flatten().collect();
        assert_eq!(links.len(), 1);
        assert_eq!(std::fs::read_link(links[0].path()).unwrap(), dir.path());
        assert_eq!(list_dir(None, Some(Path::new("relative"))), None);
    }
}
