//! What processes print: bytes go to a log file as they are, lines go to whoever listens, cleaned
//! of what would move a terminal's cursor. Lines have a longest length, so that a program that
//! never ends one costs no memory.

use crate::TaskName;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

/// Longest line that is passed on in one piece.
const MAX_LINE: usize = 16 << 10;

/// Bytes of a log from which on what it holds goes to `NAME.1`, in place of what is there, and it begins anew.
const MAX_LOG: u64 = 128 << 20;

/// Held by those who write to logs; a log that begins anew is alone.
static ROTATION: RwLock<()> = RwLock::new(());

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
    from: impl Read,
    log: Option<(File, &Path)>,
    unlogged: Option<&str>,
    line: impl FnMut(&str),
) {
    let log = log.map(|(file, path)| Log::new(file, path, MAX_LOG, unlogged));
    copy_to(from, log, line);
}

fn copy_to(mut from: impl Read, mut log: Option<Log>, mut line: impl FnMut(&str)) {
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
    /// Opened to append: several streams write to one log.
    file: File,
    path: PathBuf,
    limit: u64,
    /// Bytes written since its length was looked at.
    unseen: u64,
    unlogged: Option<Vec<u8>>,
    /// The beginning of a line of which is not known yet whether it is meant for the log.
    open: Vec<u8>,
    /// Whether the line under way is left out.
    is_left_out: bool,
    in_line: bool,
}

impl Log {
    fn new(file: File, path: &Path, limit: u64, unlogged: Option<&str>) -> Log {
        Log {
            file,
            path: path.to_owned(),
            limit,
            unseen: 0,
            unlogged: unlogged.map(|mark| mark.as_bytes().to_vec()),
            open: Vec::new(),
            is_left_out: false,
            in_line: false,
        }
    }

    fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        let Some(mark) = &self.unlogged else {
            return self.append(bytes);
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
        self.append(&kept)
    }

    fn finish(&mut self) -> std::io::Result<()> {
        let open = std::mem::take(&mut self.open);
        self.append(&open)
    }

    fn append(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        {
            let _shared = ROTATION.read().unwrap_or_else(PoisonError::into_inner);
            self.file.write_all(bytes)?;
        }
        self.unseen += bytes.len() as u64;
        if self.unseen >= self.limit / 16 {
            self.unseen = 0;
            // A log that cannot begin anew goes on as it is.
            let _ = self.rotate();
        }
        Ok(())
    }

    /// Moves what is there to `NAME.1`, if it is long. The file stays the same one: others have it open, too.
    fn rotate(&mut self) -> std::io::Result<()> {
        let _alone = ROTATION.write().unwrap_or_else(PoisonError::into_inner);
        if self.file.metadata()?.len() < self.limit {
            return Ok(());
        }
        let mut older = self.path.clone().into_os_string();
        older.push(".1");
        let older = PathBuf::from(older);
        let _ = std::fs::remove_file(&older);
        let mut to = crate::dir::append(&older)?;
        std::io::copy(&mut File::open(&self.path)?, &mut to)?;
        self.file.set_len(0)
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
        copy(&b"\x1b[31mred\r\n"[..], Some((file, &path)), None, |_| ());
        assert_eq!(std::fs::read(path).unwrap(), b"\x1b[31mred\r\n");
    }

    #[test]
    fn a_long_log_begins_anew_and_its_last_part_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.log");
        let older = dir.path().join("x.log.1");
        // Two streams of one process write to one log.
        let open = || {
            let file = crate::dir::append(&path).unwrap();
            Log::new(file, &path, 1000, None)
        };
        let (mut out, mut err) = (open(), open());
        let mut written = String::new();
        for i in 0..200 {
            let line = format!("line {i:04}\n");
            let log = if i % 3 == 0 { &mut err } else { &mut out };
            log.write(line.as_bytes()).unwrap();
            written += &line;
        }
        let read = |path: &Path| std::fs::read_to_string(path).unwrap();
        let (before, now) = (read(&older), read(&path));
        assert!(
            before.len() >= 1000 && before.len() < 1300,
            "{}",
            before.len()
        );
        assert!(now.len() < 1300, "{}", now.len());
        let kept = before + &now;
        assert!(
            written.ends_with(&kept),
            "nothing between is missing: {kept}"
        );
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
        copy(Slow(text), Some((file, &path)), Some("@progress "), line);
        assert_eq!(heard.len(), 8, "{heard:?}");
        let log = std::fs::read_to_string(&path).unwrap();
        assert_eq!(log, "one\n@pro\n\n@\ntwo @progress\n@progr");
        let file = File::create(&path).unwrap();
        copy(&text[..], Some((file, &path)), Some("@progress "), |_| ());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), log);
    }
}
