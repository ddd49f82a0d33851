//! The root cause of a job's failure, told once and last: which task, how it ended, what it said, and
//! what may help. Everything else that went wrong came of it.

use crate::job::Outcome;
use crate::output::cleaned;
use crate::state::{Exit, JobState, TaskState};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

/// Last lines that are shown.
const LINES: usize = 12;
/// Characters of a line that are shown.
const MAX_LINE: usize = 300;
/// Bytes of a log in which they are looked for.
const MAX_READ: u64 = 32 << 10;
/// How a log tells where a start's output begins.
pub(crate) const START: &str = "--- ";

/// What is said of a job that failed; nothing of one that did not.
pub(crate) fn block(outcome: &Outcome, state: &JobState) -> Option<String> {
    let (id, exit) = match outcome {
        Outcome::Failed(id, exit) => (*id, *exit),
        _ => return None,
    };
    let task = state.tasks.get(id)?;
    let lines = last_lines(&task.log, LINES);
    let mut out = format!("\nroot cause: {} ended with {exit}\n", task.name);
    let mut fact = |name: &str, value: &str| out += &format!("  {name:<9} {value}\n");
    let starts = match task.starts {
        1 => "it was started once".to_owned(),
        n => format!("it was started {n} times"),
    };
    fact(
        "when",
        &format!(
            "{:.1} s after the job's start; {starts}",
            task.since.as_secs_f64()
        ),
    );
    fact("command", &shown_command(task));
    fact("log", &task.log.display().to_string());
    match lines.is_empty() {
        true => fact("said", "nothing"),
        false => fact("last said", ""),
    }
    for line in &lines {
        out += &format!("  | {line}\n");
    }
    if let Some(hint) = hint(exit, &lines) {
        out += &format!("  {:<9} {hint}\n", "hint");
    }
    // Names end without spaces behind them.
    Some(out.lines().map(|l| format!("{}\n", l.trim_end())).collect())
}

fn shown_command(task: &TaskState) -> String {
    let words = task
        .command
        .iter()
        .map(|word| match word.contains([' ', '\'', '"', '\n']) {
            true => format!("'{}'", cleaned(&word.replace('\n', " "))),
            false => cleaned(word),
        });
    clip(&words.collect::<Vec<_>>().join(" "))
}

fn clip(text: &str) -> String {
    match text.chars().count() > MAX_LINE {
        true => text.chars().take(MAX_LINE - 1).chain(['…']).collect(),
        false => text.to_owned(),
    }
}

/// The last lines of a log, of the last start alone.
pub(crate) fn last_lines(log: &Path, most: usize) -> Vec<String> {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = std::fs::File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(MAX_READ)))?;
        let mut bytes = Vec::new();
        file.take(MAX_READ).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    let is_start = |line: &&str| line.starts_with(START) && line.contains(" start ");
    let begin = lines.iter().rposition(is_start).map_or(0, |at| at + 1);
    let said = lines.iter().skip(begin).map(|line| clip(&cleaned(line)));
    let said: Vec<String> = said.filter(|line| !line.trim().is_empty()).collect();
    said[said.len().saturating_sub(most)..].to_vec()
}

/// What may help, if it is something that many meet.
fn hint(exit: Exit, lines: &[String]) -> Option<&'static str> {
    let says = |words: &[&str]| {
        let has = |line: &String| words.iter().any(|word| line.contains(word));
        lines.iter().any(has)
    };
    let text = match exit {
        _ if says(&["ModuleNotFoundError", "ImportError"]) => {
            "a Python package is missing: name the interpreter that has it, as in -- venv/bin/python train.py"
        }
        _ if says(&["Address already in use", "the port is in use"]) => {
            "something else listens on that address: `ss -ltnp` names it; without addresses in the job, free ones are taken"
        }
        _ if says(&["Permission denied"]) => {
            "look who owns the file, and whether it may be executed"
        }
        _ if says(&["No space left on device"]) => "the disk is full: `df -h` says which",
        _ if says(&[
            "MemoryError",
            "bad_alloc",
            "out of memory",
            "RESOURCE_EXHAUSTED",
        ]) =>
        {
            "memory ran out: fewer workers, smaller batches, or more parameter servers"
        }
        _ if says(&["UNAVAILABLE", "Connection refused"]) => {
            "another task was not there; look which one ended first, above and in job.log"
        }
        Exit::Signal(9) => {
            "SIGKILL from outside: often the system ran out of memory; `dmesg | tail` says so"
        }
        Exit::Signal(4) => "SIGILL: the program was built for another processor",
        Exit::Signal(6 | 7 | 8 | 11) => "the program crashed; a core dump or a debugger says where",
        Exit::Code(2) => "2 means wrong usage: look at the command and its flags",
        Exit::Code(126) => "126 means that the program is there but cannot be executed",
        Exit::Code(127) => "127 means that a shell did not find the program",
        _ => return None,
    };
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_those_of_the_last_start() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("x.log");
        let text =
            "--- worker:0 start 1: sh\nold\n--- worker:0 start 2: sh\na\n\n\x1b[31mb\x1b[0m\n";
        std::fs::write(&log, text).unwrap();
        assert_eq!(last_lines(&log, 12), ["a", "b"]);
        assert_eq!(last_lines(&log, 1), ["b"]);
        assert!(last_lines(Path::new("/no/such"), 3).is_empty());
        std::fs::write(&log, "x".repeat(100_000)).unwrap();
        assert_eq!(last_lines(&log, 3)[0].chars().count(), MAX_LINE);
    }

    #[test]
    fn common_faults_have_a_hint() {
        let lines = |text: &str| vec![text.to_owned()];
        let missing = lines("ModuleNotFoundError: No module named 'tensorflow'");
        assert!(
            hint(Exit::Code(1), &missing)
                .unwrap()
                .contains("interpreter")
        );
        assert!(hint(Exit::Signal(9), &[]).unwrap().contains("memory"));
        assert_eq!(hint(Exit::Code(1), &lines("ValueError: 7")), None);
    }
}
