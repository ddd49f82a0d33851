//! The last lines that tasks printed: from files that grow, and from this process. Text from
//! outside: control characters are taken out here, escaping is the encoder's.

use downpour_formats::{ReadAt, Storage};
use parking_lot::Mutex;
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::Arc;

/// Lines that are kept.
const MAX_LINES: usize = 1000;
/// Characters of a line that are kept.
const MAX_LINE: usize = 1000;
/// Bytes that are read of one file at once; of a file that was there before, only so many at its end.
const MAX_READ: usize = 128 << 10;

/// One line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct LogLine {
    pub(crate) id: u64,
    pub(crate) source: String,
    pub(crate) text: String,
}

/// Where lines arrive. Clones share them.
#[derive(Clone, Default)]
pub struct LogSink(Arc<Mutex<Lines>>);

#[derive(Default)]
struct Lines {
    lines: VecDeque<LogLine>,
    next: u64,
}

impl LogSink {
    /// Adds a line of `source`.
    pub fn push(&self, source: &str, text: &str) {
        let text = plain(text);
        if text.trim().is_empty() {
            return;
        }
        let mut lines = self.0.lock();
        let id = lines.next;
        lines.next += 1;
        lines.lines.push_back(LogLine {
            id,
            source: source.to_owned(),
            text,
        });
        if lines.lines.len() > MAX_LINES {
            lines.lines.pop_front();
        }
    }

    /// Lines from `id` on.
    pub(crate) fn since(&self, id: u64) -> Vec<LogLine> {
        let lines = self.0.lock();
        lines.lines.iter().filter(|l| l.id >= id).cloned().collect()
    }

    /// The id of the next line.
    pub(crate) fn next(&self) -> u64 {
        self.0.lock().next
    }
}

/// Text without colours and other things meant for terminals.
fn plain(text: &str) -> String {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if out.len() >= MAX_LINE {
            out.push('…');
            break;
        }
        match c {
            '\x1b' => {
                // `ESC [ … letter` sets colours and moves the cursor.
                if chars.next() == Some('[') {
                    chars.by_ref().find(|c| ('@'..='~').contains(c));
                }
            }
            '\t' => out.push_str("  "),
            c if c.is_control() => {}
            // Marks that turn the direction of what follows can make a line show another text.
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {}
            c => out.push(c),
        }
    }
    out
}

/// A log file that is followed.
pub(crate) struct Tail {
    source: String,
    path: String,
    offset: Option<u64>,
    /// The beginning of a line whose end is not there yet.
    rest: Vec<u8>,
}

impl Tail {
    pub(crate) fn new(source: String, path: String) -> Tail {
        Tail {
            source,
            path,
            offset: None,
            rest: Vec::new(),
        }
    }

    /// Takes what came since. A file that is not there or cannot be read has nothing new.
    pub(crate) fn read(&mut self, storage: &dyn Storage, sink: &LogSink) {
        let Ok(file) = storage.open(&self.path) else {
            return;
        };
        let Ok(len) = file.len() else {
            return;
        };
        let late = len.saturating_sub(MAX_READ as u64);
        let begin = match self.offset {
            Some(offset) if offset <= len => offset.max(late),
            // Emptied and begun anew, or seen for the first time.
            _ => late,
        };
        if Some(begin) != self.offset {
            self.rest.clear();
        }
        let mut bytes = vec![0; (len - begin) as usize];
        let Ok(n) = ReadAt::read_at(&*file, begin, &mut bytes) else {
            return;
        };
        bytes.truncate(n);
        self.offset = Some(begin + n as u64);
        self.rest.extend(bytes);
        while let Some(end) = self.rest.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            sink.push(&self.source, &String::from_utf8_lossy(&line));
        }
        if self.rest.len() > 4 * MAX_LINE {
            let line = std::mem::take(&mut self.rest);
            sink.push(&self.source, &String::from_utf8_lossy(&line));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use downpour_formats::LocalStorage;
    use std::io::Write;

    fn texts(sink: &LogSink) -> Vec<String> {
        sink.since(0).into_iter().map(|l| l.text).collect()
    }

    #[test]
    fn a_file_is_followed_line_by_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log").to_str().unwrap().to_owned();
        let (storage, sink) = (LocalStorage::new(), LogSink::default());
        let mut tail = Tail::new("ps:0".into(), path.clone());
        tail.read(&storage, &sink);
        std::fs::write(&path, "one\ntw").unwrap();
        tail.read(&storage, &sink);
        assert_eq!(texts(&sink), ["one"]);
        let mut file = std::fs::OpenOptions::new()
            .append(true)
            .open(&path)
            .unwrap();
        file.write_all(b"o\nthree\n").unwrap();
        tail.read(&storage, &sink);
        assert_eq!(texts(&sink), ["one", "two", "three"]);
        std::fs::write(&path, "new\n").unwrap();
        tail.read(&storage, &sink);
        assert_eq!(texts(&sink).last().unwrap(), "new");
        assert_eq!(sink.since(3).len(), 1);
    }

    #[test]
    fn a_large_file_is_read_from_near_its_end_and_lines_are_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log").to_str().unwrap().to_owned();
        std::fs::write(&path, "x".repeat(10 * MAX_READ)).unwrap();
        let (storage, sink) = (LocalStorage::new(), LogSink::default());
        Tail::new("a".into(), path).read(&storage, &sink);
        let texts = texts(&sink);
        assert_eq!(texts.len(), 1);
        assert!(texts[0].len() <= MAX_LINE + 4);
        for i in 0..2 * MAX_LINES {
            sink.push("a", &i.to_string());
        }
        assert_eq!(sink.since(0).len(), MAX_LINES);
    }

    #[test]
    fn what_is_meant_for_terminals_is_left_out() {
        assert_eq!(plain("\x1b[1;31mred\x1b[0m\r\n\x07\u{202e}<b>"), "red<b>");
    }
}
