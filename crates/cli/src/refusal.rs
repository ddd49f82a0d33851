//! How the program says that it cannot do what it was asked to: one line on stderr and an exit
//! code, 2 for what was asked (flags, settings, files that are not there), 1 for what was found (damage).

use std::io::{ErrorKind, IsTerminal, Write};
use std::process::ExitCode;

/// Why a command ends with 1: it did what it was asked to and what it found is not good.
#[derive(Debug)]
pub(crate) struct Found(pub(crate) String);

impl std::fmt::Display for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Found {}

/// Prints an error and turns it into an exit code. Whoever stopped reading our output got what it
/// wanted: that is none.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    let is_pipe = |e: &(dyn std::error::Error + 'static)| {
        let io = e.downcast_ref::<std::io::Error>();
        io.is_some_and(|e| e.kind() == ErrorKind::BrokenPipe)
    };
    if error.chain().any(is_pipe) {
        return ExitCode::SUCCESS;
    }
    if crate::log::is_json() {
        let line = crate::log::json_line("ERROR", &told(error));
        let _ = std::io::stderr().write_all(line.as_bytes());
        return code(error);
    }
    let stderr = std::io::stderr();
    let (on, off) = match has_colour(stderr.is_terminal()) {
        true => ("\x1b[1;31m", "\x1b[0m"),
        false => ("", ""),
    };
    // Texts may hold names out of hostile files.
    let text = clean(&told(error));
    let _ = writeln!(&stderr, "{on}error:{off} {text}");
    code(error)
}

fn code(error: &anyhow::Error) -> ExitCode {
    match error.downcast_ref::<Found>() {
        Some(_) => ExitCode::from(1),
        None => ExitCode::from(2),
    }
}

/// An error and what led to it. Some errors name their cause themselves: it is told once.
fn told(error: &anyhow::Error) -> String {
    let mut out = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if out.ends_with(&cause) {
            continue;
        }
        if !out.is_empty() {
            out += ": ";
        }
        out += &cause;
    }
    out
}

/// Whether to colour what goes to a terminal, or not: `NO_COLOR` and `TERM=dumb` say no.
pub(crate) fn has_colour(is_terminal: bool) -> bool {
    let said_no = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
    let is_dumb = std::env::var_os("TERM").is_none_or(|t| t == "dumb");
    is_terminal && !said_no && !is_dumb
}

/// A text without what would steer a terminal: control characters and those that turn the
/// direction of writing become visible escapes.
pub(crate) fn clean(text: &str) -> String {
    let steers = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(steers) {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match steers(c) {
            true => out.extend(c.escape_default()),
            false => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{clean, told};
    use anyhow::Context as _;

    #[test]
    fn a_cause_is_told_once() {
        #[derive(Debug)]
        struct Naming(std::io::Error);
        impl std::fmt::Display for Naming {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "the directory cannot be used: {}", self.0)
            }
        }
        impl std::error::Error for Naming {
            fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
                Some(&self.0)
            }
        }
        let naming = Naming(std::io::Error::other("gone"));
        let error = anyhow::Error::from(naming).context("--dir");
        assert_eq!(told(&error), "--dir: the directory cannot be used: gone");
        let plain: anyhow::Result<()> = Err(std::io::Error::other("gone")).context("reading");
        assert_eq!(told(&plain.unwrap_err()), "reading: gone");
    }

    #[test]
    fn names_cannot_steer_a_terminal() {
        assert_eq!(clean("plain é 名"), "plain é 名");
        assert_eq!(clean("a\x1b[31mb\r\n\0"), "a\\u{1b}[31mb\\r\\n\\u{0}");
        assert_eq!(clean("x\u{202e}y"), "x\\u{202e}y");
    }
}
