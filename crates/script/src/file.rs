//! Files of commands. A command is a line of words, lines that belong to it, `----`, and what it must print, up to an
//! empty line:
//!
//! ```text
//! # What the next lines show.
//! run x=2.0
//! y = Mul(x, x)
//! ----
//! y = float:4
//! ```
//!
//! With `UPDATE=1` in the environment a file is written anew with what its commands print now; its changes are then
//! for the reader of the diff to judge.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};

/// One command of a file.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Command {
    /// Its first word.
    pub name: String,
    /// The other words of its line.
    pub words: Vec<String>,
    /// The lines that belong to it.
    pub body: String,
    /// What it must print.
    expected: String,
    /// Its lines in the file, comments before it included, up to `----`.
    source: String,
    /// Where it begins.
    line: usize,
}

impl Command {
    /// The value of the word `key=value`.
    pub fn value(&self, key: &str) -> Option<&str> {
        let words = self.words.iter();
        let mut values = words.filter_map(|w| w.split_once('=').filter(|(k, _)| *k == key));
        values.next().map(|(_, value)| value)
    }

    /// The values of the word `key=one,two`; none if there is no such word.
    pub fn values(&self, key: &str) -> Vec<String> {
        let values = self.value(key).unwrap_or_default().split(',');
        values
            .filter(|v| !v.is_empty())
            .map(str::to_owned)
            .collect()
    }

    /// Whether the word `flag` is there.
    pub fn has(&self, flag: &str) -> bool {
        self.words.iter().any(|w| w == flag)
    }
}

/// Runs every `*.txt` below `folder`. `open` makes what runs the commands of one file, in order; each returns what it
/// prints.
///
/// # Panics
///
/// If a command prints something else than its file says, naming all that do, or if there is no file.
pub fn check_folder<R: FnMut(&Command) -> String>(folder: &Path, mut open: impl FnMut() -> R) {
    let update = std::env::var_os("UPDATE").is_some_and(|v| v == "1");
    let files = files(folder);
    assert!(!files.is_empty(), "no *.txt in {}", folder.display());
    let mut wrong = String::new();
    for file in files {
        let text = std::fs::read_to_string(&file)
            .unwrap_or_else(|e| panic!("cannot read {}: {e}", file.display()));
        let (new, problems) = check_text(&text, &mut open());
        if update && new != text {
            std::fs::write(&file, new)
                .unwrap_or_else(|e| panic!("cannot write {}: {e}", file.display()));
        } else if !update {
            for problem in problems {
                wrong += &format!("{}:{problem}\n", file.display());
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{wrong}(UPDATE=1 writes what is printed into the files)"
    );
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder)
        .unwrap_or_else(|e| panic!("cannot list {}: {e}", folder.display()));
    let mut found = Vec::new();
    for path in entries.flatten().map(|e| e.path()) {
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|e| e == "txt") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The file as it should read by what its commands print, and what is wrong with it.
#[expect(
    clippy::print_stderr,
    reason = "says which command a panic came from; the test's output shows it"
)]
fn check_text(text: &str, run: &mut impl FnMut(&Command) -> String) -> (String, Vec<String>) {
    let (commands, rest) = commands(text);
    let mut new = String::new();
    let mut problems = Vec::new();
    if commands.is_empty() {
        problems.push("1: no command".to_owned());
    }
    for command in commands {
        let ended = catch_unwind(AssertUnwindSafe(|| run(&command)));
        let printed = ended.unwrap_or_else(|panic| {
            eprintln!("in line {}: `{}`", command.line, command.name);
            resume_unwind(panic)
        });
        // An empty line ends what is expected, so that one that is printed shows as a dot.
        let lines = printed
            .trim_end()
            .lines()
            .map(|line| match line.trim_end() {
                "" => ".\n".to_owned(),
                line => format!("{line}\n"),
            });
        let printed: String = lines.collect();
        if printed != command.expected {
            problems.push(format!(
                "{}: `{}` printed\n{printed}---- but not\n{}",
                command.line, command.name, command.expected
            ));
        }
        new += &format!("{}----\n{printed}\n", command.source);
    }
    new += &rest;
    (new.trim_end().to_owned() + "\n", problems)
}

/// The commands of a file, and the comments behind the last.
fn commands(text: &str) -> (Vec<Command>, String) {
    let mut found = Vec::new();
    let mut command = Command::default();
    let mut lines = text.lines().enumerate();
    while let Some((i, line)) = lines.next() {
        if line == "----" {
            command.expected = (lines.by_ref().map(|(_, line)| line))
                .take_while(|line| !line.trim().is_empty())
                .map(|line| format!("{line}\n"))
                .collect();
            found.push(std::mem::take(&mut command));
            continue;
        }
        command.source += &format!("{line}\n");
        if line.starts_with('#') || line.trim().is_empty() {
            continue;
        }
        if command.name.is_empty() {
            let mut words = line.split_whitespace().map(str::to_owned);
            command.name = words.next().unwrap_or_default();
            command.words = words.collect();
            command.line = i + 1;
        } else {
            command.body += &format!("{line}\n");
        }
    }
    (found, command.source)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "\
# Says what it is told.
echo a=1 b=x,y loud
one
two
----
one
two

none
----

# That was all.
";

    fn echo(command: &Command) -> String {
        command.body.clone()
    }

    #[test]
    fn a_file_whose_commands_print_what_it_says_is_right_and_stays_as_it_is() {
        let (new, problems) = check_text(FILE, &mut echo);
        assert_eq!(problems, [""; 0]);
        assert_eq!(new, FILE);
        let (commands, _) = commands(FILE);
        let echo = &commands[0];
        assert_eq!((echo.name.as_str(), echo.line), ("echo", 2));
        assert_eq!((echo.value("a"), echo.value("c")), (Some("1"), None));
        assert_eq!(echo.values("b"), ["x", "y"]);
        assert!(echo.has("loud") && !echo.has("a"));
    }

    #[test]
    fn a_command_that_prints_something_else_is_named_and_can_be_written_anew() {
        let mut louder = |command: &Command| command.body.to_uppercase();
        let (new, problems) = check_text(FILE, &mut louder);
        assert_eq!(problems.len(), 1);
        assert!(
            problems[0].starts_with("2: `echo` printed\nONE"),
            "{problems:?}"
        );
        assert_eq!(check_text(&new, &mut louder).1, [""; 0]);
        assert_eq!(check_text("# nothing\n", &mut echo).1, ["1: no command"]);
    }

    #[test]
    fn empty_lines_in_what_is_printed_do_not_end_it() {
        let mut gap = |_: &Command| "a\n\nb".to_owned();
        let (new, _) = check_text("gap\n----\n", &mut gap);
        assert_eq!(new, "gap\n----\na\n.\nb\n");
        assert_eq!(check_text(&new, &mut gap).1, [""; 0]);
    }
}
