//! The guard: a small process beside the launcher that outlives it, whatever ends it, and then ends
//! the job's processes. The launcher tells it on a pipe which process groups there are; the end of
//! the pipe without a farewell means that the launcher was killed.
//!
//! A death signal set in the child would be simpler, but reaches only the child itself, not what it
//! started, and needs `unsafe` or another program in between.

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The launcher's end.
pub(crate) struct Guard {
    child: Child,
}

impl Guard {
    /// Starts the guard: a program whose `main` calls [`stand`] on its standard input.
    pub(crate) fn start(command: &[String]) -> std::io::Result<Option<Guard>> {
        let Some((program, args)) = command.split_first() else {
            return Ok(None);
        };
        let child = group_of_its_own(Command::new(program).args(args))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Some(Guard { child }))
    }

    /// Tells of a process group.
    pub(crate) fn add(&mut self, group: u32) {
        self.say(&format!("+{group}\n"));
    }

    /// Tells that a process group is gone.
    pub(crate) fn remove(&mut self, group: u32) {
        self.say(&format!("-{group}\n"));
    }

    fn say(&mut self, line: &str) {
        // A guard that somebody has ended is missed only if the launcher is ended as well.
        if let Some(stdin) = &mut self.child.stdin {
            let _ = stdin.write_all(line.as_bytes());
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.say("bye\n");
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Lets a command run in a process group of its own, which a terminal's Ctrl-C does not reach.
pub(crate) fn group_of_its_own(command: &mut Command) -> &mut Command {
    use std::os::unix::process::CommandExt as _;
    command.process_group(0)
}

/// Sends a signal to all processes of a group. That none is left is fine.
pub(crate) fn signal(group: u32, signal: Signal) {
    if let Some(group) = pid(group) {
        let _ = kill_process_group(group, signal);
    }
}

fn pid(raw: u32) -> Option<Pid> {
    // 0 and 1 would mean groups that are not ours.
    let raw = i32::try_from(raw).ok().filter(|raw| *raw > 1)?;
    Pid::from_raw(raw)
}

/// Waits for the launcher's end, then ends what it left: asks, and after `patience` kills.
pub fn stand(launcher: impl Read, patience: Duration) {
    let mut groups = BTreeSet::new();
    for line in BufReader::new(launcher.take(MAX_TOLD)).lines() {
        let Ok(line) = line else { break };
        match (
            line.get(..1),
            line.get(1..).and_then(|n| n.parse::<u32>().ok()),
        ) {
            (Some("+"), Some(group)) => _ = groups.insert(group),
            (Some("-"), Some(group)) => _ = groups.remove(&group),
            _ if line == "bye" => return,
            _ => {}
        }
    }
    for group in &groups {
        signal(*group, Signal::TERM);
    }
    let asked = Instant::now();
    while asked.elapsed() < patience && groups.iter().any(|group| exists(*group)) {
        std::thread::sleep(Duration::from_millis(50));
    }
    for group in groups {
        signal(group, Signal::KILL);
    }
}

/// More than any job tells.
const MAX_TOLD: u64 = 64 << 20;

fn exists(group: u32) -> bool {
    pid(group).is_some_and(|group| test_kill_process_group(group) != Err(Errno::SRCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeper() -> Child {
        group_of_its_own(Command::new("sleep").arg("1000"))
            .spawn()
            .unwrap()
    }

    #[test]
    fn what_a_killed_launcher_leaves_is_ended() {
        let (mut left, mut gone) = (sleeper(), sleeper());
        let told = format!(
            "+{}\n+{}\n-{}\nnonsense\n+0\n+1\n",
            left.id(),
            gone.id(),
            gone.id()
        );
        // The child is reaped here, so the guard sees it go.
        let waiter = std::thread::spawn(move || left.wait().unwrap());
        stand(told.as_bytes(), Duration::from_secs(30));
        assert!(!waiter.join().unwrap().success());
        assert!(
            gone.try_wait().unwrap().is_none(),
            "it was no longer the job's"
        );
        gone.kill().unwrap();
        gone.wait().unwrap();
    }

    #[test]
    fn after_a_farewell_nothing_is_touched() {
        let mut child = sleeper();
        stand(format!("+{}\nbye\n", child.id()).as_bytes(), Duration::ZERO);
        assert!(child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn what_does_not_end_when_asked_is_killed() {
        let script = "trap '' TERM; echo up; while :; do sleep 1; done";
        let mut child = group_of_its_own(Command::new("sh").args(["-c", script]))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut up = [0; 3];
        child.stdout.as_mut().unwrap().read_exact(&mut up).unwrap();
        stand(
            format!("+{}\n", child.id()).as_bytes(),
            Duration::from_millis(200),
        );
        use std::os::unix::process::ExitStatusExt as _;
        assert_eq!(child.wait().unwrap().signal(), Some(9));
    }
}
