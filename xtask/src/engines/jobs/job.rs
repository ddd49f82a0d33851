//! One `downpour run` that is watched: its lines, the processes of its tasks, how far it trains.

use crate::engines::daemon::PATIENCE;
use anyhow::{Context as _, Result, bail};
use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Between two looks at what cannot be waited for.
const POLL: Duration = Duration::from_millis(50);

/// A job under way.
pub(super) struct Job {
    child: Child,
    lines: Receiver<String>,
    begin: Instant,
    dir: PathBuf,
    said: Vec<String>,
    /// The last step that was told.
    pub(super) step: u64,
    accuracy: Option<f64>,
    /// Tasks that run, and their processes or pods.
    pub(super) processes: BTreeSet<(String, String)>,
    all: BTreeSet<u32>,
}

impl Job {
    /// Starts the command.
    pub(super) fn start(mut command: Command, dir: PathBuf) -> Result<Job> {
        command.stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().context("cannot start `downpour run`")?;
        let (tell, lines) = mpsc::channel();
        let out = child.stdout.take().context("no stdout")?;
        let err = child.stderr.take().context("no stderr")?;
        let streams: [Box<dyn std::io::Read + Send>; 2] = [Box::new(out), Box::new(err)];
        for stream in streams {
            let tell = tell.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    if tell.send(line).is_err() {
                        return;
                    }
                }
            });
        }
        Ok(Job {
            child,
            lines,
            begin: Instant::now(),
            dir,
            said: Vec::new(),
            step: 0,
            accuracy: None,
            processes: BTreeSet::new(),
            all: BTreeSet::new(),
        })
    }

    /// The next line; none at the end.
    fn next(&mut self) -> Result<Option<String>> {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => {
                self.note(&line);
                self.said.push(line.clone());
                Ok(Some(line))
            }
            Err(RecvTimeoutError::Disconnected) => Ok(None),
            Err(RecvTimeoutError::Timeout) => {
                bail!("the job says nothing any more:\n{}", self.last_words())
            }
        }
    }

    fn note(&mut self, line: &str) {
        let number = |text: &str| {
            let digits = text.split(|c: char| !c.is_ascii_digit()).next();
            digits.and_then(|n| n.parse::<u64>().ok())
        };
        let told = [("\"step\":", 0), ("| step ", 0)]
            .iter()
            .find_map(|(mark, _)| {
                let (_, rest) = line.split_once(mark)?;
                number(rest.trim_start())
            });
        self.step = told.map_or(self.step, |step| self.step.max(step));
        for mark in ["test accuracy ", "\"test_accuracy\":"] {
            if let Some((_, rest)) = line.split_once(mark) {
                let word = rest.trim_start().split([' ', ',', '}']).next();
                self.accuracy = word.and_then(|n| n.parse().ok()).or(self.accuracy);
            }
        }
        if let Some((head, rest)) = line.split_once("(process ")
            && head.contains(" started ")
            && let Some(process) = number(rest).and_then(|n| u32::try_from(n).ok())
        {
            self.runs_as(head.split_once(" started "), process.to_string());
            self.all.insert(process);
        }
        if let Some((head, rest)) = line.split_once(" is pod ") {
            let pod = rest.split(' ').next().unwrap_or_default();
            self.runs_as(Some((head, "")), pod.to_owned());
        }
    }

    fn runs_as(&mut self, head: Option<(&str, &str)>, process: String) {
        let before = head.map_or("", |(before, _)| before);
        let task = before.split_whitespace().last().unwrap_or_default();
        self.processes.retain(|(name, _)| name != task);
        self.processes.insert((task.to_owned(), process));
    }

    /// Waits until it trains so far; seconds since it was started.
    pub(super) fn await_step(&mut self, step: u64) -> Result<f64> {
        while self.step < step {
            if self.next()?.is_none() {
                bail!("the job ended before step {step}:\n{}", self.last_words());
            }
        }
        Ok(self.begin.elapsed().as_secs_f64())
    }

    /// Waits until it says so.
    pub(super) fn await_line(&mut self, words: &str) -> Result<()> {
        loop {
            match self.next()? {
                Some(line) if line.contains(words) => return Ok(()),
                Some(_) => {}
                None => bail!("the job never said '{words}':\n{}", self.last_words()),
            }
        }
    }

    /// Kills a task.
    pub(super) fn kill(&mut self, task: &str) -> Result<()> {
        let found = self.processes.iter().find(|(name, _)| name == task);
        let process = found.and_then(|(_, process)| process.parse().ok());
        self.kill_process(process.with_context(|| format!("no process of {task}"))?)
    }

    /// Kills a process that the launcher does not name.
    pub(super) fn kill_process(&self, process: u32) -> Result<()> {
        signal("-9", process)
    }

    /// Kills the launcher, and lets nobody think that it ended.
    pub(super) fn kill_launcher(&mut self) -> Result<()> {
        signal("-9", self.child.id())?;
        self.child.wait().context("cannot wait for the launcher")?;
        Ok(())
    }

    /// Kills a launcher that this one follows, by the record that it keeps.
    pub(super) fn kill_inner_launcher(&mut self) -> Result<()> {
        let path = self.dir.join("run.json");
        let text = std::fs::read_to_string(path).context("the launcher keeps no record")?;
        let record: serde_json::Value = serde_json::from_str(&text)?;
        let process = record["pid"]
            .as_u64()
            .context("the record names no process")?;
        signal("-9", u32::try_from(process)?)
    }

    /// Ctrl-C.
    pub(super) fn interrupt(&self) -> Result<()> {
        signal("-INT", self.child.id())
    }

    /// Waits for its end, with this code; the accuracy that was told, or 0.
    pub(super) fn finish(&mut self, code: i32) -> Result<f64> {
        while self.next()?.is_some() {}
        let status = self.child.wait().context("cannot wait for the job")?;
        if status.code() != Some(code) {
            bail!(
                "the job ended with {status}, not {code}:\n{}",
                self.last_words()
            );
        }
        Ok(self.accuracy.unwrap_or(0.0))
    }

    /// Waits until no process of any of its tasks is there.
    pub(super) fn await_gone(&self) -> Result<()> {
        let begin = Instant::now();
        for process in &self.all {
            while is_there(*process) {
                if begin.elapsed() > PATIENCE {
                    bail!("process {process} of the job outlives it");
                }
                std::thread::sleep(POLL);
            }
        }
        Ok(())
    }

    fn last_words(&self) -> String {
        let begin = self.said.len().saturating_sub(40);
        let said = self.said.get(begin..).unwrap_or_default();
        said.join("\n")
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            // What a failed test leaves is ended in order.
            let _ = signal("-TERM", self.child.id());
            let begin = Instant::now();
            while matches!(self.child.try_wait(), Ok(None)) && begin.elapsed() < PATIENCE / 3 {
                std::thread::sleep(POLL);
            }
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// A zombie has no command line.
fn is_there(process: u32) -> bool {
    std::fs::read(format!("/proc/{process}/cmdline")).is_ok_and(|line| !line.is_empty())
}

fn signal(which: &str, process: u32) -> Result<()> {
    let status = Command::new("kill")
        .args([which, &process.to_string()])
        .status();
    match status.context("cannot start kill")?.success() {
        true => Ok(()),
        false => bail!("process {process} could not be signalled"),
    }
}
