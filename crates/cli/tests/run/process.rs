//! Starting `downpour run` and hearing what it says.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Output, Stdio};

/// `downpour` in a directory, with an environment that says nothing.
pub(crate) fn downpour(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_downpour"));
    command
        .args(args)
        .current_dir(dir)
        .env_remove("TF_CONFIG")
        .env_remove("DOWNPOUR_LOG")
        .env_remove("NO_COLOR")
        // The list of runs is the test's own.
        .env("XDG_STATE_HOME", dir.join("state"))
        .stdin(Stdio::null());
    command
}

/// Runs a job to its end: exit code, standard output, standard error.
pub(crate) fn run(dir: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = downpour(dir, args).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

/// A job under way. It is interrupted twice when the test is over, so that no task is left.
pub(crate) struct Job {
    pub(crate) child: Child,
    stderr: BufReader<ChildStderr>,
    said: String,
}

impl Job {
    pub(crate) fn start(dir: &Path, args: &[&str]) -> Job {
        let mut child = downpour(dir, args)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Job {
            stderr: BufReader::new(child.stderr.take().unwrap()),
            child,
            said: String::new(),
        }
    }

    /// A line that holds these words, once it is said: tasks and launcher speak in any order.
    pub(crate) fn line(&mut self, words: &str) -> String {
        loop {
            if let Some(line) = self.said.lines().find(|line| line.contains(words)) {
                return line.to_owned();
            }
            let mut line = String::new();
            let read = self.stderr.read_line(&mut line).unwrap();
            assert!(read > 0, "'{words}' was never said, but:\n{}", self.said);
            self.said += &line;
        }
    }

    /// The number of the process that a line like `worker:0 started (process 7)` tells of.
    pub(crate) fn process(&mut self, task: &str) -> u32 {
        let words = format!("{task} started (process ");
        let line = self.line(&words);
        let (_, rest) = line.split_once(&words).unwrap();
        rest.split(')').next().unwrap().parse().unwrap()
    }

    /// Sends the launcher a signal, as in `INT`.
    pub(crate) fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &id]).status();
        assert!(sent.unwrap().success());
    }

    /// Waits for the end; the exit code and all that was said.
    pub(crate) fn wait(mut self) -> (Option<i32>, String) {
        let mut rest = String::new();
        self.stderr.read_to_string(&mut rest).unwrap();
        self.said += &rest;
        let code = self.child.wait().unwrap().code();
        (code, std::mem::take(&mut self.said))
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            self.signal("INT");
            std::thread::sleep(std::time::Duration::from_millis(400));
            self.signal("INT");
            let _ = self.child.wait();
        }
    }
}

/// Whether a process is at work.
pub(crate) fn exists(process: u32) -> bool {
    // A zombie has no command line.
    std::fs::read(format!("/proc/{process}/cmdline")).is_ok_and(|line| !line.is_empty())
}
