//! What processes print: bytes go to a log file as they are, lines go to whoever listens, cleaned
//! of what would move a terminal's cursor. Lines have a longest length, so that a program that
//! never ends one costs no memory.

use crate::TaskName;
use std::fs::File;
use std::io::{Read, Write};
use std::sync::Arc;

/// Longest line that is passed on in one piece.
const MAX_LINE: usize = 16 << 10;

/// One of a process's two streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Printed {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// Hears every line. Called from several threads; while it runs the process that printed waits.
pub type Listener = Arc<dyn Fn(&TaskName, Printed, &str) + Send + Sync>;

/// Copies a stream to its log and its listener until it ends. A log that cannot be written is no
/// reason for the process to stop.
///
/// Lines that begin with `unlogged` are for the listener alone.
pub(crate) fn copy(
    mut from: impl Read,
    log: Option<File>,
    unlogged: Option<&str>,
    mut line: impl FnMut(&str),
) {
    let mut log = log.map(|file| Log::new(file, unlogged));
    let mut lines = Lines::default();
    let mut buffer = [0; 8192];
    loop {
        let read = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(_) => break,
        };
        let bytes = buffer.get(..read).unwrap_or_default();
        if let Some(file) = &mut log
            && file.write(bytes).is_err()
        {
            line("(the log file cannot be written; the rest of this output is not kept)");
            log = None;
        }
        lines.push(bytes, &mut line);
    }
    if let Some(file) = &mut log {
        // There is nobody left to tell that it cannot be written.
        let _ = file.finish();
    }
    lines.finish(&mut line);
}

/// A log file, without the lines that are not meant for it.
struct Log {
    file: File,
    unlogged: Option<Vec<u8>>,
    /// The beginning of a line of which is not known yet whether it is meant for the log.
    open: Vec<u8>,
    /// Whether the line under way is left out.
    is_left_out: bool,
    in_line: bool,
}

impl Log {
    fn new(file: File, unlogged: Option<&str>) -> Log {
        Log {
            file,
            unlogged: unlogged.map(|mark| mark.as_bytes().to_vec()),
            open: Vec::new(),
            is_left_out: false,
            in_line: false,
        }
    }

    fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        let Some(mark) = &self.unlogged else {
            return self.file.write_all(bytes);
        };
        let mut kept = Vec::with_capacity(bytes.len());
        for byte in bytes {
            if !self.in_line {
                self.open.push(*byte);
                if self.open.len() < mark.len() && mark.starts_with(&self.open) {
                    continue;
                }
                self.is_left_out = self.open.starts_with(mark);
                if !self.is_left_out {
                    kept.extend_from_slice(&self.open);
                }
                self.open.clear();
                self.in_line = true;
            } else if !self.is_left_out {
                kept.push(*byte);
            }
            if *byte == b'\n' {
                self.in_line = false;
            }
        }
        self.file.write_all(&kept)
    }

    fn finish(&mut self) -> std::io::Result<()> {
        self.file.write_all(&self.open)
    }
}

/// Bytes, cut into lines.
#[derive(Default)]
struct Lines {
    open: Vec<u8>,
}

impl Lines {
    fn push(&mut self, bytes: &[u8], line: &mut impl FnMut(&str)) {
        for byte in bytes {
            match byte {
                b'\n' => self.flush(line),
                _ => {
                    self.open.push(*byte);
                    if self.open.len() >= MAX_LINE {
                        self.flush(line);
                    }
                }
            }
        }
    }

    fn flush(&mut self, line: &mut impl FnMut(&str)) {
        let text = String::from_utf8_lossy(&self.open);
        let text = text.trim_end_matches('\r');
        // Of what a progress bar draws over itself only the last is seen on a terminal, too.
        let text = text.rsplit('\r').next().unwrap_or(text);
        line(&cleaned(text));
        self.open.clear();
    }

    fn finish(&mut self, line: &mut impl FnMut(&str)) {
        if !self.open.is_empty() {
            self.flush(line);
        }
    }
}

/// Without escape sequences and control characters: one task must not be able to paint over what
/// another, or the launcher, says.
pub(crate) fn cleaned(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\x1b' => skip_escape(&mut chars),
            '\t' => out.push('\t'),
            c if c.is_control() => {}
            // Marks that reverse the direction of what follows.
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {}
            c => out.push(c),
        }
    }
    out
}

/// Skips what follows an escape character: a CSI sequence, a title, or one letter.
fn skip_escape(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) {
    match chars.next() {
        Some('[') => {
            for c in chars.by_ref() {
                if ('\x40'..='\x7e').contains(&c) {
                    break;
                }
            }
        }
        Some(']') => {
            while let Some(c) = chars.next() {
                if c == '\x07' {
                    break;
                }
                if c == '\x1b' {
                    chars.next_if_eq(&'\\');
                    break;
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(bytes: &[u8]) -> Vec<String> {
        let mut out = Vec::new();
        copy(bytes, None, None, |line| out.push(line.to_owned()));
        out
    }

    #[test]
    fn lines_are_cut_and_the_last_needs_no_end() {
        assert_eq!(lines(b"a\nb\r\n\nc"), ["a", "b", "", "c"]);
        assert_eq!(lines(b"10%\r50%\r100%\ndone\n"), ["100%", "done"]);
        assert_eq!(lines(b"\xff\xfe\n"), ["\u{fffd}\u{fffd}"]);
    }

    #[test]
    fn a_line_without_end_costs_no_memory() {
        let pieces = lines(&vec![b'x'; 3 * MAX_LINE + 1]);
        assert_eq!(
            pieces.iter().map(String::len).collect::<Vec<_>>(),
            [MAX_LINE, MAX_LINE, MAX_LINE, 1]
        );
    }

    #[test]
    fn a_terminal_cannot_be_painted_on() {
        for (bytes, want) in [
            ("\x1b[2J\x1b[Hgone", "gone"),
            ("\x1b[31mred\x1b[0m", "red"),
            ("\x1b]0;title\x07x", "x"),
            ("\x1b]8;;http://e\x1b\\x", "x"),
            ("a\x08\x08b\x07", "ab"),
            ("\u{202e}abc", "abc"),
            ("tab\tstays", "tab\tstays"),
            ("\x1b", ""),
        ] {
            assert_eq!(cleaned(bytes), want);
        }
    }

    #[test]
    fn the_log_holds_the_bytes_as_they_were() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.log");
        let file = File::create(&path).unwrap();
        copy(&b"\x1b[31mred\r\n"[..], Some(file), None, |_| ());
        assert_eq!(std::fs::read(path).unwrap(), b"\x1b[31mred\r\n");
    }

    /// Hands out a byte at a time.
    struct Slow<'a>(&'a [u8]);

    impl Read for Slow<'_> {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            self.0.read(&mut into[..1])
        }
    }

    #[test]
    fn lines_for_the_listener_alone_are_not_in_the_log() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.log");
        let text = b"one\n@progress {}\n@pro\n\n@\n@progress 2\ntwo @progress\n@progr";
        let mut heard = Vec::new();
        let file = File::create(&path).unwrap();
        let line = |line: &str| heard.push(line.to_owned());
        copy(Slow(text), Some(file), Some("@progress "), line);
        assert_eq!(heard.len(), 8, "{heard:?}");
        let log = std::fs::read_to_string(&path).unwrap();
        assert_eq!(log, "one\n@pro\n\n@\ntwo @progress\n@progr");
        let file = File::create(&path).unwrap();
        copy(&text[..], Some(file), Some("@progress "), |_| ());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), log);
    }
}
